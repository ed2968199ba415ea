"""What a file or folder of hybrid records about itself: kind, stage, files and their hashes.

A Parquet file has the record in its footer under the key `hybrid`, a folder in `manifest.json`, a JSON file under the
key `manifest`, a page in a data block. `artifacts.manifest` adds the origin: options and inputs.

Checksums of whole files reveal a single changed bit. A Parquet file contains its own, the hash of the file with zeros
in place of the value; files in a folder are hashed in the manifest of the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from hybrid_cli.errors import DamageError, InputError, path_error
from hybrid_cli.inputs.files import limits, opened, refuse_unsafe_name
from hybrid_cli.inputs.json_values import NOT_JSON, make_typed, parse_json, reason
from hybrid_cli.storage import disk
from hybrid_cli.storage.layout import CURVE, TRACKING
from hybrid_cli.storage.schemas import Kind
from hybrid_cli.version import __version__, is_later

FORMAT = 2
_FORMATS = {Kind.LEXICAL_INDEX: 3, Kind.SHARDS: 3}  # of other kinds, `FORMAT`; 3: three bytes per posting, checksums
MANIFEST = "manifest.json"
METADATA_KEY = b"hybrid"
CHECKSUM_KEY = (
    b"hybrid.checksum"  # in the footer of a Parquet file; its value is the hash of the file with `NO_CHECKSUM`
)
NO_CHECKSUM = "0" * 32
_ENTRY = re.compile(
    re.escape(CHECKSUM_KEY) + rb"\x18\x20([0-9a-f]{32})", re.DOTALL
)  # key, type and length in Thrift, value
_TAIL = 1 << 20  # bytes at the end of a file, where the footer is
_BLOCK = 1 << 20
_IN_FOOTER = CHECKSUM_KEY.decode()  # the checksum of a Parquet file covers the record in its footer
_DATA_BLOCK = '<script type="application/json" id="hybrid-manifest">\n{}</script>\n'
IN_PAGE = re.compile(_DATA_BLOCK.format("(.*?)"), re.DOTALL)
AnyRecord = TypeVar("AnyRecord", bound="Record")


@dataclass(frozen=True)
class Record:
    """Kind and content of a file or folder.

    Attributes:
        stage: command that wrote it.
        counts: facts that the stage stored.
        fingerprint: hash of the content.
        format: version of the files of this kind; without one, the newest.
        files: relative paths of all files of a folder; None for a file.
        checksums, sizes: relative path -> content hash, and bytes, of the files of a folder that enter the fingerprint.
    """

    kind: Kind
    stage: str
    counts: dict[str, Any] = field(default_factory=dict, kw_only=True)
    fingerprint: str = field(default="", kw_only=True)
    format: int = field(default=0, kw_only=True)
    files: list[str] | None = field(default=None, kw_only=True)
    checksums: dict[str, str] | None = field(default=None, kw_only=True)
    sizes: dict[str, int] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not self.format:
            object.__setattr__(self, "format", newest_format(self.kind))

    def of_table(self, path: Path) -> Self:
        """Return the record of a table at `path`, which may be a part of a folder."""
        return self

    def other_kind(self, path: str | Path, wanted: str, expected: object = None) -> InputError:
        """Return the error about an artifact of this kind where another one is needed.

        Args:
            path: path of the artifact.
            wanted: end of the sentence, such as `an index is needed here`.
            expected: the kind that is needed.
        """
        problem = f"{self.kind.predicate} (made by `{self.stage}`); {wanted}"
        return path_error(path, problem, code="other-kind", kind=self.kind, expected=expected)

    def to_dict(self) -> dict[str, Any]:
        """Return the stored fields, with their own checksum."""
        values = {name: value for name, value in asdict(self).items() if name != "location"}
        return {**values, "checksum": hash_json(values)}

    def to_footer(self) -> str:
        """Return the text for the footer of a Parquet file, which has a checksum itself."""
        return json.dumps({**self.to_dict(), "checksum": _IN_FOOTER}, indent=2, sort_keys=True, ensure_ascii=False)

    def to_json(self) -> str:
        """Return the text of `manifest.json`."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    def to_html(self) -> str:
        """Return an HTML data block; no text in it can end the block."""
        return _DATA_BLOCK.format(self.to_json().replace("<", "\\u003c"))


def newest_format(kind: Any) -> int:
    """Return the format that this version writes for a kind."""
    return _FORMATS.get(kind, FORMAT)


