"""Loops over postings, compiled by numba and cached next to the source.

Numba caches a function by the content of its file alone, so a kernel calls kernels of this file only.

Own code because bm25s has another tie order and stores one weight per posting, and a product of scipy matrices does not
select the best documents. These loops compute the weights during the search, in Lucene's arithmetic, so that k1 and b
can change without a rebuild.

In `search`, the terms of a query come by falling weight. Shares are added in this order, so that the score of a pair
has the same bits in every search.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hybrid_cli.lexical import compilation
from hybrid_cli.lexical.keys import HALF, PART_BITS, SIGN, SMALLEST, TENTH, Array

LEAST_KEYS = 1024  # per query: fewer selections for few hits
BLOCK = 1 << 15  # documents whose sums (256 KiB) stay in the second-level cache; a part has two blocks
LOW = (1 << PART_BITS) - 1
_LOOKUP = 50  # looking up a document among the postings of a block takes as long as adding 50 postings
_SAMPLED, _PARTS = 32, 16  # one of 32 documents gives a first estimate of the worst score, in 16 parts of the corpus
_BELOW = 1 - 1e-6  # a score is a float32: it may be larger than its sum
_FEW_HITS = 100  # for which a sample of documents takes longer than it saves
_MARGIN = 1e-6  # of a weight and its largest share, for their rounding
_WORTH = 3  # completing documents pays where all terms have 3 times the postings of those that a hit needs
_SCANNED = 16  # postings that are read one after the other
_CACHED = 512  # vectors or scores of a block that stays in the cache
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

    @classmethod
    def of(cls, queries: int, hits: int) -> Best:
        """Return room for the hits of some queries."""
        keys = np.empty((queries, max(2 * hits, LEAST_KEYS)), np.uint64)
        return cls(np.zeros(queries, np.int64), np.full(queries, -np.inf, np.float32), keys)

    def part(self, begin: int, end: int) -> Best:
        """Return the hits of queries `begin` to `end` (exclusive), in the same memory."""
        return Best(*(values[begin:end] for values in self))

    def largest(self, hits: int) -> Array:
        """Return keys [Q, hits], in any order, of queries that have as many."""
        self.keys[np.arange(self.keys.shape[1]) >= self.counts[:, None]] = 0  # leftovers of earlier selections
        return np.partition(self.keys, -hits, axis=1)[:, -hits:]


jit = partial(compilation.jit, error_model="numpy")
_inner = partial(compilation.jit, error_model="numpy", no_cpython_wrapper=True)
_ZERO, _ONE = np.float32(0), np.float32(1)


@_inner
def put(matrix: Any, term: int, posting: int, row: int) -> None:
    """Store the document of a posting; the postings of a term come in ascending order. See `end_parts`."""
    matrix.lows[posting] = row & LOW
    if len(matrix.slots):
        slot, part = matrix.slots[term], row >> PART_BITS
        if slot >= 0:
            matrix.starts[slot + part + 1] += 1
        else:
            matrix.highs[-1 - slot + posting - matrix.indptr[term]] = part


@jit
def end_parts(matrix: Any) -> None:
    """Turn the counts of postings in `starts` into places, after the last `put`."""
    for slot in matrix.slots:
        if slot >= 0:
            for part in range(matrix.parts):
                matrix.starts[slot + part + 1] += matrix.starts[slot + part]


@_inner
def decode(matrix: Any, term: int, rows: Any) -> Any:
    """Write the documents of a term's postings to `rows`; return their number."""
    begin, size = matrix.indptr[term], matrix.indptr[term + 1] - matrix.indptr[term]
    if not len(matrix.slots):
        for at in range(size):
            rows[at] = matrix.lows[begin + at]
        return size
    slot = matrix.slots[term]
    if slot < 0:
        for at in range(size):
            rows[at] = np.int64(matrix.highs[-1 - slot + at]) << PART_BITS | matrix.lows[begin + at]
        return size
    for part in range(matrix.parts):
        for at in range(matrix.starts[slot + part], matrix.starts[slot + part + 1]):
            rows[at] = part << PART_BITS | matrix.lows[begin + at]
    return size


@jit
def room_of(indptr: Any) -> Any:
    """Return room for the rows of the most frequent term."""
    most = 0
    for term in range(len(indptr) - 1):
        most = max(most, indptr[term + 1] - indptr[term])
    return np.empty(most, np.int32)


@jit
def decode_all(matrix: Any, rows: Any) -> None:
    """Write the documents of all postings to `rows` [nnz]."""
    for term in range(len(matrix.indptr) - 1):
        decode(matrix, term, rows[matrix.indptr[term] :])


