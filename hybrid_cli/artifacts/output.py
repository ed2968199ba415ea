"""Writing: a stage claims its output before any work, writes beside it, and renames."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hybrid_cli import console
from hybrid_cli.artifacts.manifest import (
    MANIFEST,
    METADATA_KEY,
    SCHEMAS,
    Kind,
    Manifest,
    find_manifest,
    hash_folder,
    new_hash,
    source,
)
from hybrid_cli.errors import HybridError, InputError

_SUFFIXES = {Kind.WEIGHTS: ".json", Kind.REPORT: ".html", Kind.LABELS: ""}  # a folder of tables
_ROWS_PER_GROUP = 1 << 16
_REPEATING = {  # columns worth a dictionary, where not all are: a third less time, a quarter less to store
    Kind.RUN: ["qid"],
    Kind.LABELS: ["source", "docids.list.element"],
}
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
    """Raised by `claim` under `dry_run()`: everything was checked, nothing is written."""

    def __init__(self, output: Output):
        super().__init__(str(output.path))
        self.output = output


_dry: ContextVar[bool] = ContextVar("dry", default=False)


@contextmanager
def dry_run(dry: bool = True) -> Iterator[None]:
    """Within this context a stage stops (`DryRun`) where it would begin to work."""
    token = _dry.set(dry)
    try:
        yield
    finally:
        _dry.reset(token)


@dataclass
class Output:
    """A stage's right to write `output`; `up_to_date` says that there is nothing to do."""

    path: Path
    manifest: Manifest
    up_to_date: bool
    started: float = field(default_factory=time.monotonic)

    @property
    def partial(self) -> Path:
        """The scratch file or folder beside the output; a folder survives a kill, so that the stage goes on there."""
        return self.path.with_name(f".{self.path.name}.partial")

    def write(self, batches: Iterable[pa.RecordBatch | pa.Table], **counts: Any) -> Manifest:
        """Write a Parquet artifact whole: rows checked against the schema, hashed on the way, renamed at the end."""
        with self.scratch() as scratch:
            return write_parquet(scratch, batches, SCHEMAS[self.manifest.kind], self._done(counts))

    def write_json(self, content: Mapping[str, Any], **counts: Any) -> Manifest:
        """Write a small artifact as JSON, its manifest under the key `manifest`."""
        digest = new_hash()
        digest.update(json.dumps(content, sort_keys=True).encode())
        manifest = replace(self._done(counts), fingerprint=digest.hexdigest())
        with self.scratch() as scratch:
            text = json.dumps({**content, "manifest": asdict(manifest)}, indent=2, ensure_ascii=False)
            scratch.write_text(text + "\n", "utf-8")
        return manifest

    def write_html(self, page: str, **counts: Any) -> Manifest:
        """Write a page, its manifest as a data block at the end of its head."""
        digest = new_hash()
        digest.update(page.encode())
        manifest = replace(self._done(counts), fingerprint=digest.hexdigest())
        with self.scratch() as scratch:
            scratch.write_text(page.replace("</head>", f"{manifest.to_html()}</head>", 1), "utf-8")
        return manifest

    @contextmanager
    def folder(self, ignore: Sequence[str] = (), **counts: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield (scratch folder, counts to fill in); the folder takes its name when the block ends well.

        What an earlier, killed run of the same stage with the same inputs and options left is still in the folder;
        an InputError leaves nothing.
        Files named in `ignore` do not enter the fingerprint; hidden ones neither, and are removed at the end.
        """
        work = self.partial
        begun = work / ".claim"
        with _locked(work):
            if work.exists() and not (begun.is_file() and begun.read_text("utf-8") == self.manifest.key()):
                shutil.rmtree(work)
            if not work.exists():
                work.mkdir(parents=True)
                begun.write_text(self.manifest.key(), "utf-8")
            try:
                yield work, counts
            except InputError:  # there is nothing to go on with
                shutil.rmtree(work, ignore_errors=True)
                raise
            seconds = round(time.monotonic() - self.started, 1)
            manifest = replace(self._done(counts), fingerprint=hash_folder(work, ignore), seconds=seconds)
            (work / MANIFEST).write_text(manifest.to_json(), "utf-8")
            for hidden in (begun, *work.glob(".*")):  # without its claim nobody goes on with what is half removed
                _remove(hidden)
            self._take_name(work)

    def _done(self, counts: dict[str, Any]) -> Manifest:
        return replace(self.manifest, counts=counts)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a path beside the output, which takes its name when the block ends well: for files without manifest."""
        with _locked(self.partial):
            _remove(self.partial)
            try:
                yield self.partial
                self._take_name(self.partial)
            except BaseException:
                _remove(self.partial)
                raise

    def _take_name(self, whole: Path) -> None:
        old = self.path.with_name(f".{self.path.name}.old")
        _remove(old)
        if self.path.is_dir() or (self.path.exists() and whole.is_dir()):  # only files are replaced in one step
            self.path.rename(old)
        whole.rename(self.path)
        _remove(old)


def open_output(
    output: Path,
    kind: Kind,
    stage: str,
    *,
    inputs: Mapping[str, Path],
    options: Mapping[str, Any],
    overwrite: bool = False,
    foreign: bool = False,
) -> Output:
    """Refuse, skip or go, before any work.

    Args:
        output: where the artifact will stand.
        inputs: role -> path, of everything that the result depends on.
        options: everything else that it depends on, as JSON values; not threads, devices or verbosity.
        overwrite: replace what stands at `output`, also when it is up to date.
        foreign: the output has another tool's form, so its name may end in any way and it carries no manifest.

    Raises:
        InputError: `output` cannot stand there, or holds something else and `overwrite` was not given.
        DryRun: within `dry_run()`.
    """
    if not foreign:
        _check_name(output, kind)
    sources = {role: source(path) for role, path in inputs.items()}
    wanted = Manifest(kind, stage, json.loads(json.dumps(dict(options))), sources, versions=_versions())
    _restore_interrupted_replacement(output)
    existing = _existing(output)
    up_to_date = existing is not None and existing.key() == wanted.key() and not overwrite
    claimed = Output(output, wanted, up_to_date)
    if not up_to_date:
        _check_place(output, inputs)
        if output.exists() and not overwrite:
            what = _difference(existing, wanted)
            raise InputError(f"{output}: {what}; pass --overwrite to replace it, or name another")
        if existing is None and not foreign and output.is_dir() and any(output.iterdir()):
            raise InputError(f"{output}: is a folder that hybrid did not write; remove it, or name another")
    if _dry.get():
        raise DryRun(claimed)
    if up_to_date:
        with suppress(OSError):  # so that make agrees; a file system may be read-only
            output.touch()
            if output.is_dir():
                (output / MANIFEST).touch()
        console.note(f"{stage}: {output} is up to date")
    return claimed


def _check_name(output: Path, kind: Kind) -> None:
    """Manifests are looked for by the name's end."""
    suffix = _SUFFIXES.get(kind, ".parquet" if kind in SCHEMAS else "")
    if not output.name.endswith(suffix):
        raise InputError(f"{output}: needs a name that ends with {suffix}")


def _check_place(output: Path, inputs: Mapping[str, Path]) -> None:
    """Refuse now what would fail, or destroy an input, after hours of work."""
    place = output.resolve()
    for role, path in inputs.items():
        if path.resolve().is_relative_to(place):
            raise InputError(f"{output}: to replace it would remove the input '{role}' ({path}); name another output")
    folder = next(parent for parent in place.parents if parent.exists())
    if not folder.is_dir():
        raise InputError(f"{folder}: is a file, so {output} cannot stand in it; name another output")
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise InputError(f"{folder}: may not be written to; name another output, or change its permissions")


def _existing(output: Path) -> Manifest | None:
    if not output.exists():
        return None
    try:
        return find_manifest(output)
    except InputError:
        return None


def _difference(existing: Manifest | None, wanted: Manifest) -> str:
    """In words, why what stands at the output is not what this call would make."""
    if existing is None:
        return "is there already, without a manifest of hybrid"
    if existing.kind != wanted.kind or existing.stage != wanted.stage:
        return f"is there already: {existing.kind.phrase} made by `{existing.stage}`"
    options = [
        f"{name}={existing.options.get(name)!r} then, {wanted.options.get(name)!r} now"
        for name in sorted({*existing.options, *wanted.options})
        if existing.options.get(name) != wanted.options.get(name)
    ]
    inputs = [
        f"input '{role}' has changed"
        for role in sorted({*existing.inputs, *wanted.inputs})
        if existing.inputs.get(role, {}).get("fingerprint") != wanted.inputs.get(role, {}).get("fingerprint")
    ]
    return "was made differently: " + "; ".join([*options, *inputs] or ["another format version"])


def write_parquet(
    path: Path, batches: Iterable[pa.RecordBatch | pa.Table], schema: pa.Schema, manifest: Manifest
) -> Manifest:
    """Write rows to `path` in groups of equal size, with a manifest that carries their number and content hash."""
    digest, rows = new_hash(), 0
    dictionaries = _REPEATING.get(manifest.kind, True)
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=dictionaries) as writer:
        for group in _regroup(batches, schema):
            with pa.ipc.new_stream(_HashSink(digest), schema) as stream:
                stream.write_table(group)
            writer.write_table(group)
            rows += len(group)
        manifest = replace(manifest, fingerprint=digest.hexdigest(), counts={"rows": rows, **manifest.counts})
        writer.add_key_value_metadata({METADATA_KEY: manifest.to_json()})
    return manifest


