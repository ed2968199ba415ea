"""Outputs of stages: checked and locked before any work, written under a scratch name, renamed when complete."""

from __future__ import annotations

import json
import os
import shutil
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow as pa
from filelock import BaseFileLock, FileLock, Timeout

from hybrid_cli import console
from hybrid_cli.artifacts import files
from hybrid_cli.artifacts.manifest import (
    FORMAT,
    MANIFEST,
    Manifest,
    Named,
    describe_inputs,
    file_names,
    find_manifest,
    foreign_file,
    hash_folder,
    new_hash,
)
from hybrid_cli.artifacts.schemas import SCHEMAS, Kind
from hybrid_cli.artifacts.tables import write_parquet
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.settings.common import Writes
from hybrid_cli.settings.stage import at_stage_end

_SUFFIXES = {Kind.WEIGHTS: ".json", Kind.REPORT: ".html", Kind.LABELS: ""}  # teacher labels are a folder of tables
_KEY = ".key"  # in an unfinished folder: inputs and options of the call that created it
_LIBRARIES = (
    "hybrid",
    "torch",
    "transformers",
    "pyserini",
    "faiss-cpu",
    "faiss-gpu",
    "pyarrow",
    "polars",
    "numpy",
    "sentencex",
    "altair",
)


class DryRun(Exception):
    """Raised by `open_output` under `dry_run()`: all checks passed, nothing is written."""

    def __init__(self, output: Output):
        super().__init__(str(output.path))
        self.output = output


_dry: ContextVar[bool] = ContextVar("dry", default=False)


@contextmanager
def dry_run(dry: bool = True) -> Iterator[None]:
    """Within this context, a stage raises `DryRun` after the checks of its output."""
    token = _dry.set(dry)
    try:
        yield
    finally:
        _dry.reset(token)


