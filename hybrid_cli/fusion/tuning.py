"""Values of all tried methods and weights for judged queries, the input of `fusion.selection`.

Lists are read in blocks of queries and normalized once per method and grid. For each set of weights, only the ranks of
the judged documents are computed and kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product

import numpy as np
import polars as pl

from hybrid_cli.errors import InputError
from hybrid_cli.fusion.lists import check_values, fused, values
from hybrid_cli.fusion.methods import Recipe
from hybrid_cli.fusion.options import Grid, Tuning
from hybrid_cli.fusion.selection import Choice, Values

Weights = tuple[float, ...]
Measure = Callable[[pl.DataFrame], np.ndarray]
AUTO = ("minmax", "zscore", "rrf")
RRF_CONSTANTS = (60.0, 10.0)
_LADDER = (1, 2, 5)  # multiples of each power of ten in the grids
_DECADES, _EXTENSION, _MOST_DECADES = 3, 2, 7
_MOST_TRIALS = 5000
_TENTHS = [tenth / 10 for tenth in range(21)]
PUBLISHED: dict[str, list[Weights]] = {  # of a lexical and a dense run
    "clear": [(weight, 1.0) for weight in _TENTHS[1:10]],  # DualRM, section 4
    "roc": [(1.0, weight) for weight in _TENTHS],  # RoC, section 4.1
    "spar": [(1.0, weight) for weight in sorted({*_TENTHS[1:11], *(1 / each for each in _TENTHS[1:11])})],  # appendix A
}


@dataclass(frozen=True)
class Family:
    """A method with its parameters, and the grid of its weights.

    Attributes:
        recipe: method and parameters; the weights are ignored.
        grid: the grid.
        step: distance between weights of the linear and the scaled grid.
        singles: try each run of two alone too, where the weights are ratios to that of one run; the linear grid always
            contains them.
    """

    recipe: Recipe
    grid: Grid
    step: float = Tuning.step
    singles: bool = True


def default_grid(recipe: Recipe) -> Grid:
    """Return `scaled` for sums of raw scores, whose scales differ, else `linear`."""
    return "scaled" if recipe.sums_raw_scores else "linear"


def tabulate(
    family: Family,
    blocks: Callable[[], Iterable[pl.DataFrame]],
    qids: pl.Series,
    qrels: pl.DataFrame,
    hits: int,
    measure: Measure,
    advance: Callable[[int], None] = lambda n: None,
    remove_query: bool = False,
) -> tuple[list[Choice], Values]:
    """Measure a method with every set of weights of its grid.

    Log and reciprocal grids grow by two decades while the best weights are an end point.

    Args:
        family: method and grid.
        blocks: returns the candidates of the judged queries; called for the standard deviations of the scaled grid,
            for the grid, and for each of its extensions.
        qids: ids of the queries, by number.
        qrels: qid, docid, relevance; queries without candidates score 0.
        hits: documents kept per query.
        measure: function from judged documents (qid, docid, relevance, position or null) to one value per query.
        advance: called after every set of weights.
        remove_query: remove candidates whose docid is the qid, before positions are counted.

    Returns:
        The choices, for two runs in the order of the weights, and their values [choices, queries].

    Raises:
        InputError: the grid has too many points.
    """
    recipe = family.recipe
    judged = _judged(qids, qrels)
    scores: dict[Weights, Values] = {}
    scaled = scaled_grid(_deviations(blocks(), recipe), family.step) if family.grid == "scaled" else {}

    def evaluate(grid: Iterable[Weights]) -> Weights:
        places = {weights: np.zeros(len(qrels), np.int64) for weights in grid if weights not in scores}
        for block in blocks() if places else ():
            valued = values(block, recipe).sort("query", "docid")
            check_values(valued, recipe, qids)
            if remove_query:
                valued = valued.filter(qids.gather(valued["query"]) != valued["docid"])
            rows, mine = _rows(valued, judged)
            for weights, found in places.items():
                found[mine] = _positions(fused(valued, replace(recipe, weights=weights)), rows, hits)
        for weights, found in places.items():
            position = pl.Series("position", found).replace(0, None)
            scores[weights] = np.asarray(measure(qrels.with_columns(position)), dtype=np.float64)
            advance(1)
        return max(scores, key=lambda weights: scores[weights].mean())

    if scaled:
        evaluate(weights for weights in scaled if family.singles or all(weights))
    else:
        _search(len(recipe.weights), family, evaluate)
    if family.singles and family.grid in ("log", "reciprocal") and len(recipe.weights) == 2:
        evaluate([(0.0, 1.0), (1.0, 0.0)])
    ordered = sorted(scores, key=lambda weights: (weights[0] / math.fsum(weights), weights), reverse=True)
    k = recipe.rrf_k if recipe.method == "rrf" else None
    choices = [Choice(recipe.method, weights, k, scaled.get(weights, ())) for weights in ordered]
    return choices, np.stack([scores[each] for each in ordered])


def _search(runs: int, family: Family, evaluate: Callable[[Iterable[Weights]], Weights]) -> None:
    if family.grid == "linear":
        evaluate(linear_grid(runs, family.step))
        return
    if family.grid in PUBLISHED:
        if runs != 2:
            raise InputError(
                f"--grid {family.grid}: needs two runs, lexical and dense, got {runs}",
                code="number-of-values",
                option="grid",
                grid=family.grid,
                value=runs,
                expected=2,
            )
        evaluate(PUBLISHED[family.grid])
        return
    low, high = (-_DECADES, _DECADES) if family.grid == "log" else (-1, 1)
    best = evaluate(log_grid(runs, low, high) if family.grid == "log" else reciprocal_grid(runs))
    while True:
        lower, upper = min(best[:-1]) <= 10.0**low, max(best[:-1]) >= 10.0**high
        if not (lower and -low < _MOST_DECADES) and not (upper and high < _MOST_DECADES):
            return
        low, high = low - _EXTENSION * lower, high + _EXTENSION * upper
        best = evaluate(log_grid(runs, low, high))


def linear_grid(runs: int, step: float) -> list[Weights]:
    """Return all weights in multiples of `step` that sum to 1.

    Raises:
        InputError: 1 is not a multiple of `step`, or the grid is too large.
    """
    parts = round(1 / step) if step > 0 else 0
    if parts < 1 or not math.isclose(parts * step, 1, rel_tol=1e-9):
        raise InputError(
            f"--step {step:g}: 1 must be a multiple of it, as of 0.05 or 0.1",
            code="out-of-range",
            option="step",
            value=step,
        )
    _check_size(math.comb(parts + runs - 1, runs - 1), runs)
    bars = combinations(range(parts + runs - 1), runs - 1)
    return [tuple((end - begin - 1) / parts for begin, end in pairwise((-1, *bar, parts + runs - 1))) for bar in bars]


def scaled_grid(deviations: Sequence[float], step: float) -> dict[Weights, Weights]:
    """Return the weights of raw scores, and their shares: the linear grid in units of each run's standard deviation.

    The last weight above 0 is 1, the others have five digits.

    Args:
        deviations: standard deviation of each run's scores, above 0.
        step: distance between shares.
    """
    grid: dict[Weights, Weights] = {}
    for shares in linear_grid(len(deviations), step):
        weights = [share / deviation for share, deviation in zip(shares, deviations, strict=True)]
        unit = next(weight for weight in reversed(weights) if weight)
        grid[tuple(float(f"{weight / unit:.5g}") for weight in weights)] = shares
    return grid


def _deviations(blocks: Iterable[pl.DataFrame], recipe: Recipe) -> list[float]:
    """Return the mean over the queries of the standard deviation of each list's values; 1 where all are equal."""
    lists = [pl.col(f"value_{number}") for number in range(len(recipe.weights))]
    found = [
        values(block, recipe).group_by("query", maintain_order=True).agg(value.std(ddof=0) for value in lists)
        for block in blocks
    ]
    means = pl.concat(found).select(value.mean() for value in lists).row(0) if found else ()
    return [mean or 1.0 for mean in means] or [1.0] * len(lists)


