"""Building FAISS indexes from shards of vectors.

A flat index is written as a stream; the others are built by FAISS, block by block.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from hybrid_cli import console, draws, memory
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.indexes.faiss import (
    ALL_GPUS,
    BINARY,
    BINARY_GRAPH,
    adding_on,
    code_size,
    empty_index,
    factory_string,
    inverted_lists,
    is_binary,
    load_faiss,
    pick_gpus,
    reason,
    same_graph,
    set_parameter,
    sign_bits,
    suppress_output,
    table_size,
    training_on,
)
from hybrid_cli.indexes.options import FLAT, VectorIndex
from hybrid_cli.indexes.shards import Vectors, read_ids, read_shard, read_shards, shards, vector_blocks
from hybrid_cli.storage import disk
from hybrid_cli.storage.layout import DOCIDS, FAISS_INDEX

_AT_ONCE = 4096  # vectors added to an index; a graph depends on it, so it must not depend on the shards
_TRAINING_VECTORS = 1 << 16
_EF_CONSTRUCTION = 200  # candidates during the construction of a graph (DPR)
_CENTROIDS, _POINTS_EACH = 256, 39  # of a product code; training vectors per centroid or list (FAISS)
_REMEDY = "use --index-type flat, which is written as a stream"
_SMALLER = "use --index-type sq8 or binary, or --vector-dtype float16"
# The file of faiss.IndexFlatIP: type, dimensions, vectors, twice 2**20 (unused), trained, metric, values that follow.
_FLAT_HEADER = struct.Struct("<4siqqq?iQ")


def build(folder: Path, recipe: VectorIndex, advance: Callable[[int], None] = lambda n: None) -> str:
    """Write `index.faiss` and `docids.parquet` from the shards in `folder`, with one shard in memory at a time.

    A flat index is written as a stream. FAISS holds the others in memory while it builds them: graph and vectors
    (hnsw), vectors (ivf) or codes (fp16, sq8, pq, opq, binary).

    Args:
        folder: folder with shards of vectors.
        recipe: index type and parameters.
        advance: called with the number of rows of each shard.

    Returns:
        The factory string of the index.

    Raises:
        InputError: no such index for vectors of this length, or too few vectors to train it.
    """
    docids = read_ids(folder)
    with disk.create(folder / DOCIDS) as file:
        pl.DataFrame({"docid": docids}).write_parquet(file, compression="zstd")
    dim = read_shard(shards(folder)[0]).shape[1]
    factory = factory_string(recipe.index_type, dim, len(docids))
    memory.require(construction_bytes(factory, dim, len(docids)), f"the index {factory}", remedy=_REMEDY)
    if factory == FLAT:
        _stream_flat(folder, dim, len(docids), advance)
    elif is_binary(factory):
        _build_binary(folder, dim, factory, advance)
    else:
        with same_graph() if "HNSW" in factory else nullcontext():
            _build_trained(folder, empty_index(factory, dim), recipe, factory, advance)
    return factory


def check_recipe(recipe: VectorIndex, dim: int, count: int, folder: Path, written: int = 0) -> None:
    """Check that FAISS can build an index of `count` vectors of length `dim`, and that memory and disk hold it.

    Args:
        recipe: index type and parameters.
        dim: length of the vectors.
        count: number of vectors.
        folder: folder that is written.
        written: bytes of the vectors that are written next to the index.

    Raises:
        HybridError: FAISS is not installed, and the index is not flat; or memory or disk space does not suffice.
        InputError: a parameter or the factory string is unusable.
    """
    automatic = recipe.index_type == "auto"
    factory = "" if automatic else factory_string(recipe.index_type, dim, count)
    if factory != FLAT or recipe.faiss_device != ALL_GPUS:
        pick_gpus(recipe.faiss_device)
    if not automatic:
        if factory != FLAT and not is_binary(factory):
            empty_index(factory, dim)
        console.forecast(construction_bytes(factory, dim, count), f"encode: building {factory}", _REMEDY)
        written += index_bytes(factory, dim, count)
    console.forecast(written, f"encode: {count:,} vectors and index", _SMALLER, folder)


def construction_bytes(factory: str, dim: int, count: int) -> int:
    """Return the memory that FAISS needs to build an index of `count` vectors of length `dim`.

    That is the index and the training sample. A flat index holds one shard. The lists of an inverted file grow by
    doubling, so that they have room for half as much again on average.
    """
    if factory == FLAT:
        return 0
    sample = 0 if is_binary(factory) or (factory.endswith(f",{FLAT}") and "HNSW" in factory) else _TRAINING_VECTORS
    index = index_bytes(factory, dim, count)
    return index + (index // 2 if "IVF" in factory else 0) + 4 * dim * min(count, sample)


def index_bytes(factory: str, dim: int, count: int) -> int:
    """Return the bytes of an index: tables, codes, and ids (IVF) or links and positions (HNSW; 1 link in 2 M above)."""
    bytes_per_vector = code_size(factory, dim) or 4 * dim
    if links := re.match(r"B?HNSW(\d+)", factory):
        bytes_per_vector += 4 * 2 * int(links[1]) + 4 * 2 + 8 + 4
    return table_size(factory, dim) + count * (bytes_per_vector + (8 if "IVF" in factory else 0))


def _build_trained(folder: Path, index: Any, recipe: VectorIndex, factory: str, advance: Callable[[int], None]) -> None:
    faiss, gpus = load_faiss(), pick_gpus(recipe.faiss_device)
    for name, value in (("efConstruction", _EF_CONSTRUCTION), ("efSearch", recipe.ef_search)):
        if "HNSW" in factory:
            set_parameter(index, name, value)
    if not index.is_trained:
        wanted = _POINTS_EACH * max(inverted_lists(index), _CENTROIDS if "PQ" in factory else 0)
        sample = _sample(folder, max(_TRAINING_VECTORS, wanted), recipe.seed)
        if len(sample) < wanted:
            console.warn(
                f"{factory} is trained on {console.counted(vector=len(sample))}; FAISS recommends {wanted:,}. Check "
                "its recall with --recall-check",
                code="few-training-vectors",
                vectors=len(sample),
                recommended=wanted,
                factory=factory,
            )
        try:
            with suppress_output(), training_on(gpus, index):
                index.train(sample)
        except RuntimeError as error:
            problem = f"{len(sample):,} vectors are too few to train {factory} ({reason(error)})"
            raise InputError(f"{problem}; use --index-type flat or sq8", code="too-few-vectors") from None
    if nlist := inverted_lists(index):
        set_parameter(index, "nprobe", min(recipe.nprobe, nlist))
    with adding_on(gpus, index):
        for vectors in vector_blocks(folder, _AT_ONCE):
            index.add(vectors)
            advance(len(vectors))
    _write(faiss.write_index, index, folder)


def _sample(folder: Path, size: int, seed: int) -> Vectors:
    """Draw at most `size` vectors, evenly over all shards."""
    counts = [pq.read_metadata(path).num_rows for path in shards(folder)]
    drawn = draws.sample(sum(counts), size, draws.rng(seed))
    parts, begin = [], 0
    for path, count in zip(shards(folder), counts, strict=True):
        rows = drawn[(drawn >= begin) & (drawn < begin + count)] - begin
        if len(rows):
            parts.append(read_shard(path)[rows])
        begin += count
    return np.concatenate(parts)


def _stream_flat(folder: Path, dim: int, count: int, advance: Callable[[int], None]) -> None:
    """Write the file of `faiss.IndexFlatIP` shard by shard.

    FAISS can only write an index that it holds in memory, so the file is written here: a header and the values. A test
    compares it with the file that FAISS writes.
    """
    with disk.create(folder / FAISS_INDEX) as file:
        file.write(_flat_header(dim, count))
        for vectors in read_shards(folder):
            file.write(np.ascontiguousarray(vectors, "<f4").data)
            advance(len(vectors))


def _flat_header(dim: int, count: int) -> bytes:
    return _FLAT_HEADER.pack(b"IxFI", dim, count, 1 << 20, 1 << 20, True, 0, count * dim)


def flat_vectors(folder: Path, dim: int, count: int) -> Vectors:
    """Return the vectors [n, d] of a flat index, memory-mapped.

    Raises:
        InputError: the file is not what `build` writes for `count` vectors and the inner product.
    """
    path, header = folder / FAISS_INDEX, _flat_header(dim, count)
    fits = path.stat().st_size == len(header) + 4 * count * dim
    content = np.memmap(path, np.uint8, "c") if fits else np.zeros(0, np.uint8)
    if content[: len(header)].tobytes() != header:
        problem = f"is no flat index of {count} vectors of length {dim}; encode again with --overwrite"
        raise path_error(path, problem, code="damaged")
    return content[len(header) :].view("<f4").reshape(count, dim)


def _build_binary(folder: Path, dim: int, factory: str, advance: Callable[[int], None]) -> None:
    faiss = load_faiss()
    bits = -(-dim // 8) * 8
    if factory == BINARY:
        index = faiss.IndexBinaryFlat(bits)
    else:
        index = faiss.IndexBinaryHNSW(bits, int(factory.removeprefix(BINARY_GRAPH)))
        index.hnsw.efConstruction = _EF_CONSTRUCTION
    with same_graph():
        for vectors in vector_blocks(folder, _AT_ONCE):
            index.add(sign_bits(vectors))
            advance(len(vectors))
    _write(faiss.write_index_binary, index, folder)


def _write(write: Callable[[Any, Any], None], index: Any, folder: Path) -> None:
    """Write an index with a function of FAISS into our file; FAISS cuts its own on a full disk without an error."""
    with disk.create(folder / FAISS_INDEX) as file:
        write(index, load_faiss().PyCallbackIOWriter(file.write))
