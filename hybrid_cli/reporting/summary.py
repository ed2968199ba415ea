"""Means, intervals, comparisons and counts of runs: the result of `evaluate`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import polars as pl

from hybrid_cli import console
from hybrid_cli.artifacts.lineage import pseudo_queries
from hybrid_cli.console import styled
from hybrid_cli.errors import option_error
from hybrid_cli.evaluation import significance
from hybrid_cli.evaluation.complementarity import RBO_DEPTH, RBO_P
from hybrid_cli.evaluation.measures import HOLE, uses_all_grades
from hybrid_cli.reporting import complement, tables
from hybrid_cli.reporting.complement import Complement
from hybrid_cli.reporting.plan import EvaluationPlan
from hybrid_cli.reporting.tables import BELOW, LETTERS, RAISED, Table, count, figure, pseudo_note, stdout
from hybrid_cli.reporting.verdict import Verdict
from hybrid_cli.settings.analysis import Comparison, Evaluate

if TYPE_CHECKING:
    from rich.text import Text


_MAIN_MEASURE = "nDCG@10"
ALPHA, PERMUTATIONS = 0.05, 10_000
RESAMPLES, CONFIDENCE = 1_000, 0.95
_COUNTS = ("judged", "answered", "missing", "unjudged", HOLE, "removed")
COUNTS = {"missing": "unanswered (scored 0)"}


class Result(Protocol):
    """A result of `evaluate`."""

    def tables(self, form: str) -> list[Table]:
        """Return the tables for a format: `table` (the terminal), `markdown` or `latex`."""

    def legend(self) -> list[str]:
        """Return the lines below the tables."""

    def content(self) -> dict[str, Any]:
        """Return all figures for JSON."""

    def csv_rows(self) -> Iterable[dict[str, Any]]:
        """Return the rows for CSV."""


@dataclass(frozen=True)
class Summary:
    """Means, counts and comparisons of runs.

    Attributes:
        values: run, measure, qid, value.
        counts: run -> judged, answered, missing and unjudged queries; `Judged@10`; `removed` hits with --remove-query.
        comparisons: see `significance.compare`.
        intervals: intervals of the means; see `significance.intervals`.
        baselines: runs that the others are compared with, in the order of their letters.
        settings: relevance_level, test, correction, alpha, permutations, resamples, confidence, seed,
            nothing_relevant; overlap_with and pseudo_queries (kind) if set.
        complement: the two runs of --complement, if set.
    """

    values: pl.DataFrame
    counts: Mapping[str, Mapping[str, float]]
    comparisons: pl.DataFrame
    intervals: pl.DataFrame
    baselines: Sequence[str]
    settings: Mapping[str, Any]
    complement: Complement | None = None

    @property
    def runs(self) -> list[str]:
        """Return the names of the runs, in the given order."""
        return list(self.counts)

    @property
    def measures(self) -> list[str]:
        """Return the measures, in the given order."""
        return self.values["measure"].unique(maintain_order=True).to_list()

    @property
    def means(self) -> dict[tuple[str, str], float]:
        """Return (run, measure) -> mean over all judged queries."""
        return {(run, name): mean for run, name, mean in self.intervals.select("run", "measure", "mean").iter_rows()}

    @property
    def ends(self) -> dict[tuple[str, str], tuple[float, float]]:
        """Return (run, measure) -> ends of the confidence interval."""
        rows = self.intervals.select("run", "measure", "low", "high").iter_rows()
        return {(run, name): (low, high) for run, name, low, high in rows}

    def queries(self, measure: str) -> int:
        """Count the queries behind the mean of a measure."""
        return self.values.filter(measure=measure)["qid"].n_unique()

    @property
    def verdict(self) -> Verdict | None:
        """Return the verdict on the best run against the first baseline, by nDCG@10 or else the first measure.

        None without another run, and where a figure is not what users would see: pseudo-queries, or queries that the
        runs were tuned or trained on.
        """
        others = [run for run in self.runs if run not in self.baselines[:1]]
        if not others or not self.baselines or {"pseudo_queries", "reused"} & set(self.settings):
            return None
        names = self.measures
        measure = _MAIN_MEASURE if _MAIN_MEASURE in names else names[0]
        wide = self.values.filter(measure=measure).pivot(on="run", index="qid", values="value")
        best = max(others, key=lambda run: self.means[run, measure])
        first = self.baselines[0]
        return Verdict.of(measure, (first, wide[first].to_numpy()), (best, wide[best].to_numpy()))

    def tables(self, form: str) -> list[Table]:
        """Return the means and the counts; Markdown has the comparisons too, LaTeX those of `complement`."""
        if form == "latex":
            return [self._means(), *(complement.blocks(self.complement) if self.complement else ())]
        names = [COUNTS.get(name, name) for name in next(iter(self.counts.values()))]
        names = [name.replace(" (", "\n(") for name in names] if form == "table" else names
        counts = Table(["queries", *names], [[run, *map(count, row.values())] for run, row in self.counts.items()])
        if form == "table":
            return [self._means_on_terminal(), counts]
        compared = self.comparisons.drop("queries")
        rows = [list(map(_cell, row)) for row in compared.iter_rows()]
        return [self._means(), *([Table(compared.columns, rows, left=3)] if rows else []), counts]

    def _means(self) -> Table:
        """Return one row per run: its name, and the means with marks and intervals; the best means are bold."""
        best, widths = leaders(self), half_widths(self)
        rows, bold = [], set()
        for number, (run, row) in enumerate(figures(self).items()):
            rows.append([lettered(self, run), *(f"{text} {widths[run, name]}" for name, text in row.items())])
            bold |= {(number, at) for at, name in enumerate(row, 1) if (run, name) in best}
        return Table(["run", *self.measures], rows, bold=bold)

    def _means_on_terminal(self) -> Table:
        """Return the same, with aligned points; intervals go below the means where the table would be too wide."""
        best, means, widths = leaders(self), figures(self), half_widths(self)
        whole = {name: any(row[name].startswith("1") for row in means.values()) for name in self.measures}
        longest = {name: max(len(row[name]) + whole[name] for row in means.values()) for name in self.measures}
        names = {run: lettered(self, run) for run in means}
        room = max(map(len, names.values())) + 2 + sum(max(longest[name] + 8, len(name) + 2) for name in longest)
        between = " " if room <= stdout().width else "\n"
        rows = []
        for run, row in means.items():
            cells: list[str | Text] = [names[run]]
            for name, text in row.items():
                aligned = (text if text.startswith("1") or not whole[name] else f" {text}").ljust(longest[name])
                indent = " " * (whole[name] and between == "\n")
                mean = styled(aligned, "bold" if (run, name) in best else "")
                cells.append(mean.append(between + indent + widths[run, name], "not bold dim"))
            rows.append(cells)
        return Table(["run", *self.measures], rows, left=1 + len(self.measures))

    def legend(self) -> list[str]:
        """Return the lines below the tables."""
        return list(legend(self))

    def content(self) -> dict[str, Any]:
        """Return all figures for JSON; an undefined p-value is None."""
        means, ends, names = self.means, self.ends, self.measures
        runs = [
            {
                "run": run,
                "means": {name: means[run, name] for name in names},
                "intervals": {name: list(ends[run, name]) for name in names},
                **self.counts[run],
            }
            for run in self.runs
        ]
        return {
            "queries": {name: self.queries(name) for name in names},
            "runs": runs,
            "baselines": list(self.baselines),
            "comparisons": self.comparisons.fill_nan(None).to_dicts(),
            "verdict": self.verdict.content() if self.verdict else None,
            **self.settings,
            **({"complement": complement.as_dict(self.complement)} if self.complement else {}),
        }

    def csv_rows(self) -> list[dict[str, Any]]:
        """Return one row per run, measure and baseline; then one per figure of --complement."""
        rows: list[dict[str, Any]] = []
        for run, measure, mean, low, high in self.intervals.iter_rows():
            ours = {"run": run, "measure": measure, "mean": repr(mean), "low": repr(low), "high": repr(high)}
            ours |= {"queries": self.queries(measure), **self.counts[run]}
            rows += [ours | row for row in self.comparisons.filter(run=run, measure=measure).to_dicts() or [{}]]
        rows += complement.csv_rows(self.complement) if self.complement else ()
        columns = dict.fromkeys([*rows[0], *self.comparisons.columns, *self.settings], "")
        return [columns | row | dict(self.settings) for row in rows]


def chosen_baselines(given: Sequence[str], names: Sequence[str], default: Sequence[str] = ()) -> list[str]:
    """Return each baseline once: those of `--baseline`, else the default, else the first run.

    Raises:
        InputError: unknown run, or more baselines than letters.
    """
    if unknown := [name for name in given if name not in names]:
        raise option_error(
            "baseline",
            unknown[0],
            f"no such run; the runs are {', '.join(names)}",
            code="unknown-choice",
            choices=list(names),
        )
    chosen = list(dict.fromkeys(given or default)) or list(names[:1])
    if len(chosen) > len(LETTERS):
        raise option_error(
            "baseline",
            None,
            f"{len(chosen)} runs; at most {len(LETTERS)} fit the letters of the table",
            code="too-many-values",
        )
    return chosen


def summarize(
    plan: EvaluationPlan,
    values: pl.DataFrame,
    facts: Mapping[str, Any],
    settings: Comparison,
    baselines: Sequence[str],
    complement: Complement | None = None,
    reused: bool = False,
) -> Summary:
    """Add comparisons and intervals to measured values.

    Args:
        plan: runs and measures.
        values, found: values and counts, as returned by `plan.measure`.
        settings: test, correction and seed.
        baselines: names of runs.
        complement: result for the two runs of `--complement`.
        reused: some run was tuned or trained on the measured queries.
    """
    comparisons = significance.compare(
        values, list(baselines), correction=settings.correction, permutations=PERMUTATIONS, seed=settings.seed
    )
    estimates = significance.intervals(values, resamples=RESAMPLES, confidence=CONFIDENCE, seed=settings.seed)
    shown = {
        "relevance_level": plan.level,
        "nothing_relevant": facts["nothing_relevant"],
        "test": settings.test,
        "correction": settings.correction,
        "alpha": ALPHA,
        "permutations": PERMUTATIONS,
        "resamples": RESAMPLES,
        "confidence": CONFIDENCE,
        "seed": settings.seed,
        **({"overlap_with": plan.overlap_with[0]} if plan.overlap_with else {}),
        **({"pseudo_queries": kind} if (kind := pseudo_queries(plan.qrels)) else {}),
        **({"reused": True} if reused else {}),
    }
    counts = {
        run: {name: facts["runs"][run][name] for name in _COUNTS if name in facts["runs"][run]} for run in plan.runs
    }
    return Summary(values, counts, comparisons, estimates, baselines, shown, complement)


def figures(summary: Summary) -> dict[str, dict[str, str]]:
    """Return run -> measure -> mean, with the letters of baselines that differ significantly."""
    means, letters = summary.means, significant(summary)
    return {
        run: {name: figure(means[run, name]) + letters.get((run, name), "") for name in summary.measures}
        for run in summary.runs
    }


def half_widths(summary: Summary) -> dict[tuple[str, str], str]:
    """Return (run, measure) -> `±.021`, half the width of the confidence interval."""
    return {key: f"±{figure((high - low) / 2, 3)}" for key, (low, high) in summary.ends.items()}


def significant(summary: Summary) -> dict[tuple[str, str], str]:
    """Return (run, measure) -> marks of the baselines that differ significantly."""
    return marks(summary.comparisons, summary.baselines, summary.settings["test"], summary.settings["alpha"])


def marks(comparisons: pl.DataFrame, baselines: Sequence[str], test: str, alpha: float) -> dict[tuple[str, str], str]:
    """Return (run, measure) -> letters of baselines that are significantly lower, then of those that are higher."""
    marks_of_cell: dict[tuple[str, str], list[str]] = {}
    if not len(comparisons):
        return {}
    p = pl.col(f"p_{test}_corrected")
    differ = comparisons.filter(p.is_not_nan() & (p < alpha))
    for run, measure, baseline, difference in differ.select("run", "measure", "baseline", "difference").iter_rows():
        letter = RAISED[LETTERS[baselines.index(baseline)]]
        marks_of_cell.setdefault((run, measure), []).append(letter if difference > 0 else BELOW + letter)
    return {
        key: "".join(sorted(letters, key=lambda mark: mark.startswith(BELOW))) for key, letters in marks_of_cell.items()
    }


def marks_in_words(baselines: Sequence[str], more: str = "better than", less: str = "worse") -> str:
    """Return the meaning of the letters: `ᵃ better than bm25, ᵇ better than dense (↓ᵃ worse)`.

    Args:
        baselines: names, in the order of their letters.
        more, less: phrases for a mean above and below the baseline's.
    """
    letters = [RAISED[letter] for letter, _ in zip(LETTERS, baselines, strict=False)]
    words = ", ".join(f"{letter} {more} {name}" for letter, name in zip(letters, baselines, strict=True))
    return f"{words} ({BELOW}{letters[0]} {less})"


def leaders(summary: Summary) -> set[tuple[str, str]]:
    """Return the (run, measure) pairs with the highest printed value of a measure; empty for a single run."""
    means = summary.means
    top = {name: max(figure(means[run, name]) for run in summary.runs) for name in summary.measures}
    return {key for key, mean in means.items() if len(summary.runs) > 1 and figure(mean) == top[key[1]]}


def lettered(summary: Summary, run: str) -> str:
    """Return the name of a run, with its letter if it is a baseline."""
    return with_letter(run, summary.baselines) if len(summary.comparisons) else run


def with_letter(run: str, baselines: Sequence[str]) -> str:
    """Return the name of a run, with its letter if it is among the baselines."""
    return f"{run} ({LETTERS[baselines.index(run)]})" if run in baselines else run


def legend(summary: Summary, more: str = "better than", less: str = "worse") -> Iterator[str]:
    """Yield the legend: intervals, marks and zeros.

    Args:
        more, less: phrases for a mean above and below the baseline's.
    """
    settings = summary.settings
    yield (
        f"± half the width of the {settings['confidence']:.0%} bootstrap interval of the mean "
        f"({settings['resamples']:,} samples of the queries, seed {settings['seed']})."
    )
    if len(summary.comparisons):
        family = len(summary.comparisons) // len(summary.measures)
        yield (
            f"{marks_in_words(summary.baselines, more, less)}: p < {settings['alpha']:g}, two-sided "
            f"{test_in_words(settings)}, {_correction_in_words(settings['correction'], family)}; n = {_sizes(summary)}."
        )
    if "pseudo_queries" in settings:
        yield pseudo_note(settings["pseudo_queries"])
    if settings["nothing_relevant"]:
        level = settings["relevance_level"]
        graded = [name for name in summary.measures if level > 1 and uses_all_grades(name)]
        yield (
            f"{settings['nothing_relevant']:,} judged queries have no relevant document (grade {level} or higher) and "
            f"score 0{', except in ' if graded else ''}{', '.join(graded)}."
        )
    if "overlap_with" in settings:
        yield (
            f"RBO: rank-biased overlap with {settings['overlap_with']} (p = {RBO_P:g}, top {RBO_DEPTH} hits, "
            "extrapolated)."
        )


def test_in_words(settings: Mapping[str, Any]) -> str:
    """Return the name of the significance test, with its parameters."""
    if settings["test"] == "t":
        return "paired t-test"
    return f"sign-flip permutation test ({settings['permutations']:,}, seed {settings['seed']})"


def _correction_in_words(correction: str, family: int) -> str:
    if correction == "none":
        return "not corrected"
    comparisons = "1 comparison" if family == 1 else f"{family} comparisons"
    return f"{correction.capitalize()} over {comparisons} per measure"


def _sizes(summary: Summary) -> str:
    """Return `120`, or `120 (100 for acc@20)` if measures have different queries."""
    sizes = {name: summary.queries(name) for name in summary.measures}
    usual = max(sizes.values())
    others = ", ".join(f"{size:,} for {name}" for name, size in sizes.items() if size != usual)
    return f"{usual:,} ({others})" if others else f"{usual:,}"


def _cell(value: Any) -> str:
    """Return a value of a comparison in a Markdown table; NaN is empty."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return str(value)


