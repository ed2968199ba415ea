"""The sections of the report; a section without data is omitted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from hybrid_cli import console
from hybrid_cli.artifacts import Manifest
from hybrid_cli.errors import HybridError
from hybrid_cli.evaluation.buckets import Buckets
from hybrid_cli.lexical.analysis import Analyzer
from hybrid_cli.reporting import memory, overview, queries, venn
from hybrid_cli.reporting.charts import Figure, chart, colours, plain
from hybrid_cli.reporting.data import Findings
from hybrid_cli.reporting.memory import Held
from hybrid_cli.reporting.page import Cell, Section, Table
from hybrid_cli.reporting.tables import figure

DRAWN = (1, 10, 100)  # cutoffs with a Venn diagram
DOTS = 10_000  # queries in a scatter plot
MOST_POINTS = 200  # points of a learning curve; more steps are averaged
_BAR, _GAP = 8, 14  # pixels


def sections(
    found: Findings,
    curves: Mapping[str, pl.DataFrame],
    held: Mapping[str, Sequence[Held]],
    language: str,
) -> Iterator[Section]:
    """Yield all sections except the provenance.

    Args:
        found: result of `data.find`.
        curves: encoder -> step, name, value.
        held: run -> its indexes.
        language: language of the documents.
    """
    runs = found.summary.runs
    yield overview.overview_section(found.summary)
    yield depth_section(found)
    if found.complement:
        yield venn.section(found.complement, runs, DRAWN)
    if found.matches:
        yield queries.dots_section(found, DOTS)
    if len(found.helped) or len(found.hurt):
        yield queries.lists_section(found, _analyzer(language))
    if found.groups:
        yield groups_section(found.groups, found.measure, runs)
    if curves:
        yield training_section(curves)
    if held:
        means = {run: found.summary.means[run, found.measure] for run in held}
        yield memory.section(held, means, found.measure, runs)


def _analyzer(language: str) -> queries.Analyze:
    """Return Lucene's analyzer, or without Java a function that lowercases words."""
    try:
        return Analyzer(language).analyze
    except HybridError as error:
        console.note(f"report: query words are highlighted without stemming: {error}")
        return lambda texts: [re.findall(r"\w+", text.casefold()) for text in texts]


# ---------------------------------------------------------------------------------------------------- recall by depth


def depth_section(found: Findings) -> Section:
    """Return the curves of all runs."""
    curves = {run: kept.curve for run, kept in found.kept.items()}
    count = f"{found.summary.queries(found.measure):,}"
    caption = (
        f"Fraction of the {count} questions that are answered in the top k hits (acc@k)."
        if found.by_answers
        else f"Fraction of the relevant documents in the top k hits (R@k), mean over {count} judged queries."
    )
    title = "Questions answered by depth k" if found.by_answers else "Recall at depth k"
    return Section("depth", "Recall by depth", figures=[_depth_figure(curves, list(curves), title, caption)])


def _depth_figure(curves: Mapping[str, pl.DataFrame], runs: Sequence[str], title: str, caption: str) -> Figure:
    rows = [
        {"run": run, "depth": depth, "recall": round(recall, 5), "shown": figure(recall)}
        for run, curve in curves.items()
        for depth, recall in curve.select("depth", "recall").iter_rows()
    ]
    base = chart("recall").encode(
        alt.X("depth:Q", title="top k hits").scale(type="log").axis(values=[1, 3, 10, 30, 100, 300, 1000], format="~s"),
        alt.Y("recall:Q", title="recall").scale(zero=False).axis(tickCount=5, format=".2~f"),
        colours(runs),
        tooltip=[alt.Tooltip("run:N"), alt.Tooltip("depth:Q", title="k"), alt.Tooltip("shown:N", title="recall")],
    )
    lines = base.mark_line(strokeWidth=2, interpolate="monotone")
    return Figure(
        "recall-by-depth",
        title,
        plain(lines + base.mark_circle(size=36, opacity=1), {"recall": rows}, height=340),
        f"{caption} A curve that is higher at small k and lower at large k ranks better, but retrieves fewer relevant "
        "documents.",
        legend=runs,
        wide=True,
    )


# ---------------------------------------------------------------------------------------------------- query groups


def groups_section(groups: Sequence[tuple[Buckets, pl.DataFrame]], measure: str, runs: Sequence[str]) -> Section:
    """Return one bar chart per grouping; see `buckets.means`."""
    figures = [_group_figure(number, *each, measure, runs) for number, each in enumerate(groups) if len(each[1])]
    return Section("groups", "Query groups", figures=figures)


def _group_figure(number: int, group: Buckets, means: pl.DataFrame, measure: str, runs: Sequence[str]) -> Figure:
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
        f"Mean {measure} of each group; the number of its queries follows its name.{note}",
        legend=runs,
    )


# ---------------------------------------------------------------------------------------------------- learning curves


def training_section(curves: Mapping[str, pl.DataFrame]) -> Section:
    """Return one figure per recorded name.

    Args:
        curves: encoder -> step, name, value.
    """
    models = list(curves)
    steps = [curve.with_columns(pl.lit(model).alias("model")) for model, curve in curves.items()]
    together = pl.concat([each.select("model", "step", "name", "value") for each in steps])
    parts = together.partition_by("name", maintain_order=True)
    figures = [_curve_figure(number, part, models) for number, part in enumerate(parts)]
    return Section("training", "Learning curves", figures=figures)


def _curve_figure(number: int, curve: pl.DataFrame, models: list[str]) -> Figure:
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
    averaged = (
        " Each point is the mean of neighboring steps ({MOST_POINTS} points per curve)."
        if int(str(thin)) > MOST_POINTS
        else ""
    )
    kind = "A measure on the dev pool" if name.startswith("dev") else "A term of the training loss"
    return Figure(place, name, plain(drawn, {place: rows}, height=220), f"{kind}.{averaged}", legend=models)


def thinned(curve: pl.DataFrame, most: int = MOST_POINTS) -> pl.DataFrame:
    """Return model, step, value: at most `most` rows per model, each the mean of neighboring steps."""
    place = pl.int_range(pl.len()).over("model") * most // pl.len().over("model").clip(lower_bound=most)
    return (
        curve.sort("model", "step", maintain_order=True)
        .group_by("model", place.alias("place"), maintain_order=True)
        .agg(pl.col("step").mean().round().cast(pl.Int64), pl.mean("value"))
    )


# ---------------------------------------------------------------------------------------------------- provenance


def provenance_section(manifest: Manifest) -> Section:
    """Return inputs with their fingerprints, settings, and versions."""
    inputs = [
        [Cell(role), Cell(source.get("name") or source["path"]), Cell(source["kind"]), Cell(source["fingerprint"])]
        for role, source in manifest.inputs.items()
    ]
    settings = [[Cell(name), Cell(_plain(value))] for name, value in manifest.options.items()]
    versions = [[Cell(name), Cell(number)] for name, number in manifest.versions.items()]
    return Section(
        "provenance",
        "Provenance",
        text=["The page contains its manifest: `hybrid inspect` prints it, with the tree of all inputs."],
        tables=[
            Table("Inputs", ["role", "path", "kind", "fingerprint"], inputs, left=4, folded=True),
            Table("Settings", ["option", "value"], settings, left=2, folded=True),
            Table("Versions", ["library", "version"], versions, left=2, folded=True),
        ],
    )


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
