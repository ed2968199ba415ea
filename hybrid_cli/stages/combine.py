"""`combine`: two encoders to one, the weight of the second given or found on judged queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import artifacts, console, runs
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections import collection as collections
from hybrid_cli.config import Combining
from hybrid_cli.encoders import combination
from hybrid_cli.encoders.combination import Combination, Recipe
from hybrid_cli.encoders.contract import kind_of
from hybrid_cli.encoders.encoder import open_encoder
from hybrid_cli.encoders.models import model_input, resolve
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.measures import evaluate_positions
from hybrid_cli.fusion import methods, tuning
from hybrid_cli.fusion.lists import Lists
from hybrid_cli.indexes import DenseIndex
from hybrid_cli.indexes.exact import model_of
from hybrid_cli.settings.retrieval import WeightTuning


@dataclass(frozen=True)
class Judged:
    """On what a weight is tuned: the judged queries of a collection's split, and an index of the combination."""

    collection: Path
    split: str
    index: Path


def combine(
    models: Sequence[str],
    output: Path,
    *,
    how: Combining = Combining(),  # noqa: B008 - frozen
    tune: Judged | None = None,
    device: str = "auto",
    overwrite: bool = False,
) -> Path:
    """Make one encoder of two, with the weight of `how`, or the best one on judged queries.

    The weight is on the query side: an index of the combination serves every weight.

    Args:
        models: the first, whose weight is 1, and the second.
        tune: choose the weight there. Candidates are the best `how.depth` documents of each half alone; both scores of
            all of them are computed from the stored vectors.

    Raises:
        InputError: models, index or judgements are not usable, or do not fit together.
    """
    folders = [resolve(model) for model in models]
    inputs: dict[str, Path | artifacts.Named] = {
        f"model {number}": model_input(model) for number, model in enumerate(models, 1)
    }
    if tune is not None:
        inputs |= {
            "index": tune.index,
            "queries": collections.queries_path(tune.collection, tune.split),
            "qrels": collections.qrels_path(tune.collection, tune.split),
        }
    options = asdict(how) if tune is not None else {"how": how.how, "weight": how.weight}
    claim = artifacts.open_output(output, Kind.ENCODER, "combine", inputs=inputs, options=options, overwrite=overwrite)
    if claim.up_to_date:
        return output
    recipe = Recipe(how.how, how.weight, _changes(tune))
    parts = [
        open_encoder(folder, device=device, overrides=changed)
        for folder, changed in zip(folders, recipe.changes, strict=True)
    ]
    combination.check(recipe, *(part.dim for part in parts))
    found: dict[str, Any] = {}
    if tune is not None:
        recipe, found = _tuned(Combination(recipe, parts), tune, how, device)
    with claim.folder() as (work, counts):
        combination.write(work, folders, recipe)
        counts |= {"dim": Combination(recipe, parts).dim, "weight": recipe.weight, **found}
    console.note(f"combine: {output}: {recipe.how} of {models[0]} and {recipe.weight:g} times {models[1]}")
    return output


def _changes(tune: Judged | None) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What the index of the combination changes in the contract of each encoder, such as a prefix."""
    folder = model_of(DenseIndex.open(tune.index)) if tune is not None else None
    if folder is None or kind_of(folder) != combination.KIND:
        return {}, {}
    return combination.read(folder).changes


def _tuned(encoder: Combination, judged: Judged, how: Combining, device: str) -> tuple[Recipe, dict[str, Any]]:
    """The recipe with the best weight, and what speaks for it."""
    index = DenseIndex.open(judged.index)
    if index.fingerprint != encoder.fingerprint:
        raise InputError(f"{judged.index}: was not made by these models combined in this way; encode with both first")
    qrels = collections.read_qrels(collections.qrels_path(judged.collection, judged.split))
    queries = collections.read_queries(collections.queries_path(judged.collection, judged.split))
    queries = queries.join(qrels, on="qid", how="semi", maintain_order="left")
    if not len(queries):
        raise InputError(f"{judged.collection}: the split {judged.split} has no judged query")
    lists = Lists.of(_halves(index, encoder, queries, how.depth))

    def measured(places: pl.DataFrame) -> np.ndarray:
        return evaluate_positions(places, [how.measure])["value"].to_numpy()

    recipe = methods.Recipe("weighted-sum", (1.0, 1.0), "zero")
    with console.progress("tune", unit="weights") as advance:
        found = tuning.tune(
            lists.blocks(), lists.qids, qrels, recipe, 2 * how.depth, measured, WeightTuning(grid=how.grid), advance
        )
    _show(found, how.measure)
    facts = {"measure": how.measure, "score": found.score, "held_out": found.held_out, "trials": len(found.trials)}
    return replace(encoder.recipe, weight=found.weights[0]), {"tuned": facts}


def _halves(index: DenseIndex, encoder: Combination, queries: pl.DataFrame, depth: int) -> list[pl.DataFrame]:
    """The scores of the second half and of the first, each for the best `depth` documents of both, as two runs."""
    qids = queries["qid"].to_list()
    sides = encoder.query_parts(queries["text"].to_list())[::-1]
    best = [index.search(side, qids, depth).select("qid", "docid") for side in sides]
    pairs = pl.concat(best).unique(maintain_order=True)
    scored = [pairs.with_columns(index.score(pairs, qids, side).alias("score")) for side in sides]
    return [runs.ranked(frame, len(frame)) for frame in scored]


def _show(found: tuning.Tuned, measure: str) -> None:
    """Print what the best weights gave, and how far the weight may move for 1% of it."""
    low, high = found.flat[0]
    held_out = found.score if found.held_out is None else found.held_out
    console.table(
        ["weight", "within 1% of the best", measure, "held out"],
        [[f"{found.weights[0]:g}", f"{low:g} to {high:g}", f"{found.score:.4f}", f"{held_out:.4f}"]],
    )
