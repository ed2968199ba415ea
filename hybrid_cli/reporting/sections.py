"""The sections of the report; the last one gives the reasons of absent ones. A summary in sentences comes first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from hybrid_cli import artifacts, console, words
from hybrid_cli.artifacts import Manifest
from hybrid_cli.artifacts.lineage import Held
from hybrid_cli.errors import HybridError
from hybrid_cli.evaluation.buckets import Buckets
from hybrid_cli.evaluation.complementarity import sets
from hybrid_cli.evaluation.measures import mean_of
from hybrid_cli.lexical.analysis import LazyAnalyzer
from hybrid_cli.reporting import comparison, venn
from hybrid_cli.reporting.complement import Complement, contest, contest_table
from hybrid_cli.reporting.data import Findings, Match
from hybrid_cli.reporting.page import Figure, Section, chart, colours, colours_at, line_chart, plain
from hybrid_cli.reporting.plan import EvaluationPlan, measure
from hybrid_cli.reporting.summary import Summary, counts_table, legend, means_table
from hybrid_cli.reporting.tables import Table, figure, pseudo_note
from hybrid_cli.storage import Kind, layout

DRAWN = (1, 10, 100)  # cutoffs with a Venn diagram
DOTS = 10_000  # queries in a scatter plot
MOST_POINTS = 200  # points of a learning curve; more steps are averaged
_BAR, _GAP = 8, 14  # pixels


def sections(
    findings: Findings,
    curves: Mapping[str, tuple[str | None, pl.DataFrame]],
    held: Mapping[str, Sequence[Held]],
    language: str,
    studies: Mapping[str, Sequence[AtDepth]],
) -> Iterator[Section]:
    """Yield all sections except the provenance.

    Args:
        findings: result of `data.find`.
        curves: encoder -> its run, if it has one, and step, name, value.
        held: run -> its indexes.
        language: language of the documents.
        studies: name of a first stage -> its reranked runs.
    """
    runs = findings.summary.runs
    yield overview_section(findings.summary, findings.lead, findings.reused)
    yield depth_section(findings)
    if studies:
        yield _reranked_section(studies, findings.measure, runs)
    if findings.complement:
        yield venn.section(findings.complement, runs, DRAWN)
    if findings.matches:
        yield dots_section(findings, DOTS)
    if findings.lead:
        text, compared = comparison.of_report(findings, findings.lead, analyzer_of(language))
        yield Section("compare", "Compare queries", text=[text], comparison=compared)
    if findings.groups:
        yield groups_section(findings.groups, findings.measure, runs)
    if curves:
        yield training_section(curves, runs)
    if held:
        means = {run: findings.summary.means[run, findings.measure] for run in held}
        yield _memory_section(held, means, findings.measure, runs)
    if reasons := list(_absent_sections(findings, bool(curves), bool(held))):
        yield Section("absent", "Absent sections", text=reasons)


def _absent_sections(findings: Findings, curves: bool, held: bool) -> Iterator[str]:
    """Yield the reason for each section that is left out."""
    if not findings.complement:
        yield "Complementarity: needs two runs, the only ones of a dense and of a lexical index, or --complement."
    reasons = {
        "Per query, and comparison of queries: need two runs.": findings.matches,
        "Query groups: need texts of queries and documents, of a collection or of two compared runs.": findings.groups,
        "Learning curves: no run leads to an encoder with a learning curve; pass --model FOLDER.": curves,
        "Index size against quality: no run leads to its index; pass --index RUN=FOLDER.": held,
    }
    yield from (reason for reason, present in reasons.items() if not present)


def analyzer_of(language: str) -> comparison.Analyze:
    """Return Lucene's analyzer, or without Java a function that lowercases words."""
    analyzer = LazyAnalyzer(language)
    try:
        analyzer.analyze([])  # starts Java for the languages that need it
        return analyzer.analyze
    except HybridError as error:
        console.note(f"report: query words are highlighted without stemming: {error}", code="no-java")
        return lambda texts: [words.plain_words(text.casefold()) for text in texts]


# ---------------------------------------------------------------------------------------------------- recall by depth


