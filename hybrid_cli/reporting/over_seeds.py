"""Means and standard deviations over seeds: the result of `evaluate --study over-seeds`.

A run is named ROW-SEED, or ROW alone. The standard deviation is the sample's, over the means of the seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from hybrid_cli.errors import option_error
from hybrid_cli.evaluation import significance
from hybrid_cli.evaluation.measures import parse_measures
from hybrid_cli.evaluation.options import Correction, SignificanceTest
from hybrid_cli.reporting.plan import OVERLAP
from hybrid_cli.reporting.summary import ALPHA, CONFIDENCE, PERMUTATIONS, RESAMPLES, marks, marks_in_words, with_letter
from hybrid_cli.reporting.tables import Table, figure, fits
from hybrid_cli.settings.analysis import Evaluate

_ROW = pl.col("run").str.replace(r"-\d+$", "")
_SUCCESS = "Success"


@dataclass(frozen=True)
class OverSeeds:
    """One row per variant.

    Attributes:
        table: row, measure, mean, deviation (null for one seed), seeds; in the order of the runs and measures. With
            RoC also low, high: the bootstrap interval over the queries of its counts, null for other measures.
        comparisons: rows against baselines, on each query's mean over the seeds; see `significance.compare`.
        measures: names in the given order, after RoC.
        baselines: rows that the others are compared with, in the order of their letters.
        test, correction, alpha: parameters of the comparisons.
    """

    table: pl.DataFrame
    measures: Sequence[str]
    comparisons: pl.DataFrame
    baselines: Sequence[str]
    test: SignificanceTest
    correction: Correction
    alpha: float = ALPHA

    @property
    def rows(self) -> list[str]:
        """Return the names of the rows."""
        return self.table["row"].unique(maintain_order=True).to_list()

    def tables(self, form: str) -> list[Table]:
        """Return one row per variant; on a terminal, deviations go below the means where it would be too wide."""
        table = self._table(" ")
        if form != "table":
            return [table]
        return [replace(table if fits(table) else self._table("\n"), left=len(table.columns))]

    def _table(self, between: str) -> Table:
        letters = marks(self.comparisons, self.baselines, self.test, self.alpha)
        cells: dict[tuple[str, str], str] = {}
        for cell in self.table.iter_rows(named=True):
            key = cell["row"], cell["measure"]
            deviation = "" if cell["deviation"] is None else f"{between}± {figure(cell['deviation'])}"
            if cell.get("low") is not None:
                deviation = f"{between}({figure(cell['low'])} to {figure(cell['high'])})"
            mean = "undefined" if cell["mean"] is None else figure(cell["mean"])
            cells[key] = f"{mean}{letters.get(key, '')}{deviation}"
        seeds = dict(self.table.select("row", "seeds").iter_rows())
        rows = [
            [with_letter(row, self.baselines), str(seeds[row]), *(cells.get((row, name), "") for name in self.measures)]
            for row in self.rows
        ]
        return Table(["row", "seeds", *self.measures], rows)

    def legend(self) -> list[str]:
        """Return the lines below the table."""
        lines = ["Mean ± standard deviation over the seeds."]
        if any(name.startswith("RoC@") for name in self.measures):
            lines.append(
                "RoC = D only / D. D only, S only, Fail: share of the queries that only the row, only the sparse run, "
                f"or neither answers, with its {CONFIDENCE:.0%} bootstrap interval over the queries."
            )
        if self.table["mean"].has_nulls():
            lines.append("RoC is undefined where a seed has no query with a relevant document in its top hits.")
        if self.baselines:
            test = {"t": "paired t-test", "permutation": "sign-flip permutation test"}[self.test]
            correction = "not corrected" if self.correction == "none" else f"{self.correction.capitalize()} per measure"
            lines.append(
                f"{marks_in_words(self.baselines)}: p < {self.alpha:g}, two-sided {test} on each query's mean over the "
                f"seeds, {correction}."
            )
        return lines

    def content(self) -> dict[str, Any]:
        """Return all figures for JSON; an undefined p-value is None."""
        return {
            "rows": self.csv_rows(),
            "baselines": list(self.baselines),
            "comparisons": self.comparisons.fill_nan(None).to_dicts(),
            **{name: getattr(self, name) for name in ("test", "correction", "alpha")},
        }

    def csv_rows(self) -> list[dict[str, Any]]:
        """Return one row per variant and measure."""
        return self.table.to_dicts()


def row_names(runs: Sequence[str]) -> list[str]:
    """Return the names of the rows, in the order of the runs."""
    return pl.DataFrame({"run": runs}).select(_ROW)["run"].unique(maintain_order=True).to_list()


def check_rows(runs: Sequence[str], settings: Evaluate) -> None:
    """Check the row names of --baseline and --roc-against.

    Raises:
        InputError: unknown row.
    """
    names = row_names(runs)
    for option, given in (("baseline", settings.baseline), ("roc_against", [settings.roc_against or names[0]])):
        if unknown := [name for name in given if name not in names]:
            reason = f"no such row; the rows are {', '.join(names)}"
            raise option_error(option, unknown[0], reason, code="unknown-choice", choices=names)


def over_seeds(values: pl.DataFrame, settings: Evaluate) -> OverSeeds:
    """Average the runs of each row.

    Args:
        values: run, measure, qid, value.
        settings: baseline (names of rows), roc_against, test, correction, seed.

    Raises:
        InputError: RoC without Success@k among the measures.
    """
    names = row_names(values["run"].unique(maintain_order=True).to_list())
    baselines = list(dict.fromkeys(settings.baseline))
    frames, ratios = {"": values}, list[pl.DataFrame]()
    if settings.roc_against:
        ratio, counted = roc(values, settings.roc_against)
        frames, ratios = {settings.roc_against: counted, "": values}, [ratio]
    whole = pl.concat([frame.select("run", "measure", "qid", "value") for frame in frames.values()])
    means = whole.group_by("run", "measure", maintain_order=True).agg(value=pl.col("value").mean())
    means = pl.concat([*ratios, means], how="vertical_relaxed")
    table = means.group_by(_ROW.alias("row"), "measure", maintain_order=True).agg(
        mean=_if_defined(pl.col("value").mean()), deviation=_if_defined(pl.col("value").std()), seeds=pl.len()
    )
    rank = pl.col("row").replace_strict({name: n for n, name in enumerate(names)}, return_dtype=pl.Int32)
    compared = []
    for without, frame in frames.items():
        averaged = frame.group_by(_ROW.alias("run"), "measure", "qid", maintain_order=True).agg(pl.col("value").mean())
        others = [name for name in baselines if name != without]
        compared.append(
            significance.compare(
                averaged, others, correction=settings.correction, permutations=PERMUTATIONS, seed=settings.seed
            )
        )
    comparisons = pl.concat(compared, how="vertical_relaxed")
    measures = means["measure"].unique(maintain_order=True).to_list()
    by_measure = pl.col("measure").replace_strict({name: n for n, name in enumerate(measures)}, return_dtype=pl.Int32)
    table = table.sort(rank, by_measure, maintain_order=True)
    if settings.roc_against:
        averaged = counted.group_by(_ROW.alias("run"), "measure", "qid", maintain_order=True).agg(
            pl.col("value").mean()
        )
        ends = significance.intervals(averaged, resamples=RESAMPLES, confidence=CONFIDENCE, seed=settings.seed)
        ends = ends.select("measure", "low", "high", row="run")
        table = table.join(ends, on=["row", "measure"], how="left", maintain_order="left")
    return OverSeeds(table, measures, comparisons, baselines, settings.test, settings.correction)


def _if_defined(statistic: pl.Expr) -> pl.Expr:
    """Return a statistic of the seeds; null if the value of a seed is undefined."""
    return pl.when(~pl.col("value").has_nulls()).then(statistic)


def roc(values: pl.DataFrame, sparse: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Compute RoC (RoC, section 3.1) of every run against a sparse run, at the cutoff of `Success@k`.

    The ratio rises if a run finds less of everything, so the counts that it is made of belong to it.

    Args:
        values: run, measure, qid, value.
        sparse: name of the sparse run. `SPARSE+RUN`, the fusion with a run, gets the figures of RUN.

    Returns:
        run, measure, value of the ratio, null for a run without a relevant document; and run, measure, qid, value of
        the queries that only the run answers (`D only`), only the sparse run, and neither (`Fail`): 1 or 0.

    Raises:
        InputError: Success@k is not among the measures, or `sparse` has several seeds.
    """
    names = values["measure"].unique(maintain_order=True).to_list()
    success = [
        measure for measure in parse_measures([name for name in names if name != OVERLAP]) if measure.family == _SUCCESS
    ]
    if not success:
        reason = f"needs Success@k, such as Success@10; --measure is {', '.join(names)}"
        raise option_error("roc_against", None, reason, code="missing-measure")
    successes = values.filter(measure=success[0].name).select("run", "qid", successful=pl.col("value") > 0)
    theirs = successes.filter(run=sparse).select("qid", known="successful")
    if not len(theirs):
        raise option_error("roc_against", sparse, "needs one run of that name, without a seed", code="unknown-choice")
    dense = successes.filter(~pl.col("run").str.starts_with(f"{sparse}+") & (pl.col("run") != sparse)).join(
        theirs, on="qid", maintain_order="left"
    )
    fused = dense.with_columns(run=f"{sparse}+" + pl.col("run"))
    both = pl.concat([dense, fused.filter(pl.col("run").is_in(values["run"].unique().implode()))])
    d, s, cutoff = pl.col("successful"), pl.col("known"), success[0].cutoff
    ratio = both.group_by("run", maintain_order=True).agg(
        measure=pl.lit(f"RoC@{cutoff}"), value=((d & ~s).sum() / d.sum()).fill_nan(None)
    )
    parts = {"D only": d & ~s, "S only": s & ~d, "Fail": ~d & ~s}
    counted = [
        both.select("run", pl.lit(f"{name}@{cutoff}").alias("measure"), "qid", value=part.cast(pl.Float64))
        for name, part in parts.items()
    ]
    return ratio, pl.concat(counted)
