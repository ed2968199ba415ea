"""Files and folders: atomic replacement, hard links, sizes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hybrid_cli.artifacts.manifest import MANIFEST, read_manifest


def scratch_path(path: Path) -> Path:
    """Return the hidden path next to `path` where a file is written before it is renamed."""
    return path.with_name(f".{path.name}.partial")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a scratch path next to `path`, for a file or a folder; it is renamed to `path` if the block succeeds.

    After an error the scratch is removed and `path` is as before. A kill leaves the scratch, which the next call
    removes, and either the old or the new content of `path`; call `restore` before a folder is read.
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
    """Rename a complete file or folder, and replace an existing file or folder of that name."""
    old = _old(path)
    remove(old)
    if path.is_dir() or (path.exists() and scratch.is_dir()):  # only a file can be replaced in one step
        path.rename(old)
    scratch.replace(path)
    remove(old)


def restore(path: Path) -> None:
    """Undo a replacement that was interrupted between its two renames."""
    if interrupted(path):
        _old(path).rename(path)


def interrupted(path: Path) -> bool:
    """Return whether a replacement of `path` was interrupted between its two renames."""
    return _old(path).exists() and not path.exists()


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def hard_link(path: Path, place: Path) -> None:
    """Give a file or folder of an artifact a second name, as a copy where the file system has no hard links.

    Artifacts are replaced and never changed in place, so neither name can change the content of the other. Files that
    exist under `place` are kept. Manifests of folders are copied, with input paths relative to the new place.
    """
    for file in (path, *sorted(path.rglob("*"))):
        target = place / file.relative_to(path)
        if file.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif not target.exists():
            _link(file, target)


def _link(file: Path, target: Path) -> None:
    if file.name == MANIFEST:
        with replacing(target) as scratch:
            scratch.write_text(read_manifest(file.parent).moved_to(target.parent).to_json(), "utf-8")
        return
    try:
        os.link(file, target)
    except OSError:
        with replacing(target) as scratch:
            shutil.copy2(file, scratch)


def sizes(path: Path) -> dict[str, int]:
    """Return name -> bytes of a file, or of each entry of a folder (names of folders end with `/`)."""
    if path.is_file():
        return {path.name: path.stat().st_size}
    found = {}
    for part in sorted(path.iterdir()):
        files = part.rglob("*") if part.is_dir() else [part]
        found[part.name + ("/" if part.is_dir() else "")] = sum(f.stat().st_size for f in files if f.is_file())
    return found