def depth_section(findings: Findings) -> Section:
    """Return the curves of all runs."""
    runs, count = list(findings.kept), f"{findings.summary.queries(findings.measure):,}"
    caption = f"Fraction of the relevant documents in the top k hits (R@k), mean over {count} judged queries."
    if findings.by_answers:
        caption = f"Fraction of the {count} questions that are answered in the top k hits (acc@k)."
    rows = [
        {"run": run, "depth": depth, "recall": round(recall, 5), "shown": figure(recall)}
        for run, kept in findings.kept.items()
        for depth, recall in kept.curve.select("depth", "recall").iter_rows()
    ]
    spec = line_chart(
        {"recall": rows},
        alt.X("depth:Q", title="top k hits").scale(type="log").axis(values=[1, 3, 10, 30, 100, 300, 1000], format="~s"),
        alt.Y("recall:Q", title="recall").scale(zero=False).axis(tickCount=5, format=".2~f"),
        colours(runs),
        [alt.Tooltip("run:N"), alt.Tooltip("depth:Q", title="k"), alt.Tooltip("shown:N", title="recall")],
        height=340,
    )
    drawing = Figure(
        "recall-by-depth",
        "Questions answered by depth k" if findings.by_answers else "Recall at depth k",
        spec,
        f"{caption} A curve that is higher at small k and lower at large k ranks better, but retrieves fewer relevant "
        "documents.",
        legend=runs,
        wide=True,
    )
    return Section("depth", "Recall by depth", figures=[drawing])


# ---------------------------------------------------------------------------------------------------- query groups


def groups_section(groups: Sequence[tuple[Buckets, pl.DataFrame]], measure: str, runs: Sequence[str]) -> Section:
    """Return one bar chart per grouping; see `buckets.means`."""
    figures = [_group_figure(number, *group, measure, runs) for number, group in enumerate(groups) if len(group[1])]
    return Section("groups", "Query groups", figures=figures)


def _group_figure(number: int, group: Buckets, means: pl.DataFrame, measure: str, runs: Sequence[str]) -> Figure:
    name = f"groups-{number + 1}"
    rows = [
        {**row, "mean": round(row["mean"], 5), "label": f"{row['bucket']}  ·  {row['queries']:,}"}
        | {"shown": figure(row["mean"])}
        for row in means.iter_rows(named=True)
    ]
    order = list(dict.fromkeys(row["label"] for row in rows))
    tooltips = [alt.Tooltip("run:N"), alt.Tooltip("bucket:N", title="group"), alt.Tooltip("shown:N", title=measure)]
    bars = chart(name).mark_bar(cornerRadiusEnd=2)
    bars = bars.encode(
        alt.Y("label:N", title=None, sort=order).scale(paddingInner=0.3).axis(ticks=False, labelLimit=140),
        alt.X("mean:Q", title=measure).axis(tickCount=5, format=".2~f"),
        colours(runs),
        yOffset=alt.YOffset("run:N", sort=list(runs)),
        tooltip=[*tooltips, alt.Tooltip("queries:Q", format=",")],
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


def training_section(curves: Mapping[str, tuple[str | None, pl.DataFrame]], runs: Sequence[str]) -> Section:
    """Return one figure per recorded name; an encoder has the color of its run.

    Args:
        curves: encoder -> its run, if it has one, and step, name, value.
        runs: all runs, in the order of their colors.
    """
    numbers = _colour_numbers({model: run for model, (run, _) in curves.items()}, runs)
    steps = [curve.with_columns(pl.lit(model).alias("model")) for model, (_, curve) in curves.items()]
    together = pl.concat([step_values.select("model", "step", "name", "value") for step_values in steps])
    parts = together.partition_by("name", maintain_order=True)
    figures = [_curve_figure(number, part, numbers) for number, part in enumerate(parts)]
    return Section("training", "Learning curves", figures=figures)


def _colour_numbers(owners: Mapping[str, str | None], runs: Sequence[str]) -> dict[str, int]:
    """Return the color number of each encoder: that of its run, or one that no run has."""
    numbers: dict[str, int] = {}
    for model, run in owners.items():
        own = runs.index(run) if run in runs else len(runs)
        numbers[model] = own if own not in numbers.values() else max(len(runs), *numbers.values()) + 1
    return numbers


def _curve_figure(number: int, curve: pl.DataFrame, numbers: Mapping[str, int]) -> Figure:
    name, name_of_figure = curve["name"][0], f"training-{number + 1}"
    rows = [
        {"model": model, "step": step, "value": value}
        for model, step, value in thin_curve(curve).select("model", "step", "value").iter_rows()
    ]
    tooltips = [alt.Tooltip("model:N"), alt.Tooltip("step:Q", format=",")]
    spec = line_chart(
        {name_of_figure: rows},
        alt.X("step:Q", title="step").axis(tickCount=5, format="~s"),
        alt.Y("value:Q", title=name).scale(zero=False).axis(tickCount=5),
        colours_at(numbers, "model"),
        [*tooltips, alt.Tooltip("value:Q", title=name, format=".4f")],
        height=220,
        size=12 if len(rows) > MOST_POINTS // 4 * len(numbers) else 36,
    )
    is_thin = len(rows) < len(curve)
    averaged = f" Each point is the mean of neighboring steps ({MOST_POINTS} points per curve)." if is_thin else ""
    kind = "A measure on the dev queries" if name.startswith("dev") else "A term of the training loss"
    return Figure(name_of_figure, name, spec, f"{kind}.{averaged}", legend=list(numbers), colour_numbers=numbers)


def thin_curve(curve: pl.DataFrame, most: int = MOST_POINTS) -> pl.DataFrame:
    """Return model, step, value: at most `most` rows per model, each the mean of neighboring steps."""
    bucket = pl.int_range(pl.len()).over("model") * most // pl.len().over("model").clip(lower_bound=most)
    return (
        curve.sort("model", "step", maintain_order=True)
        .group_by("model", bucket.alias("bucket"), maintain_order=True)
        .agg(pl.col("step").mean().round().cast(pl.Int64), pl.mean("value"))
    )


# ---------------------------------------------------------------------------------------------------- provenance


def provenance_section(manifest: Manifest) -> Section:
    """Return inputs with their fingerprints, settings, and versions."""
    inputs = [
        [role, source.get("name") or source["path"], source["kind"], source["fingerprint"]]
        for role, source in manifest.inputs.items()
    ]
    settings = [
        [name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)]
        for name, value in manifest.options.items()
    ]
    versions = list(manifest.versions.items())
    return Section(
        "provenance",
        "Provenance",
        text=["The page contains its manifest: `hybrid inspect` prints it, with the tree of all inputs."],
        folded=[
            Table(["role", "path", "kind", "fingerprint"], inputs, "Inputs", left=4),
            Table(["option", "value"], settings, "Settings", left=2),
            Table(["library", "version"], versions, "Versions", left=2),
        ],
    )


