"""How deep one has to look: recall at every depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt
import polars as pl

from hybrid_cli.evaluation.layout import figure
from hybrid_cli.reporting.data import Findings
from hybrid_cli.reporting.drawing import chart, colours, plain
from hybrid_cli.reporting.page import Figure, Section


def section(found: Findings) -> Section:
    """The curves of all runs."""
    curves = {run: kept.curve for run, kept in found.kept.items()}
    queries = f"{found.summary.queries(found.measure):,}"
    what = (
        f"The share of the {queries} questions that are answered within the first k hits (acc@k)."
        if found.by_answers
        else f"The share of the relevant documents among the first k hits (R@k), mean over {queries} judged queries."
    )
    title = "Questions answered by depth k" if found.by_answers else "Recall at depth k"
    return Section("depth", "How deep to look", figures=[_figure(curves, list(curves), title, what)])


def _figure(curves: Mapping[str, pl.DataFrame], runs: Sequence[str], title: str, what: str) -> Figure:
    rows = [
        {"run": run, "depth": depth, "recall": round(recall, 5), "shown": figure(recall)}
        for run, curve in curves.items()
        for depth, recall in curve.select("depth", "recall").iter_rows()
    ]
    base = chart("recall").encode(
        alt.X("depth:Q", title="first k hits")
        .scale(type="log")
        .axis(values=[1, 3, 10, 30, 100, 300, 1000], format="~s"),
        alt.Y("recall:Q", title="recall").scale(zero=False).axis(tickCount=5, format=".2~f"),
        colours(runs),
        tooltip=[alt.Tooltip("run:N"), alt.Tooltip("depth:Q", title="k"), alt.Tooltip("shown:N", title="recall")],
    )
    lines = base.mark_line(strokeWidth=2, interpolate="monotone")
    return Figure(
        "recall-by-depth",
        title,
        plain(lines + base.mark_circle(size=36, opacity=1), {"recall": rows}, height=340),
        f"{what} Where one curve lies above another at small k and below it at large k, the first ranks better and the "
        "second finds more.",
        legend=runs,
        wide=True,
    )
