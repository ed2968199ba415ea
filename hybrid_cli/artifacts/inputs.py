"""Inputs of artifacts: how manifests record them, and whether they are still what was recorded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from hybrid_cli.artifacts.manifest import Manifest, find_manifest, location_of, stored_path
from hybrid_cli.errors import InputError
from hybrid_cli.storage import Kind
from hybrid_cli.storage.integrity import replaced_error
from hybrid_cli.storage.records import MANIFEST, fingerprint


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
class Part:
    """An input of which the output contains a copy, so that both move together.

    Attributes:
        name: path of the copy, relative to the output.
        path: the input.
    """

    name: str
    path: Path


@dataclass(frozen=True)
class Recorded:
    """An input that the manifest of another artifact records; it may be missing or have other content by now.

    Attributes:
        path: recorded path; for a model recorded by name, the name as a path, which nothing opens.
        name: name of a model of the environment.
        split_passages: words of a passage, of a corpus made with `--split-passages`.
    """

    path: Path
    kind: str
    fingerprint: str
    name: str | None = None
    split_passages: str | None = None

    @property
    def is_unchanged(self) -> bool:
        """Return whether the input is there, with the recorded content."""
        return has_content(self.path, self.fingerprint)


Input: TypeAlias = Path | Named | Part | Recorded


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
    return Recorded(
        Path(manifest.input_label(role)), source["kind"], source["fingerprint"], name, source.get("split_passages")
    )


class Sources:
    """The inputs of an output: described before the work, and compared at its end.

    Args:
        inputs: role -> input.
    """

    def __init__(self, inputs: Mapping[str, Input] | None = None):
        self._inputs = dict(inputs or {})
        self._states = {
            role: _state(_path(source)) for role, source in self._inputs.items() if not isinstance(source, Recorded)
        }
        self._described: dict[str, dict[str, str]] = {}

    def describe(self, output: Path) -> dict[str, dict[str, str]]:
        """Return `Manifest.inputs` for an artifact that will be written to `output`."""
        self._described = {role: _description(source, output) for role, source in self._inputs.items()}
        return self._described

    def refuse_replaced(self) -> None:
        """Refuse a result if an input was replaced since it was described: the result may mix its two versions.

        Raises:
            HybridError: names the input.
        """
        for role, state in self._states.items():
            path = _path(self._inputs[role])
            if _state(path) != state and not has_content(path, self._described[role]["fingerprint"]):
                raise replaced_error(path)

    def set_later(self, output: Path) -> None:
        """Let the time stamps of an output be later than those of the inputs, also if the clock went back: for make."""
        newest = max((status[-1] for state in self._states.values() for status in state), default=0)
        for path in [output, output / MANIFEST] if output.is_dir() else [output]:
            if path.exists() and path.stat().st_mtime_ns < newest:
                os.utime(path, ns=(newest, newest))


def describe_inputs(inputs: Mapping[str, Input], output: Path) -> dict[str, dict[str, str]]:
    """Return `Manifest.inputs` for an artifact that will be written to `output`."""
    return Sources(inputs).describe(output)


def _path(source: Input) -> Path:
    return source if isinstance(source, Path) else source.path


def _state(path: Path) -> list[tuple[int, int, int, int]]:
    """Return facts that change with every replacement of an input: of a file, of a manifest, or of all files."""
    files = [path / MANIFEST] if (path / MANIFEST).is_file() else [path, *sorted(path.rglob("*"))]
    states = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        states.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
    return states


def _description(source: Input, output: Path) -> dict[str, str]:
    path = _path(source)
    name = None if isinstance(source, Path) else source.name
    address = {"path": stored_path(path, location_of(output))} if name is None else {"name": name}
    if isinstance(source, Part):
        address = {"part": source.name}
    if isinstance(source, Recorded):
        passages = {} if source.split_passages is None else {"split_passages": source.split_passages}
        return {**address, "kind": source.kind, "fingerprint": source.fingerprint, **passages}
    manifest = find_manifest(path)
    words = manifest.options.get("split_passages") if manifest and manifest.kind == Kind.CORPUS else None
    passages = {} if words is None else {"split_passages": str(words)}
    kind = str(manifest.kind) if manifest else "file"
    return {**address, "kind": kind, "fingerprint": fingerprint(path), **passages}