class _HashSink:
    """A file that only hashes: the Arrow stream form of equal rows in equal groups is equal bytes."""

    closed = False

    def __init__(self, digest: Any):
        self._digest = digest

    def write(self, data: Any) -> int:
        self._digest.update(data)
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...


def _regroup(batches: Iterable[pa.RecordBatch | pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    """The same rows in tables of `_ROWS_PER_GROUP` (the last one shorter), cast to `schema`."""
    named = (pa.table(batch).select(schema.names) for batch in batches)
    for table in regrouped(named, _ROWS_PER_GROUP):
        yield _compact(table.cast(schema))


def regrouped(tables: Iterable[pa.Table], size: int) -> Iterator[pa.Table]:
    """The same rows in tables of `size`, the last one shorter."""
    waiting: list[pa.Table] = []
    count = 0
    for part in tables:
        waiting.append(part)
        count += len(part)
        if count >= size:
            table = pa.concat_tables(waiting)
            whole = count - count % size
            for begin in range(0, whole, size):
                yield table.slice(begin, size)
            waiting, count = [table.slice(whole)], count - whole
    if count:
        yield pa.concat_tables(waiting)


def _compact(table: pa.Table) -> pa.Table:
    """The same rows in buffers of their own: those of a slice may hold its neighbours, which would be hashed too."""
    return pa.concat_tables([table, table.slice(0, 0)]).combine_chunks()


def _versions() -> dict[str, str]:
    from hybrid_cli import __version__

    found = {"hybrid": __version__}
    for library in _LIBRARIES[1:]:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


def hard_link(path: Path, place: Path) -> None:
    """Give a file or folder of an artifact a second name; where the file system cannot, copy it.

    Artifacts are replaced, never written into, so neither name will see the other change. What is there stays.
    """
    for file in (path, *sorted(path.rglob("*"))):
        target = place / file.relative_to(path)
        if file.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif not target.exists():
            try:
                os.link(file, target)
            except OSError:
                shutil.copy2(file, target)


@contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Keep a second process with the same output out while this one writes."""
    work.parent.mkdir(parents=True, exist_ok=True)
    lock = work.with_name(work.name + ".lock")
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(file.fileno()), lock.stat()):  # the one before removed it just now
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError):
            raise HybridError(
                f"{work}: another hybrid process is writing this output; wait for it, or stop it"
            ) from None
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _restore_interrupted_replacement(output: Path) -> None:
    """A kill between the two renames of a replacement leaves the old folder aside: put it back."""
    old = output.with_name(f".{output.name}.old")
    if old.exists() and not output.exists():
        old.rename(output)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
