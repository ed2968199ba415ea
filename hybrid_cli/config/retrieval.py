"""The settings of collections, indexes, runs and what is said of them."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid_cli.config.choices import (
    AnswerMatch,
    Correction,
    FusionMethod,
    Grid,
    SignificanceTest,
)


@dataclass(frozen=True)
class Evaluation:
    """What is measured, when a difference is called significant (methods 10.7), and how sure the means are.

    Attributes:
        resamples: bootstrap samples of the queries.
        confidence: share of their means that an interval holds.
    """

    measures: tuple[str, ...] = ("MRR@10", "nDCG@10", "R@100", "R@1000")
    relevance_level: int = 1
    answer_match: AnswerMatch = "string"
    test: SignificanceTest = "t"
    correction: Correction = "holm"
    alpha: float = 0.05
    permutations: int = 10_000
    resamples: int = 1_000
    confidence: float = 0.95
    seed: int = 42


@dataclass(frozen=True)
class Complementarity:
    """How two runs are set beside each other (methods 4.1, 7.4).

    Attributes:
        cutoffs: first hits among which a run must have a relevant document.
        rbo_p, rbo_depth: persistence and depth of the rank-biased overlap.
        changed: queries shown that fusion hurt most, and as many that it helped most.
        shown: first hits of each run that are shown for such a query.
    """

    cutoffs: tuple[int, ...] = (1, 5, 10, 20, 100)
    rbo_p: float = 0.9
    rbo_depth: int = 100
    changed: int = 5
    shown: int = 3


@dataclass(frozen=True)
class Reporting:
    """What the report shows.

    Attributes:
        changed: queries that a run hurts most, and as many that it helps most.
        shown: hits of each list.
        drawn: cutoffs with a Venn diagram.
        dots: most queries in a scatter.
        answers_depth: hits in which answers are looked for where there are no judgements.
    """

    changed: int = 10
    shown: int = 10
    drawn: tuple[int, ...] = (1, 10, 100)
    dots: int = 10_000
    answers_depth: int = 100


@dataclass(frozen=True)
class Fusion:
    """How runs are fused (methods 9).

    Attributes:
        depth: hits taken from each list; normalisation sees these only.
        hits: documents kept for each query.
        measure: that compares the fused run with the single ones, and that tuning raises.
    """

    method: FusionMethod = "minmax"
    depth: int = 1000
    hits: int = 1000
    rrf_k: float = 60.0
    measure: str = "MRR@10"


@dataclass(frozen=True)
class Tuning:
    """How fusion weights are searched for (methods 9.5).

    Attributes:
        grid: `linear`: all weights that add up to 1; `log`: the last run has weight 1, the others .001 to 1000;
            `reciprocal`: .1, .2, ... 1 and their reciprocals (SPAR). The last two go on where an end point is best.
        step: between two weights of the linear grid.
        folds: parts of the queries, each scored with the weights that the others chose.
    """

    grid: Grid = "linear"
    step: float = 0.05
    folds: int = 5
    seed: int = 42