def log_grid(runs: int, low: int, high: int) -> list[Weights]:
    """Return 1, 2 and 5 times the powers of ten from 10^low to 10^high for each run but the last, whose weight is 1."""
    ladder = [float(f"{digit}e{power}") for power in range(low, high) for digit in _LADDER] + [10.0**high]
    _check_size(len(ladder) ** (runs - 1), runs)
    return [(*weights, 1.0) for weights in product(ladder, repeat=runs - 1)]


def reciprocal_grid(runs: int) -> list[Weights]:
    """Return .1, .2, ... 1 and their reciprocals for each run but the last, whose weight is 1 (SPAR, section 3.2)."""
    tenths = [tenth / 10 for tenth in range(1, 11)]
    ladder = sorted({*tenths, *(1 / weight for weight in tenths)})
    _check_size(len(ladder) ** (runs - 1), runs)
    return [(*weights, 1.0) for weights in product(ladder, repeat=runs - 1)]


def _check_size(points: int, runs: int) -> None:
    if points > _MOST_TRIALS:
        raise InputError(
            f"the grid has {points:,} points for {runs} runs, at most {_MOST_TRIALS:,} are tried; "
            "use --grid linear, or scaled for raw scores, with a larger --step, or fuse fewer runs",
            code="grid-too-large",
            option="grid",
            value=points,
            limit=_MOST_TRIALS,
            count=runs,
        )


def _judged(qids: pl.Series, qrels: pl.DataFrame) -> pl.DataFrame:
    """Return query, docid and row in the qrels of the judgments of known queries."""
    numbers = pl.DataFrame({"qid": qids}).with_row_index("query")
    return qrels.with_row_index("judgment").join(numbers, on="qid", maintain_order="left")


def _rows(valued: pl.DataFrame, judged: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of judged documents among the candidates, and of their judgments in the qrels."""
    rows = valued.select("query", "docid").with_row_index("row")
    found = judged.join(rows, on=["query", "docid"])
    return found["row"].to_numpy(), found["judgment"].to_numpy()


def _positions(scored: pl.DataFrame, rows: np.ndarray, hits: int) -> np.ndarray:
    """Return the rank of some candidates, 0 below `hits`; `scored` is sorted by query and docid, which order ties."""
    ranks = scored.select((-pl.col("score")).rank("ordinal").over("query"))["score"].to_numpy()[rows]
    return np.where(ranks <= hits, ranks, 0)
