"""Judgments that a person gives one by one: a qrels file that grows, and the skipped hits in a file next to it.

A judgment is a line `qid RATER docid grade`, separated by tabs, which every reader of qrels accepts; a rater without a
name is 0. A skipped hit is
such a line with the grade -1 in the second file; in the qrels, an evaluation would count it as judged, as it does the
negative grades of some collections.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from hybrid_cli import console
from hybrid_cli.collections.readers.qrels import NO_RATER, has_header, judgment_rows, raters_of
from hybrid_cli.collections.readers.text_files import lines
from hybrid_cli.errors import InputError
from hybrid_cli.input_files import opened, read_bytes
from hybrid_cli.storage import disk

Pair = tuple[str, str]  # qid, docid
SKIPPED = None  # in place of a grade
_SKIPPED_GRADE = -1  # in the second file
_SUFFIXES = (".tsv", ".txt")
_COMPLETE = re.compile(r"[^\t\n]+\t\S+\t[^\t\n]+\t(?:-1|[0-3])")  # grades have one digit: no part of a line fits
_PART = re.compile(r"[^\t\n]+(?:\t(?:\S+(?:\t(?:[^\t\n]+(?:\t-?)?)?)?)?)?")  # a line that a power failure has cut
_OTHER = re.compile(r"\S+ +(?:\S+ +)?\S+ +-?[0-9]+")  # written by hand or by another tool, with spaces


class Judgments:
    """The answers of a person, on disk; only the holder of the lock of `path` may open it.

    Attributes:
        grades: grade of each judged pair; `SKIPPED` for a skipped one.
    """

    def __init__(self, path: Path, rater: str | None = None):
        """Open the file, or start it.

        Args:
            path: qrels file; skipped hits are in `NAME.skipped`.
            rater: name of the person, without spaces; None for no name.

        Raises:
            InputError: another file extension, no regular file, or a file without judgments or of another rater.
        """
        if path.suffix not in _SUFFIXES:
            raise InputError(
                f"{path}: the name must end with {' or '.join(_SUFFIXES)}",
                code="other-suffix", path=path, choices=_SUFFIXES,
            )  # fmt: skip
        begun = skipped_path(path).exists()
        for file in (path, skipped_path(path)):  # before either file is started
            if file.exists():
                opened(file).close()
                _check_rater(file, rater)
                if not begun:  # a file of a person, which is not changed unless all of it is judgments
                    _check_rows(file)
                    _check_columns(file)
        self._rater = rater or NO_RATER
        self.grades: dict[Pair, int | None] = {}
        self._files = [_open(file) for file in (skipped_path(path), path)]
        for file, own in ((skipped_path(path), False), (path, True)):
            self.grades |= {(qid, docid): grade if own else SKIPPED for _, qid, docid, grade in judgment_rows(file)}
        self._undo: list[tuple[disk.Growing, int, list[Pair]]] = []

    def add(self, qid: str, docids: Iterable[str], grade: int | None) -> None:
        """Store one grade, or `SKIPPED`, for some hits of a query; the answer is on the disk when this returns."""
        pairs = [(qid, docid) for docid in docids]
        file = self._files[grade is not SKIPPED]
        before = file.size
        stored = _SKIPPED_GRADE if grade is SKIPPED else grade
        file.add("".join(f"{qid}\t{self._rater}\t{docid}\t{stored}\n" for qid, docid in pairs))
        self._undo.append((file, before, pairs))
        self.grades |= dict.fromkeys(pairs, grade)

    def undo(self) -> bool:
        """Take back the last answer since the file was opened; return whether there was one."""
        if not self._undo:
            return False
        file, before, pairs = self._undo.pop()
        file.cut(before)
        for pair in pairs:
            del self.grades[pair]
        return True

    def of_query(self, qid: str) -> dict[str, int]:
        """Return docid -> grade of the judged hits of a query."""
        return {docid: grade for (asked, docid), grade in self.grades.items() if asked == qid and grade is not None}

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


def skipped_path(path: Path) -> Path:
    """Return the file of the skipped hits."""
    return path.with_name(f"{path.name}.skipped")


def _check_rater(path: Path, rater: str | None) -> None:
    """Refuse the file of another person or of a machine, who each write their own."""
    others: list[str] = []
    with suppress(InputError):  # of a line that a power failure has cut, which is removed later
        others = [name for name in raters_of(path) if name not in (rater, NO_RATER)]
    if others:
        raise InputError(
            f"{path}: has judgments of {others[0]}; name a new output", code="other-rater", path=path, raters=others
        )


def _check_rows(path: Path) -> None:
    """Refuse a file that is no qrels file, or grades a pair twice."""
    seen: set[Pair] = set()
    for location, qid, docid, _ in judgment_rows(path):
        if (qid, docid) in seen:
            raise InputError(
                f"{location}: query {qid} and document {docid} are repeated; keep one of their grades",
                code="duplicate-id", **location.fields, id=f"{qid} {docid}",
            )  # fmt: skip
        seen.add((qid, docid))


def _check_columns(path: Path) -> None:
    if has_header(path):
        raise InputError(
            f"{path}: has a header; judge adds lines of four columns (qid 0 docid relevance), which the header may not "
            "fit. Name a new file, or remove the header of a file in that order",
            code="has-header", path=path,
        )  # fmt: skip
    for _, line in lines(path):
        if len(line.split("\t") if "\t" in line else line.split()) == 3:
            raise InputError(
                f"{path}: has lines of three columns (qid docid relevance); judge adds lines of four (qid 0 docid "
                "relevance), and readers refuse a mixture. Name a new file, or add the column to this one",
                code="other-width", path=path, found=3, expected=4,
            )  # fmt: skip


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
            console.warn(
                f"{path}: the last line is incomplete and was removed: {tail!r}", code="incomplete-line", path=path
            )
            file.cut(begin)
    return file
