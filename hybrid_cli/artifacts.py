"""What is on disk: kinds, schemas, manifests, atomic writes and checked reads.

Every artifact carries a manifest that says what it is and where it came from: Parquet files in their footer under the
key `hybrid`, folders in `manifest.json`. A stage claims its output, writes beside it and renames, so a name that exists
is a whole artifact. Files hold no clock time: the same inputs and options give the same bytes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hybrid_cli import console
from hybrid_cli.errors import HybridError, InputError

FORMAT = 1
MANIFEST = "manifest.json"
_METADATA_KEY = b"hybrid"
_ROWS_PER_GROUP = 1 << 16
_LIBRARIES = ("hybrid", "torch", "transformers", "pyserini", "faiss-cpu", "faiss-gpu", "pyarrow", "polars", "numpy")


class Kind(StrEnum):
    """What an artifact is; the word is the one that messages use."""

    COLLECTION = "collection"
    CORPUS = "corpus"
    QUERIES = "queries"
    QRELS = "qrels"
    LEXICAL_INDEX = "lexical index"
    EXAMPLES = "training examples"
    ENCODER = "encoder"
    DENSE_INDEX = "dense index"
    VECTORS = "vectors"
    RUN = "run"
    MEASUREMENTS = "measurements"
    LEARNING_CURVE = "learning curve"
    WEIGHTS = "fusion weights"


_NEGATIVE = pa.struct(
    [
        ("docid", pa.string()),
        ("title", pa.string()),
        ("text", pa.string()),
        ("lexical_score", pa.float32()),
        ("source", pa.string()),
    ]
)
SCHEMAS: dict[Kind, pa.Schema] = {
    Kind.CORPUS: pa.schema([("docid", pa.string()), ("title", pa.string()), ("text", pa.string())]),
    Kind.QUERIES: pa.schema([("qid", pa.string()), ("text", pa.string()), ("answers", pa.list_(pa.string()))]),
    Kind.QRELS: pa.schema([("qid", pa.string()), ("docid", pa.string()), ("relevance", pa.int32())]),
    Kind.EXAMPLES: pa.schema(
        [
            ("qid", pa.string()),
            ("query", pa.string()),
            ("docid", pa.string()),
            ("title", pa.string()),
            ("text", pa.string()),
            ("lexical_score", pa.float32()),
            ("negatives", pa.list_(_NEGATIVE)),
        ]
    ),
    Kind.RUN: pa.schema([("qid", pa.string()), ("docid", pa.string()), ("rank", pa.int32()), ("score", pa.float32())]),
    Kind.MEASUREMENTS: pa.schema(
        [("run", pa.string()), ("measure", pa.string()), ("qid", pa.string()), ("value", pa.float64())]
    ),
    Kind.LEARNING_CURVE: pa.schema([("step", pa.int32()), ("name", pa.string()), ("value", pa.float64())]),
}


@dataclass(frozen=True)
class Manifest:
    """Where an artifact came from. `inputs` maps a role to `{path, kind, fingerprint}`."""

    kind: Kind
    stage: str
    options: dict[str, Any]
    inputs: dict[str, dict[str, str]]
    counts: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    format: int = FORMAT
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None

    def key(self) -> str:
        """What must be equal for an existing output to be up to date: how it was made, not with what libraries."""
        fingerprints = {role: source["fingerprint"] for role, source in self.inputs.items()}
        return json.dumps([self.format, self.kind, self.stage, self.options, fingerprints], sort_keys=True)

    def to_json(self) -> str:
        """As `manifest.json` holds it."""
        return json.dumps(asdict(self), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


# ---------------------------------------------------------------------------------------------------------- reading


def read_manifest(path: Path, kind: Kind | None = None) -> Manifest:
    """The manifest of the artifact at `path`.

    Raises:
        InputError: nothing is there, it is no artifact, or it is of another kind than `kind`.
    """
    manifest = find_manifest(path)
    wanted = f"a {kind} is needed here" if kind else "an artifact of hybrid is needed here"
    if manifest is None:
        raise InputError(f"{path}: has no manifest, so it was not written by hybrid; {wanted}")
    if kind is not None and manifest.kind != kind:
        raise InputError(f"{path}: is a {manifest.kind} (made by `{manifest.stage}`); {wanted}")
    return manifest


def find_manifest(path: Path) -> Manifest | None:
    """The manifest of `path`, or None where a file or folder was not written by hybrid."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    if path.is_dir():
        file = path / MANIFEST
        return _parse_manifest(file.read_text("utf-8"), path) if file.is_file() else None
    if path.suffix == ".json":
        return _manifest_in_json(path)
    if path.suffix != ".parquet":
        return None
    text = (_parquet_metadata(path).metadata or {}).get(_METADATA_KEY)
    return _parse_manifest(text.decode("utf-8"), path) if text else None


def _manifest_in_json(path: Path) -> Manifest | None:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: is not readable JSON ({error})") from None
    embedded = content.get("manifest") if isinstance(content, dict) else None
    return _parse_manifest(json.dumps(embedded), path) if embedded else None


