"""Input files of any origin: only regular files are opened, because stages read an input more than once."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from hybrid_cli.errors import InputError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BROKEN_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)
_BUFFER = 1 << 16  # bytes
PARQUET = (".parquet", ".pq")
# Usual names of the columns of ids, as `folded` returns them, the most specific first.
QIDS = ("qid", "query_id", "queryid", "question_id", "topic_id")
DOCIDS = ("docid", "doc_id", "docno", "document_id", "corpus_id", "pid", "passage_id")
_SPECIAL = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def folded(name: str) -> str:
    """Return the name of a column in lower case with `_`: `corpus_id` for `Corpus-ID`."""
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def special(path: Path) -> str | None:
    """Return `a pipe`, `a socket` or `a device`; None for a file, a folder and a missing path."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return None
    return next((kind for matches, kind in _SPECIAL if matches(mode)), None)


def refuse_special(path: Path) -> None:
    """Refuse an input that is a pipe, a socket or a device, which may never end; a missing path passes.

    Raises:
        InputError: such a path.
    """
    if kind := special(path):
        raise InputError(f"{path}: is {kind}, not a regular file; save its content to a file and pass that file")


class _Input(io.FileIO):
    """A file that is read; an error of its disk names it."""

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            message = f"{os.fsdecode(str(self.name))}: cannot be read: {reason}; check the disk, or restore a copy"
            raise InputError(message, code="unreadable-file", path=self.name) from error

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        with self._named():
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with self._named():
            return super().readall()


def opened(path: Path) -> BufferedReader:
    """Open an input file for reading bytes.

    Raises:
        InputError: the path is missing, not a regular file, or not readable; also when it is read.
    """
    refuse_special(path)
    try:
        return BufferedReader(_Input(path), _BUFFER)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; a file is needed") from None
    except PermissionError:
        raise InputError(f"{path}: permission denied; change the permissions of the file") from None


def open_binary(path: Path) -> IO[bytes]:
    """Open a plain or gzip file for reading bytes."""
    file = opened(path)
    if path.suffix != ".gz":
        return file
    file.close()
    return cast(IO[bytes], gzip.open(path, "rb"))


def plain_suffix(path: Path) -> str:
    """Return the suffix of the format: `.jsonl` for `queries.jsonl.gz`."""
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


def read_bytes(path: Path) -> bytes:
    """Return the content of an input file; see `opened`."""
    with opened(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """Return the content of an input file in UTF-8, without a byte order mark; see `opened`.

    Raises:
        InputError: not valid UTF-8.
    """
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not valid UTF-8 (byte {error.start:,}: {error.reason}); convert it") from None