# ---------------------------------------------------------------------------------------------------- overview

SUMMARY_CUTOFF = 10


def overview_section(summary: Summary, lead: Match | None, reused: Sequence[str]) -> Section:
    """Return the wins of the hybrid, the means with intervals and marks, and the number of queries."""
    table = means_table(summary, lambda low, high: f"\n{figure(low, 3)} to {figure(high, 3)}")
    rows = [
        [f"{run}\n{row[0].removeprefix(run).strip()}", *row[1:]]
        for run, row in zip(summary.runs, table.rows, strict=True)
    ]
    settings = summary.settings
    notes = [
        *reused,
        f"Below each mean: its {settings['confidence']:.0%} bootstrap interval ({settings['resamples']:,} samples of "
        f"the queries, seed {settings['seed']}). Bold: the highest mean of a column.",
        *(line for line in legend(summary) if not line.startswith("±")),
    ]
    tables = [replace(table, rows=rows, title="Means of all measures", notes=notes)]
    if lead:
        bases = dict.fromkeys([*lead.bases, *(name for name in summary.baselines if name != lead.run)])
        contests = (contest(summary.values, lead.run, [base], summary.measures[0]) for base in bases)
        tables.insert(
            0, contest_table(contests, summary.measures[0], f"Queries on which {lead.run} is better, equal or worse")
        )
    return Section("measures", "Measures", tables=tables, folded=[counts_table(summary)])


# -------------------------------------------------------------------------------------------------------------- summary


def in_words(findings: Findings) -> list[str]:
    """Return the summary: the best run, the significance of the difference, and the complementarity of two runs.

    For pseudo-queries, the first sentence says that the figures are no estimate for users.
    """
    kind = findings.summary.settings.get("pseudo_queries")
    sentences = [f"{pseudo_note(kind)} The figures cannot tell which run is better for users."] if kind else []
    sentences.append(" ".join(_best(findings.summary)))
    if findings.complement is not None:
        sentences.append(" ".join(_sets(findings, findings.complement)))
    if findings.matches:
        match, measure = findings.matches[-1], findings.measure
        found = contest(findings.summary.values, match.run, match.bases, measure)
        better = console.counted(query=found.wins)
        others = f"worse on {found.losses:,}, and ties on {found.ties:,}"
        sentences.append(f"{match.run} is better than {found.base} on {better}, {others}.")
    return sentences


