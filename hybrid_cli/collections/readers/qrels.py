"""Files of judgments: lines of three or four columns, and files whose columns are found by their names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from hybrid_cli.collections.journal import Journal
from hybrid_cli.collections.readers.tables import Layout, cell, open_table
from hybrid_cli.collections.readers.text_files import checked_id
from hybrid_cli.collections.source import Judgment, Location
from hybrid_cli.inputs.files import DOCIDS, QIDS
from hybrid_cli.inputs.rows import InputFile, Table

JudgmentRow = tuple[Location, str, str, int]
QRELS = Layout(
    "--qrels-columns",
    {
        "qid": QIDS,
        "docid": DOCIDS,
        "relevance": ("relevance", "rel", "score", "label", "grade", "judgment", "judgement", "relevance_score"),
    },
    frozenset(),
    {3: {"qid": "1", "docid": "2", "relevance": "3"}, 4: {"qid": "1", "docid": "3", "relevance": "4"}},
    nested=("qid", "docid", "relevance"),
)
_WITHOUT_OPTIONS = replace(QRELS, option="qrels", advice="name its columns qid, docid and relevance")
_GRADE = re.compile(r"([+-]?[0-9]+)(?:\.0*)?")  # a whole number; tables of other tools write `1.0`
LOWEST, HIGHEST = -(1 << 31), (1 << 31) - 1  # grades of the qrels of a collection


@dataclass(frozen=True)
class JudgmentFile:
    """A file of judgments, recognized once.

    Attributes:
        file: the file.
        journal: the answers of a journal; None for another file.
    """

    file: InputFile
    journal: Journal | None

    @classmethod
    def of(cls, path: Path) -> JudgmentFile:
        """Open a file of judgments.

        Raises:
            InputError: it cannot be read.
        """
        file = InputFile.of(path)
        return cls(file, Journal.of(file))

    @property
    def has_header(self) -> bool:
        """Return whether the first line of a text has the usual name of a column, and no grade at its end."""
        fields = _split(self.file.first_line or "0")
        return not _GRADE.fullmatch(fields[-1].strip()) and any(map(QRELS.reveals, fields))

    @property
    def is_by_position(self) -> bool:
        """Return whether the file is a text of columns without a header."""
        return self.file.form == "text" and self.file.suffix != ".csv" and not self.has_header

    def rows(self, of_machine: bool = False) -> Iterator[JudgmentRow]:
        """Yield location, query id, document id and relevance of each judgment.

        The columns are found by their names, as `prepare files` finds them. A text without a header has lines
        `qid 0 docid relevance` or `qid docid relevance`; a line with tabs is split at tabs only, so that ids may
        contain spaces. Of a journal of several raters, the grades that count; see `Journal.counted`.

        Args:
            of_machine: the grades of machines in a journal.

        Raises:
            InputError: a row without ids or a grade, or a header without the name of a column.
        """
        if self.journal is not None:
            for number, answer in self.journal.counted(of_machine).values():
                location = Location(self.file.path, number)
                assert answer.grade is not None
                yield location, checked_id(answer.qid, location), checked_id(answer.docid, location), answer.grade
        elif self.is_by_position:
            yield from _rows_by_position(self.file)
        else:
            table = open_table(self.file, _WITHOUT_OPTIONS, {}, None, None if self.file.suffix == ".csv" else False)
            yield from judgments_of(table)

    @property
    def raters(self) -> Counter[str]:
        """Return the raters of a journal or of a text without a header, with their numbers of judgments that count.

        The second of four columns names the rater, as in `qid RATER docid relevance`; most tools write 0 there.
        trec_eval and our readers of grades ignore it.
        """
        if self.journal is not None:
            return Counter(answer.rater for _, answer in self.journal.counted().values())
        if self.file.form != "text" or self.has_header:
            return Counter()
        return Counter(fields[1] for _, line in self.file.lines() if len(fields := _split(line)) == 4)


def judgments_of(table: Table) -> Iterator[JudgmentRow]:
    """Yield location, query id, document id and relevance of each row, from the column of each field."""
    qid, docid, relevance = (table.columns[field] for field in ("qid", "docid", "relevance"))
    for location, row in table.rows((qid, docid, relevance)):
        ids = checked_id(cell(row, qid, location), location), checked_id(cell(row, docid, location), location)
        value = row.get(relevance)
        text = str(value) if isinstance(value, float | Decimal) else cell(row, relevance, location)
        yield location, *ids, grade_of(text, location)


def split_judgments(qrels: Mapping[str, Path]) -> Iterator[Judgment]:
    """Yield the judgments of every split, from one file per split."""
    for split, path in qrels.items():
        for location, qid, docid, relevance in JudgmentFile.of(path).rows():
            yield Judgment(split, qid, docid, relevance, location)


def _rows_by_position(file: InputFile) -> Iterator[JudgmentRow]:
    for location, line in file.lines():
        fields = _split(line)
        if len(fields) not in (3, 4):
            problem = f"{len(fields)} columns; judgments have qid docid relevance, or qid 0 docid relevance"
            raise location.error(problem, code="other-width", found=len(fields))
        relevance = grade_of(fields[-1], location)
        yield location, checked_id(fields[0], location), checked_id(fields[-2], location), relevance


def _split(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else line.split()


def grade_of(text: str, location: Location) -> int:
    """Return a relevance grade: a whole number in ASCII digits, within 32 bits."""
    match = _GRADE.fullmatch(text.strip())
    if match is None:
        raise location.error(f"relevance '{text[:40]}' is not a whole number", code="grade-not-a-number", value=text)
    digits = match[1]
    if len(digits.lstrip("+-0")) > len(str(HIGHEST)) or not LOWEST <= int(digits) <= HIGHEST:
        problem = f"relevance {digits[:40]} is not between {LOWEST} and {HIGHEST}; correct the grade"
        raise location.error(problem, code="grade-out-of-range", value=text)
    return int(digits)
