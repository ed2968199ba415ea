"""The weight of the second encoder of a combination, selected on judged queries by `combine --tune`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hybrid_cli.fusion.selection import Choice, Plateau, Table, Values, interval

_FOLDS, _SEED = 5, 42  # of the held-out score


@dataclass(frozen=True)
class TunedWeight:
    """Result of tuning: the middle of the plateau of a scaled grid, the best weight of another one (SPAR, appendix A).

    Attributes:
        table: values of all combinations, [weights, queries]; a choice has the weights of the second and of the first
            encoder, both above 0.
        alone: encoder -> value of each judged query, in the order of the models.
        scaled: the grid is scaled.
    """

    table: Table
    alone: Mapping[str, Values]
    scaled: bool

    @cached_property
    def plateau(self) -> Plateau:
        """Return the plateau."""
        return self.table.plateau()

    @property
    def row(self) -> int:
        """Return the row of the selected weight."""
        return self.plateau.chosen if self.scaled else self.plateau.best

    @property
    def choice(self) -> Choice:
        """Return the selected choice."""
        return self.table.choices[self.row]

    @property
    def weight(self) -> float:
        """Return the weight of the second encoder next to 1 for the first."""
        return self.choice.weights[0]

    @property
    def share(self) -> float | None:
        """Return the share of the second encoder; None without a scaled grid."""
        return float(self.choice.place[0]) if self.scaled else None

    @property
    def near(self) -> tuple[float, float]:
        """Return the lowest and the highest weight of the plateau."""
        weights = [self.table.choices[row].weights[0] for row in self.plateau.rows]
        return min(weights), max(weights)

    @property
    def best_share_at_end(self) -> float | None:
        """Return the share of the best weight if it is an end of a scaled grid, else None."""
        ends = (0, len(self.table.choices) - 1)
        best = self.plateau.best
        return float(self.table.choices[best].place[0]) if self.scaled and best in ends else None

    @property
    def score(self) -> float:
        """Return the mean of the judged queries."""
        return float(self.table.values[self.row].mean())

    @cached_property
    def held_out(self) -> Values | None:
        """Return the value of each query under the weight of the other folds; None for a single query."""
        return self.table.held_out(_FOLDS, _SEED, best=not self.scaled)

    @property
    def best_single(self) -> str:
        """Return the better encoder alone."""
        return max(self.alone, key=lambda name: float(self.alone[name].mean()))

    @property
    def gain(self) -> tuple[float, float, float] | None:
        """Return the held-out gain over the better encoder alone: mean, lower and upper end of its 95% interval.

        None for a single query.
        """
        if self.held_out is None:
            return None
        gains = self.held_out - self.alone[self.best_single]
        ends = interval(gains)
        return None if ends is None else (float(gains.mean()), *ends)

    def content(self) -> dict[str, Any]:
        """Return the scores for the manifest."""
        return {
            "share": self.share,
            "score": self.score,
            "held_out": None if self.held_out is None else float(self.held_out.mean()),
            "alone": {name: float(values.mean()) for name, values in self.alone.items()},
            "gain": self.gain,
            "queries": self.table.queries,
        }
