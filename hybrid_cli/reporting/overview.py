"""The start of the report: the findings in sentences, and the table of all measures."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

from hybrid_cli.evaluation.complement import Complement
from hybrid_cli.evaluation.complementarity import changes, sets, tally
from hybrid_cli.evaluation.summary import Summary
from hybrid_cli.reporting.data import Findings, Match
from hybrid_cli.reporting.page import Cell, Section, Table
from hybrid_cli.reporting.summary import COUNTS, leaders, legend, lettered, significant
from hybrid_cli.reporting.tables import count, figure

SUMMARY_CUTOFF = 10


def overview_section(summary: Summary) -> Section:
    """Return means with intervals and marks, and the number of queries behind them."""
    means, ends, marks, best = summary.means, summary.ends, significant(summary), leaders(summary)
    rows = []
    for run in summary.runs:
        row = [Cell(run, lettered(summary, run).removeprefix(run).strip())]
        for name in summary.measures:
            low, high = ends[run, name]
            text = figure(means[run, name]) + marks.get((run, name), "")
            row.append(Cell(text, f"{figure(low, 3)} to {figure(high, 3)}", (run, name) in best))
        rows.append(row)
    notes = [line for line in legend(summary) if not line.startswith("±")]
    settings = summary.settings
    notes.insert(
        0,
        f"Below each mean: its {settings['confidence']:.0%} bootstrap interval ({settings['resamples']:,} samples of "
        f"the queries, seed {settings['seed']}). Bold: the highest mean of a column.",
    )
    return Section(
        "measures",
        "Measures",
        tables=[Table("Means of all measures", ["run", *summary.measures], rows, notes), _counts(summary)],
    )


def _counts(summary: Summary) -> Table:
    names = list(next(iter(summary.counts.values())))
    rows = [[Cell(run), *(Cell(count(found[name])) for name in names)] for run, found in summary.counts.items()]
    return Table("Queries behind the means", ["run", *(COUNTS.get(name, name) for name in names)], rows, folded=True)


# -------------------------------------------------------------------------------------------------------- in sentences


def in_words(found: Findings) -> list[str]:
    """Return which run is best, whether the difference is significant, and how two runs complement each other."""
    sentences = [" ".join(_best(found.summary))]
    if found.complement is not None:
        sentences.append(" ".join(_sets(found, found.complement)))
    if found.matches:
        sentences.append(_contest(found.summary, found.matches[-1]))
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


def _sets(found: Findings, complement: Complement) -> Iterator[str]:
    cut = next((each for each in complement.sets if each.cutoff == SUMMARY_CUTOFF), complement.sets[-1])
    dense, sparse = complement.dense, complement.sparse
    yield (
        f"{dense} has a relevant document in its top {cut.cutoff} hits for {_of(cut.dense, cut.queries)} queries, "
        f"{sparse} for {cut.sparse:,}."
    )
    if cut.dense:
        yield (
            f"Only {dense} answers {cut.dense_only:,} (RoC {figure(cut.roc, 2)}), only {sparse} "
            f"{cut.sparse_only:,}, neither {cut.fail:,}."
        )
    run = found.matches[-1].run
    reached = sets(found.kept[run].first, found.kept[sparse].first, cut.cutoff).dense
    ours = "" if run == dense else f"; {run} answers {reached:,}"
    yield f"An oracle that chooses between the two answers {_of(cut.queries - cut.fail, cut.queries)}{ours}."


def _of(count: int, queries: int) -> str:
    return f"{count:,} of {queries:,}" + (f" ({count / queries:.0%})" if queries else "")


def _contest(summary: Summary, match: Match) -> str:
    measure = summary.measures[0]
    wins, ties, losses = tally(changes(summary.values, match.run, match.bases, measure))
    return f"{match.run} is better than {match.base} on {wins:,} queries, worse on {losses:,}, and ties on {ties:,}."