def _parse_manifest(text: str, path: Path) -> Manifest:
    try:
        fields = json.loads(text)
        manifest = Manifest(**{**fields, "kind": Kind(fields["kind"])})
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path}: its manifest is damaged ({error}); make it again") from None
    if manifest.format > FORMAT:
        raise InputError(f"{path}: has format {manifest.format}, this hybrid reads up to {FORMAT}; update hybrid")
    return manifest


def _parquet_metadata(path: Path) -> pq.FileMetaData:
    try:
        return pq.read_metadata(path)
    except pa.ArrowException as error:
        first = str(error).splitlines()[0]
        raise InputError(f"{path}: is not a whole Parquet file ({first}); make it again") from None


def check_table(path: Path, kind: Kind) -> Path:
    """Check that `path` is a Parquet file with the columns of `kind`, whoever wrote it, and return it.

    Columns may stand in any order and strings may be large; extra columns are ignored; `answers` may be absent.

    Raises:
        InputError: missing, truncated, of another kind, or a column is missing or of another type.
    """
    manifest = find_manifest(path)
    if path.is_dir():
        what = f"a {manifest.kind} folder" if manifest else "a folder"
        raise InputError(f"{path}: is {what}; a {kind} file is needed here")
    if manifest is not None and manifest.kind != kind:
        raise InputError(f"{path}: is a {manifest.kind} (made by `{manifest.stage}`); a {kind} file is needed here")
    if path.suffix != ".parquet":
        raise InputError(f"{path}: is not a Parquet file; a {kind} file is needed here")
    found = _parquet_metadata(path).schema.to_arrow_schema()
    for column in SCHEMAS[kind]:
        if column.name not in found.names:
            if column.name == "answers":
                continue
            raise InputError(
                f"{path}: has no column '{column.name}' (found: {', '.join(found.names)}); a {kind} file needs "
                + ", ".join(SCHEMAS[kind].names)
            )
        if not _fits(found.field(column.name).type, column.type):
            raise InputError(
                f"{path}: column '{column.name}' is {found.field(column.name).type}, a {kind} needs {column.type}"
            )
    return path


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    def family(kind: pa.DataType) -> str:
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return "string"
        if pa.types.is_integer(kind):
            return "integer"
        if pa.types.is_floating(kind):
            return "float"
        return "list" if pa.types.is_list(kind) or pa.types.is_large_list(kind) else str(kind)

    return family(found) == family(wanted) or (family(wanted) == "float" and family(found) == "integer")


def fingerprint(path: Path) -> str:
    """The content hash of a file or folder: the recorded one for an artifact, else a hash of the bytes."""
    manifest = find_manifest(path) if path.is_dir() or path.suffix == ".parquet" else None
    if manifest is not None and manifest.fingerprint:
        return manifest.fingerprint
    if path.is_dir():
        return hash_folder(path)
    with path.open("rb") as file:
        return str(hashlib.file_digest(file, _new_hash).hexdigest())


def hash_folder(path: Path, ignore: Sequence[str] = ()) -> str:
    """A hash of the names and fingerprints of the files below `path`, but for hidden ones and those in `ignore`."""
    digest = _new_hash()
    skipped = {MANIFEST, *ignore}
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path)
        if file.is_file() and name.parts[0] not in skipped and not any(part.startswith(".") for part in name.parts):
            digest.update(f"{name.as_posix()}\0{fingerprint(file)}\n".encode())
    return str(digest.hexdigest())


def _new_hash() -> Any:
    return hashlib.blake2b(digest_size=16)


def source(path: Path) -> dict[str, str]:
    """The entry of a manifest's `inputs` for `path`."""
    manifest = find_manifest(path)
    return {
        "path": str(path),
        "kind": str(manifest.kind) if manifest else "file",
        "fingerprint": fingerprint(path),
    }


# ---------------------------------------------------------------------------------------------------------- writing


class DryRun(Exception):
    """Raised by `claim` under `dry_run()`: everything was checked, nothing is written."""

    def __init__(self, claim: Claim):
        super().__init__(str(claim.output))
        self.claim = claim


_dry: ContextVar[bool] = ContextVar("dry", default=False)


@contextmanager
def dry_run() -> Iterator[None]:
    """Within this context a stage stops (`DryRun`) where it would begin to work."""
    token = _dry.set(True)
    try:
        yield
    finally:
        _dry.reset(token)


