"""Means, intervals, comparisons and counts of several runs: the result of `evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from hybrid_cli.collections.collection import pseudo_queries
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation import significance
from hybrid_cli.evaluation.complement import Complement
from hybrid_cli.evaluation.measures import HOLE
from hybrid_cli.evaluation.plan import Plan
from hybrid_cli.settings.analysis import Comparison

LETTERS = "abcdefghijklmnoprstuvwxyz"  # one per baseline; q has no superscript in Unicode
ALPHA, PERMUTATIONS = 0.05, 10_000
RESAMPLES, CONFIDENCE = 1_000, 0.95
_COUNTS = ("judged", "answered", "missing", "unjudged", HOLE, "removed")


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


def chosen_baselines(given: Sequence[str], names: Sequence[str], default: Sequence[str] = ()) -> list[str]:
    """Return each baseline once: those of `--baseline`, else the default, else the first run.

    Raises:
        InputError: unknown run, or more baselines than letters.
    """
    if unknown := [name for name in given if name not in names]:
        raise InputError(f"--baseline {', '.join(unknown)}: no such run; the runs are {', '.join(names)}")
    chosen = list(dict.fromkeys(given or default)) or list(names[:1])
    if len(chosen) > len(LETTERS):
        raise InputError(f"--baseline: {len(chosen)} runs; at most {len(LETTERS)} fit the letters of the table")
    return chosen


def summarize(
    plan: Plan,
    values: pl.DataFrame,
    found: Mapping[str, Any],
    settings: Comparison,
    baselines: Sequence[str],
    complement: Complement | None = None,
) -> Summary:
    """Add comparisons and intervals to measured values.

    Args:
        plan: runs and measures.
        values, found: values and counts, as returned by `plan.measure`.
        settings: test, correction and seed.
        baselines: names of runs.
        complement: result for the two runs of `--complement`.
    """
    comparisons = significance.compare(
        values, list(baselines), correction=settings.correction, permutations=PERMUTATIONS, seed=settings.seed
    )
    estimates = significance.intervals(values, resamples=RESAMPLES, confidence=CONFIDENCE, seed=settings.seed)
    shown = {
        "relevance_level": plan.level,
        "nothing_relevant": found["nothing_relevant"],
        "test": settings.test,
        "correction": settings.correction,
        "alpha": ALPHA,
        "permutations": PERMUTATIONS,
        "resamples": RESAMPLES,
        "confidence": CONFIDENCE,
        "seed": settings.seed,
        **({"overlap_with": plan.overlap_with[0]} if plan.overlap_with else {}),
        **({"pseudo_queries": kind} if (kind := pseudo_queries(plan.qrels)) else {}),
    }
    counts = {
        run: {name: found["runs"][run][name] for name in _COUNTS if name in found["runs"][run]} for run in plan.runs
    }
    return Summary(values, counts, comparisons, estimates, baselines, shown, complement)
