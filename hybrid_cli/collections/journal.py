"""The journal of judgments: a file of JSON lines that people and machines extend by a line per answer.

    {"qid": "q1", "docid": "d7", "grade": 2, "rater": "anna", "time": "2026-11-28T10:58:00Z", "seconds": 4.2}

No line is ever changed: a later answer of a rater replaces an earlier one, and an undo is a line of its own. Grades of
people count; where several people differ, the grade of an adjudication counts, or else the last one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_type_hints

from hybrid_cli import console
from hybrid_cli.errors import InputError
from hybrid_cli.inputs.files import Location, byte_lines, read_bytes
from hybrid_cli.inputs.json_values import NOT_JSON, mismatch_of_fields, parse_json
from hybrid_cli.inputs.rows import InputFile
from hybrid_cli.storage import disk

SUFFIX = ".jsonl"
HIGHEST = 3
NO_RATER = "0"  # in place of the name of a rater
MACHINE = "machine:"  # begins the name of a rater that is no person
SKIPPED = None  # in place of a grade
_LONGEST_NAME = 64
Pair = tuple[str, str]  # qid, docid
Owner = tuple[str, bool]  # rater, adjudicates


@dataclass(frozen=True)
class Answer:
    """A line of the journal.

    Attributes:
        grade: 0 to 3; None for a skipped hit, an undo, and a hit to judge later.
        time: date and time, in UTC.
        seconds: active time of the person.
        reason: why the hit is skipped.
        query: text of the query.
        later: the hit is to be judged after the others.
        undo: takes back the last answer of the rater for this hit.
        settles: the answer adjudicates a conflict of several people.
        id: identifies the answer of a page, which may send it twice.
        key: hash of all texts and options on which the grade of a machine depends.
    """

    qid: str
    docid: str
    grade: int | None = None
    rater: str = NO_RATER
    time: str | None = None
    seconds: float | None = None
    reason: str | None = None
    query: str | None = None
    later: bool = False
    undo: bool = False
    settles: bool = False
    id: str | None = None
    key: str | None = None

    @property
    def pair(self) -> Pair:
        """Return query and document."""
        return self.qid, self.docid

    @property
    def owner(self) -> Owner:
        """Return the rater, and whether the answer adjudicates."""
        return self.rater, self.settles

    def line(self) -> str:
        """Return the line, with its line break; fields without a value are omitted, except the grade."""
        values = {name: getattr(self, name) for name in _KINDS}
        shown = {
            name: value
            for name, value in values.items()
            if (value is not None and value is not False) or (name == "grade" and not self.undo)
        }
        return json.dumps(shown, ensure_ascii=False) + "\n"


_KINDS = {declared.name: get_type_hints(Answer)[declared.name] for declared in fields(Answer)}
_FLAGS = ("later", "undo", "settles")


def now() -> str:
    """Return date and time in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def is_rater(name: str) -> bool:
    """Return whether a text is the name of a person: one word, which is no name of a machine or of a column."""
    one_word = name.split() == [name] and name.isprintable() and len(name) <= _LONGEST_NAME
    return one_word and not _is_machine(name) and name not in ("qid", "docid")


def is_journal(file: InputFile) -> bool:
    """Return whether a file is a journal, by its name and its first line."""
    if file.suffix != SUFFIX or file.form != "json" or file.is_array:
        return False
    try:
        row = json.loads(file.first_line)
    except NOT_JSON:
        return False
    return isinstance(row, dict) and {"qid", "docid", "grade", "rater"} <= set(row)


