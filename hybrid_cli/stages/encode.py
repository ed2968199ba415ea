"""`encode`: a corpus to a dense index, or queries to vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import torch

from hybrid_cli import artifacts, console, indexes
from hybrid_cli.artifacts import Kind, Output
from hybrid_cli.collections import collection as collections
from hybrid_cli.config import Encoding, VectorIndex
from hybrid_cli.encoders import combination
from hybrid_cli.encoders.combination import Combination, Recipe
from hybrid_cli.encoders.contract import TRANSFORMER, kind_of, read_contract
from hybrid_cli.encoders.encoder import Encoder, open_encoder
from hybrid_cli.encoders.models import model_input, pick_device, pick_dtype, resolve
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.indexes import indexing, reindexing
from hybrid_cli.indexes.exact import COMBINED

_AT_ONCE = 1024  # texts between two beats of the progress line
_CPU_BATCH_TOKENS, _GPU_BATCH_TOKENS = 2048, 1 << 16

Advance = Callable[[int], None]
Texts: TypeAlias = "pa.RecordBatch | pa.Table"  # columns id, title, text


def encode(
    collection: Path | None,
    *,
    output: Path,
    model: str = "minilm",
    second: str | None = None,
    beside: Path | None = None,
    combine: Recipe = Recipe(),  # noqa: B008 - frozen
    queries: Path | None = None,
    split: str | None = None,
    index: VectorIndex = VectorIndex(),  # noqa: B008 - frozen
    encoding: Encoding = Encoding(),  # noqa: B008 - frozen
    contract: Mapping[str, Any] | None = None,
    recall_check: bool = False,
    device: str = "auto",
    threads: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Encode a corpus and build its index; with `queries` or `split`, encode queries to vectors only.

    Memory holds one shard at a time, and the index while FAISS builds it (a flat one is written as a stream). A killed
    run goes on with the first missing shard.

    Args:
        collection: a collection or a corpus; not needed with `queries`. Or a dense index: its vectors, or with
            the contract's `prefix` the beginnings of them, get another index, and nothing is encoded.
        model: `minilm`, a folder, or a Hugging Face id.
        second: another one to combine it with, by `combine`; the combination then lies in the index.
        beside: where `collection` is a dense index, another one of the same corpus: both are combined from the vectors
            that they hold, and nothing is encoded.
        recall_check: measure what an approximate index finds of the exact hits, and keep it with the index.
        contract: fields of the encoder's contract to change; they are kept with the index, and `search` applies them.

    Raises:
        InputError: collection or model are not usable, or FAISS cannot build such an index.
        HybridError: the encoder gave a vector that is not finite.
    """
    changes = {name: value for name, value in (contract or {}).items() if value is not None}
    if beside is not None:
        _refuse(changes, "vectors that are there already")
        index = indexing.typed(index)
        return reindexing.index_both(
            [collection or beside, beside], combine, output, index, encoding, recall_check, overwrite
        )
    if collection is not None and _is_dense_index(collection):
        prefix = changes.pop("prefix", None)
        _refuse(changes, "vectors that are there already")
        return reindexing.index_again(collection, output, index, prefix, recall_check, threads, overwrite)
    source, kind = _source(collection, queries, split)
    dtype = _dtype(encoding, device)
    folders = _folders(model, second, changes)
    index = indexing.typed(index, second is None and _trained_for_codes(folders["model"]))
    claim = artifacts.open_output(
        output,
        kind,
        "encode",
        inputs={
            "corpus" if kind == Kind.DENSE_INDEX else "queries": source,
            "model": model_input(model),
            **({} if second is None else {"second": model_input(second)}),
        },
        options={
            **({} if second is None else asdict(combine)),
            "contract": changes,
            "dtype": dtype,
            "vector_dtype": encoding.vector_dtype,
            "shard_size": encoding.shard_size,
            **(indexing.options(index) if kind == Kind.DENSE_INDEX else {}),
        },
        overwrite=overwrite,
    )
    if claim.up_to_date:
        return indexing.as_it_is(output, recall_check)
    if threads:
        torch.set_num_threads(threads)
        indexes.set_threads(threads)
    encoders = [open_encoder(folder, device=device, dtype=dtype, overrides=changes) for folder in folders.values()]
    encoder = encoders[0] if second is None else Combination(combine, encoders)
    _write(claim, source, encoder, index, encoding, list(folders.values()), recall_check)
    return output


def _folders(model: str, second: str | None, changes: Mapping[str, Any]) -> dict[str, Path]:
    """The models by role; two keep their own contracts."""
    if second is None:
        return {"model": resolve(model)}
    _refuse(changes, "two models; each keeps its own contract")
    return {"model": resolve(model), "second": resolve(second)}


