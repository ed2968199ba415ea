"""Encoding a corpus with a learned sparse encoder: weights of documents in shards, and the impact matrix made of them.

The shards are Parquet files of id, terms and integer weights, kept until the matrix is complete, so that an interrupted
run resumes with the first missing one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from hybrid_cli import storage
from hybrid_cli.errors import option_error
from hybrid_cli.indexes.shards import Advance, Block, Texts, TextShards
from hybrid_cli.lexical.build import Base
from hybrid_cli.lexical.builder import PostingsBuilder
from hybrid_cli.lexical.impacts import Postings
from hybrid_cli.settings import Encode
from hybrid_cli.settings.common import as_names
from hybrid_cli.storage import disk, layout
from hybrid_cli.workflows.encoding import elsewhere

if TYPE_CHECKING:
    from hybrid_cli.encoders.sparse import TermWeights

AT_ONCE = 256  # texts between two updates of the progress bar
_CPU_BATCH_TOKENS, _GPU_BATCH_TOKENS = 1024, 1 << 14  # a token has a score for each term of the vocabulary
DEEPCT_K1, DEEPCT_B = 10.0, 0.9  # for weights times 100 (DeepCT, README of its code)

Weighted: TypeAlias = tuple[pa.Table, int]  # terms and weights of a block, and the number of truncated documents


def weight_shard(folder: Path, number: int) -> Path:
    """Return the path of a shard of learned weights in the folder of an unfinished index."""
    return folder / layout.WEIGHT_SHARDS / layout.part(number)


def quantization_steps(settings: Encode, counts: bool) -> int:
    """Return the integers per unit of a weight.

    Args:
        settings: settings of the command.
        counts: the weights are counts of terms (DeepCT).

    Raises:
        InputError: no power of two.
    """
    steps = settings.quantization or (100 if counts else 128)
    if not counts and steps & (steps - 1):
        raise option_error("quantization", steps, "needs a power of two, so that sums of weights are exact")
    return steps


def open_sparse(settings: Encode, device: str, dtype: Any, changes: dict[str, Any]) -> TermWeights:
    """Return the sparse encoder of the settings with a changed contract; set the threads of PyTorch."""
    import torch

    from hybrid_cli.encoders.sparse import load_sparse

    if settings.threads:
        torch.set_num_threads(settings.threads)
    name = as_names(settings.model)[0]
    return load_sparse(name, device=device, dtype=dtype, architecture=settings.architecture, **changes)


def encode_documents(
    settings: Encode,
    encoder: TermWeights,
    folder: Path,
    texts: Iterable[Texts],
    total: int,
    resolved: dict[str, Any],
    advance: Advance,
) -> None:
    """Encode documents to shards: in this process, in one process per device, or on a Ray cluster.

    Shards that exist already are skipped.

    Args:
        settings: settings of the command.
        encoder: the encoder of this process.
        folder: folder of the unfinished index.
        texts: tables with the columns id, title, text.
        total: number of documents.
        resolved: `steps` (see `TermWeights.document_weights`), `dtype` and `contract` of the encoder.
        advance: called with numbers of encoded texts.

    Raises:
        InputError, HybridError: see `cluster.map_blocks`.
    """
    weighted: Callable[[Iterable[Block]], Iterable[Weighted]]
    if settings.ray_address is None and not settings.devices:
        weighted = partial(map, _block_weights(encoder, resolved["steps"], settings.batch_tokens))
    else:
        weighted = elsewhere(settings, partial(_start, resolved))
    encode_weights(folder, texts, weighted, settings.shard_size, advance)


def _start(resolved: dict[str, Any], settings: Encode, device: str) -> Callable[[Block], Weighted]:
    """Open the encoder in a process of its own."""
    encoder = open_sparse(settings, device, resolved["dtype"], resolved["contract"])
    return _block_weights(encoder, resolved["steps"], settings.batch_tokens)


def _block_weights(encoder: TermWeights, steps: int, batch_tokens: int | None) -> Callable[[Block], Weighted]:
    """Return the function that computes the weights of a block."""
    tokens = batch_tokens or (_CPU_BATCH_TOKENS if encoder.device.type == "cpu" else _GPU_BATCH_TOKENS)

    def weighted(block: Block) -> Weighted:
        before = encoder.truncated
        lists = encoder.document_weights(*block, steps, tokens)
        ends = pa.array([0, *lists.distinct.cumsum()], pa.int32())
        terms = pa.ListArray.from_arrays(ends, lists.terms.cast(pa.string()))
        weights = pa.ListArray.from_arrays(ends, pa.array(lists.weights, pa.int32()))
        return pa.table({"terms": terms, "weights": weights}), encoder.truncated - before

    return weighted


def encode_weights(
    folder: Path,
    texts: Iterable[Texts],
    weighted: Callable[[Iterable[Block]], Iterable[Weighted]],
    size: int,
    advance: Advance,
) -> None:
    """Encode documents to shards of `size`.

    Args:
        folder: folder of the unfinished index.
        texts: tables with the columns id, title, text.
        weighted: computes the weights of blocks, in order.
        size: number of documents of a shard.
        advance: called with the number of encoded texts.
    """
    (folder / layout.WEIGHT_SHARDS).mkdir(exist_ok=True)
    shards = TextShards(texts, partial(weight_shard, folder), size, AT_ONCE)
    shards.encode(weighted, _write_shard, advance)


def _write_shard(path: Path, ids: pa.Array, parts: Sequence[Weighted]) -> None:
    """Write the ids and weights of a shard, with the number of truncated documents in the footer."""
    table = pa.concat_tables([part for part, _ in parts]).add_column(0, "id", ids)
    table = table.replace_schema_metadata({"truncated": str(sum(truncated for _, truncated in parts))})
    with storage.replacing(path) as scratch, disk.create(scratch) as file:
        pq.write_table(table, file, compression="zstd", write_page_checksum=True)


@dataclass(frozen=True)
class Built:
    """An impact matrix of learned weights, and the number of truncated documents."""

    postings: Postings
    documents: int
    truncated: int

    def counts(self) -> dict[str, Any]:
        """Return values for the manifest."""
        return {
            "documents": self.documents,
            "empty documents": self.documents - self.postings.counted,
            "terms": len(self.postings.terms),
            "postings": len(self.postings),
            "truncated": self.truncated,
        }


def build_matrix(folder: Path, bm25: bool, base: Base | None = None) -> Built:
    """Write `impacts/` and `docids.parquet` from the shards in `folder`, which are hidden and so removed at the end.

    Args:
        folder: folder of the unfinished index.
        bm25: the weights are counts; k1 and b of DeepCT are stored with them.
        base: an index of the same encoder, whose kept documents come first.
    """
    builder, ids, truncated = PostingsBuilder(), [pl.DataFrame(schema={"docid": pl.String})], 0
    paths = sorted((folder / layout.WEIGHT_SHARDS).glob(layout.PARTS))
    earlier = Postings.open(base.folder / layout.IMPACTS) if base else None
    for path in paths:
        file = pq.ParquetFile(path, read_dictionary=["terms.list.element"])
        table = file.read()
        truncated += int((file.schema_arrow.metadata or {}).get(b"truncated", 0))
        terms, weights = (table[name].combine_chunks() for name in ("terms", "weights"))
        flat = terms.flatten()
        flat = flat if isinstance(flat, pa.DictionaryArray) else flat.dictionary_encode()
        distinct = weights.value_lengths().to_numpy(zero_copy_only=False).astype("int64")
        builder.add_weights(flat, weights.flatten().to_numpy(), distinct)
        ids.append(pl.DataFrame({"docid": pl.Series(table["id"].combine_chunks(), dtype=pl.String)}))
    postings = builder.finish()
    if base is not None and earlier is not None:
        kept = base.kept()
        ids.insert(0, kept.filter("kept").select("docid"))
        postings = earlier.extended(kept["kept"].to_numpy(), postings)
    docids = pl.concat(ids)
    with storage.replacing(folder / layout.IMPACTS) as scratch:
        postings.save(scratch)
    with disk.create(folder / layout.DOCIDS) as opened:
        docids.write_parquet(opened, compression="zstd")
    if bm25:
        disk.write_text(folder / layout.PARAMETERS, json.dumps({"k1": DEEPCT_K1, "b": DEEPCT_B}, indent=2) + "\n")
    return Built(postings, len(docids), truncated)
