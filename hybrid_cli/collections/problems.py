"""What a reader finds wrong or odd in a collection: counts, with three examples of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hybrid_cli.collections.readers.lines import Place

EXAMPLES = 3


@dataclass
class Finding:
    """How often something was found, the first few ids, and where the first stands."""

    first: Place
    count: int = 0
    examples: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.count:,} ({', '.join(self.examples)}{', ...' if self.count > len(self.examples) else ''})"


class Findings:
    """Findings by name, in the order in which they came up."""

    def __init__(self) -> None:
        self._found: dict[str, Finding] = {}

    def add(self, name: str, example: str, place: Place) -> None:
        """Count one more of `name`."""
        finding = self._found.setdefault(name, Finding(place))
        finding.count += 1
        if len(finding.examples) < EXAMPLES:
            finding.examples.append(example)

    def get(self, name: str) -> Finding | None:
        """The finding `name`, None if nothing of the kind came up."""
        return self._found.get(name)

    def lines(self) -> list[str]:
        """One line each, for a person."""
        return [f"{name}: {finding}" for name, finding in self._found.items()]

    def counts(self) -> dict[str, Any]:
        """For a manifest."""
        return {name: {"count": each.count, "examples": each.examples} for name, each in self._found.items()}
