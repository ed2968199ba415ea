"""Runs to judge, a person who answers, and a disk that dies: used by the tests of judging."""

import io
import os
from pathlib import Path
from zlib import crc32

from tiny_collection import TINY_DOCUMENTS, TINY_QUERIES

from hybrid_cli.storage import disk

FIRST, SECOND = "run-p", "run-q"
DOCIDS = [docid for docid, _, _ in TINY_DOCUMENTS if " " not in docid]  # a TREC run has no ids with spaces
QIDS = [qid for qid, _ in TINY_QUERIES["test"]]


def write_runs(folder: Path, hits: int = 4) -> list[Path]:
    """Write two TREC runs of the tiny test queries; they agree on the first query and less on later ones."""
    paths = []
    for number, name in enumerate((FIRST, SECOND)):
        lines = []
        for place, qid in enumerate(QIDS):
            begin = number * min(place, hits)
            found = [DOCIDS[(place + begin + step) % len(DOCIDS)] for step in range(hits)]
            lines += [f"{qid} Q0 {docid} {rank} {10 - rank} {name}\n" for rank, docid in enumerate(found, 1)]
        paths.append(folder / f"{name}.trec")
        paths[-1].write_text("".join(lines), "utf-8")
    return paths


def opinion(qid: str, docid: str) -> str:
    """Return the answer of the person about a hit: a grade, or `s`."""
    return "0123s"[crc32(f"{qid} {docid}".encode()) % 5]


def lines_of(path: Path) -> list[list[str]]:
    """Return the fields of each line; the file must end with a line break."""
    text = path.read_text("utf-8")
    assert not text or text.endswith("\n")
    return [line.split("\t") for line in text.splitlines()]


class Killed(BaseException):
    """Ends the process."""


class Dying(disk.Disk):
    """A disk on which the process dies at operation `last`; a write may reach the file in part."""

    def __init__(self, last: int, part: float):
        self.count, self.last, self.part = 0, last, part

    def _step(self) -> bool:
        self.count += 1
        return self.count == self.last

    def write(self, file: io.FileIO, data: memoryview) -> int:
        if self._step():
            os.write(file.fileno(), data[: int(len(data) * self.part)])
            raise Killed
        return super().write(file, data)

    def sync(self, descriptor: int) -> None:
        if self._step():
            raise Killed
        super().sync(descriptor)