@jit
def encode_all(rows: Any, matrix: Any) -> None:
    """Store the documents of all postings [nnz]."""
    for term in range(len(matrix.indptr) - 1):
        for posting in range(matrix.indptr[term], matrix.indptr[term + 1]):
            put(matrix, term, posting, rows[posting])
    end_parts(matrix)


@jit
def scatter(first: int, distinct: Any, words: Any, counts: Any, terms: Any, cursor: Any, matrix: Any) -> None:
    """Write the postings of documents `first`, `first` + 1, ... at each term's `cursor`, and advance it.

    `terms` are the first of the terms that are written, and the one after the last.
    """
    at = 0
    for document in range(len(distinct)):
        for _ in range(distinct[document]):
            term = words[at]
            if terms[0] <= term < terms[1]:
                position = cursor[term]
                put(matrix, term, position, first + document)
                matrix.tfs[position] = counts[at]
                cursor[term] = position + 1
            at += 1


@jit
def copy_postings(source: Any, renumbered: Any, new_ids: Any, cursor: Any, target: Any) -> None:
    """Write postings at the `cursor` of each term, and advance it.

    Args:
        source: `keys.Matrix` of the postings to copy.
        renumbered: [N] new row of each document; -1 leaves it out.
        new_ids: [V] new id of each term; -1 for a term whose documents are all left out.
        cursor: [new V] first free posting of each new term.
        target: `keys.Matrix` that receives the postings.
    """
    rows = room_of(source.indptr)
    for term in range(len(new_ids)):
        if new_ids[term] < 0:
            continue
        at = cursor[new_ids[term]]
        for number in range(decode(source, term, rows)):
            row = renumbered[rows[number]]
            if row >= 0:
                put(target, new_ids[term], at, row)
                target.tfs[at] = source.tfs[source.indptr[term] + number]
                at += 1
        cursor[new_ids[term]] = at


@jit
def kept_counts(matrix: Any, kept: Any) -> Any:
    """Return the number of postings of each term, [V] int64, in documents that are `kept` [N]."""
    out, rows = np.zeros(len(matrix.indptr) - 1, np.int64), room_of(matrix.indptr)
    for term in range(len(out)):
        for number in range(decode(matrix, term, rows)):
            out[term] += kept[rows[number]]
    return out


@_inner
def share(weight: Any, tf: Any, scale: Any, row: Any) -> Any:
    """Return a term's share of a document's score. Compiled apart for `scale` None, so the test costs nothing."""
    if scale is None:
        return weight * np.float32(tf)
    return weight - weight / (_ONE + np.float32(tf) * scale[row])


@jit
def values(matrix: Any, idf: Any) -> Any:
    """Return the impact of each posting, [nnz] float32."""
    out, rows = np.empty(len(matrix.lows), np.float32), room_of(matrix.indptr)
    for term in range(len(idf)):
        begin = matrix.indptr[term]
        for number in range(decode(matrix, term, rows)):
            out[begin + number] = share(idf[term], matrix.tfs[begin + number], matrix.scale, rows[number])
    return out


@jit
def count(positions: Any, matrix: Any, counts: Any) -> None:
    """Add the number of postings of each document to `counts` at the document's position; -1 skips a document."""
    rows = room_of(matrix.indptr)
    for term in range(len(matrix.indptr) - 1):
        for number in range(decode(matrix, term, rows)):
            position = positions[rows[number]]
            if position >= 0:
                counts[position] += 1


@jit
def transpose(positions: Any, matrix: Any, idf: Any, cursor: Any, terms: Any, impacts: Any) -> None:
    """Write term and impact of each posting at the `cursor` of its document's position, and advance it."""
    tfs, scale, rows = matrix.tfs, matrix.scale, room_of(matrix.indptr)
    for term in range(len(idf)):
        begin = matrix.indptr[term]
        for number in range(decode(matrix, term, rows)):
            position = positions[rows[number]]
            if position >= 0:
                terms[cursor[position]] = term
                impacts[cursor[position]] = share(idf[term], tfs[begin + number], scale, rows[number])
                cursor[position] += 1


@_inner
def keep_largest(keys: Any, number: int, hits: int) -> None:
    """Move the `hits` largest of the first `number` keys, which differ, to the front, in any order.

    Own loops because those of numba for np.partition and np.sort take 7 seconds to compile; the inner one has no
    branch, whose guesses would fail.
    """
    low, high = 0, number - 1
    while low < hits <= high:
        middle = (low + high) // 2
        a, b, c = keys[low], keys[middle], keys[high]
        place = low if (a > b) != (a > c) else middle if (b > a) != (b > c) else high  # of the median
        pivot, keys[place], left = keys[place], c, low
        for at in range(low, high):
            key = keys[at]
            keys[at], keys[left] = keys[left], key
            left += key > pivot
        keys[high], keys[left] = keys[left], pivot
        if left < hits:
            low = left + 1
        else:
            high = left - 1