def find_record(path: str | Path) -> Record | None:
    """Return the record of `path`, or None if the file or folder was not written by hybrid.

    Raises:
        InputError: `path` does not exist, or its record is damaged or of another format.
    """
    return find_as(Record, path)


def read_record(
    record: type[AnyRecord], path: str | Path, kind: Kind | None = None, any_format: bool = False
) -> AnyRecord:
    """Return the record of the artifact at `path`.

    Args:
        record: class of the record.
        path: the artifact.
        kind: kind that is needed; None for any.
        any_format: see `find_as`.

    Raises:
        InputError: `path` does not exist, is not an artifact, or is not of the kind `kind`.
    """
    stored = find_as(record, path, any_format)
    wanted = "an artifact of hybrid is" if kind is None else f"{kind.phrase} {'are' if kind.is_plural else 'is'}"
    if stored is None:
        parts = [part.parent.name for part in sorted(Path(path).glob(f"*/{MANIFEST}"))]
        inside = f"contains the artifacts {', '.join(parts)}; pass one of them"
        problem = inside if parts else "has no manifest, so it was not written by hybrid"
        raise path_error(path, f"{problem}; {wanted} needed here", code="no-manifest", expected=kind, parts=parts)
    if kind is not None and stored.kind != kind:
        raise stored.other_kind(path, f"{wanted} needed here", kind)
    return stored


def find_as(kind: type[AnyRecord], path: str | Path, any_format: bool = False) -> AnyRecord | None:
    """Return the record of `path` as a class with more fields; see `find_record`.

    Args:
        kind: the class.
        any_format: also return records of older formats.
    """
    path = Path(path)
    values = _stored_values(path)
    return None if values is None else _parsed(kind, values, path, any_format)


def _stored_values(path: Path) -> Any:
    """Return the record in a file or folder as JSON values; None without one."""
    folder = path.is_dir()
    file, form = (path / MANIFEST, MANIFEST) if folder else (path, path.suffix)
    if folder and not file.exists():
        return None
    text = None
    with opened(file) as content:
        if form == ".parquet":
            text = (_footer(content, file).metadata or {}).get(METADATA_KEY)
        elif form in (MANIFEST, ".html", ".json"):
            text = content.read(limits().line + 1)
            if form == ".json" and len(text) > limits().line:  # data of another tool, which are read in pieces
                return None
            limits().refuse_line(file, file, len(text), "record")
    if not text:
        return None
    if form == ".html":
        return _values_in_page(text, path)
    if form == ".json":
        return _values_in_json(text.decode("utf-8", "replace").lstrip(), path)
    return _record_values(text, path)


def _record_values(text: str | bytes, path: Path) -> Any:
    try:
        return parse_json(text, MANIFEST)
    except InputError as error:
        raise _damaged(path, error) from None


def _values_in_page(text: bytes, path: Path) -> Any:
    """Return the record in a page; None without one."""
    page, digest = text.decode("utf-8", "surrogateescape"), new_hash()
    if (block := IN_PAGE.search(page)) is None:
        return None
    digest.update((page[: block.start()] + page[block.end() :]).encode("utf-8", "surrogateescape"))
    return _unchanged(_record_values(block[1], path), digest.hexdigest(), path)


def _values_in_json(text: str, path: Path) -> Any:
    """Return the record in a JSON file; None in data of another tool, such as JSON lines."""
    try:
        content, end = json.JSONDecoder().raw_decode(text)
    except NOT_JSON as error:
        raise path_error(path, f"is not readable JSON ({reason(error)})", code="not-json") from None
    stored = content.pop("manifest", None) if isinstance(content, dict) else None
    if not stored:
        return None
    if text[end:].strip():
        raise path_error(path, "is not readable JSON (text follows its object)", code="not-json")
    return _unchanged(stored, hash_json(content), path)


def _unchanged(stored: Any, content: str, path: Path) -> Any:
    """Return a record with the hash of the content; refuse another one, if the record has a checksum."""
    if isinstance(stored, dict) and "checksum" in stored and stored.get("fingerprint") != content:
        raise changed_error(path)
    return stored


