"""The only place where artifacts reach the disk: every write, rename, sync and removal goes through `device`.

Tests replace `device` by one that fails, or kills the process, at a chosen operation. Libraries that open files by
name, such as safetensors, FAISS and Lucene, write within `by_name`; their files are synced like the others before they
get their final name.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, cast

from hybrid_cli.inputs.files import opened

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2
_HERE = -100  # AT_FDCWD
WRITTEN, REMOVED = "while writing ", "while removing "  # start of the note of an error; a path follows


class Disk:
    """The operations on files and folders."""

    def write(self, file: io.FileIO, data: memoryview) -> int:
        """Write some of `data`; return the number of bytes written."""
        return file.write(data) or 0

    def write_by_library(self, path: Path) -> None:
        """Note that a library is about to write `path`, a file or a folder, by its name."""

    def rename(self, source: Path, target: Path) -> None:
        """Give `source` the name `target`; a file of that name is replaced in the same step."""
        source.replace(target)

    def exchange(self, first: Path, second: Path) -> bool:
        """Swap two names in one step; return whether the system can (Linux)."""
        call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if call is None:
            return False
        if call(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE) == 0:
            return True
        if (code := ctypes.get_errno()) in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
            return False
        raise OSError(code, os.strerror(code), str(second))

    def sync(self, descriptor: int) -> None:
        """Wait until a file or folder is on the disk."""
        os.fsync(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name."""
        os.link(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file, a link or a folder, if it exists."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


device = Disk()


class _File(io.RawIOBase):
    """A new file whose writes go through `device`; a short write is continued."""

    def __init__(self, path: Path):
        remove(path)  # a file that is replaced may be hard-linked from another artifact
        self._path, self.failed = path, False
        with note_path(path):
            self._file = io.FileIO(path, "xb")

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        view = memoryview(data).cast("B")
        try:
            with note_path(self._path):
                _write_all(self._file, view)
        except BaseException:
            self.failed = True
            raise
        return len(view)

    def close(self) -> None:
        self._file.close()
        super().close()


def _write_all(file: io.FileIO, data: memoryview) -> None:
    """Write all of `data`: a short write is continued."""
    while data:
        data = data[device.write(file, data) :]


@contextmanager
def note_path(path: Path, doing: str = WRITTEN) -> Iterator[None]:
    """Note the path in an error of the block, which names none or another one, such as that of a scratch file."""
    try:
        yield
    except BaseException as error:  # libraries have classes of their own
        error.add_note(f"{doing}{path}")
        raise


@contextmanager
def create(path: Path) -> Iterator[BinaryIO]:
    """Yield a new binary file at `path`; a file of that name is removed first."""
    with _File(path) as file:
        try:
            yield cast(BinaryIO, file)
        except BaseException as error:
            if file.failed:  # polars raises an error of its own, without the note of the file
                error.add_note(f"{WRITTEN}{path}")
            raise


@contextmanager
def create_text(path: Path) -> Iterator[TextIO]:
    """Yield a new text file (UTF-8) at `path`; a file of that name is removed first."""
    with io.TextIOWrapper(io.BufferedWriter(_File(path)), "utf-8", newline="") as file:
        yield file


def write_text(path: Path, text: str) -> None:
    """Write a text file (UTF-8)."""
    with create(path) as file:
        file.write(text.encode())


class Growing:
    """A file that grows at its end; an addition is on the disk when `add` returns."""

    def __init__(self, path: Path):
        with note_path(path):
            self._path, self._file = path, io.FileIO(path, "ab")
        sync_names(path.parent)

    @property
    def size(self) -> int:
        """Return the number of bytes."""
        return os.fstat(self._file.fileno()).st_size

    def add(self, text: str) -> None:
        """Append a text (UTF-8); an error of the disk leaves the file unchanged."""
        before = self.size
        try:
            with note_path(self._path):
                _write_all(self._file, memoryview(text.encode()))
                device.sync(self._file.fileno())
        except OSError:
            self.cut(before)
            raise

    def cut(self, size: int) -> None:
        """Remove all bytes after the first `size`."""
        with note_path(self._path):
            self._file.truncate(size)
            device.sync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def patch(path: Path, position: int, data: bytes) -> None:
    """Replace some bytes of a new file."""
    with note_path(path), io.FileIO(path, "r+b") as file:
        file.seek(position)
        _write_all(file, memoryview(data))


@contextmanager
def by_name(path: Path) -> Iterator[Any]:
    """Yield `path` as text, for a library that opens the file, or the files of a folder, itself."""
    with note_path(path):
        device.write_by_library(path)
        yield str(path)
    for file in [path, *path.rglob("*")]:
        if file.is_file() and file.stat().st_mode & 0o077 == 0:  # of safetensors: only for its owner
            file.chmod(_mode_of_new_files())


def _mode_of_new_files() -> int:
    """Return the permissions that this process gives to a new file."""
    try:
        status = Path("/proc/self/status").read_text("utf-8")
        mask = int(status.partition("\nUmask:")[2].split()[0], 8)
    except (OSError, IndexError):  # another system than Linux, where only a change returns the mask
        mask = os.umask(0o077)
        os.umask(mask)
    return 0o666 & ~mask


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it exists."""
    with note_path(path, REMOVED):
        device.remove(path)


def copy(source: Path, target: Path) -> None:
    """Copy the content of a file."""
    with opened(source) as old, create(target) as file:
        shutil.copyfileobj(old, file, 1 << 20)


def sync(path: Path) -> None:
    """Wait until a file, or a folder with everything below it, is on the disk."""
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            sync_names(Path(folder, name))
        sync_names(Path(folder))
    if not path.is_dir():
        sync_names(path)


def sync_names(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk."""
    with note_path(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            device.sync(descriptor)
        finally:
            os.close(descriptor)