@_inner
def _smallest(keys: Any, hits: int) -> Any:
    """Return the smallest of the first keys."""
    smallest = keys[0]
    for at in range(1, hits):
        smallest = min(smallest, keys[at])
    return smallest


@_inner
def first_from(values: Any, low: int, high: int, value: Any) -> int:
    """Return the first place from `low` with a value not below `value`, or `high`; near ones are found first."""
    step, end = 1, low
    while end < high and values[end] < value:
        low, end, step = end + 1, end + step, 2 * step
    high = min(high, end)
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@_inner
def postings_of(matrix: Any, term: int, part: int, cursor: int) -> Any:
    """Return the first posting of a term in a part, and the first one after it; `cursor` is not after the first."""
    begin, end = matrix.indptr[term], matrix.indptr[term + 1]
    if not len(matrix.slots):
        return begin, end
    slot = matrix.slots[term]
    if slot >= 0:
        return begin + matrix.starts[slot + part], begin + matrix.starts[slot + part + 1]
    shift = begin + 1 + slot  # from a posting to its place in `highs`
    first = first_from(matrix.highs, cursor - shift, end - shift, part)
    return first + shift, first_from(matrix.highs, first, end - shift, part + 1) + shift


@jit
def score_pairs(numbers: Any, documents: Any, queries: Any, matrix: Any) -> Any:
    """Return the score of each pair of a query's number and a document's row, [P] float32; 0 without a match.

    Pairs may be in any order; where the rows of a query ascend, its postings are read once.
    """
    ends, terms, weights = queries.ends, queries.terms, queries.weights
    totals, cursors, places = np.zeros(len(numbers)), np.empty(len(terms), np.int64), np.zeros(LOW + 1, np.uint32)
    begin = 0
    while begin < len(numbers):  # pairs of a query and rows of a part that ascend
        number, part, end = numbers[begin], documents[begin] >> PART_BITS, begin
        ascends = begin > 0 and number == numbers[begin - 1] and documents[begin] >= documents[begin - 1]
        while end < len(numbers) and numbers[end] == number and documents[end] >> PART_BITS == part:
            if end > begin and documents[end] <= documents[end - 1]:
                break
            places[documents[end] & LOW] = end + 1
            end += 1
        for at in range(ends[number], ends[number + 1]):
            cursor = cursors[at] if ascends else matrix.indptr[terms[at]]
            first, last = postings_of(matrix, terms[at], part, cursor)
            cursors[at] = first
            if last - first <= _LOOKUP * (end - begin):
                for posting in range(first, last):
                    pair = places[matrix.lows[posting]]
                    if pair:
                        own = part << PART_BITS | matrix.lows[posting]
                        totals[pair - 1] += share(weights[at], matrix.tfs[posting], matrix.scale, own)
                continue
            for pair in range(begin, end):
                first = first_from(matrix.lows, first, last, documents[pair] & LOW)
                if first < last and matrix.lows[first] == documents[pair] & LOW:
                    totals[pair] += share(weights[at], matrix.tfs[first], matrix.scale, documents[pair])
        for pair in range(begin, end):
            places[documents[pair] & LOW] = 0
        begin = end
    return totals.astype(np.float32)


@jit
def score_every(documents: Any, queries: Any, matrix: Any, scores: Any) -> None:
    """Add the score of every query and every document to `scores` [Q, n]; rows of `documents` ascend."""
    ends, terms, weights = queries.ends, queries.terms, queries.weights
    for query in range(len(scores)):
        for at in range(ends[query], ends[query + 1]):
            part, posting, last = -1, matrix.indptr[terms[at]], 0
            for number in range(len(documents)):
                row = documents[number]
                if row >> PART_BITS != part:
                    part = row >> PART_BITS
                    posting, last = postings_of(matrix, terms[at], part, posting)
                posting = first_from(matrix.lows, posting, last, row & LOW)
                if posting < last and matrix.lows[posting] == row & LOW:
                    scores[query, number] += share(weights[at], matrix.tfs[posting], matrix.scale, row)


@_inner
def _ordered(bits: Any) -> Any:
    """Map the bits of a float32 to an integer with the order of signed floats."""
    return ~bits if bits >> np.uint32(31) else bits | SIGN


@_inner
def _unordered(bits: Any) -> Any:
    """Invert `_ordered`."""
    return bits ^ SIGN if bits >> np.uint32(31) else ~bits