def _best(summary: Summary) -> Iterator[str]:
    measure, means = summary.measures[0], summary.means
    ranking = sorted(summary.runs, key=lambda run: -means[run, measure])
    best = ranking[0]
    if len(ranking) == 1:
        low, high = (figure(end, 3) for end in summary.ends[best, measure])
        interval = f"({summary.settings['confidence']:.0%} interval {low} to {high})"
        mean = f"{measure} {figure(means[best, measure])}"
        yield f"{best} has {mean} over {summary.queries(measure):,} judged queries {interval}."
        return
    yield f"{best} has the highest {measure}, {figure(means[best, measure])}."
    compared = summary.comparisons.filter(measure=measure)
    pairs = {frozenset((row["run"], row["baseline"])): row for row in compared.iter_rows(named=True)}
    other = next(run for run in ranking[1:] if frozenset((best, run)) in pairs)
    yield _difference(summary, best, other, pairs[frozenset((best, other))][f"p_{summary.settings['test']}_corrected"])
    leading = {name: max(ranking, key=lambda run: means[run, name]) for name in summary.measures[1:]}
    elsewhere = [f"{run} by {name}" for name, run in leading.items() if means[run, name] > means[best, name]]
    if elsewhere:
        yield f"Other runs lead by other measures: {', '.join(elsewhere)}."


def _difference(summary: Summary, best: str, other: str, p: float) -> str:
    measure, settings = summary.measures[0], summary.settings
    gap = summary.means[best, measure] - summary.means[other, measure]
    more = f"That is {figure(gap)} more than {other}"
    if gap == 0:
        return f"{other} has the same mean."
    if isnan(p):
        return f"{more}; a single query does not allow a significance test."
    verdict = "a significant difference" if p < settings["alpha"] else "which is not significant"
    return f"{more}, {verdict} ({'p < .001' if p < 0.001 else f'p = {figure(p, 3)}'}, corrected)."


def _sets(findings: Findings, complement: Complement) -> Iterator[str]:
    cut = next(each for each in complement.sets if each.cutoff == SUMMARY_CUTOFF)
    dense, sparse = complement.dense, complement.sparse
    found = f"{_count_of(cut.dense, cut.queries)} queries, {sparse} for {cut.sparse:,}"
    yield f"{dense} has a relevant document in its top {cut.cutoff} hits for {found}."
    if cut.dense:
        others = f"only {sparse} {cut.sparse_only:,}, neither {cut.fail:,}"
        yield f"Only {dense} answers {cut.dense_only:,} (RoC {figure(cut.roc, 2)}), {others}."
    run = findings.matches[-1].run
    reached = sets(findings.kept[run].first, findings.kept[sparse].first, cut.cutoff).dense
    ours = "" if run == dense else f"; {run} answers {reached:,}"
    yield f"An oracle that chooses between the two answers {_count_of(cut.queries - cut.fail, cut.queries)}{ours}."


def _count_of(count: int, queries: int) -> str:
    return f"{count:,} of {queries:,}" + (f" ({count / queries:.0%})" if queries else "")


# ------------------------------------------------------------------------------------------------- queries won and lost

_TEXT_CHARACTERS = 160
_SPACING, _WIDEST = 0.008, 0.045  # fractions of the axis: distance of dots with equal values, and the maximum radius
_CORNERS = [{"x": 0, "y": 0}, {"x": 1, "y": 1}]
_GOLDEN_ANGLE = np.pi * (3 - np.sqrt(5))


def dots_section(findings: Findings, most: int) -> Section:
    """Return a scatter plot for each match, and a table of wins.

    Args:
        findings: result of `data.find`.
        most: maximum number of dots; more queries are sampled.
    """
    values, runs, measure = findings.summary.values, findings.summary.runs, findings.measure
    wide = values.filter(measure=measure).pivot(on="run", index="qid", values="value", maintain_order=True)
    drawn = wide.sample(most, seed=findings.summary.settings["seed"]) if len(wide) > most else wide
    dots = _dots(drawn, findings.matches, findings.queries, runs)
    sampled = f" A random sample of {most:,} of {len(wide):,} queries is shown." if len(wide) > most else ""
    figures = [
        _dots_figure(number, match, measure, dots, runs, sampled) for number, match in enumerate(findings.matches)
    ]
    contests = (contest(values, match.run, match.bases, measure) for match in findings.matches)
    table = contest_table(contests, measure, f"Queries won and lost by {measure}")
    return Section("queries", "Per query", figures=figures, tables=[table])


