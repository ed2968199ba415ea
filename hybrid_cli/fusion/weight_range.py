"""Weights of two min-max normalized runs that the judgments so far cannot distinguish from the best one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from hybrid_cli.fusion import lists
from hybrid_cli.fusion.methods import Recipe
from hybrid_cli.fusion.options import Tuning
from hybrid_cli.fusion.prior import prior_of
from hybrid_cli.fusion.selection import Choice, Table
from hybrid_cli.fusion.tuning import Measure
from hybrid_cli.runs import Run

WEIGHTS = tuple(step / 20 for step in range(21))  # of the second run; the first has the rest
_METHOD = "minmax"
_CHOICES = [Choice(_METHOD, (1 - weight, weight)) for weight in WEIGHTS]


@dataclass(frozen=True)
class WeightRange:
    """Weights of the second of two runs.

    Attributes:
        chosen: middle of the plateau.
        low, high: ends of the plateau; see `selection.Plateau`. One judged query has no standard error: 0 and 1.
    """

    chosen: float
    low: float
    high: float


def weight_range(values: Sequence[np.ndarray], prior: np.ndarray | None = None) -> WeightRange:
    """Return the plateau of the weights, as `fuse --tune --method minmax` does.

    Args:
        values: for each judged query, the value of every weight in `WEIGHTS`, as returned by `query_values`.
        prior: mean value of every weight on other collections, of `prior_values`; None without one.
    """
    plateau = Table(_CHOICES, np.stack(values, axis=1), prior, Tuning.prior_queries).plateau()
    rows = plateau.rows if len(values) > 1 else range(len(WEIGHTS))
    return WeightRange(WEIGHTS[plateau.chosen], WEIGHTS[rows[0]], WEIGHTS[rows[-1]])


def prior_values(dense: int | None, measure: str) -> np.ndarray | None:
    """Return the mean value of every weight in `WEIGHTS` on other collections; None if the prior is not for these runs.

    Args:
        dense: see `prior_of`.
        measure: name of the measure.
    """
    return prior_of(dense, measure, _CHOICES)[0]


def query_values(runs: Sequence[Run], judged: pl.DataFrame, depth: int, measure: Measure) -> np.ndarray:
    """Return the value of one query for every weight in `WEIGHTS`.

    Args:
        runs: two runs.
        judged: qid, docid, relevance of one query.
        depth: hits read from each run, and kept after fusion.
        measure: function from judged documents (qid, docid, relevance, position or null) to one value per query.
    """
    recipe = Recipe(_METHOD, (1.0, 1.0), "zero")
    joined = lists.Lists.of([run.of_queries(judged["qid"]) for run in runs], depth)
    valued = lists.values(pl.concat(joined.blocks()), recipe).sort("docid")
    fused = (lists.fused(valued, replace(recipe, weights=choice.weights))["score"] for choice in _CHOICES)
    ranks = pl.DataFrame({str(row): (-score).rank("ordinal") for row, score in enumerate(fused)})  # ties by docid
    found = judged.select("docid", "relevance").join(
        ranks.with_columns(valued["docid"]), on="docid", how="left", maintain_order="left"
    )
    long = found.unpivot(index=["docid", "relevance"], variable_name="qid", value_name="position")
    kept = pl.when(pl.col("position") <= depth).then(pl.col("position").cast(pl.Int64))
    return measure(long.select("qid", "docid", "relevance", position=kept))
