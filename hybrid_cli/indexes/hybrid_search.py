"""Exact search by a weighted sum of scores: of every document, from stored vectors and postings, without candidates.

The hybrid that SPAR calls too costly to be exact. A block of documents at a time, the dense scores of many queries are
a matrix product; the postings of each query's terms are read on from where the last block stopped, so that each is read
once. Memory holds one block of scores and each query's best so far, however large the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind
from hybrid_cli.errors import InputError
from hybrid_cli.indexes.dense import DenseIndex
from hybrid_cli.indexes.shards import Vectors
from hybrid_cli.lexical import kernels
from hybrid_cli.lexical.index import LexicalIndex, processors

_DOCUMENTS, _QUERIES = 4096, 1024  # scored at once
_PADDING = 32  # as in `DenseIndex`: a query's scores must not depend on how many others there are
_KEYS = 1 << 23  # held at once: bounds the memory where many hits are asked for
_LEAST_KEYS = 1024  # of a query, so that a few hits are not selected time and again


@dataclass(frozen=True)
class JointIndex:
    """Indexes of one corpus that are searched as one.

    Attributes:
        dense: one or more.
        weights: of their scores.
        lexical: gives BM25's score, 0 where no term matches.
        lexical_weight: of that score.
    """

    dense: tuple[DenseIndex, ...]
    weights: tuple[float, ...]
    lexical: LexicalIndex | None = None
    lexical_weight: float = 0.0

    @classmethod
    def open(
        cls, folders: Sequence[Path], weights: Sequence[float], k1: float | None = None, b: float | None = None
    ) -> JointIndex:
        """Open dense indexes, and at most one lexical index among them, with a weight for each in the same order.

        Raises:
            InputError: no dense index, two lexical ones, or indexes of different corpora.
        """
        kinds = [artifacts.read_manifest(folder).kind for folder in folders]
        if Kind.DENSE_INDEX not in kinds or kinds.count(Kind.LEXICAL_INDEX) > 1:
            raise InputError("search --exact: needs one or more dense indexes, and one lexical index at most")
        opened = [
            LexicalIndex.open(folder, k1, b) if kind == Kind.LEXICAL_INDEX else DenseIndex.open(folder)
            for folder, kind in zip(folders, kinds, strict=True)
        ]
        for folder, index in zip(folders, opened, strict=True):
            if not index.docids.equals(opened[0].docids):
                raise InputError(f"{folder}: has other documents than {folders[0]}; make both of one corpus")
        dense = [
            (index, weight) for index, weight in zip(opened, weights, strict=True) if isinstance(index, DenseIndex)
        ]
        lexical = [pair for pair in zip(opened, weights, strict=True) if isinstance(pair[0], LexicalIndex)]
        return cls(*zip(*dense, strict=True), *(lexical[0] if lexical else ()))  # type: ignore[arg-type]

    def search_blocks(
        self, vectors: Sequence[Vectors], queries: pl.DataFrame, hits: int, threads: int | None = None
    ) -> Iterator[pl.DataFrame]:
        """The best `hits` of all documents for each query, as runs of some queries each; equal scores by docid.

        Args:
            vectors: for each dense index, the queries' vectors [n, d].
            queries: qid, text.
            threads: all processors if None.
        """
        hits = min(hits, len(self._order))
        size = max(_PADDING, min(_QUERIES, _KEYS // (2 * hits) // _PADDING * _PADDING))
        for begin in range(0, len(queries), size):
            part = queries.slice(begin, size)
            keys = self._best([found[begin : begin + size] for found in vectors], part, hits, threads or processors())
            yield pl.DataFrame(
                {
                    "qid": part["qid"].gather(np.repeat(np.arange(len(part)), hits)),
                    "docid": self._ranked_docids.gather(kernels.places_of(keys).ravel()),
                    "rank": np.tile(np.arange(1, hits + 1, dtype=np.int32), len(part)),
                    "score": kernels.signed_scores_of(keys).ravel(),
                }
            )

    def _best(
        self, vectors: Sequence[Vectors], queries: pl.DataFrame, hits: int, threads: int
    ) -> npt.NDArray[np.uint64]:
        """[Q, hits] keys of `kernels.keep_best`, best first."""
        counts, floors = np.zeros(len(queries), np.int64), np.full(len(queries), -np.inf, np.float32)
        keys = np.empty((len(queries), max(2 * hits, _LEAST_KEYS)), np.uint64)
        ends, terms, weights, *postings = self._lexical_arguments(queries["text"].to_list())
        cursors = postings[0][terms]
        bounds = [len(queries) * at // (4 * threads) for at in range(4 * threads + 1)]
        first = 0
        with ThreadPoolExecutor(threads) as pool:
            for scores in self._dense_scores(vectors, len(queries)):

                def keep(begin: int, end: int, first: int = first, scores: Any = scores) -> None:
                    mine = slice(begin, end)
                    kernels.keep_best(  # type: ignore[call-arg]
                        first, scores[mine], self.lexical_weight, self._order, hits,
                        ends[begin : end + 1], terms, weights, cursors, *postings,
                        counts[mine], floors[mine], keys[mine],
                    )  # fmt: skip

                list(pool.map(keep, bounds[:-1], bounds[1:]))
                first += scores.shape[1]
        keys[np.arange(keys.shape[1]) >= counts[:, None]] = 0  # what earlier selections left behind
        return np.sort(keys, axis=1)[:, : -hits - 1 : -1]

    def _dense_scores(self, vectors: Sequence[Vectors], queries: int) -> Iterator[npt.NDArray[np.float32]]:
        """[Q, B] weighted sums of the dense scores, a block of documents at a time."""
        import torch

        padded = [torch.zeros(-(-queries // _PADDING) * _PADDING, index.dim) for index in self.dense]
        for weight, target, found in zip(self.weights, padded, vectors, strict=True):
            target[:queries] = torch.from_numpy(found) * weight
        for blocks in zip(*(index.blocks(_DOCUMENTS) for index in self.dense), strict=True):
            scores = padded[0] @ torch.from_numpy(blocks[0]).T
            for target, block in zip(padded[1:], blocks[1:], strict=True):
                scores.addmm_(target, torch.from_numpy(block).T)
            yield scores[:queries].numpy()

    def _lexical_arguments(self, texts: Sequence[str]) -> tuple[Any, ...]:
        """Queries and postings for the kernel; no terms and no postings where there is no lexical index."""
        if self.lexical is not None:
            return self.lexical.kernel_arguments(self.lexical.bags(texts))
        none, ids = np.zeros(0, np.float32), np.zeros(0, np.int32)
        return np.zeros(len(texts) + 1, np.int64), ids, none, np.zeros(1, np.int64), ids, ids, none

    @cached_property
    def _order(self) -> npt.NDArray[np.int32]:
        """[N] the place of each row when docids are sorted as strings."""
        return np.argsort(self.dense[0].docids.arg_sort().to_numpy()).astype(np.int32)

    @cached_property
    def _ranked_docids(self) -> pl.Series:
        return self.dense[0].docids.sort()
