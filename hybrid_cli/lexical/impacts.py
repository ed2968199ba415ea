"""The impact matrix: term frequencies and lengths of documents, and with them BM25 at any k1 and b.

Stored once, by term: the rows (documents) of each term's postings in ascending order, with their frequencies. All of
BM25 that depends on k1, b and the collection is one factor for each document and one for each term, so that changing
k1 and b costs nothing. The arithmetic is Lucene's, in single precision, and a query's sum is kept in double precision
as Lucene keeps it: scores agree to the last bit (methods 1.1, 1.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from hybrid_cli.errors import HybridError
from hybrid_cli.lexical import kernels

TERMS_FILE = "terms.parquet"
POSITIONS_FILE = "positions.npy"
_ARRAYS = ("indptr", "rows", "tfs", "lengths")

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


def encode_length(length: int) -> int:
    """Lucene's byte for a document length: exact below 40, then four significant bits."""
    if length < 24:
        return length
    rest = length - 24
    if rest < 8:
        return 24 + rest
    shift = rest.bit_length() - 4
    return 24 + (((rest >> shift) & 7) | ((shift + 1) << 3))


def decode_length(byte: int) -> int:
    """The smallest length that `encode_length` maps to `byte`."""
    if byte < 24:
        return byte
    rest = byte - 24
    if rest < 8:
        return 24 + rest
    shift = (rest >> 3) - 1
    return 24 + ((8 | (rest & 7)) << shift)


_DECODED = np.array([decode_length(byte) for byte in range(256)], np.int64)


def quantised(lengths: npt.NDArray[np.integer]) -> Longs:
    """Lengths as Lucene remembers them: rounded down to the nearest that its byte can say."""
    found: Longs = _DECODED[np.searchsorted(_DECODED, lengths, side="right") - 1]
    return found


@dataclass(frozen=True)
class Postings:
    """What the corpus says, before k1 and b: a sparse matrix of term frequencies, by term.

    Attributes:
        terms: [V] the dictionary, in the order of the strings; ids of terms are places in it.
        indptr: [V+1] where the postings of each term begin.
        rows: [nnz] documents, ascending within a term.
        tfs: [nnz] term frequencies.
        lengths: [N] tokens of each document, 0 for empty ones.
        positions: [N] the length that BM25 corrects for, where an analyzer puts several tokens at one position.
    """

    terms: pl.Series
    indptr: Longs
    rows: Ints
    tfs: Ints
    lengths: Ints
    positions: Longs | None = None

    @property
    def df(self) -> Longs:
        """[V] how many documents each term occurs in."""
        return np.diff(self.indptr)

    @property
    def counted(self) -> int:
        """How many documents have a token: Lucene's N."""
        return int(np.count_nonzero(self.lengths))

    @property
    def tokens(self) -> int:
        """How many tokens the corpus has."""
        return int(self.lengths.sum(dtype=np.int64))

    def save(self, folder: Path) -> None:
        """Write `terms.parquet` and one `.npy` for each array."""
        folder.mkdir(parents=True, exist_ok=True)
        frame = pl.DataFrame({"term": self.terms, "df": self.df.astype(np.int32)})
        frame.write_parquet(folder / TERMS_FILE)
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name))
        if self.positions is not None:
            np.save(folder / POSITIONS_FILE, self.positions)

    @classmethod
    def open(cls, folder: Path) -> Postings:
        """Map what `save` wrote.

        Raises:
            HybridError: a file is missing or cut short.
        """
        try:
            terms = pl.read_parquet(folder / TERMS_FILE, columns=["term"])["term"]
            arrays = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS]
            positions = folder / POSITIONS_FILE
            arrays += [np.load(positions, mmap_mode="r")] if positions.is_file() else []
        except (OSError, ValueError, pl.exceptions.PolarsError) as error:
            raise HybridError(f"{folder}: is not a whole impact matrix ({error}); index again") from None
        return cls(terms, *arrays)


