"""Dense vectors on disk: shards of embeddings, the FAISS index built from them, exact scores of pairs.

A folder of vectors is `vectors/part-*.parquet` (id, vector); a dense index adds `docids.parquet` and `index.faiss`.
The score is the inner product, always. Rows of the index are the rows of the shards, in order.
This is the only module that knows FAISS.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from hybrid_cli import artifacts, runs
from hybrid_cli.artifacts import Kind, Manifest
from hybrid_cli.config import VectorIndex
from hybrid_cli.errors import HybridError, InputError

VECTORS, INDEX, DOCIDS = "vectors", "index.faiss", "docids.parquet"
INDEX_TYPES = ("flat", "hnsw", "ivf", "pq", "sq8", "binary")
_BLOCK = 256  # queries searched at once
_HITS_AT_ONCE = 1 << 22  # bounds a block's memory where many hits are asked for
_PADDING = 32  # blocks are filled to a multiple: a lone query would take another path through BLAS and differ by an ulp
_BEYOND = 16  # hits asked for beyond the cut, so that equal scores there are cut by docid
_TRAINING_VECTORS = 1 << 16
_PAIRS_AT_ONCE = 1 << 16

Vectors = np.ndarray[Any, np.dtype[np.float32]]


# ------------------------------------------------------------------------------------------------------------- shards


def shard_path(folder: Path, number: int) -> Path:
    """Where shard `number` of a folder of vectors stands."""
    return folder / VECTORS / f"part-{number:05d}.parquet"


def write_shard(path: Path, ids: pa.Array, vectors: Vectors, dtype: str = "float32") -> None:
    """Write ids and vectors [n, d] as one Parquet file that appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = pa.array(np.ascontiguousarray(vectors, dtype=dtype).reshape(-1))
    column = pa.FixedSizeListArray.from_arrays(values, vectors.shape[1])
    table = pa.table({"id": ids.cast(pa.string()), "vector": column})
    scratch = path.with_name(f".{path.name}")
    pq.write_table(table, scratch, compression="zstd", use_dictionary=False, column_encoding=_SPLIT)
    scratch.replace(path)


_SPLIT = {"vector.list.element": "BYTE_STREAM_SPLIT"}


def shards(folder: Path) -> list[Path]:
    """The shards of a folder of vectors, in order.

    Raises:
        InputError: there are none.
    """
    found = sorted((folder / VECTORS).glob("part-*.parquet"))
    if not found:
        raise InputError(f"{folder}: holds no {VECTORS}/part-*.parquet; make it with `hybrid encode`")
    return found


def read_shard(path: Path) -> Vectors:
    """The vectors [n, d] of one shard as float32."""
    column = pq.read_table(path, columns=["vector"])["vector"].combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat, np.float32).reshape(len(column), column.type.list_size)


def read_ids(folder: Path) -> pl.Series:
    """The ids of a folder of vectors, by row."""
    return pl.concat([pl.read_parquet(path, columns=["id"])["id"] for path in shards(folder)])


# ------------------------------------------------------------------------------------------------------------ building


