"""The compiled loops of a search.

The terms of a query come by falling weight. Shares are added in this order, so that the score of a pair has the same
bits in every search. Numba's cache of this file does not notice a change of kernels.py: save both.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hybrid_cli.lexical.kernels import first_from, jit, keep_largest, share
from hybrid_cli.lexical.keys import SMALLEST

BLOCK = 1 << 15  # documents whose sums (256 KiB) stay in the second-level cache
_LOOKUP = 50  # looking up a document among the postings of a block takes as long as adding 50 postings
_SAMPLED, _PARTS = 32, 16  # one of 32 documents gives a first estimate of the worst score, in 16 parts of the corpus
_BELOW = 1 - 1e-6  # a score is a float32: it may be larger than its sum
_SCAN = 4  # a sequential read of a sum takes less than a quarter of the time of a random read


@jit
def _limit(weight: Any, scale: Any) -> Any:
    """Return a value that no share of a term exceeds: the weight, in Lucene's arithmetic."""
    return np.float64(np.inf) if scale is None or weight < 0 else np.float64(weight)


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
            place = np.uint32(at if scan else rows[at] - first)
            if np.float32(sums[place]) >= floor:
                score[0] = np.float32(sums[place])
                keys[found] = (np.uint64(bits[0]) << np.uint64(32)) | np.uint64(0xFFFFFFFF - order[first + place])
                found += 1
                if found == len(keys):
                    found, floor = hits, _trim(keys, hits, score, bits)
            sums[place] = 0
    return found, floor


@jit
def _candidates(block: Any, rows: Any, sums: Any, cursors: Any, limit: Any, floor: Any, out: Any) -> int:
    """Write places and sums of the documents that `limit` can lift to `floor`; reset the sums; return their number."""
    places, scores = out
    first, end, scan = block
    least, found = floor * _BELOW - limit, 0
    for term in range(1 if scan else len(cursors)):
        begin, stop = (0, end - first) if scan else (cursors[term, 0], cursors[term, 1])
        for at in range(begin, stop):
            place = np.uint32(at if scan else rows[at] - first)
            if sums[place] >= least and sums[place] > 0:
                places[found], scores[found] = place, sums[place]
                found += 1
            sums[place] = 0
    return found


@jit
def _complete(query: int, block: Any, needed: int, floor: Any, queries: Any, matrix: Any, room: Any, some: int) -> int:
    """Add the shares of the terms from `needed` on to the candidates that can reach `floor`; return their number."""
    sums, cursors, limits, places, scores = room
    indptr, rows, tfs, scale = matrix.indptr, matrix.rows, matrix.tfs, matrix.scale
    first, end = block
    for mine in range(needed, len(cursors)):
        if not some:
            break
        at = queries.ends[query] + mine
        weight, last = queries.weights[at], indptr[queries.terms[at] + 1]
        begin = first_from(rows, cursors[mine, 1], last, first)
        stop = first_from(rows, begin, last, end)
        cursors[mine, 1] = stop
        whole = stop - begin < _LOOKUP * some
        if whole:
            for posting in range(begin, stop):
                row = np.uint32(rows[posting])
                sums[row - np.uint32(first)] = share(weight, tfs[posting], scale, row)
        least, kept = floor * _BELOW - limits[mine + 1], 0
        for number in range(some):
            place, score = np.uint32(places[number]), scores[number]
            if whole:
                score += sums[place]
            else:
                posting = first_from(rows, begin, stop, first + place)
                if posting < stop and rows[posting] == first + place:
                    score += share(weight, tfs[posting], scale, rows[posting])
            if score >= least:
                places[kept], scores[kept] = place, score
                kept += 1
        some = kept
        if whole:
            for posting in range(begin, stop):
                sums[np.uint32(rows[posting]) - np.uint32(first)] = 0
    return some


@jit
def _collect_some(first: int, places: Any, order: Any, sums: Any, keys: Any, kept: Any) -> Any:
    """Turn the sums of some documents of a block into keys, as `_collect` does, and reset these sums to 0.

    The loops are written twice: a shared function for one key made a search at 1,000 hits 6 to 8% slower.
    """
    score = np.empty(1, np.float32)
    bits = score.view(np.uint32)
    found, floor, hits = kept
    for place in places:
        if np.float32(sums[place]) >= floor:
            score[0] = np.float32(sums[place])
            keys[found] = (np.uint64(bits[0]) << np.uint64(32)) | np.uint64(0xFFFFFFFF - order[first + place])
            found += 1
            if found == len(keys):
                found, floor = hits, _trim(keys, hits, score, bits)
        sums[place] = 0
    return found, floor


