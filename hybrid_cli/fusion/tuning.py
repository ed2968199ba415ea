"""Tuning on judged queries: values of all methods and weights of a fusion, and weights that the judgments leave open.

Lists are read in blocks of queries and normalized once per method and grid. For each set of weights, only the ranks of
the judged documents are computed and kept. `TunedWeight` is that of a combination of encoders (`combine --tune`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli.errors import InputError
from hybrid_cli.fusion.lists import check_values, fused, values
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.fusion.options import Grid, Tuning
from hybrid_cli.fusion.selection import Choice, Plateau, Trials, Values, interval

_LADDER = (1, 2, 5)  # multiples of each power of ten in the grids
_DECADES, _EXTENSION, _MOST_DECADES = 3, 2, 7
_MOST_TRIALS = 5000
_TENTHS = [tenth / 10 for tenth in range(21)]
PUBLISHED: dict[str, list[Weights]] = {  # of a lexical and a dense run
    "clear": [(weight, 1.0) for weight in _TENTHS[1:10]],  # DualRM, section 4
    "roc": [(1.0, weight) for weight in _TENTHS],  # RoC, section 4.1
    # appendix A
    "spar": [(1.0, weight) for weight in sorted({*_TENTHS[1:11], *(1 / tenth for tenth in _TENTHS[1:11])})],
}


@dataclass(frozen=True)
class MethodGrid:
    """A method with its parameters, and the grid of its weights.

    Attributes:
        recipe: method and parameters; the weights are ignored.
        grid: the grid.
        step: distance between weights of the linear and the scaled grid.
        scales: standard deviation of each run's scores, for the scaled grid; None for those of the judged queries.
        untuned: shares of the default fusion, which are tried too; empty for none.
        singles: try each run of two alone too, where the weights are ratios to that of one run; the linear grid always
            contains them.
    """

    recipe: FusionRecipe
    grid: Grid
    step: float = Tuning.step
    scales: Sequence[float] | None = None
    untuned: tuple[float, ...] = ()
    singles: bool = True


def default_grid(recipe: FusionRecipe) -> Grid:
    """Return `scaled` for sums of raw scores, whose scales differ, else `linear`."""
    return "scaled" if recipe.sums_raw_scores else "linear"


def tabulate(
    family: MethodGrid,
    blocks: Sequence[pl.DataFrame],
    qids: pl.Series,
    judgments: Sequence[pl.DataFrame],
    hits: int,
    measure: Measure,
    advance: Callable[[int], None] = lambda n: None,
    remove_query: bool = False,
) -> tuple[list[Choice], list[Values]]:
    """Measure a method with every set of weights of its grid.

    Log and reciprocal grids grow by two decades while the best weights are an end point.

    Args:
        family: method and grid.
        blocks: candidates of the judged queries.
        qids: ids of the queries, by number.
        judgments: of each rater: qid, docid, relevance; queries without candidates score 0.
        hits: documents kept per query.
        measure: function from judged documents (qid, docid, relevance, position or null) to one value per query.
        advance: called after every set of weights.
        remove_query: remove candidates whose docid is the qid, before positions are counted.

    Returns:
        The choices, for two runs in the order of the weights, and their values by each rater, [choices, queries].

    Raises:
        InputError: the grid has too many points.
    """
    recipe, qrels = family.recipe, pl.concat(judgments)
    judged = _judged(qids, qrels)
    scores: dict[Weights, list[Values]] = {}
    scales = family.scales or _deviations(blocks, recipe)
    scaled = scaled_grid(scales, family.step, family.untuned) if family.grid == "scaled" else {}

    def evaluate(grid: Iterable[Weights]) -> Weights:
        positions = {weights: np.zeros(len(qrels), np.int64) for weights in grid if weights not in scores}
        for block in blocks if positions else ():
            valued = values(block, recipe).sort("query", "docid")
            check_values(valued, recipe, qids)
            if remove_query:
                valued = valued.filter(qids.gather(valued["query"]) != valued["docid"])
            rows, mine = _rows(valued, judged)
            for weights, ranks in positions.items():
                ranks[mine] = _positions(fused(valued, replace(recipe, weights=weights)), rows, hits)
        for weights, ranks in positions.items():
            position = pl.Series("position", ranks).replace(0, None)
            measured = _parts(qrels.with_columns(position), judgments)
            scores[weights] = [np.asarray(measure(part), dtype=np.float64) for part in measured]
            advance(1)
        return max(scores, key=lambda weights: np.concatenate(scores[weights]).mean())

    if scaled:
        evaluate(weights for weights in scaled if family.singles or all(weights))
    else:
        _search(len(recipe.weights), family, evaluate)
        evaluate([family.untuned] if family.untuned else [])
    if family.singles and family.grid in ("log", "reciprocal") and len(recipe.weights) == 2:
        evaluate([(0.0, 1.0), (1.0, 0.0)])
    ordered = sorted(scores, key=lambda weights: (weights[0] / math.fsum(weights), weights), reverse=True)
    k = recipe.rrf_k if recipe.method == "rrf" else None
    choices = [Choice(recipe.method, weights, k, scaled.get(weights, ())) for weights in ordered]
    return choices, [np.stack(of_rater) for of_rater in zip(*(scores[weights] for weights in ordered), strict=True)]


def _parts(rows: pl.DataFrame, judgments: Sequence[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Yield the rows of each rater."""
    begin = 0
    for part in judgments:
        yield rows.slice(begin, len(part))
        begin += len(part)


