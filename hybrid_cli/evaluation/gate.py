"""The statistics of `gate`: whether the mean of a measure has dropped beyond a tolerance, and which drops show."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hybrid_cli.evaluation.significance import holm, sign_flip

ALPHA, POWER = 0.05, 0.8
DEVIATION_OF_DIFFERENCES = 0.5  # relative to that of the values: less in 9 of the 12 pairs of studies/gate.md

Origin = Literal["differences", "earlier differences", "values"]


@dataclass(frozen=True)
class Deviation:
    """Standard deviation of the differences of one query.

    Attributes:
        value: in units of the measure.
        origin: these differences; where all of them are 0, those of an earlier comparison; without one, half of the
            deviation of the values, an estimate.
    """

    value: float
    origin: Origin


def drop_p_values(before: np.ndarray, now: np.ndarray, max_drop: float = 0.0) -> np.ndarray:
    """Return the p-values of drops beyond a tolerance, corrected over the measures (Holm).

    One-sided sign-flip test of `before` minus `now` minus `max_drop`. It needs no normal distribution: a t-test finds a
    drop wherever three of many queries lose the same, which chance does in one of eight cases.

    Args:
        before, now: [queries, measures].
        max_drop: tolerance, in units of the measures.

    Returns:
        [measures].
    """
    return holm(sign_flip(before - now - max_drop, greater=True))


def deviation_of(before: np.ndarray, now: np.ndarray, earlier: float | None = None) -> Deviation:
    """Return the standard deviation of the differences of a measure; see `Deviation`.

    Args:
        before, now: [queries], two or more.
        earlier: deviation of the differences in an earlier comparison; None if there was none.
    """
    differences = now - before
    if differences.any():
        return Deviation(float(differences.std(ddof=1)), "differences")
    if earlier is not None:
        return Deviation(earlier, "earlier differences")
    return Deviation(DEVIATION_OF_DIFFERENCES * float(now.std(ddof=1)), "values")


def smallest_drop(deviation: float, queries: int, measures: int = 1) -> float | None:
    """Return the smallest drop that `drop_p_values` detects with a probability of 80%, beyond the tolerance.

    By Student's noncentral t, whose power is that of the sign-flip test (studies/gate.md), in the first step of Holm's
    method: the others need less.

    Args:
        deviation: standard deviation of the differences.
        queries: number of queries, two or more.
        measures: number of measures that are tested.

    Returns:
        None where even a loss of every query is not significant: chance gives all signs in one of 2^queries cases.
    """
    if measures * 2.0**-queries >= ALPHA:
        return None
    from scipy.special import nctdtrinc, stdtrit  # takes longer to import than small runs to compare

    critical = stdtrit(queries - 1, 1 - ALPHA / measures)
    return float(nctdtrinc(queries - 1, 1 - POWER, critical)) * deviation / math.sqrt(queries)
