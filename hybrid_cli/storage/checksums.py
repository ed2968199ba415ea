"""Checksums of whole files, which reveal a single changed bit.

A Parquet file contains its own checksum: the footer has the key `hybrid.checksum`, and the value is the hash of the
file with 32 zeros in place of the value. Files in a folder are hashed in the manifest of the folder.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO

from hybrid_cli.errors import DamageError
from hybrid_cli.inputs.files import opened
from hybrid_cli.storage import disk

KEY = b"hybrid.checksum"
EMPTY = "0" * 32
_ENTRY = re.compile(re.escape(KEY) + rb"\x18\x20([0-9a-f]{32})", re.DOTALL)  # key, type and length in Thrift, value
_TAIL = 1 << 20  # bytes at the end of a file, where the footer is
_BLOCK = 1 << 20


def new_hash() -> Any:
    """Return a new hash object of the kind that all fingerprints use."""
    return hashlib.blake2b(digest_size=16)


class Hashing:
    """A binary file that hashes the bytes written to it."""

    closed = False

    def __init__(self, file: BinaryIO):
        self._file, self._digest = file, new_hash()

    def write(self, data: Any) -> int:
        """Write and hash."""
        self._digest.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        """Do nothing; the file is not buffered."""

    def close(self) -> None:
        """Do nothing; the owner of the file closes it."""

    def hexdigest(self) -> str:
        """Return the hash of all bytes so far."""
        return str(self._digest.hexdigest())


def seal(path: Path, digest: str) -> None:
    """Write the checksum into a Parquet file whose footer contains the key with the value `EMPTY`."""
    checksum = _checksum_of(path)
    assert checksum is not None, f"{path}: no checksum to fill in"
    disk.patch(path, checksum[0], digest.encode())


def has_key(path: Path) -> bool:
    """Return whether a file contains its own checksum, or a part of it."""
    return KEY in _tail(path)[1]


def check(path: Path) -> None:
    """Compare a Parquet file with the checksum that it contains; a file without one passes.

    The manifest in the footer names the key too, so a file that lost its checksum does not pass.

    Raises:
        DamageError: they differ.
    """
    checksum = _checksum_of(path)
    if _digest(path, checksum[0]) != checksum[1] if checksum else has_key(path):
        raise changed_error(path)


def changed_error(path: Path) -> DamageError:
    """Return the error about a file that differs from its checksum."""
    problem = f"{path}: the content changed on the disk after it was written; restore or rebuild the file"
    return DamageError(problem, code="damaged", path=path)


def hash_file(path: Path) -> str:
    """Return the hash of the bytes of a file."""
    with opened(path) as file:
        return str(hashlib.file_digest(file, new_hash).hexdigest())


def _tail(path: Path) -> tuple[int, bytes]:
    """Return the last bytes of a file, and their place."""
    with opened(path) as file:
        begin = max(0, file.seek(0, os.SEEK_END) - _TAIL)
        file.seek(begin)
        return begin, file.read()


def _checksum_of(path: Path) -> tuple[int, str] | None:
    """Return the position and the value of the checksum in a file; None if the file has none."""
    begin, tail = _tail(path)
    matches = deque(_ENTRY.finditer(tail), maxlen=1)
    return (begin + matches[0].start(1), matches[0][1].decode()) if matches else None


def _digest(path: Path, position: int) -> str:
    """Return the hash of a file with zeros in place of its checksum."""
    digest = new_hash()
    with opened(path) as file:
        for begin, size in ((0, position), (position + len(EMPTY), None)):
            file.seek(begin)
            if begin:
                digest.update(EMPTY.encode())
            left = size
            while block := file.read(_BLOCK if left is None else min(_BLOCK, left)):
                digest.update(block)
                left = None if left is None else left - len(block)
    return str(digest.hexdigest())
