"""Loops over postings, compiled by numba and cached next to the source.

Own code because bm25s has another tie order and stores one weight per posting, and a product of scipy matrices does not
select the best documents. These loops compute the weights during the search, in Lucene's arithmetic, so that k1 and b
can change without a rebuild.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np

from hybrid_cli.lexical.keys import HALF, SIGN, Array

Function = TypeVar("Function", bound=Callable[..., Any])


class Best(NamedTuple):
    """The best hits of each query so far.

    Attributes:
        counts: [Q] number of keys.
        floors: [Q] score that later documents must reach.
        keys: [Q, more than the hits kept] keys, in any order.
    """

    counts: Array
    floors: Array
    keys: Array


def jit(function: Function) -> Function:
    """Compile on the first call and cache the code for later processes."""
    compile_: Any = numba.njit(cache=True, nogil=True, error_model="numpy")
    compiled: Function = compile_(function)
    return compiled


_ONE = np.float32(1)


@jit
def scatter(first: int, distinct: Any, words: Any, counts: Any, cursor: Any, rows: Any, tfs: Any) -> None:
    """Write the postings of documents `first`, `first` + 1, ... at each term's `cursor`, and advance it."""
    at = 0
    for document in range(len(distinct)):
        for _ in range(distinct[document]):
            place = cursor[words[at]]
            rows[place] = first + document
            tfs[place] = counts[at]
            cursor[words[at]] = place + 1
            at += 1


@jit
def copy_postings(source: Any, renumbered: Any, places: Any, cursor: Any, rows: Any, tfs: Any) -> None:
    """Write postings at the `cursor` of each term, and advance it.

    Args:
        source: arrays `indptr`, `rows` and `tfs` of the postings to copy.
        renumbered: [N] new row of each document; -1 leaves it out.
        places: [V] new id of each term; -1 for a term whose documents are all left out.
        cursor: [new V] first free posting of each new term.
        rows, tfs: receive the postings.
    """
    indptr, old_rows, old_tfs = source
    for term in range(len(places)):
        at = cursor[places[term]]
        for posting in range(indptr[term], indptr[term + 1]):
            row = renumbered[old_rows[posting]]
            if row >= 0:
                rows[at] = row
                tfs[at] = old_tfs[posting]
                at += 1
        if places[term] >= 0:
            cursor[places[term]] = at


@jit
def kept_counts(indptr: Any, rows: Any, kept: Any) -> Any:
    """Return the number of postings of each term, [V] int64, in documents that are `kept` [N]."""
    out = np.zeros(len(indptr) - 1, np.int64)
    for term in range(len(out)):
        for posting in range(indptr[term], indptr[term + 1]):
            out[term] += kept[rows[posting]]
    return out


@jit
def share(weight: Any, tf: Any, scale: Any, row: Any) -> Any:
    """Return a term's share of a document's score. Compiled apart for `scale` None, so the test costs nothing."""
    if scale is None:
        return weight * np.float32(tf)
    return weight - weight / (_ONE + np.float32(tf) * scale[row])


@jit
def values(indptr: Any, rows: Any, tfs: Any, idf: Any, scale: Any) -> Any:
    """Return the impact of each posting, [nnz] float32."""
    out = np.empty(len(rows), np.float32)
    for term in range(len(idf)):
        for at in range(indptr[term], indptr[term + 1]):
            out[at] = share(idf[term], tfs[at], scale, rows[at])
    return out


@jit
def round_impacts(matrix: Any, idf: Any, units: Any, weights: Any) -> None:
    """Fill in the unit of each term, 1/255 of its largest impact, and all impacts as multiples of it."""
    for term in range(len(idf)):
        some, largest = range(matrix.indptr[term], matrix.indptr[term + 1]), np.float32(0)
        for at in some:
            largest = max(largest, share(idf[term], matrix.tfs[at], matrix.scale, matrix.rows[at]))
        units[term] = largest / np.float32(255)
        for at in some:
            impact = share(idf[term], matrix.tfs[at], matrix.scale, matrix.rows[at])
            weights[at] = max(1, round(impact / units[term]))


@jit
def count(places: Any, rows: Any, counts: Any) -> None:
    """Add the number of postings of each document to `counts` at the document's place; places below 0 are skipped."""
    for at in range(len(rows)):
        place = places[rows[at]]
        if place >= 0:
            counts[place] += 1


@jit
def transpose(places: Any, matrix: Any, idf: Any, cursor: Any, terms: Any, impacts: Any) -> None:
    """Write term and impact of each posting at the `cursor` of its document's place, and advance it."""
    indptr, rows, tfs, scale = matrix.indptr, matrix.rows, matrix.tfs, matrix.scale
    for term in range(len(idf)):
        for at in range(indptr[term], indptr[term + 1]):
            place = places[rows[at]]
            if place >= 0:
                terms[cursor[place]] = term
                impacts[cursor[place]] = share(idf[term], tfs[at], scale, rows[at])
                cursor[place] += 1


@jit
def keep_largest(keys: Any, found: int, hits: int) -> None:
    """Move the `hits` largest of the first `found` keys to the front: the smallest of them first, others in any order.

    Requires found > hits. (`_select_largest` is up to 3 times as fast, but does not change the duration of a search.)
    """
    keys[:hits] = np.partition(keys[:found], found - hits)[found - hits :]


