"""Loops over postings, compiled by numba and cached next to the source.

Numba caches a function by the content of its file alone, so a kernel calls kernels of this file only.

Own code because bm25s has another tie order and stores one weight per posting, and a product of scipy matrices does not
select the best documents. These loops compute the weights during the search, in Lucene's arithmetic, so that k1 and b
can change without a rebuild.

In `search`, the terms of a query come by falling weight. Shares are added in this order, so that the score of a pair
has the same bits in every search.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np

from hybrid_cli.lexical.keys import HALF, SIGN, SMALLEST, TENTH, Array

Function = TypeVar("Function", bound=Callable[..., Any])

BLOCK = 1 << 15  # documents whose sums (256 KiB) stay in the second-level cache
_LOOKUP = 50  # looking up a document among the postings of a block takes as long as adding 50 postings
_SAMPLED, _PARTS = 32, 16  # one of 32 documents gives a first estimate of the worst score, in 16 parts of the corpus
_BELOW = 1 - 1e-6  # a score is a float32: it may be larger than its sum
_FEW_HITS = 100  # for which a sample of documents takes longer than it saves
_MARGIN = 1e-6  # of a weight and its largest share, for their rounding
_WORTH = 3  # completing documents pays where all terms have 3 times the postings of those that a hit needs
_SCANNED = 16  # postings that are read one after the other
_SCAN = 4  # a sequential read of a sum takes less than a quarter of the time of a random read


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
            position = cursor[words[at]]
            rows[position] = first + document
            tfs[position] = counts[at]
            cursor[words[at]] = position + 1
            at += 1


@jit
def copy_postings(source: Any, renumbered: Any, new_ids: Any, cursor: Any, rows: Any, tfs: Any) -> None:
    """Write postings at the `cursor` of each term, and advance it.

    Args:
        source: arrays `indptr`, `rows` and `tfs` of the postings to copy.
        renumbered: [N] new row of each document; -1 leaves it out.
        new_ids: [V] new id of each term; -1 for a term whose documents are all left out.
        cursor: [new V] first free posting of each new term.
        rows, tfs: receive the postings.
    """
    indptr, old_rows, old_tfs = source
    for term in range(len(new_ids)):
        at = cursor[new_ids[term]]
        for posting in range(indptr[term], indptr[term + 1]):
            row = renumbered[old_rows[posting]]
            if row >= 0:
                rows[at] = row
                tfs[at] = old_tfs[posting]
                at += 1
        if new_ids[term] >= 0:
            cursor[new_ids[term]] = at


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
def count(positions: Any, rows: Any, counts: Any) -> None:
    """Add the number of postings of each document to `counts` at the document's position; -1 skips a document."""
    for at in range(len(rows)):
        position = positions[rows[at]]
        if position >= 0:
            counts[position] += 1


@jit
def transpose(positions: Any, matrix: Any, idf: Any, cursor: Any, terms: Any, impacts: Any) -> None:
    """Write term and impact of each posting at the `cursor` of its document's position, and advance it."""
    indptr, rows, tfs, scale = matrix.indptr, matrix.rows, matrix.tfs, matrix.scale
    for term in range(len(idf)):
        for at in range(indptr[term], indptr[term + 1]):
            position = positions[rows[at]]
            if position >= 0:
                terms[cursor[position]] = term
                impacts[cursor[position]] = share(idf[term], tfs[at], scale, rows[at])
                cursor[position] += 1


@jit
def keep_largest(keys: Any, number: int, hits: int) -> None:
    """Move the `hits` largest of the first `number` keys to the front: the smallest of them first, others in any order.

    Requires number > hits. (`_select_largest` is up to 3 times as fast, but does not change the duration of a search.)
    """
    keys[:hits] = np.partition(keys[:number], number - hits)[number - hits :]


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
            for row in range(len(documents)):
                posting = first_from(rows, posting, last, documents[row])
                if posting == last:
                    break
                if rows[posting] == documents[row]:
                    scores[query, row] += share(weights[at], tfs[posting], scale, documents[row])


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
        order: [N] position of each document in the tie order.
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
        count_kept, floor, mine = counts[query], floors[query], keys[query]
        for column in range(size):
            score = np.float32(scores[query, column] + weight * np.float64(np.float32(sums[column])))
            sums[column] = 0
            if score >= floor:
                one_score[0] = score if score != 0 else np.float32(0)  # -0 and 0 are equal
                mine[count_kept] = (np.uint64(_ordered(one_key[0])) << HALF) | np.uint64(
                    0xFFFFFFFF - order[first + column]
                )
                count_kept += 1
                if count_kept == len(mine):
                    _select_largest(mine, hits)
                    count_kept = hits
                    one_key[0] = _unordered(np.uint32(mine[:hits].min() >> HALF))
                    floor = one_score[0]
        counts[query], floors[query] = count_kept, floor


