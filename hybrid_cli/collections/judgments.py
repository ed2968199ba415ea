"""Judgments that a person gives one by one: in a journal, or in a qrels file that grows.

The journal (`.jsonl`) keeps reasons, times and changed answers. In the qrels file (`.tsv`, `.txt`), a judgment is a
line `qid RATER docid grade`, separated by tabs, which every reader of qrels accepts; a rater without a name is 0. A
skipped hit is such a line with the grade -1 in a file next to it; in the qrels, an evaluation would count it as judged,
as it does the negative grades of some collections.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from hybrid_cli import console
from hybrid_cli.collections.journal import NO_RATER, SKIPPED, SUFFIX, Answer, Journal, Pair, now
from hybrid_cli.collections.readers.qrels import JudgmentFile
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.inputs.files import read_bytes
from hybrid_cli.storage import disk

_SKIPPED_GRADE = -1  # in the second file
_SUFFIXES = (SUFFIX, ".tsv", ".txt")
_COMPLETE = re.compile(r"[^\t\n]+\t\S+\t[^\t\n]+\t(?:-1|[0-3])")  # grades have one digit: no part of a line fits
_PART = re.compile(r"[^\t\n]+(?:\t(?:\S+(?:\t(?:[^\t\n]+(?:\t-?)?)?)?)?)?")  # a line that a power failure has cut
_OTHER = re.compile(r"\S+ +(?:\S+ +)?\S+ +-?[0-9]+")  # written by hand or by another tool, with spaces


def open_judgments(path: Path, rater: str | None = None, settles: bool = False) -> Judgments:
    """Open the answers of a person, or start them; only the holder of the lock of `path` may.

    Args:
        path: journal (`.jsonl`) or qrels file (`.tsv`, `.txt`).
        rater: name of the person, without spaces; None for no name.
        settles: the answers adjudicate the conflicts of a journal.

    Raises:
        InputError: another file extension, no regular file, a line that is no judgment, or a qrels file of another
            rater.
    """
    if path.suffix not in _SUFFIXES:
        problem = f"the name must end with {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}"
        raise path_error(path, problem, code="other-suffix")
    if path.suffix == SUFFIX:
        return JournalJudgments(Journal.growing(path), rater or NO_RATER, settles)
    return FileJudgments(path, rater)


class JournalJudgments:
    """The answers of a person in a journal.

    Attributes:
        grades: grade of each judged pair; `SKIPPED` for a skipped one. The last answer is the last.
        later: pairs to judge after the others.
        detailed: reasons, times and changed answers are kept.
    """

    detailed = True

    def __init__(self, journal: Journal, rater: str, settles: bool = False):
        self.journal, self.rater, self.settles = journal, rater, settles
        self.grades: dict[Pair, int | None] = {}
        self.later: dict[Pair, None] = {}
        answers = journal.current((rater, settles))
        for answer in answers.values():
            self._hold(answer)
        standing = journal.standing.get((rater, settles), {})
        numbers = [(number, answer.pair) for held in standing.values() for number, answer in held]
        self._acts = [[pair] for _, pair in sorted(numbers)]

    def _hold(self, answer: Answer) -> None:
        """Make an answer the last one."""
        self.grades.pop(answer.pair, None)
        self.later.pop(answer.pair, None)
        if answer.later:
            self.later[answer.pair] = None
        else:
            self.grades[answer.pair] = answer.grade

    def _add(self, answers: list[Answer]) -> None:
        new = [answer for answer in answers if answer.id is None or answer.id not in self.journal.ids]
        self.journal.add(new)
        for answer in new:
            self._hold(answer)
        if new:
            self._acts.append([answer.pair for answer in new])

    def _answer(self, qid: str, docid: str, **fields: Any) -> Answer:
        return Answer(qid, docid, rater=self.rater, time=now(), settles=self.settles, **fields)

    def add(self, qid: str, docids: Iterable[str], grade: int | None, **details: Any) -> None:
        """Store one grade, or `SKIPPED`, for some hits of a query; the answer is on the disk when this returns.

        Args:
            qid: id of the query.
            docids: ids of the hits.
            grade: 0 to 3, or `SKIPPED`.
            details: further fields of the `Answer`.
        """
        self._add([self._answer(qid, docid, grade=grade, **details) for docid in docids])

    def put_off(self, qid: str, docid: str, **details: Any) -> None:
        """Judge a hit after the others."""
        self._add([self._answer(qid, docid, later=True, **details)])

    def undo(self, **details: Any) -> Pair | None:
        """Take back the last answer, also of an earlier session; return its first pair, None if there is none."""
        if details.get("id") in self.journal.ids or not self._acts:
            return None
        pairs = self._acts.pop()
        self.journal.add(self._answer(*pair, undo=True, **details) for pair in pairs)
        current = self.journal.current((self.rater, self.settles))
        for pair in pairs:
            self.grades.pop(pair, None)
            self.later.pop(pair, None)
            if pair in current:
                self._hold(current[pair])
        return pairs[0]

    def close(self) -> None:
        """Close the file."""
        self.journal.close()


class FileJudgments:
    """The answers of a person in a qrels file, and the skipped hits in `NAME.skipped`; see `JournalJudgments`.

    Hits to judge later are in memory.
    """

    detailed = False

    def __init__(self, path: Path, rater: str | None = None):
        """Open the file, or start it.

        Args:
            path: qrels file; skipped hits are in `NAME.skipped`.
            rater: name of the person, without spaces; None for no name.

        Raises:
            InputError: no regular file, or a file without judgments or of another rater.
        """
        begun = skipped_path(path).exists()
        for file in (path, skipped_path(path)):  # before either file is started
            if file.exists():
                judged = JudgmentFile.of(file)
                _check_rater(judged, rater)
                if not begun:  # a file of a person, which is not changed unless all of it is judgments
                    _check_rows(judged)
                    _check_columns(judged)
        self._rater = rater or NO_RATER
        self.grades: dict[Pair, int | None] = {}
        self.later: dict[Pair, None] = {}
        self._files = [_open(file) for file in (skipped_path(path), path)]
        for file, own in ((skipped_path(path), False), (path, True)):
            rows = JudgmentFile.of(file).rows()
            self.grades |= {(qid, docid): grade if own else SKIPPED for _, qid, docid, grade in rows}
        self._undo: list[tuple[disk.Growing | None, int, list[Pair]]] = []  # None: put off

    def add(self, qid: str, docids: Iterable[str], grade: int | None, **_: Any) -> None:
        """See `JournalJudgments`."""
        pairs = [(qid, docid) for docid in docids]
        file = self._files[grade is not SKIPPED]
        before = file.size
        stored = _SKIPPED_GRADE if grade is SKIPPED else grade
        file.add("".join(f"{qid}\t{self._rater}\t{docid}\t{stored}\n" for qid, docid in pairs))
        self._undo.append((file, before, pairs))
        self.grades |= dict.fromkeys(pairs, grade)
        for pair in pairs:
            self.later.pop(pair, None)

    def put_off(self, qid: str, docid: str, **_: Any) -> None:
        """See `JournalJudgments`."""
        self.later.pop((qid, docid), None)
        self.later[qid, docid] = None
        self._undo.append((None, 0, [(qid, docid)]))

    def undo(self, **_: Any) -> Pair | None:
        """See `JournalJudgments`; answers since the file was opened are taken back."""
        if not self._undo:
            return None
        file, before, pairs = self._undo.pop()
        if file is not None:
            file.cut(before)
        for pair in pairs:
            (self.grades if file is not None else self.later).pop(pair, None)
        return pairs[0]

    def close(self) -> None:
        """See `JournalJudgments`."""
        for file in self._files:
            file.close()


Judgments: TypeAlias = JournalJudgments | FileJudgments


def skipped_path(path: Path) -> Path:
    """Return the file of the skipped hits."""
    return path.with_name(f"{path.name}.skipped")


def _check_rater(judged: JudgmentFile, rater: str | None) -> None:
    """Refuse the file of another person or of a machine, who each write their own."""
    others: list[str] = []
    with suppress(InputError):  # of a line that a power failure has cut, which is removed later
        others = [name for name in judged.raters if name not in (rater, NO_RATER)]
    if others:
        problem = f"has judgments of {others[0]}; name a new output"
        raise path_error(judged.file.path, problem, code="other-rater", raters=others)


def _check_rows(judged: JudgmentFile) -> None:
    """Refuse a file that is no qrels file, or grades a pair twice."""
    seen: set[Pair] = set()
    for location, qid, docid, _ in judged.rows():
        if (qid, docid) in seen:
            problem = f"query {qid} and document {docid} are repeated; keep one of their grades"
            raise location.error(problem, code="duplicate-id", id=f"{qid} {docid}")
        seen.add((qid, docid))


def _check_columns(judged: JudgmentFile) -> None:
    if judged.has_header:
        problem = "has a header; name a new file, or remove the header of four columns (qid 0 docid relevance)"
        raise path_error(judged.file.path, problem, code="has-header")
    for _, line in judged.file.lines():
        if len(line.split("\t") if "\t" in line else line.split()) == 3:
            problem = "has lines of three columns; name a new file, or give it four (qid 0 docid relevance)"
            raise path_error(judged.file.path, problem, code="other-width", found=3, expected=4)


def _open(path: Path) -> disk.Growing:
    """Open a file of lines; complete its last line, or cut it where a power failure left a part of one."""
    content = read_bytes(path) if path.exists() else b""
    file = disk.Growing(path)
    if content and not content.endswith(b"\n"):
        begin = content.rfind(b"\n") + 1
        tail = content[begin:].decode("utf-8", "replace")
        if _COMPLETE.fullmatch(tail) or (b"\t" not in content and _OTHER.fullmatch(tail)):
            file.add("\n")
        elif _PART.fullmatch(tail):  # any other line is reported by its reader
            problem = f"{path}: the last line is incomplete and was removed: {tail!r}"
            console.warn(problem, code="incomplete-line", path=path)
            file.cut(begin)
    return file
