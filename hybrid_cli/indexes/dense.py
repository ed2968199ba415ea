"""An open dense index: search it, or score pairs exactly from the stored vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from hybrid_cli import artifacts, runs
from hybrid_cli.artifacts import Kind, Manifest
from hybrid_cli.errors import InputError
from hybrid_cli.indexes.build import DOCIDS, FLAT, INDEX, is_binary, sign_bits
from hybrid_cli.indexes.faiss import check_metric, load_faiss, reason, set_parameter
from hybrid_cli.indexes.shards import Vectors, read_shard, shards
from hybrid_cli.settings import SearchOptions

_BLOCK = 256  # queries searched at once
_HITS_AT_ONCE = 1 << 22  # bounds a block's memory where many hits are asked for
_PADDING = 32  # blocks are filled to a multiple: a lone query would take another path through BLAS and differ by an ulp
_BEYOND = 16  # hits asked for beyond the cut, so that equal scores there are cut by docid
_ROWS_AT_ONCE = 1 << 16


@dataclass
class DenseIndex:
    """A dense index on disk: search it, or score pairs exactly.

    Attributes:
        docids: by row.
        ef_search, nprobe: how far to look, instead of what the index recorded.
        binary_k: candidates by Hamming distance, of an index of sign codes.
    """

    folder: Path
    manifest: Manifest
    docids: pl.Series
    ef_search: int | None = None
    nprobe: int | None = None
    binary_k: int | None = None

    @classmethod
    def open(
        cls, folder: Path, ef_search: int | None = None, nprobe: int | None = None, binary_k: int | None = None
    ) -> DenseIndex:
        """Open a dense index; FAISS is needed, and its part read, at the first search only.

        Raises:
            InputError: `folder` is no dense index.
        """
        manifest = artifacts.read_manifest(folder, Kind.DENSE_INDEX)
        docids = pl.read_parquet(artifacts.validate_parquet(folder / DOCIDS))["docid"]
        return cls(folder, manifest, docids, ef_search, nprobe, binary_k)

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
        return is_binary(self.manifest.counts["factory"])

    @cached_property
    def _index(self) -> Any:
        """FAISS's index, checked; a flat one is mapped, not read."""
        faiss = load_faiss()
        path = str(self.folder / INDEX)
        try:
            mapped = getattr(faiss, "IO_FLAG_MMAP_IFC", 0) if self.manifest.counts["factory"] == FLAT else 0
            index = faiss.read_index_binary(path) if self.binary else faiss.read_index(path, mapped)
        except RuntimeError as error:
            raise InputError(f"{path}: FAISS cannot read it ({reason(error)}); encode again with --overwrite") from None
        if not self.binary:
            check_metric(index, path)
        if index.ntotal != len(self.docids):
            raise InputError(f"{path}: holds {index.ntotal} vectors for {len(self.docids)} ids; encode again")
        for name, option, value in (("efSearch", "--ef-search", self.ef_search), ("nprobe", "--nprobe", self.nprobe)):
            if value is not None:
                set_parameter(index, name, value, option)
        return index

    def search(self, vectors: Vectors, qids: Sequence[str], hits: int) -> pl.DataFrame:
        """The best `hits` documents of each query vector [n, d], as a run."""
        found = list(self.search_blocks(vectors, qids, hits))
        return pl.concat(found) if found else runs.empty()

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
        if self.manifest.counts["factory"] == FLAT:
            # BLAS sums in an order that depends on the processor and on a vector's place in the block; a pair must not.
            for query, mine, found in zip(queries, scores, rows, strict=False):
                mine[:] = np.einsum("nd,d->n", self._flat[found], query)
        return scores[: len(queries)], rows[: len(queries)]

    @cached_property
    def _flat(self) -> Vectors:
        """The vectors [n, d] of a flat index, mapped."""
        path, shape = self.folder / INDEX, (len(self.docids), self.dim)
        return np.memmap(path, "<f4", "c", path.stat().st_size - 4 * shape[0] * shape[1], shape)

    def _by_codes(self, queries: Vectors, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Candidates by Hamming distance; the float query against their codes as -1 and +1 orders them (BPR)."""
        candidates = min(max(depth, self.binary_k or SearchOptions.binary_k), len(self.docids))
        if graph := getattr(self._index, "hnsw", None):
            graph.efSearch = max(graph.efSearch, candidates)
        _, found = self._index.search(sign_bits(queries), candidates)
        scores, rows = np.zeros((len(queries), depth), np.float32), np.full((len(queries), depth), -1)
        for number, (query, near) in enumerate(zip(queries, found, strict=True)):
            near = near[near >= 0]  # a graph may not reach as many
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
        rows = runs.positions(pairs["docid"], self.docids, f"{self.folder}: has no document")
        queries = runs.positions(pairs["qid"], pl.Series(qids, dtype=pl.String), "no vector for query")
        scores = np.empty(len(pairs), np.float32)
        for mine, vectors in self._stored(rows):
            scores[mine] = np.einsum("nd,nd->n", query_vectors[queries[mine]], self._scored(vectors))
        return pl.Series("score", scores)

    def blocks(self, size: int) -> Iterator[Vectors]:
        """What `score` multiplies queries with, `size` rows at a time in their order, the last block shorter.

        A flat index is mapped; of the others one shard is in memory.
        """
        if self.manifest.counts["factory"] == FLAT:
            yield from (self._flat[begin : begin + size] for begin in range(0, len(self._flat), size))
            return
        waiting = np.empty((0, self.dim), np.float32)
        for path in shards(self.folder):
            waiting = np.concatenate([waiting, self._scored(read_shard(path))])
            whole = len(waiting) // size * size
            yield from (waiting[begin : begin + size] for begin in range(0, whole, size))
            waiting = waiting[whole:]
        if len(waiting):
            yield waiting

    def _scored(self, vectors: Vectors) -> Vectors:
        return np.where(vectors >= 0, np.float32(1), np.float32(-1)) if self.binary else vectors

    def vectors_of(self, rows: np.ndarray) -> Vectors:
        """The stored vectors [n, d] of some rows."""
        found = np.empty((len(rows), self.dim), np.float32)
        for mine, vectors in self._stored(rows):
            found[mine] = vectors
        return found

    def _stored(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, Vectors]]:
        """Positions in `rows` with their vectors, shard by shard, so many at a time."""
        order, begin = np.argsort(rows, kind="stable"), 0
        for path in shards(self.folder):
            end = begin + pq.read_metadata(path).num_rows
            mine = order[slice(*np.searchsorted(rows[order], (begin, end)))]
            if len(mine):
                vectors = read_shard(path)
                for some in np.array_split(mine, -(-len(mine) // _ROWS_AT_ONCE)):
                    yield some, vectors[rows[some] - begin]
            begin = end
