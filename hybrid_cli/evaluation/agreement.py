"""Agreement of two sets of judgments of the same pairs of query and document."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl


@dataclass(frozen=True)
class Agreement:
    """Agreement on the pairs that both sets grade.

    Attributes:
        grades: the different grades of both sets, ascending.
        confusion: [first, second] number of pairs by their grades in both sets.
        kappa: Cohen's kappa; None if undefined, as where both give every pair the same grade.
        weighted_kappa: kappa with quadratic weights: near grades count as near.
        kappa_of_relevance: kappa of relevant or not.
    """

    grades: tuple[int, ...]
    confusion: np.ndarray
    kappa: float | None
    weighted_kappa: float | None
    kappa_of_relevance: float | None

    @classmethod
    def of(cls, first: pl.DataFrame, second: pl.DataFrame, level: int = 1) -> Agreement:
        """Compare two sets of judgments.

        Args:
            first, second: qid, docid, relevance.
            level: lowest relevant grade.
        """
        both = first.join(second, on=["qid", "docid"], how="inner")
        ours, theirs = both["relevance"].to_numpy(), both["relevance_right"].to_numpy()
        grades = np.unique(np.concatenate([ours, theirs]))
        confusion = np.zeros((len(grades), len(grades)), np.int64)
        np.add.at(confusion, (np.searchsorted(grades, ours), np.searchsorted(grades, theirs)), 1)
        return cls(
            tuple(grades.tolist()),
            confusion,
            _kappa(ours, theirs),
            _kappa(ours, theirs, "quadratic"),
            _kappa(ours >= level, theirs >= level),
        )

    @property
    def pairs(self) -> int:
        """Return the number of pairs that both sets grade."""
        return int(self.confusion.sum())

    @property
    def same(self) -> int:
        """Return the number of pairs with equal grades."""
        return int(np.trace(self.confusion))

    def content(self) -> dict[str, Any]:
        """Return all figures, for JSON."""
        return {
            "pairs": self.pairs,
            "same": self.same,
            "kappa": self.kappa,
            "weighted_kappa": self.weighted_kappa,
            "kappa_of_relevance": self.kappa_of_relevance,
            "grades": list(self.grades),
            "confusion": self.confusion.tolist(),
        }


def conflicts(judgments: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the pairs of query and document to which people give different grades.

    Args:
        judgments: name of a person -> qid, docid, relevance.

    Returns:
        qid, docid, and the grade of each person (null without one), in the order of the first judgments of each pair.
    """
    key = ["qid", "docid"]
    every = pl.concat([frame.select(key) for frame in judgments.values()]).unique(maintain_order=True)
    for name, frame in judgments.items():
        graded = frame.select(*key, pl.col("relevance").alias(name))
        every = every.join(graded, on=key, how="left", maintain_order="left")
    names = list(judgments)
    return every.filter(pl.min_horizontal(names) < pl.max_horizontal(names))


def _kappa(first: np.ndarray, second: np.ndarray, weights: str | None = None) -> float | None:
    if not len(first):
        return None
    from sklearn.metrics import cohen_kappa_score  # slow to import

    with warnings.catch_warnings(), np.errstate(invalid="ignore", divide="ignore"):
        warnings.simplefilter("ignore")  # of a single grade, for which kappa is undefined
        value = float(cohen_kappa_score(first, second, weights=weights))
    return None if math.isnan(value) else value
