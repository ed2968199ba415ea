"""Inputs of artifacts: how manifests record them, and whether they are still what was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from hybrid_cli.artifacts.manifest import Manifest, find_manifest, fingerprint, location_of, stored_path
from hybrid_cli.errors import InputError


@dataclass(frozen=True)
class Named:
    """An input that manifests record by name, because its files belong to the environment and not to the project.

    Attributes:
        name: model name, such as `minilm` or `owner/model`.
        path: folder of the model on this machine.
    """

    name: str
    path: Path


@dataclass(frozen=True)
class Recorded:
    """An input that the manifest of another artifact records; it may be missing or have other content by now.

    Attributes:
        path: recorded path; for a model recorded by name, the name as a path, which nothing opens.
        name: name of a model of the environment.
    """

    path: Path
    kind: str
    fingerprint: str
    name: str | None = None

    @property
    def is_unchanged(self) -> bool:
        """Return whether the input is there, with the recorded content."""
        return has_content(self.path, self.fingerprint)


Input: TypeAlias = Path | Named | Recorded


def has_content(path: Path, recorded: str) -> bool:
    """Return whether a file or folder has the content of a recorded fingerprint."""
    try:
        return fingerprint(path) == recorded
    except (InputError, OSError):  # gone, damaged, or of another format
        return False


def recorded_input(manifest: Manifest, role: str) -> Recorded | None:
    """Return an input as recorded; None if the manifest has no such input, or only its URL. Nothing is opened."""
    source = manifest.inputs.get(role)
    if source is None or (manifest.input_path(role) is None and "name" not in source):
        return None
    name = source.get("name") if "path" not in source else None
    return Recorded(Path(manifest.input_label(role)), source["kind"], source["fingerprint"], name)


def describe_inputs(inputs: Mapping[str, Input], output: Path) -> dict[str, dict[str, str]]:
    """Return `Manifest.inputs` for an artifact that will be written to `output`."""
    return {role: _described(source, output) for role, source in inputs.items()}


def _described(source: Input, output: Path) -> dict[str, str]:
    path = source if isinstance(source, Path) else source.path
    name = None if isinstance(source, Path) else source.name
    place = {"path": stored_path(path, location_of(output))} if name is None else {"name": name}
    if isinstance(source, Recorded):
        return {**place, "kind": source.kind, "fingerprint": source.fingerprint}
    manifest = find_manifest(path)
    return {**place, "kind": str(manifest.kind) if manifest else "file", "fingerprint": fingerprint(path)}
