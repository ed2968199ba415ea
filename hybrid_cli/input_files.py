"""Input files of any origin: only regular files are opened, because stages read an input more than once."""

from __future__ import annotations

import gzip
import os
import re
import stat
import zlib
from io import BufferedReader
from pathlib import Path
from typing import IO, cast

from hybrid_cli.errors import InputError

BROKEN_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)
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
_UNSAFE = re.compile(r"[\\\0]|^[A-Za-z]:")  # in a part of a path


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


def refuse_unsafe_name(name: str, source: object) -> None:
    """Refuse a relative path that could lead out of its folder, or names no file on some system.

    Args:
        name: the path, with forward slashes, as a manifest, an archive or an object store supplies it.
        source: where it comes from, for the message.

    Raises:
        InputError: an empty part, `.`, `..`, an absolute path, a drive, a backslash or a NUL.
    """
    if any(part in ("", ".", "..") or _UNSAFE.search(part) for part in name.split("/")):
        raise InputError(
            f"{source}: the name {name!r} could lead out of its folder: it has an empty part, `.`, `..`, a drive, a "
            "backslash or a NUL; rename it",
            code="unsafe-name",
            path=str(source),
            value=name,
        )


def opened(path: Path) -> BufferedReader:
    """Open an input file for reading bytes.

    Raises:
        InputError: the path is missing, not a regular file, or not readable.
    """
    refuse_special(path)
    try:
        return path.open("rb")
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
