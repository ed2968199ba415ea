"""`combine`: combine two encoders, with a fixed weight or one tuned on judged queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import artifacts, console, runs
from hybrid_cli.artifacts.indexes import model_input
from hybrid_cli.artifacts.opening import model_of, open_dense
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Combine
from hybrid_cli.commands.common import as_names
from hybrid_cli.encoders import composite
from hybrid_cli.encoders.composite import Combination, CombinationRecipe
from hybrid_cli.encoders.contract import COMBINATION, SPARSE, kind_of
from hybrid_cli.encoders.models import open_encoder, resolve
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.evaluation.measures import evaluate_positions
from hybrid_cli.fusion import methods, tuning
from hybrid_cli.fusion.lists import Lists
from hybrid_cli.fusion.selection import Trials
from hybrid_cli.fusion.tuning import TunedWeight
from hybrid_cli.indexes.dense import DenseIndex
from hybrid_cli.reporting.terminal import show_tuned_weight
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind


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
    if sparse := [model for model, folder in zip(models, folders, strict=True) if kind_of(folder) == SPARSE]:
        problem = f"{sparse[0]}: is a sparse encoder; combine dense encoders, and fuse runs with sparse ones"
        raise InputError(problem, code="other-kind", path=sparse[0], kind=SPARSE)
    judged: dict[str, Path] = {}
    inputs: dict[str, Path | artifacts.Named] = {
        f"model {number}": model_input(model) for number, model in enumerate(models, 1)
    }
    if settings.tune is not None and settings.index is not None:
        inputs |= {"index": settings.index, **(judged := _judged(settings.tune, settings.split))}
    output = artifacts.output_of(settings, Kind.ENCODER, inputs)
    if output.up_to_date:
        return output.path
    index = open_dense(settings.index) if settings.index is not None else None
    built_with = model_of(index) if index is not None else None
    recipe = CombinationRecipe(settings.combine, settings.weight)
    if built_with is not None and kind_of(built_with) == COMBINATION:  # with contract fields such as a truncation
        recipe = replace(recipe, changes=composite.read_recipe(built_with).changes)
    parts = [
        open_encoder(folder, device=settings.device, overrides=changed)
        for folder, changed in zip(folders, recipe.changes, strict=True)
    ]
    composite.refuse_equal(parts, models)
    encoder = Combination(recipe, parts)
    tuned: dict[str, Any] = {}
    if index is not None:
        recipe, tuned = _tune(encoder, index, settings, judged)
    with output.folder() as (work, counts):
        composite.write_combination(work, folders, recipe, artifacts.hard_link)
        counts |= {"dim": encoder.dim, "weight": recipe.weight, **tuned}
    first, second = models
    console.note(f"combine: {output.path}: {recipe.combine} of {first} and {recipe.weight:g} times {second}")
    return output.path


def _tune(
    encoder: Combination, index: DenseIndex, settings: Combine, judged: Mapping[str, Path]
) -> tuple[CombinationRecipe, dict[str, Any]]:
    """Return the recipe with the selected weight, and the scores for the manifest.

    Raises:
        InputError: the index is of another combination, or no judged query can tell weights apart.
    """
    if index.fingerprint != encoder.fingerprint:
        problem = f"{index.folder}: was not built with this combination of these models; encode with both first"
        raise InputError(problem, code="other-encoder", path=index.folder)
    queries, qrels = collections.read_judged(judged["queries"], judged["qrels"])
    lists = Lists.of(_terms(index, encoder, queries, settings.depth))
    family = tuning.MethodGrid(methods.FusionRecipe("weighted-sum", (1.0, 1.0), "zero"), settings.grid)
    with console.progress("tune", unit="weights") as advance:
        choices, (values,) = tuning.tabulate(
            family,
            list(lists.blocks()),
            lists.qids,
            [qrels],
            2 * settings.depth,
            lambda positions: evaluate_positions(positions, [settings.measure])["value"].to_numpy(),
            advance,
        )
    if not values.any():
        reason = f"is 0 for every judged query of {judged['qrels']}; pass the collection of the index"
        raise option_error("measure", settings.measure, reason, code="measure-always-zero", path=judged["qrels"])
    both = [row for row, choice in enumerate(choices) if choice.single is None]
    table = Trials([choices[row] for row in both], values[both])
    alone = {choice.single: values[row] for row, choice in enumerate(choices)}  # 0: the second encoder
    first, second = as_names(settings.models)
    tuned = TunedWeight(table, {first: alone[1], second: alone[0]}, scaled=settings.grid == "scaled")
    if (share := tuned.best_share_at_end) is not None:
        console.note(f"combine: a share of {share:.0%} for the second encoder, an end of the grid, is best")
    show_tuned_weight(tuned, settings.combine, settings.measure, settings.depth)
    facts = tuned.content() | {"measure": settings.measure, "trials": len(both)}
    return replace(encoder.recipe, weight=tuned.weight), {"tuned": facts}


def _judged(collection: Path, split: str | None) -> dict[str, Path]:
    """Return the files with the queries and judgments to tune on."""
    if collection.is_file():
        reason = "is a file; pass a collection, which has the texts of the queries too"
        raise option_error("tune", collection, reason, code="other-kind", path=collection, expected="collection")
    split = collections.tuning_split(collection, split)
    return {"queries": collections.queries_path(collection, split), "qrels": collections.qrels_path(collection, split)}


def _terms(index: DenseIndex, encoder: Combination, queries: pl.DataFrame, depth: int) -> list[pl.DataFrame]:
    """Return the scores of the second and of the first encoder as runs, for the best `depth` documents of each."""
    parts = encoder.query_parts(queries["text"].to_list())[::-1]
    sides = [replace(index, encode=partial(lambda vectors, queries: vectors, part)) for part in parts]
    best = [side.table(side.hits(part, depth), queries["qid"]) for side, part in zip(sides, parts, strict=True)]
    pairs = pl.concat(run.select("qid", "docid") for run in best).unique(maintain_order=True)
    scored = [pairs.with_columns(side.scorer(queries)(pairs).alias("score")) for side in sides]
    return [runs.ranked(frame, len(frame)) for frame in scored]
