"""Where the figures come from, as the manifest of the report has it."""

from __future__ import annotations

from typing import Any

from hybrid_cli.artifacts import Manifest
from hybrid_cli.reporting.page import Cell, Section, Table


def section(manifest: Manifest) -> Section:
    """Inputs with their fingerprints, settings, and versions."""
    inputs = [
        [Cell(role), Cell(source.get("name") or source["path"]), Cell(source["kind"]), Cell(source["fingerprint"])]
        for role, source in manifest.inputs.items()
    ]
    settings = [[Cell(name), Cell(_plain(value))] for name, value in manifest.options.items()]
    versions = [[Cell(name), Cell(number)] for name, number in manifest.versions.items()]
    return Section(
        "provenance",
        "Where this comes from",
        text=["The page holds its manifest: hybrid inspect prints it, with the tree of what the runs were made from."],
        tables=[
            Table("Inputs", ["role", "path", "kind", "fingerprint"], inputs, left=4, folded=True),
            Table("Settings", ["option", "value"], settings, left=2, folded=True),
            Table("Versions", ["library", "version"], versions, left=2, folded=True),
        ],
    )


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
