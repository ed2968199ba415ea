"""`fuse`: runs to one run; or runs and judgements to the weights that fuse them best."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl

from hybrid_cli import artifacts, console, runs
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections import collection
from hybrid_cli.config import Fusion, Missing, Normalization, Tuning
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.measures import evaluate_positions, evaluate_run, mean_of, parse_measures
from hybrid_cli.fusion import lists, tuning
from hybrid_cli.fusion.lists import Lists, Scorer
from hybrid_cli.fusion.methods import METHODS, Recipe, method_name
from hybrid_cli.fusion.weights import chosen_weights, content, weights_file
from hybrid_cli.indexes.exact import ExactSource, exact_scorer, exact_source

_WIDE = 10.0  # one list's scores spread so many times as wide as another's: it decides alone


def fuse(
    inputs: Sequence[str | Path],
    *,
    output: Path,
    method: str = Fusion.method,
    weights: str | Sequence[float] | None = None,
    missing: Missing | None = None,
    normalization: Normalization | None = None,
    rrf_k: float = Fusion.rrf_k,
    depth: int = Fusion.depth,
    hits: int = Fusion.hits,
    indexes: Sequence[Path] = (),
    queries: Path | None = None,
    qrels: Path | None = None,
    split: str | None = None,
    measure: str = Fusion.measure,
    tune: Tuning | None = None,
    device: str = "auto",
    overwrite: bool = False,
) -> Path:
    """Fuse runs, or with `tune` find the weights to fuse them with.

    Args:
        inputs: the runs; `name=path` names one.
        output: the fused run (Parquet), or with `tune` the weights (JSON).
        method: as `methods.method_name` reads it.
        weights: one for each run, or as text `0.5,1` or `@weights.json`; equal if not given.
        missing: what a list says of a document that it lacks, if not the method's own rule.
        normalization: of each list, if not the method's own.
        depth: hits taken from each run.
        hits: documents kept for each query.
        indexes: for `exact`, the index that each run came from.
        queries: for `exact`, if they are not where the runs recorded them.
        qrels: judgements, with which single runs and fused run are compared; `tune` needs them.
        split: of `queries` and `qrels` where they are collections.
        measure: what is compared and what tuning raises.

    Raises:
        InputError: inputs or options are not usable together.
    """
    named = runs.named(inputs)
    recipe = _recipe(named, method, weights, missing, normalization, rrf_k)
    judgements = collection.qrels_path(qrels, split) if qrels is not None else None
    parse_measures([measure])
    plan = _Plan(named, recipe, depth, hits, _exact_sources(named, recipe, indexes, queries, split), device)
    if tune is not None:
        return _tune(plan, output, judgements, measure, tune, weights, overwrite)
    claim = artifacts.claim(
        output,
        Kind.RUN,
        "fuse",
        inputs=plan.inputs() | weights_file(weights),
        options=plan.options() | {"weights": list(recipe.weights), "hits": hits},
        overwrite=overwrite,
    )
    if not claim.up_to_date:
        _fuse(plan, claim, equal=weights is None)
    if judgements is not None:
        _compare(plan, output, collection.read_qrels(judgements), measure)
    return output


@dataclass(frozen=True)
class _Plan:
    """Which runs are fused and how."""

    runs: dict[str, Path]
    recipe: Recipe
    depth: int
    hits: int
    exact: list[ExactSource]
    device: str

    def inputs(self) -> dict[str, Path]:
        """Everything that the result depends on, by its place in the order of the runs."""
        files = {f"run {number}": path for number, path in enumerate(self.runs.values(), 1)}
        for number, source in enumerate(self.exact, 1):
            files |= {f"index {number}": source.index, f"queries {number}": source.queries}
        return files

    def options(self) -> dict[str, Any]:
        """The settings that tuned weights are good for."""
        settings = {name: value for name, value in asdict(self.recipe).items() if name != "weights"}
        return settings | {"depth": self.depth}


# ------------------------------------------------------------------------------------------------------------- settings


def _recipe(
    named: Mapping[str, Path],
    method: str,
    weights: str | Sequence[float] | None,
    missing: Missing | None,
    normalization: Normalization | None,
    rrf_k: float,
) -> Recipe:
    if len(named) < 2:
        raise InputError("fuse: one run is nothing to fuse; name two or more")
    name = method_name(method)
    for option, given, known in (("missing", missing, Missing), ("normalize", normalization, Normalization)):
        if given is not None and given not in get_args(known):
            raise InputError(f"--{option} {given}: is unknown; there are {', '.join(get_args(known))}")
    if rrf_k <= -1:
        raise InputError(f"--rrf-k {rrf_k:g}: must be above -1, for it is added to ranks from 1")
    recipe = Recipe(name, (1.0,) * len(named), missing or METHODS[name].missing, normalization, rrf_k)
    return chosen_weights(weights, recipe, list(named))


# -------------------------------------------------------------------------------------------------------- exact scores


def _exact_sources(
    named: Mapping[str, Path], recipe: Recipe, indexes: Sequence[Path], queries: Path | None, split: str | None
) -> list[ExactSource]:
    """Where exact scores come from; nothing where another rule holds for the missing."""
    if recipe.missing != "exact":
        if indexes:
            raise InputError(f"--index: is read with --missing exact only; here it is {recipe.missing}")
        return []
    if not indexes:
        raise InputError(
            f"--method {recipe.method} --missing exact: needs the index of each run, in order (--index A,B); or choose "
            "--missing min (the list's lowest score), zero, ignore, or drop (documents of all lists only)"
        )
    if len(indexes) != len(named):
        raise InputError(f"--index: {len(indexes)} for {len(named)} runs; one is needed for each, in order")
    override = collection.queries_path(queries, split) if queries is not None else None
    return [exact_source(run, index, override) for run, index in zip(named.values(), indexes, strict=True)]


# --------------------------------------------------------------------------------------------------------------- fusing


def _fuse(plan: _Plan, claim: artifacts.Claim, *, equal: bool) -> None:
    side_by_side = Lists.of(_tables(plan), plan.depth)
    _check_scores(plan, side_by_side, equal)
    shares: list[np.ndarray] = []
    with console.progress("fuse", len(side_by_side.qids), "queries") as advance:

        def tables() -> Iterator[Any]:
            blocks = _candidates(plan, side_by_side, shares)
            for run in lists.fuse(blocks, side_by_side.qids, plan.recipe, plan.hits):
                advance(run["qid"].n_unique())
                yield run.to_arrow()

        written = claim.write(tables(), queries=len(side_by_side.qids))
    common = float(np.concatenate(shares).mean()) if shares else 0.0
    console.note(
        f"fuse: {claim.output}: {len(side_by_side.qids):,} queries, {written.counts['rows']:,} hits of "
        f"{len(plan.runs)} runs, which share {common:.1%} of their documents; missing: {plan.recipe.missing}"
    )


def _tables(plan: _Plan) -> list[pl.DataFrame]:
    return [runs.read_run(path) for path in plan.runs.values()]


def _candidates(plan: _Plan, side_by_side: Lists, shares: list[np.ndarray]) -> Iterable[pl.DataFrame]:
    """The blocks, completed where exact scores are wanted; `shares` takes what the lists have in common."""

    def watched() -> Iterator[pl.DataFrame]:
        for block in side_by_side.blocks():
            shares.append(lists.overlap(block, len(plan.runs)))
            yield block

    if not plan.exact:
        return watched()
    with console.progress("score the missing", unit="pairs") as advance:
        scorers = [_counted(exact_scorer(source, plan.device), advance) for source in plan.exact]
        return lists.complete(watched(), side_by_side.qids, scorers)


def _counted(scorer: Scorer, advance: Callable[[int], None]) -> Scorer:
    def score(pairs: pl.DataFrame) -> pl.Series:
        found = scorer(pairs)
        advance(len(pairs))
        return found

    return score


def _check_scores(plan: _Plan, side_by_side: Lists, equal: bool) -> None:
    """Refuse what is no similarity; warn where one list would decide alone."""
    spreads: dict[str, float] = {}
    for name, path in plan.runs.items():
        number = len(spreads)
        scores = side_by_side.hits[number]["score"]
        if side_by_side.rising(number) > 0.5:
            raise InputError(f"{path}: its scores rise with the rank, as distances do; negate them")
        spreads[name] = float(scores.std() or 0.0)  # type: ignore[arg-type]
    if plan.recipe.sums_raw_scores and equal and min(spreads.values()) * _WIDE < max(spreads.values()):
        narrow, wide = min(spreads, key=lambda name: spreads[name]), max(spreads, key=lambda name: spreads[name])
        console.warn(
            f"the scores of {wide} spread {spreads[wide] / max(spreads[narrow], 1e-9):,.0f} times as wide as those of "
            f"{narrow} and nearly decide alone; give --weights, find them with --tune, or use --method minmax"
        )


# ------------------------------------------------------------------------------------------------------------ measuring


def _compare(plan: _Plan, output: Path, qrels: pl.DataFrame, measure: str) -> None:
    """Print the single runs' scores beside that of the fused run."""
    alone = {name: _score(runs.read_run(path), qrels, measure) for name, path in plan.runs.items()}
    together = _score(runs.read_run(output), qrels, measure)
    rows = [[name, f"{score:.4f}"] for name, score in alone.items()]
    console.table(["run", measure], [*rows, [f"fused ({plan.recipe.method})", f"{together:.4f}"]])
    _warn_unless_better("fusion", together, alone, measure)