@dataclass(eq=False)
class Output:
    """The output of a stage.

    Unless the output is up to date, its path is locked until it is written, the stage ends, or the object is deleted.

    Attributes:
        path: final path of the artifact.
        manifest: manifest without counts and fingerprint.
        up_to_date: whether the artifact exists, made from the same inputs with the same options.
    """

    path: Path
    manifest: Manifest
    up_to_date: bool = False
    started: float = field(default_factory=time.monotonic)
    _unlock: weakref.finalize[..., Any] | None = None

    @property
    def partial(self) -> Path:
        """Scratch file or folder next to the output. A folder survives a kill, so that the stage can resume from it."""
        return files.scratch_path(self.path)

    def write(self, batches: Iterable[pa.RecordBatch | pa.Table], **counts: Any) -> Manifest:
        """Write a Parquet artifact; rows are checked against the schema of its kind."""
        with self.scratch() as scratch:
            return write_parquet(scratch, batches, SCHEMAS[self.manifest.kind], self._with(counts))

    def write_json(self, content: Mapping[str, Any], **counts: Any) -> Manifest:
        """Write a small artifact as JSON, its manifest under the key `manifest`."""
        digest = new_hash()
        digest.update(json.dumps(content, sort_keys=True).encode())
        manifest = replace(self._with(counts), fingerprint=digest.hexdigest())
        with self.scratch() as scratch:
            text = json.dumps({**content, "manifest": manifest.to_dict()}, indent=2, ensure_ascii=False)
            scratch.write_text(text + "\n", "utf-8")
        return manifest

    def write_html(self, page: str, **counts: Any) -> Manifest:
        """Write a page, its manifest as a data block at the end of its head."""
        digest = new_hash()
        digest.update(page.encode())
        manifest = replace(self._with(counts), fingerprint=digest.hexdigest())
        with self.scratch() as scratch:
            scratch.write_text(page.replace("</head>", f"{manifest.to_html()}</head>", 1), "utf-8")
        return manifest

    @contextmanager
    def folder(self, ignore: Sequence[str] = (), **counts: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield a scratch folder and the counts to fill in; the folder is renamed if the block succeeds.

        The scratch folder still holds the files of an earlier, interrupted run with the same inputs and options. It is
        removed after an InputError. Hidden files are removed at the end.

        Args:
            ignore: files and folders that do not enter the fingerprint.
        """
        work = self.partial
        key = work / _KEY
        with self._locked():
            if work.exists() and not (key.is_file() and key.read_text("utf-8") == self.manifest.key()):
                files.remove(work)
            if not work.exists():
                work.mkdir(parents=True)
                key.write_text(self.manifest.key(), "utf-8")
            try:
                yield work, counts
            except InputError:  # repeating the command cannot succeed
                shutil.rmtree(work, ignore_errors=True)
                raise
            seconds = round(time.monotonic() - self.started, 1)
            fingerprint = hash_folder(work, ignore)
            _refuse_foreign_file(self.path, _existing(self.path))  # a file that was added while the stage ran
            names = [name for name in file_names(work) if not name.startswith(".")]
            manifest = replace(self._with(counts), fingerprint=fingerprint, seconds=seconds, files=names)
            (work / MANIFEST).write_text(manifest.to_json(), "utf-8")
            for hidden in (key, *work.glob(".*")):  # removed first: a folder without key is never resumed
                files.remove(hidden)
            self._publish(work)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a scratch path, which is renamed to the output if the block succeeds; for files without a manifest."""
        with self._locked():
            files.remove(self.partial)
            try:
                yield self.partial
                self._publish(self.partial)
            except BaseException:
                files.remove(self.partial)
                raise

    def _with(self, counts: dict[str, Any]) -> Manifest:
        return replace(self.manifest, counts=counts)

    def _publish(self, complete: Path) -> None:
        files.rename(complete, self.path)

    # ---------------------------------------------------------------------------------------------------------- lock

    def lock(self) -> None:
        """Lock the output path.

        Raises:
            HybridError: another process, or another `Output` of this one, has the lock.
        """
        if self._unlock is not None and self._unlock.alive:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.partial.with_name(self.partial.name + ".lock"), blocking=False, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            raise HybridError(
                f"{self.path}: another hybrid process is writing this output; wait for it, or stop it"
            ) from None
        self._unlock = weakref.finalize(self, _unlock, lock, os.getpid())

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._unlock is not None:
            self._unlock()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.lock()
        try:
            yield
        finally:
            self.release()


def _unlock(lock: BaseFileLock, process: int) -> None:
    if os.getpid() == process:  # a forked process shares the lock and must not remove the file
        Path(lock.lock_file).unlink(missing_ok=True)  # under the lock; another process then opens a new file
        lock.release()


def output_of(
    settings: Writes, kind: Kind, inputs: Mapping[str, Path | Named], options: Mapping[str, Any] | None = None
) -> Output:
    """Open the output of a command; see `open_output`.

    Args:
        settings: settings of the command, with output path and `overwrite`.
        kind: kind of the artifact.
        inputs: role -> path of each input that affects the result.
        options: other values that affect the result; None for the recorded options of the settings.
    """
    recorded = settings.recorded() if options is None else options
    return open_output(
        settings.output, kind, settings.command, inputs=inputs, options=recorded, overwrite=settings.overwrite
    )


def open_output(
    path: Path,
    kind: Kind,
    stage: str,
    *,
    inputs: Mapping[str, Path | Named],
    options: Mapping[str, Any],
    overwrite: bool = False,
    foreign: bool = False,
) -> Output:
    """Check and lock the output of a stage before its work.

    Args:
        path: output path.
        inputs: role -> path of each input that affects the result.
        options: other values that affect the result, as JSON: no threads, devices, verbosity or paths.
        overwrite: replace an existing output, even if it is up to date.
        foreign: the output has the format of another tool: any file extension, no manifest.

    Raises:
        InputError: the path cannot be written, or is in use and `overwrite` is false.
        HybridError: another process is writing the same output.
        DryRun: within `dry_run()`.
    """
    if not foreign:
        _check_name(path, kind)
    wanted = Manifest(
        kind,
        stage,
        json.loads(json.dumps(dict(options))),
        describe_inputs(inputs, path),
        versions=_versions(),
        location=path.parent.resolve() / path.name,
    )
    output = Output(path, wanted)
    at_stage_end(output.release)
    try:
        if files.interrupted(path):
            output.lock()
            files.restore(path)
        _check(output, inputs, overwrite, foreign)
        if _dry.get():
            raise DryRun(output)
        if not output.up_to_date and not _is_follower():
            output.lock()
            _check(output, inputs, overwrite, foreign)  # another process may have finished this output meanwhile
    except BaseException:
        output.release()
        raise
    if output.up_to_date:
        output.release()
        with suppress(OSError):  # so that make sees a file newer than its inputs; the file system may be read-only
            path.touch()
            if path.is_dir():
                (path / MANIFEST).touch()
        console.note(f"{stage}: {path} is up to date")
    return output


def _check(output: Output, inputs: Mapping[str, Path | Named], overwrite: bool, foreign: bool) -> None:
    """Set `up_to_date`; refuse an output that may not be replaced."""
    path, wanted = output.path, output.manifest
    existing = _existing(path)
    output.up_to_date = existing is not None and existing.key() == wanted.key() and not overwrite
    if output.up_to_date:
        return
    _check_place(path, inputs)
    _refuse_foreign_file(path, existing)
    if foreign and path.exists() and not path.is_file() and not _is_empty_folder(path):
        raise InputError(f"{path}: not a regular file, and --overwrite replaces files only; name another output")
    if path.exists() and not overwrite:
        raise InputError(f"{path}: {_difference(existing, wanted)}; pass --overwrite to replace it, or name another")
    if existing is None and path.is_dir() and not _is_empty_folder(path):
        raise InputError(f"{path}: is a folder that hybrid did not write; remove it, or name another")


def _refuse_foreign_file(path: Path, existing: Manifest | None) -> None:
    """Refuse to replace a folder with files that hybrid did not write."""
    if existing is not None and (name := foreign_file(path, existing)):
        raise InputError(f"{path}: {name} is not part of the {existing.kind}; move it, or name another output")


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _is_follower() -> bool:
    """Return whether another process of the torchrun group writes the output."""
    return os.environ.get("RANK", "0") != "0"


def _check_name(path: Path, kind: Kind) -> None:
    """Refuse a file extension that does not match the kind: readers locate the manifest by the extension."""
    suffix = _SUFFIXES.get(kind, ".parquet" if kind in SCHEMAS else "")
    if not path.name.endswith(suffix):
        raise InputError(f"{path}: the name must end with {suffix}")


def _check_place(path: Path, inputs: Mapping[str, Path | Named]) -> None:
    """Refuse an output that cannot be written, or that would replace an input."""
    place = path.resolve()
    for role, source in inputs.items():
        source_path = source.path if isinstance(source, Named) else source
        if source_path.resolve().is_relative_to(place):
            raise InputError(
                f"{path}: replacing it would remove the input '{role}' ({source_path}); name another output"
            )
    folder = next(parent for parent in place.parents if parent.exists())
    if not folder.is_dir():
        raise InputError(f"{folder}: is a file, so it cannot contain {path}; name another output")
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise InputError(f"{folder}: not writable; name another output, or change the permissions of the folder")


def _existing(path: Path) -> Manifest | None:
    if not path.exists():
        return None
    try:
        return find_manifest(path, any_format=True)
    except InputError:
        return None


def _difference(existing: Manifest | None, wanted: Manifest) -> str:
    """Return the difference between the existing output and the requested one, in words."""
    if existing is None:
        return "already exists, without a manifest of hybrid"
    if existing.kind != wanted.kind or existing.stage != wanted.stage:
        return f"already exists: {existing.kind.phrase} made by `{existing.stage}`"
    if existing.format != FORMAT:
        return f"already exists, written by an older hybrid (manifest format {existing.format}, now {FORMAT})"
    options = [
        f"{name}={existing.options.get(name)!r}, now {wanted.options.get(name)!r}"
        for name in sorted({*existing.options, *wanted.options})
        if existing.options.get(name) != wanted.options.get(name)
    ]
    inputs = [
        f"input '{role}' has changed"
        for role in sorted({*existing.inputs, *wanted.inputs})
        if existing.inputs.get(role, {}).get("fingerprint") != wanted.inputs.get(role, {}).get("fingerprint")
    ]
    return "already exists with other options or inputs: " + "; ".join([*options, *inputs])


def _versions() -> dict[str, str]:
    from hybrid_cli.version import __version__

    found = {"hybrid": __version__}
    for library in _LIBRARIES[1:]:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found
