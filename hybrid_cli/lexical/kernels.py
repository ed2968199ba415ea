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

from hybrid_cli.lexical.keys import HALF, SIGN, SMALLEST, Array

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


def _jit(function: Function) -> Function:
    """Compile on the first call and cache the code for later processes."""
    compile_: Any = numba.njit(cache=True, nogil=True, error_model="numpy")
    compiled: Function = compile_(function)
    return compiled


_ONE = np.float32(1)
_BLOCK = 1 << 15  # documents whose sums (256 KiB) stay in the second-level cache
_SCAN = 8  # a sequential read of a sum takes less than 1/8 of the time of a random read


@_jit
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


@_jit
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


@_jit
def kept_counts(indptr: Any, rows: Any, kept: Any) -> Any:
    """Return the number of postings of each term, [V] int64, in documents that are `kept` [N]."""
    out = np.zeros(len(indptr) - 1, np.int64)
    for term in range(len(out)):
        for posting in range(indptr[term], indptr[term + 1]):
            out[term] += kept[rows[posting]]
    return out


@_jit
def _share(weight: Any, tf: Any, scale: Any, row: Any) -> Any:
    """Return a term's share of a document's score. Compiled apart for `scale` None, so the test costs nothing."""
    if scale is None:
        return weight * np.float32(tf)
    return weight - weight / (_ONE + np.float32(tf) * scale[row])


@_jit
def values(indptr: Any, rows: Any, tfs: Any, idf: Any, scale: Any) -> Any:
    """Return the impact of each posting, [nnz] float32."""
    out = np.empty(len(rows), np.float32)
    for term in range(len(idf)):
        for at in range(indptr[term], indptr[term + 1]):
            out[at] = _share(idf[term], tfs[at], scale, rows[at])
    return out


@_jit
def round_impacts(matrix: Any, idf: Any, units: Any, weights: Any) -> None:
    """Fill in the unit of each term, 1/255 of its largest impact, and all impacts as multiples of it."""
    for term in range(len(idf)):
        some, largest = range(matrix.indptr[term], matrix.indptr[term + 1]), np.float32(0)
        for at in some:
            largest = max(largest, _share(idf[term], matrix.tfs[at], matrix.scale, matrix.rows[at]))
        units[term] = largest / np.float32(255)
        for at in some:
            share = _share(idf[term], matrix.tfs[at], matrix.scale, matrix.rows[at])
            weights[at] = max(1, round(share / units[term]))


@_jit
def count(places: Any, rows: Any, counts: Any) -> None:
    """Add the number of postings of each document to `counts` at the document's place; places below 0 are skipped."""
    for at in range(len(rows)):
        place = places[rows[at]]
        if place >= 0:
            counts[place] += 1


@_jit
def transpose(places: Any, matrix: Any, idf: Any, cursor: Any, terms: Any, impacts: Any) -> None:
    """Write term and impact of each posting at the `cursor` of its document's place, and advance it."""
    indptr, rows, tfs, scale = matrix.indptr, matrix.rows, matrix.tfs, matrix.scale
    for term in range(len(idf)):
        for at in range(indptr[term], indptr[term + 1]):
            place = places[rows[at]]
            if place >= 0:
                terms[cursor[place]] = term
                impacts[cursor[place]] = _share(idf[term], tfs[at], scale, rows[at])
                cursor[place] += 1


@_jit
def _keep_largest(keys: Any, found: int, hits: int) -> None:
    """Move the `hits` largest of the first `found` keys to the front: the smallest of them first, others in any order.

    Requires found > hits. (`_select_largest` is up to 3 times as fast, but does not change the duration of a search.)
    """
    keys[:hits] = np.partition(keys[:found], found - hits)[found - hits :]


@_jit
def _add(query: int, block: Any, queries: Any, matrix: Any, cursors: Any, sums: Any) -> int:
    """Add each term's share of the score to the sums of the documents of a block; return the number of postings.

    Cursors [terms of the query, 2] hold the first posting of each term in the block and the first one after it.
    """
    terms, weights, postings = queries.terms, queries.weights, 0
    indptr, rows, tfs, scale = matrix.indptr, matrix.rows, matrix.tfs, matrix.scale
    first, end = block
    for mine in range(len(cursors)):
        at = queries.ends[query] + mine
        weight, last, begin = weights[at], indptr[terms[at] + 1], cursors[mine, 1]
        posting = begin
        while posting < last and rows[posting] < end:
            row = rows[posting]
            sums[row - first] += _share(weight, tfs[posting], scale, row)
            posting += 1
        cursors[mine, 0], cursors[mine, 1] = begin, posting
        postings += posting - begin
    return postings


