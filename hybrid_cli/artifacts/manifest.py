"""Manifests: the record of an artifact with its origin, the options and inputs of the stage that wrote it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hybrid_cli import storage
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.storage import Kind, disk, records
from hybrid_cli.storage.records import MANIFEST, Record, file_names
from hybrid_cli.version import __version__


def hard_link(path: Path, link: Path) -> None:
    """Give a file or folder of an artifact a second name, see `storage.hard_link`; manifests keep their input paths."""
    storage.hard_link(path, link, _copy_manifest)


def _copy_manifest(file: Path, target: Path) -> None:
    with storage.replacing(target) as scratch:
        disk.write_text(scratch, read_manifest(file.parent).moved_to(target.parent).to_json())


PLUGIN = "plugin "  # begins the role of a plugin file, an input
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_LIBRARIES = (
    "torch",
    "transformers",
    "pyserini",
    "faiss-cpu",
    "faiss-gpu",
    "pyarrow",
    "polars",
    "numpy",
    "selectolax",
    "sentencex",
    "py3langid",
    "altair",
)


@dataclass(frozen=True)
class Manifest(Record):
    """Record and origin of an artifact.

    Attributes:
        options: the options that affect the result, as JSON.
        inputs: role -> `{path, kind, fingerprint}`, or `{name, kind, fingerprint}` for a model of the environment.
            Paths are relative to the folder that contains the artifact, with forward slashes. `{part, kind,
            fingerprint}` is a copy inside the artifact, a folder, with a path relative to it.
        versions: name -> version of hybrid, of the libraries, and of packages with plugins.
        seconds: time of the stage.
        location: path of the artifact, with symbolic links resolved. Not stored.
    """

    options: dict[str, Any]
    inputs: dict[str, dict[str, str]]
    versions: dict[str, str] = field(default_factory=dict, kw_only=True)
    seconds: float | None = field(default=None, kw_only=True)
    location: Path | None = field(default=None, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for role, source in self.inputs.items():
            if not role.strip() or "fingerprint" not in source or not {"path", "part", "name"} & set(source):
                problem = f"input '{role}' needs a role, a fingerprint, and a path, a part or a name"
                raise InputError(problem, code="invalid-field")
            if "\0" in source.get("path", "") + source.get("part", ""):
                raise InputError(f"input '{role}' has a NUL in its path", code="invalid-field")

    def of_table(self, path: Path) -> Manifest:
        """Return the manifest of a table at `path`.

        A table inside a folder stores no inputs: the manifest of the folder does, and the table may be hard-linked
        elsewhere.
        """
        inside = self.location is not None and path.parent.resolve() != self.location.parent
        return replace(self, inputs={}) if inside else self

    def input_path(self, role: str) -> Path | None:
        """Return the recorded path of an input, which may no longer exist.

        Returns:
            None for an input recorded by name, or by a URL, as by earlier versions: a URL in a file is never followed.
        """
        source = self.inputs.get(role, {})
        if self.location is not None and "part" in source:
            return Path(os.path.normpath(self.location / source["part"]))
        recorded = source.get("path")
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
            role: recorded | ({"path": stored_path(path, home)} if "path" in recorded and path is not None else {})
            for role, recorded in self.inputs.items()
            for path in [self.input_path(role)]
        }
        return replace(self, inputs=inputs, location=home)

    def of_part(self, folder: Path, location: Path, kind: Kind, counts: dict[str, Any]) -> Manifest:
        """Return the manifest of a folder that is an artifact inside this one, and will be at `location`."""
        return records.of_folder(self.moved_to(location), folder, kind=kind, counts=counts)

    def key(self) -> str:
        """Return the fields that decide whether an output is up to date; library versions do not."""
        fingerprints = {role: source["fingerprint"] for role, source in self.inputs.items()}
        return json.dumps([self.format, self.kind, self.stage, self.options, fingerprints], sort_keys=True)

    def call(self) -> str:
        """Return the key with the version of hybrid: another version does not continue unfinished work."""
        return json.dumps([*json.loads(self.key()), self.versions.get("hybrid", "")], sort_keys=True)


def location_of(output: Path) -> Path:
    """Return the path of an output, with symbolic links resolved: its manifest is read there."""
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
    return _located(records.read_record(Manifest, path, kind, any_format), path)


def find_manifest(path: str | Path, any_format: bool = False) -> Manifest | None:
    """Return the manifest of `path`, or None if the file or folder was not written by hybrid.

    Args:
        any_format: also return manifests of older formats, whose input paths have another meaning.

    Raises:
        InputError: `path` does not exist, or its manifest is damaged or of another format.
    """
    manifest = records.find_as(Manifest, path, any_format)
    return None if manifest is None else _located(manifest, path)


def _located(manifest: Manifest, path: str | Path) -> Manifest:
    return replace(manifest, location=Path(path).resolve())


def enclosing_artifact(path: Path) -> Path:
    """Return the folder artifact that contains the table at `path`, or `path` itself.

    Tables inside a folder record no inputs of their own; the manifest of the folder does.
    """
    folders = (path.parent, path.parent.parent) if path.suffix == ".parquet" else ()
    return next((folder for folder in folders if (folder / MANIFEST).is_file()), path)


def foreign_file(path: Path, manifest: Manifest | None) -> str | None:
    """Return a file in the folder of an artifact that the manifest does not list; None if all are listed."""
    if manifest is None or manifest.files is None or not path.is_dir():
        return None
    return next((name for name in file_names(path) if name not in set(manifest.files)), None)


@contextmanager
def naming_plugins() -> Iterator[None]:
    """Turn an error about an unknown entry of a registry into one that names the plugin of the artifact.

    A plugin runs code: no artifact loads one.
    """
    try:
        yield
    except InputError as error:
        path, group, name = (error.fields.get(field) for field in ("path", "group", "name"))
        manifest = find_manifest(str(path)) if path and group and name is not None else None
        if manifest is not None:
            files = [role.removeprefix(PLUGIN) for role in manifest.inputs if role.startswith(PLUGIN)]
            packages = sorted(manifest.versions.keys() - {"hybrid", *_LIBRARIES})
            if made_with := [*files, *(f"{package} {manifest.versions[package]}" for package in packages)]:
                wanted = f"needs '{name}' of {group}, of the plugin {', '.join(made_with)}"
                fields = {"group": group, "name": name, "plugins": made_with}
                raise path_error(
                    path, f"{wanted}; install it, or pass --plugin", code="missing-plugin", **fields
                ) from None
        raise


def library_versions() -> dict[str, str]:
    """Return the versions of hybrid and of the libraries that affect results."""
    versions = {library: _version(library) for library in _LIBRARIES}
    return {"hybrid": __version__} | {library: number for library, number in versions.items() if number}


@cache
def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