def _score(run: pl.DataFrame, qrels: pl.DataFrame, measure: str) -> float:
    return mean_of(evaluate_run(run, qrels, [measure]), measure)


def _warn_unless_better(what: str, score: float, alone: Mapping[str, float], measure: str) -> None:
    first = max(alone, key=lambda name: alone[name])
    if score <= alone[first]:
        console.warn(f"{what} ({measure} {score:.4f}) does not beat {first} alone ({alone[first]:.4f})")


# --------------------------------------------------------------------------------------------------------------- tuning


def _tune(
    plan: _Plan,
    output: Path,
    judgements: Path | None,
    measure: str,
    how: Tuning,
    weights: object,
    overwrite: bool,
) -> Path:
    if judgements is None:
        raise InputError("--tune: needs --qrels, a file or a collection with --split; never those you will report on")
    if weights is not None:
        raise InputError("--tune: finds the weights; leave --weights out")
    claim = artifacts.claim(
        output,
        Kind.WEIGHTS,
        "fuse --tune",
        inputs=plan.inputs() | {"qrels": judgements},
        options=plan.options() | {"hits": plan.hits, "measure": measure, **asdict(how)},
        overwrite=overwrite,
    )
    if not claim.up_to_date:
        qrels = collection.read_qrels(judgements)
        tables = [table.filter(pl.col("qid").is_in(qrels["qid"].unique().implode())) for table in _tables(plan)]
        alone = {name: _score(table, qrels, measure) for name, table in zip(plan.runs, tables, strict=True)}
        tuned = _search(plan, tables, qrels, measure, how)
        claim.write_json(content(tuned, alone, measure), queries=qrels["qid"].n_unique(), trials=len(tuned.trials))
    _show(json.loads(output.read_text("utf-8")))
    return output


