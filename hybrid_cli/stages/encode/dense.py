"""Texts to vectors with a dense encoder, or with two that are combined."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hybrid_cli import artifacts, console, storage
from hybrid_cli.artifacts.indexes import model_input
from hybrid_cli.artifacts.opening import limit_threads
from hybrid_cli.commands.common import as_names
from hybrid_cli.commands.retrieval import DENSE_TEXTS, OF_ENDPOINT, DenseTexts
from hybrid_cli.encoders import composite
from hybrid_cli.encoders.composite import Combination, CombinationRecipe, refuse_equal
from hybrid_cli.encoders.contract import TRANSFORMER, Encoder, kind_of, read_contract
from hybrid_cli.encoders.endpoint import EndpointEncoder
from hybrid_cli.encoders.models import open_encoder, resolve
from hybrid_cli.errors import InputError
from hybrid_cli.indexes import shards as shards_module
from hybrid_cli.indexes.shards import Block, Encoded, block_encoder, encode_texts, progress, shard_facts, shard_path
from hybrid_cli.stages.encode import shared
from hybrid_cli.storage import Kind
from hybrid_cli.storage.layout import INDEX_ENCODER


def encode_dense(settings: DenseTexts, source: Path, kind: Kind, folders: list[Path], changes: dict[str, Any]) -> Path:
    """Encode documents as a dense index, or queries as vectors.

    Args:
        settings: options of the job.
        source: file of the texts.
        kind: kind of the output.
        folders: one encoder, or two, which are combined.
        changes: fields of the contract that presets and options set.
    """
    models, encoder_kind = as_names(settings.model), shared.encoder_of(folders)
    settings.check_facts(f"{models[0]} is {encoder_kind}", job=DENSE_TEXTS, encoder=encoder_kind)
    binary = len(folders) == 1 and kind_of(folders[0]) == TRANSFORMER and read_contract(folders[0]).binary
    if kind == Kind.DENSE_INDEX:
        settings = shared.with_type(settings, binary)
    recorded = shared.without_contract(settings.recorded(job=DENSE_TEXTS, encoder=encoder_kind))
    settings = shared.on_cluster(settings)
    dtype = shared.precision(settings, encoder_kind)
    precise = {"dtype": dtype} if "dtype" in recorded else {}
    inputs: dict[str, artifacts.Input] = {"corpus" if kind == Kind.DENSE_INDEX else "queries": source}
    inputs |= zip(("model", "second model"), map(model_input, models), strict=False)
    output = artifacts.output_of(settings, kind, inputs, {**recorded, "contract": changes, **precise})
    if output.up_to_date:
        return shared.check_recall(settings, output)
    limit_threads(settings.threads)
    recipe, encoder = open_encoders(settings, shared.own_device(settings), dtype, changes)
    texts, total = shared.texts_in(source, kind)
    if not total:
        raise InputError(f"{source}: has no texts to encode", code="no-documents", path=source)
    many = encoder_kind == OF_ENDPOINT or shared.device_of(settings) != "cpu"  # texts at once
    with output.folder() as (work, counts):
        if isinstance(encoder, EndpointEncoder):
            encoder.limit(settings)
            blocks = shards_module.remaining_blocks(work, shared.texts_in(source, kind)[0], settings, many)
            encoder.forecast(blocks, kind == Kind.VECTORS)
        if kind == Kind.DENSE_INDEX:
            shared.check_space(settings, encoder.dim, total, output)
        if len(folders) > 1:
            composite.write_combination(work / INDEX_ENCODER, folders, recipe, artifacts.hard_link)
        with progress("encode", partial(shard_path, work), total, settings.shard_size) as advance:
            resolved, of_queries = {"dtype": dtype, "contract": changes}, kind == Kind.VECTORS
            function = block_encoder(encoder, of_queries, settings.batch_tokens)
            encoded = shared.blocks(settings, function, partial(_start, of_queries, resolved))
            encode_texts(work, texts, encoded, of_queries, settings, advance, many)
        storage.refuse_lost(shard_path(work, number) for number in range(-(-total // settings.shard_size)))
        truncated = sum(int(shard_facts(path).get("truncated", 0)) for path in shards_module.shards(work))
        info = shared.info_of_encoder(encoder, total, truncated)
        counts |= shared.finish(settings, work, info, kind)
    console.note(
        f"encode: {output.path}: {console.counted(**{'document' if kind == Kind.DENSE_INDEX else 'query': total})}, "
        f"{encoder.dim} dimensions, {f'{dtype}, ' if precise else ''}{truncated / total:.1%} truncated"
    )
    if kind == Kind.DENSE_INDEX and truncated > shared.MUCH_TRUNCATED * total:
        shared.warn_truncated(source, encoder, truncated, total)
    return output.path


def open_encoders(
    settings: DenseTexts, device: str, dtype: Any, changes: dict[str, Any]
) -> tuple[CombinationRecipe, Encoder]:
    """Return the encoder of one or two models with a changed contract, and the recipe of a combination."""
    recipe = CombinationRecipe(settings.combine, settings.weight)
    models = as_names(settings.model)
    encoders = [open_encoder(resolve(model), device=device, dtype=dtype, overrides=changes) for model in models]
    if len(encoders) == 1:
        return recipe, encoders[0]
    refuse_equal(encoders, models)
    return recipe, Combination(recipe, encoders)


def _start(of_queries: bool, resolved: dict[str, Any], settings: DenseTexts, device: str) -> Callable[[Block], Encoded]:
    """Open the encoder in a process of its own."""
    limit_threads(settings.threads)
    _, encoder = open_encoders(settings, device, resolved["dtype"], resolved["contract"])
    return block_encoder(encoder, of_queries, settings.batch_tokens)
