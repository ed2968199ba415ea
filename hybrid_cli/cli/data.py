"""The commands of the panel "Data"."""

from __future__ import annotations

import typer

PANEL = "Data"


def register(app: typer.Typer) -> None:
    """Add this panel's commands to the application."""