@jit
def first_from(rows: Any, low: int, high: int, row: Any) -> int:
    """Return the first posting from `low` with a document not before `row`, or `high`; near ones are found first."""
    step, end = 1, low
    while end < high and rows[end] < row:
        low, end, step = end + 1, end + step, 2 * step
    high = min(high, end)
    while low < high:
        middle = (low + high) >> 1
        if rows[middle] < row:
            low = middle + 1
        else:
            high = middle
    return low


@jit
def score_pairs(numbers: Any, documents: Any, queries: Any, matrix: Any) -> Any:
    """Return the score of each pair of a query's number and a document's row, [P] float32; 0 without a match."""
    ends, terms, weights = queries.ends, queries.terms, queries.weights
    indptr, rows, tfs, scale = matrix.indptr, matrix.rows, matrix.tfs, matrix.scale
    out = np.empty(len(numbers), np.float32)
    for pair in range(len(numbers)):
        row, total = documents[pair], 0.0
        for at in range(ends[numbers[pair]], ends[numbers[pair] + 1]):
            last = indptr[terms[at] + 1]
            posting = first_from(rows, indptr[terms[at]], last, row)
            if posting < last and rows[posting] == row:
                total += share(weights[at], tfs[posting], scale, row)
        out[pair] = np.float32(total)
    return out


@jit
def score_every(documents: Any, queries: Any, matrix: Any, scores: Any) -> None:
    """Add the score of every query and every document to `scores` [Q, n]; rows of `documents` ascend."""
    ends, terms, weights = queries.ends, queries.terms, queries.weights
    indptr, rows, tfs, scale = matrix.indptr, matrix.rows, matrix.tfs, matrix.scale
    for query in range(len(scores)):
        for at in range(ends[query], ends[query + 1]):
            posting, last = indptr[terms[at]], indptr[terms[at] + 1]
            for place in range(len(documents)):
                posting = first_from(rows, posting, last, documents[place])
                if posting == last:
                    break
                if rows[posting] == documents[place]:
                    scores[query, place] += share(weights[at], tfs[posting], scale, documents[place])


@jit
def _ordered(bits: Any) -> Any:
    """Map the bits of a float32 to an integer with the order of signed floats."""
    return ~bits if bits >> np.uint32(31) else bits | SIGN


@jit
def _unordered(bits: Any) -> Any:
    """Invert `_ordered`."""
    return bits ^ SIGN if bits >> np.uint32(31) else ~bits


@jit
def _select_largest(keys: Any, hits: int) -> None:
    """Move the `hits` largest keys to the front, in any order (Hoare's selection). Requires len(keys) > hits.

    np.partition, which `search` uses, costs a block 1.1 to 2 times the time here (blocks of 16,384 to 1,024 documents,
    1.35 times at 4,096): it sorts a copy of the keys of every query in every block.
    """
    low, high = 0, len(keys) - 1
    while low < high:
        middle = (low + high) // 2
        a, b, c = keys[low], keys[middle], keys[high]
        pivot = max(min(a, b), min(max(a, b), c))
        left, right = low, high
        while left <= right:
            while keys[left] > pivot:
                left += 1
            while keys[right] < pivot:
                right -= 1
            if left <= right:
                keys[left], keys[right] = keys[right], keys[left]
                left += 1
                right -= 1
        if hits - 1 <= right:
            high = right
        elif hits - 1 >= left:
            low = left
        else:
            return


@jit
def keep_best(
    dense: Any, weight: float, order: Any, hits: int, queries: Any, cursors: Any, matrix: Any, best: Any
) -> None:
    """Add BM25 to the dense scores of a block of documents; keep each query's best hits of this and earlier blocks.

    Args:
        dense: row of the block's first document, and [Q, B] float32 scores of its documents.
        weight: weight of BM25.
        order: [N] place of each document in the tie order.
        hits: documents kept per query.
        queries: `keys.Queries`.
        cursors: [T] first unread posting of each term of each query; advanced.
        matrix: `keys.Matrix`.
        best: `Best`, with keys for `keys.signed_scores_of`; updated.
    """
    first, scores = dense
    ends, terms, weights = queries.ends, queries.terms, queries.weights
    indptr, rows, tfs, scale = matrix.indptr, matrix.rows, matrix.tfs, matrix.scale
    counts, floors, keys = best.counts, best.floors, best.keys
    size = scores.shape[1]
    sums = np.zeros(size, np.float64)
    one_score = np.empty(1, np.float32)
    one_key = one_score.view(np.uint32)
    for query in range(len(scores)):
        for at in range(ends[query], ends[query + 1]):
            posting, last, idf = cursors[at], indptr[terms[at] + 1], weights[at]
            while posting < last and rows[posting] < first + size:
                row = rows[posting]
                sums[row - first] += share(idf, tfs[posting], scale, row)
                posting += 1
            cursors[at] = posting
        found, floor, mine = counts[query], floors[query], keys[query]
        for place in range(size):
            score = np.float32(scores[query, place] + weight * np.float64(np.float32(sums[place])))
            sums[place] = 0
            if score >= floor:
                one_score[0] = score if score != 0 else np.float32(0)  # -0 and 0 are equal
                mine[found] = (np.uint64(_ordered(one_key[0])) << HALF) | np.uint64(0xFFFFFFFF - order[first + place])
                found += 1
                if found == len(mine):
                    _select_largest(mine, hits)
                    found = hits
                    one_key[0] = _unordered(np.uint32(mine[:hits].min() >> HALF))
                    floor = one_score[0]
        counts[query], floors[query] = found, floor