# ------------------------------------------------------------------------------------------------------------ printing


def show(result: Result, settings: Evaluate) -> None:
    """Print the result of `evaluate`."""
    if settings.form == "table":
        show_tables(result)
    else:
        console.result(text(result, settings.form))


def show_tables(result: Result) -> None:
    """Print the tables with their legend, then the comparison of two runs if there is one."""
    for table in result.tables("table"):
        tables.show(table)
    tables.prose(result.legend())
    if isinstance(result, Summary) and result.complement:
        complement.show(result.complement)
    if isinstance(result, Summary) and result.verdict:
        tables.prose([result.verdict.sentence()])


def text(result: Result, form: str) -> str:
    """Return the result as `json`, `csv`, `markdown` or `latex`."""
    if form == "json":
        return console.json_text(result.content(), indent=2)
    if form == "csv":
        return tables.csv_text(result.csv_rows())
    write, escape = {"markdown": (tables.markdown_table, tables.markdown), "latex": (tables.latex_table, tables.latex)}[
        form
    ]
    parts = [*map(write, result.tables(form)), *map(escape, result.legend())]
    if form == "markdown" and isinstance(result, Summary) and result.complement:
        parts.append(complement.as_markdown(result.complement))
    if form == "markdown" and isinstance(result, Summary) and result.verdict:
        parts.append(tables.markdown(result.verdict.sentence()))
    return "\n\n".join(parts)
