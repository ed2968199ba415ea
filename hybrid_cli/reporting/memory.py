"""The section of the report about index size against quality (LITE, table 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt

from hybrid_cli import console
from hybrid_cli.artifacts.lineage import Held
from hybrid_cli.reporting.charts import Figure, chart, colours, plain
from hybrid_cli.reporting.page import Section
from hybrid_cli.reporting.tables import Table, figure

_ROOM = 2.5  # range of the axis beyond the smallest and the largest index, as a factor; room for names


def section(
    held: Mapping[str, Sequence[Held]], means: Mapping[str, float], measure: str, runs: Sequence[str]
) -> Section:
    """Return a scatter plot of the runs with known indexes, and a table of the indexes.

    Args:
        held: run -> its indexes.
        means: run -> mean of `measure`.
        measure: name of the measure.
        runs: all runs, in the order of their colors.
    """
    figures = [_figure(held, means, measure, runs)]
    return Section("memory", "Index size against quality", figures=figures, folded=[_table(held)])


def _figure(
    held: Mapping[str, Sequence[Held]], means: Mapping[str, float], measure: str, runs: Sequence[str]
) -> Figure:
    sizes = {run: sum(index.size for index in indexes) for run, indexes in held.items()}
    best = pareto_front(sizes, means)
    rows = [
        {"run": run, "bytes": size, "size": console.size(size), "mean": means[run], "shown": figure(means[run])}
        | {"front": run in best}
        for run, size in sizes.items()
    ]
    across = alt.Scale(type="log", domain=[min(sizes.values()) / _ROOM, max(sizes.values()) * _ROOM], nice=False)
    base = chart("memory").encode(
        alt.X("bytes:Q", title="bytes read by a search", scale=across).axis(format="~s", tickCount=5, grid=False),
        alt.Y("mean:Q", title=measure).scale(zero=False, padding=24).axis(tickCount=5, format=".2~f"),
        tooltip=[alt.Tooltip("run:N"), alt.Tooltip("size:N"), alt.Tooltip("shown:N", title=measure)],
    )
    dots = base.mark_circle(size=130, opacity=1).encode(colours(runs))
    names = base.mark_text(dy=-13, align="center").encode(text="run:N")
    steps = base.transform_filter("datum.front").mark_line(style="guide", interpolate="step-after")
    return Figure(
        "memory",
        f"{measure} and bytes",
        plain(steps + dots + names, {"memory": rows}, height=300),
        "Size on disk of the files that a search reads; for a fused run, of all its indexes. The query encoder is not "
        "included. Up and to the left is better: the line connects the runs that no smaller or equal run beats "
        "(Pareto front).",
        wide=True,
    )


def pareto_front(sizes: Mapping[str, int], means: Mapping[str, float]) -> set[str]:
    """Return the Pareto front: no other run has an equal mean with fewer bytes, or a higher mean with equal bytes."""

    def is_dominated(run: str, by: str) -> bool:
        no_worse = sizes[by] <= sizes[run] and means[by] >= means[run]
        return no_worse and (sizes[by], means[by]) != (sizes[run], means[run])

    return {run for run in sizes if not any(is_dominated(run, other) for other in sizes)}


def _table(held: Mapping[str, Sequence[Held]]) -> Table:
    rows = []
    for run, indexes in held.items():
        for index in indexes:
            parts = ", ".join(
                f"{name} {console.size(size)}{'' if name in index.needed else ' (not read)'}"
                for name, size in index.parts.items()
            )
            bytes_per_document = index.size / index.documents if index.documents else 0
            size = f"{console.size(index.size)}\n{index.size / 2**30:.3f} GiB"
            rows.append([run, str(index.index), parts, size, f"{bytes_per_document:,.0f}"])
    columns = ["run", "index", "parts", "read by a search", "bytes per document"]
    return Table(columns, rows, "Parts of each index", left=3)