@jit
def _fraction(tf: Any, scale: Any, row: Any) -> Any:
    """Return a share as a fraction of the term's weight; see `keys.Bounds`."""
    if scale is None:
        return np.float32(tf)
    return _ONE - _ONE / (_ONE + np.float32(tf) * scale[row])


@jit
def fill_bounds(some: Any, matrix: Any, bounds: Any) -> None:
    """Fill in the bounds of some terms."""
    rows, tfs, scale = matrix.rows, matrix.tfs, matrix.scale
    best = np.empty(TENTH, np.float32)
    for term in some:
        begin, stop, shift = matrix.indptr[term], matrix.indptr[term + 1], bounds.shifts[term]
        best[:] = 0
        for posting in range(begin, stop):
            fraction = _fraction(tfs[posting], scale, rows[posting])
            if fraction > best[TENTH - 1]:
                at = TENTH - 1
                while at > 0 and best[at - 1] < fraction:
                    best[at] = best[at - 1]
                    at -= 1
                best[at] = fraction
        if shift >= 0:
            peaks = bounds.peaks[bounds.ends[term] : bounds.ends[term + 1]]
            starts = bounds.starts[bounds.start_ends[term] : bounds.start_ends[term + 1]]
            unit, last = 254.999999 / max(np.float64(best[0]), 1e-30), 0
            for posting in range(begin, stop):
                row = rows[posting]
                peak = np.uint8(np.ceil(_fraction(tfs[posting], scale, row) * unit))
                peaks[row >> shift] = max(peaks[row >> shift], peak)
                while last < row >> (shift + 2):
                    last += 1
                    starts[last] = posting - begin
            starts[last + 1 :] = stop - begin
        bounds.largest[term], bounds.tenth[term] = best[0], best[TENTH - 1]
        bounds.ready[term] = True


@jit
def _find(rows: Any, starts: Any, begin: int, stop: int, shift: int, first: int, row: int) -> int:
    """Return the posting of a document among those of a term, or -1.

    Args:
        rows: documents of all postings.
        starts, shift: see `keys.Bounds`.
        begin, stop: postings of the term.
        first: first of the term's starts.
        row: the document.
    """  # fmt: skip
    if shift >= 0:
        mine = first + (row >> (shift + 2))
        begin, stop = begin + starts[mine], begin + starts[mine + 1]
    while stop - begin > _SCANNED:
        middle = (begin + stop) >> 1
        if rows[middle] < row:
            begin = middle + 1
        else:
            stop = middle + 1
    for posting in range(begin, stop):
        if rows[posting] >= row:
            return posting if rows[posting] == row else -1
    return -1


@jit
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
        stop = first_from(rows, begin, last, end)
        for posting in range(begin, stop):
            row = np.uint32(rows[posting])
            sums[row - np.uint32(first)] += share(weight, tfs[posting], scale, row)
        cursors[mine, 0], cursors[mine, 1] = begin, stop
        postings += stop - begin
    return postings


@jit
def _trim(keys: Any, hits: int, score: Any, bits: Any) -> Any:
    """Move the best `hits` keys to the front; return the score that later documents must reach."""
    keep_largest(keys, len(keys), hits)
    bits[0] = np.uint32(keys[0] >> np.uint64(32))
    return score[0]


@jit
def _may(allowed: Any, row: Any) -> int:
    """Return 1 if a document may be a hit, else 0. Compiled apart for `allowed` None, so the test costs nothing."""
    if allowed is None:
        return 1
    return int(allowed[row])


