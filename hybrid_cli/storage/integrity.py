"""Checks of artifacts against their checksums: before they are read, and by `hybrid inspect --verify`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from hybrid_cli.errors import DamageError, HybridError, InputError
from hybrid_cli.storage.records import (
    MANIFEST,
    Record,
    compare_checksum,
    find_as,
    find_record,
    fingerprint,
)
from hybrid_cli.threads import ThreadPool

CHECKED_BYTES = (
    1 << 30
)  # larger files are checked by `inspect --verify` only: a search must not read all of a large index
QUICK_BYTES = 1 << 26  # larger files of an output that is up to date are compared by their sizes
_THREADS = 4
checked: set[tuple[str, int, int, int]] = set()


def check_file(path: Path) -> None:
    """Compare a Parquet file with the checksum in it, once in a process.

    Raises:
        DamageError: they differ.
    """
    if not path.is_file() or path.suffix != ".parquet":
        return
    if (state := _state(path)) not in checked:
        compare_checksum(path)
        checked.add(state)


def check_parts(folder: Path, *parts: str) -> None:
    """Compare files of an artifact with its manifest, once in a process; files over `CHECKED_BYTES` are skipped.

    Args:
        folder: folder of an artifact, or of a part of one. Without manifest, nothing is checked.
        parts: files and folders in `folder`; all without any.

    Raises:
        DamageError: a file is missing or differs.
    """
    root = next(
        (candidate for candidate in (folder, *folder.absolute().parents[:2]) if (candidate / MANIFEST).is_file()), None
    )
    known = (find_record(root) if root else None) or None
    if root is None or known is None or known.checksums is None:
        return
    inside = folder.absolute().relative_to(root.absolute()).as_posix()
    wanted = [part if inside == "." else f"{inside}/{part}" for part in parts] or [inside]
    files = {
        root / name: value
        for name, value in known.checksums.items()
        if any(part == "." or name == part or name.startswith(f"{part}/") for part in wanted)
    }
    with ThreadPool(_THREADS) as pool:
        for file, problem in zip(files, pool.map(_small_damage, files, files.values()), strict=True):
            if problem is not None:
                raise DamageError(problem, code="damaged", path=file)


def check_listed(root: Path, parts: Sequence[Path], pattern: str) -> None:
    """Compare the parts of an artifact with the files that its manifest names.

    Args:
        root: folder of the artifact. Without a manifest that names parts, nothing is checked.
        parts: the parts that exist.
        pattern: pattern of the names of parts, relative to `root`.

    Raises:
        DamageError: a part is missing, or does not belong to the artifact.
    """
    known = find_record(root)
    if known is None or known.files is None:
        return
    listed = {root / name for name in known.files if PurePosixPath(name).match(pattern)}
    if listed and (lost := sorted(listed - set(parts))):
        raise DamageError(_missing(lost[0]), code="damaged", path=lost[0])
    if listed and (foreign := sorted(set(parts) - listed)):
        problem = f"{foreign[0]}: is not part of the artifact; remove it, or rebuild the artifact"
        raise DamageError(problem, code="foreign-file", path=foreign[0])


def refuse_lost(paths: Iterable[Path]) -> None:
    """Refuse to publish an output from which one of these files was removed after it was written.

    Raises:
        HybridError: a file is missing.
    """
    if lost := next((path for path in paths if not path.exists()), None):
        problem = f"{lost}: was removed while the command ran; repeat the command"
        raise HybridError(problem, code="removed-meanwhile", path=lost)


def refuse_lost_rows(path: Path, what: str, count: int, expected: int) -> None:
    """Refuse to publish an output with another number of rows than the stage has read or computed.

    Raises:
        HybridError: the numbers differ.
    """
    if count != expected:
        problem = f"{path}: {count:,} {what} instead of {expected:,}: files were removed meanwhile; repeat the command"
        raise HybridError(problem, code="rows-lost", path=path)


@contextmanager
def one_version(folder: Path, record: Record | None) -> Iterator[None]:
    """Refuse what the block read if another command replaced the artifact meanwhile: its files may be of two versions.

    Args:
        folder: folder of the artifact.
        record: record that was read first; None for a folder without one.

    Raises:
        HybridError: the folder now has other content.
    """
    try:
        yield
    except (InputError, OSError):
        _refuse_other_version(folder, record)
        raise
    _refuse_other_version(folder, record)


def _refuse_other_version(folder: Path, record: Record | None) -> None:
    if record is None:
        return
    try:
        now = find_record(folder)
    except DamageError:
        return  # reported by the check of the files
    except InputError:
        now = None
    if now is None or now.fingerprint != record.fingerprint:
        raise replaced_error(folder)


def replaced_error(path: Path) -> HybridError:
    """Return the error about an input that another command replaced while it was read."""
    problem = f"{path}: was replaced while it was read; run the command again"
    return HybridError(problem, code="input-replaced", path=path)


def _missing(file: Path) -> str:
    return f"{file}: is missing; restore or rebuild the artifact"


def _small_damage(file: Path, value: str) -> str | None:
    if file.is_file() and (file.stat().st_size > CHECKED_BYTES or _state(file) in checked):
        return None
    problem = _damage(file, value)
    if problem is None:
        checked.add(_state(file))
    return problem


def _damage(file: Path, value: str) -> str | None:
    """Return the fault of a file whose fingerprint should be `value`."""
    if not file.is_file():
        return _missing(file)
    try:
        if file.suffix == ".parquet":
            compare_checksum(file)
        actual = fingerprint(file)
    except InputError as error:
        return str(error)
    if actual == value:
        return None
    return f"{file}: the content changed on the disk after it was written; restore it"


def quick_damage(path: Path, record: Record) -> str | None:
    """Return the first fault of an artifact that is found without reading its large files.

    Files up to `QUICK_BYTES` are compared with their checksums, others with their sizes.
    """
    if path.is_file():
        return next(damage(path, record), None) if path.stat().st_size <= QUICK_BYTES else None
    if lost := next((name for name in record.files or () if not (path / name).exists()), None):
        return _missing(path / lost)
    for name, size in (record.sizes or {}).items():
        if (actual := (path / name).stat().st_size) != size:
            return f"{path / name}: has {actual:,} bytes instead of {size:,}; restore it"
    small = {path / name: value for name, value in (record.checksums or {}).items()}
    small = {file: value for file, value in small.items() if file.is_file() and file.stat().st_size <= QUICK_BYTES}
    with ThreadPool(_THREADS) as pool:
        return next((problem for problem in pool.map(_small_damage, small, small.values()) if problem), None)


def _state(path: Path) -> tuple[str, int, int, int]:
    status = path.stat()
    return str(path.absolute()), status.st_ino, status.st_mtime_ns, status.st_size


def damage(path: Path, record: Record) -> Iterator[str]:
    """Yield the faults of an artifact, one line for each file; everything is read."""
    if path.is_file():
        # a page and JSON are compared with their fingerprints whenever their records are read
        if path.suffix == ".parquet" and (problem := _damage(path, record.fingerprint)):
            yield problem
        return
    for name in record.files or ():
        if not (path / name).exists():
            yield _missing(path / name)
        elif name.endswith(f"/{MANIFEST}"):  # of a part that is an artifact itself; it has a checksum of its own
            try:
                find_as(Record, (path / name).parent, any_format=True)
            except InputError as error:
                yield str(error)
    listed = record.checksums or {}
    for name, value in listed.items():
        if (path / name).exists() and (problem := _damage(path / name, value)):
            yield problem
