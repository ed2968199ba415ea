"""The checks of `doctor` and their table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybrid_cli import console
from hybrid_cli.errors import HybridError
from hybrid_cli.settings import Doctor


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: the requirement.
        present: whether it is met.
        found: version or place, in words.
        needed: whether commands fail without it.
        advice: command that installs it, or a hint.
    """

    name: str
    present: bool
    found: str
    needed: bool = True
    advice: str = ""

    @property
    def state(self) -> str:
        """Return `ok`, `missing` (needed) or `none` (optional)."""
        return "ok" if self.present else "missing" if self.needed else "none"


def show(checks: Sequence[Check], settings: Doctor) -> None:
    """Print the checks.

    Raises:
        HybridError: a required component is missing.
    """
    console.table(
        ("component", "state", "found", "advice"),
        [(check.name, check.state, check.found, check.advice) for check in checks],
        left=("state", "found", "advice"),
    )
    if missing := [check.name for check in checks if check.state == "missing"]:
        raise HybridError(f"doctor: missing: {', '.join(missing)}; the last column says how to install them")
