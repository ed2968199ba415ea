"""Files and folders: atomic replacement, hard links, sizes."""

from __future__ import annotations

import filecmp
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hybrid_cli.errors import HybridError
from hybrid_cli.storage import disk
from hybrid_cli.storage.disk import remove
from hybrid_cli.storage.records import MANIFEST


def scratch_path(path: Path) -> Path:
    """Return the hidden path next to `path` where a file is written before it is renamed."""
    return path.with_name(f".{path.name}.partial")


def lock_file(path: Path) -> Path:
    """Return the path of the lock of `path`, next to it."""
    return path.with_name(f"{scratch_path(path).name}.lock")


def cache_folder() -> Path:
    """Return the folder of the cache: `HYBRID_CACHE`, else `hybrid` in the user's cache."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.realpath(Path(os.environ.get("HYBRID_CACHE") or f"{caches}/hybrid").expanduser()))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a scratch path next to `path`, for a file or a folder; it is renamed to `path` if the block succeeds.

    After an error the scratch is removed and `path` is as before. A kill leaves the scratch, which the next call
    removes, and either the old or the new content of `path`; call `restore` before `path` is read.
    """
    scratch = scratch_path(path)
    remove(scratch)
    try:
        yield scratch
        rename(scratch, path)
    except BaseException:
        remove(scratch)
        raise


def rename(scratch: Path, path: Path) -> None:
    """Give a complete file or folder its name, in place of the present owner of the name.

    Content reaches the disk before its name, so that a power failure leaves no incomplete artifact either. A file is
    replaced in one step, a folder too where the system can swap names; elsewhere its old content is kept under another
    name between two steps, see `restore`.
    """
    disk.sync(scratch)
    old = old_path(path)
    remove(old)
    folders = path.is_dir() or (path.exists() and scratch.is_dir())
    with disk.note_path(path):
        if not (folders and disk.device.exchange(scratch, path)):
            if folders:
                disk.device.rename(path, old)
            disk.device.rename(scratch, path)
    disk.sync_names(path.parent)
    remove(scratch)  # the old content, after a swap
    remove(old)


def refuse_planted(path: Path) -> None:
    """Refuse scratch files of `path` that this user did not write: in a shared folder, others know their names.

    Raises:
        HybridError: names a link, a lock that is no plain file, or a file or folder of another user.
    """
    scratch, lock = scratch_path(path), lock_file(path)
    inside = (Path(folder, name) for folder, *names in os.walk(scratch) for name in (*names[0], *names[1]))
    for file in (lock, old_path(path), scratch, *(() if scratch.is_symlink() else inside)):
        if os.path.lexists(file) and (reason := _planted_reason(file, file == lock)):
            problem = f"{file}: {reason}, so it may be of another user; remove it, or name another output"
            raise HybridError(problem, code="planted-scratch-file", path=file)


def _planted_reason(file: Path, is_lock: bool) -> str:
    status = os.lstat(file)
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link"
    if is_lock and not (stat.S_ISREG(status.st_mode) and status.st_nlink == 1):
        return "is not a plain file with one name"
    return "" if _is_own(status, file.parent) else "belongs to another user"


def _is_own(status: os.stat_result, folder: Path) -> bool:
    """Return whether a file belongs to the user who owns new files in a folder."""
    return status.st_uid == os.geteuid() or status.st_uid == _owner_of_new_files(folder)


def _owner_of_new_files(folder: Path) -> int:
    """Return the owner that the file system gives to a new file; on some network disks, another than this user."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_uid
    except OSError:
        return os.geteuid()


def restore(path: Path) -> None:
    """Undo a replacement that was killed, or finish it if it was killed after both of its renames.

    Only the holder of the lock of `path` may call this: a replacement in progress looks the same.
    """
    restore_name(path)
    remove(scratch_path(path))


def restore_name(path: Path) -> None:
    """Give `path` its old content back if a replacement was killed between its two renames; keep its scratch path."""
    if old_path(path).exists() and not path.exists():
        with disk.note_path(path):
            disk.device.rename(old_path(path), path)
    remove(old_path(path))


def old_path(path: Path) -> Path:
    """Return the path of the old content of `path` while it is replaced."""
    return path.with_name(f".{path.name}.old")


def hard_link(path: Path, link: Path, copy_manifest: Callable[[Path, Path], None] | None = None) -> None:
    """Give a file or folder a second name, as a copy where the file system has no hard links.

    A file of another user is copied too: its owner could change it, and it would look like a planted scratch file.
    Files are replaced and never changed in place, so neither name can change the content of the other. Files that
    exist under `link` are kept.

    Args:
        path: the file or folder.
        link: its second name.
        copy_manifest: writes the manifest at the first path to the second one; None leaves out manifests.
    """
    for file in (path, *sorted(path.rglob("*"))):
        target = link / file.relative_to(path)
        if file.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif file.name == MANIFEST:
            if copy_manifest is not None and not target.exists():
                copy_manifest(file, target)
        elif not target.exists():
            _link(file, target)


def _link(file: Path, target: Path) -> None:
    if _is_own(os.stat(file), target.parent):
        with suppress(OSError):
            disk.device.link(file.resolve(), target)  # a link of the Hugging Face cache is relative
            return
    with replacing(target) as scratch:
        disk.copy(file, scratch)


def sizes(path: Path) -> dict[str, int]:
    """Return name -> bytes of a file, or of each entry of a folder (names of folders end with `/`)."""
    if path.is_file():
        return {path.name: path.stat().st_size}
    by_name = {}
    for part in sorted(path.iterdir()):
        files = part.rglob("*") if part.is_dir() else [part]
        by_name[part.name + ("/" if part.is_dir() else "")] = sum(f.stat().st_size for f in files if f.is_file())
    return by_name


def is_empty_folder(path: Path) -> bool:
    """Return whether `path` is a folder without files."""
    return path.is_dir() and not any(path.iterdir())


def equal(first: Path, second: Path) -> bool:
    """Return whether two files have the same bytes, or two folders the same files with the same bytes."""
    if first.is_file() or second.is_file():
        return first.is_file() and second.is_file() and filecmp.cmp(first, second, shallow=False)
    names = [
        sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file()) for folder in (first, second)
    ]
    return names[0] == names[1] and all(equal(first / name, second / name) for name in names[0])
