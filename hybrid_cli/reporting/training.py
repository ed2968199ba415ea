"""How models were trained: every term of the loss and every dev value over the steps."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import polars as pl

from hybrid_cli.reporting.drawing import chart, colours, plain
from hybrid_cli.reporting.page import Figure, Section

MOST_POINTS = 200  # of a line; more steps are drawn as the means of as many stretches


def section(curves: Mapping[str, pl.DataFrame]) -> Section:
    """One figure for each name in the curves.

    Args:
        curves: model -> step, name, value.
    """
    models = list(curves)
    steps = [curve.with_columns(pl.lit(model).alias("model")) for model, curve in curves.items()]
    together = pl.concat([each.select("model", "step", "name", "value") for each in steps])
    parts = together.partition_by("name", maintain_order=True)
    figures = [_figure(number, part, models) for number, part in enumerate(parts)]
    return Section("training", "How the models were trained", figures=figures)


def _figure(number: int, curve: pl.DataFrame, models: list[str]) -> Figure:
    name, place = curve["name"][0], f"training-{number + 1}"
    rows = [
        {"model": model, "step": step, "value": value}
        for model, step, value in thinned(curve).select("model", "step", "value").iter_rows()
    ]
    base = chart(place).encode(
        alt.X("step:Q", title="step").axis(tickCount=5, format="~s"),
        alt.Y("value:Q", title=name).scale(zero=False).axis(tickCount=5),
        colours(models, "model"),
        tooltip=[
            alt.Tooltip("model:N"),
            alt.Tooltip("step:Q", format=","),
            alt.Tooltip("value:Q", title=name, format=".4f"),
        ],
    )
    dense = len(rows) > MOST_POINTS // 4 * len(models)
    drawn = base.mark_line(strokeWidth=1.5) + base.mark_circle(size=12 if dense else 40, opacity=1)
    thin = curve.group_by("model").len()["len"].max() or 0
    stretches = f" Means of {MOST_POINTS} stretches of the training." if int(str(thin)) > MOST_POINTS else ""
    what = "A value on the dev pool" if name.startswith("dev") else "A term of the loss"
    return Figure(place, name, plain(drawn, {place: rows}, height=220), f"{what}.{stretches}", legend=models)


def thinned(curve: pl.DataFrame, most: int = MOST_POINTS) -> pl.DataFrame:
    """model, step, value: at most `most` rows a model, each the mean of neighbouring steps."""
    place = pl.int_range(pl.len()).over("model") * most // pl.len().over("model").clip(lower_bound=most)
    return (
        curve.sort("model", "step", maintain_order=True)
        .group_by("model", place.alias("place"), maintain_order=True)
        .agg(pl.col("step").mean().round().cast(pl.Int64), pl.mean("value"))
    )
