"""Keys of hits, and the search for a few queries in numpy: importing numba would take longer than their search.

A key is the score's bits, then the complement of the document's position in the tie order. The bits of positive floats
order as the floats do, so the largest key is the best hit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
HALF = np.uint64(32)
SIGN = np.uint32(1 << 31)
LOWEST = np.uint64(0xFFFFFFFF)
TENTH = 10
PART_BITS = 16  # a part of the corpus has 65,536 documents
FEW_POSTINGS = 1 << 22  # of an index, sorted in a second and searched in milliseconds per query by numpy
_SPARSE = 16  # a query with so many documents per posting has its postings sorted; others have a sum per document
_FEWEST = 8  # queries of a piece
SMALLEST = np.finfo(np.float32).tiny  # positive and normal: subnormal numbers are slow


@dataclass(frozen=True)
class Bags:
    """Queries as bags of terms: `terms[ends[i]:ends[i+1]]`, with their boosts, for query i."""

    ends: npt.NDArray[np.int64]
    terms: npt.NDArray[np.int32]
    boosts: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ends) - 1

    def part(self, begin: int, end: int) -> Bags:
        """Return queries `begin` to `end` (exclusive)."""
        first, last = self.ends[begin], self.ends[end]
        return Bags(self.ends[begin : end + 1] - first, self.terms[first:last], self.boosts[first:last])

    def pieces(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield begin and end of at most `number` pieces of equal size, each of a few queries or more."""
        number = max(1, min(number, len(self) // _FEWEST))
        return pairwise([len(self) * at // number for at in range(number + 1)])


class Queries(NamedTuple):
    """Weighted terms of queries.

    Attributes:
        ends: [Q+1] query i has terms [ends[i]:ends[i+1]].
        terms: [T] term ids.
        weights: [T] boost * idf.
    """

    ends: Array
    terms: Array
    weights: Array


class Matrix(NamedTuple):
    """Postings by term; a document's row takes two bytes.

    The corpus is divided into parts of 65,536 documents. A posting has the row of its document within the part. Where a
    part begins among the postings of a term is stored in one of two ways, which take the least memory for few and for
    many postings.

    Attributes:
        indptr: [V+1] start of each term's postings.
        lows: [nnz] rows within their part, uint16, ascending within a term and part.
        tfs: [nnz] term frequencies, or quantized weights.
        scale: [N] of `Impacts`, or None.
        parts: number of parts.
        slots: [V] first of the term's `starts`, or -1 minus the first of its `highs`; empty if there is one part.
        starts: parts + 1 values for each frequent term: first posting in each part, counted from its first one.
        highs: the part of each posting of the other terms.
    """

    indptr: Array
    lows: Array
    tfs: Array
    scale: Array | None
    parts: int
    slots: Array
    starts: Array
    highs: Array


class Bounds(NamedTuple):
    """Upper bounds of the shares of terms, and where their postings are, by range of documents.

    A bound is a fraction of the weight of a term (or of a unit of a learned weight), so it holds for every query. Terms
    with few postings have no ranges.

    Attributes:
        most: an upper bound of all fractions, for terms without bounds.
        ready: [V] whether the bounds of a term are filled in.
        largest: [V] largest fraction of each term.
        tenth: [V] tenth largest fraction of each term, 0 for terms of fewer documents.
        shifts: [V] a range of a term has 2**shift documents; -1 for a term without ranges.
        ends: [V+1] ranges of each term: peaks[ends[i]:ends[i+1]].
        peaks: [R] largest fraction in each range, in 255ths of the largest of the term.
        start_ends: [V+1] starts of each term.
        starts: [S] first posting of every fourth range, counted from the first one of the term.
    """

    most: float
    ready: Array
    largest: Array
    tenth: Array
    shifts: Array
    ends: Array
    peaks: Array
    start_ends: Array
    starts: Array


def scores_of(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    """Return the scores in keys of `search`."""
    return (keys >> HALF).astype(np.uint32).view(np.float32)


def signed_scores_of(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    """Return the scores, of either sign, in keys of `kernels.keep_best`."""
    bits = (keys >> HALF).astype(np.uint32)
    return np.where(bits & SIGN, bits ^ SIGN, ~bits).view(np.float32)


def positions_of(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the positions in the tie order in keys of `search` or `kernels.keep_best`."""
    return (LOWEST - (keys & LOWEST)).astype(np.int64)


def rows_of(matrix: Matrix, term: int) -> npt.NDArray[np.int32]:
    """Return the documents of a term's postings."""
    some = slice(matrix.indptr[term], matrix.indptr[term + 1])
    lows = matrix.lows[some].astype(np.int32)
    if not len(matrix.slots):
        return lows
    slot = int(matrix.slots[term])
    if slot < 0:
        return lows | matrix.highs[-1 - slot :][: len(lows)].astype(np.int32) << PART_BITS
    counts = np.diff(matrix.starts[slot : slot + matrix.parts + 1])
    return lows | np.repeat(np.arange(matrix.parts, dtype=np.int32) << PART_BITS, counts)


def _scored(queries: Queries, query: int, matrix: Matrix, documents: int) -> tuple[Array, Array]:
    """Return rows, ascending, with those of all documents that have a term of a query, and their scores (float32)."""
    rows_of_terms, shares = [np.zeros(0, np.int32)], [np.zeros(0, np.float32)]
    for at in range(queries.ends[query], queries.ends[query + 1]):
        weight, term = queries.weights[at], queries.terms[at]
        postings = slice(matrix.indptr[term], matrix.indptr[term + 1])
        rows, tfs = rows_of(matrix, term), matrix.tfs[postings].astype(np.float32)
        rows_of_terms.append(rows)
        one = np.float32(1)
        shares.append(weight * tfs if matrix.scale is None else weight - weight / (one + tfs * matrix.scale[rows]))
    of_terms = np.concatenate(rows_of_terms)
    few = _SPARSE * len(of_terms) < documents
    scored, places = np.unique(of_terms, return_inverse=True) if few else (np.arange(documents), of_terms)
    sums = np.bincount(places, np.concatenate(shares), len(scored))  # added in the order of the terms, in float64
    return scored, sums.astype(np.float32)


def score_pairs(numbers: Array, documents: Array, queries: Queries, matrix: Matrix) -> Array:
    """Score pairs as `kernels.score_pairs` does, with the same arithmetic and so the same bits; see there."""
    out, by_query = np.zeros(len(numbers), np.float32), np.argsort(numbers, kind="stable")
    asked, begins = np.unique(numbers[by_query], return_index=True)
    for query, mine in zip(asked, np.split(by_query, begins[1:]), strict=False):
        rows, scores = _scored(queries, query, matrix, matrix.parts << PART_BITS)
        at = np.searchsorted(rows, documents[mine])
        within = at < len(rows)
        mine, at = mine[within], at[within]
        same = rows[at] == documents[mine]
        out[mine[same]] = scores[at[same]]
    return out


def search(
    hits: int, order: Array, queries: Queries, matrix: Matrix, allowed: Array | None, counts: Array, best: Array
) -> None:
    """Rank documents as `kernels.search` does, with the same arithmetic and so the same bits; see there."""
    for query in range(len(counts)):
        rows, scores = _scored(queries, query, matrix, len(order))
        kept = np.flatnonzero(scores >= SMALLEST if allowed is None else (scores >= SMALLEST) & allowed[rows])
        if len(kept) > hits:
            kept = kept[scores[kept] >= np.partition(scores[kept], len(kept) - hits)[len(kept) - hits]]
        bits = scores[kept].view(np.uint32).astype(np.uint64)
        keys = np.sort((bits << HALF) | (LOWEST - order[rows[kept]].astype(np.uint64)))[::-1][:hits]
        counts[query] = len(keys)
        best[query, : len(keys)] = keys
