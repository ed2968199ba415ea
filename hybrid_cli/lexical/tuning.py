"""Choose k1 and b on queries with judgements, and say what the choice is worth on queries it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl

from hybrid_cli.errors import InputError

Setting = tuple[float, float]


@dataclass(frozen=True)
class Tuning:
    """What was chosen, and how sure it is.

    Attributes:
        best: the k1 and b with the largest mean over all queries; of equal ones the nearest to `baseline`.
        means: setting -> mean over all queries.
        gains: two values: the gain over `baseline` on each half of the queries, k1 and b chosen on the other half.
        queries: how many were judged.
    """

    best: Setting
    baseline: Setting
    means: dict[Setting, float]
    gains: tuple[float, float]
    queries: int

    @property
    def held_out_gain(self) -> float:
        """The mean gain of all queries, each under the k1 and b chosen without it."""
        second = self.queries // 2
        return (self.gains[0] * (self.queries - second) + self.gains[1] * second) / self.queries


def tune(evaluate: Callable[[Setting], pl.DataFrame], grid: Iterable[Setting], baseline: Setting) -> Tuning:
    """Try each setting of `grid`.

    Args:
        evaluate: the value of each judged query (qid, value) under a setting.
        grid: k1 and b to try; `baseline` is always among them.
        baseline: what the gain is measured against.
    """
    settings = [baseline, *(setting for setting in grid if setting != baseline)]
    columns = [evaluate(setting).sort("qid")["value"].to_numpy() for setting in settings]
    values = np.stack(columns)  # [settings, queries]
    if values.shape[1] < 2:
        raise InputError(f"--tune needs two judged queries or more; there is {values.shape[1]}")
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
