"""The verdict on a system against a baseline, in a sentence: better, worse, or too few queries to tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hybrid_cli.evaluation.sequential import Evidence
from hybrid_cli.fusion.selection import Values, interval, queries_to_tell
from hybrid_cli.reporting.tables import figure, with_sign

_TIE = 1e-12  # smaller differences are rounding errors
_SURE = 0.001  # no probability is shown nearer to 0 or 1


@dataclass(frozen=True)
class Verdict:
    """A comparison by one measure over the same queries.

    Attributes:
        baseline, run: names.
        before, after: means of the baseline and of the run.
        interval: 95% interval of the mean difference, by Student's t; None for one query.
        wins, losses: queries on which the run is better and worse.
        queries: number of judged queries.
        needed: judged queries at which a difference of this size would be significant with a power of .8.
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
    needed: int | None

    @classmethod
    def of(
        cls, measure: str, baseline: tuple[str, Values], run: tuple[str, Values], gains: Values | None = None
    ) -> Verdict:
        """Compare the values [queries] of a run with those of a baseline, each with its name.

        Args:
            measure: name of the measure.
            baseline, run: name and values.
            gains: gain on each query, of which wins and losses are counted; None for the differences of the values.
        """
        differences = run[1] - baseline[1]
        gains = differences if gains is None else gains
        means = float(baseline[1].mean()), float(run[1].mean())
        counts = int((gains > _TIE).sum()), int((gains < -_TIE).sum()), len(differences)
        return cls(measure, baseline[0], run[0], *means, interval(differences), *counts, queries_to_tell(differences))

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
            more = None if self.needed is None else self.needed - self.queries
            rest = f"; about {more:,} more would, if the difference is what it seems" if more and more > 0 else ""
            return f"{means}: {self.queries:,} judged queries cannot tell which is better{rest}."
        low, high = map(with_sign, self.interval or ())
        advice = "" if self.outcome == "better" else f" Keep {self.baseline}."
        counts = f"better on {self.wins:,} of {self.queries:,} queries, worse on {self.losses:,}"
        return f"{means} ({with_sign(self.after - self.before)}, 95% interval {low} to {high}): {counts}.{advice}"


def evidence_sentence(run: str, measure: str, evidence: Evidence) -> str:
    """Return how probably a run is better than a baseline, by how much, and how many more queries would decide."""
    if evidence.probability is None:
        return f"{run} against {evidence.baseline}: {evidence.queries:,} judged queries say nothing about {measure}."
    low, high = with_sign(evidence.low, 3), with_sign(evidence.high, 3)
    rest = "decided" if evidence.outcome != "undecided" else "undecided"
    rest = rest if evidence.more is None else f"about {evidence.more:,} more judged queries would decide"
    shown = figure(min(max(evidence.probability, _SURE), 1 - _SURE), 3)
    difference = f"{with_sign(evidence.difference, 3)}, {low} to {high} however often one looks"
    return f"{run} beats {evidence.baseline} with probability {shown}: {measure} {difference}; {rest}."
