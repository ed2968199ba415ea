"""Shards of vectors: from texts, or from the shards of other indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa

from hybrid_cli import artifacts
from hybrid_cli.encoders.composite import Combination
from hybrid_cli.encoders.contract import Encoder
from hybrid_cli.errors import HybridError
from hybrid_cli.indexes.dense import DenseIndex
from hybrid_cli.indexes.shards import link_shard, read_shard, shard_facts, shard_path, shards, write_shard
from hybrid_cli.settings import Encode

_AT_ONCE = 1024  # texts between two updates of the progress line
_CPU_BATCH_TOKENS, _GPU_BATCH_TOKENS = 2048, 1 << 16

Texts: TypeAlias = "pa.RecordBatch | pa.Table"  # columns id, title, text
Advance: TypeAlias = Callable[[int], None]


def encode_texts(
    folder: Path, texts: Iterable[Texts], encoder: Encoder, of_queries: bool, settings: Encode, advance: Advance
) -> None:
    """Encode texts to shards of `settings.shard_size`; shards that exist already are skipped.

    Args:
        folder: folder of the shards.
        texts: tables with the columns id, title, text.
        encoder: any encoder.
        of_queries: encode the texts as queries, not as documents.
        settings: size of shards and batches, type of the stored vectors.
        advance: called with the number of encoded texts.

    Raises:
        HybridError: a vector is not finite.
    """
    for number, shard in enumerate(artifacts.regrouped(map(pa.table, texts), settings.shard_size)):
        path = shard_path(folder, number)
        if path.exists():
            advance(len(shard))
            continue
        before = encoder.truncated
        parts = []
        for begin in range(0, len(shard), _AT_ONCE):
            part = shard.slice(begin, _AT_ONCE)
            parts.append(_vectors(part, encoder, of_queries, settings.batch_tokens))
            advance(len(part))
        found = np.concatenate(parts).astype(settings.vector_dtype)
        _check_finite(found, shard["id"], "query" if of_queries else "document")
        write_shard(path, shard["id"].combine_chunks(), found, truncated=encoder.truncated - before)


def _vectors(part: pa.Table, encoder: Encoder, of_queries: bool, batch_tokens: int | None) -> np.ndarray:
    tokens = batch_tokens or (_CPU_BATCH_TOKENS if encoder.device.type == "cpu" else _GPU_BATCH_TOKENS)
    texts = part["text"].to_pylist()
    if of_queries:
        return encoder.encode_queries(texts, tokens)
    return encoder.encode_documents(part["title"].to_pylist(), texts, tokens)


def _check_finite(vectors: np.ndarray, ids: pa.ChunkedArray, what: str) -> None:
    finite = np.isfinite(vectors).all(1)
    if not finite.all():
        raise HybridError(
            f"{what} {ids[int(finite.argmin())].as_py()}: the vector is not finite, as are "
            f"{int((~finite).sum()) - 1} others; use --dtype fp32 and --vector-dtype float32, or another model"
        )


def link_vectors(old: Path, folder: Path) -> None:
    """Give the shards of an index to another folder, as hard links where possible."""
    for shard in shards(old):
        link_shard(shard, folder)


def truncate_vectors(old: Path, folder: Path, encoder: Encoder, vector_dtype: str) -> None:
    """Write the leading values of the vectors of an index.

    Args:
        old: folder of the index.
        folder: folder of the new shards.
        encoder: gives the length, and whether vectors have length 1.
        vector_dtype: type of the stored vectors.
    """
    for number, shard in enumerate(shards(old)):
        values = read_shard(shard)[:, : encoder.dim]
        if encoder.describe().get("normalize"):
            values = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
        ids = pl.read_parquet(shard, columns=["id"])["id"].to_arrow()
        write_shard(shard_path(folder, number), ids, values.astype(vector_dtype), **shard_facts(shard))


def combine_vectors(indexes: Sequence[DenseIndex], folder: Path, encoder: Combination, settings: Encode) -> None:
    """Write the vectors of a combination from those of two indexes of one corpus."""
    docids = indexes[0].docids
    for number, begin in enumerate(range(0, len(docids), settings.shard_size)):
        rows = np.arange(begin, min(len(docids), begin + settings.shard_size))
        first, second = (each.vectors_of(rows) for each in indexes)
        whole = encoder.document_vectors(first, second).astype(settings.vector_dtype)
        write_shard(shard_path(folder, number), docids.gather(rows).to_arrow(), whole)
