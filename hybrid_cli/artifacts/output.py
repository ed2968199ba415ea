"""Outputs of stages: checked and locked before any work, written under a scratch name, renamed when complete."""

from __future__ import annotations

import json
import os
import socket
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from filelock import BaseFileLock, FileLock, Timeout

from hybrid_cli import console, plugins
from hybrid_cli.artifacts.checks import (
    changed_between,
    check_name,
    check_output_path,
    check_replaceable,
    existing_manifest,
    is_kept,
    refuse_foreign_file,
    target_of,
)
from hybrid_cli.artifacts.inputs import Input, Sources
from hybrid_cli.artifacts.manifest import PLUGIN, Manifest, library_versions, read_manifest
from hybrid_cli.errors import DamageError, HybridError, InputError, path_error
from hybrid_cli.inputs.json_values import parse_json
from hybrid_cli.settings import MayWrite, Writes
from hybrid_cli.storage import SCHEMAS, Kind, disk, files, layout, records
from hybrid_cli.storage.integrity import damage
from hybrid_cli.storage.records import MANIFEST, hash_json
from hybrid_cli.storage.tables import write_parquet

KEY = ".key"  # in an unfinished folder: `Manifest.call` of the call that created it
_running: ContextVar[ExitStack | None] = ContextVar("running", default=None)
_nested: ContextVar[bool] = ContextVar("nested", default=False)


@contextmanager
def stage_scope() -> Iterator[None]:
    """Run the functions of `at_stage_end` when the block ends, also after an error."""
    with ExitStack() as functions:
        nested = _nested.set(_running.get() is not None)
        token = _running.set(functions)
        try:
            yield
        finally:
            _running.reset(token)
            _nested.reset(nested)


def is_nested() -> bool:
    """Return whether another stage calls the running one, which then suggests no further command."""
    return _nested.get()