@dataclass
class Claim:
    """A stage's right to write `output`; `up_to_date` says that there is nothing to do."""

    output: Path
    manifest: Manifest
    up_to_date: bool
    started: float = field(default_factory=time.monotonic)

    @property
    def partial(self) -> Path:
        """The scratch file or folder beside the output; a folder survives a kill, so that the stage goes on there."""
        return self.output.with_name(f".{self.output.name}.partial")

    def write(self, batches: Iterable[pa.RecordBatch | pa.Table], **counts: Any) -> Manifest:
        """Write a Parquet artifact whole: rows checked against the schema, hashed on the way, renamed at the end."""
        with self.scratch() as scratch:
            return write_parquet(scratch, batches, SCHEMAS[self.manifest.kind], self._done(counts))

    def write_json(self, content: Mapping[str, Any], **counts: Any) -> Manifest:
        """Write a small artifact as JSON, its manifest under the key `manifest`."""
        digest = _new_hash()
        digest.update(json.dumps(content, sort_keys=True).encode())
        manifest = replace(self._done(counts), fingerprint=digest.hexdigest())
        with self.scratch() as scratch:
            text = json.dumps({**content, "manifest": asdict(manifest)}, indent=2, ensure_ascii=False)
            scratch.write_text(text + "\n", "utf-8")
        return manifest

    @contextmanager
    def folder(self, ignore: Sequence[str] = (), **counts: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield (scratch folder, counts to fill in); the folder takes its name when the block ends well.

        What an earlier, killed run of the same stage with the same inputs and options left is still in the folder.
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
            yield work, counts
            for hidden in work.glob(".*"):
                shutil.rmtree(hidden) if hidden.is_dir() else hidden.unlink()
            seconds = round(time.monotonic() - self.started, 1)
            manifest = replace(self._done(counts), fingerprint=hash_folder(work, ignore), seconds=seconds)
            (work / MANIFEST).write_text(manifest.to_json(), "utf-8")
            self._take_name(work)

    def _done(self, counts: dict[str, Any]) -> Manifest:
        return replace(self.manifest, counts=counts, versions=_versions())

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a path beside the output, which takes its name when the block ends well: for files without manifest."""
        self.output.parent.mkdir(parents=True, exist_ok=True)
        _remove(self.partial)
        try:
            yield self.partial
            self._take_name(self.partial)
        except BaseException:
            _remove(self.partial)
            raise

    def _take_name(self, whole: Path) -> None:
        old = self.output.with_name(f".{self.output.name}.old")
        _remove(old)
        if self.output.is_dir():  # a folder cannot be replaced in one step
            self.output.rename(old)
        whole.rename(self.output)
        _remove(old)


def claim(
    output: Path,
    kind: Kind,
    stage: str,
    *,
    inputs: Mapping[str, Path],
    options: Mapping[str, Any],
    overwrite: bool = False,
) -> Claim:
    """Refuse, skip or go, before any work.

    Args:
        output: where the artifact will stand.
        inputs: role -> path, of everything that the result depends on.
        options: everything else that it depends on, as JSON values; not threads, devices or verbosity.
        overwrite: replace what stands at `output`, also when it is up to date.

    Raises:
        InputError: `output` holds something else, and `overwrite` was not given.
        DryRun: within `dry_run()`.
    """
    sources = {role: source(path) for role, path in inputs.items()}
    wanted = Manifest(kind, stage, json.loads(json.dumps(dict(options))), sources)
    _restore_interrupted_replacement(output)
    existing = _existing(output)
    up_to_date = existing is not None and existing.key() == wanted.key() and not overwrite
    claimed = Claim(output, wanted, up_to_date)
    if _dry.get():
        raise DryRun(claimed)
    if up_to_date:
        output.touch()  # so that make agrees
        if output.is_dir():
            (output / MANIFEST).touch()
        console.note(f"{stage}: {output} is up to date")
    elif output.exists() and not overwrite:
        raise InputError(f"{output}: {_difference(existing, wanted)}; pass --overwrite to replace it, or name another")
    return claimed


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
        return f"is there already: a {existing.kind} made by `{existing.stage}`"
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
    digest, rows = _new_hash(), 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for group in _regroup(batches, schema):
            with pa.ipc.new_stream(_HashSink(digest), schema) as stream:
                stream.write_table(group)
            writer.write_table(group)
            rows += len(group)
        manifest = replace(manifest, fingerprint=digest.hexdigest(), counts={"rows": rows, **manifest.counts})
        writer.add_key_value_metadata({_METADATA_KEY: manifest.to_json()})
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
    waiting: list[pa.Table] = []
    count = 0
    for batch in batches:
        table = pa.table(batch) if isinstance(batch, pa.RecordBatch) else batch
        waiting.append(table.select(schema.names))
        count += len(table)
        if count >= _ROWS_PER_GROUP:
            table = pa.concat_tables(waiting)
            whole = count - count % _ROWS_PER_GROUP
            for begin in range(0, whole, _ROWS_PER_GROUP):
                yield table.slice(begin, _ROWS_PER_GROUP).cast(schema).combine_chunks()
            waiting, count = [table.slice(whole)], count - whole
    if count:
        yield pa.concat_tables(waiting).cast(schema).combine_chunks()


def _versions() -> dict[str, str]:
    from hybrid_cli import __version__

    found = {"hybrid": __version__}
    for library in _LIBRARIES[1:]:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


@contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Keep a second process with the same output out while this one writes."""
    work.parent.mkdir(parents=True, exist_ok=True)
    lock = work.with_name(work.name + ".lock")
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
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
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