@_inner
def _keep_row(scores: Any, order: Any, hits: int, best: Any, query: int) -> None:
    """Keep the best hits of one query; see `keep_block`."""
    count, floor, mine = best.counts[query], best.floors[query], best.keys[query]
    one_score, columns = np.empty(1, np.float32), np.empty(_CACHED, np.int32)
    one_key = one_score.view(np.uint32)
    for begin in range(0, len(scores), _CACHED):
        found = 0
        for column in range(begin, min(begin + _CACHED, len(scores))):  # without a branch, whose guesses fail
            columns[found] = column
            found += scores[column] >= floor
        for column in columns[:found]:
            score = scores[column]
            if score >= floor:
                one_score[0] = score if score != 0 else np.float32(0)  # -0 and 0 are equal
                mine[count] = (np.uint64(_ordered(one_key[0])) << HALF) | np.uint64(0xFFFFFFFF - order[column])
                count += 1
                if count == len(mine):
                    keep_largest(mine, count, hits)
                    count = hits
                    one_key[0] = _unordered(np.uint32(_smallest(mine, hits) >> HALF))
                    floor = one_score[0]
    best.counts[query], best.floors[query] = count, floor


@jit
def keep_best(
    dense: Any, weight: float, order: Any, hits: int, queries: Any, cursors: Any, matrix: Any, best: Any
) -> None:
    """Add BM25 to the dense scores of a block of documents; keep each query's best hits of this and earlier blocks.

    Args:
        dense: row of the block's first document, and [Q, B] float32 scores of its documents; BM25 is added to them.
        weight: weight of BM25.
        order: [N] position of each document in the tie order.
        hits: documents kept per query.
        queries: `keys.Queries`.
        cursors: [T] a posting of each term of each query, not after the first one of the block; advanced.
        matrix: `keys.Matrix`.
        best: `Best`, with keys for `keys.signed_scores_of`; updated.
    """
    first, scores = dense
    ends, terms, weights = queries.ends, queries.terms, queries.weights
    size = scores.shape[1]
    sums = np.zeros(size, np.float64)
    for query in range(len(scores)):
        for at in range(ends[query], ends[query + 1]):
            posting, row = cursors[at], first
            while row < first + size:
                part = row >> PART_BITS
                end = min(first + size, (part + 1) << PART_BITS)
                begin, last = postings_of(matrix, terms[at], part, posting)
                begin = first_from(matrix.lows, max(begin, posting), last, row - (part << PART_BITS))
                posting = first_from(matrix.lows, begin, last, end - (part << PART_BITS))
                for number in range(begin, posting):
                    own = part << PART_BITS | matrix.lows[number]
                    sums[own - first] += share(weights[at], matrix.tfs[number], matrix.scale, own)
                row = end
            cursors[at] = posting
        for column in range(size):
            scores[query, column] += weight * np.float64(np.float32(sums[column]))
            sums[column] = 0
        _keep_row(scores[query], order[first : first + size], hits, best, query)


@jit
def keep_block(scores: Any, order: Any, hits: int, best: Any) -> None:
    """Keep each query's best hits of this and earlier blocks.

    Args:
        scores: [Q, B] float32 scores of a block of documents; NaN is never kept.
        order: [B] position of each document in the tie order.
        hits: documents kept per query.
        best: `Best`, with keys for `keys.signed_scores_of`; updated.
    """
    for query in range(len(scores)):
        _keep_row(scores[query], order, hits, best, query)


@partial(jit, fastmath={"reassoc", "contract"})
def coded_products(codes: Any, units: Any, query: Any, products: Any) -> None:
    """Fill in products [N] of a query [d] with codes [N, d] of 8 bits in units [N]; sums have no fixed order."""
    for row in range(len(codes)):
        total = _ZERO
        for place in range(codes.shape[1]):
            total += np.float32(codes[row, place]) * query[place]
        products[row] = total * units[row]


