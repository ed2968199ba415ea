"""Tuning of fusion weights on judged queries, and the file that `fuse --tune` writes and `fuse --weights @FILE` reads.

Lists are normalized and joined once. For each set of weights, only the ranks of the judged documents are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind
from hybrid_cli.errors import InputError
from hybrid_cli.fusion.lists import fused, values
from hybrid_cli.fusion.methods import Recipe
from hybrid_cli.json_files import fits, named, read_object
from hybrid_cli.settings.retrieval import WeightTuning

Weights = tuple[float, ...]
Measure = Callable[[pl.DataFrame], np.ndarray]
_LADDER = (1, 2, 5)  # multiples of each power of ten in the grids
_DECADES, _EXTENSION, _MOST_DECADES = 3, 2, 7
_MOST_TRIALS = 5000
_FLAT = 0.01


@dataclass(frozen=True)
class Tuned:
    """Result of tuning: weights and their scores.

    Attributes:
        weights: one per run.
        score: mean over all judged queries.
        held_out: mean over held-out folds; None for a single query.
        flat: lowest and highest weight of each run within 1% of the best score.
        trials: every set of weights with its score, in the order of the grid.
    """

    weights: Weights
    score: float
    held_out: float | None
    flat: list[tuple[float, float]]
    trials: list[tuple[Weights, float]]


def tune(
    blocks: Iterable[pl.DataFrame],
    qids: pl.Series,
    qrels: pl.DataFrame,
    recipe: Recipe,
    hits: int,
    measure: Measure,
    options: WeightTuning,
    advance: Callable[[int], None] = lambda n: None,
) -> Tuned:
    """Choose the weights of `recipe`.

    Args:
        blocks: candidates of the judged queries.
        qids: ids of the queries, by number.
        qrels: qid, docid, relevance; queries without candidates score 0.
        hits: documents kept per query.
        measure: function from judged documents (qid, docid, relevance, position or null) to one value per query.
        options: grid, step, folds and seed.
        advance: called after every set of weights.

    Raises:
        InputError: the grid has too many points.
    """
    valued = pl.concat([values(block, recipe) for block in blocks]).sort("query", "docid")
    places = _places(valued, qids, qrels)
    scores: dict[Weights, np.ndarray] = {}

    def evaluate(grid: Iterable[Weights]) -> Weights:
        for weights in grid:
            if weights not in scores:
                found = _positions(fused(valued, replace(recipe, weights=weights)), places, hits)
                scores[weights] = measure(qrels.with_columns(found))
                advance(1)
        return best(list(scores), np.stack(list(scores.values())))

    chosen = _search(len(recipe.weights), options, evaluate)
    tried, table = list(scores), np.stack(list(scores.values()))
    means = table.mean(1)
    top = float(means[tried.index(chosen)])
    near = np.array([weights for weights, mean in zip(tried, means, strict=True) if mean >= (1 - _FLAT) * top])
    flat = [(float(low), float(high)) for low, high in zip(near.min(0), near.max(0), strict=True)]
    trials = sorted(zip(tried, means.tolist(), strict=True))
    return Tuned(chosen, top, held_out(tried, table, options), flat, trials)


def _search(runs: int, options: WeightTuning, evaluate: Callable[[Iterable[Weights]], Weights]) -> Weights:
    """Return the best weights; log and reciprocal grids grow by two decades while the best is an end point."""
    if options.grid == "linear":
        return evaluate(linear_grid(runs, options.step))
    low, high = (-_DECADES, _DECADES) if options.grid == "log" else (-1, 1)
    chosen = evaluate(log_grid(runs, low, high) if options.grid == "log" else reciprocal_grid(runs))
    while True:
        lower, upper = min(chosen[:-1]) <= 10.0**low, max(chosen[:-1]) >= 10.0**high
        if not (lower and -low < _MOST_DECADES) and not (upper and high < _MOST_DECADES):
            return chosen
        low, high = low - _EXTENSION * lower, high + _EXTENSION * upper
        chosen = evaluate(log_grid(runs, low, high))


def linear_grid(runs: int, step: float) -> list[Weights]:
    """Return all weights in multiples of `step` that sum to 1.

    Raises:
        InputError: 1 is not a multiple of `step`, or the grid is too large.
    """
    parts = round(1 / step) if step > 0 else 0
    if parts < 1 or not math.isclose(parts * step, 1, rel_tol=1e-9):
        raise InputError(f"--step {step:g}: 1 must be a multiple of it, as of 0.05 or 0.1")
    _check_size(math.comb(parts + runs - 1, runs - 1), runs)
    bars = combinations(range(parts + runs - 1), runs - 1)
    return [tuple((end - begin - 1) / parts for begin, end in pairwise((-1, *bar, parts + runs - 1))) for bar in bars]


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
            "use --grid linear with a larger --step, or fuse fewer runs"
        )


def best(tried: Sequence[Weights], table: np.ndarray) -> Weights:
    """Return the weights with the highest mean over queries; ties go to those closest to equal, then to the smaller.

    Args:
        tried: sets of weights.
        table: their values [sets, queries].
    """
    means = table.mean(1)
    equals = np.flatnonzero(np.isclose(means, means.max(), rtol=0, atol=1e-12))
    return min((tried[int(row)] for row in equals), key=lambda weights: (_inequality(weights), weights))


def _inequality(weights: Weights) -> float:
    """Return the distance of normalized weights from equal weights."""
    whole = math.fsum(weights)
    return round(math.fsum((weight / whole - 1 / len(weights)) ** 2 for weight in weights), 12)


def held_out(tried: Sequence[Weights], table: np.ndarray, options: WeightTuning) -> float | None:
    """Return the mean over queries, each scored with the weights that are best on the other folds."""
    queries = table.shape[1]
    folds = min(options.folds, queries)
    if folds < 2:
        return None
    fold = np.random.default_rng(options.seed).permutation(queries) % folds
    scored = np.empty(queries)
    for number in range(folds):
        chosen = best(tried, table[:, fold != number])
        scored[fold == number] = table[tried.index(chosen), fold == number]
    return float(scored.mean())


def _places(valued: pl.DataFrame, qids: pl.Series, qrels: pl.DataFrame) -> pl.Series:
    """Return the row of each judged document among the candidates, null if no list contains it."""
    rows = valued.select("query", "docid").with_row_index("row")
    numbers = pl.DataFrame({"qid": qids}).with_row_index("query")
    judged = qrels.join(numbers, on="qid", how="left", maintain_order="left")
    return judged.join(rows, on=["query", "docid"], how="left", maintain_order="left")["row"]


def _positions(scored: pl.DataFrame, places: pl.Series, hits: int) -> pl.Series:
    """Return the rank of each judged document; `scored` is sorted by query and docid, so ties are ordered by docid."""
    ranks = scored.select((-pl.col("score")).rank("ordinal").over("query"))["score"]
    found = ranks.gather(places.fill_null(0)) if len(ranks) else places
    kept = places.is_not_null() & (found <= hits)
    return pl.select(pl.when(kept).then(found).cast(pl.Int64).alias("position"))["position"]


def content(tuned: Tuned, alone: Mapping[str, float], measure: str) -> dict[str, Any]:
    """Return the content of the file: weights in the order of `runs`, scores, and all trials.

    Args:
        tuned: result of `tune`.
        alone: run -> score of the run alone, in the order of the weights.
        measure: name of the maximized measure.
    """
    return {
        "runs": list(alone),
        "weights": list(tuned.weights),
        "measure": measure,
        "score": tuned.score,
        "held_out": tuned.held_out,
        "alone": dict(alone),
        "within_1_percent": [list(span) for span in tuned.flat],
        "trials": [{"weights": list(weights), "score": score} for weights, score in tuned.trials],
    }


def chosen_weights(given: str | Sequence[float] | None, recipe: Recipe, names: Sequence[str]) -> Recipe:
    """Return the recipe with weights given as numbers, as text (`0.5,1`) or as `@FILE`; unchanged for None.

    Args:
        given: value of --weights.
        recipe: method and its settings.
        names: names of the weighted runs, in order.

    Raises:
        InputError: not numbers, a wrong number of them, or a file for other runs or another recipe.
    """
    weights = recipe.weights if given is None else _parsed(given, recipe, names)
    if len(weights) != len(names):
        raise InputError(
            f"--weights {','.join(f'{weight:g}' for weight in weights)}: pass one weight for each of "
            f"{', '.join(names)}, in this order; got {len(weights)}"
        )
    return replace(recipe, weights=weights)


def _parsed(given: str | Sequence[float], recipe: Recipe, names: Sequence[str]) -> tuple[float, ...]:
    if not isinstance(given, str):
        return tuple(float(weight) for weight in given)
    if given.startswith("@"):
        return read_weights(Path(given[1:]), recipe, names)
    try:
        if "=" in given:
            return _by_name(given, names)
        return tuple(float(weight) for weight in given.split(","))
    except ValueError:
        raise InputError(
            f"--weights {given}: needs numbers such as 0.5,1 or {names[0]}=0.5,..., or @FILE written by --tune"
        ) from None


def _by_name(given: str, names: Sequence[str]) -> tuple[float, ...]:
    """Return the weights of `bm25=0.3,dense=0.7` in the order of `names`."""
    weights: dict[str, float] = {}
    for part in given.split(","):
        name, _, weight = part.strip().rpartition("=")
        if name not in names:
            close = get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]}? " if close else ""
            raise InputError(f"--weights {part}: no such run; {hint}The runs are {', '.join(names)}")
        if name in weights:
            raise InputError(f"--weights {given}: {name} is given twice")
        weights[name] = float(weight)
    if missing := [name for name in names if name not in weights]:
        raise InputError(f"--weights {given}: has no weight for {', '.join(missing)}")
    return tuple(weights[name] for name in names)


def weights_file(given: object) -> dict[str, Path]:
    """Return the weights file as an input of a stage, if weights are given as `@FILE`."""
    return {"weights": Path(given[1:])} if isinstance(given, str) and given.startswith("@") else {}


def read_weights(path: Path, recipe: Recipe, names: Sequence[str]) -> tuple[float, ...]:
    """Read the weights of a file for the runs `names`, fused by `recipe`.

    Raises:
        InputError: the weights were tuned for another method, number of runs, or order of the runs.
    """
    tuned = artifacts.read_manifest(path, Kind.WEIGHTS).options
    found = read_object(path)
    wanted = {"runs": list[str], "weights": list[float]}
    if wrong := [name for name, kind in wanted.items() if not fits(found.get(name), kind)]:
        raise InputError(f"{path}: damaged weights; '{wrong[0]}' is {named(found.get(wrong[0]))}; tune again")
    if len(found["runs"]) != len(found["weights"]):
        raise InputError(f"{path}: damaged weights; {len(found['weights'])} for {len(found['runs'])} runs; tune again")
    here: dict[str, Any] = {"method": recipe.method, "missing": recipe.missing, "normalize": recipe.normalization}
    here |= {"rrf_k": recipe.rrf_k} if recipe.method == "rrf" else {}
    for name, value in here.items():
        if tuned.get(name) != value:
            option = "--" + name.replace("_", "-")
            raise InputError(f"{path}: tuned with {option} {tuned.get(name)}, not {value}; tune again")
    if len(found["runs"]) != len(names):
        raise InputError(f"{path}: was tuned for {len(found['runs'])} runs, not {len(names)}; tune again")
    if found["runs"] != list(names) and sorted(found["runs"]) == sorted(names):
        raise InputError(
            f"{path}: was tuned for the runs in the order {', '.join(found['runs'])}; pass them in this order"
        )
    return tuple(found["weights"])
