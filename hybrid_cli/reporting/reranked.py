"""The section of the report about the number of rescored hits: quality and cost by depth (DualRM, Figure 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import altair as alt

from hybrid_cli import artifacts
from hybrid_cli.evaluation.measures import mean_of
from hybrid_cli.reporting.charts import Figure, chart, colours_at, plain
from hybrid_cli.reporting.page import Section
from hybrid_cli.reporting.plan import EvaluationPlan, measure
from hybrid_cli.reporting.tables import Table, figure
from hybrid_cli.storage import Kind, layout


@dataclass(frozen=True)
class AtDepth:
    """One depth of reranked runs; depth 0 is the first stage.

    Attributes:
        depth: rescored hits per query.
        means: measure -> mean over the queries.
        pairs: rescored pairs per query.
        tokens: tokens of the reranker's input per query.
        seconds: time of scoring per query. All pairs were scored at once, in batches of similar length, so the time of
            a depth is its share of the tokens.
    """

    depth: int
    means: Mapping[str, float]
    pairs: float
    tokens: float
    seconds: float


def at_depths(first_stage: str, folder: Path, plan: EvaluationPlan) -> list[AtDepth]:
    """Measure the reranked runs of a folder, and their first stage if it still exists.

    Args:
        first_stage: its name, for messages.
        folder: written by `rerank --depths`.
        plan: measures and judgments.

    Raises:
        InputError: not a folder of reranked runs, or runs of other queries.
    """
    made = artifacts.read_manifest(folder, Kind.RERANKED)
    runs = {depth: folder / layout.run_of(depth) for depth in made.counts["depths"]}
    first = made.input_path("run")
    if first is not None and first.exists():
        runs = {0: first, **runs}
    named = {f"{first_stage}, {depth} rescored": path for depth, path in runs.items()}
    values, _ = measure(replace(plan, runs=named, pair=None, overlap_with=None))
    depths = []
    for name, depth in zip(named, runs, strict=True):
        own = values.filter(run=name)
        counts = artifacts.read_manifest(runs[depth]).counts if depth else {"pairs": 0, "tokens": 0}
        share = counts["tokens"] / max(made.counts["tokens"], 1)
        per_query = 1 / max(made.counts["queries"], 1)
        depths.append(
            AtDepth(
                depth,
                {column: mean_of(own, column) for column in plan.columns if column in own["measure"]},
                counts["pairs"] * per_query,
                counts["tokens"] * per_query,
                made.counts["seconds"] * share * per_query,
            )
        )
    return depths


def section(studies: Mapping[str, Sequence[AtDepth]], measure: str, runs: Sequence[str]) -> Section:
    """Return charts of quality and cost by depth, and a table.

    Args:
        studies: name of a first stage -> its depths.
        measure: name of the measure.
        runs: runs of the report; a first stage with the name of a run has its color.
    """
    others = [name for name in studies if name not in runs]
    numbers = {name: [*runs, *others].index(name) for name in studies}
    rows = [
        {
            "stage": name,
            "depth": depth.depth,
            "mean": round(depth.means[measure], 5),
            "shown": figure(depth.means[measure]),
            "ms": round(depth.seconds * 1000, 3),
        }
        for name, depths in studies.items()
        for depth in depths
    ]
    quality = "Mean of the measure when the first k hits are rescored; k = 0 is the first stage."
    cost = (
        "Time of the reranker per query. All pairs were scored at once; the time of a depth is its share of the "
        "tokens. The time of the first stage is not included."
    )
    figures = [
        _figure("reranked-quality", rows, numbers, "mean", measure, quality),
        _figure("reranked-cost", rows, numbers, "ms", "milliseconds per query", cost),
    ]
    return Section("reranked", "Rescored hits", figures=figures, tables=[_table(studies)])


def _figure(
    name: str, rows: Sequence[Mapping[str, object]], numbers: Mapping[str, int], field: str, title: str, caption: str
) -> Figure:
    """Return a chart of one value by depth."""
    base = chart(name).encode(
        alt.X("depth:Q", title="rescored hits k", scale=alt.Scale(type="symlog", constant=10)).axis(
            values=[0, 10, 20, 50, 100, 200, 500, 1000], format="~s"
        ),
        alt.Y(f"{field}:Q", title=title).scale(zero=field == "ms").axis(tickCount=5),
        colours_at(numbers, "stage"),
        tooltip=[
            alt.Tooltip("stage:N", title="first stage"),
            alt.Tooltip("depth:Q", title="k"),
            alt.Tooltip("shown:N", title="mean"),
            alt.Tooltip("ms:Q", title="ms per query"),
        ],
    )
    drawn = base.mark_line(strokeWidth=2) + base.mark_circle(size=36, opacity=1)
    heading = f"{title[:1].upper()}{title[1:]} by rescored hits"
    return Figure(
        name, heading, plain(drawn, {name: rows}, height=300), caption, legend=list(numbers), colour_numbers=numbers
    )


def _table(studies: Mapping[str, Sequence[AtDepth]]) -> Table:
    columns = list(next(iter(studies.values()))[0].means)
    rows = [
        [name, f"{depth.depth:,}", *(figure(depth.means[column]) for column in columns), *costs]
        for name, depths in studies.items()
        for depth in depths
        for costs in [(f"{depth.pairs:,.1f}", f"{depth.tokens:,.0f}", f"{depth.seconds * 1000:,.1f}")]
    ]
    heads = ["first stage", "rescored hits", *columns, "pairs per query", "tokens per query", "ms per query"]
    return Table(heads, rows, "Quality and cost by number of rescored hits")
