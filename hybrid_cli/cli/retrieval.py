"""The commands of the panel "Retrieval"."""

from __future__ import annotations

import typer

PANEL = "Retrieval"


def register(app: typer.Typer) -> None:
    """Add this panel's commands to the application."""
