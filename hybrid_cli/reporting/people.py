"""Agreement of several people (`evaluate --agreement`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import console
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.journal import Journal, Pair, is_journal
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.agreement import Agreement, conflicts
from hybrid_cli.reporting.tables import Table, figure
from hybrid_cli.runs.names import short_names

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
            {"first": a, "second": b, "pairs": found.pairs, "same": found.same, "kappa": found.kappa,
             "weighted_kappa": found.weighted_kappa, "kappa_of_relevance": found.kappa_of_relevance}
            for a, b, found in self.agreements
        ]  # fmt: skip


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
        problem = "--agreement: the people graded no common hit; let them judge the same queries"
        raise InputError(problem, code="no-common-judgments", option="agreement")
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
