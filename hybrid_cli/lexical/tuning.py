"""Choose k1 and b on judged queries, with the gain on held-out queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl

from hybrid_cli.errors import InputError

Setting = tuple[float, float]


@dataclass(frozen=True)
class Tuning:
    """Result of tuning.

    Attributes:
        best: (k1, b) with the largest mean; ties go to the values nearest to `baseline`.
        baseline: (k1, b) that gains are measured against.
        means: mean over all queries of each (k1, b).
        gains: gain over `baseline` on each half of the queries, with k1 and b chosen on the other half.
        queries: number of judged queries.
    """

    best: Setting
    baseline: Setting
    means: dict[Setting, float]
    gains: tuple[float, float]
    queries: int

    @property
    def held_out_gain(self) -> float:
        """Mean gain over all queries, each with the k1 and b that the other half chose."""
        second = self.queries // 2
        return (self.gains[0] * (self.queries - second) + self.gains[1] * second) / self.queries


def tune(evaluate: Callable[[Setting], pl.DataFrame], grid: Iterable[Setting], baseline: Setting) -> Tuning:
    """Evaluate each (k1, b) of a grid.

    Args:
        evaluate: returns the value of each judged query (qid, value) for a (k1, b).
        grid: values to try; `baseline` is always added.
        baseline: (k1, b) that gains are measured against.

    Raises:
        InputError: fewer than two judged queries.
    """
    settings = [baseline, *(setting for setting in grid if setting != baseline)]
    columns = [evaluate(setting).sort("qid")["value"].to_numpy() for setting in settings]
    values = np.stack(columns)  # [settings, queries]
    if values.shape[1] < 2:
        raise InputError(f"--tune: needs two or more judged queries, got {values.shape[1]}")
    nearness = [abs(k1 - baseline[0]) + abs(b - baseline[1]) for k1, b in settings]
    halves = (values[:, 0::2], values[:, 1::2])
    gains = [
        float((tested[_best(chosen, nearness)] - tested[0]).mean())
        for tested, chosen in ((halves[0], halves[1]), (halves[1], halves[0]))
    ]
    means = dict(zip(settings, values.mean(1).tolist(), strict=True))
    return Tuning(settings[_best(values, nearness)], baseline, means, (gains[0], gains[1]), values.shape[1])


def _best(values: np.ndarray, nearness: list[float]) -> int:
    means = values.mean(1).round(12)
    return min(range(len(means)), key=lambda at: (-means[at], nearness[at]))
