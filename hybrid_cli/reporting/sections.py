"""The sections of the report; the last one gives the reasons of absent ones. A summary in sentences comes first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan

import altair as alt
import polars as pl

from hybrid_cli import console, words
from hybrid_cli.artifacts import Manifest
from hybrid_cli.artifacts.lineage import Held
from hybrid_cli.errors import HybridError
from hybrid_cli.evaluation.buckets import Buckets
from hybrid_cli.evaluation.complementarity import sets
from hybrid_cli.lexical.analysis import LazyAnalyzer
from hybrid_cli.reporting import comparison, memory, queries, reranked, venn
from hybrid_cli.reporting.charts import Figure, chart, colours, colours_at, plain
from hybrid_cli.reporting.complement import Complement, contest
from hybrid_cli.reporting.data import Findings, Match
from hybrid_cli.reporting.page import Section
from hybrid_cli.reporting.summary import COUNTS, Summary, leaders, legend, lettered, significant
from hybrid_cli.reporting.tables import Table, count, figure, pseudo_note, with_sign

DRAWN = (1, 10, 100)  # cutoffs with a Venn diagram
DOTS = 10_000  # queries in a scatter plot
MOST_POINTS = 200  # points of a learning curve; more steps are averaged
_BAR, _GAP = 8, 14  # pixels


def sections(
    findings: Findings,
    curves: Mapping[str, tuple[str | None, pl.DataFrame]],
    held: Mapping[str, Sequence[Held]],
    language: str,
    studies: Mapping[str, Sequence[reranked.AtDepth]],
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
        yield reranked.section(studies, findings.measure, runs)
    if findings.complement:
        yield venn.section(findings.complement, runs, DRAWN)
    if findings.matches:
        yield queries.dots_section(findings, DOTS)
    if findings.lead:
        text, compared = comparison.of_report(findings, findings.lead, analyzer_of(language))
        yield Section("compare", "Compare queries", text=[text], comparison=compared)
    if findings.groups:
        yield groups_section(findings.groups, findings.measure, runs)
    if curves:
        yield training_section(curves, runs)
    if held:
        means = {run: findings.summary.means[run, findings.measure] for run in held}
        yield memory.section(held, means, findings.measure, runs)
    if reasons := list(_absent_sections(findings, bool(curves), bool(held))):
        yield Section("absent", "Absent sections", text=reasons)


def _absent_sections(findings: Findings, curves: bool, held: bool) -> Iterator[str]:
    """Yield the reason for each section that is left out."""
    if not findings.complement:
        yield (
            "Complementarity: needs two runs to compare. Without --complement DENSE SPARSE these are the only run of a "
            "dense index and the only run of a lexical index, by their manifests."
        )
    if not findings.matches:
        yield "Per query, and comparison of queries: need two runs."
    if not findings.groups:
        yield "Query groups: need the texts of queries and documents, that is a collection, or two compared runs."
    if not curves:
        yield "Learning curves: no manifest of a run leads to an encoder with a learning curve; pass --model FOLDER."
    if not held:
        yield "Index size against quality: no manifest of a run leads to its index; pass --index RUN=FOLDER."


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
    caption = (
        f"Fraction of the {count} questions that are answered in the top k hits (acc@k)."
        if findings.by_answers
        else f"Fraction of the relevant documents in the top k hits (R@k), mean over {count} judged queries."
    )
    rows = [
        {"run": run, "depth": depth, "recall": round(recall, 5), "shown": figure(recall)}
        for run, kept in findings.kept.items()
        for depth, recall in kept.curve.select("depth", "recall").iter_rows()
    ]
    base = chart("recall").encode(
        alt.X("depth:Q", title="top k hits").scale(type="log").axis(values=[1, 3, 10, 30, 100, 300, 1000], format="~s"),
        alt.Y("recall:Q", title="recall").scale(zero=False).axis(tickCount=5, format=".2~f"),
        colours(runs),
        tooltip=[alt.Tooltip("run:N"), alt.Tooltip("depth:Q", title="k"), alt.Tooltip("shown:N", title="recall")],
    )
    drawn = base.mark_line(strokeWidth=2, interpolate="monotone") + base.mark_circle(size=36, opacity=1)
    drawing = Figure(
        "recall-by-depth",
        "Questions answered by depth k" if findings.by_answers else "Recall at depth k",
        plain(drawn, {"recall": rows}, height=340),
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
    base = chart(name_of_figure).encode(
        alt.X("step:Q", title="step").axis(tickCount=5, format="~s"),
        alt.Y("value:Q", title=name).scale(zero=False).axis(tickCount=5),
        colours_at(numbers, "model"),
        tooltip=[
            alt.Tooltip("model:N"),
            alt.Tooltip("step:Q", format=","),
            alt.Tooltip("value:Q", title=name, format=".4f"),
        ],
    )
    dense = len(rows) > MOST_POINTS // 4 * len(numbers)
    drawn = base.mark_line(strokeWidth=1.5) + base.mark_circle(size=12 if dense else 40, opacity=1)
    thin = curve.group_by("model").len()["len"].max() or 0
    averaged = (
        f" Each point is the mean of neighboring steps ({MOST_POINTS} points per curve)."
        if int(str(thin)) > MOST_POINTS
        else ""
    )
    kind = "A measure on the dev queries" if name.startswith("dev") else "A term of the training loss"
    spec = plain(drawn, {name_of_figure: rows}, height=220)
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
    means, ends, marks, best = summary.means, summary.ends, significant(summary), leaders(summary)
    rows, bold = [], set()
    for number, run in enumerate(summary.runs):
        rows.append([f"{run}\n{lettered(summary, run).removeprefix(run).strip()}"])
        for at, name in enumerate(summary.measures, 1):
            low, high = ends[run, name]
            mean = figure(means[run, name]) + marks.get((run, name), "")
            rows[-1].append(f"{mean}\n{figure(low, 3)} to {figure(high, 3)}")
            bold |= {(number, at)} if (run, name) in best else set()
    notes = [line for line in legend(summary) if not line.startswith("±")]
    settings = summary.settings
    notes.insert(
        0,
        f"Below each mean: its {settings['confidence']:.0%} bootstrap interval ({settings['resamples']:,} samples of "
        f"the queries, seed {settings['seed']}). Bold: the highest mean of a column.",
    )
    table = Table(["run", *summary.measures], rows, "Means of all measures", [*reused, *notes], bold=bold)
    counted = ["run", *(COUNTS.get(name, name) for name in next(iter(summary.counts.values())))]
    counts = [[run, *map(count, counts_of_run.values())] for run, counts_of_run in summary.counts.items()]
    tables = [*([_contests(summary, lead)] if lead else []), table]
    return Section("measures", "Measures", tables=tables, folded=[Table(counted, counts, "Numbers of queries")])


def _contests(summary: Summary, lead: Match) -> Table:
    """Return wins, ties and losses of the hybrid against BM25 and each other baseline, by the first measure."""
    measure, run, rows = summary.measures[0], lead.run, []
    for base in dict.fromkeys([*lead.bases, *(name for name in summary.baselines if name != run)]):
        *counts, difference = contest(summary.values, run, [base], measure)
        rows.append([f"{run}\nagainst {base}", *(f"{n:,}" for n in counts), with_sign(difference)])
    return Table(["run", "wins", "ties", "losses", measure], rows, f"Queries on which {run} is better, equal or worse")


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
        wins, ties, losses, _ = contest(findings.summary.values, match.run, match.bases, measure)
        better = console.counted(query=wins)
        sentences.append(
            f"{match.run} is better than {match.base} on {better}, worse on {losses:,}, and ties on {ties:,}."
        )
    return sentences


def _best(summary: Summary) -> Iterator[str]:
    measure, means = summary.measures[0], summary.means
    ranking = sorted(summary.runs, key=lambda run: -means[run, measure])
    best = ranking[0]
    if len(ranking) == 1:
        low, high = summary.ends[best, measure]
        yield (
            f"{best} has {measure} {figure(means[best, measure])} over {summary.queries(measure):,} judged queries "
            f"({summary.settings['confidence']:.0%} interval {figure(low, 3)} to {figure(high, 3)})."
        )
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
    if p < settings["alpha"]:
        return f"{more}, a significant difference ({_p(p)}, corrected)."
    return f"{more}, which is not significant ({_p(p)}, corrected)."


def _p(p: float) -> str:
    return "p < .001" if p < 0.001 else f"p = {figure(p, 3)}"


def _sets(findings: Findings, complement: Complement) -> Iterator[str]:
    cut = next(
        (set_of_cutoff for set_of_cutoff in complement.sets if set_of_cutoff.cutoff == SUMMARY_CUTOFF),
        complement.sets[-1],
    )
    dense, sparse = complement.dense, complement.sparse
    yield (
        f"{dense} has a relevant document in its top {cut.cutoff} hits for {_count_of(cut.dense, cut.queries)} "
        f"queries, {sparse} for {cut.sparse:,}."
    )
    if cut.dense:
        yield (
            f"Only {dense} answers {cut.dense_only:,} (RoC {figure(cut.roc, 2)}), only {sparse} "
            f"{cut.sparse_only:,}, neither {cut.fail:,}."
        )
    run = findings.matches[-1].run
    reached = sets(findings.kept[run].first, findings.kept[sparse].first, cut.cutoff).dense
    ours = "" if run == dense else f"; {run} answers {reached:,}"
    yield f"An oracle that chooses between the two answers {_count_of(cut.queries - cut.fail, cut.queries)}{ours}."


def _count_of(count: int, queries: int) -> str:
    return f"{count:,} of {queries:,}" + (f" ({count / queries:.0%})" if queries else "")
