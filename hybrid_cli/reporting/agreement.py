"""Agreement of judgments: of several people (`--study agreement`), and of people and a machine (`--machine`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import console
from hybrid_cli.artifacts.judged import BothJudged
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.journal import Journal, Pair, is_journal
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.agreement import Agreement, conflicts
from hybrid_cli.evaluation.prediction_powered import LEAST_QUERIES, CorrectedMean
from hybrid_cli.reporting.plan import EvaluationPlan, measure
from hybrid_cli.reporting.tables import Table, figure, with_sign
from hybrid_cli.runs.names import short_names

# --------------------------------------------------------------------------------------------------------------- people

_SHOWN = 10  # conflicts in the text; JSON has all


@dataclass(frozen=True)
class PeopleAgreement:
    """Agreement of every two people, and the pairs that they grade differently.

    Attributes:
        agreements: names of two people, and their agreement.
        differing: qid, docid, and the grade of each person (null without one).
        paths: the files of the judgments.
    """

    agreements: Sequence[tuple[str, str, Agreement]]
    differing: pl.DataFrame
    paths: Sequence[Path]

    def tables(self, form: str) -> list[Table]:
        """Return the agreements, the confusion of grades of two people, and the first conflicts."""
        rows = [
            [f"{first}, {second}", f"{found.pairs:,}", f"{found.same:,}", *map(_kappa, _kappas(found))]
            for first, second, found in self.agreements
        ]
        tables = [Table(["people", "common", "equal", "kappa", "quadratic weights", "relevant or not"], rows)]
        if len(self.agreements) == 1:
            first, second, found = self.agreements[0]
            counted = [
                [f"{first} {grade}", *map(str, row)]
                for grade, row in zip(found.grades, found.confusion.tolist(), strict=True)
            ]
            tables.append(Table(["grade", *(f"{second} {grade}" for grade in found.grades)], counted))
        if len(self.differing):
            shown = [["" if cell is None else str(cell) for cell in row] for row in self.differing.head(_SHOWN).rows()]
            tables.append(Table(self.differing.columns, shown, left=2))
        return tables

    def legend(self) -> list[str]:
        """Return the number of conflicts, and the command that settles them."""
        if not len(self.differing):
            return ["No conflicts."]
        files, journal = ",".join(map(str, self.paths)), len(self.paths) == 1
        return [
            f"{console.counted(conflict=len(self.differing))}; to settle: hybrid judge COLLECTION --adjudicate {files} "
            f"--output {files if journal else 'settled.tsv'}"
        ]

    def content(self) -> dict[str, Any]:
        """Return all figures and conflicts, for JSON."""
        return {
            "agreements": [{"people": [a, b], **found.content()} for a, b, found in self.agreements],
            "conflicts": self.differing.to_dicts(),
        }

    def csv_rows(self) -> list[dict[str, Any]]:
        """Return one row per two people."""
        return [
            {
                "first": a,
                "second": b,
                "pairs": found.pairs,
                "same": found.same,
                "kappa": found.kappa,
                "weighted_kappa": found.weighted_kappa,
                "kappa_of_relevance": found.kappa_of_relevance,
            }
            for a, b, found in self.agreements
        ]


def _kappas(found: Agreement) -> tuple[float | None, ...]:
    return found.kappa, found.weighted_kappa, found.kappa_of_relevance


def _kappa(value: float | None) -> str:
    return "undefined" if value is None else figure(value, 2)


def people_agreement(paths: Sequence[Path]) -> PeopleAgreement:
    """Compare the judgments of two or more people.

    Raises:
        InputError: fewer than two files, or people who graded no common hit.
    """
    judgments = judgments_of_people(paths)
    agreements = [(a, b, Agreement.of(judgments[a], judgments[b])) for a, b in combinations(judgments, 2)]
    if not any(found.pairs for *_, found in agreements):
        problem = "--study agreement: the people graded no common hit; let them judge the same queries"
        raise InputError(problem, code="no-common-judgments", option="study")
    return PeopleAgreement(agreements, conflicts(judgments), paths)


def judgments_of_people(paths: Sequence[Path]) -> Mapping[str, pl.DataFrame]:
    """Return the judgments of each person: of a file by its short name, or of a journal by the names of its raters.

    Raises:
        InputError: fewer than two people, or unreadable files.
    """
    names = short_names([path.with_suffix("") for path in paths])
    found: dict[str, pl.DataFrame] = {}
    for name, path in zip(names, paths, strict=True):
        if is_journal(path):
            journal = Journal(path)
            found |= {rater: _frame(journal.graded(rater)) for rater in journal.people()}
        else:
            found[name] = collections.read_qrels(path)
    if len(set(paths)) < len(paths) or len(found) < 2:
        problem = "pass the judgments of two or more people: a file each, or a journal"
        raise InputError(problem, code="number-of-inputs", value=len(found))
    return found


def _frame(grades: Mapping[Pair, int]) -> pl.DataFrame:
    rows = [(*pair, grade) for pair, grade in grades.items()]
    return pl.DataFrame(rows, {"qid": pl.String, "docid": pl.String, "relevance": pl.Int32}, orient="row")


# ------------------------------------------------------------------------------------------------------------ a machine


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
            "kappa": agreement.kappa,
            "quadratic weights": agreement.weighted_kappa,
            "relevant or not": agreement.kappa_of_relevance,
        }
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
            "agreement": self.agreement.content(),
            "queries": self.queries,
            "others": self.others,
            "estimates": self.csv_rows(),
        }

    def csv_rows(self) -> list[dict[str, Any]]:
        """Return one row per run or difference and measure."""
        return [
            {
                "run": e.run,
                "baseline": e.baseline,
                "measure": e.measure,
                "by_people": e.by_people,
                "by_machine": e.by_machine,
                **{name: e.corrected and e.corrected.content()[name] for name in _FIGURES},
            }
            for e in self.estimates
        ]


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
    return [show(estimate.by_people, 3) + widths[0], show(estimate.by_machine, 3), show(corrected.mean, 3) + widths[1]]


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
