"""Scratch folders of outputs that a process did not finish: an equal call continues them."""

from __future__ import annotations

from pathlib import Path

from hybrid_cli.artifacts.manifest import read_manifest
from hybrid_cli.errors import InputError
from hybrid_cli.storage import disk, files
from hybrid_cli.storage.integrity import damage
from hybrid_cli.storage.records import MANIFEST

KEY = ".key"  # in an unfinished folder: `Manifest.call` of the call that created it


def restore(path: Path, call: str) -> None:
    """Restore an output after a kill, see `files.restore`; keep a scratch folder that a call can continue.

    Args:
        path: the output, whose lock is held.
        call: `Manifest.call` of the current call; its finished folder is kept, see `is_finished`.
    """
    files.restore_name(path)
    scratch = files.scratch_path(path)
    if not _resumable(scratch) and not is_finished(scratch, call):
        disk.remove(scratch)


def leftovers(path: Path) -> bool:
    """Return whether a killed process left files that no call resumes from, or a process is writing `path`."""
    scratch = files.scratch_path(path)
    return (
        files.old_path(path).exists()
        or files.lock_file(path).exists()
        or (scratch.exists() and not _resumable(scratch))
    )


def _resumable(scratch: Path) -> bool:
    return (scratch / KEY).is_file()


def is_interrupted(scratch: Path, call: str) -> bool:
    """Return whether `scratch` is the unfinished folder of an equal call."""
    return unfinished_call(scratch) == call


def unfinished_call(scratch: Path) -> str | None:
    """Return the key of the call that left an unfinished folder; None for other folders."""
    return (scratch / KEY).read_text("utf-8") if _resumable(scratch) else None


def is_finished(scratch: Path, call: str) -> bool:
    """Return whether `scratch` is the complete folder of a call that was killed before the folder got its name."""
    if _resumable(scratch) or not (scratch / MANIFEST).is_file():
        return False
    try:
        manifest = read_manifest(scratch)
    except InputError:
        return False
    return manifest.call() == call and next(damage(scratch, manifest), None) is None


def discard(work: Path) -> None:
    """Remove an unfinished folder; a half-removed one has no key, so it is never resumed."""
    disk.remove(work / KEY)
    disk.remove(work)