def _search(runs: int, family: MethodGrid, evaluate: Callable[[Iterable[Weights]], Weights]) -> None:
    if family.grid == "linear":
        evaluate(linear_grid(runs, family.step))
        return
    if family.grid in PUBLISHED:
        if runs != 2:
            problem = f"--grid {family.grid}: needs two runs, lexical and dense, got {runs}"
            raise InputError(problem, code="number-of-values", option="grid", grid=family.grid, value=runs)
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
        problem = f"--step {step:g}: 1 must be a multiple of it, as of 0.05 or 0.1"
        raise InputError(problem, code="out-of-range", option="step", value=step)
    _check_size(math.comb(parts + runs - 1, runs - 1), runs)
    bars = combinations(range(parts + runs - 1), runs - 1)
    return [tuple((end - begin - 1) / parts for begin, end in pairwise((-1, *bar, parts + runs - 1))) for bar in bars]


def scaled_grid(deviations: Sequence[float], step: float, untuned: Weights = ()) -> dict[Weights, Weights]:
    """Return the weights of raw scores, and their shares: the linear grid in units of each run's standard deviation.

    The last weight above 0 is 1, the others have five digits.

    Args:
        deviations: standard deviation of each run's scores, above 0.
        step: distance between shares.
        untuned: further shares; empty for none.
    """
    grid: dict[Weights, Weights] = {}
    for shares in [*linear_grid(len(deviations), step), *([untuned] if untuned else [])]:
        weights = [share / deviation for share, deviation in zip(shares, deviations, strict=True)]
        unit = next(weight for weight in reversed(weights) if weight)
        grid[tuple(float(f"{weight / unit:.5g}") for weight in weights)] = shares
    return grid


def _deviations(blocks: Iterable[pl.DataFrame], recipe: FusionRecipe) -> list[float]:
    """Return the mean over the queries of the standard deviation of each list's values; 1 where all are equal."""
    lists = [pl.col(f"value_{number}") for number in range(len(recipe.weights))]
    deviations = [
        values(block, recipe).group_by("query", maintain_order=True).agg(value.std(ddof=0) for value in lists)
        for block in blocks
    ]
    means = pl.concat(deviations).select(value.mean() for value in lists).row(0) if deviations else ()
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
        problem = (
            f"the grid has {points:,} points for {runs} runs, at most {_MOST_TRIALS:,} are tried; use --grid linear, "
            "or scaled for raw scores, with a larger --step, or fuse fewer runs"
        )
        raise InputError(problem, code="grid-too-large", option="grid", value=points, limit=_MOST_TRIALS)


