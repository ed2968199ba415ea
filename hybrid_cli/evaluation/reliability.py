"""How far probabilities are right: calibration error, reliability, risk at every coverage, and false hits."""

from __future__ import annotations

import math
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

    Queries of equal confidence count as in random order: each is wrong by the share of wrong ones among them.

    Args:
        confidence: [n] probability, or score, of the first hit of each query.
        correct: [n] 1 if that hit is relevant, else 0.
    """
    _, group, counts = np.unique(-confidence, return_inverse=True, return_counts=True)
    wrong = np.bincount(group, 1 - correct) / counts
    risks: Values = np.cumsum(wrong[np.sort(group)]) / np.arange(1, len(group) + 1)
    return risks


def area_under_roc(confidence: Values, answerable: NDArray[np.bool_]) -> float | None:
    """Return the probability that a query with an answer has a higher confidence than one without; ties count half.

    Args:
        confidence: [n] of each query.
        answerable: [n] the query has a relevant document.

    Returns:
        None if all queries have an answer, or none has one.
    """
    from scipy.stats import rankdata  # slow to import

    having, lacking = int(answerable.sum()), int((~answerable).sum())
    if not having or not lacking:
        return None
    ranks = float(rankdata(confidence)[answerable].sum())
    return (ranks - having * (having + 1) / 2) / (having * lacking)


def false_hits(confidence: Values, answerable: NDArray[np.bool_], kept: float) -> float | None:
    """Return the share of queries without an answer that return hits, at a threshold that keeps most others.

    Args:
        confidence: [n] of each query; minus infinity without hits.
        answerable: [n] the query has a relevant document.
        kept: share of the queries with an answer that are kept.

    Returns:
        None if all queries have an answer, or none has one.
    """
    having, lacking = np.sort(confidence[answerable]), confidence[~answerable]
    if not len(having) or not len(lacking):
        return None
    threshold = having[math.floor((1 - kept) * (len(having) - 1) + 1e-9)]
    return float((np.isfinite(lacking) & (lacking >= threshold)).mean())
