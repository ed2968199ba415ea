"""The verdict on a system against a baseline, in a sentence: better, worse, or too few queries to tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hybrid_cli.evaluation.sequential import Evidence
from hybrid_cli.fusion.selection import Values, interval
from hybrid_cli.reporting.tables import figure, with_sign

_TIE = 1e-12  # smaller differences are rounding errors


@dataclass(frozen=True)
class Verdict:
    """A comparison by one measure over the same queries.

    Attributes:
        baseline, run: names.
        before, after: means of the baseline and of the run.
        interval: 95% interval of the mean difference; None for one query.
        every_look: the interval holds at all looks together, for queries that are judged until it decides; else it is
            that of Student's t, for queries that were chosen before.
        wins, losses: queries on which the run is better and worse.
        queries: number of judged queries.
        more: further judged queries until a decision at every look, if their differences are like those so far; None
            if it is made, or unknown.
    """

    measure: str
    baseline: str
    run: str
    before: float
    after: float
    interval: tuple[float, float] | None
    wins: int
    losses: int
    queries: int
    more: int | None
    every_look: bool = False

    @classmethod
    def of(
        cls,
        measure: str,
        baseline: tuple[str, Values],
        run: tuple[str, Values],
        gains: Values | None = None,
        every_look: bool = False,
    ) -> Verdict:
        """Compare the values [queries] of a run with those of a baseline, each with its name.

        Args:
            measure: name of the measure.
            baseline, run: name and values.
            gains: gain on each query, of which wins and losses are counted; None for the differences of the values.
            every_look: see the class; the queries must be judged in an order that does not depend on the outcome.
        """
        differences = run[1] - baseline[1]
        gains = differences if gains is None else gains
        means = float(baseline[1].mean()), float(run[1].mean())
        counts = int((gains > _TIE).sum()), int((gains < -_TIE).sum()), len(differences)
        evidence = Evidence.of(gains)
        ends = (evidence.low, evidence.high) if every_look else interval(differences)
        return cls(measure, baseline[0], run[0], *means, ends, *counts, evidence.more, every_look)

    @classmethod
    def stored(cls, content: Mapping[str, Any]) -> Verdict:
        """Return the verdict of `content`."""
        values = {name: value for name, value in content.items() if name != "outcome"}
        return cls(**values | {"interval": values["interval"] and tuple(values["interval"])})

    @property
    def outcome(self) -> Literal["better", "worse", "undecided"]:
        """Return what the interval says about the run."""
        low, high = self.interval or (-1.0, 1.0)
        return "better" if low > _TIE else "worse" if high < -_TIE else "undecided"

    def content(self) -> dict[str, Any]:
        """Return all fields and the outcome, for JSON."""
        return {**asdict(self), "outcome": self.outcome}

    def sentence(self) -> str:
        """Return the verdict for people who read no tables."""
        means = f"{self.baseline} {figure(self.before, 3)} -> {self.run} {figure(self.after, 3)} {self.measure}"
        if self.outcome == "undecided":
            rest = "" if self.more is None else f"; about {self.more:,} more would, if they are like these"
            judged = "1 judged query" if self.queries == 1 else f"{self.queries:,} judged queries"
            return f"{means}: {judged} cannot tell which is better{rest}."
        low, high = map(with_sign, self.interval or ())
        advice = "" if self.outcome == "better" else f" Keep {self.baseline}."
        counts = f"better on {self.wins:,} of {self.queries:,} queries, worse on {self.losses:,}"
        return f"{means} ({with_sign(self.after - self.before)}, 95% interval {low} to {high}): {counts}.{advice}"