# ----------------------------------------------------------------------------------------------------------- diagrams


def _dots(
    wide: pl.DataFrame, matches: Sequence[Match], texts: Mapping[str, str], runs: Sequence[str]
) -> list[dict[str, Any]]:
    """Return one row per query: text, values (v0, v1, ... in the order of the runs), position and winner per match."""
    columns: dict[str, Any] = {
        "q": wide["qid"].to_list(),
        "t": [words.head(texts.get(qid) or qid, _TEXT_CHARACTERS) for qid in wide["qid"]],
        **{f"v{position}": wide[run].round(4).to_list() for position, run in enumerate(runs)},
    }
    for number, match in enumerate(matches):
        names = [match.run, *match.bases, None]
        ours, others = wide[match.run].to_numpy(), wide.select(match.bases).to_numpy()
        best = others.max(axis=1)
        winner = np.where(ours > best, 0, np.where(ours == best, len(names) - 1, 1 + others.argmax(axis=1)))
        right, up = spread(best, ours)
        columns |= {
            f"x{number}": (best + right).round(4).tolist(),
            f"y{number}": (ours + up).round(4).tolist(),
            f"w{number}": [names[position] for position in winner],
        }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def spread(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets that spread dots with equal values over a disc of uniform density.

    The n-th dot is placed at n golden angles, at a distance proportional to the square root of n.
    """
    points = pl.DataFrame({"x": x, "y": y})
    number = points.select(pl.int_range(pl.len()).over("x", "y")).to_series().to_numpy()
    spacing = min(_SPACING, _WIDEST / np.sqrt(max(1, number.max(initial=0))))
    distance, angle = spacing * np.sqrt(number), number * _GOLDEN_ANGLE
    return distance * np.cos(angle), distance * np.sin(angle)


def _dots_figure(
    number: int, match: Match, measure: str, dots: list[dict[str, Any]], runs: Sequence[str], sampled: str
) -> Figure:
    ends = alt.Scale(domain=[-0.06, 1.06], nice=False)
    axis = alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format=".2~f")
    shown = match.runs
    tooltip = [
        alt.Tooltip("t:N", title="query"),
        alt.Tooltip("q:N", title="id"),
        *(alt.Tooltip(f"v{runs.index(name)}:Q", title=name, format=".3f") for name in shown),
    ]
    base = chart("queries").encode(
        alt.X(f"x{number}:Q", title=f"{measure} of {match.base}", scale=ends, axis=axis),
        alt.Y(f"y{number}:Q", title=f"{measure} of {match.run}", scale=ends, axis=axis),
        tooltip=tooltip,
    )
    equal = base.transform_filter(f"datum.w{number} === null").mark_circle(size=14, style="quiet")
    decided = base.transform_filter(f"datum.w{number} !== null").mark_circle(size=18, opacity=0.75)
    corners = chart("corners")
    diagonal = corners.mark_line(style="guide").encode(alt.X("x:Q", scale=ends), alt.Y("y:Q", scale=ends))
    return Figure(
        f"queries-{number + 1}",
        f"{match.run} against {match.base}",
        plain(
            diagonal + equal + decided.encode(colours(runs, f"w{number}")), {"queries": dots, "corners": _CORNERS}, 440
        ),
        f"One dot per query. Above the diagonal, {match.run} is better; the color is that of the better run, gray for "
        f"ties. Dots with equal values are spread around their position.{sampled} Hover over a dot to read the query.",
        legend=[name for name in runs if name in shown],
    )


# -------------------------------------------------------------------------------------------------------- rescored hits


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
        folder: written by `rerank --depth`.
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
        means = {column: mean_of(own, column) for column in plan.columns if column in own["measure"]}
        costs = [counts["pairs"] * per_query, counts["tokens"] * per_query, made.counts["seconds"] * share * per_query]
        depths.append(AtDepth(depth, means, *costs))
    return depths


def _reranked_section(studies: Mapping[str, Sequence[AtDepth]], measure: str, runs: Sequence[str]) -> Section:
    """Return charts of quality and cost by depth, and a table.

    Args:
        studies: name of a first stage -> its depths.
        measure: name of the measure.
        runs: runs of the report; a first stage with the name of a run has its color.
    """
    others = [name for name in studies if name not in runs]
    numbers = {name: [*runs, *others].index(name) for name in studies}
    rows = []
    for name, depth in ((name, depth) for name, depths in studies.items() for depth in depths):
        mean = depth.means[measure]
        shown = {"mean": round(mean, 5), "shown": figure(mean), "ms": round(depth.seconds * 1000, 3)}
        rows.append({"stage": name, "depth": depth.depth, **shown})
    quality = "Mean of the measure when the first k hits are rescored; k = 0 is the first stage."
    cost = "Time of the reranker per query: of a depth its share of the tokens, as all pairs were scored at once."
    figures = [
        _reranked_figure("reranked-quality", rows, numbers, "mean", measure, quality),
        _reranked_figure("reranked-cost", rows, numbers, "ms", "milliseconds per query", cost),
    ]
    return Section("reranked", "Rescored hits", figures=figures, tables=[_reranked_table(studies)])


def _reranked_figure(
    name: str, rows: Sequence[Mapping[str, object]], numbers: Mapping[str, int], field: str, title: str, caption: str
) -> Figure:
    """Return a chart of one value by depth."""
    depths = alt.X("depth:Q", title="rescored hits k", scale=alt.Scale(type="symlog", constant=10))
    titles = {"stage:N": "first stage", "depth:Q": "k", "shown:N": "mean", "ms:Q": "ms per query"}
    spec = line_chart(
        {name: rows},
        depths.axis(values=[0, 10, 20, 50, 100, 200, 500, 1000], format="~s"),
        alt.Y(f"{field}:Q", title=title).scale(zero=field == "ms").axis(tickCount=5),
        colours_at(numbers, "stage"),
        [alt.Tooltip(column, title=title_of_column) for column, title_of_column in titles.items()],
        height=300,
    )
    heading = f"{title[:1].upper()}{title[1:]} by rescored hits"
    return Figure(name, heading, spec, caption, legend=list(numbers), colour_numbers=numbers)


def _reranked_table(studies: Mapping[str, Sequence[AtDepth]]) -> Table:
    columns = list(next(iter(studies.values()))[0].means)
    rows = []
    for name, depth in ((name, depth) for name, depths in studies.items() for depth in depths):
        costs = [f"{depth.pairs:,.1f}", f"{depth.tokens:,.0f}", f"{depth.seconds * 1000:,.1f}"]
        rows.append([name, f"{depth.depth:,}", *(figure(depth.means[column]) for column in columns), *costs])
    heads = ["first stage", "rescored hits", *columns, "pairs per query", "tokens per query", "ms per query"]
    return Table(heads, rows, "Quality and cost by number of rescored hits")


# ------------------------------------------------------------------------------------------- index size against quality

_ROOM = 2.5  # range of the axis beyond the smallest and the largest index, as a factor; room for names


def _memory_section(
    held: Mapping[str, Sequence[Held]], means: Mapping[str, float], measure: str, runs: Sequence[str]
) -> Section:
    """Return a scatter plot of the runs with known indexes, and a table of the indexes.

    Args:
        held: run -> its indexes.
        means: run -> mean of `measure`.
        measure: name of the measure.
        runs: all runs, in the order of their colors.
    """
    figures = [_memory_figure(held, means, measure, runs)]
    return Section("memory", "Index size against quality", figures=figures, folded=[_memory_table(held)])


def _memory_figure(
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
        "Size of the files that a search reads, of all indexes of a fused run, without the query encoder. Up and "
        "left is better: the line connects the runs that no smaller or equal run beats (Pareto front).",
        wide=True,
    )


def pareto_front(sizes: Mapping[str, int], means: Mapping[str, float]) -> set[str]:
    """Return the Pareto front: no other run has an equal mean with fewer bytes, or a higher mean with equal bytes."""
    points = {run: (size, -means[run]) for run, size in sizes.items()}

    def is_dominated(point: tuple[int, float]) -> bool:
        return any(other[0] <= point[0] and other[1] <= point[1] and other != point for other in points.values())

    return {run for run, point in points.items() if not is_dominated(point)}


def _memory_table(held: Mapping[str, Sequence[Held]]) -> Table:
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
