"""Kinds and schemas, what a manifest says, and the checked reading of both; content hashes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hybrid_cli.errors import InputError

FORMAT = 1
MANIFEST = "manifest.json"
METADATA_KEY = b"hybrid"
_DATA_BLOCK = '<script type="application/json" id="hybrid-manifest">\n{}</script>\n'
_IN_PAGE = re.compile(_DATA_BLOCK.format("(.*?)"), re.DOTALL)


class Kind(StrEnum):
    """What an artifact is; the word is the one that messages use."""

    COLLECTION = "collection"
    CORPUS = "corpus"
    QUERIES = "queries"
    QRELS = "qrels"
    LEXICAL_INDEX = "lexical index"
    EXAMPLES = "training examples"
    LABELS = "teacher labels"
    ENCODER = "encoder"
    DENSE_INDEX = "dense index"
    VECTORS = "vectors"
    RUN = "run"
    MEASUREMENTS = "measurements"
    LEARNING_CURVE = "learning curve"
    WEIGHTS = "fusion weights"
    REPORT = "report"
    FIGURES = "figures"

    @property
    def phrase(self) -> str:
        """The word with its article, as it stands in a sentence: `a run`, `an encoder`, `training examples`."""
        if self in _PLURAL:
            return str(self)
        return f"{'an' if self == Kind.ENCODER else 'a'} {self}"


_PLURAL = {
    Kind.QUERIES,
    Kind.QRELS,
    Kind.EXAMPLES,
    Kind.LABELS,
    Kind.VECTORS,
    Kind.MEASUREMENTS,
    Kind.WEIGHTS,
    Kind.FIGURES,
}
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
    Kind.LABELS: pa.schema(
        [
            ("qid", pa.string()),
            ("text", pa.string()),
            ("source", pa.string()),
            ("docids", pa.list_(pa.string())),
            ("scores", pa.list_(pa.float32())),
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

    def to_html(self) -> str:
        """As a data block of a page; no text in it can end the block."""
        return _DATA_BLOCK.format(self.to_json().replace("<", "\\u003c"))


def read_manifest(path: Path, kind: Kind | None = None) -> Manifest:
    """The manifest of the artifact at `path`.

    Raises:
        InputError: nothing is there, it is no artifact, or it is of another kind than `kind`.
    """
    manifest = find_manifest(path)
    wanted = (
        f"{kind.phrase} {'are' if kind.phrase == kind else 'is'} needed here"
        if kind
        else "an artifact of hybrid is needed here"
    )
    if manifest is None:
        raise InputError(f"{path}: has no manifest, so it was not written by hybrid; {wanted}")
    if kind is not None and manifest.kind != kind:
        raise InputError(f"{path}: is {manifest.kind.phrase} (made by `{manifest.stage}`); {wanted}")
    return manifest


def find_manifest(path: Path) -> Manifest | None:
    """The manifest of `path`, or None where a file or folder was not written by hybrid."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    if path.is_dir():
        file = path / MANIFEST
        return _parse_manifest(file.read_text("utf-8", "replace"), path) if file.is_file() else None
    if path.suffix == ".json":
        return _manifest_in_json(path)
    if path.suffix == ".html":
        block = _IN_PAGE.search(path.read_text("utf-8", "replace"))
        return _parse_manifest(block[1], path) if block else None
    if path.suffix != ".parquet":
        return None
    text = (_parquet_metadata(path).metadata or {}).get(METADATA_KEY)
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


def validate_parquet(path: Path) -> Path:
    """Check that a Parquet file of an artifact is there from its first byte to its last, and return it."""
    if not path.is_file():
        raise InputError(f"{path}: is missing; make {path.parent} again")
    _parquet_metadata(path)
    return path


def row_count(path: Path) -> int:
    """The number of rows of a Parquet file, from its footer."""
    return int(_parquet_metadata(path).num_rows)


def _parquet_metadata(path: Path) -> pq.FileMetaData:
    try:
        return pq.read_metadata(path)
    except PermissionError:
        raise InputError(f"{path}: may not be read; change its permissions") from None
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
        raise InputError(
            f"{path}: is {manifest.kind.phrase} (made by `{manifest.stage}`); a {kind} file is needed here"
        )
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
        return str(hashlib.file_digest(file, new_hash).hexdigest())


def hash_folder(path: Path, ignore: Sequence[str] = ()) -> str:
    """A hash of the names and fingerprints of the files below `path`, but for hidden ones and those in `ignore`."""
    digest = new_hash()
    skipped = {MANIFEST, *ignore}
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path)
        if file.is_file() and name.parts[0] not in skipped and not any(part.startswith(".") for part in name.parts):
            digest.update(f"{name.as_posix()}\0{fingerprint(file)}\n".encode())
    return str(digest.hexdigest())


def new_hash() -> Any:
    """The hash of all fingerprints."""
    return hashlib.blake2b(digest_size=16)


def sizes(path: Path) -> dict[str, int]:
    """Name -> bytes: of a file itself, of each thing in a folder (a folder's name ends with `/`)."""
    if path.is_file():
        return {path.name: path.stat().st_size}
    sizes = {}
    for part in sorted(path.iterdir()):
        files = part.rglob("*") if part.is_dir() else [part]
        sizes[part.name + ("/" if part.is_dir() else "")] = sum(f.stat().st_size for f in files if f.is_file())
    return sizes


def source(path: Path) -> dict[str, str]:
    """The entry of a manifest's `inputs` for `path`."""
    manifest = find_manifest(path)
    return {
        "path": str(path),
        "kind": str(manifest.kind) if manifest else "file",
        "fingerprint": fingerprint(path),
    }