@jit
def _collect(block: Any, rows: Any, order: Any, allowed: Any, sums: Any, cursors: Any, keys: Any, kept: Any) -> Any:
    """Turn the sums of a block into keys, and reset the sums to 0.

    Documents below the worst of the best hits so far are skipped; `keys` has room for twice as many keys as are kept.

    Args:
        block: first document, first document after the block, and whether all sums are read, or only those of postings.
        rows: documents of the postings.
        order: [N] position of each document in the tie order.
        allowed: see `search`.
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
    count_kept, floor, hits = kept
    for term in range(1 if scan else len(cursors)):
        begin, stop = (0, end - first) if scan else (cursors[term, 0], cursors[term, 1])
        for at in range(begin, stop):
            row = np.uint32(at if scan else rows[at] - first)
            if np.float32(sums[row]) >= floor:
                score[0] = np.float32(sums[row])
                keys[count_kept] = (np.uint64(bits[0]) << np.uint64(32)) | np.uint64(0xFFFFFFFF - order[first + row])
                count_kept += _may(allowed, first + row)  # no branch, which a random mask would mispredict
                if count_kept == len(keys):
                    count_kept, floor = hits, _trim(keys, hits, score, bits)
            sums[row] = 0
    return count_kept, floor


@jit
def _candidates(block: Any, rows: Any, allowed: Any, sums: Any, cursors: Any, limit: Any, floor: Any, out: Any) -> int:
    """Write rows and sums of the documents that `limit` can lift to `floor`; reset the sums; return their number."""
    candidate_rows, scores = out
    first, end, scan = block
    least, count_kept = floor - limit, 0
    for term in range(1 if scan else len(cursors)):
        begin, stop = (0, end - first) if scan else (cursors[term, 0], cursors[term, 1])
        for at in range(begin, stop):
            row = np.uint32(at if scan else rows[at] - first)
            if sums[row] >= least and sums[row] > 0:
                candidate_rows[count_kept], scores[count_kept] = row, sums[row]
                count_kept += _may(allowed, first + row)
            sums[row] = 0
    return count_kept


@jit
def _within(first: int, needed: int, floor: Any, bounds: Any, room: Any, some: int) -> int:
    """Keep the candidates that the terms from `needed` on can lift to `floor` in their ranges; return their number."""
    cursors, units, candidate_rows, scores = room
    peaks, kept = bounds.peaks, 0
    for number in range(some):
        candidate, bound = candidate_rows[number], scores[number]
        for mine in range(needed, len(cursors)):
            shift = cursors[mine, 2]
            bound += units[mine] * (peaks[cursors[mine, 3] + ((first + candidate) >> shift)] if shift >= 0 else 255)
        candidate_rows[kept], scores[kept] = candidate, scores[number]
        kept += bound >= floor
    return kept


@jit
def _complete(query: int, block: Any, goal: Any, queries: Any, matrix: Any, bounds: Any, room: Any, some: int) -> int:
    """Add the shares of missing terms to the candidates that can reach a score; return their number.

    The `goal` is the number of the first missing term, and the score.
    """
    needed, floor = goal
    sums, cursors, limits, candidate_rows, scores = room
    indptr, rows, tfs, scale = matrix.indptr, matrix.rows, matrix.tfs, matrix.scale
    peaks, starts = bounds.peaks, bounds.starts
    first, end = block
    for mine in range(needed, len(cursors)):
        if not some:
            break
        at = queries.ends[query] + mine
        weight, start, last = queries.weights[at], indptr[queries.terms[at]], indptr[queries.terms[at] + 1]
        begin = first_from(rows, cursors[mine, 1], last, first)
        stop = first_from(rows, begin, last, end)
        cursors[mine, 1] = stop
        whole = stop - begin < _LOOKUP * some
        if whole:
            for posting in range(begin, stop):
                row = np.uint32(rows[posting])
                sums[row - np.uint32(first)] = share(weight, tfs[posting], scale, row)
        least, kept, shift, peak = floor - limits[mine + 1], 0, cursors[mine, 2], cursors[mine, 3]
        for number in range(some):
            candidate, score = np.uint32(candidate_rows[number]), scores[number]
            if whole:
                score += sums[candidate]
            elif shift < 0 or peaks[peak + ((first + candidate) >> shift)]:
                posting = _find(rows, starts, start, last, shift, cursors[mine, 4], first + candidate)
                if posting >= 0:
                    score += share(weight, tfs[posting], scale, rows[posting])
            if score >= least:
                candidate_rows[kept], scores[kept] = candidate, score
                kept += 1
        some = kept
        if whole:
            for posting in range(begin, stop):
                sums[np.uint32(rows[posting]) - np.uint32(first)] = 0
    return some


@jit
def _collect_some(first: int, candidates: Any, order: Any, sums: Any, keys: Any, kept: Any) -> Any:
    """Turn the sums of some documents of a block into keys, as `_collect` does, and reset these sums to 0.

    The loops are written twice: a shared function for one key made a search at 1,000 hits 6 to 8% slower.
    """
    score = np.empty(1, np.float32)
    bits = score.view(np.uint32)
    count_kept, floor, hits = kept
    for row in candidates:
        if np.float32(sums[row]) >= floor:
            score[0] = np.float32(sums[row])
            keys[count_kept] = (np.uint64(bits[0]) << np.uint64(32)) | np.uint64(0xFFFFFFFF - order[first + row])
            count_kept += 1
            if count_kept == len(keys):
                count_kept, floor = hits, _trim(keys, hits, score, bits)
        sums[row] = 0
    return count_kept, floor


@jit
def _rank(query: int, number: int, kept: Any, documents: Any, queries: Any, matrix: Any, bounds: Any, room: Any) -> int:
    """Put the keys of a query's best documents first, in any order; return their number.

    Only blocks with a posting are visited, so the time depends on the postings and not on the size of the corpus. When
    the last terms together cannot lift a document to the worst of the best hits so far, only documents with one of the
    other terms are completed (MaxScore), if this saves most postings, and of these documents only those that can reach
    it with the largest shares in their ranges. The hits and their scores are those of all postings.

    Args:
        query: number of the query.
        number: number of its terms to use.
        kept: score that documents must reach, and number of hits to keep.
        documents: `order` and `allowed` of `search`, and rows of excluded documents.
        queries, matrix, bounds: see `search`.
        room: sums [B] of zeros, cursors [terms, 5], limits [terms + 1], units [terms], candidates [B], their scores
            [B], keys [2 * hits].
    """  # fmt: skip
    sums, cursors, limits, units, candidates, scores, keys = room
    order, allowed, barred = documents
    begin, size, count = queries.ends[query], len(sums), len(order)
    cursors, limits = cursors[:number], limits[: number + 1]
    floor, hits = kept
    limits[number], margin, postings = 0, 0.0, 0
    for mine in range(number - 1, -1, -1):
        term, weight = queries.terms[begin + mine], max(0.0, np.float64(queries.weights[begin + mine]))
        units[mine] = weight * bounds.largest[term] / 255
        limits[mine] = limits[mine + 1] + weight * bounds.largest[term]
        margin += weight * (1 + bounds.largest[term]) * _MARGIN
        postings += matrix.indptr[term + 1] - matrix.indptr[term]
        cursors[mine, 1], cursors[mine, 2] = matrix.indptr[term], bounds.shifts[term]
        cursors[mine, 3], cursors[mine, 4] = bounds.ends[term], bounds.start_ends[term]
    count_kept = 0
    able = number  # terms of which a hit has one
    needed, essential = number, postings  # terms whose postings are all read, and postings of those that must be
    while True:
        least = floor * _BELOW - margin
        while able and limits[able - 1] < least:
            able -= 1
            essential -= matrix.indptr[queries.terms[begin + able] + 1] - matrix.indptr[queries.terms[begin + able]]
        if postings > _WORTH * essential:
            needed = able
        row = count
        for mine in range(needed):
            if cursors[mine, 1] < matrix.indptr[queries.terms[begin + mine] + 1]:
                row = min(row, matrix.rows[cursors[mine, 1]])
        if row == count:
            break
        first = row // size * size
        end = min(first + size, count)
        added = _add(query, (first, end), queries, matrix, cursors[:needed], sums)
        for excluded in barred:
            if first <= excluded < end:
                sums[excluded - first] = 0
        block = (first, end, added * _SCAN > end - first)
        if needed == number:
            so_far = (count_kept, floor, hits)
            count_kept, floor = _collect(block, matrix.rows, order, allowed, sums, cursors, keys, so_far)
            continue
        found = (candidates, scores)
        some = _candidates(block, matrix.rows, allowed, sums, cursors[:needed], limits[needed], least, found)
        some = _within(first, needed, least, bounds, (cursors, units, candidates, scores), some)
        rest = (sums, cursors, limits, candidates, scores)
        some = _complete(query, (first, end), (needed, least), queries, matrix, bounds, rest, some)
        for at in range(some):
            sums[candidates[at]] = scores[at]
        count_kept, floor = _collect_some(first, candidates[:some], order, sums, keys, (count_kept, floor, hits))
    if count_kept > hits:
        keep_largest(keys, count_kept, hits)
        count_kept = hits
    return count_kept


@jit
def _reached(query: int, number: int, queries: Any, tenth: Any) -> Any:
    """Return a score that ten documents reach with one of the terms."""
    reached = np.float32(0)
    for at in range(queries.ends[query], queries.ends[query] + number):
        if queries.weights[at] < 0:
            return SMALLEST
        reached = max(
            reached, queries.weights[at] * (tenth[queries.terms[at]] * np.float32(_BELOW) - np.float32(_MARGIN))
        )
    return max(SMALLEST, reached)


@jit
def _guess(query: int, number: int, hits: int, documents: Any, queries: Any, matrix: Any, room: Any) -> Any:
    """Return a score that probably a few more than `hits` documents reach, as estimated from a sample of documents.

    The sample is spread over the corpus. It is not taken for few postings, of which most become hits.
    """
    sums, cursors, _, _, _, _, keys = room
    order, allowed, barred = documents
    begin, count, postings = queries.ends[query], len(order), 0
    cursors = cursors[:number]
    for mine in range(number):
        term = queries.terms[begin + mine]
        cursors[mine, 1] = matrix.indptr[term]
        postings += matrix.indptr[term + 1] - matrix.indptr[term]
    if matrix.scale is None or postings < _SAMPLED * hits * number:
        return SMALLEST
    size = min(len(sums), count // (_PARTS * _SAMPLED))
    expected = hits * _PARTS * size / count
    wanted = int(expected + 3 * np.sqrt(expected)) + 1  # three standard deviations more than expected
    score = np.empty(1, np.float32)
    count_kept, floor = 0, SMALLEST
    for part in range(_PARTS):
        first = count * (2 * part + 1) // (2 * _PARTS)
        end = first + size
        for mine in range(number):
            last = matrix.indptr[queries.terms[begin + mine] + 1]
            cursors[mine, 1] = first_from(matrix.rows, cursors[mine, 1], last, first)
        _add(query, (first, end), queries, matrix, cursors, sums)
        for excluded in barred:
            if first <= excluded < end:
                sums[excluded - first] = 0
        block, so_far = (first, end, False), (count_kept, floor, hits)
        count_kept, floor = _collect(block, matrix.rows, order, allowed, sums, cursors, keys, so_far)
    if count_kept < wanted:
        return SMALLEST
    score.view(np.uint32)[0] = np.uint32(
        np.partition(keys[:count_kept], count_kept - wanted)[count_kept - wanted] >> np.uint64(32)
    )
    return score[0]


@jit
def search(
    hits: int, documents: Any, queries: Any, matrix: Any, bounds: Any, barred: Any, counts: Any, best: Any
) -> None:
    """Rank documents for queries.

    Args:
        hits: documents kept per query.
        documents: `order` [N], the position of each document in the tie order; `allowed` [N], whether it may be a hit,
            or None if all may.
        queries: `keys.Queries`.
        matrix: `keys.Matrix`.
        bounds: `keys.Bounds`, filled in for the terms of the queries.
        barred: ends [Q+1] and rows of the documents excluded from the hits of a query: rows[ends[i]:ends[i+1]] for
            query i.
        counts: [Q] receives the number of hits.
        best: [Q, hits] receives keys (see `lexical.keys`), best first.
    """
    barred_ends, barred_rows = barred
    (order, allowed), longest = documents, 0
    for query in range(len(counts)):
        longest = max(longest, queries.ends[query + 1] - queries.ends[query])
    sums = np.zeros(min(BLOCK, max(1, len(order))), np.float64)
    cursors, limits = np.empty((longest, 5), np.int64), np.empty(longest + 1, np.float64)
    units = np.empty(longest, np.float64)
    candidates, scores = np.empty(len(sums), np.int32), np.empty(len(sums), np.float64)
    keys = np.empty(2 * hits, np.uint64)
    room = (sums, cursors, limits, units, candidates, scores, keys)
    for query in range(len(counts)):
        excluded = barred_rows[barred_ends[query] : barred_ends[query + 1]]
        number, own = queries.ends[query + 1] - queries.ends[query], (order, allowed, excluded)
        if hits + len(excluded) <= TENTH and allowed is None:
            floor = _reached(query, number, queries, bounds.tenth)
        elif hits <= _FEW_HITS:
            floor = SMALLEST
        else:
            floor = _guess(query, number, hits, own, queries, matrix, room)
        kept = (floor, hits)
        count_kept = _rank(query, number, kept, own, queries, matrix, bounds, room)
        if count_kept < hits and floor > SMALLEST:  # the estimate was too high
            kept = (SMALLEST, hits)
            count_kept = _rank(query, number, kept, own, queries, matrix, bounds, room)
        ordered = np.sort(keys[:count_kept])
        for rank in range(count_kept):
            best[query, rank] = ordered[count_kept - 1 - rank]
        counts[query] = count_kept