@_jit
def _collect(block: Any, rows: Any, order: Any, sums: Any, cursors: Any, keys: Any, kept: Any) -> Any:
    """Turn the sums of a block into keys, and reset the sums to 0.

    Documents below the worst of the best hits so far are skipped; `keys` has room for twice as many keys as are kept.

    Args:
        block: first document, first document after the block, and whether all sums are read, or only those of postings.
        rows: documents of the postings.
        order: [N] place of each document in the tie order.
        sums: [B] scores.
        cursors: [terms, 2] postings of the block; see `_add`.
        keys: keys so far.
        kept: number of keys so far, score that documents must reach, and number of hits to keep.

    Returns:
        The number of keys, and the score that later documents must reach.
    """
    score = np.empty(1, np.float32)
    bits = score.view(np.uint32)
    first, end, scan = block
    found, floor, hits = kept
    for term in range(1 if scan else len(cursors)):
        begin, stop = (0, end - first) if scan else (cursors[term, 0], cursors[term, 1])
        for at in range(begin, stop):
            place = at if scan else rows[at] - first
            if np.float32(sums[place]) >= floor:
                score[0] = np.float32(sums[place])
                keys[found] = (np.uint64(bits[0]) << np.uint64(32)) | np.uint64(0xFFFFFFFF - order[first + place])
                found += 1
                if found == len(keys):
                    found, floor = hits, _trim(keys, hits, score, bits)
            sums[place] = 0
    return found, floor


@_jit
def _rank(query: int, hits: int, order: Any, queries: Any, matrix: Any, barred: Any, room: Any) -> int:
    """Put the keys of a query's best documents first, in any order; return their number.

    Only blocks with a posting are visited, so the time depends on the postings and not on the size of the corpus.

    Args:
        query: number of the query.
        hits, order, queries, matrix: see `search`.
        barred: rows of excluded documents.
        room: sums [B] of zeros, cursors [terms, 2] and keys [2 * hits].
    """  # fmt: skip
    sums, cursors, keys = room
    begin, size, documents = queries.ends[query], len(sums), len(order)
    cursors = cursors[: queries.ends[query + 1] - begin]
    for mine in range(len(cursors)):
        cursors[mine, 1] = matrix.indptr[queries.terms[begin + mine]]
    found, floor = 0, SMALLEST
    while True:
        row = documents
        for mine in range(len(cursors)):
            if cursors[mine, 1] < matrix.indptr[queries.terms[begin + mine] + 1]:
                row = min(row, matrix.rows[cursors[mine, 1]])
        if row == documents:
            break
        first = row // size * size
        end = min(first + size, documents)
        postings = _add(query, (first, end), queries, matrix, cursors, sums)
        for excluded in barred:
            if first <= excluded < end:
                sums[excluded - first] = 0
        block = (first, end, postings * _SCAN > end - first)
        found, floor = _collect(block, matrix.rows, order, sums, cursors, keys, (found, floor, hits))
    if found > hits:
        _keep_largest(keys, found, hits)
        found = hits
    return found


@_jit
def _trim(keys: Any, hits: int, score: Any, bits: Any) -> Any:
    """Move the best `hits` keys to the front; return the score that later documents must reach."""
    _keep_largest(keys, len(keys), hits)
    bits[0] = np.uint32(keys[0] >> np.uint64(32))
    return score[0]


@_jit
def search(
    hits: int, order: Any, queries: Any, matrix: Any, barred_ends: Any, barred: Any, counts: Any, best: Any
) -> None:
    """Rank documents for queries.

    Args:
        hits: documents kept per query.
        order: [N] place of each document in the tie order.
        queries: `keys.Queries`.
        matrix: `keys.Matrix`.
        barred_ends, barred: rows of the documents excluded from the hits of a query: `barred` from barred_ends[i] to
            barred_ends[i+1] for query i.
        counts: [Q] receives the number of hits.
        best: [Q, hits] receives keys (see `lexical.keys`), best first.
    """
    longest = 0
    for query in range(len(counts)):
        longest = max(longest, queries.ends[query + 1] - queries.ends[query])
    sums = np.zeros(min(_BLOCK, max(1, len(order))), np.float64)
    cursors, keys = np.empty((longest, 2), np.int64), np.empty(2 * hits, np.uint64)
    for query in range(len(counts)):
        excluded = barred[barred_ends[query] : barred_ends[query + 1]]
        found = _rank(query, hits, order, queries, matrix, excluded, (sums, cursors, keys))
        ordered = np.sort(keys[:found])
        for place in range(found):
            best[query, place] = ordered[found - 1 - place]
        counts[query] = found


@_jit
def score_pairs(numbers: Any, documents: Any, queries: Any, matrix: Any) -> Any:
    """Return the score of each pair of a query's number and a document's row, [P] float32; 0 without a match."""
    ends, terms, weights = queries.ends, queries.terms, queries.weights
    indptr, rows, tfs, scale = matrix.indptr, matrix.rows, matrix.tfs, matrix.scale
    out = np.empty(len(numbers), np.float32)
    for pair in range(len(numbers)):
        row, total = documents[pair], 0.0
        for at in range(ends[numbers[pair]], ends[numbers[pair] + 1]):
            low, high = indptr[terms[at]], indptr[terms[at] + 1]
            while low < high:
                middle = (low + high) >> 1
                if rows[middle] < row:
                    low = middle + 1
                else:
                    high = middle
            if low < indptr[terms[at] + 1] and rows[low] == row:
                total += _share(weights[at], tfs[low], scale, row)
        out[pair] = np.float32(total)
    return out


@_jit
def _ordered(bits: Any) -> Any:
    """Map the bits of a float32 to an integer with the order of signed floats."""
    return ~bits if bits >> np.uint32(31) else bits | SIGN


@_jit
def _unordered(bits: Any) -> Any:
    """Invert `_ordered`."""
    return bits ^ SIGN if bits >> np.uint32(31) else ~bits


@_jit
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


@_jit
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
                sums[row - first] += _share(idf, tfs[posting], scale, row)
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