class Journal:
    """The answers of all raters.

    Attributes:
        path: the file.
        standing: rater -> pair -> numbers of the lines and the answers that hold, the last one is current.
        ids: ids of all lines.
        keys: key -> grade of a machine.
        queries: qid -> text of the queries whose text is known.
        count: number of lines.
    """

    def __init__(self, path: Path):
        """Read the file, if it exists; a last line that a power failure has cut is ignored.

        Raises:
            InputError: a line that is no answer.
        """
        self.path = path
        self.standing: dict[Owner, dict[Pair, list[tuple[int, Answer]]]] = {}
        self.ids: set[str] = set()
        self.keys: dict[str, int] = {}
        self.queries: dict[str, str] = {}
        self.count = 0
        self._file: disk.Growing | None = None
        for number, line in enumerate(byte_lines(path) if path.exists() else (), 1):
            self.count = number
            if not line.strip():
                continue
            try:
                self._take(number, _parsed(line, path, number))
            except InputError:
                if line.endswith(b"\n") or not _is_part(line):
                    raise
                problem = f"{path}: the last line is incomplete and is ignored"
                console.warn(problem, code="incomplete-line", path=path, line=number)

    @classmethod
    def of(cls, file: InputFile) -> Journal | None:
        """Return the answers of a journal; None for another file.

        Raises:
            InputError: a line that is no answer.
        """
        return cls(file.path) if is_journal(file) else None

    @classmethod
    def growing(cls, path: Path) -> Journal:
        """Open the file to extend it, or start it; only the holder of its lock may.

        Raises:
            InputError: another file extension, or a line that is no answer.
        """
        journal = cls(path)
        content = read_bytes(path) if path.exists() else b""
        journal._file = disk.Growing(path)
        if content and not content.endswith(b"\n"):
            begin = content.rfind(b"\n") + 1
            if _is_part(content[begin:]):
                journal._file.cut(begin)
            else:
                journal._file.add("\n")
        return journal

    def add(self, answers: Iterable[Answer]) -> None:
        """Store answers, except those whose id is stored; they are on the disk when this returns."""
        assert self._file is not None
        added = [answer for answer in answers if answer.id is None or answer.id not in self.ids]
        if added:
            self._file.add("".join(answer.line() for answer in added))
            for answer in added:
                self.count += 1
                self._take(self.count, answer)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _take(self, number: int, answer: Answer) -> None:
        if answer.id is not None:
            self.ids.add(answer.id)
        if answer.key is not None and answer.grade is not None:
            self.keys[answer.key] = answer.grade
        if answer.query is not None:
            self.queries[answer.qid] = answer.query
        answers = self.standing.setdefault(answer.owner, {}).setdefault(answer.pair, [])
        if not answer.undo:
            answers.append((number, answer))
        elif answers:
            answers.pop()

    def current(self, owner: Owner) -> dict[Pair, Answer]:
        """Return the current answers of a rater, in their order."""
        held = [answers[-1] for answers in self.standing.get(owner, {}).values() if answers]
        return {answer.pair: answer for _, answer in sorted(held, key=lambda item: item[0])}

    def people(self) -> list[str]:
        """Return the names of the people with a grade that is no adjudication, in the order of their first answers."""
        return [name for name, settles in self.standing if not settles and not _is_machine(name) and self.graded(name)]

    def graded(self, rater: str) -> dict[Pair, int]:
        """Return the grades of a rater, without adjudications."""
        answers = self.current((rater, False)).values()
        return {answer.pair: answer.grade for answer in answers if answer.grade is not None}

    def counted(self, of_machine: bool = False) -> dict[Pair, tuple[int, Answer]]:
        """Return the numbers of the lines and the answers with the grades that count, in the order of the lines.

        Args:
            of_machine: those of machines; otherwise those of people, or of machines where no person gave a grade.
        """
        graded = [
            held[-1]
            for answers in self.standing.values()
            for held in answers.values()
            if held and held[-1][1].grade is not None
        ]
        of_people = [item for item in graded if not _is_machine(item[1].rater)]
        chosen = [item for item in graded if _is_machine(item[1].rater)] if of_machine or not of_people else of_people
        last = {answer.pair: (number, answer) for number, answer in sorted(chosen, key=_settling)}
        return dict(sorted(last.items(), key=lambda item: item[1][0]))

    def of_people(self) -> dict[Pair, int | None]:
        """Return the grades of people that count, and `SKIPPED` for the hits that they only skip."""
        skipped = {
            pair: SKIPPED
            for (rater, _), answers in self.standing.items()
            if not _is_machine(rater)
            for pair, held in answers.items()
            if held and not held[-1][1].later
        }
        return skipped | {
            pair: answer.grade for pair, (_, answer) in self.counted().items() if not _is_machine(answer.rater)
        }

    def conflicts(self) -> int:
        """Return the number of hits to which people give different grades that no adjudication settles."""
        grades: dict[Pair, set[int]] = {}
        settled: set[Pair] = set()
        for (rater, settles), answers in self.standing.items():
            if not _is_machine(rater):
                for pair, held in answers.items():
                    if held and (grade := held[-1][1].grade) is not None:
                        settled |= {pair} if settles else set()
                        grades.setdefault(pair, set()).add(grade)
        return sum(len(found) > 1 and pair not in settled for pair, found in grades.items())


def _settling(item: tuple[int, Answer]) -> tuple[bool, int]:
    return item[1].settles, item[0]


def _is_machine(rater: str) -> bool:
    return rater.startswith(MACHINE)


def _parsed(line: bytes, path: Path, number: int) -> Answer:
    """Return the answer of a line; fields of later versions are ignored.

    Raises:
        InputError: no answer.
    """
    try:
        row = parse_json(line, path)
    except InputError:
        row = None
    problem = "is no JSON object" if not isinstance(row, dict) else _problem(row)
    if problem:
        problem = f"{problem}; a journal has answers: qid, docid, grade, rater"
        raise Location(path, number).error(problem, code="not-an-answer")
    return Answer(**{name: value for name, value in row.items() if name in _KINDS})


def _problem(row: dict[str, Any]) -> str:
    """Return why a row is no answer; empty if it is one."""
    if wrong := mismatch_of_fields(dict.fromkeys(_FLAGS, False) | {"rater": NO_RATER} | row, _KINDS):
        return str(wrong)
    grade = row.get("grade")
    return "" if grade is None or 0 <= grade <= HIGHEST else f"grade {grade} is not from 0 to {HIGHEST}"


def _is_part(line: bytes) -> bool:
    """Return whether a last line is the beginning of an answer, or zeros where data did not reach the disk."""
    if not line.strip(b"\0"):
        return True
    try:
        json.loads(line)
    except NOT_JSON:
        return line.startswith(b"{")
    return False
