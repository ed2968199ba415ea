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
    """An input that the manifest of another artifact records; it may be missing or have other content by now."""

    path: Path
    kind: str
    fingerprint: str

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
    """Return an input as recorded; None for an input recorded by name or URL."""
    if manifest.input_path(role) is None:
        return None
    source = manifest.inputs[role]
    return Recorded(Path(manifest.input_label(role)), source["kind"], source["fingerprint"])


def describe_inputs(inputs: Mapping[str, Input], output: Path) -> dict[str, dict[str, str]]:
    """Return `Manifest.inputs` for an artifact that will be written to `output`."""
    return {role: _described(source, output) for role, source in inputs.items()}


def _described(source: Input, output: Path) -> dict[str, str]:
    path = source if isinstance(source, Path) else source.path
    place = {"name": source.name} if isinstance(source, Named) else {"path": stored_path(path, location_of(output))}
    if isinstance(source, Recorded):
        return {**place, "kind": source.kind, "fingerprint": source.fingerprint}
    manifest = find_manifest(path)
    return {**place, "kind": str(manifest.kind) if manifest else "file", "fingerprint": fingerprint(path)}
