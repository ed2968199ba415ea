"""Where a run is good: means in groups of queries."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from hybrid_cli.evaluation.buckets import Buckets
from hybrid_cli.evaluation.layout import figure
from hybrid_cli.reporting.drawing import chart, colours, plain
from hybrid_cli.reporting.page import Figure, Section

_BAR, _GAP = 8, 14  # pixels


def section(groups: Sequence[tuple[Buckets, pl.DataFrame]], measure: str, runs: Sequence[str]) -> Section:
    """Bars for each way of grouping, with what `buckets.means` returned for it."""
    figures = [_figure(number, *each, measure, runs) for number, each in enumerate(groups) if len(each[1])]
    return Section("groups", "For which queries", figures=figures)


def _figure(number: int, group: Buckets, means: pl.DataFrame, measure: str, runs: Sequence[str]) -> Figure:
    name = f"groups-{number + 1}"
    rows = [
        {
            "bucket": bucket,
            "label": f"{bucket}  ·  {queries:,}",
            "run": run,
            "queries": queries,
            "mean": round(mean, 5),
            "shown": figure(mean),
        }
        for bucket, run, queries, mean in means.select("bucket", "run", "queries", "mean").iter_rows()
    ]
    order = list(dict.fromkeys(row["label"] for row in rows))
    bars = (
        chart(name)
        .mark_bar(cornerRadiusEnd=2)
        .encode(
            alt.Y("label:N", title=None, sort=order).scale(paddingInner=0.3).axis(ticks=False, labelLimit=140),
            alt.X("mean:Q", title=measure).axis(tickCount=5, format=".2~f"),
            colours(runs),
            yOffset=alt.YOffset("run:N", sort=list(runs)),
            tooltip=[
                alt.Tooltip("run:N"),
                alt.Tooltip("bucket:N", title="group"),
                alt.Tooltip("shown:N", title=measure),
                alt.Tooltip("queries:Q", format=","),
            ],
        )
    )
    note = f" {group.note[:1].upper()}{group.note[1:]}." if group.note else ""
    return Figure(
        name,
        f"By {group.name}",
        plain(bars, {name: rows}, height=len(order) * (len(runs) * _BAR + _GAP)),
        f"Mean {measure} of each group; behind its name the number of its queries.{note}",
        legend=runs,
    )
