"""Names and defaults of fusion, which import nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Missing = Literal["exact", "min", "zero", "ignore", "drop"]
Normalization = Literal["none", "minmax", "max", "sum", "l2", "zscore", "rank", "borda", "dbsf"]
Grid = Literal["linear", "scaled", "log", "reciprocal", "clear", "roc", "spar"]

METHOD, MEASURE = "minmax", "nDCG@10"
RRF_K = 60.0  # Cormack et al., 2009
HITS = 1000
LEXICAL_SHARE = 0.3  # of the untuned sum of exact scores, in units of their deviations; the dense side has the rest


@dataclass(frozen=True)
class Tuning:
    """How weights are tuned.

    Attributes:
        methods: methods to try; `auto` is the exact sum of scores with indexes, else min-max.
        grid: grid of the weights; `auto` is `scaled` for sums of raw scores, else `linear`.
        step: distance between weights of the linear and the scaled grid.
        folds: folds of the queries for the held-out score.
    """

    methods: Sequence[str] = ("auto",)
    grid: Grid | Literal["auto"] = "auto"
    step: float = 0.05
    folds: int = 5
