"""Prediction-powered means: a machine judges all queries, and the queries that people judged correct its bias.

The estimate is the mean by people plus `weight` times the difference between the machine's mean on the other queries
and its mean on the queries of people (PPI++: Angelopoulos, Duchi and Zrnic, arXiv:2311.01453; ppi-python computes the
same estimate and weight). With 20 to 100 queries of people, its normal interval is too narrow. Ours is wider: Student's
t, with two degrees of freedom fewer for the residuals, since mean and weight are estimated from them.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.floating]
LEAST_QUERIES = 20  # judged by people and machine, for a correction


@dataclass(frozen=True)
class CorrectedMean:
    """A mean over queries, or over differences of two runs on each query.

    Attributes:
        mean, low, high: corrected mean, and ends of its interval.
        by_people, people_low, people_high: mean and Student interval of the queries that people judged, alone.
        by_machine: mean of the machine over all queries.
        weight: share of the machine's difference that counts, from 0 (useless machine) to 1.
        queries: number of queries judged by people and machine.
        others: number of queries judged by the machine alone.
    """

    mean: float
    low: float
    high: float
    by_people: float
    people_low: float
    people_high: float
    by_machine: float
    weight: float
    queries: int
    others: int

    @classmethod
    def of(cls, people: Values, machine: Values, others: Values, confidence: float = 0.95) -> CorrectedMean:
        """Correct the mean of a machine.

        Args:
            people: [queries] values by the judgments of people; at least three, a random sample of all queries.
            machine: [queries] values of the same queries by the machine's judgments.
            others: [others] values by the machine's judgments of the queries that people did not judge.
            confidence: share of such intervals that contain the true mean.
        """
        count = len(people)
        own = float(people.mean())
        error = float(people.std(ddof=1)) / math.sqrt(count)
        half_of_people = _quantile(count - 1, confidence) * error
        weight = power_tuned_weight(people, machine, others)
        mean, half = own, half_of_people
        if weight > 0:
            mean = own + weight * float(others.mean() - machine.mean())
            variances = (
                float((people - weight * machine).var(ddof=2)) / count,
                weight**2 * float(others.var(ddof=1)) / len(others) if len(others) > 1 else math.inf,
            )
            half = _half_width(variances, (count - 2, len(others) - 1), confidence)
        whole = float(np.concatenate([machine, others]).mean())
        return cls(
            mean, mean - half, mean + half, own, own - half_of_people, own + half_of_people, whole, weight, count,
            len(others),
        )  # fmt: skip

    def content(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        return asdict(self)


def power_tuned_weight(people: Values, machine: Values, others: Values) -> float:
    """Return the weight of the machine that minimizes the variance, from 0 to 1; see `CorrectedMean.of`."""
    if len(others) < 2:
        return 0.0
    spread = float(np.concatenate([machine, others]).var(ddof=1))
    if spread == 0:
        return 0.0
    common = float(((people - people.mean()) * (machine - machine.mean())).mean())
    return min(max(common / ((1 + len(people) / len(others)) * spread), 0.0), 1.0)


def _half_width(variances: tuple[float, float], freedom: tuple[int, int], confidence: float) -> float:
    """Return half the width of an interval of a sum of two means (Welch and Satterthwaite)."""
    total = sum(variances)
    if total == 0:
        return 0.0
    joint = total**2 / sum(variance**2 / degrees for variance, degrees in zip(variances, freedom, strict=True))
    return _quantile(joint, confidence) * math.sqrt(total)


def _quantile(freedom: float, confidence: float) -> float:
    from scipy.special import stdtrit  # slow to import

    return float(stdtrit(freedom, (1 + confidence) / 2))