def _judged(qids: pl.Series, qrels: pl.DataFrame) -> pl.DataFrame:
    """Return query, docid and row in the qrels of the judgments of known queries."""
    numbers = pl.DataFrame({"qid": qids}).with_row_index("query")
    return qrels.with_row_index("judgment").join(numbers, on="qid", maintain_order="left")


def _rows(valued: pl.DataFrame, judged: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of judged documents among the candidates, and of their judgments in the qrels."""
    rows = valued.select("query", "docid").with_row_index("row")
    joined = judged.join(rows, on=["query", "docid"])
    return joined["row"].to_numpy(), joined["judgment"].to_numpy()


def _positions(scored: pl.DataFrame, rows: np.ndarray, hits: int) -> np.ndarray:
    """Return the rank of some candidates, 0 below `hits`; `scored` is sorted by query and docid, which order ties."""
    ranks = scored.select((-pl.col("score")).rank("ordinal").over("query"))["score"].to_numpy()[rows]
    return np.where(ranks <= hits, ranks, 0)


FOLDS, SEED = 5, 42  # of the held-out score


@dataclass(frozen=True)
class TunedWeight:
    """Result of tuning: the middle of the plateau of a scaled grid, the best weight of another one (SPAR, appendix A).

    Attributes:
        table: values of all combinations, [weights, queries]; a choice has the weights of the second and of the first
            encoder, both above 0.
        alone: encoder -> value of each judged query, in the order of the models.
        scaled: the grid is scaled.
    """

    table: Trials
    alone: Mapping[str, Values]
    scaled: bool

    @cached_property
    def plateau(self) -> Plateau:
        """Return the plateau."""
        return self.table.plateau()

    @property
    def row(self) -> int:
        """Return the row of the selected weight."""
        return self.plateau.chosen if self.scaled else self.plateau.best

    @property
    def choice(self) -> Choice:
        """Return the selected choice."""
        return self.table.choices[self.row]

    @property
    def weight(self) -> float:
        """Return the weight of the second encoder next to 1 for the first."""
        return self.choice.weights[0]

    @property
    def share(self) -> float | None:
        """Return the share of the second encoder; None without a scaled grid."""
        return float(self.choice.proportions[0]) if self.scaled else None

    @property
    def near(self) -> tuple[float, float]:
        """Return the lowest and the highest weight of the plateau."""
        weights = [self.table.choices[row].weights[0] for row in self.plateau.rows]
        return min(weights), max(weights)

    @property
    def best_share_at_end(self) -> float | None:
        """Return the share of the best weight if it is an end of a scaled grid, else None."""
        ends = (0, len(self.table.choices) - 1)
        best = self.plateau.best
        return float(self.table.choices[best].proportions[0]) if self.scaled and best in ends else None

    @property
    def score(self) -> float:
        """Return the mean of the judged queries."""
        return float(self.table.values[self.row].mean())

    @cached_property
    def held_out(self) -> Values | None:
        """Return the value of each query under the weight of the other folds; None for a single query."""
        return self.table.held_out(FOLDS, SEED, best=not self.scaled)

    @property
    def best_single(self) -> str:
        """Return the better encoder alone."""
        return max(self.alone, key=lambda name: float(self.alone[name].mean()))

    @property
    def gain(self) -> tuple[float, float, float] | None:
        """Return the held-out gain over the better encoder alone: mean, lower and upper end of its 95% interval.

        None for a single query.
        """
        if self.held_out is None:
            return None
        gains = self.held_out - self.alone[self.best_single]
        ends = interval(gains)
        return None if ends is None else (float(gains.mean()), *ends)

    def content(self) -> dict[str, Any]:
        """Return the scores for the manifest."""
        return {
            "share": self.share,
            "score": self.score,
            "held_out": None if self.held_out is None else float(self.held_out.mean()),
            "alone": {name: float(values.mean()) for name, values in self.alone.items()},
            "gain": self.gain,
            "queries": self.table.queries,
        }


WEIGHTS = tuple(step / 20 for step in range(21))  # of the dense run in the curves of other collections
Weights = tuple[float, ...]
Measure = Callable[[pl.DataFrame], np.ndarray]
