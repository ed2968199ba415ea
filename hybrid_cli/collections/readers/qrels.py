"""Files of judgments: lines of three or four columns, and files whose columns are found by their names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from hybrid_cli.collections.journal import Journal, is_journal
from hybrid_cli.collections.readers.tables import Layout, OpenTable, cell, chosen_columns, is_delimited, open_table
from hybrid_cli.collections.readers.text_files import checked_id, lines
from hybrid_cli.collections.source import Judgment, Location
from hybrid_cli.errors import InputError
from hybrid_cli.inputs.files import DOCIDS, QIDS, is_parquet, plain_suffix

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


def judgment_rows(path: Path, of_machine: bool = False) -> Iterator[JudgmentRow]:
    """Yield location, query id, document id and relevance of each judgment.

    The columns are found by their names, as `prepare files` finds them. A text without a header has lines
    `qid 0 docid relevance` or `qid docid relevance`; a line with tabs is split at tabs only, so that ids may contain
    spaces. Of a journal of several raters, the grades that count; see `Journal.counted`.

    Args:
        path: file of judgments.
        of_machine: the grades of machines in a journal.

    Raises:
        InputError: a row without ids or a grade, or a header without the name of a column.
    """
    if is_journal(path):
        for number, answer in Journal(path).counted(of_machine).values():
            location = Location(path, number)
            assert answer.grade is not None
            yield location, checked_id(answer.qid, location), checked_id(answer.docid, location), answer.grade
    elif is_delimited(path) and plain_suffix(path) != ".csv" and not has_header(path):
        yield from _rows_by_position(path)
    else:
        table = open_table(path, _WITHOUT_OPTIONS, {}, None, False if plain_suffix(path) != ".csv" else None)
        yield from judgments_of(table, chosen_columns(table, _WITHOUT_OPTIONS, {}))


def judgments_of(table: OpenTable, chosen: Mapping[str, str]) -> Iterator[JudgmentRow]:
    """Yield location, query id, document id and relevance of each row, from the column of each field."""
    qid, docid, relevance = (chosen[field] for field in ("qid", "docid", "relevance"))
    for location, row in table.rows((qid, docid, relevance)):
        ids = checked_id(cell(row, qid, location), location), checked_id(cell(row, docid, location), location)
        value = row.get(relevance)
        text = str(value) if isinstance(value, float | Decimal) else cell(row, relevance, location)
        yield location, *ids, grade_of(text, location)


def has_header(path: Path) -> bool:
    """Return whether the first line of a text has the usual name of a column, and no grade at its end."""
    fields = _split(next((line for _, line in lines(path)), "0"))
    return not _GRADE.fullmatch(fields[-1].strip()) and any(map(QRELS.reveals, fields))


def raters_of(path: Path) -> Counter[str]:
    """Return the raters of a journal or of a text without a header, with their numbers of judgments that count.

    The second of four columns names the rater, as in `qid RATER docid relevance`; most tools write 0 there. trec_eval
    and our readers of grades ignore it.
    """
    if is_journal(path):
        return Counter(answer.rater for _, answer in Journal(path).counted().values())
    if not path.is_file() or is_parquet(path) or not is_delimited(path) or has_header(path):
        return Counter()
    return Counter(fields[1] for _, line in lines(path) if len(fields := _split(line)) == 4)


def split_judgments(qrels: Mapping[str, Path]) -> Iterator[Judgment]:
    """Yield the judgments of every split, from one file per split; see `judgment_rows`."""
    for split, path in qrels.items():
        for location, qid, docid, relevance in judgment_rows(path):
            yield Judgment(split, qid, docid, relevance, location)


def _rows_by_position(path: Path) -> Iterator[JudgmentRow]:
    for location, line in lines(path):
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
    facts = {"path": location.file, "line": location.number, "value": text}
    match = _GRADE.fullmatch(text.strip())
    if match is None:
        problem = f"{location}: relevance '{text[:40]}' is not a whole number"
        raise InputError(problem, code="grade-not-a-number", **facts)
    digits = match[1]
    if len(digits.lstrip("+-0")) > len(str(HIGHEST)) or not LOWEST <= int(digits) <= HIGHEST:
        problem = f"{location}: relevance {digits[:40]} is not between {LOWEST} and {HIGHEST}; correct the grade"
        raise InputError(problem, code="grade-out-of-range", **facts)
    return int(digits)