def _refuse(changes: Mapping[str, Any], what: str) -> None:
    if changes:
        options = ", ".join("--" + name.replace("_", "-") for name in changes)
        raise InputError(f"{options}: means nothing to {what}")


def _trained_for_codes(model: Path) -> bool:
    return kind_of(model) == TRANSFORMER and read_contract(model).binary


def _is_dense_index(path: Path) -> bool:
    manifest = artifacts.find_manifest(path)
    return manifest is not None and manifest.kind == Kind.DENSE_INDEX


def _source(collection: Path | None, queries: Path | None, split: str | None) -> tuple[Path, Kind]:
    """What to encode, and what becomes of it."""
    if queries is not None:
        return collections.queries_path(queries, split), Kind.VECTORS
    if collection is None:
        raise InputError("nothing to encode: name a collection, or a file with --queries")
    if split is not None:
        return collections.queries_path(collection, split), Kind.VECTORS
    return collections.corpus_path(collection), Kind.DENSE_INDEX


def _dtype(encoding: Encoding, device: str) -> Any:
    """The option, with `auto` resolved, since it decides the vectors."""
    names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    return names[pick_dtype(encoding.dtype, pick_device(device))]


def _write(
    claim: Output,
    source: Path,
    encoder: Encoder,
    index: VectorIndex,
    encoding: Encoding,
    models: Sequence[Path],
    recall_check: bool,
) -> None:
    of_queries = claim.manifest.kind == Kind.VECTORS
    texts, total = (_queries if of_queries else _documents)(source)
    if not total:
        raise InputError(f"{source}: holds nothing to encode")
    if not of_queries:
        indexes.check_recipe(index, encoder.dim, total)
    with claim.folder() as (work, counts):
        if isinstance(encoder, Combination) and len(models) > 1:
            combination.write(work / COMBINED, models, encoder.recipe)
        with console.progress("encode", total, "texts") as advance:
            for number, shard in enumerate(artifacts.regrouped(map(pa.table, texts), encoding.shard_size)):
                path = indexes.shard_path(work, number)
                if path.exists():
                    advance(len(shard))
                else:
                    _encode_shard(path, shard, encoder, of_queries, encoding, advance)
        if not of_queries:
            counts |= indexing.build(work, index, total, recall_check)
        truncated = sum(int(indexes.shard_facts(path).get("truncated", 0)) for path in indexes.shards(work))
        counts |= {
            "vectors": total,
            "dim": encoder.dim,
            "truncated": truncated,
            "encoder": encoder.fingerprint,
            "contract": encoder.describe(),
        }
    console.note(
        f"encode: {claim.path}: {total:,} {'queries' if of_queries else 'documents'}, {encoder.dim} dimensions, "
        f"{claim.manifest.options['dtype']}, {truncated / total:.1%} truncated"
    )


def _documents(source: Path) -> tuple[Iterable[Texts], int]:
    batches = (batch.rename_columns(["id", "title", "text"]) for batch in collections.documents(source))
    return batches, len(collections.docids(source))


def _queries(source: Path) -> tuple[Iterable[Texts], int]:
    frame = collections.read_queries(source)
    titles = pa.array([""] * len(frame), pa.string())
    table = pa.table(
        {
            "id": frame["qid"].to_arrow().cast(pa.string()),
            "title": titles,
            "text": frame["text"].to_arrow().cast(pa.string()),
        }
    )
    return [table], len(frame)


def _encode_shard(
    path: Path, shard: pa.Table, encoder: Encoder, of_queries: bool, encoding: Encoding, advance: Advance
) -> None:
    before = encoder.truncated
    parts = []
    for begin in range(0, len(shard), _AT_ONCE):
        part = shard.slice(begin, _AT_ONCE)
        parts.append(_encode_texts(part, encoder, of_queries, encoding.batch_tokens))
        advance(len(part))
    found = np.concatenate(parts).astype(encoding.vector_dtype)
    finite = np.isfinite(found).all(1)
    if not finite.all():
        text = f"{'query' if of_queries else 'document'} {shard['id'][int(finite.argmin())].as_py()}"
        raise HybridError(
            f"{text}: its vector is not finite, and {int((~finite).sum()) - 1} more like it; "
            "take --dtype fp32 and --vector-dtype float32, or another model"
        )
    indexes.write_shard(path, shard["id"].combine_chunks(), found, truncated=encoder.truncated - before)


def _encode_texts(part: pa.Table, encoder: Encoder, of_queries: bool, batch_tokens: int) -> np.ndarray:
    tokens = batch_tokens or (_CPU_BATCH_TOKENS if encoder.device.type == "cpu" else _GPU_BATCH_TOKENS)
    texts = part["text"].to_pylist()
    if of_queries:
        return encoder.encode_queries(texts, tokens)
    return encoder.encode_documents(part["title"].to_pylist(), texts, tokens)
