"""Judgments of a machine next to those of people: the result of `evaluate --machine`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import console
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.agreement import Agreement
from hybrid_cli.evaluation.prediction_powered import LEAST_QUERIES, CorrectedMean
from hybrid_cli.opening.judged import BothJudged
from hybrid_cli.reporting.plan import EvaluationPlan, measure
from hybrid_cli.reporting.tables import Table, figure, with_sign


@dataclass(frozen=True)
class Estimate:
    """The mean of a run, or of its difference from the baseline.

    Attributes:
        baseline: name of the run that is subtracted; empty for a mean.
        by_people: mean over the queries judged by people and machine.
        by_machine: mean of the machine over all its queries.
        corrected: both together; None with fewer than `LEAST_QUERIES` queries judged by both.
    """

    run: str
    baseline: str
    measure: str
    by_people: float
    by_machine: float
    corrected: CorrectedMean | None


@dataclass(frozen=True)
class MachineLabels:
    """Agreement of people and machine, and corrected means.

    Attributes:
        agreement: people are first.
        estimates: by measure; the means of all runs, then the differences from the first run.
        queries: number of queries judged by people and machine.
        others: number of queries judged by the machine alone.
    """

    agreement: Agreement
    estimates: Sequence[Estimate]
    queries: int
    others: int

    def tables(self, form: str) -> list[Table]:
        """Return the confusion of grades, the means, and the differences of several runs."""
        agreement = self.agreement
        counted = [
            [f"people {grade}", *map(str, row.tolist()), f"{row[number] / max(row.sum(), 1):.0%}"]
            for number, (grade, row) in enumerate(zip(agreement.grades, agreement.confusion, strict=True))
        ]
        confusion = Table(["grade", *(f"machine {grade}" for grade in agreement.grades), "same"], counted)
        columns = ["people alone", "machine alone", "corrected"]
        means = [[e.run, e.measure, *_cells(e)] for e in self.estimates if not e.baseline]
        differences = [[f"{e.run} - {e.baseline}", e.measure, *_cells(e)] for e in self.estimates if e.baseline]
        tables = [confusion, Table(["run", "measure", *columns], means, left=2)]
        return tables + ([Table(["difference", "measure", *columns], differences, left=2)] if differences else [])

    def legend(self) -> list[str]:
        """Return the lines below the tables."""
        agreement = self.agreement
        kappas = {
            "kappa": agreement.kappa, "quadratic weights": agreement.weighted_kappa,
            "relevant or not": agreement.kappa_of_relevance,
        }  # fmt: skip
        shown = ", ".join(f"{name} {'undefined' if k is None else figure(k, 2)}" for name, k in kappas.items())
        lines = [f"{agreement.same:,} of {agreement.pairs:,} common grades are equal; Cohen's {shown}."]
        if self.queries < LEAST_QUERIES:
            return lines
        return [
            *lines,
            f"± half the width of the 95% interval. Corrected: prediction-powered mean of {self.queries:,} queries of "
            f"people and {self.others:,} of the machine alone. It holds if the queries of people are a random sample.",
        ]

    def content(self) -> dict[str, Any]:
        """Return all figures for JSON."""
        return {
            "agreement": self.agreement.content(), "queries": self.queries, "others": self.others,
            "estimates": self.csv_rows(),
        }  # fmt: skip

    def csv_rows(self) -> list[dict[str, Any]]:
        """Return one row per run or difference and measure."""
        return [
            {"run": e.run, "baseline": e.baseline, "measure": e.measure, "by_people": e.by_people,
             "by_machine": e.by_machine, **{name: e.corrected and e.corrected.content()[name] for name in _FIGURES}}
            for e in self.estimates
        ]  # fmt: skip


_FIGURES = ("mean", "low", "high", "people_low", "people_high", "weight")


def _cells(estimate: Estimate) -> list[str]:
    """Return the cells of people, machine and both."""
    show = with_sign if estimate.baseline else figure
    corrected = estimate.corrected
    if corrected is None:
        return [show(estimate.by_people, 3), show(estimate.by_machine, 3), "-"]
    widths = [
        f" ±{figure((high - low) / 2, 3)}"
        for low, high in ((corrected.people_low, corrected.people_high), (corrected.low, corrected.high))
    ]
    return [
        show(estimate.by_people, 3) + widths[0], show(estimate.by_machine, 3), show(corrected.mean, 3) + widths[1],
    ]  # fmt: skip


def machine_labels(plan: EvaluationPlan, machine: Path) -> MachineLabels:
    """Measure runs by the judgments of people and of a machine.

    Args:
        plan: runs and measures, with the judgments of people.
        machine: qrels of the machine.

    Raises:
        InputError: no measure needs judgments, or judgments of a machine for those of people, or no common query.
    """
    if plan.qrels is None or plan.by_answers:
        raise InputError("--machine: needs measures of judgments", code="needs-judgments", option="machine")
    judged = BothJudged.read("evaluate", plan.qrels, machine, plan.runs)
    both, others, of_both = judged.both, judged.others, judged.of_both("evaluate")
    values = {"people": measure(plan)[0]}
    with console.quiet():
        values["machine"] = measure(replace(plan, qrels=machine, by_machine=True))[0]
    estimates = []
    for name in plan.columns:
        found = {rater: _by_run(frame, name) for rater, frame in values.items()}
        first, *rest = plan.runs
        for run, baseline in [(run, "") for run in plan.runs] + [(run, first) for run in rest]:
            ours, theirs, rest_of_machine = (
                np.array([found[rater][run][qid] - (found[rater][baseline][qid] if baseline else 0) for qid in qids])
                for rater, qids in (("people", both), ("machine", both), ("machine", others))
            )
            corrected = CorrectedMean.of(ours, theirs, rest_of_machine) if len(both) >= LEAST_QUERIES else None
            whole = float(np.concatenate([theirs, rest_of_machine]).mean())
            estimates.append(Estimate(run, baseline, name, float(ours.mean()), whole, corrected))
    return MachineLabels(Agreement.of(of_both, judged.machine, plan.level), estimates, len(both), len(others))


def _by_run(values: pl.DataFrame, name: str) -> dict[str, dict[str, float]]:
    """Return run -> query -> value of a measure."""
    return {
        str(run): dict(rows.select("qid", "value").iter_rows())
        for (run,), rows in values.filter(measure=name).group_by("run")
    }
