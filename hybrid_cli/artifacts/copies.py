"""Copies of artifacts inside others."""

from __future__ import annotations

from pathlib import Path

from hybrid_cli import storage
from hybrid_cli.artifacts.manifest import read_manifest
from hybrid_cli.storage import disk


def hard_link(path: Path, place: Path) -> None:
    """Give a file or folder of an artifact a second name, see `storage.hard_link`; manifests keep their input paths."""
    storage.hard_link(path, place, _copy_manifest)


def _copy_manifest(file: Path, target: Path) -> None:
    with storage.replacing(target) as scratch:
        disk.write_text(scratch, read_manifest(file.parent).moved_to(target.parent).to_json())