def _parsed(record: type[AnyRecord], values: Any, path: Path, any_format: bool) -> AnyRecord:
    facts = values if isinstance(values, dict) else {}
    written, kind, versions = facts.get("format"), facts.get("kind"), facts.get("versions")
    version = str(versions.get("hybrid", "")) if isinstance(versions, dict) else ""
    newest = newest_format(kind) if kind in list(Kind) else sys.maxsize
    if isinstance(written, int) and written > newest:  # its other fields may be unknown here
        problem = f"has format {written} of hybrid {version}; this {__version__} reads up to {newest}; update hybrid"
        raise path_error(path, problem, code="newer-format", version=version)
    stored = facts.pop("checksum", _IN_FOOTER)
    try:
        parsed = _typed(record, values)
    except InputError as error:
        raise _damaged(path, error, version) from None
    if stored not in (_IN_FOOTER, hash_json(values)):
        problem = f"{path}: its manifest changed on the disk after it was written; restore or rebuild it"
        raise DamageError(problem, code="damaged-manifest", path=path)
    if parsed.format < newest and not any_format:
        command = f"hybrid {parsed.stage} --overwrite"
        problem = f"{parsed.kind} of hybrid {version} (format {parsed.format}, now {newest}); run `{command}`"
        raise path_error(path, problem, code="older-format", format=parsed.format, version=version, command=command)
    return parsed


def _damaged(path: Path, error: InputError, version: str = "") -> InputError:
    """Return the error about a record; one of a later hybrid is not damaged: its kinds and fields may be unknown."""
    if is_later(version):
        problem = f"was written by hybrid {version}, which is newer than this one ({__version__}); update hybrid"
        return path_error(path, problem, code="newer-version", version=version)
    problem = f"{path}: its manifest is damaged ({error}); restore or rebuild the artifact"
    return DamageError(problem, code="damaged-manifest", **{**error.fields, "path": path})


def _typed(kind: type[AnyRecord], values: Any) -> AnyRecord:
    if kind is Record and isinstance(values, dict):
        values = {declared.name: values[declared.name] for declared in fields(kind) if declared.name in values}
    checked = make_typed(kind, values, MANIFEST)
    for name in (*(checked.files or ()), *(checked.checksums or ())):
        refuse_unsafe_name(name, MANIFEST)
    return checked


def has_checksums(path: Path) -> bool:
    """Return whether the content of an artifact can be checked; early versions wrote no checksums."""
    return "checksum" in (_stored_values(path) or {})


def parquet_metadata(path: Path) -> pq.FileMetaData:
    """Return the footer of a Parquet file.

    Raises:
        InputError: the file is unreadable, truncated or not Parquet.
    """
    with opened(path) as file:
        return _footer(file, path)


def _footer(file: BinaryIO, path: Path) -> pq.FileMetaData:
    try:
        return pq.read_metadata(file)
    except (pa.ArrowException, OSError, ValueError) as error:
        _compare_checksum(file, path)
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise path_error(path, f"is not a complete Parquet file ({first}); rebuild it", code="not-parquet") from None


# ------------------------------------------------------------------------------------------------------------ hashes


def hash_json(content: Any) -> str:
    """Return the hash of JSON values, whatever their layout in a file."""
    digest = new_hash()
    digest.update(json.dumps(json.loads(json.dumps(content)), sort_keys=True).encode())
    return str(digest.hexdigest())


def fingerprint(path: Path) -> str:
    """Return the content hash of a file or folder: recorded for an artifact, else computed from the bytes."""
    record = find_record(path) if path.is_dir() or path.suffix == ".parquet" else None
    if record is not None and record.fingerprint:
        return record.fingerprint
    return hash_folder(path) if path.is_dir() else hash_file(path)


def hash_folder(path: Path, ignore: Sequence[str] = ()) -> str:
    """Return a hash of the names and fingerprints of the files below `path`.

    Manifests, learning curves, hidden files and the names in `ignore` (files or folders directly in `path`) do not
    count: no later stage depends on the measurements of a training.
    """
    return hash_names(fingerprints(path), ignore)


def fingerprints(path: Path) -> dict[str, str]:
    """Return relative path -> fingerprint of the files below a folder, without manifests, hidden and tracking files."""
    hashes = {}
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path)
        hidden = name.parts[0] == TRACKING or any(part.startswith(".") for part in name.parts)
        if file.is_file() and not hidden and name.name != MANIFEST:
            hashes[name.as_posix()] = fingerprint(file)
    return hashes


