"""How far probabilities are right: calibration error, reliability, and risk at every coverage."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
BINS = 10


class Bin(NamedTuple):
    """Hits of similar probability: their mean probability, the share of relevant ones, and their number."""

    probability: float
    relevant: float
    hits: int


def reliability(probabilities: Values, relevant: Values, bins: int = BINS) -> list[Bin]:
    """Return bins of equal counts, from the lowest to the highest probability.

    Args:
        probabilities: [n] probability of each hit.
        relevant: [n] 1 for a relevant hit, else 0.
        bins: number of bins; fewer hits than bins give one bin each.
    """
    order = np.argsort(probabilities, kind="stable")
    parts = np.array_split(order, min(bins, len(order))) if len(order) else []
    return [Bin(float(probabilities[part].mean()), float(relevant[part].mean()), len(part)) for part in parts]


def calibration_error(bins: list[Bin]) -> float:
    """Return the expected calibration error: the mean distance of probability and share, weighted by hits."""
    hits = sum(each.hits for each in bins)
    return sum(each.hits * abs(each.probability - each.relevant) for each in bins) / max(1, hits)


def risk_at_coverage(confidence: Values, correct: Values) -> Values:
    """Return the share of wrong answers among the 1, 2, ... n most confident queries, [n].

    Args:
        confidence: [n] probability of the first hit of each query; 0 for a query without hits.
        correct: [n] 1 if that hit is relevant, else 0.
    """
    order = np.argsort(-confidence, kind="stable")
    risks: Values = np.cumsum(1 - correct[order]) / np.arange(1, len(order) + 1)
    return risks
