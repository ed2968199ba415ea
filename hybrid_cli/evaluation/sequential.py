"""Evidence that holds at every look: judged queries may be added until it suffices.

A bet on the sign of each difference multiplies a capital of 1. Without a true difference the expected capital stays 1,
however often one looks, so a capital of 40 is as rare as p = .025 (Ville's inequality; Waudby-Smith and Ramdas, 2023,
section 4: the mean of a grid of constant bets).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.floating]
_ERROR = 0.05  # of false decisions, at all looks together
_CAPITAL = math.log(2 / _ERROR)  # logarithm of the capital that decides
_BETS = np.geomspace(0.03, 0.9, 10)  # shares of the largest safe bet
_ROUNDING = 1e-9  # of a difference of values
_MOST_QUERIES = 100_000  # a decision beyond them is unknown
_STEPS = 24  # of the search for an end of an interval: to 1e-7


@dataclass(frozen=True)
class Evidence:
    """A comparison of the values of two systems on the queries judged so far.

    Attributes:
        queries: number of judged queries.
        difference: mean difference.
        probability: that the true mean difference is above 0, by Student's t with a flat prior; None if unknown.
        low, high: ends of the interval of the true mean difference; it holds at all looks together with 95%. Values
            beyond -1 and 1 have no bound to bet on: nothing is decided.
        more: judged queries until a decision, if the differences stay as they are; None if it is made, or unknown.
    """

    queries: int
    difference: float
    probability: float | None
    low: float
    high: float
    more: int | None

    @classmethod
    def of(cls, differences: Values) -> Evidence:
        """Return the evidence in differences [queries], whose order of judging does not depend on the outcome."""
        bound = float(np.abs(differences).max(initial=0))
        if bound > 1 + _ROUNDING:
            return cls(len(differences), float(differences.mean()), _probability(differences), -bound, bound, None)
        differences = np.clip(differences, -1, 1)
        low, high = _bound(differences), -_bound(-differences)
        return cls(
            len(differences),
            float(differences.mean()) if len(differences) else 0.0,
            _probability(differences),
            low,
            high,
            None if low > 0 or high < 0 else _more(differences),
        )

    @property
    def outcome(self) -> Literal["better", "worse", "undecided"]:
        """Return what the interval says."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "undecided"

    def content(self) -> dict[str, Any]:
        """Return all fields and the outcome, for JSON."""
        return {**asdict(self), "outcome": self.outcome}


def log_capital(differences: Values, mean: float = 0.0) -> float:
    """Return the logarithm of the capital of bets that the true mean difference is above `mean`.

    Args:
        differences: [queries] from -1 to 1.
        mean: from -1 to 1.
    """
    if not len(differences):
        return 0.0
    gains = np.log1p(np.outer(_BETS / (1 + mean), differences - mean)).sum(1)
    return float(np.logaddexp.reduce(gains)) - math.log(len(_BETS))


def _bound(differences: Values) -> float:
    """Return the lower end of the interval: the largest mean that the bets refute, or -1."""
    low, high = -1.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if log_capital(differences, middle) >= _CAPITAL else (low, middle)
    return low


def _probability(differences: Values) -> float | None:
    if len(differences) < 2 or not (deviation := float(differences.std(ddof=1))):
        return None
    from scipy.special import stdtr

    return float(stdtr(len(differences) - 1, differences.mean() / deviation * math.sqrt(len(differences))))


def _more(differences: Values) -> int | None:
    """Return the further queries at which the capital decides, if their differences are like those so far."""
    towards = differences if differences.sum() > 0 else -differences
    gains = np.log1p(np.outer(_BETS, towards))

    def decides(more: int) -> bool:
        return float(np.logaddexp.reduce(gains.sum(1) + more * gains.mean(1))) - math.log(len(_BETS)) >= _CAPITAL

    numbers = range(1, _MOST_QUERIES + 1)
    first = bisect_left(numbers, True, key=decides) if len(towards) else _MOST_QUERIES
    return numbers[first] if first < _MOST_QUERIES else None
