"""`combine`: combine two encoders, with a fixed weight or one tuned on judged queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import artifacts, console, runs
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections import collection as collections
from hybrid_cli.encoders import composite
from hybrid_cli.encoders.composite import Combination, Recipe
from hybrid_cli.encoders.contract import COMBINATION, SPARSE, kind_of
from hybrid_cli.encoders.models import model_input, resolve
from hybrid_cli.encoders.open_encoder import open_encoder
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.measures import evaluate_positions
from hybrid_cli.fusion import methods, tuning
from hybrid_cli.fusion.lists import CANDIDATE_BYTES, Lists
from hybrid_cli.fusion.selection import Table
from hybrid_cli.indexes import DenseIndex
from hybrid_cli.indexes.exact import model_of
from hybrid_cli.reporting.terminal import show_tuned_weight
from hybrid_cli.settings import Combine, stage
from hybrid_cli.settings.common import as_names

_FOLDS, _SEED = 5, 42  # of the held-out score


@stage(Combine)
def combine(settings: Combine) -> Path:
    """Combine two encoders; with `tune`, select the weight on judged queries (SPAR, section 4.2).

    The weight is on the query side, so one index of the combination serves all weights. Candidates of the tuning are
    the best `depth` documents of each encoder alone; both encoders score all of them from the stored vectors.

    Returns:
        Path of the combined encoder.

    Raises:
        InputError: models, index or judgments cannot be used together.
    """
    models = as_names(settings.models)
    folders = [resolve(model) for model in models]
    _refuse_sparse(models, folders)
    inputs: dict[str, Path | artifacts.Named] = {
        f"model {number}": model_input(model) for number, model in enumerate(models, 1)
    }
    if settings.tune is not None and settings.index is not None:
        inputs |= {
            "index": settings.index,
            "queries": collections.queries_path(settings.tune, settings.split),
            "qrels": collections.qrels_path(settings.tune, settings.split),
        }
    output = artifacts.output_of(settings, Kind.ENCODER, inputs)
    if output.up_to_date:
        return output.path
    index = DenseIndex.open(settings.index) if settings.index is not None else None
    recipe = _recipe(settings, index)
    parts = [
        open_encoder(folder, device=settings.device, overrides=changed)
        for folder, changed in zip(folders, recipe.changes, strict=True)
    ]
    composite.refuse_equal(parts, models)
    encoder = Combination(recipe, parts)
    tuned: dict[str, Any] = {}
    if index is not None:
        recipe, tuned = _tune(encoder, index, settings)
    with output.folder() as (work, counts):
        composite.write_combination(work, folders, recipe)
        counts |= {"dim": encoder.dim, "weight": recipe.weight, **tuned}
    first, second = models
    console.note(f"combine: {output.path}: {recipe.combine} of {first} and {recipe.weight:g} times {second}")
    return output.path


def _refuse_sparse(models: Sequence[str], folders: Sequence[Path]) -> None:
    for model, folder in zip(models, folders, strict=True):
        if kind_of(folder) == SPARSE:
            raise InputError(f"{model}: is a sparse encoder; combine dense encoders, and fuse runs with sparse ones")


def _recipe(settings: Combine, index: DenseIndex | None) -> Recipe:
    """Return the recipe, with the contract fields overridden in an index of the combination, such as a truncation."""
    folder = model_of(index) if index is not None else None
    if folder is None or kind_of(folder) != COMBINATION:
        return Recipe(settings.combine, settings.weight)
    return Recipe(settings.combine, settings.weight, composite.read_recipe(folder).changes)


def _tune(encoder: Combination, index: DenseIndex, settings: Combine) -> tuple[Recipe, dict[str, Any]]:
    """Return the recipe with the selected weight, and the scores for the manifest.

    The middle of the plateau is selected on the scaled grid, the best weight on the others (SPAR, appendix A).
    """
    assert settings.tune is not None
    if index.fingerprint != encoder.fingerprint:
        raise InputError(
            f"{index.folder}: was not built with this combination of these models; encode with both models first"
        )
    qrels = collections.read_qrels(collections.qrels_path(settings.tune, settings.split))
    queries = collections.read_queries(collections.queries_path(settings.tune, settings.split))
    queries = queries.join(qrels, on="qid", how="semi", maintain_order="left")
    if not len(queries):
        raise InputError(f"{settings.tune}: split {settings.split} has no judged query")
    lists = Lists.of(_terms(index, encoder, queries, settings.depth))

    def measured(places: pl.DataFrame) -> np.ndarray:
        return evaluate_positions(places, [settings.measure])["value"].to_numpy()

    recipe = methods.Recipe("weighted-sum", (1.0, 1.0), "zero")
    family = tuning.Family(recipe, settings.grid, singles=False)
    with console.progress("tune", unit="weights") as advance:
        choices, values = tuning.tabulate(
            family, lists.blocks, lists.qids, qrels, 2 * settings.depth, measured, advance
        )
    table = Table(choices, values)
    plateau, scaled = table.plateau(), settings.grid == "scaled"
    outside = table.held_out(_FOLDS, _SEED, best=not scaled)
    row = plateau.chosen if scaled else plateau.best
    weight, score = choices[row].weights[0], float(values[row].mean())
    share = float(choices[row].place[0]) if scaled else None
    if scaled and plateau.best in (0, len(choices) - 1):
        console.note(
            f"combine: a share of {choices[plateau.best].place[0]:.0%} for the second encoder is best, an end of the "
            "grid; compare the combination with each encoder alone"
        )
    held_out = None if outside is None else float(outside.mean())
    near = [choices[row].weights[0] for row in plateau.rows]
    show_tuned_weight(settings.measure, weight, share, (min(near), max(near)), score, held_out)
    facts = {
        "share": share,
        "measure": settings.measure,
        "score": score,
        "held_out": held_out,
        "trials": len(choices),
    }
    return replace(encoder.recipe, weight=weight), {"tuned": facts}


def _terms(index: DenseIndex, encoder: Combination, queries: pl.DataFrame, depth: int) -> list[pl.DataFrame]:
    """Return the scores of the second and of the first encoder as runs, for the best `depth` documents of each."""
    console.forecast(2 * depth * len(queries) * CANDIDATE_BYTES, "combine --tune", "use a smaller --depth")
    qids = queries["qid"].to_list()
    sides = encoder.query_parts(queries["text"].to_list())[::-1]
    best = [index.search(side, qids, depth).select("qid", "docid") for side in sides]
    pairs = pl.concat(best).unique(maintain_order=True)
    scored = [pairs.with_columns(index.score(pairs, qids, side).alias("score")) for side in sides]
    return [runs.ranked(frame, len(frame)) for frame in scored]