class PostingsBuilder:
    """Collects documents block by block; holds two integers for each posting, and the dictionary."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._blocks: list[tuple[Longs, Ints, Ints]] = []
        self._lengths: list[Longs] = []

    def add(self, tokens: pa.StringArray, lengths: Longs) -> None:
        """Add documents: their tokens in a row, and how many each has."""
        encoded = tokens.dictionary_encode()
        ids = np.array([self._ids.setdefault(t, len(self._ids)) for t in encoded.dictionary.to_pylist()], np.int64)
        self._lengths.append(lengths)
        if not len(tokens):
            self._blocks.append((np.zeros(len(lengths), np.int64), np.zeros(0, np.int32), np.zeros(0, np.int32)))
            return
        words = ids[encoded.indices.to_numpy(zero_copy_only=False)]
        documents = np.repeat(np.arange(len(lengths)), lengths)
        pairs, counts = np.unique((documents << 32) | words, return_counts=True)
        distinct = np.bincount(pairs >> 32, minlength=len(lengths))
        self._blocks.append((distinct, (pairs & 0xFFFFFFFF).astype(np.int32), counts.astype(np.int32)))

    def finish(self) -> Postings:
        """All that was added, sorted by term; the builder is empty after it."""
        found = pl.Series("term", list(self._ids), pl.String)
        order = found.arg_sort().to_numpy()
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        df = np.zeros(len(order), np.int64)
        for _, words, _ in self._blocks:
            df += np.bincount(place[words], minlength=len(order))
        indptr = np.concatenate(([0], np.cumsum(df)))
        rows, tfs = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.int32)
        cursor, first = indptr[:-1].copy(), 0
        for distinct, words, counts in self._blocks:
            kernels.scatter(first, distinct, place[words], counts, cursor, rows, tfs)
            first += len(distinct)
        lengths = np.concatenate([np.zeros(0, np.int64), *self._lengths]).astype(np.int32)
        self.__init__()  # type: ignore[misc]
        return Postings(found.gather(order), indptr, rows, tfs, lengths)


def count(documents: Sequence[Sequence[str]]) -> Postings:
    """The postings of documents that are analysed already, such as those of a test."""
    builder = PostingsBuilder()
    flat = [token for document in documents for token in document]
    builder.add(pa.array(flat, pa.string()), np.array([len(document) for document in documents], np.int64))
    return builder.finish()


@dataclass(frozen=True)
class Impacts:
    """Postings under a k1 and b.

    Attributes:
        idf: [V] `ln(1 + (N - df + 0.5) / (df + 0.5))`, N the documents that have a token.
        scale: [N] `1 / (k1 * (1 - b + b * length / average length))`; a term's part of a score is
            `idf - idf / (1 + tf * scale)`, which is `idf * tf / (tf + 1 / scale)` as Lucene computes it.
    """

    postings: Postings
    k1: float
    b: float
    idf: Floats
    scale: Floats

    @classmethod
    def of(cls, postings: Postings, k1: float, b: float, *, exact_length: bool = False) -> Impacts:
        """Weigh postings; lengths are rounded as Lucene rounds them unless `exact_length`."""
        counted, one = postings.counted, np.float32(1)
        idf = np.log(1 + (counted - postings.df + 0.5) / (postings.df + 0.5)).astype(np.float32)
        average = np.float32(postings.tokens / counted) if counted else one
        counted_lengths = postings.lengths if postings.positions is None else postings.positions
        lengths = (counted_lengths if exact_length else quantised(counted_lengths)).astype(np.float32)
        k1_, b_ = np.float32(k1), np.float32(b)
        with np.errstate(divide="ignore"):  # k1 = 0 makes BM25 binary
            scale = one / (k1_ * ((one - b_) + b_ * lengths / average))
        return cls(postings, k1, b, idf, scale)

    def values(self) -> Floats:
        """[nnz] the impact of each posting: the weight of the term in the document, IDF included."""
        postings = self.postings
        found: Floats = kernels.values(postings.indptr, postings.rows, postings.tfs, self.idf, self.scale)
        return found
