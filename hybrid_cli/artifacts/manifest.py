"""Manifests: stage, options and inputs of an artifact; content hashes."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hybrid_cli.errors import DamageError, HybridError, InputError
from hybrid_cli.input_files import limits, read_bytes, refuse_special, refuse_unsafe_name
from hybrid_cli.json_files import NOT_JSON, parse_json, typed
from hybrid_cli.storage import Kind, checksums
from hybrid_cli.storage.checksums import new_hash
from hybrid_cli.storage.layout import CURVE
from hybrid_cli.version import __version__, is_later

FORMAT = 2
MANIFEST = "manifest.json"
PLUGIN = "plugin "  # begins the role of a plugin file, an input
METADATA_KEY = b"hybrid"
_IN_FOOTER = checksums.KEY.decode()  # the checksum of a Parquet file covers the manifest in its footer
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_DATA_BLOCK = '<script type="application/json" id="hybrid-manifest">\n{}</script>\n'
_IN_PAGE = re.compile(_DATA_BLOCK.format("(.*?)"), re.DOTALL)
_LIBRARIES = (
    "torch",
    "transformers",
    "pyserini",
    "faiss-cpu",
    "faiss-gpu",
    "pyarrow",
    "polars",
    "numpy",
    "onnxruntime",
    "sentencex",
    "altair",
)


@dataclass(frozen=True)
class Manifest:
    """Origin of an artifact.

    Attributes:
        inputs: role -> `{path, kind, fingerprint}`, or `{name, kind, fingerprint}` for a model of the environment.
            Paths are relative to the folder that contains the artifact, with forward slashes.
        files: relative paths of all files of a folder; None for an artifact that is one file.
        checksums, sizes: relative path -> content hash, and bytes, of the files of a folder that enter the fingerprint.
        location: path of the artifact, with symbolic links resolved. Not stored.
    """

    kind: Kind
    stage: str
    options: dict[str, Any]
    inputs: dict[str, dict[str, str]]
    counts: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    format: int = FORMAT
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None
    files: list[str] | None = None
    checksums: dict[str, str] | None = None
    sizes: dict[str, int] | None = None
    location: Path | None = field(default=None, compare=False)

    def input_path(self, role: str) -> Path | None:
        """Return the recorded path of an input, which may no longer exist.

        Returns:
            None for an input recorded by name, or by a URL, as by earlier versions: a URL in a file is never followed.
        """
        recorded = self.inputs.get(role, {}).get("path")
        if recorded is None or self.location is None or _URL.match(recorded):
            return None
        return Path(os.path.normpath(self.location.parent / recorded))

    def input_label(self, role: str) -> str:
        """Return the name of an input, or its path, relative to the working directory if it is below it."""
        path = self.input_path(role)
        if path is None:
            return self.inputs[role].get("name") or self.inputs[role]["path"]
        return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)

    def moved_to(self, location: Path) -> Manifest:
        """Return the manifest of a copy at `location`, with input paths relative to the new location."""
        home = location_of(location)
        inputs = {
            role: recorded if (path := self.input_path(role)) is None else recorded | {"path": stored_path(path, home)}
            for role, recorded in self.inputs.items()
        }
        return replace(self, inputs=inputs, location=home)

    def of_part(self, folder: Path, location: Path, kind: Kind, counts: dict[str, Any]) -> Manifest:
        """Return the manifest of a folder that is an artifact inside this one, and will be at `location`."""
        found = fingerprints(folder)
        return replace(
            self.moved_to(location),
            kind=kind,
            counts=counts,
            fingerprint=hash_names(found),
            files=file_names(folder),
            checksums=found,
            sizes=sizes(folder, found),
        )

    def key(self) -> str:
        """Return the fields that decide whether an output is up to date; library versions do not."""
        fingerprints = {role: source["fingerprint"] for role, source in self.inputs.items()}
        return json.dumps([self.format, self.kind, self.stage, self.options, fingerprints], sort_keys=True)

    def call(self) -> str:
        """Return the key with the version of hybrid: another version does not continue unfinished work."""
        return json.dumps([*json.loads(self.key()), self.versions.get("hybrid", "")], sort_keys=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the stored fields, with their own checksum."""
        fields = {name: value for name, value in asdict(self).items() if name != "location"}
        return {**fields, "checksum": hash_json(fields)}

    def to_footer(self) -> str:
        """Return the text for the footer of a Parquet file, which has a checksum itself."""
        return json.dumps({**self.to_dict(), "checksum": _IN_FOOTER}, indent=2, sort_keys=True, ensure_ascii=False)

    def to_json(self) -> str:
        """Return the text of `manifest.json`."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    def to_html(self) -> str:
        """Return an HTML data block; no text in it can end the block."""
        return _DATA_BLOCK.format(self.to_json().replace("<", "\\u003c"))


def location_of(output: Path) -> Path:
    """Return the place of an output, with symbolic links resolved: its manifest is read there."""
    return Path(os.path.realpath(output))


def stored_path(path: Path, location: Path) -> str:
    """Return `path` relative to the folder of `location`.

    A link next to the artifact is kept, so that the path is still valid after both have moved. Links are resolved if
    the unresolved path does not lead from the resolved folder to the input.
    """
    written = os.path.abspath(path)
    for target in (written, os.path.realpath(path)):
        try:
            relative = os.path.relpath(target, location.parent)
        except ValueError:  # another drive
            return Path(target).as_posix()
        if _same(Path(os.path.normpath(location.parent / relative)), path):
            return Path(relative).as_posix()
    return Path(os.path.relpath(os.path.realpath(path), location.parent)).as_posix()


def _same(first: Path, second: Path) -> bool:
    return first.exists() and second.exists() and first.samefile(second)


def read_manifest(path: str | Path, kind: Kind | None = None, any_format: bool = False) -> Manifest:
    """Return the manifest of the artifact at `path`.

    Args:
        kind: kind that is needed; None for any.
        any_format: see `find_manifest`.

    Raises:
        InputError: `path` does not exist, is not an artifact, or is not of the kind `kind`.
    """
    manifest = find_manifest(path, any_format)
    wanted = (
        f"{kind.phrase} {'are' if kind.is_plural else 'is'} needed here"
        if kind
        else "an artifact of hybrid is needed here"
    )
    if manifest is None:
        raise InputError(
            f"{path}: has no manifest, so it was not written by hybrid; {wanted}",
            code="no-manifest", path=path, expected=kind,
        )  # fmt: skip
    if kind is not None and manifest.kind != kind:
        raise InputError(
            f"{path}: {manifest.kind.predicate} (made by `{manifest.stage}`); {wanted}",
            code="other-kind", path=path, kind=manifest.kind, expected=kind,
        )  # fmt: skip
    return manifest


def find_manifest(path: str | Path, any_format: bool = False) -> Manifest | None:
    """Return the manifest of `path`, or None if the file or folder was not written by hybrid.

    Args:
        any_format: also return manifests of older formats, whose input paths have another meaning.

    Raises:
        InputError: `path` does not exist, or its manifest is damaged or of another format.
    """
    path = Path(path)
    refuse_special(path)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder", code="no-such-file", path=path)
    text = _manifest_text(path)
    return None if text is None else _parse_manifest(text, path, any_format)


def _manifest_text(path: Path) -> str | None:
    if path.is_dir():
        file = path / MANIFEST
        return read_bytes(file).decode("utf-8", "replace") if file.exists() else None
    if path.suffix == ".json":
        return _manifest_in_json(path)
    if path.suffix == ".html":
        block = _IN_PAGE.search(read_bytes(path).decode("utf-8", "replace"))
        return block[1] if block else None
    if path.suffix != ".parquet":
        return None
    text = (parquet_metadata(path).metadata or {}).get(METADATA_KEY)
    return text.decode("utf-8", "replace") if text else None


def _manifest_in_json(path: Path) -> str | None:
    if path.stat().st_size > limits().line:  # data of another tool, which are read in pieces
        return None
    text = read_bytes(path).decode("utf-8", "replace").lstrip()
    try:
        first, end = json.JSONDecoder().raw_decode(text)
        if text[end:].strip() and not (isinstance(first, dict) and "manifest" in first):  # JSON lines
            return None
    except NOT_JSON:
        pass
    content = parse_json(text, path)
    embedded = content.pop("manifest", None) if isinstance(content, dict) else None
    if isinstance(embedded, dict) and "checksum" in embedded and embedded.get("fingerprint") != hash_json(content):
        raise DamageError(
            f"{path}: the content changed on the disk after it was written; restore or rebuild the file",
            code="damaged", path=path,
        )  # fmt: skip
    return json.dumps(embedded) if embedded else None


def hash_json(content: Any) -> str:
    """Return the hash of JSON values, whatever their layout in a file."""
    digest = new_hash()
    digest.update(json.dumps(json.loads(json.dumps(content)), sort_keys=True).encode())
    return str(digest.hexdigest())


def _parse_manifest(text: str, path: Path, any_format: bool) -> Manifest:
    try:
        fields = parse_json(text, MANIFEST)
        written = fields.get("format", FORMAT) if isinstance(fields, dict) else None
        newer = isinstance(written, int) and written > FORMAT  # whose other fields may be unknown here
        stored = fields.pop("checksum", _IN_FOOTER) if isinstance(fields, dict) else _IN_FOOTER
        manifest = None if newer else replace(typed(Manifest, fields, MANIFEST), location=path.resolve())
        for role, source in ({} if manifest is None else manifest.inputs).items():
            if not role.strip() or "fingerprint" not in source or not {"path", "name"} & set(source):
                raise InputError(
                    f"input '{role}' needs a role, a fingerprint, and a path or a name",
                    code="invalid-field", element=role,
                )  # fmt: skip
            if "\0" in source.get("path", ""):
                raise InputError(f"input '{role}' has a NUL in its path", code="invalid-field", element=role)
        for name in () if manifest is None else (*(manifest.files or ()), *(manifest.checksums or ())):
            refuse_unsafe_name(name, MANIFEST)
    except InputError as error:
        _refuse_newer(text, path)
        raise DamageError(
            f"{path}: its manifest is damaged ({error}); restore or rebuild the artifact",
            code="damaged-manifest", **{**error.fields, "path": path},
        ) from None  # fmt: skip
    if manifest is None:
        raise InputError(
            f"{path}: has format {written}, this hybrid reads up to {FORMAT}; update hybrid",
            code="newer-format", path=path, format=written,
        )  # fmt: skip
    if stored not in (_IN_FOOTER, hash_json(fields)):
        raise DamageError(
            f"{path}: its manifest changed on the disk after it was written; restore or rebuild it",
            code="damaged-manifest", path=path,
        )  # fmt: skip
    if manifest.format < FORMAT and not any_format:
        raise InputError(
            f"{path}: {manifest.kind} written by an older hybrid (manifest format {manifest.format}, now {FORMAT}); "
            f"rebuild it with `hybrid {manifest.stage} ... --overwrite`",
            code="older-format", path=path, format=manifest.format,
        )  # fmt: skip
    return manifest


def _refuse_newer(text: str, path: Path) -> None:
    """Refuse a manifest of a later version of hybrid, whose kinds and fields may be unknown here."""
    try:
        version = json.loads(text)["versions"]["hybrid"]
    except (*NOT_JSON, TypeError, LookupError):
        return
    if is_later(version):
        raise InputError(
            f"{path}: was written by hybrid {version}, which is newer than this one ({__version__}); update hybrid",
            code="newer-version", path=path, version=version,
        )  # fmt: skip


def has_checksums(path: Path) -> bool:
    """Return whether the content of an artifact can be checked; early versions wrote no checksums."""
    return checksums.has_key(path) if path.suffix == ".parquet" else '"checksum"' in (_manifest_text(path) or "")


def parquet_metadata(path: Path) -> pq.FileMetaData:
    """Return the footer of a Parquet file.

    Raises:
        InputError: the file is unreadable, truncated or not Parquet.
    """
    refuse_special(path)
    try:
        return pq.read_metadata(path)
    except PermissionError:
        raise InputError(
            f"{path}: permission denied; change the permissions of the file", code="permission-denied", path=path
        ) from None
    except (pa.ArrowException, OSError, ValueError) as error:
        if path.is_file() and getattr(error, "errno", None) != errno.EIO and checksums.has_key(path):
            checksums.check(path)
        first = (str(error).splitlines() or [type(error).__name__])[0]
        if isinstance(error, OSError) and error.errno == errno.EIO:
            raise HybridError(
                f"{path}: cannot be read ({first}); check the disk", code="read-error", path=path
            ) from None
        raise InputError(
            f"{path}: is not a complete Parquet file ({first}); rebuild it", code="not-parquet", path=path
        ) from None


def enclosing_artifact(path: Path) -> Path:
    """Return the folder artifact that contains the table at `path`, or `path` itself.

    Tables inside a folder record no inputs of their own; the manifest of the folder does.
    """
    folders = (path.parent, path.parent.parent) if path.suffix == ".parquet" else ()
    return next((folder for folder in folders if (folder / MANIFEST).is_file()), path)


def fingerprint(path: Path) -> str:
    """Return the content hash of a file or folder: recorded for an artifact, else computed from the bytes."""
    manifest = find_manifest(path) if path.is_dir() or path.suffix == ".parquet" else None
    if manifest is not None and manifest.fingerprint:
        return manifest.fingerprint
    if path.is_dir():
        return hash_folder(path)
    return checksums.hash_file(path)


def hash_folder(path: Path, ignore: Sequence[str] = ()) -> str:
    """Return a hash of the names and fingerprints of the files below `path`.

    Manifests, learning curves, hidden files and the names in `ignore` (files or folders directly in `path`) do not
    count: no later stage depends on the measurements of a training.
    """
    return hash_names(fingerprints(path), ignore)


def fingerprints(path: Path) -> dict[str, str]:
    """Return relative path -> fingerprint of the files below a folder, without manifests and hidden files."""
    found = {}
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path)
        hidden = any(part.startswith(".") for part in name.parts)
        if file.is_file() and not hidden and name.name != MANIFEST:
            found[name.as_posix()] = fingerprint(file)
    return found


def sizes(path: Path, names: Iterable[str]) -> dict[str, int]:
    """Return relative path -> bytes of files below a folder."""
    return {name: (path / name).stat().st_size for name in names}


def hash_names(found: Mapping[str, str], ignore: Sequence[str] = ()) -> str:
    """Return the fingerprint of a folder with the fingerprints `found` of its files; see `hash_folder`."""
    digest = new_hash()
    for name, value in found.items():
        if name.split("/")[0] not in ignore and name.rpartition("/")[2] != CURVE:
            digest.update(f"{name}\0{value}\n".encode(errors="surrogateescape"))  # names may not be UTF-8
    return str(digest.hexdigest())


def file_names(path: Path) -> list[str]:
    """Return the relative paths of all files below a folder, without its manifest."""
    names = (file.relative_to(path).as_posix() for file in path.rglob("*") if not file.is_dir())
    return sorted(name for name in names if name != MANIFEST)


def foreign_file(path: Path, manifest: Manifest | None) -> str | None:
    """Return a file in the folder of an artifact that the manifest does not list; None if all are listed."""
    if manifest is None or manifest.files is None or not path.is_dir():
        return None
    return next((name for name in file_names(path) if name not in set(manifest.files)), None)


def plugins_of(manifest: Manifest | None) -> list[str]:
    """Return the plugins that an artifact was made with: names of files, and of packages with their versions."""
    if manifest is None:
        return []
    files = [role.removeprefix(PLUGIN) for role in manifest.inputs if role.startswith(PLUGIN)]
    packages = manifest.versions.keys() - {"hybrid", *_LIBRARIES}
    return [*files, *(f"{name} {manifest.versions[name]}" for name in sorted(packages))]


def refuse_missing_plugin(path: Path, group: str, name: object) -> None:
    """Refuse an artifact that was made with a plugin and names an entry of it that is not there.

    A plugin runs code: no artifact loads one.
    """
    if made_with := plugins_of(find_manifest(path)):
        raise InputError(
            f"{path}: needs '{name}' of {group}, and was made with the plugin {', '.join(made_with)}; install the "
            "package, or pass the file with --plugin",
            code="missing-plugin", path=path, group=group, name=name, plugins=made_with,
        )  # fmt: skip


def library_versions() -> dict[str, str]:
    """Return the versions of hybrid and of the libraries that affect results."""
    found = {library: _version(library) for library in _LIBRARIES}
    return {"hybrid": __version__} | {library: number for library, number in found.items() if number}


@cache
def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
