"""The commands of the panel "Training"."""

from __future__ import annotations

import typer

PANEL = "Training"


def register(app: typer.Typer) -> None:
    """Add this panel's commands to the application."""
