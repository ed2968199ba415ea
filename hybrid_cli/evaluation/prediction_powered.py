"""Prediction-powered means: a machine judges all queries, and the queries that people judged correct its bias.

The estimate is the mean by people plus `weight` times the difference between the machine's mean on the other queries
and its mean on the queries of people (PPI++: Angelopoulos, Duchi and Zrnic, arXiv:2311.01453; ppi-python computes the
same estimate and weight). With 20 to 100 queries of people, its normal interval is too narrow. Ours has Student's t,
two degrees of freedom fewer for the residuals, since mean and weight are estimated from them, and a longer end on the
side of the skewness (the first term of Hall, 1992, On the removal of skewness by transformation).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
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
        half = _quantile(count - 1, confidence) * error
        weight = power_tuned_weight(people, machine, others)
        mean, below, above = own, half, half
        if weight > 0:
            mean = own + weight * float(others.mean() - machine.mean())
            below, above = _arms(people - weight * machine, weight * others, confidence)
        whole = float(np.concatenate([machine, others]).mean())
        return cls(mean, mean - below, mean + above, own, own - half, own + half, whole, weight, count, len(others))

    def content(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        return asdict(self)


def power_tuned_weight(people: Values, machine: Values, others: Values) -> float:
    """Return the weight of the machine that minimizes the variance, from 0 to 1; see `CorrectedMean.of`.

    With several rows [..., queries], the one weight that minimizes the sum of their variances.
    """
    if others.shape[-1] < 2:
        return 0.0
    spread = float(np.concatenate([machine, others], axis=-1).var(axis=-1, ddof=1).sum())
    if spread == 0:
        return 0.0
    common = float((_centered(people) * _centered(machine)).mean(axis=-1).sum())
    ratio = float(people.shape[-1] / others.shape[-1])
    return min(max(common / ((1 + ratio) * spread), 0.0), 1.0)


def _centered(values: Values, axis: int = -1) -> Values:
    return np.asarray(values - values.mean(axis=axis, keepdims=True))


def rectified(people: Values, machine: Values, others: Values) -> tuple[Values, float]:
    """Return values whose means are prediction-powered, for a choice among several by a tuning on few queries.

    Each query of people brings an equal share of the machine's other queries: its value is that by people, plus the
    weight times the difference between the machine's mean on this share and its value of the query. The standard error
    of a mean, also of a difference of two choices, is then that of the estimate, and a part of the queries estimates
    the same means.

    Args:
        people: [choices, queries] values by the judgments of people.
        machine: [choices, queries] values of the same queries by the machine's judgments.
        others: [choices, others] values by the machine of queries that people did not judge.

    Returns:
        Values [choices, queries], and the weight: one for all choices, of their differences from their mean.
    """
    weight = power_tuned_weight(*(_centered(values, axis=0) for values in (people, machine, others)))
    if weight == 0:
        return people, weight
    ends = np.linspace(0, others.shape[1], people.shape[1] + 1)
    sums = np.insert(others.cumsum(axis=1), 0, 0, axis=1)
    shares = np.diff([np.interp(ends, np.arange(len(row)), row) for row in sums], axis=1) / ends[1]
    return people + weight * (shares - machine), weight


def _arms(residuals: Values, others: Values, confidence: float) -> tuple[float, float]:
    """Return the lengths of an interval below and above the sum of the means of two samples."""
    count, rest = len(residuals), len(others)
    variances = np.array([residuals.var(ddof=2) / count, others.var(ddof=1) / rest])
    total = float(variances.sum())
    if total == 0:
        return 0.0, 0.0
    freedom = total**2 / float((variances**2 / (count - 2, rest - 1)).sum())  # Welch and Satterthwaite
    quantile = _quantile(freedom, confidence)
    third = _third_moment(residuals) / ((count - 1) * (count - 2)) + _third_moment(others) / rest**2
    shift = third / total * (2 * quantile**2 + 1) / 6
    half = quantile * math.sqrt(total)
    return half + max(-shift, 0.0), half + max(shift, 0.0)


def _third_moment(values: Values) -> float:
    return float(((values - values.mean()) ** 3).mean())


def _quantile(freedom: float, confidence: float) -> float:
    from scipy.special import stdtrit  # slow to import

    return float(stdtrit(freedom, (1 + confidence) / 2))
