"""Dense indexes: search, and exact scores of pairs from the stored vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow.parquet as pq

from hybrid_cli import storage
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.indexes.construction import flat_vectors
from hybrid_cli.indexes.faiss import (
    ALL_GPUS,
    check_metric,
    is_binary,
    load_faiss,
    on_gpus,
    pick_gpus,
    reason,
    search_selected,
    set_parameter,
    sign_bits,
)
from hybrid_cli.indexes.options import BINARY_K, FLAT, Shards
from hybrid_cli.indexes.shards import Vectors, read_shard, shard_path, shards, vector_blocks, write_shard
from hybrid_cli.lexical import keys as keyed
from hybrid_cli.runs.index import Allowed, Documents, Hits, Index
from hybrid_cli.storage import Record
from hybrid_cli.storage.layout import FAISS_INDEX
from hybrid_cli.threads import ThreadPool

if TYPE_CHECKING:
    from hybrid_cli.indexes.codes import Codes

_BLOCK = 256  # queries per search
BLOCK_DOCUMENTS = 4096  # in a product of matrices
_HITS_AT_ONCE = 1 << 22  # bounds the memory of a block where many hits are requested
_PADDING = 32  # queries are padded to a multiple: BLAS sums a single query in another order
_BEYOND = 16  # hits requested beyond the cut, so that equal scores at the cut are ordered by docid
_GPU_HITS = 2048  # FAISS returns no more from a GPU
_ROWS_AT_ONCE = 1 << 16
_ALIGNED = 256  # vectors that are copied at a time, and stay in the second-level cache
_FEW, _FEW_OF_SMALL = 4, 32  # queries that NumPy alone searches in a flat index, without PyTorch and compiled loops
_SMALL, LARGE = 1 << 15, 1 << 17  # documents
_BEFORE_CODES = 16  # searches, which take the time of making the codes
_ALLOWED_BLOCK = 1024  # queries per search of a filtered flat index, whose allowed vectors are copied for each block
_MANY_PAIRS = 64  # per query, which are scored query by query
_GATHERED = 4  # a product with all vectors takes less time than copying a quarter of them
_SELECTIVE = 0.1  # share of documents below which those that a filter keeps are scored, whatever the index type


@dataclass(frozen=True)
class IndexInfo:
    """Properties of a dense index or of encoded queries, as the manifest stores them.

    Attributes:
        vectors: number of vectors.
        dim: length of the vectors.
        encoder: fingerprint of the encoder.
        contract: contract of the encoder; see `Encoder.describe`.
        truncated: number of texts that the encoder cut.
        factory: FAISS factory string; empty for encoded queries.
        recall: measured recall by name, such as `recall@10`.
    """

    vectors: int
    dim: int
    encoder: str = ""
    contract: Mapping[str, Any] = field(default_factory=dict)
    truncated: int = 0
    factory: str = ""
    recall: Mapping[str, float] = field(default_factory=dict)

    def counts(self) -> dict[str, Any]:
        """Return the properties as the manifest stores them."""
        stored = {
            declaration.name: getattr(self, declaration.name)
            for declaration in fields(self)
            if declaration.name != "recall"
        }
        return {name: value for name, value in stored.items() if name != "factory" or value} | dict(self.recall)

    @property
    def binary(self) -> bool:
        """Return whether documents are stored as sign codes."""
        return is_binary(self.factory)


@dataclass(repr=False)
class DenseIndex(Index):
    """A dense index, on disk or in memory: search it, or score pairs exactly.

    Attributes:
        folder: folder of the index.
        info: properties of the vectors and the index.
        docids: ids by row.
        record: None for an index that is still being built.
        ef_search: candidates in a graph; overrides the recorded number.
        nprobe: inverted lists to search; overrides the recorded number.
        binary_k: candidates by Hamming distance, for an index of sign codes.
        gpus: numbers of the GPUs that search a flat index for many queries; None for all that FAISS sees.
        allowed: [N] documents that may be hits; None for all. Set by `within`.
        encode: returns the vectors of queries (qid, text), [Q, d].
        codes: of a large flat index that was searched often.
    """

    folder: Path
    info: IndexInfo
    docids: pl.Series
    record: Record | None = None
    ef_search: int | None = None
    nprobe: int | None = None
    binary_k: int | None = None
    gpus: tuple[int, ...] | None = ()
    allowed: np.ndarray | None = None
    encode: Callable[[pl.DataFrame], Vectors] | None = None
    codes: Codes | None = field(default=None, init=False, compare=False)
    _searches: int = field(default=0, init=False, compare=False)
    system = "dense"

    @classmethod
    def of(cls, docids: pl.Series, vectors: Vectors, encode: Callable[[pl.DataFrame], Vectors] | None) -> DenseIndex:
        """Return a flat index in memory.

        Args:
            docids: [N]
            vectors: [N, d], float32.
            encode: see `DenseIndex`; None for an index that is searched by vectors alone.
        """
        info = IndexInfo(len(vectors), vectors.shape[1], factory=FLAT)
        index = cls(Path(), info, docids, encode=encode)
        index.__dict__["_flat"] = np.ascontiguousarray(vectors)
        return index

    @cached_property
    def documents(self) -> Documents:
        """See `Index`."""
        return Documents(self.docids)

    def within(self, allowed: Allowed) -> DenseIndex:
        """See `Index`.

        A flat index is exact. Of other types, the allowed documents are scored by their stored vectors if they are few
        (below a tenth); else the index is searched as much deeper as documents are left out.
        """
        kept = allowed.mask(self.docids)
        if kept.all():
            return self
        other = replace(self, allowed=kept)
        names = ["_flat"] if self.info.factory == FLAT else ["_index"] if kept.mean() >= _SELECTIVE else []
        for name in ("documents", *names):
            other.__dict__[name] = getattr(self, name)
        return other

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self.info.dim

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the encoder."""
        return self.info.encoder

    @property
    def binary(self) -> bool:
        """Return whether documents are sign codes."""
        return self.info.binary

    @cached_property
    def _index(self) -> Any:
        """Load and check FAISS's index; a flat index is memory-mapped."""
        path = str(self.folder / FAISS_INDEX)
        with storage.one_version(self.folder, self.record):
            index = self._read_index(path)
        if not self.binary:
            check_metric(index, path)
        if index.ntotal != len(self.docids):
            problem = f"has {index.ntotal} vectors for {len(self.docids)} ids; encode again with --overwrite"
            raise path_error(path, problem)
        for name, option, value in (("efSearch", "--ef-search", self.ef_search), ("nprobe", "--nprobe", self.nprobe)):
            if value is not None:
                set_parameter(index, name, value, option)
        return index

    @cached_property
    def _on_gpus(self) -> Any | None:
        gpus = pick_gpus(ALL_GPUS) if self.gpus is None else self.gpus
        return on_gpus(self._index, gpus, shard=True) if gpus and self.info.factory == FLAT else None

    def _read_index(self, path: str) -> Any:
        faiss = load_faiss()
        storage.check_parts(self.folder, FAISS_INDEX)
        try:
            mapped = getattr(faiss, "IO_FLAG_MMAP_IFC", 0) if self.info.factory == FLAT else 0
            return faiss.read_index_binary(path) if self.binary else faiss.read_index(path, mapped)
        except RuntimeError as error:
            raise path_error(path, f"FAISS cannot read it ({reason(error)}); encode again with --overwrite") from None

    def prepare(self, queries: pl.DataFrame) -> Vectors:
        """Return the vectors of queries, [Q, d]: of the column `vector`, or of the encoder."""
        if "vector" in queries.columns:
            return queries["vector"].to_numpy()
        if self.encode is None:
            name = "the index" if self.folder == Path() else self.folder
            problem = f"{name}: its vectors have no encoder; pass vectors as queries, or import it again with --model"
            raise InputError(problem, code="no-encoder", path=self.folder)
        return self.encode(queries)

    def some(self, queries: pl.DataFrame, k: int) -> Iterator[pl.DataFrame]:
        """See `Index`; queries are encoded together, since the bits of a vector depend on its batch."""
        yield queries

    def hits(self, prepared: Vectors, k: int) -> Hits:
        """Search for query vectors [Q, d]; the hits of a query do not depend on the other queries.

        Equal scores at the cut are ordered by docid, among the 16 next hits.

        Raises:
            InputError: the length of the vectors differs from the index's.
        """
        blocks = [Hits.none(0)]
        if not len(self.docids):
            return Hits.none(len(prepared))
        for scores, rows in self._blocks_of_hits(prepared, k):
            counts = (rows >= 0).sum(1)  # FAISS pads short lists with -1
            kept, queries = rows >= 0, np.repeat(np.arange(len(counts)), counts)
            blocks.append(Hits.ranked(len(counts), queries, rows[kept], scores[kept], self.documents, k))
        counts, rows, scores = (
            np.concatenate([getattr(block, name) for block in blocks]) for name in ("counts", "rows", "scores")
        )
        return Hits(counts, rows, scores)

    def _blocks_of_hits(self, vectors: Vectors, hits: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield scores and rows [queries, hits and some more] of a block of queries, in no order."""
        if vectors.shape[1] != self.dim:
            name = "the index" if self.folder == Path() else self.folder
            problem = f"{name}: has vectors of length {self.dim}, the queries have {vectors.shape[1]}"
            raise InputError(problem, code="other-width", value=vectors.shape[1], expected=self.dim)
        if self.allowed is not None:
            yield from self._allowed_blocks(vectors, hits, self.allowed)
            return
        depth = min(hits + _BEYOND, len(self.docids))
        size = _block_size(depth, _BLOCK)
        gpus = self._on_gpus if len(vectors) >= _BLOCK and depth <= _GPU_HITS else None
        for begin in range(0, len(vectors), size):
            block = vectors[begin : begin + size]
            yield self._by_codes(block, depth) if self.binary else self._by_vectors(block, depth, gpus)

    def _allowed_blocks(
        self, vectors: Vectors, hits: int, allowed: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Search as `_blocks_of_hits` does, among the allowed documents."""
        rows = np.flatnonzero(allowed)
        if not len(rows):
            yield np.zeros((len(vectors), 0), np.float32), np.zeros((len(vectors), 0), np.int64)
            return
        depth = min(hits + _BEYOND, len(rows))
        size = _block_size(depth, _ALLOWED_BLOCK)
        exact = self.info.factory == FLAT or len(rows) < _SELECTIVE * len(allowed)
        for begin in range(0, len(vectors), size):
            block = vectors[begin : begin + size]
            yield self._among(block, rows, depth) if exact else self._selected(block, allowed, depth)

    def _among(self, queries: Vectors, rows: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and rows of the best of some rows, exactly."""
        if len(rows) < _SELECTIVE * len(self.docids):
            kept = self._kept
            if self._are_few(queries):
                best = np.stack([_largest(kept @ query, depth) for query in queries])
            else:
                some = (kept[begin : begin + BLOCK_DOCUMENTS] for begin in range(0, len(rows), BLOCK_DOCUMENTS))
                best = nearest(queries, some, depth)
            pairs = zip(queries, best, strict=True)
            return np.stack([np.einsum("nd,d->n", kept[mine], query) for query, mine in pairs]), rows[best]
        if not self._are_few(queries):
            some = (self._flat[rows[begin : begin + BLOCK_DOCUMENTS]] for begin in range(0, len(rows), BLOCK_DOCUMENTS))
            return self._exact(queries, rows[nearest(queries, some, depth)])
        if len(rows) * _GATHERED < len(self.docids):
            vectors = self._flat[rows]
            return self._exact(queries, np.stack([rows[_largest(vectors @ query, depth)] for query in queries]))
        positions = [_largest(products[rows], depth) for products in _products(self._flat, queries).T]
        return self._exact(queries, rows[np.stack(positions)])

    @cached_property
    def _kept(self) -> Vectors:
        """The vectors of the allowed documents, of which there are few."""
        assert self.allowed is not None
        return self._scored(self.vectors_of(np.flatnonzero(self.allowed)))

    def _selected(self, queries: Vectors, allowed: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Search an approximate index among the allowed documents, so much deeper as documents are left out."""
        count = len(allowed)
        if not self.binary:
            hits = search_selected(self._index, _padded(queries), depth, allowed)
            if hits is not None:
                return hits[0][: len(queries)], hits[1][: len(queries)]
        deeper = -(-depth * count // int(allowed.sum()))
        while True:
            deeper = min(count, deeper)
            search = self._by_codes if self.binary else self._by_vectors
            scores, some = search(queries, deeper)
            kept = (some >= 0) & allowed[some]
            if deeper == count or (kept.sum(1) >= depth).all():
                break
            deeper *= 2
        order = np.argsort(np.where(kept, -scores, np.inf), axis=1, kind="stable")[:, :depth]
        return np.take_along_axis(scores, order, 1), np.take_along_axis(np.where(kept, some, -1), order, 1)

    def _by_vectors(self, queries: Vectors, depth: int, gpus: Any | None = None) -> tuple[np.ndarray, np.ndarray]:
        if self.info.factory != FLAT:
            scores, rows = self._index.search(_padded(queries), depth)
            return scores[: len(queries)], rows[: len(queries)]
        if gpus is not None:
            rows = gpus.search(_padded(queries), depth)[1][: len(queries)]
        elif (codes := self._codes_of_few(queries)) is not None:
            hits = [self._best(query, codes.candidates(query, depth), depth) for query in queries]
            return np.stack([scores for scores, _ in hits]), np.stack([rows for _, rows in hits])
        elif self._are_few(queries):
            rows = np.stack([_largest(products, depth) for products in _products(self._flat, queries).T])
        else:
            rows = nearest(queries, self.blocks(BLOCK_DOCUMENTS), depth)
        return self._exact(queries, rows)

    def _codes_of_few(self, queries: Vectors) -> Codes | None:
        """Return codes of a large index; its 16th search makes them, in the background."""
        if len(self.docids) <= LARGE or not self._are_few(queries):
            return None
        self._searches = count = self._searches + 1  # of several threads, each sees its own
        if count == _BEFORE_CODES:
            Thread(target=self._make_codes, daemon=True).start()
        return self.codes

    def _make_codes(self) -> None:
        from hybrid_cli.indexes.codes import Codes

        self.codes = Codes.of(self.blocks(BLOCK_DOCUMENTS), len(self.docids), self.dim)

    def _best(self, query: Vectors, rows: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and rows of the best among some rows."""
        scores = np.einsum("nd,d->n", self._flat[rows], query)
        best = _largest(scores, depth)
        return scores[best], rows[best]

    def _are_few(self, queries: Vectors) -> bool:
        return len(queries) <= (_FEW_OF_SMALL if len(self.docids) <= _SMALL else _FEW)

    def _exact(self, queries: Vectors, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and rows; the order in which BLAS sums depends on processor and block, and scores must not."""
        if self._are_few(queries) or not _kernel_sums_as_numpy():
            pairs = zip(queries, rows, strict=True)
            return np.stack([np.einsum("nd,d->n", self._flat[mine], query) for query, mine in pairs]), rows
        import torch

        from hybrid_cli.lexical import kernels

        rows, scores = np.sort(rows, axis=1), np.empty(rows.shape, np.float32)
        vectors = _as_bytes(self._flat)
        threads = torch.get_num_threads()
        bounds = [len(queries) * at // threads for at in range(threads + 1)]

        def score(begin: int, end: int) -> None:
            kernels.inner_products(vectors, queries[begin:end], rows[begin:end], scores[begin:end])

        with ThreadPool(threads) as pool:
            list(pool.map(score, bounds[:-1], bounds[1:]))
        return scores, rows

    @cached_property
    def _flat(self) -> Vectors:
        with storage.one_version(self.folder, self.record):
            storage.check_parts(self.folder, FAISS_INDEX)
            vectors = flat_vectors(self.folder, self.dim, len(self.docids))
        return vectors if len(vectors) > _SMALL else np.array(vectors)  # aligned

    def _by_codes(self, queries: Vectors, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Retrieve candidates by Hamming distance; rescore their codes (-1 and +1) with the float query (BPR)."""
        candidates = min(max(depth, self.binary_k or BINARY_K), len(self.docids))
        if graph := getattr(self._index, "hnsw", None):
            graph.efSearch = max(graph.efSearch, candidates)
        _, candidate_rows = self._index.search(sign_bits(queries), candidates)
        scores, rows = np.zeros((len(queries), depth), np.float32), np.full((len(queries), depth), -1)
        for number, (query, near) in enumerate(zip(queries, candidate_rows, strict=True)):
            near = near[near >= 0]  # a graph may find fewer
            bits = np.unpackbits(self._codes[near], axis=1, count=self.dim)
            exact = 2 * (bits.astype(np.float32) @ query) - query.sum()
            best = np.argsort(-exact, kind="stable")[:depth]
            scores[number, : len(best)], rows[number, : len(best)] = exact[best], near[best]
        return scores, rows

    @cached_property
    def _codes(self) -> np.ndarray:
        faiss, index = load_faiss(), self._index
        index = faiss.downcast_IndexBinary(index.storage) if hasattr(index, "hnsw") else index
        return np.asarray(faiss.vector_to_array(index.xb)).reshape(index.ntotal, index.code_size)

    def scores(self, prepared: Vectors, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the inner product of each pair from the stored vectors; see `Index`."""
        scores = np.empty(len(rows), np.float32)
        many = _MANY_PAIRS * len(prepared) <= len(rows) <= _ROWS_AT_ONCE and self.info.factory == FLAT
        if many and (queries[1:] >= queries[:-1]).all():
            ends = np.searchsorted(queries, np.arange(len(prepared) + 1))
            for query, (begin, end) in zip(prepared, pairwise(ends), strict=True):  # without a copy of the queries
                scores[begin:end] = np.einsum("nd,d->n", self._flat[rows[begin:end]], query)
            return scores
        for mine, vectors in self._stored(rows):
            scores[mine] = np.einsum("nd,nd->n", prepared[queries[mine]], self._scored(vectors))
        return scores

    def blocks(self, size: int) -> Iterator[Vectors]:
        """Yield the vectors that `score` uses, in order, in blocks of `size` rows; the last block may be shorter.

        A flat index is memory-mapped; for other types, one shard is in memory.
        """
        if self.info.factory == FLAT:
            yield from (self._flat[begin : begin + size] for begin in range(0, len(self._flat), size))
            return
        yield from map(self._scored, vector_blocks(self.folder, size))

    def _scored(self, vectors: Vectors) -> Vectors:
        return np.where(vectors >= 0, np.float32(1), np.float32(-1)) if self.binary else vectors

    def vectors_of(self, rows: np.ndarray) -> Vectors:
        """Return the stored vectors [n, d] of the given rows."""
        matrix = np.empty((len(rows), self.dim), np.float32)
        for mine, vectors in self._stored(rows):
            matrix[mine] = vectors
        return matrix

    def _stored(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, Vectors]]:
        """Yield positions in `rows` with their vectors, in limited blocks: of the flat index, else shard by shard."""
        order, begin = np.argsort(rows, kind="stable"), 0
        if self.info.factory == FLAT:
            for some in np.array_split(order, -(-len(order) // _ROWS_AT_ONCE) or 1):
                yield some, self._flat[rows[some]]
            return
        for path in shards(self.folder):
            end = begin + pq.read_metadata(path).num_rows
            mine = order[slice(*np.searchsorted(rows[order], (begin, end)))]
            if len(mine):
                with storage.one_version(self.folder, self.record):
                    vectors = read_shard(path)
                for some in np.array_split(mine, -(-len(mine) // _ROWS_AT_ONCE)):
                    yield some, vectors[rows[some] - begin]
            begin = end


def _block_size(depth: int, most: int) -> int:
    """Return the number of queries that are searched at once, a multiple of the padding."""
    size = min(most, _HITS_AT_ONCE // depth)
    return size // _PADDING * _PADDING or _PADDING


def nearest(queries: Vectors, blocks: Iterable[Vectors], depth: int) -> npt.NDArray[np.int64]:
    """Return the positions [Q, depth] of the vectors with the largest inner products, in no order.

    Own loop because the BLAS inside FAISS's wheel, of 2021, takes up to 12 times as long on newer processors.

    Args:
        queries: [Q, d]
        blocks: all vectors, some [n, d] at a time.
        depth: vectors per query, not more than there are.
    """
    import torch

    from hybrid_cli.lexical import kernels

    padded, first = torch.from_numpy(_padded(queries)), 0
    best = kernels.Best.of(len(queries), depth)
    threads = torch.get_num_threads()
    bounds = [len(queries) * at // threads for at in range(threads + 1)]
    with ThreadPool(threads) as pool:
        for block in blocks:
            scores = (padded @ torch.from_numpy(block).T).numpy()
            order = np.arange(first, first + len(block), dtype=np.int32)

            def keep(begin: int, end: int, scores: Vectors = scores, order: np.ndarray = order) -> None:
                kernels.keep_block(scores[begin:end], order, depth, best.part(begin, end))

            list(pool.map(keep, bounds[:-1], bounds[1:]))
            first += len(block)
    return keyed.positions_of(best.largest(depth))


@cache
def _kernel_sums_as_numpy() -> bool:
    """Return whether the kernel has the bits of NumPy, whose builds for other processors may have other lanes."""
    from hybrid_cli.lexical import kernels

    vectors, products = np.sin(np.arange(320, dtype=np.float32)).reshape(8, 40), np.empty((1, 8), np.float32)
    kernels.inner_products(_as_bytes(vectors), vectors[:1], np.arange(8)[None], products)
    return bool((products == np.einsum("nd,d->n", vectors, vectors[0])).all())


def _as_bytes(vectors: Vectors) -> npt.NDArray[np.uint8]:
    """Return the bytes of vectors: one compiled kernel for arrays and files, of any alignment."""
    some = vectors.view(np.ndarray).reshape(-1).view(np.uint8)
    some.flags.writeable = False
    return some


def _padded(queries: Vectors) -> Vectors:
    padded = np.zeros((-(-len(queries) // _PADDING) * _PADDING, queries.shape[1]), np.float32)
    padded[: len(queries)] = queries
    return padded


def _products(vectors: Vectors, queries: Vectors) -> np.ndarray:
    """Return the products [n, Q] of vectors and queries.

    The vectors in a FAISS file are not aligned: NumPy would copy all of them into memory first.
    """
    if vectors.flags.aligned:
        return vectors @ queries.T
    plain, out = vectors.view(np.ndarray), np.empty((len(vectors), len(queries)), np.float32)
    aligned = np.empty((_ALIGNED, vectors.shape[1]), np.float32)
    for first in range(0, len(plain), _ALIGNED):
        some = plain[first : first + _ALIGNED]
        np.copyto(aligned[: len(some)], some)
        np.dot(aligned[: len(some)], queries.T, out=out[first : first + len(some)])
    return out


def _largest(scores: np.ndarray, number: int) -> np.ndarray:
    """Return the positions of the largest scores, in no order."""
    return np.argpartition(scores, len(scores) - number)[len(scores) - number :]


def combine_vectors(
    indexes: Sequence[DenseIndex],
    folder: Path,
    combine: Callable[[np.ndarray, np.ndarray], np.ndarray],
    options: Shards,
) -> None:
    """Combine the vectors of two indexes of one corpus with `combine`, and write the result as shards."""
    docids = indexes[0].docids
    for number, begin in enumerate(range(0, len(docids), options.shard_size)):
        rows = np.arange(begin, min(len(docids), begin + options.shard_size))
        first, second = (index.vectors_of(rows) for index in indexes)
        whole = combine(first, second).astype(options.vector_dtype)
        write_shard(shard_path(folder, number), docids.gather(rows).to_arrow(), whole)