def hash_names(hashes: Mapping[str, str], ignore: Sequence[str] = ()) -> str:
    """Return the fingerprint of a folder with the fingerprints `hashes` of its files; see `hash_folder`."""
    digest = new_hash()
    for name, value in hashes.items():
        if name.split("/")[0] not in ignore and name.rpartition("/")[2] != CURVE:
            digest.update(f"{name}\0{value}\n".encode(errors="surrogateescape"))  # names may not be UTF-8
    return str(digest.hexdigest())


def file_names(path: Path) -> list[str]:
    """Return the relative paths of all files below a folder, without its manifest."""
    names = (file.relative_to(path).as_posix() for file in path.rglob("*") if not file.is_dir())
    return sorted(name for name in names if name != MANIFEST)


def of_folder(record: AnyRecord, folder: Path, ignore: Sequence[str] = (), **changes: Any) -> AnyRecord:
    """Return the record of a complete folder: its files, their hashes and sizes.

    Args:
        record: the other facts.
        folder: the folder.
        ignore: files and folders that do not enter the fingerprint.
        changes: other values of fields.
    """
    hashes = fingerprints(folder)
    return replace(
        record,
        fingerprint=hash_names(hashes, ignore),
        files=[name for name in file_names(folder) if not name.startswith(".")],
        checksums=hashes,
        sizes={name: (folder / name).stat().st_size for name in hashes},
        **changes,
    )


# --------------------------------------------------------------------------------------------------- checksums of files


def new_hash() -> Any:
    """Return a new hash object of the kind that all fingerprints use."""
    return hashlib.blake2b(digest_size=16)


class Hashing:
    """A file object that hashes the bytes written to it, and passes them on to a file if there is one."""

    closed = False

    def __init__(self, file: BinaryIO | None = None, digest: Any = None):
        self._file, self._digest = file, digest or new_hash()

    def write(self, data: Any) -> int:
        """Write and hash."""
        self._digest.update(data)
        return len(data) if self._file is None else self._file.write(data)

    def flush(self) -> None:
        """Do nothing; the file is not buffered."""

    def close(self) -> None:
        """Do nothing; the owner of the file closes it."""

    def hexdigest(self) -> str:
        """Return the hash of all bytes so far."""
        return str(self._digest.hexdigest())


def write_checksum(path: Path, digest: str) -> None:
    """Write the checksum into a Parquet file whose footer contains the key with the value `NO_CHECKSUM`."""
    with opened(path) as file:
        checksum = _stored_checksum(file, path)
    assert checksum is not None, f"{path}: no checksum to fill in"
    disk.patch(path, checksum[0], digest.encode())


def compare_checksum(path: Path) -> None:
    """Compare a Parquet file with the checksum that it contains; a file without one passes.

    Raises:
        DamageError: they differ.
    """
    with opened(path) as file:
        _compare_checksum(file, path)


def _compare_checksum(file: BinaryIO, path: Path) -> None:
    if (checksum := _stored_checksum(file, path)) and _digest_without(file, checksum[0]) != checksum[1]:
        raise changed_error(path)


def changed_error(path: Path) -> DamageError:
    """Return the error about a file that differs from its checksum."""
    problem = f"{path}: the content changed on the disk after it was written; restore or rebuild the file"
    return DamageError(problem, code="damaged", path=path)


def hash_file(path: Path) -> str:
    """Return the hash of the bytes of a file."""
    with opened(path) as file:
        return str(hashlib.file_digest(file, new_hash).hexdigest())


def _stored_checksum(file: BinaryIO, path: Path) -> tuple[int, str] | None:
    """Return the position and the value of the checksum in a file; None if the file has none.

    Raises:
        DamageError: the file lost it: the record in the footer names the key too.
    """
    begin = file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
    tail = file.read()
    matches = deque(_ENTRY.finditer(tail), maxlen=1)
    if not matches and CHECKSUM_KEY in tail:
        raise changed_error(path)
    return (begin + matches[0].start(1), matches[0][1].decode()) if matches else None


def _digest_without(file: BinaryIO, position: int) -> str:
    """Return the hash of a file with zeros in place of its checksum at a position."""
    digest, left = new_hash(), position
    file.seek(0)
    while left and (block := file.read(min(_BLOCK, left))):
        digest.update(block)
        left -= len(block)
    digest.update(NO_CHECKSUM.encode())
    file.seek(position + len(NO_CHECKSUM))
    while block := file.read(_BLOCK):
        digest.update(block)
    return str(digest.hexdigest())
