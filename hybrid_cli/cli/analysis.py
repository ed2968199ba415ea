"""The commands of the panel "Analysis"."""

from __future__ import annotations

import typer

PANEL = "Analysis"


def register(app: typer.Typer) -> None:
    """Add this panel's commands to the application."""
