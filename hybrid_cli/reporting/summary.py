"""Means, intervals, comparisons and counts of runs: the result of `evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from itertools import islice
from math import isnan
from typing import TYPE_CHECKING, Any

import polars as pl

from hybrid_cli import console
from hybrid_cli.artifacts.lineage import pseudo_queries
from hybrid_cli.commands.analysis import Comparison, Evaluate
from hybrid_cli.errors import InputError, named_keywords, option_error
from hybrid_cli.evaluation import significance
from hybrid_cli.evaluation.complementarity import RBO_DEPTH, RBO_P
from hybrid_cli.evaluation.measures import HOLE, uses_all_grades
from hybrid_cli.reporting import complement
from hybrid_cli.reporting.complement import Complement
from hybrid_cli.reporting.plan import EvaluationPlan
from hybrid_cli.reporting.tables import LETTERS, RAISED, Result, Table, count, figure, latex_table, pseudo_note
from hybrid_cli.reporting.verdict import Verdict

if TYPE_CHECKING:
    import altair as alt

_MAIN_MEASURE = "nDCG@10"
_VALUES, _INTERVALS = ("run", "measure", "qid", "value"), ("run", "measure", "mean", "low", "high")
_COUNTS = ("judged", "answered", "missing", "unjudged", HOLE, "removed")
_HEADINGS = {"missing": "unanswered (scored 0)"}


@dataclass(frozen=True, repr=False)
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
        study: tables and figures of --study or --machine; then the other attributes are empty.
    """

    values: pl.DataFrame
    counts: Mapping[str, Mapping[str, float]]
    comparisons: pl.DataFrame
    intervals: pl.DataFrame
    baselines: Sequence[str]
    settings: Mapping[str, Any]
    complement: Complement | None = None
    study: Result | None = None

    @classmethod
    def of_study(cls, study: Result) -> Summary:
        """Return the result of `evaluate` with --study or --machine."""
        values, intervals = pl.DataFrame(schema=_VALUES), pl.DataFrame(schema=_INTERVALS)
        return cls(values, {}, pl.DataFrame(), intervals, (), {}, study=study)

    @property
    def content(self) -> Mapping[str, Any]:
        """Return all figures, as JSON has them."""
        return self.result().content

    @property
    def frame(self) -> pl.DataFrame:
        """Return run, measure, mean, low, high, queries, and each comparison with a baseline; of a study, its rows."""
        if self.study is not None:
            return pl.DataFrame(self.study.rows, infer_schema_length=None)
        counts = self.values.group_by("run", "measure", maintain_order=True).len("queries")
        rows = self.intervals.join(counts, on=["run", "measure"], how="left", maintain_order="left")
        tests = self.comparisons.drop("queries", strict=False)
        return rows if tests.is_empty() else rows.join(tests, on=["run", "measure"], how="left", maintain_order="left")

    def plot(self) -> alt.TopLevelMixin:
        """Return a chart of the means with their intervals; of several seeds, with their standard deviations.

        Raises:
            InputError: a study without means.
        """
        from hybrid_cli.reporting.page import interval_chart

        frame = self.frame.rename({"row": "run"}, strict=False)
        if "mean" not in frame.columns:
            raise InputError("plot: the study has no means", code="nothing-to-plot")
        for name, sign in (("low", -1), ("high", 1)) if "deviation" in frame.columns else ():
            known = {name}.intersection(frame.columns)  # of shares
            end = pl.coalesce(*known, pl.col("mean") + sign * pl.col("deviation"), "mean")
            frame = frame.with_columns(end.alias(name))
        rows = frame.select("run", "measure", "mean", "low", "high").drop_nulls().unique(maintain_order=True)
        return interval_chart(rows.to_dicts())

    def to_markdown(self) -> str:
        """Return all tables as Markdown."""
        return self.result().text("markdown")

    @named_keywords
    def to_latex(self, caption: str = "", label: str = "", p_values: bool = False) -> str:
        """Return the first table in LaTeX, which needs the package `booktabs`.

        Args:
            caption, label: LaTeX; with one of them, a `table` environment is written around the table.
            p_values: add the corrected p-values against each baseline.
        """
        tables = [block for block in self.result(p_values).blocks if isinstance(block, Table)]
        return latex_table(tables[0], caption, label)

    def __repr__(self) -> str:
        with redirect_stdout(StringIO()) as text:
            self.result().show()
        return text.getvalue().strip("\n")

    def _repr_html_(self) -> str:
        return self.result().text("html")

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

    @property
    def marks(self) -> Marks:
        """Return the letters of runs, and the marks of significantly better ones."""
        return Marks.of(self.comparisons, self.baselines, self.settings)

    def queries(self, measure: str) -> int:
        """Count the queries behind the mean of a measure."""
        return self.values.filter(measure=measure)["qid"].n_unique()

    @property
    def verdict(self) -> Verdict | None:
        """Return the verdict on the best run against the best baseline, by nDCG@10 or else the first measure.

        None without another run, and where a figure is not what users would see: pseudo-queries, or queries that the
        runs were tuned or trained on.
        """
        others = [run for run in self.runs if run not in self.baselines] or self.runs[1:]
        if not others or not self.baselines or {"pseudo_queries", "reused"} & set(self.settings):
            return None
        names = self.measures
        measure = _MAIN_MEASURE if _MAIN_MEASURE in names else names[0]
        wide = self.values.filter(measure=measure).pivot(on="run", index="qid", values="value")
        best = max(others, key=lambda run: self.means[run, measure])
        against = max((run for run in self.baselines if run != best), key=lambda run: self.means[run, measure])
        return Verdict.of(measure, (against, wide[against].to_numpy()), (best, wide[best].to_numpy()))

    def result(self, p_values: bool = False) -> Result:
        """Return the summary, or the study, in the form of every format.

        Args:
            p_values: add the corrected p-values to the table of the means.
        """
        if self.study is not None:
            return self.study
        verdict = self.verdict
        compared = complement.result(self.complement) if self.complement else Result((), {})
        means = means_table(self, lambda low, high: f" ±{figure((high - low) / 2, 3)}", p_values)
        blocks = [
            replace(means, notes=[*legend(self)]),
            counts_table(self),
            *compared.blocks,
            *([verdict.sentence()] if verdict else []),
        ]
        runs = [
            {
                "run": run,
                "means": {name: self.means[run, name] for name in self.measures},
                "intervals": {name: list(self.ends[run, name]) for name in self.measures},
                **self.counts[run],
            }
            for run in self.runs
        ]
        content = {
            "queries": {name: self.queries(name) for name in self.measures},
            "runs": runs,
            "baselines": list(self.baselines),
            "comparisons": self.comparisons.fill_nan(None).to_dicts(),
            "verdict": verdict and verdict.content(),
            **self.settings,
            **({"complement": compared.content} if compared.content else {}),
        }
        return Result(blocks, content, [*self._rows(), *({**self.settings, **row} for row in compared.rows)])

    def _rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row per run, measure and baseline, with all settings."""
        for row in self.frame.iter_rows(named=True):
            figures = dict(islice(row.items(), len(_INTERVALS) + 1))  # and queries
            yield {**figures, **self.counts[row["run"]], **row, **self.settings}


def chosen_baselines(given: Sequence[str], names: Sequence[str], default: Sequence[str] = ()) -> list[str]:
    """Return each baseline once: those of `--baseline`, else the default, else the first run.

    Raises:
        InputError: unknown run, or more baselines than letters.
    """
    if unknown := [name for name in given if name not in names]:
        reason = f"no such run; the runs are {', '.join(names)}"
        raise option_error("baseline", unknown[0], reason, code="unknown-choice", choices=list(names))
    chosen = list(dict.fromkeys(given or default)) or list(names[:1])
    if len(chosen) > len(LETTERS):
        reason = f"{len(chosen)} runs; the table has letters for {len(LETTERS)}"
        raise option_error("baseline", None, reason, code="too-many-values")
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
    comparisons = significance.compare(values, list(baselines), correction=settings.correction, seed=settings.seed)
    shown = {
        "relevance_level": plan.level,
        "nothing_relevant": facts["nothing_relevant"],
        **tests_of(settings),
        "resamples": significance.RESAMPLES,
        "confidence": significance.CONFIDENCE,
        **({"overlap_with": plan.overlap_with[0]} if plan.overlap_with else {}),
        **({"pseudo_queries": kind} if (kind := pseudo_queries(plan.qrels)) else {}),
        **({"reused": True} if reused else {}),
    }
    counts = {
        run: {name: facts["runs"][run][name] for name in _COUNTS if name in facts["runs"][run]} for run in plan.runs
    }
    intervals = significance.intervals(values, seed=settings.seed)
    return Summary(values, counts, comparisons, intervals, baselines, shown, complement)


def tests_of(settings: Comparison) -> dict[str, Any]:
    """Return the parameters of the significance tests."""
    names = ("test", "correction", "seed")
    fixed = {"alpha": significance.ALPHA, "permutations": significance.PERMUTATIONS}
    return {**fixed, **{name: getattr(settings, name) for name in names}}


def means_table(summary: Summary, spread: Callable[[float, float], str], p_values: bool = False) -> Table:
    """Return a row per run: its name, and the means with marks and intervals; the best means are bold.

    Args:
        summary: runs and measures.
        spread: text of the ends of an interval.
        p_values: add the corrected p-values against each baseline.
    """
    means, marks, rows, bold = summary.means, summary.marks, [], set()
    against = {base: f"p ({marks.letters[base]})" for base in summary.baselines if p_values and base in marks.letters}
    tests = summary.comparisons.iter_rows(named=True) if against else ()
    p = {
        (frozenset((row["run"], row["baseline"])), row["measure"]): row[f"p_{summary.settings['test']}_corrected"]
        for row in tests
    }
    top = {name: max(figure(means[run, name]) for run in summary.runs) for name in summary.measures}
    for number, run in enumerate(summary.runs):
        rows.append([marks.named(run)])
        for name in summary.measures:
            mean = figure(means[run, name])
            bold |= {(number, len(rows[-1]))} if mean == top[name] and len(summary.runs) > 1 else set()
            rows[-1].append(mean + marks.better.get((run, name), "") + spread(*summary.ends[run, name]))
            rows[-1] += [p_text(p.get((frozenset((run, base)), name))) for base in against]
    columns = [column for name in summary.measures for column in (name, *against.values())]
    return Table(["run", *columns], rows, bold=bold, stacked=True)


def p_text(p: float | None) -> str:
    """Format a p-value: `.012`, `<.001`; empty for None, and for NaN, of a single query."""
    return "" if p is None or isnan(p) else "<.001" if p < 0.001 else figure(p, 3)


def different(comparisons: pl.DataFrame, settings: Mapping[str, Any]) -> pl.DataFrame:
    """Return the significant comparisons, by the settings of their tests."""
    p = pl.col(f"p_{settings['test']}_corrected")
    return comparisons.filter(p.is_not_nan() & (p < settings["alpha"]))


@dataclass(frozen=True)
class Marks:
    """The marks of a table: each says that a run is significantly better than the run of a letter.

    Attributes:
        letters: run -> letter: the baselines, then the runs below one of them, as far as there are letters.
        better: (run, measure) -> raised letters of the runs that are significantly lower.
    """

    letters: Mapping[str, str]
    better: Mapping[tuple[str, str], str]

    @classmethod
    def of(cls, comparisons: pl.DataFrame, baselines: Sequence[str], settings: Mapping[str, Any]) -> Marks:
        """Return the marks of comparisons, by the settings of their tests."""
        if comparisons.is_empty():
            return cls({}, {})
        rows = different(comparisons, settings).select("run", "baseline", "measure", "difference").rows()
        pairs = [(run, base, name) if change > 0 else (base, run, name) for run, base, name, change in rows]
        lettered = dict.fromkeys([*baselines, *(lower for _, lower, _ in pairs)])
        letters = dict(zip(lettered, LETTERS, strict=False))
        better: dict[tuple[str, str], str] = {}
        for named, letter in letters.items():
            for higher, lower, measure in pairs:
                if lower == named:
                    better[higher, measure] = better.get((higher, measure), "") + RAISED[letter]
        return cls(letters, better)

    def named(self, run: str) -> str:
        """Return the name of a run, with its letter if it has one."""
        return f"{run} ({self.letters[run]})" if run in self.letters else run

    def in_words(self, more: str = "better than") -> str:
        """Return the meaning of the letters: `ᵃ better than bm25, ᵇ better than dense`."""
        return ", ".join(f"{RAISED[letter]} {more} {run}" for run, letter in self.letters.items())


def counts_table(summary: Summary) -> Table:
    """Return the numbers of queries of each run."""
    names = [_HEADINGS.get(name, name) for name in next(iter(summary.counts.values()))]
    rows = [[run, *map(count, row.values())] for run, row in summary.counts.items()]
    return Table(["run", *names], rows, "Numbers of queries", stacked=True)


def legend(summary: Summary, more: str = "better than") -> Iterator[str]:
    """Yield the legend: intervals, marks and zeros.

    Args:
        summary: runs and measures.
        more: phrase for a mean that is significantly higher.
    """
    settings = summary.settings
    draws = f"({settings['resamples']:,} samples of the queries, seed {settings['seed']})"
    yield f"± half the width of the {settings['confidence']:.0%} bootstrap interval of the mean {draws}."
    if len(summary.comparisons):
        family = f"{console.counted(comparison=len(summary.comparisons) // len(summary.measures))} per measure"
        yield f"{summary.marks.in_words(more)}: {describe_test(settings, family)}; n = {_sizes(summary)}."
    if "pseudo_queries" in settings:
        yield pseudo_note(settings["pseudo_queries"])
    if settings["nothing_relevant"]:
        level = settings["relevance_level"]
        graded = [name for name in summary.measures if level > 1 and uses_all_grades(name)]
        score = f"score 0{', except in ' if graded else ''}{', '.join(graded)}"
        count = f"{settings['nothing_relevant']:,} judged queries"
        yield f"{count} have no relevant document (grade {level} or higher) and {score}."
    if "overlap_with" in settings:
        details = f"(p = {RBO_P:g}, top {RBO_DEPTH} hits, extrapolated)"
        yield f"RBO: rank-biased overlap with {settings['overlap_with']} {details}."


def describe_test(settings: Mapping[str, Any], family: str, values: str = "") -> str:
    """Return level, name and correction of the significance test.

    Args:
        settings: test, correction, alpha, permutations and seed.
        family: comparisons that are corrected together.
        values: what is compared, if it is not the values of the queries.
    """
    test, correction = "paired t-test", settings["correction"]
    if settings["test"] != "t":
        test = f"sign-flip permutation test ({settings['permutations']:,}, seed {settings['seed']})"
    corrected = "not corrected" if correction == "none" else f"{correction.capitalize()} over {family}"
    return f"p < {settings['alpha']:g}, two-sided {test}{values}, {corrected}"


def _sizes(summary: Summary) -> str:
    """Return `120`, or `120 (100 for acc@20)` if measures have different queries."""
    sizes = {name: summary.queries(name) for name in summary.measures}
    usual = max(sizes.values())
    others = ", ".join(f"{size:,} for {name}" for name, size in sizes.items() if size != usual)
    return f"{usual:,} ({others})" if others else f"{usual:,}"


# ------------------------------------------------------------------------------------------------------------ printing


def show(summary: Summary, settings: Evaluate) -> None:
    """Print the result of `evaluate`."""
    result = summary.result(settings.p_values)
    if settings.form == "table":
        result.show()
    else:
        console.result(result.text(settings.form))
