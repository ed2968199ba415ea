"""The commands of the panel "Lexical"."""

from __future__ import annotations

import typer

PANEL = "Lexical"


def register(app: typer.Typer) -> None:
    """Add this panel's commands to the application."""