@jit
def inner_products(vectors: Any, queries: Any, rows: Any, products: Any) -> None:
    """Multiply each query with vectors; sums have the order of NumPy's einsum: four lanes, blocks of 16 backwards.

    Args:
        vectors: [4 N d] bytes of float32 vectors, of any alignment.
        queries: [Q, d] float32.
        rows: [Q, K] vectors of each query, ascending: all queries read those of a block while it is in the cache.
        products: [Q, K] float32; filled in.
    """
    values, width, depth = vectors.view(np.float32), queries.shape[1], rows.shape[1]
    whole, cursors = width // 16 * 16, np.zeros(len(queries), np.int64)
    for end in range(_CACHED, len(vectors) // (4 * width) + _CACHED, _CACHED):
        for number in range(len(queries)):
            query, at = queries[number], cursors[number]
            while at < depth and rows[number, at] < end:
                vector = values[rows[number, at] * width : (rows[number, at] + 1) * width]
                a = b = c = d = np.float32(0)
                for first in range(0, whole, 16):
                    for place in (first + 12, first + 8, first + 4, first):
                        a += vector[place] * query[place]
                        b += vector[place + 1] * query[place + 1]
                        c += vector[place + 2] * query[place + 2]
                        d += vector[place + 3] * query[place + 3]
                for place in range(whole, width, 4):
                    a += vector[place] * query[place]
                    b += vector[place + 1] * query[place + 1] if place + 1 < width else _ZERO
                    c += vector[place + 2] * query[place + 2] if place + 2 < width else _ZERO
                    d += vector[place + 3] * query[place + 3] if place + 3 < width else _ZERO
                products[number, at] = (a + b) + (c + d)
                at += 1
            cursors[number] = at


@_inner
def _fraction(tf: Any, scale: Any, row: Any) -> Any:
    """Return a share as a fraction of the term's weight; see `keys.Bounds`."""
    if scale is None:
        return np.float32(tf)
    return _ONE - _ONE / (_ONE + np.float32(tf) * scale[row])


@jit
def fill_bounds(some: Any, matrix: Any, bounds: Any) -> None:
    """Fill in the bounds of some terms."""
    tfs, scale = matrix.tfs, matrix.scale
    best, rows = np.empty(TENTH, np.float32), room_of(matrix.indptr)
    for term in some:
        begin, shift, size = matrix.indptr[term], bounds.shifts[term], decode(matrix, term, rows)
        best[:] = 0
        for number in range(size):
            fraction = _fraction(tfs[begin + number], scale, rows[number])
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
            for number in range(size):
                row = rows[number]
                peak = np.uint8(np.ceil(_fraction(tfs[begin + number], scale, row) * unit))
                peaks[row >> shift] = max(peaks[row >> shift], peak)
                while last < row >> (shift + 2):
                    last += 1
                    starts[last] = number
            starts[last + 1 :] = size
        bounds.largest[term], bounds.tenth[term] = best[0], best[TENTH - 1]
        bounds.ready[term] = True


@_inner
def _find(lows: Any, begin: int, stop: int, low: Any) -> int:
    """Return the posting of a document among those of a part, or -1."""
    while stop - begin > _SCANNED:
        middle = (begin + stop) >> 1
        if lows[middle] < low:
            begin = middle + 1
        else:
            stop = middle + 1
    for posting in range(begin, stop):
        if lows[posting] >= low:
            return posting if lows[posting] == low else -1
    return -1


@_inner
def _from(scale: Any, first: int) -> Any:
    """Return the factors of the documents from `first` on. Compiled apart for `scale` None."""
    if scale is None:
        return None
    return scale[first:]


@_inner
def _add(query: int, block: Any, queries: Any, matrix: Any, cursors: Any, sums: Any) -> int:
    """Add each term's share of the score to the sums of the documents of a block; return the number of postings.

    A block lies within a part. Cursors [terms of the query, ...] hold the first posting of each term in the block, the
    first one after it, which is set here from a posting not after it, and the first one after the part.
    """
    postings, tfs, lows = 0, matrix.tfs, matrix.lows
    first, end = block
    scale, base = _from(matrix.scale, first), np.uint32(first & LOW)
    for mine in range(len(cursors)):
        weight, begin = queries.weights[queries.ends[query] + mine], cursors[mine, 1]
        stop = first_from(lows, begin, cursors[mine, 2], end - (first >> PART_BITS << PART_BITS))
        for posting in range(begin, stop):
            row = np.uint32(lows[posting]) - base
            sums[row] += share(weight, tfs[posting], scale, row)
        cursors[mine, 0], cursors[mine, 1] = begin, stop
        postings += stop - begin
    return postings


@_inner
def _trim(keys: Any, hits: int, score: Any, bits: Any) -> Any:
    """Move the best `hits` keys to the front; return the score that later documents must reach."""
    keep_largest(keys, len(keys), hits)
    bits[0] = np.uint32(_smallest(keys, hits) >> np.uint64(32))
    return score[0]


@_inner
def _may(allowed: Any, row: Any) -> int:
    """Return 1 if a document may be a hit, else 0. Compiled apart for `allowed` None, so the test costs nothing."""
    if allowed is None:
        return 1
    return int(allowed[row])


@_inner
def _collect(block: Any, lows: Any, order: Any, allowed: Any, sums: Any, cursors: Any, keys: Any, kept: Any) -> Any:
    """Turn the sums of a block into keys, and reset the sums to 0.

    Documents below the worst of the best hits so far are skipped; `keys` has room for twice as many keys as are kept.

    Args:
        block: first document, first document after the block, and whether all sums are read, or only those of postings.
        lows: of `keys.Matrix`.
        order: [N] position of each document in the tie order.
        allowed: see `search`.
        sums: [B] scores.
        cursors: [terms, ...] postings of the block; see `_add`.
        keys: keys so far.
        kept: number of keys so far, score that documents must reach, and number of hits to keep.

    Returns:
        The number of keys, and the score that later documents must reach.
    """
    score = np.empty(1, np.float32)
    bits = score.view(np.uint32)
    first, end, scan = block
    base = np.uint32(first & LOW)
    count_kept, floor, hits = kept
    for term in range(1 if scan else len(cursors)):
        begin, stop = (np.int64(0), end - first) if scan else (cursors[term, 0], cursors[term, 1])
        for at in range(begin, stop):
            row = np.uint32(at) if scan else np.uint32(lows[at]) - base
            if np.float32(sums[row]) >= floor:
                score[0] = np.float32(sums[row])
                keys[count_kept] = (np.uint64(bits[0]) << np.uint64(32)) | np.uint64(0xFFFFFFFF - order[first + row])
                count_kept += _may(allowed, first + row)  # no branch, which a random mask would mispredict
                if count_kept == len(keys):
                    count_kept, floor = hits, _trim(keys, hits, score, bits)
            sums[row] = 0
    return count_kept, floor


@_inner
def _candidates(block: Any, lows: Any, allowed: Any, sums: Any, cursors: Any, limit: Any, floor: Any, out: Any) -> int:
    """Write rows and sums of the documents that `limit` can lift to `floor`; reset the sums; return their number."""
    candidate_rows, scores = out
    first, end, scan = block
    base, least, count_kept = np.uint32(first & LOW), floor - limit, 0
    for term in range(1 if scan else len(cursors)):
        begin, stop = (np.int64(0), end - first) if scan else (cursors[term, 0], cursors[term, 1])
        for at in range(begin, stop):
            row = np.uint32(at) if scan else np.uint32(lows[at]) - base
            if sums[row] >= least and sums[row] > 0:
                candidate_rows[count_kept], scores[count_kept] = row, sums[row]
                count_kept += _may(allowed, first + row)
            sums[row] = 0
    return count_kept


@_inner
def _within(first: int, needed: int, floor: Any, bounds: Any, room: Any, some: int) -> int:
    """Keep the candidates that the terms from `needed` on can lift to `floor` in their ranges; return their number."""
    cursors, units, candidate_rows, scores = room
    peaks, kept = bounds.peaks, 0
    for number in range(some):
        candidate, bound = candidate_rows[number], scores[number]
        for mine in range(needed, len(cursors)):
            shift = cursors[mine, 3]
            bound += units[mine] * (peaks[cursors[mine, 4] + ((first + candidate) >> shift)] if shift >= 0 else 255)
        candidate_rows[kept], scores[kept] = candidate, scores[number]
        kept += bound >= floor
    return kept


@_inner
def _complete(query: int, block: Any, goal: Any, queries: Any, matrix: Any, bounds: Any, room: Any, some: int) -> int:
    """Add the shares of missing terms to the candidates that can reach a score; return their number.

    The `goal` is the number of the first missing term, and the score.
    """
    needed, floor = goal
    sums, cursors, limits, candidate_rows, scores = room
    lows, tfs, peaks, starts = matrix.lows, matrix.tfs, bounds.peaks, bounds.starts
    first, end = block
    scale, base = _from(matrix.scale, first), np.uint32(first & LOW)
    for mine in range(needed, len(cursors)):
        if not some:
            break
        at = queries.ends[query] + mine
        weight, start = queries.weights[at], matrix.indptr[queries.terms[at]]
        begin = first_from(lows, cursors[mine, 1], cursors[mine, 2], base)
        stop = first_from(lows, begin, cursors[mine, 2], end - (first >> PART_BITS << PART_BITS))
        cursors[mine, 1] = stop
        whole = stop - begin < _LOOKUP * some
        if whole:
            for posting in range(begin, stop):
                row = np.uint32(lows[posting]) - base
                sums[row] = share(weight, tfs[posting], scale, row)
        least, kept, shift, peak = floor - limits[mine + 1], 0, cursors[mine, 3], cursors[mine, 4]
        for number in range(some):
            candidate, score = np.uint32(candidate_rows[number]), scores[number]
            if whole:
                score += sums[candidate]
            elif shift < 0 or peaks[peak + ((first + candidate) >> shift)]:
                low, high = begin, stop
                if 0 <= shift <= PART_BITS - 2:  # four ranges lie in a part
                    group = cursors[mine, 5] + ((first + candidate) >> (shift + 2))
                    low, high = start + starts[group], start + starts[group + 1]
                posting = _find(lows, low, high, base + candidate)
                if posting >= 0:
                    score += share(weight, tfs[posting], scale, candidate)
            if score >= least:
                candidate_rows[kept], scores[kept] = candidate, score
                kept += 1
        some = kept
        if whole:
            for posting in range(begin, stop):
                sums[np.uint32(lows[posting]) - base] = 0
    return some


@_inner
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


@_inner
def _next_part(query: int, part: int, queries: Any, matrix: Any, cursors: Any) -> Any:
    """Return the next part with a posting of one of the first terms, or the number of parts."""
    following: Any = matrix.parts
    for mine in range(len(cursors)):
        term = queries.terms[queries.ends[query] + mine]
        posting, begin = cursors[mine, 1], matrix.indptr[term]
        if posting < matrix.indptr[term + 1]:
            own: Any = part + 1
            if len(matrix.slots) and matrix.slots[term] < 0:
                own = np.int64(matrix.highs[-1 - matrix.slots[term] + posting - begin])
            following = min(following, own)
    return following


@_inner
def _enter(query: int, part: int, queries: Any, matrix: Any, cursors: Any) -> None:
    """Move the cursors of the terms to the first posting in a part."""
    for mine in range(len(cursors)):
        term = queries.terms[queries.ends[query] + mine]
        cursors[mine, 1], cursors[mine, 2] = postings_of(matrix, term, part, cursors[mine, 1])


@_inner
def _rank(query: int, number: int, kept: Any, documents: Any, queries: Any, matrix: Any, bounds: Any, room: Any) -> int:
    """Put the keys of a query's best documents first, in any order; return their number.

    Only parts with a posting are visited, so the time depends on the postings and not on the size of the corpus. When
    the last terms together cannot lift a document to the worst of the best hits so far, only documents with one of the
    other terms are completed (MaxScore), if this saves most postings, and of these documents only those that can reach
    it with the largest shares in their ranges. The hits and their scores are those of all postings.

    Args:
        query: number of the query.
        number: number of its terms to use.
        kept: score that documents must reach, and number of hits to keep.
        documents: `order` and `allowed` of `search`.
        queries, matrix, bounds: see `search`.
        room: sums [B] of zeros, cursors [terms, 6], limits [terms + 1], units [terms], candidates [B], their scores
            [B], keys [2 * hits].
    """
    sums, cursors, limits, units, candidates, scores, keys = room
    order, allowed = documents
    begin, size, count = queries.ends[query], len(sums), len(order)
    cursors, limits = cursors[:number], limits[: number + 1]
    floor, hits = kept
    limits[number], margin, postings = 0, 0.0, 0
    for mine in range(number - 1, -1, -1):
        term, weight = queries.terms[begin + mine], max(0.0, np.float64(queries.weights[begin + mine]))
        largest = np.float64(bounds.largest[term]) if bounds.ready[term] else bounds.most
        units[mine] = weight * largest / 255
        limits[mine] = limits[mine + 1] + weight * largest
        margin += weight * (1 + largest) * _MARGIN
        postings += matrix.indptr[term + 1] - matrix.indptr[term]
        cursors[mine, 1], cursors[mine, 3] = matrix.indptr[term], bounds.shifts[term] if bounds.ready[term] else -1
        cursors[mine, 4], cursors[mine, 5] = bounds.ends[term], bounds.start_ends[term]
    count_kept: Any = np.int64(0)  # of the type that it keeps: a literal would compile the callees twice
    able = number  # terms of which a hit has one
    needed, essential = number, postings  # terms whose postings are all read, and postings of those that must be
    part = _next_part(query, np.int64(-1), queries, matrix, cursors)
    while part < matrix.parts:
        _enter(query, part, queries, matrix, cursors)
        for first in range(part << PART_BITS, min(count, (part + 1) << PART_BITS), size):
            end = min(first + size, count)
            least = floor * _BELOW - margin
            while able and limits[able - 1] < least:
                able -= 1
                essential -= matrix.indptr[queries.terms[begin + able] + 1] - matrix.indptr[queries.terms[begin + able]]
            if postings > _WORTH * essential:
                needed = able
            added = _add(query, (first, end), queries, matrix, cursors[:needed], sums)
            if not added:
                continue
            block = (first, end, added * _SCAN > end - first)
            if needed == number:
                so_far = (count_kept, floor, hits)
                count_kept, floor = _collect(block, matrix.lows, order, allowed, sums, cursors, keys, so_far)
                continue
            out = (candidates, scores)
            some = _candidates(block, matrix.lows, allowed, sums, cursors[:needed], limits[needed], least, out)
            some = _within(first, needed, least, bounds, (cursors, units, candidates, scores), some)
            rest = (sums, cursors, limits, candidates, scores)
            some = _complete(query, (first, end), (needed, least), queries, matrix, bounds, rest, some)
            for at in range(some):
                sums[candidates[at]] = scores[at]
            count_kept, floor = _collect_some(first, candidates[:some], order, sums, keys, (count_kept, floor, hits))
        part = _next_part(query, part, queries, matrix, cursors[:needed])
    if count_kept > hits:
        keep_largest(keys, count_kept, hits)
        count_kept = hits
    return int(count_kept)


@_inner
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


@_inner
def _guess(query: int, number: int, hits: int, documents: Any, queries: Any, matrix: Any, room: Any) -> Any:
    """Return a score that probably a few more than `hits` documents reach, as estimated from a sample of documents.

    The sample is spread over the corpus. It is not taken for few postings, of which most become hits.
    """
    sums, cursors, _, _, _, _, keys = room
    order, allowed = documents
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
    count_kept, floor = np.int64(0), SMALLEST
    for sample in range(_PARTS):
        first = count * (2 * sample + 1) // (2 * _PARTS)
        part = first >> PART_BITS
        first = min(first, max(part << PART_BITS, ((part + 1) << PART_BITS) - size))  # a block lies within a part
        end = min(first + size, count)
        _enter(query, part, queries, matrix, cursors)
        for mine in range(number):
            cursors[mine, 1] = first_from(matrix.lows, cursors[mine, 1], cursors[mine, 2], first & LOW)
        _add(query, (first, end), queries, matrix, cursors, sums)
        block, so_far = (first, end, first > end), (count_kept, floor, hits)
        count_kept, floor = _collect(block, matrix.lows, order, allowed, sums, cursors, keys, so_far)
    if count_kept < wanted:
        return SMALLEST
    if count_kept > wanted:
        keep_largest(keys, count_kept, wanted)
    score.view(np.uint32)[0] = np.uint32(_smallest(keys, wanted) >> np.uint64(32))
    return score[0]


def is_compiled() -> bool:
    """Return whether this process or an earlier one has compiled `search`."""
    return compilation.is_compiled(_search)


def search(hits: int, documents: Any, queries: Any, matrix: Any, bounds: Any, counts: Any, best: Any) -> None:
    """Rank documents for queries.

    Args:
        hits: documents kept per query.
        documents: `order` [N], the position of each document in the tie order; `allowed` [N], whether it may be a hit,
            or None if all may.
        queries: `keys.Queries`.
        matrix: `keys.Matrix`.
        bounds: `keys.Bounds`, filled in for the terms of the queries.
        counts: [Q] receives the number of hits.
        best: [Q, hits] receives keys (see `lexical.keys`), best first, then zeros.
    """
    best[:] = ~np.uint64(0)
    _search(hits, documents, queries, matrix, bounds, counts, best)
    best.sort(axis=1)
    np.invert(best, out=best)


@jit
def _search(hits: int, documents: Any, queries: Any, matrix: Any, bounds: Any, counts: Any, best: Any) -> None:
    """Write the complements of the keys of each query's hits, in any order; see `search`."""
    (order, allowed), longest = documents, 0
    for query in range(len(counts)):
        longest = max(longest, queries.ends[query + 1] - queries.ends[query])
    sums = np.zeros(min(BLOCK, max(1, len(order))), np.float64)
    cursors, limits = np.empty((longest, 6), np.int64), np.empty(longest + 1, np.float64)
    units = np.empty(longest, np.float64)
    candidates, scores = np.empty(len(sums), np.int32), np.empty(len(sums), np.float64)
    keys = np.empty(2 * hits, np.uint64)
    room = (sums, cursors, limits, units, candidates, scores, keys)
    for query in range(len(counts)):
        number = queries.ends[query + 1] - queries.ends[query]
        if hits <= TENTH and allowed is None:
            floor = _reached(query, number, queries, bounds.tenth)
        elif hits <= _FEW_HITS:
            floor = SMALLEST
        else:
            floor = _guess(query, number, hits, documents, queries, matrix, room)
        kept = (floor, hits)
        count_kept = _rank(query, number, kept, documents, queries, matrix, bounds, room)
        if count_kept < hits and floor > SMALLEST:  # the estimate was too high
            kept = (SMALLEST, hits)
            count_kept = _rank(query, number, kept, documents, queries, matrix, bounds, room)
        for number in range(count_kept):
            best[query, number] = ~keys[number]
        counts[query] = count_kept
