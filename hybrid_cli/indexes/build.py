"""From shards of embeddings to an index: flat as a stream, the others through FAISS, shard by shard."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from hybrid_cli import console
from hybrid_cli.config import VectorIndex
from hybrid_cli.errors import InputError
from hybrid_cli.indexes.faiss import check_metric, inverted_lists, load_faiss, quiet, reason, same_graph, set_parameter
from hybrid_cli.indexes.shards import Vectors, read_ids, read_shard, shards

INDEX, DOCIDS = "index.faiss", "docids.parquet"
FLAT = "Flat"
BINARY, BINARY_GRAPH = "Binary", "BHNSW"  # sign codes and Hamming distance; a graph's links follow its name
_TRAINING_VECTORS = 1 << 16
_CENTROIDS, _POINTS_EACH = 256, 39  # of product codes; training vectors that FAISS wants for each, or for each list


def build(folder: Path, recipe: VectorIndex, advance: Callable[[int], None] = lambda n: None) -> str:
    """Write `index.faiss` and `docids.parquet` from the shards in `folder`, one shard in memory at a time.

    A flat index is written as a stream. FAISS holds the others in memory while it builds them: graph and vectors
    (hnsw), vectors (ivf) or codes (fp16, sq8, pq, opq, binary).

    Args:
        recipe: which index.
        advance: told of every shard's number of rows.

    Returns:
        The index's factory string.

    Raises:
        InputError: no such index for vectors of this length, or too few vectors to train it.
    """
    docids = read_ids(folder)
    pl.DataFrame({"docid": docids}).write_parquet(folder / DOCIDS, compression="zstd")
    dim = read_shard(shards(folder)[0]).shape[1]
    factory = factory_string(recipe, dim, len(docids))
    if factory == FLAT:
        _stream_flat(folder, dim, len(docids), advance)
    elif is_binary(factory):
        _build_binary(folder, dim, factory, recipe.ef_construction, advance)
    else:
        with same_graph() if "HNSW" in factory else nullcontext():
            _build_trained(folder, _empty(factory, dim), recipe, factory, advance)
    return factory


def check_recipe(recipe: VectorIndex, dim: int, count: int) -> None:
    """Refuse, before any work, an index that FAISS does not make of `count` vectors of length `dim`.

    Raises:
        HybridError: FAISS is not installed.
        InputError: a setting or a factory string is not usable.
    """
    if recipe.index_type == "auto" and not recipe.factory:
        return
    factory = factory_string(recipe, dim, count)
    if not is_binary(factory):
        _empty(factory, dim)


def factory_string(recipe: VectorIndex, dim: int, count: int) -> str:
    """What FAISS calls the index of `recipe` over `count` vectors of length `dim`."""
    if recipe.factory:
        return recipe.factory
    kind = recipe.index_type or "flat"
    if kind == "ivf":  # FAISS wants 39 training vectors a list
        lists = recipe.nlist or max(1, min(round(4 * count**0.5), count // 39))
        return f"IVF{lists},Flat"
    size = recipe.pq_bytes or max(size for size in range(1, max(2, dim // 4 + 1)) if dim % size == 0)
    if dim % size and "pq" in kind:
        raise InputError(f"--pq-bytes {size}: does not divide the vectors' length {dim}")
    if kind in ("binary", "hnsw-binary"):
        return BINARY if kind == "binary" else f"{BINARY_GRAPH}{recipe.m}"
    graph = f"HNSW{recipe.m}," if kind.startswith("hnsw") else ""
    stored = kind.removeprefix("hnsw").removeprefix("-") or "flat"
    rotation = f"OPQ{size}," if stored == "opq" else ""
    names = {"flat": FLAT, "fp16": "SQfp16", "sq8": "SQ8", "pq": f"PQ{size}", "opq": f"PQ{size}"}
    return rotation + graph + names[stored]


def is_binary(factory: str) -> bool:
    """Whether an index holds sign codes."""
    return factory == BINARY or factory.startswith(BINARY_GRAPH)


def _empty(factory: str, dim: int) -> Any:
    faiss = load_faiss()
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise InputError(
            f"--factory {factory}: FAISS makes no such index of {dim} dimensions ({reason(error)})"
        ) from None
    check_metric(index, f"--factory {factory}")
    codes = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index
    if isinstance(codes, faiss.IndexPQ):
        codes.do_polysemous_training = False  # minutes of work for a kind of search that we never do
    return index


def _build_trained(folder: Path, index: Any, recipe: VectorIndex, factory: str, advance: Callable[[int], None]) -> None:
    faiss = load_faiss()
    for name, value in (("efConstruction", recipe.ef_construction), ("efSearch", recipe.ef_search)):
        if "HNSW" in factory:
            set_parameter(index, name, value)
    if not index.is_trained:
        wanted = _POINTS_EACH * max(inverted_lists(index), _CENTROIDS if "PQ" in factory else 0)
        sample = _sample(folder, max(_TRAINING_VECTORS, wanted), recipe.seed)
        if len(sample) < wanted:
            console.warn(
                f"{len(sample):,} vectors train {factory}, for which FAISS wants {wanted:,}; look at --recall-check"
            )
        try:
            with quiet():
                index.train(sample)
        except RuntimeError as error:
            raise InputError(
                f"{len(sample)} vectors are too few to train {factory} ({reason(error)}); use --index-type flat or sq8"
            ) from None
    if nlist := inverted_lists(index):
        set_parameter(index, "nprobe", min(recipe.nprobe, nlist))
    for path in shards(folder):
        vectors = read_shard(path)
        index.add(vectors)
        advance(len(vectors))
    faiss.write_index(index, str(folder / INDEX))


def _sample(folder: Path, size: int, seed: int) -> Vectors:
    """At most `size` vectors, drawn evenly from all shards."""
    counts = [pq.read_metadata(path).num_rows for path in shards(folder)]
    drawn = np.arange(sum(counts))
    if sum(counts) > size:
        drawn = np.sort(np.random.default_rng(seed).choice(sum(counts), size, replace=False))
    parts, begin = [], 0
    for path, count in zip(shards(folder), counts, strict=True):
        rows = drawn[(drawn >= begin) & (drawn < begin + count)] - begin
        if len(rows):
            parts.append(read_shard(path)[rows])
        begin += count
    return np.concatenate(parts)


def _stream_flat(folder: Path, dim: int, count: int, advance: Callable[[int], None]) -> None:
    """Write a flat index as FAISS would, without ever holding it: its file is a header and the vectors' bytes."""
    faiss = load_faiss()
    header = bytearray(faiss.serialize_index(faiss.IndexFlatIP(dim)).tobytes())
    header[8:16] = count.to_bytes(8, "little")  # fourcc, dimension, then the number of vectors
    header[-8:] = (count * dim).to_bytes(8, "little")  # last, the number of values that follow
    with (folder / INDEX).open("wb") as file:
        file.write(header)
        for path in shards(folder):
            vectors = read_shard(path)
            file.write(np.ascontiguousarray(vectors, "<f4").data)
            advance(len(vectors))


def _build_binary(folder: Path, dim: int, factory: str, ef_construction: int, advance: Callable[[int], None]) -> None:
    faiss = load_faiss()
    bits = -(-dim // 8) * 8
    if factory == BINARY:
        index = faiss.IndexBinaryFlat(bits)
    else:
        index = faiss.IndexBinaryHNSW(bits, int(factory.removeprefix(BINARY_GRAPH)))
        index.hnsw.efConstruction = ef_construction
    with same_graph():
        for path in shards(folder):
            vectors = read_shard(path)
            index.add(sign_bits(vectors))
            advance(len(vectors))
    faiss.write_index_binary(index, str(folder / INDEX))


def sign_bits(vectors: Vectors) -> np.ndarray:
    """Vectors [n, d] as bits [n, ceil(d/8)]: 1 where a value is not negative (BPR, methods 8.1; sign(0) = +1)."""
    return np.packbits(vectors >= 0, axis=1)
