"""Exact search by a weighted sum of scores, over all documents.

Documents are processed in blocks: the dense scores of a block are a matrix product, and each query reads its postings
from where the previous block ended, so that every posting is read once. Memory holds one block of scores and the best
hits of each query, independent of the size of the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli.indexes.dense import BLOCK_DOCUMENTS, DenseIndex
from hybrid_cli.indexes.shards import Vectors
from hybrid_cli.lexical import kernels
from hybrid_cli.lexical import keys as keyed
from hybrid_cli.lexical.impacts import Postings
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.memory import cpu_count
from hybrid_cli.runs.index import Allowed, Documents, Hits, Index
from hybrid_cli.threads import ThreadPool

BLOCK_QUERIES = 1024  # scored at once
_PADDING = 32  # padding as in `DenseIndex`: scores must not depend on the number of queries
_KEYS = 1 << 23  # bounds the memory for many hits


Prepared: TypeAlias = tuple[Sequence[Vectors], keyed.Bags | None]  # [Q, d] of each dense index


@dataclass(frozen=True, repr=False)
class HybridIndex(Index):
    """Indexes of one corpus, searched by the weighted sum of their scores.

    Attributes:
        dense: one or more dense indexes.
        weights: weights of the dense scores.
        lexical: lexical index; documents without a matching term score 0.
        lexical_weight: weight of the BM25 score.
        allowed: [N] documents that may be hits; None for all.
        threads: CPU threads; None for all cores.
    """

    dense: tuple[DenseIndex, ...]
    weights: tuple[float, ...]
    lexical: LexicalIndex | None = None
    lexical_weight: float = 0.0
    allowed: npt.NDArray[np.bool_] | None = None
    threads: int | None = None
    kind = "a weighted sum of scores"

    @property
    def documents(self) -> Documents:
        """See `Index`."""
        return self.dense[0].documents

    def within(self, allowed: Allowed) -> HybridIndex:
        """See `Index`."""
        return replace(self, allowed=allowed.mask(self.documents.ids))

    def prepare(self, queries: pl.DataFrame) -> Prepared:
        """Return encoded and analyzed queries."""
        vectors = [index.prepare(queries) for index in self.dense]
        return vectors, None if self.lexical is None else self.lexical.prepare(queries)

    def some(self, queries: pl.DataFrame, k: int) -> Iterator[pl.DataFrame]:
        """See `Index`; queries are encoded together, since the bits of a vector depend on its batch."""
        yield queries

    def hits(self, prepared: Prepared, k: int) -> Hits:
        """Rank all documents for each query."""
        vectors, bags = prepared
        count, hits = len(vectors[0]), min(k, len(self.documents) if self.allowed is None else int(self.allowed.sum()))
        if not hits:
            return Hits.none(count)
        size = min(BLOCK_QUERIES, _KEYS // (2 * hits)) // _PADDING * _PADDING or _PADDING
        blocks = []
        for begin in range(0, count, size):
            end = min(begin + size, count)
            some = None if bags is None else bags.part(begin, end)
            blocks.append(self._best([of_index[begin:end] for of_index in vectors], some, hits))
        keys = np.concatenate(blocks)
        rows = self.documents.sorted.rows[keyed.positions_of(keys).ravel()]
        return Hits(np.full(count, hits), rows, keyed.signed_scores_of(keys).ravel())

    def _best(self, vectors: Sequence[Vectors], bags: keyed.Bags | None, hits: int) -> npt.NDArray[np.uint64]:
        """Return [Q, hits] keys of `kernels.keep_best`, best first."""
        queries, threads = len(vectors[0]), self.threads or cpu_count()
        best = kernels.Best.of(queries, hits)
        asked, matrix = self._lexical_arguments(bags, queries)
        cursors = matrix.indptr[asked.terms]
        bounds = [queries * at // (4 * threads) for at in range(4 * threads + 1)]
        first = 0
        with ThreadPool(threads) as pool:
            for scores in self._dense_scores(vectors, queries):

                def keep(begin: int, end: int, first: int = first, scores: Any = scores) -> None:
                    kernels.keep_best(
                        (first, scores[begin:end]),
                        self.lexical_weight,
                        self.documents.sorted.numbers,
                        hits,
                        asked._replace(ends=asked.ends[begin : end + 1]),
                        cursors,
                        matrix,
                        best.part(begin, end),
                    )

                list(pool.map(keep, bounds[:-1], bounds[1:]))
                first += scores.shape[1]
        return np.sort(best.largest(hits), axis=1)[:, ::-1]

    def _dense_scores(self, vectors: Sequence[Vectors], queries: int) -> Iterator[npt.NDArray[np.float32]]:
        """Yield weighted sums of dense scores, [Q, B], for one block of documents at a time."""
        import torch

        padded = [torch.zeros(-(-queries // _PADDING) * _PADDING, index.dim) for index in self.dense]
        for weight, target, queries_of_side in zip(self.weights, padded, vectors, strict=True):
            target[:queries] = torch.from_numpy(queries_of_side) * weight
        first = 0
        for blocks in zip(*(index.blocks(BLOCK_DOCUMENTS) for index in self.dense), strict=True):
            scores = padded[0] @ torch.from_numpy(blocks[0]).T
            for target, block in zip(padded[1:], blocks[1:], strict=True):
                scores.addmm_(target, torch.from_numpy(block).T)
            if self.allowed is not None:  # the kernel keeps no NaN
                scores[:, torch.from_numpy(~self.allowed[first : first + scores.shape[1]])] = torch.nan
            first += scores.shape[1]
            yield scores[:queries].numpy()

    def _lexical_arguments(self, bags: keyed.Bags | None, count: int) -> tuple[keyed.Queries, keyed.Matrix]:
        """Return queries and postings for the kernel; empty without a lexical index."""
        if self.lexical is not None and bags is not None:
            return self.lexical.kernel_arguments(bags)
        none, ids = np.zeros(0, np.float32), np.zeros(0, np.int32)
        queries = keyed.Queries(np.zeros(count + 1, np.int64), ids, none)
        return queries, Postings.of(pl.Series([], dtype=pl.String), np.zeros(1, np.int64), ids, ids, ids).matrix(none)