def at_stage_end(function: Callable[[], object]) -> None:
    """Call `function` when the running stage ends, also after an error; ignored outside of a stage."""
    if (functions := _running.get()) is not None:
        functions.callback(function)


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
        path: final path of the artifact, as given.
        manifest: manifest without counts and fingerprint.
        target: the path that is written: where `path` is a symbolic link, the link stays and its target is replaced.
        up_to_date: whether the artifact exists, made from the same inputs with the same options.
        compare: an existing output is compared with the new one, and not replaced.
        sources: the inputs, each of one version.
    """

    path: Path
    manifest: Manifest
    target: Path
    up_to_date: bool = False
    compare: bool = False
    sources: Sources = field(default_factory=Sources)
    started: float = field(default_factory=time.monotonic)
    _unlock: weakref.finalize[..., Any] | None = None

    def note(self, text: str, **facts: object) -> None:
        """Print what was written, with facts for programs."""
        console.note(f"{self.manifest.stage}: {self.path}: {text}", code="written", path=self.path, **facts)

    @property
    def partial(self) -> Path:
        """Scratch file or folder next to the output. A folder survives a kill, so that the stage can resume from it."""
        return files.scratch_path(self.target)

    def write(self, batches: Iterable[pa.RecordBatch | pa.Table], *more: pa.Field, **counts: Any) -> Manifest:
        """Write a Parquet artifact; rows are checked against the schema of its kind, with `more` columns."""
        with self.scratch() as scratch:
            schema = pa.schema([*SCHEMAS[self.manifest.kind], *more])
            return write_parquet(scratch, batches, schema, self._with(counts))

    def write_part(self, path: Path, batches: Iterable[pa.RecordBatch | pa.Table], kind: Kind, **fields: Any) -> None:
        """Write a table in the scratch folder, whole or not at all, with a manifest that has other `fields`."""
        manifest = replace(self.manifest, kind=kind, location=path.resolve(), **fields)
        with files.replacing(path) as scratch:
            write_parquet(scratch, batches, SCHEMAS[kind], manifest)

    def write_json(self, content: Mapping[str, Any], **counts: Any) -> Manifest:
        """Write a small artifact as JSON, its manifest under the key `manifest`."""
        manifest = replace(self._with(counts), fingerprint=hash_json(content))
        with self.scratch() as scratch:
            text = json.dumps({**content, "manifest": manifest.to_dict()}, indent=2, ensure_ascii=False)
            disk.write_text(scratch, text + "\n")
        return manifest

    def write_html(self, page: str, **counts: Any) -> Manifest:
        """Write a page, its manifest as a data block at the end of its head."""
        digest = records.new_hash()
        digest.update(page.encode())
        manifest = replace(self._with(counts), fingerprint=digest.hexdigest())
        with self.scratch() as scratch:
            disk.write_text(scratch, page.replace("</head>", f"{manifest.to_html()}</head>", 1))
        return manifest

    @contextmanager
    def folder(self, ignore: Sequence[str] = (), **counts: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield a scratch folder and the counts to fill in; the folder is renamed if the block succeeds.

        The scratch folder still holds the files of an earlier, interrupted run with the same inputs and options. A new
        one is removed after an InputError. Hidden files are removed at the end.

        Args:
            ignore: files and folders that do not enter the fingerprint.
        """
        key = self.partial / KEY
        with self._locked():
            with self._resumed() as work:
                yield work, counts
            self._refuse_replaced_inputs()
            seconds = round(time.monotonic() - self.started, 1)
            refuse_foreign_file(self.path, existing_manifest(self.target))  # a file that was added while the stage ran
            manifest = records.of_folder(self._with(counts), work, ignore, seconds=seconds)
            disk.write_text(work / MANIFEST, manifest.to_json())
            disk.remove(key)  # first: a folder without key is never resumed
            self._publish_folder()

    @contextmanager
    def file_with_shards(self) -> Iterator[tuple[Path, Path]]:
        """Yield a scratch folder and the path in it of a file, which is the output if the block succeeds.

        As that of `folder`, the scratch folder survives an interruption.
        """
        with self._locked():
            with self._resumed() as work:
                yield work, work / self.target.name
            self._refuse_replaced_inputs()
            self._publish(work / self.target.name)
            _discard(work)

    @contextmanager
    def _resumed(self) -> Iterator[Path]:
        """Yield the scratch folder of an interrupted equal call, or a new one.

        A new one is removed after an InputError; one that an earlier call left is kept, for a call that succeeds.
        """
        work, key = self.partial, self.partial / KEY
        if work.exists() and _interrupted_call(work) != self.manifest.call():
            _discard(work)
        resumed = work.exists()
        if not resumed:
            work.mkdir(parents=True)
            disk.write_text(key, self.manifest.call())
        disk.remove(work / MANIFEST)  # of a call that failed while it wrote the manifest
        try:
            yield work
        except DamageError:  # the damaged file can be restored
            raise
        except InputError:
            if not resumed:
                _discard(work)
            raise

    def finish(self) -> None:
        """Publish a complete folder that an equal call left when it was killed; set `up_to_date`."""
        if _is_finished(self.partial, self.manifest.call()):
            self._publish_folder()
            self.up_to_date = True

    def _publish_folder(self) -> None:
        for hidden in self.partial.glob(".*"):
            disk.remove(hidden)
        self._publish(self.partial)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a scratch path, which is renamed to the output if the block succeeds; for files without a manifest."""
        with self._locked():
            disk.remove(self.partial)
            try:
                yield self.partial
                self.sources.refuse_replaced()
                if self.compare and self.path.exists() and not files.is_empty_folder(self.path):
                    self._compare()
                    return
                self._publish(self.partial)
            except BaseException:
                disk.remove(self.partial)
                raise

    def _refuse_replaced_inputs(self) -> None:
        """Refuse an output of two versions of an input, and discard its scratch folder: no call may resume from it."""
        try:
            self.sources.refuse_replaced()
        except HybridError:
            if not (self.partial / layout.CHECKPOINT).is_dir():  # else nothing was written from the new version
                _discard(self.partial)
            raise

    def inputs_are_read(self) -> None:
        """Note that no input will be read from now on; refuse the output if one was replaced meanwhile."""
        self._refuse_replaced_inputs()
        self.sources = Sources()

    def _compare(self) -> None:
        """Keep an existing output that equals the new one; refuse another one."""
        if not files.equal(self.partial, self.target):
            remedy = "name another output" if self.path.is_dir() else "pass --overwrite to replace it, or name another"
            raise path_error(self.path, f"already exists with other content; {remedy}", code="output-differs")
        disk.remove(self.partial)
        text = f"{self.manifest.stage}: {self.path} is up to date"
        console.note(text, code="up-to-date", stage=self.manifest.stage, path=self.path)

    def _with(self, counts: dict[str, Any]) -> Manifest:
        return replace(self.manifest, counts=counts, versions={**self.manifest.versions, **plugins.used_versions()})

    def _publish(self, complete: Path) -> None:
        files.rename(complete, self.target)
        self.sources.set_later(self.target)

    # ---------------------------------------------------------------------------------------------------------- lock

    def lock(self) -> None:
        """Lock the output path.

        Raises:
            HybridError: another process, or another `Output` of this one, has the lock.
        """
        if self._unlock is not None and self._unlock.alive:
            return
        lock = _acquire_lock(self.path, self.target)
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


def _acquire_lock(path: Path, target: Path) -> BaseFileLock:
    """Return the lock of an output path, acquired; its file names the process and the host."""
    file = files.lock_file(target)
    files.refuse_planted(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _write_lock(file, os.O_CREAT)  # first: the library takes a file that cannot be created for one that is held
    except (FileNotFoundError, PermissionError) as error:
        reason = (error.strerror or str(error)).lower()
        problem = f"no file can be created in {target.parent} ({reason}); name another output"
        raise path_error(path, problem, code="not-writable") from None
    lock = FileLock(file, blocking=False, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        problem = f"{path}: another hybrid process is writing this output{_holder(file)}; wait for it, or stop it"
        raise HybridError(problem, code="locked", path=path) from None
    with suppress(OSError):  # the lock holds without its text, for example on a full disk
        _write_lock(file, os.O_TRUNC, f"{os.getpid()}\n{socket.gethostname()}\n")
    return lock


def _write_lock(file: Path, flag: int, text: str = "") -> None:
    """Write into the file of a lock; never into the target of a link."""
    with disk.note_path(file):
        descriptor = os.open(file, os.O_WRONLY | flag | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def _holder(lock: Path) -> str:
    """Return process and host of the holder of a lock; empty if its file does not name them."""
    try:
        process, host = lock.read_text("utf-8").split()[:2]
    except (OSError, ValueError):  # released meanwhile, or taken but not yet named
        return ""
    return f" (process {process} on {host})"


def lock_growing(path: Path) -> None:
    """Lock a file that the running stage extends in place, until the stage ends.

    Raises:
        InputError: the path cannot be written.
        HybridError: another process has the lock.
    """
    target = target_of(path)
    check_output_path(path, {})
    lock, process = _acquire_lock(path, target), os.getpid()
    at_stage_end(lambda: _unlock(lock, process))


def _unlock(lock: BaseFileLock, process: int) -> None:
    if os.getpid() == process:  # a forked process shares the lock and must not remove the file
        try:
            disk.remove(Path(lock.lock_file))  # under the lock; another process then opens a new file
        finally:
            lock.release()


def output_of(
    settings: Writes | MayWrite,
    kind: Kind,
    inputs: Mapping[str, Input],
    options: Mapping[str, Any] | None = None,
    stage: str | None = None,
    **how: bool,
) -> Output:
    """Open the output of a command; see `open_output`.

    Args:
        settings: settings of the command, with output path and `overwrite`.
        kind: kind of the artifact.
        inputs: role -> path of each input that affects the result.
        options: other values that affect the result; None for the recorded options of the settings.
        stage: name in the manifest; None for that of the command.
        how: `foreign` and `compare`.
    """
    recorded, path = settings.recorded() if options is None else options, settings.output or Path()
    return open_output(
        path, kind, stage or settings.command, inputs=inputs, options=recorded, overwrite=settings.overwrite, **how
    )


def open_output(
    path: Path,
    kind: Kind,
    stage: str,
    *,
    inputs: Mapping[str, Input],
    options: Mapping[str, Any],
    overwrite: bool = False,
    foreign: bool = False,
    compare: bool = False,
) -> Output:
    """Check and lock the output of a stage before its work.

    Args:
        path: output path.
        inputs: role -> path of each input that affects the result.
        options: other values that affect the result, as JSON: no threads, devices, verbosity or paths.
        overwrite: replace an existing output, even if it is up to date.
        foreign: the output has the format of another tool: any file extension, no manifest.
        compare: an existing foreign output is up to date if its content equals the new one; see `Output.scratch`.

    Raises:
        InputError: the path cannot be written, or is in use and `overwrite` is false.
        HybridError: another process is writing the same output.
        DryRun: within `dry_run()`.
    """
    inputs = {**inputs, **{f"{PLUGIN}{file.name}": file for file in plugins.files()}}
    target = target_of(path)
    if not foreign:
        check_name(path, kind)
    sources = Sources(inputs)
    wanted = Manifest(
        kind,
        stage,
        json.loads(json.dumps(dict(options))),
        sources.describe(path),
        versions=library_versions(),
        location=Path(os.path.realpath(target)),
    )
    output = Output(path, wanted, target, compare=compare and not overwrite, sources=sources)
    at_stage_end(output.release)
    try:
        if _has_leftovers(target) and not _dry.get() and not _is_follower():
            with suppress(HybridError, OSError):  # in use, or read-only
                output.lock()
                _restore(target, wanted.call())
        _check(output, inputs, overwrite, foreign)
        if _dry.get():
            raise DryRun(output)
        if not output.up_to_date and not _is_follower():
            output.lock()
            _check(output, inputs, overwrite, foreign)  # another process may have finished this output meanwhile
            if not output.up_to_date:
                output.finish()
    except BaseException:
        output.release()
        raise
    if output.up_to_date:
        call = wanted.call()
        if _is_finished(output.partial, call) or _interrupted_call(output.partial) == call:  # by a killed equal call
            with suppress(HybridError, OSError):
                output.lock()
                disk.remove(output.partial)
        output.release()
        with suppress(OSError):  # so that make sees a file newer than its inputs; the file system may be read-only
            for entry in [path, path / MANIFEST] if path.is_dir() else [path]:
                entry.touch()
            sources.set_later(path)
        console.note(f"{stage}: {path} is up to date", code="up-to-date", stage=stage, path=path)
    return output


def _check(output: Output, inputs: Mapping[str, Input], overwrite: bool, foreign: bool) -> None:
    """Set `up_to_date`; refuse an output that may not be replaced."""
    existing = existing_manifest(output.target)
    output.up_to_date = is_kept(output.path, output.target, existing, output.manifest, overwrite)
    if not output.up_to_date:
        check_output_path(output.path, inputs)
        check_replaceable(output.path, existing, output.manifest, overwrite, foreign, output.compare)
        if not overwrite:
            _refuse_other_checkpoint(output.path, output.partial, output.manifest)


def _is_follower() -> bool:
    """Return whether another process of the torchrun group writes the output."""
    return os.environ.get("RANK", "0") != "0"


# --------------------------------------------------------------------------------------------------- unfinished outputs


def _restore(path: Path, call: str) -> None:
    """Restore an output after a kill, see `files.restore`; keep a scratch folder that a call can continue.

    Args:
        path: the output, whose lock is held.
        call: `Manifest.call` of the current call; its finished folder is kept, see `_is_finished`.
    """
    files.restore_name(path)
    scratch = files.scratch_path(path)
    if not _resumable(scratch) and not _is_finished(scratch, call):
        disk.remove(scratch)


def _has_leftovers(path: Path) -> bool:
    """Return whether a killed process left files that no call resumes from, or a process is writing `path`."""
    scratch = files.scratch_path(path)
    return (
        files.old_path(path).exists()
        or files.lock_file(path).exists()
        or (scratch.exists() and not _resumable(scratch))
    )


def _resumable(scratch: Path) -> bool:
    return (scratch / KEY).is_file()


def _interrupted_call(scratch: Path) -> str | None:
    """Return the key of the call that left an unfinished folder; None for other folders."""
    return (scratch / KEY).read_text("utf-8") if _resumable(scratch) else None


def _is_finished(scratch: Path, call: str) -> bool:
    """Return whether `scratch` is the complete folder of a call that was killed before the folder got its name."""
    if _resumable(scratch) or not (scratch / MANIFEST).is_file():
        return False
    try:
        manifest = read_manifest(scratch)
    except InputError:
        return False
    return manifest.call() == call and next(damage(scratch, manifest), None) is None


def _discard(work: Path) -> None:
    """Remove an unfinished folder; a half-removed one has no key, so it is never resumed."""
    disk.remove(work / KEY)
    disk.remove(work)


def _refuse_other_checkpoint(path: Path, scratch: Path, wanted: Manifest) -> None:
    """Refuse to discard the checkpoint of an interrupted training of another call, or of another version of hybrid.

    Args:
        path: output path.
        scratch: scratch folder of the output.
        wanted: manifest of this call.

    Raises:
        InputError: names the options and inputs that differ, or the version.
    """
    left = _interrupted_call(scratch)
    if left is None or left == wanted.call() or not (scratch / layout.CHECKPOINT).is_dir():
        return
    *before, version = parse_json(left, scratch / KEY)
    *now, this = json.loads(wanted.call())
    if version != this:
        problem = f"hybrid {version} left a checkpoint of a training; resume it with that version, or pass --overwrite"
        raise path_error(path, problem, code="checkpoint-of-another-version")
    changes, _ = changed_between(json.dumps(before), json.dumps(now))
    problem = f"an interrupted training with other options left a checkpoint ({changes}); repeat its command to resume"
    raise path_error(path, f"{problem} it, or pass --overwrite to discard it", code="checkpoint-of-another-call")