def build(folder: Path, recipe: VectorIndex, advance: Callable[[int], None] = lambda n: None) -> str:
    """Write `index.faiss` and `docids.parquet` from the shards in `folder`, one shard in memory at a time.

    A flat index is written as a stream. FAISS holds the others in memory while it builds them: graph and vectors
    (hnsw), vectors (ivf) or codes (pq, sq8, binary).

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
    if factory == "Flat":
        _stream_flat(folder, dim, len(docids), advance)
    elif recipe.type == "binary" and not recipe.factory:
        _build_binary(folder, dim, advance)
    else:
        _build_trained(folder, _empty(factory, dim), recipe, factory, advance)
    return factory


def factory_string(recipe: VectorIndex, dim: int, count: int) -> str:
    """What FAISS calls the index of `recipe` over `count` vectors of length `dim`."""
    if recipe.factory:
        return recipe.factory
    if recipe.type == "ivf":  # FAISS wants 39 training vectors a list
        lists = recipe.nlist or max(1, min(round(4 * count**0.5), count // 39))
        return f"IVF{lists},Flat"
    if recipe.type == "pq":
        size = recipe.pq_bytes or max(size for size in range(1, max(2, dim // 4 + 1)) if dim % size == 0)
        if dim % size:
            raise InputError(f"--pq-bytes {size}: does not divide the vectors' length {dim}")
        return f"PQ{size}"
    names = {"flat": "Flat", "hnsw": f"HNSW{recipe.m},Flat", "sq8": "SQ8", "binary": "Binary"}
    if recipe.type not in names:
        raise InputError(f"--index-type {recipe.type}: needs one of {', '.join(INDEX_TYPES)}, or use --factory")
    return names[recipe.type]


def _empty(factory: str, dim: int) -> Any:
    faiss = _faiss()
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise InputError(
            f"--factory {factory}: FAISS makes no such index of {dim} dimensions ({_why(error)})"
        ) from None
    _check_metric(index, f"--factory {factory}")
    return index


def _build_trained(folder: Path, index: Any, recipe: VectorIndex, factory: str, advance: Callable[[int], None]) -> None:
    faiss = _faiss()
    for name, value in (("efConstruction", recipe.ef_construction), ("efSearch", recipe.ef_search)):
        if "HNSW" in factory:
            _set(index, name, value)
    if not index.is_trained:
        sample = _sample(folder, max(_TRAINING_VECTORS, 40 * _lists(index)), recipe.seed)
        try:
            index.train(sample)
        except RuntimeError as error:
            raise InputError(
                f"{len(sample)} vectors are too few to train {factory} ({_why(error)}); use --index-type flat or sq8"
            ) from None
    if nlist := _lists(index):
        _set(index, "nprobe", min(recipe.nprobe, nlist))
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
    faiss = _faiss()
    header = bytearray(faiss.serialize_index(faiss.IndexFlatIP(dim)).tobytes())
    header[8:16] = count.to_bytes(8, "little")  # fourcc, dimension, then the number of vectors
    header[-8:] = (count * dim).to_bytes(8, "little")  # last, the number of values that follow
    with (folder / INDEX).open("wb") as file:
        file.write(header)
        for path in shards(folder):
            vectors = read_shard(path)
            file.write(np.ascontiguousarray(vectors, "<f4").data)
            advance(len(vectors))


def _build_binary(folder: Path, dim: int, advance: Callable[[int], None]) -> None:
    faiss = _faiss()
    index = faiss.IndexBinaryFlat(-(-dim // 8) * 8)
    for path in shards(folder):
        vectors = read_shard(path)
        index.add(sign_bits(vectors))
        advance(len(vectors))
    faiss.write_index_binary(index, str(folder / INDEX))


def sign_bits(vectors: Vectors) -> np.ndarray:
    """Vectors [n, d] as bits [n, ceil(d/8)]: 1 where a value is not negative (BPR, methods 8.1; sign(0) = +1)."""
    return np.packbits(vectors >= 0, axis=1)


# ----------------------------------------------------------------------------------------------------------- searching


@dataclass
class DenseIndex:
    """A dense index on disk: search it, or score pairs exactly.

    Attributes:
        docids: by row.
        ef_search, nprobe: how far to look, instead of what the index recorded.
    """

    folder: Path
    manifest: Manifest
    docids: pl.Series
    ef_search: int | None = None
    nprobe: int | None = None

    @classmethod
    def open(cls, folder: Path, ef_search: int | None = None, nprobe: int | None = None) -> DenseIndex:
        """Open a dense index; FAISS is needed, and its part read, at the first search only.

        Raises:
            InputError: `folder` is no dense index.
        """
        manifest = artifacts.read_manifest(folder, Kind.DENSE_INDEX)
        docids = pl.read_parquet(folder / DOCIDS)["docid"]
        return cls(folder, manifest, docids, ef_search, nprobe)

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return int(self.manifest.counts["dim"])

    @property
    def contract(self) -> dict[str, Any]:
        """The contract of the encoder that made the vectors."""
        return dict(self.manifest.counts["contract"])

    @property
    def fingerprint(self) -> str:
        """Hash of the weights and contract of that encoder."""
        return str(self.manifest.counts["encoder"])

    @property
    def binary(self) -> bool:
        """Whether passages are sign codes."""
        return bool(self.manifest.counts["factory"] == "Binary")

    @cached_property
    def _index(self) -> Any:
        """FAISS's index, checked; a flat one is mapped, not read."""
        faiss = _faiss()
        path = str(self.folder / INDEX)
        try:
            mapped = getattr(faiss, "IO_FLAG_MMAP_IFC", 0) if self.manifest.counts["factory"] == "Flat" else 0
            index = faiss.read_index_binary(path) if self.binary else faiss.read_index(path, mapped)
        except RuntimeError as error:
            raise InputError(f"{path}: FAISS cannot read it ({_why(error)}); encode again with --overwrite") from None
        if not self.binary:
            _check_metric(index, path)
        if index.ntotal != len(self.docids):
            raise InputError(f"{path}: holds {index.ntotal} vectors for {len(self.docids)} ids; encode again")
        for name, option, value in (("efSearch", "--ef-search", self.ef_search), ("nprobe", "--nprobe", self.nprobe)):
            if value is not None:
                _set(index, name, value, option)
        return index

    def search(self, vectors: Vectors, qids: Sequence[str], hits: int) -> pl.DataFrame:
        """The best `hits` documents of each query vector [n, d], as a run."""
        found = list(self.search_blocks(vectors, qids, hits))
        return pl.concat(found) if found else _no_hits()

    def search_blocks(self, vectors: Vectors, qids: Sequence[str], hits: int) -> Iterator[pl.DataFrame]:
        """The same, a block of queries at a time, so that memory does not grow with their number.

        A query's hits do not depend on the other queries. Equal scores at the cut are settled by docid among the
        16 next hits.

        Raises:
            InputError: the vectors are not as long as the index's.
        """
        if vectors.shape[1] != self.dim:
            raise InputError(f"{self.folder}: holds vectors of length {self.dim}, the queries have {vectors.shape[1]}")
        depth = min(hits + _BEYOND, len(self.docids))
        size = max(_PADDING, min(_BLOCK, _HITS_AT_ONCE // depth // _PADDING * _PADDING))
        for begin in range(0, len(vectors), size):
            block = vectors[begin : begin + size]
            scores, rows = (self._by_codes if self.binary else self._by_vectors)(block, depth)
            yield self._run(qids[begin : begin + size], scores, rows, hits)

    def _by_vectors(self, queries: Vectors, depth: int) -> tuple[np.ndarray, np.ndarray]:
        padded = np.zeros((-(-len(queries) // _PADDING) * _PADDING, self.dim), np.float32)
        padded[: len(queries)] = queries
        scores, rows = self._index.search(padded, depth)
        return scores[: len(queries)], rows[: len(queries)]

    def _by_codes(self, queries: Vectors, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Ten candidates a hit by Hamming distance; the float query against their codes as -1 and +1 orders them."""
        candidates = min(depth * VectorIndex.rescore, len(self.docids))
        _, found = self._index.search(sign_bits(queries), candidates)
        scores, rows = np.empty((len(queries), depth), np.float32), np.empty((len(queries), depth), np.int64)
        for number, (query, near) in enumerate(zip(queries, found, strict=True)):
            bits = np.unpackbits(self._codes[near], axis=1, count=self.dim)
            exact = 2 * (bits.astype(np.float32) @ query) - query.sum()
            best = np.argsort(-exact, kind="stable")[:depth]
            scores[number], rows[number] = exact[best], near[best]
        return scores, rows

    @cached_property
    def _codes(self) -> np.ndarray:
        faiss, index = _faiss(), self._index
        return np.asarray(faiss.vector_to_array(index.xb)).reshape(index.ntotal, index.code_size)

    def _run(self, qids: Sequence[str], scores: np.ndarray, rows: np.ndarray, hits: int) -> pl.DataFrame:
        found = rows >= 0  # FAISS fills up with -1
        queries = np.repeat(np.arange(len(qids)), found.sum(1))
        frame = pl.DataFrame(
            {
                "qid": pl.Series(qids, dtype=pl.String).gather(queries),
                "docid": self.docids.gather(rows[found]),
                "score": scores[found],
            }
        )
        return runs.ranked(frame, hits)

    def score(self, pairs: pl.DataFrame, qids: Sequence[str], query_vectors: Vectors) -> pl.Series:
        """The inner product of each pair (qid, docid), from the stored vectors: float32, in the order of `pairs`.

        Raises:
            InputError: a docid that the index lacks, or a qid without a vector.
        """
        rows = _positions(pairs["docid"], self.docids, f"{self.folder}: has no document")
        queries = _positions(pairs["qid"], pl.Series(qids, dtype=pl.String), "no vector was given for query")
        scores = np.empty(len(pairs), np.float32)
        order = np.argsort(rows, kind="stable")
        begin = 0
        for path in shards(self.folder):
            end = begin + pq.read_metadata(path).num_rows
            mine = order[slice(*np.searchsorted(rows[order], (begin, end)))]
            if len(mine):
                vectors = self._as_scored(read_shard(path))
                for some in np.array_split(mine, -(-len(mine) // _PAIRS_AT_ONCE)):
                    scores[some] = np.einsum("nd,nd->n", query_vectors[queries[some]], vectors[rows[some] - begin])
            begin = end
        return pl.Series("score", scores)

    def _as_scored(self, vectors: Vectors) -> Vectors:
        return np.where(vectors >= 0, np.float32(1), np.float32(-1)) if self.binary else vectors

    def vectors_of(self, rows: np.ndarray) -> Vectors:
        """The stored vectors [n, d] of some rows."""
        found, begin = np.empty((len(rows), self.dim), np.float32), 0
        for path in shards(self.folder):
            end = begin + pq.read_metadata(path).num_rows
            mine = (rows >= begin) & (rows < end)
            if mine.any():
                found[mine] = read_shard(path)[rows[mine] - begin]
            begin = end
        return found


def _no_hits() -> pl.DataFrame:
    empty = pl.from_arrow(artifacts.SCHEMAS[Kind.RUN].empty_table())
    return empty.to_frame() if isinstance(empty, pl.Series) else empty


def _positions(wanted: pl.Series, known: pl.Series, complaint: str) -> np.ndarray:
    """Where each of `wanted` stands in `known`."""
    places = pl.LazyFrame({"id": known}).with_row_index("row").unique("id", keep="first")
    joined = pl.LazyFrame({"id": wanted}).join(places, on="id", how="left", maintain_order="left").collect()
    lost = joined.filter(pl.col("row").is_null())["id"].unique(maintain_order=True)
    if len(lost):
        raise InputError(f"{complaint} {lost[0]}" + (f" and {len(lost) - 1} more" if len(lost) > 1 else ""))
    return joined["row"].to_numpy().astype(np.int64)


# --------------------------------------------------------------------------------------------------------------- FAISS


def set_threads(threads: int | None) -> None:
    """How many threads FAISS may use; None leaves it at all cores."""
    if threads is not None:
        _faiss().omp_set_num_threads(threads)


def _faiss() -> Any:
    if sys.platform == "darwin":  # the wheels of torch and FAISS each bring an OpenMP
        os.environ.setdefault("KMP_DUPLICATE_LIB_OK", "TRUE")
    try:
        import faiss
    except ImportError:
        raise HybridError(
            "FAISS is not installed; type: pip install 'hybrid_cli[cpu]' (or [gpu] on a machine with CUDA)"
        ) from None
    return faiss


def _why(error: RuntimeError) -> str:
    """FAISS's reason without its file, line and stack."""
    return str(error).strip().splitlines()[-1].rsplit("Error: ", 1)[-1].rsplit(" failed: ", 1)[-1]


def _set(index: Any, name: str, value: int, option: str = "") -> None:
    try:
        _faiss().ParameterSpace().set_index_parameter(index, name, value)
    except RuntimeError:
        raise InputError(f"{option or name} {value}: this kind of index has no such setting") from None


def _lists(index: Any) -> int:
    """The number of inverted lists, 0 for an index without."""
    inner = _faiss().try_extract_index_ivf(index)
    return int(inner.nlist) if inner is not None else 0


def _check_metric(index: Any, where: str) -> None:
    """Refuse an index, or the storage inside it, that measures anything but the inner product."""
    faiss = _faiss()
    inner = faiss.downcast_index(index)
    while inner is not None:
        if inner.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise InputError(f"{where}: its {type(inner).__name__} does not measure the inner product; use another")
        below = getattr(inner, "storage", None) or getattr(inner, "index", None)
        inner = faiss.downcast_index(below) if isinstance(below, faiss.Index) else None
