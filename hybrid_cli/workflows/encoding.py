"""Texts to encode, their encoder, and encoding in one process per device, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import torch

from hybrid_cli import cluster, draws
from hybrid_cli.artifacts import Manifest
from hybrid_cli.artifacts.indexes import index_kinds, kind_in_words
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections import expansion
from hybrid_cli.encoders import composite
from hybrid_cli.encoders.composite import Combination, CombinationRecipe, refuse_equal
from hybrid_cli.encoders.contract import COMBINATION, SPARSE, STATIC, Encoder, kind_of
from hybrid_cli.encoders.models import open_encoder, pick_device, pick_devices, pick_dtype, resolve
from hybrid_cli.errors import option_error
from hybrid_cli.indexes.faiss import set_threads
from hybrid_cli.indexes.shards import Block, D, Encoded, Texts, block_encoder
from hybrid_cli.memory import cpu_count
from hybrid_cli.settings import Encode
from hybrid_cli.settings.common import DENSE_INDEX, TEXTS, as_names
from hybrid_cli.settings.dense import OF_DENSE, OF_DENSE_TRANSFORMER, OF_STATIC, OF_TRANSFORMER
from hybrid_cli.settings.retrieval import TRANSFORMER_INDEX
from hybrid_cli.settings.sparse import OF_SPARSE
from hybrid_cli.storage import Kind

_LENGTHS = 500  # documents whose tokens are counted
_FACTS = {
    OF_SPARSE: frozenset({OF_SPARSE, OF_TRANSFORMER}),
    OF_STATIC: frozenset({OF_STATIC, OF_DENSE}),
    OF_DENSE_TRANSFORMER: frozenset({OF_DENSE_TRANSFORMER, OF_DENSE, OF_TRANSFORMER}),
}


def source_of(settings: Encode) -> tuple[Path, Kind]:
    """Return the file of texts, and the kind of the output."""
    if settings.queries is not None:
        return collections.queries_path(settings.queries, settings.split), Kind.VECTORS
    assert settings.collection is not None  # checked by the settings
    if settings.split is not None:
        return collections.queries_path(settings.collection, settings.split), Kind.VECTORS
    return collections.corpus_path(settings.collection), Kind.DENSE_INDEX


def unread_share(corpus: Path, encoder: Any, total: int) -> float:
    """Estimate the share of the tokens of a corpus that an encoder with `unread_tokens` leaves out, on some documents.

    Args:
        corpus: collection, or its corpus file.
        encoder: a transformer.
        total: number of documents.
    """
    rows = draws.sample(total, _LENGTHS, draws.rng(0)).tolist()
    some = collections.scan(corpus).filter(pl.col("corpus_row").is_in(rows)).collect(engine="streaming")
    return float(encoder.unread_tokens(some["title"].to_list(), some["text"].to_list()))


def texts_in(source: Path, kind: Kind, added: Path | None = None) -> tuple[Iterable[Texts], int]:
    """Return the texts of a corpus (for a dense index) or of queries (for vectors), and their number.

    Args:
        source: the file.
        kind: kind of the output.
        added: file of texts to add to the documents.
    """
    if kind == Kind.DENSE_INDEX:
        batches = (batch.rename_columns(["id", "title", "text"]) for batch in expansion.documents(source, added))
        return batches, len(collections.docids(source))
    frame = collections.read_queries(source)
    ids, texts = (frame[name].to_arrow().cast(pa.string()) for name in ("qid", "text"))
    titles = pa.array([""] * len(frame), pa.string())
    return [pa.table({"id": ids, "title": titles, "text": texts})], len(frame)


def set_all_threads(threads: int | None) -> None:
    """Set the number of threads of PyTorch and FAISS; None keeps all cores."""
    if threads:
        torch.set_num_threads(threads)
        set_threads(threads)


def precision(settings: Encode) -> Any:
    """Return the precision with `auto` resolved, because it affects the vectors."""
    names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    here = settings.ray_address is None
    devices = pick_devices(settings.devices) or [pick_device(settings.device) if here else settings.device]
    return names[pick_dtype(settings.dtype, devices[0])]


def check_encoder(settings: Encode, folders: Sequence[Path], subject: str = "") -> frozenset[str]:
    """Refuse options that the encoders do not have.

    Args:
        settings: settings of the command.
        folders: folders of the encoders; none for imported vectors of an unknown encoder.
        subject: phrase for the message, in place of the kind of the encoder.

    Returns:
        The facts about the encoders, for the settings.
    """
    kind = _kind(settings, folders)
    facts = _FACTS[kind] if folders else frozenset({OF_DENSE})
    settings.check_facts(subject or f"{as_names(settings.model)[0]} is {kind}", input=TEXTS, encoder=facts)
    return facts


def check_indexes(settings: Encode, made: Mapping[Path, Manifest]) -> None:
    """Refuse options that the encoders of dense indexes do not have: static ones need no device.

    Args:
        settings: settings of the command.
        made: index -> its manifest.
    """
    static = not any(TRANSFORMER_INDEX in index_kinds(manifest_of_index) for manifest_of_index in made.values())
    subject = ", ".join(kind_in_words(path, manifest_of_index) for path, manifest_of_index in made.items())
    facts = _FACTS[OF_STATIC if static else OF_DENSE_TRANSFORMER]
    settings.check_facts(subject, input=DENSE_INDEX, encoder=facts)


def _kind(settings: Encode, folders: Sequence[Path]) -> str:
    """Return the kind of one or two encoders; that of two is a transformer if one is."""
    if settings.architecture is not None or SPARSE in map(kind_of, folders):
        return OF_SPARSE
    every = [
        part for folder in folders for part in (composite.parts(folder) if kind_of(folder) == COMBINATION else [folder])
    ]
    return OF_STATIC if all(kind_of(folder) == STATIC for folder in every) else OF_DENSE_TRANSFORMER


def open_encoders(
    settings: Encode, device: str, dtype: Any, changes: dict[str, Any]
) -> tuple[CombinationRecipe, Encoder]:
    """Return the encoder of one or two models with a changed contract, and the recipe of a combination."""
    recipe = CombinationRecipe(settings.combine, settings.weight)
    models = as_names(settings.model)
    encoders = [open_encoder(resolve(model), device=device, dtype=dtype, overrides=changes) for model in models]
    if len(encoders) == 1:
        return recipe, encoders[0]
    refuse_equal(encoders, models)
    return recipe, Combination(recipe, encoders)


def on_cluster(settings: Encode) -> Encode:
    """Return the settings for a Ray cluster, whose machines may have other devices than this one.

    Raises:
        InputError: the precision depends on the device.
    """
    if settings.ray_address is None:
        return settings
    if settings.device.startswith("cuda") and settings.dtype == "auto":
        raise option_error(
            "dtype", "auto", "depends on the GPUs of the cluster; pass fp32, bf16 or fp16", code="conflicting-options"
        )
    return settings.changed(device="cpu") if settings.device == "auto" else settings


def blocks_encoder(
    settings: Encode, encoder: Encoder, of_queries: bool, resolved: dict[str, Any]
) -> Callable[[Iterable[Block]], Iterable[Encoded]]:
    """Return the function that encodes blocks: with `encoder` in this process, or in others.

    Args:
        settings: settings of the command.
        encoder: the encoder of this process.
        of_queries: encode the texts as queries, not as documents.
        resolved: `dtype` and `contract` of the encoder.
    """
    if settings.ray_address is None and not settings.devices:
        return partial(map, block_encoder(encoder, of_queries, settings.batch_tokens))
    return elsewhere(settings, partial(_start, of_queries, resolved))


def elsewhere(
    settings: Encode, start: Callable[[Encode, str], Callable[[Block], D]]
) -> Callable[[Iterable[Block]], Iterable[D]]:
    """Return the function that maps blocks in one process per device, or on a Ray cluster.

    Args:
        settings: settings of the command.
        start: makes the function of a block, from the settings of its process and a device.
    """
    if settings.ray_address is not None:
        of_process = partial(start, settings.of_worker(), settings.device)
        return partial(cluster.map_blocks, settings, of_process, gpu=settings.device.startswith("cuda"))
    devices = pick_devices(settings.devices)
    settings = settings.changed(threads=settings.threads or max(1, cpu_count() // len(devices)))
    return partial(cluster.map_blocks, settings, partial(start, settings), devices=devices)


def _start(of_queries: bool, resolved: dict[str, Any], settings: Encode, device: str) -> Callable[[Block], Encoded]:
    """Open the encoder in a process of its own."""
    set_all_threads(settings.threads)
    _, encoder = open_encoders(settings, device, resolved["dtype"], resolved["contract"])
    return block_encoder(encoder, of_queries, settings.batch_tokens)
