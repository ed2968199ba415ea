"""FAISS: import, index types, parameters, error messages, and building indexes from shards of vectors.

A flat index is written as a stream; the others are built by FAISS, shard by shard.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from hybrid_cli import console, draws, memory
from hybrid_cli.artifacts import disk
from hybrid_cli.artifacts.layout import DOCIDS, FAISS_INDEX
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.indexes.shards import Vectors, read_ids, read_shard, shards, vector_blocks
from hybrid_cli.settings import VectorIndex

FLAT = "Flat"
BINARY, BINARY_GRAPH = "Binary", "BHNSW"  # sign codes with Hamming distance; the number of links follows the name
_BITS = {FLAT: 32, "SQfp16": 16, "SQbf16": 16, "SQ8": 8, "SQ6": 6, "SQ4": 4}
FLOATS = (FLAT, "SQfp16", "SQbf16")


def set_threads(threads: int | None) -> None:
    """Set the number of threads of FAISS; None keeps all cores."""
    if threads is not None:
        load_faiss().omp_set_num_threads(threads)


def load_faiss() -> Any:
    """Import FAISS on first use and return the module.

    Raises:
        HybridError: FAISS is not installed.
    """
    if sys.platform == "darwin":  # the wheels of torch and FAISS each contain an OpenMP library
        os.environ.setdefault("KMP_DUPLICATE_LIB_OK", "TRUE")
    try:
        import faiss
    except ImportError:
        raise HybridError(
            "FAISS is not installed; run: pip install 'hybrid_cli[cpu]' (or [gpu] on a machine with CUDA)"
        ) from None
    # Since 1.15, FAISS does not use BLAS if queries * dimensions < 128,000, which is 20 times slower for a block and
    # makes scores depend on its size by an ulp (facebookresearch/faiss#5022, #5109). 1 means always BLAS.
    faiss.cvar.distance_compute_blas_threshold = 1
    return faiss


# --------------------------------------------------------------------------------------------------------- index types


def _code_bytes(recipe: VectorIndex, dim: int) -> int:
    """Return the bytes of a product code: the set value, or the largest divisor of `dim` up to dim / 4."""
    size = recipe.pq_bytes or max(size for size in range(1, max(2, dim // 4 + 1)) if dim % size == 0)
    if dim % size:
        raise InputError(f"--pq-bytes {size}: needs a divisor of the vectors' length {dim}")
    return size


def _lists(recipe: VectorIndex, count: int) -> int:
    """Return the number of inverted lists: the set value, or 4 sqrt(count), with at least 39 vectors per list."""
    return recipe.nlist or max(1, min(round(4 * count**0.5), count // 39))


def _rotated(size: int) -> str:
    return f"OPQ{size},PQ{size}"


FACTORIES: Mapping[str, Callable[[VectorIndex, int, int], str]] = {
    "flat": lambda recipe, dim, count: FLAT,
    "fp16": lambda recipe, dim, count: "SQfp16",
    "sq8": lambda recipe, dim, count: "SQ8",
    "pq": lambda recipe, dim, count: f"PQ{_code_bytes(recipe, dim)}",
    "opq": lambda recipe, dim, count: _rotated(_code_bytes(recipe, dim)),
    "binary": lambda recipe, dim, count: BINARY,
    "hnsw": lambda recipe, dim, count: f"HNSW{recipe.m},{FLAT}",
    "hnsw-fp16": lambda recipe, dim, count: f"HNSW{recipe.m},SQfp16",
    "hnsw-sq8": lambda recipe, dim, count: f"HNSW{recipe.m},SQ8",
    "hnsw-binary": lambda recipe, dim, count: f"{BINARY_GRAPH}{recipe.m}",
    "ivf": lambda recipe, dim, count: f"IVF{_lists(recipe, count)},{FLAT}",
}  # index type -> (recipe, length and number of vectors) -> FAISS factory string


def factory_string(recipe: VectorIndex, dim: int, count: int) -> str:
    """Return the FAISS factory string of an index over `count` vectors of length `dim`.

    Raises:
        InputError: the product code does not divide the vectors.
    """
    return recipe.factory or FACTORIES[recipe.index_type or "flat"](recipe, dim, count)


def is_binary(factory: str) -> bool:
    """Return whether an index stores sign codes."""
    return factory == BINARY or factory.startswith(BINARY_GRAPH)


def sign_bits(vectors: np.ndarray) -> np.ndarray:
    """Pack vectors [n, d] to bits [n, ceil(d/8)]: 1 for values >= 0 (BPR; sign(0) = +1)."""
    return np.packbits(vectors >= 0, axis=1)


def code_size(factory: str, dim: int) -> int | None:
    """Return the bytes of one vector or code in an index; None for unknown factory strings."""
    if is_binary(factory):
        return -(-dim // 8)
    *steps, last = factory.split(",")
    for step in steps:  # a rotation or projection may shorten vectors: PCA64, OPQ16_64
        if found := re.fullmatch(r"PCAR?(\d+)|OPQ\d+_(\d+)", step):
            dim = int(found[1] or found[2])
    if product := re.fullmatch(r"PQ(\d+)(x8)?", last):
        return int(product[1])
    return -(-dim * _BITS[last] // 8) if last in _BITS else None


# ------------------------------------------------------------------------------------------------------------- indexes


def empty_index(factory: str, dim: int) -> Any:
    """Return an empty index of floating-point vectors for the inner product.

    Raises:
        InputError: FAISS has no such index for this length, or the index does not measure the inner product.
    """
    faiss = load_faiss()
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise InputError(
            f"--factory {factory}: not a FAISS factory string for {dim} dimensions, such as OPQ16,IVF256,PQ16 "
            f"({reason(error)})"
        ) from None
    check_metric(index, f"--factory {factory}")
    codes = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index
    if isinstance(codes, faiss.IndexPQ):
        codes.do_polysemous_training = False  # tables for a kind of search that is not used take minutes
    return index


@contextmanager
def same_graph() -> Iterator[None]:
    """Within this context an HNSW graph is the same in every run on a machine, for any number of threads.

    Since 1.15, FAISS has `hnsw_add_vertices_deterministic`. In older versions, the order of links depends on the
    threads, so one thread is used.
    """
    faiss = load_faiss()
    threads = faiss.omp_get_max_threads()
    if not hasattr(faiss, "hnsw_add_vertices_deterministic"):
        faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the warnings that FAISS prints from C++; `build` prints its own."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def reason(error: RuntimeError) -> str:
    """Return the reason in an error of FAISS, without file, line and stack."""
    last = str(error).strip().splitlines()[-1].rsplit("Error: ", 1)[-1].rsplit(" failed: ", 1)[-1]
    return re.sub(r"^Error in .* at \S+:\d+: ", "", last)


def set_parameter(index: Any, name: str, value: int, option: str = "") -> None:
    """Set a parameter of an index, or of the index inside it, by FAISS's name.

    Raises:
        InputError: the index has no such parameter.
    """
    try:
        load_faiss().ParameterSpace().set_index_parameter(index, name, value)
    except RuntimeError:
        raise InputError(f"{option or name} {value}: this type of index has no such parameter") from None


def inverted_lists(index: Any) -> int:
    """Return the number of inverted lists; 0 for other types of index."""
    inner = load_faiss().try_extract_index_ivf(index)
    return int(inner.nlist) if inner is not None else 0


def check_metric(index: Any, where: str) -> None:
    """Refuse an index that measures anything but the inner product, or contains such an index."""
    faiss = load_faiss()
    inner = faiss.downcast_index(index)
    while inner is not None:
        if inner.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise InputError(f"{where}: {type(inner).__name__} does not measure the inner product; use another index")
        below = getattr(inner, "storage", None) or getattr(inner, "index", None)
        inner = faiss.downcast_index(below) if isinstance(below, faiss.Index) else None


_AT_ONCE = 4096  # vectors added to an index; a graph depends on it, so it must not depend on the shards
_TRAINING_VECTORS = 1 << 16
_CENTROIDS, _POINTS_EACH = 256, 39  # of a product code; training vectors per centroid or list (FAISS)
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
    factory = factory_string(recipe, dim, len(docids))
    if factory != FLAT:
        memory.require(_needed(factory, recipe, dim, len(docids)), f"the index {factory}")
    if factory == FLAT:
        _stream_flat(folder, dim, len(docids), advance)
    elif is_binary(factory):
        _build_binary(folder, dim, factory, recipe.ef_construction, advance)
    else:
        with same_graph() if "HNSW" in factory else nullcontext():
            _build_trained(folder, empty_index(factory, dim), recipe, factory, advance)
    return factory


def _needed(factory: str, recipe: VectorIndex, dim: int, count: int) -> int:
    """Return the bytes that FAISS needs to build an index: codes, links or ids, and the training sample."""
    each = code_size(factory, dim)
    links = 8 * recipe.m if "HNSW" in factory else 8 if "IVF" in factory else 0
    return count * ((4 * dim if each is None else each) + links) + 4 * dim * min(count, _TRAINING_VECTORS)


def check_recipe(recipe: VectorIndex, dim: int, count: int) -> None:
    """Check that FAISS can build an index of `count` vectors of length `dim`.

    Raises:
        HybridError: FAISS is not installed.
        InputError: a parameter or the factory string is unusable.
    """
    if recipe.index_type == "auto":
        return
    factory = factory_string(recipe, dim, count)
    if not is_binary(factory):
        empty_index(factory, dim)


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
                f"{factory} is trained on {len(sample):,} vectors; FAISS recommends {wanted:,}. Check its recall with "
                "--recall-check"
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
    for vectors in vector_blocks(folder, _AT_ONCE):
        index.add(vectors)
        advance(len(vectors))
    with disk.by_name(folder / FAISS_INDEX) as file:
        faiss.write_index(index, file)


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
    header = _FLAT_HEADER.pack(b"IxFI", dim, count, 1 << 20, 1 << 20, True, 0, count * dim)
    with disk.create(folder / FAISS_INDEX) as file:
        file.write(header)
        for path in shards(folder):
            vectors = read_shard(path)
            file.write(np.ascontiguousarray(vectors, "<f4").data)
            advance(len(vectors))


def flat_vectors(folder: Path, dim: int, count: int) -> Vectors:
    """Return the vectors [n, d] of a flat index, memory-mapped."""
    return np.memmap(folder / FAISS_INDEX, "<f4", "c", _FLAT_HEADER.size, (count, dim))


def _build_binary(folder: Path, dim: int, factory: str, ef_construction: int, advance: Callable[[int], None]) -> None:
    faiss = load_faiss()
    bits = -(-dim // 8) * 8
    if factory == BINARY:
        index = faiss.IndexBinaryFlat(bits)
    else:
        index = faiss.IndexBinaryHNSW(bits, int(factory.removeprefix(BINARY_GRAPH)))
        index.hnsw.efConstruction = ef_construction
    with same_graph():
        for vectors in vector_blocks(folder, _AT_ONCE):
            index.add(sign_bits(vectors))
            advance(len(vectors))
    with disk.by_name(folder / FAISS_INDEX) as file:
        faiss.write_index_binary(index, file)