def _search(
    plan: _Plan, tables: Sequence[pl.DataFrame], qrels: pl.DataFrame, measure: str, how: Tuning
) -> tuning.Tuned:
    side_by_side = Lists.of(tables, plan.depth)
    _check_scores(plan, side_by_side, equal=False)
    blocks = _candidates(plan, side_by_side, [])

    def measured(judged: pl.DataFrame) -> np.ndarray:
        return evaluate_positions(judged, [measure])["value"].to_numpy()

    with console.progress("tune", unit="sets of weights") as advance:
        return tuning.tune(blocks, side_by_side.qids, qrels, plan.recipe, plan.hits, measured, how, advance)


def _show(content: Mapping[str, Any]) -> None:
    """Print the weights, how far they may move for 1% of the score, and what they gain over each run alone."""
    measure, alone = content["measure"], content["alone"]
    rows = [
        [name, f"{weight:g}", f"{low:g} to {high:g}", f"{alone[name]:.4f}"]
        for name, weight, (low, high) in zip(
            content["runs"], content["weights"], content["within_1_percent"], strict=True
        )
    ]
    held_out = content["held_out"] if content["held_out"] is not None else content["score"]
    rows += [["fused", "", "", f"{content['score']:.4f}"], ["fused, held out", "", "", f"{held_out:.4f}"]]
    console.table(["run", "weight", "within 1% of the best", measure], rows)
    _warn_unless_better("fusion on held-out queries", held_out, alone, measure)