@jit
def _rank(query: int, number: int, kept: Any, order: Any, queries: Any, matrix: Any, barred: Any, room: Any) -> int:
    """Put the keys of a query's best documents first, in any order; return their number.

    Only blocks with a posting are visited, so the time depends on the postings and not on the size of the corpus. When
    the last terms together cannot lift a document to the worst of the best hits so far, only documents with one of the
    other terms are completed (MaxScore). The hits and their scores are those of all postings.

    Args:
        query: number of the query.
        number: number of its terms to use.
        kept: score that documents must reach, and number of hits to keep.
        order, queries, matrix: see `search`.
        barred: rows of excluded documents.
        room: sums [B] of zeros, cursors [terms, 2], limits [terms + 1], candidates [B], their scores [B], keys
            [2 * hits].
    """  # fmt: skip
    sums, cursors, limits, candidates, scores, keys = room
    begin, size, documents = queries.ends[query], len(sums), len(order)
    cursors, limits = cursors[:number], limits[: number + 1]
    floor, hits = kept
    limits[number] = 0
    for mine in range(number - 1, -1, -1):
        cursors[mine, 1] = matrix.indptr[queries.terms[begin + mine]]
        limits[mine] = limits[mine + 1] + _limit(queries.weights[begin + mine], matrix.scale)
    found = 0
    needed = number  # terms of which a hit has one
    while True:
        while needed and limits[needed - 1] < floor * _BELOW:
            needed -= 1
        row = documents
        for mine in range(needed):
            if cursors[mine, 1] < matrix.indptr[queries.terms[begin + mine] + 1]:
                row = min(row, matrix.rows[cursors[mine, 1]])
        if row == documents:
            break
        first = row // size * size
        end = min(first + size, documents)
        postings = _add(query, (first, end), queries, matrix, cursors[:needed], sums)
        for excluded in barred:
            if first <= excluded < end:
                sums[excluded - first] = 0
        block = (first, end, postings * _SCAN > end - first)
        if needed == number:
            found, floor = _collect(block, matrix.rows, order, sums, cursors, keys, (found, floor, hits))
            continue
        some = _candidates(block, matrix.rows, sums, cursors[:needed], limits[needed], floor, (candidates, scores))
        some = _complete(
            query, (first, end), needed, floor, queries, matrix, (sums, cursors, limits, candidates, scores), some
        )
        for at in range(some):
            sums[candidates[at]] = scores[at]
        found, floor = _collect_some(first, candidates[:some], order, sums, keys, (found, floor, hits))
    if found > hits:
        keep_largest(keys, found, hits)
        found = hits
    return found


@jit
def _guess(query: int, number: int, hits: int, order: Any, queries: Any, matrix: Any, barred: Any, room: Any) -> Any:
    """Return a score that probably a few more than `hits` documents reach, as estimated from a sample of documents.

    The sample is spread over the corpus. It is not taken for few postings, of which most become hits.
    """
    sums, cursors, _, _, _, keys = room
    begin, documents, postings = queries.ends[query], len(order), 0
    cursors = cursors[:number]
    for mine in range(number):
        term = queries.terms[begin + mine]
        cursors[mine, 1] = matrix.indptr[term]
        postings += matrix.indptr[term + 1] - matrix.indptr[term]
    if matrix.scale is None or postings < _SAMPLED * hits * number:
        return SMALLEST
    size = min(len(sums), documents // (_PARTS * _SAMPLED))
    expected = hits * _PARTS * size / documents
    wanted = int(expected + 3 * np.sqrt(expected)) + 1  # three standard deviations more than expected
    score = np.empty(1, np.float32)
    found, floor = 0, SMALLEST
    for part in range(_PARTS):
        first = documents * (2 * part + 1) // (2 * _PARTS)
        end = first + size
        for mine in range(number):
            last = matrix.indptr[queries.terms[begin + mine] + 1]
            cursors[mine, 1] = first_from(matrix.rows, cursors[mine, 1], last, first)
        _add(query, (first, end), queries, matrix, cursors, sums)
        for excluded in barred:
            if first <= excluded < end:
                sums[excluded - first] = 0
        block = (first, end, False)
        found, floor = _collect(block, matrix.rows, order, sums, cursors, keys, (found, floor, hits))
    if found < wanted:
        return SMALLEST
    score.view(np.uint32)[0] = np.uint32(np.partition(keys[:found], found - wanted)[found - wanted] >> np.uint64(32))
    return score[0]


@jit
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
    sums = np.zeros(min(BLOCK, max(1, len(order))), np.float64)
    cursors, limits = np.empty((longest, 2), np.int64), np.empty(longest + 1, np.float64)
    candidates, scores = np.empty(len(sums), np.int32), np.empty(len(sums), np.float64)
    keys = np.empty(2 * hits, np.uint64)
    room = (sums, cursors, limits, candidates, scores, keys)
    for query in range(len(counts)):
        excluded = barred[barred_ends[query] : barred_ends[query + 1]]
        number = queries.ends[query + 1] - queries.ends[query]
        floor = _guess(query, number, hits, order, queries, matrix, excluded, room)
        found = _rank(query, number, (floor, hits), order, queries, matrix, excluded, room)
        if found < hits and floor > SMALLEST:  # the estimate was too high
            found = _rank(query, number, (SMALLEST, hits), order, queries, matrix, excluded, room)
        ordered = np.sort(keys[:found])
        for place in range(found):
            best[query, place] = ordered[found - 1 - place]
        counts[query] = found
