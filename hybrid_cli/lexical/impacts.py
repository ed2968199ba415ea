"""The impact matrix: term frequencies and document lengths, from which BM25 is computed for any k1 and b.

Postings are stored by term: rows of documents in ascending order, with term frequencies. k1, b and the collection
statistics enter BM25 as one factor per document and one per term, so k1 and b can change without a rebuild. The
arithmetic is Lucene's: single precision, summed in double precision, so that scores agree to the last bit (BM25/Lucene,
the variant without the factor k1 + 1; Lucene rounds document lengths to one byte).

The same postings hold learned weights, as integers in the place of term frequencies: as counts for BM25 (DeepCT), or as
impacts that are summed as they are (SPLADE, UniCOIL).
"""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli import memory, storage
from hybrid_cli.errors import DamageError, HybridError
from hybrid_cli.lexical.keys import PART_BITS, Bounds, Matrix
from hybrid_cli.storage import disk, layout

RANGE_POSTINGS, LEAST_POSTINGS = 4, 64  # postings of a range on average; of a term with ranges, at least
POSTINGS_AT_ONCE = 1 << 26  # postings whose order is changed in memory
_FILLING = threading.Lock()
_ARRAYS = ("indptr", "lows", "slots", "starts", "highs", "tfs", "lengths")
READ_WHOLE = tuple(
    f"{layout.IMPACTS}/{name}"
    for name in (
        *(f"{name}.npy" for name in _ARRAYS if name not in ("lows", "tfs")),
        layout.TERMS,
        layout.CHECKSUMS,
        layout.POSITIONS,
        layout.COLLECTION,
        layout.COLLECTION_DF,
    )
)  # files of an index that are compared with its manifest when it is opened; the others by `Checksums`
_COUNTS = (np.uint8, np.uint16, np.int32)  # types of term frequencies
CHECKED = 1 << 14  # postings of a checksum
_USES = 8  # of a term in queries, for which its bounds are worth their computation

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


def decode_length(byte: int) -> int:
    """Return the shortest document length that Lucene stores as `byte`: exact below 40, then 4 significant bits."""
    if byte < 24:
        return byte
    rest = byte - 24
    if rest < 8:
        return 24 + rest
    shift = (rest >> 3) - 1
    return 24 + ((8 | (rest & 7)) << shift)


_DECODED = np.array([decode_length(byte) for byte in range(256)], np.int64)


def quantize_lengths(lengths: npt.NDArray[np.integer]) -> Longs:
    """Round lengths down to those that Lucene's length byte can represent."""
    decoded: Longs = _DECODED[np.searchsorted(_DECODED, lengths, side="right") - 1]
    return decoded


@dataclass(frozen=True)
class Statistics:
    """Collection statistics of BM25.

    Attributes:
        df: [V] document frequency of each term.
        counted: number of documents with at least one token: Lucene's N.
        tokens: number of tokens.
    """

    df: Longs
    counted: int
    tokens: int


@dataclass(frozen=True)
class Postings:
    """Sparse matrix of term frequencies by term, independent of k1 and b.

    Attributes:
        terms: [V] dictionary in string order; a term's id is its position.
        indptr: [V+1] start of each term's postings.
        lows, slots, starts, highs: documents, ascending within a term; see `keys.Matrix`.
        tfs: [nnz] term frequencies, or quantized weights; uint8 if they fit, or a larger type.
        lengths: [N] tokens per document, 0 for empty documents; or sums of the weights.
        positions: [N] document lengths for BM25 where an analyzer puts several tokens at one position.
        collection: statistics over all shards, for the postings of a shard.
        checksums: checks of postings on disk.
    """

    terms: pl.Series
    indptr: Longs
    lows: npt.NDArray[np.uint16]
    slots: Longs
    starts: npt.NDArray[np.uint32]
    highs: npt.NDArray[np.uint16]
    tfs: npt.NDArray[np.integer]
    lengths: Ints
    positions: Longs | None = None
    collection: Statistics | None = None
    checksums: Checksums | None = None

    @classmethod
    def empty(cls, terms: pl.Series, df: Longs, largest: int, lengths: Ints) -> Postings:
        """Return postings without documents, for the kernels `put` and `end_parts`.

        Args:
            terms: [V] dictionary.
            df: [V] number of postings of each term.
            largest: largest term frequency.
            lengths: [N] tokens per document.
        """
        indptr, parts = np.concatenate(([0], np.cumsum(df))), _parts(lengths)
        slots, values = np.zeros(0, np.int64), (0, 0)
        if parts > 1:
            frequent = df > 2 * (parts + 1)  # a place for each part takes less than a part for each posting
            first, high = np.cumsum(frequent * (parts + 1)), np.cumsum(df * ~frequent)
            slots = np.where(frequent, first - (parts + 1), -1 - (high - df))
            values = (int(first[-1]), int(high[-1])) if len(df) else values
        size, kind = int(indptr[-1]), _smallest(largest)
        memory.require(
            (2 + np.dtype(kind).itemsize) * size + 4 * values[0] + 2 * values[1], f"the matrix of {size:,} postings"
        )
        lows, tfs = np.empty(size, np.uint16), np.empty((size,), kind)
        starts, highs = np.zeros(values[0], np.uint32), np.empty(values[1], np.uint16)
        return cls(terms, indptr, lows, slots, starts, highs, tfs, lengths)

    @classmethod
    def of(cls, terms: pl.Series, indptr: Longs, rows: Ints, tfs: npt.NDArray[np.integer], lengths: Ints) -> Postings:
        """Store postings given by documents [nnz], ascending within a term, and term frequencies [nnz]."""
        postings = cls.empty(terms, np.diff(indptr), int(tfs.max(initial=0)), lengths)
        postings.tfs[:] = tfs
        if len(postings.slots):
            from hybrid_cli.lexical import kernels

            kernels.encode_all(rows, postings.matrix(None))
        else:
            postings.lows[:] = rows
        return postings

    def matrix(self, scale: Floats | None, terms: Ints | None = None) -> Matrix:
        """Return the postings in the form of the kernels.

        Args:
            scale: of `Impacts`.
            terms: the terms that are read; all by default. Their postings are compared with the checksums.

        Raises:
            DamageError: postings have changed on the disk.
        """
        if self.checksums is not None:
            self.checksums.check(self, terms)
        return Matrix(
            self.indptr, self.lows, self.tfs, scale, _parts(self.lengths), self.slots, self.starts, self.highs
        )

    @property
    def rows(self) -> Ints:
        """Document of each posting, [nnz], decoded at each call."""
        from hybrid_cli.lexical import kernels

        rows = np.empty(len(self), np.int32)
        kernels.decode_all(self.matrix(None), rows)
        return rows

    def __len__(self) -> int:
        return len(self.lows)

    @property
    def statistics(self) -> Statistics:
        """Statistics that determine the scores: of all shards, or of these postings."""
        return self.collection or Statistics(self.df, self.counted, self.tokens)

    @property
    def df(self) -> Longs:
        """Document frequency of each term, [V]."""
        return np.diff(self.indptr)

    @property
    def counted(self) -> int:
        """Number of documents with at least one token."""
        return int(np.count_nonzero(self.lengths))

    @property
    def tokens(self) -> int:
        """Number of tokens in the corpus."""
        return int(self.lengths.sum(dtype=np.int64))

    def save(self, folder: Path) -> None:
        """Write `terms.parquet` and one `.npy` file per array."""
        folder.mkdir(parents=True, exist_ok=True)
        frame = pl.DataFrame({"term": self.terms, "df": self.df.astype(np.int32)})
        with disk.create(folder / layout.TERMS) as file:
            frame.write_parquet(file)
        for name in _ARRAYS:
            save_array(folder / f"{name}.npy", getattr(self, name))
        save_array(folder / layout.CHECKSUMS, Checksums.of(self))
        if self.positions is not None:
            save_array(folder / layout.POSITIONS, self.positions)

    @classmethod
    def open(cls, folder: Path) -> Postings:
        """Memory-map the files of `save`.

        Raises:
            HybridError: a file is missing, truncated, or of another type.
        """
        try:
            terms = pl.read_parquet(folder / layout.TERMS, columns=["term"], glob=False)["term"]
            arrays: list[Any] = [np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in _ARRAYS]
            _refuse_other_types(dict(zip(_ARRAYS, arrays, strict=True)))
            positions = folder / layout.POSITIONS
            arrays += [np.load(positions, mmap_mode="r") if positions.is_file() else None, None]
            if (folder / layout.COLLECTION).is_file():
                counts = np.load(folder / layout.COLLECTION).tolist()
                arrays[-1] = Statistics(np.load(folder / layout.COLLECTION_DF, mmap_mode="r"), *counts)
            arrays += [Checksums(folder, np.load(folder / layout.CHECKSUMS))]
        except (OSError, ValueError, EOFError, SyntaxError, TokenError, pl.exceptions.PolarsError) as error:
            problem = f"{folder}: incomplete impact matrix ({error}); repeat the command of the index with --overwrite"
            raise HybridError(problem, code="incomplete-matrix", path=folder) from None
        return cls(terms, *arrays)

    def extended(self, kept: npt.NDArray[np.bool_], added: Postings) -> Postings:
        """Return the postings of some of the documents, followed by those of other documents.

        They equal the postings of a new count of these documents in this order, except for `positions`, which is None.

        Args:
            kept: [N] documents to keep.
            added: postings of the other documents.
        """
        from hybrid_cli.lexical import kernels

        before, after = self.matrix(None), added.matrix(None)
        df = kernels.kept_counts(before, kept)
        terms = pl.concat([self.terms.filter(pl.Series(df > 0)), added.terms]).unique().sort()
        new_ids = np.where(df > 0, positions_of_terms(self.terms, terms), -1)
        added_ids = positions_of_terms(added.terms, terms)
        counts = np.bincount(added_ids, weights=added.df, minlength=len(terms)).astype(np.int64)
        counts[new_ids[df > 0]] += df[df > 0]
        first, renumbered = int(kept.sum()), np.where(kept, np.cumsum(kept) - 1, -1)
        shifted = first + np.arange(len(added.lengths))
        largest = max(int(self.tfs.max(initial=0)), int(added.tfs.max(initial=0)))
        lengths = np.concatenate([self.lengths[kept], added.lengths])
        whole = Postings.empty(terms, counts, largest, lengths)
        matrix, cursor = whole.matrix(None), whole.indptr[:-1].copy()
        kernels.copy_postings(before, renumbered, new_ids, cursor, matrix)
        kernels.copy_postings(after, shifted, added_ids, cursor, matrix)
        kernels.end_parts(matrix)
        return whole.narrow()

    def narrow(self) -> Postings:
        """Return the postings with the smallest type of term frequencies."""
        return replace(self, tfs=self.tfs.astype(_smallest(int(self.tfs.max(initial=0))), copy=False))


class Checksums:
    """CRC-32 of blocks of postings on the disk, compared with the postings when they are first read.

    An index of many gigabytes is not read as a whole for a search.
    """

    def __init__(self, folder: Path, values: npt.NDArray[np.uint32]):
        self.folder, self.values = folder, values
        self._good = np.zeros(len(values), np.bool_)

    @staticmethod
    def of(postings: Postings) -> npt.NDArray[np.uint32]:
        """Return the checksum of each block of postings."""
        blocks = range(-(-len(postings) // CHECKED))
        return np.array([_checksum(postings, block) for block in blocks], np.uint32)

    def check(self, postings: Postings, terms: Ints | None) -> None:
        """Compare the blocks with postings of some terms that were not read before; see `Postings.matrix`."""
        if terms is None:
            wanted = np.flatnonzero(~self._good)
        else:
            begin, end = postings.indptr[terms] // CHECKED, (postings.indptr[terms + 1] - 1) // CHECKED
            counts = end + 1 - begin
            blocks = np.arange(counts.sum()) + np.repeat(begin - np.cumsum(counts) + counts, counts)
            wanted = np.unique(blocks[~self._good[blocks]])
        for block in wanted.tolist():
            if _checksum(postings, block) != self.values[block]:
                problem = (
                    f"{self.folder}: postings changed on the disk after they were written; repeat the command of the "
                    "index with --overwrite"
                )
                raise DamageError(problem, code="damaged", path=self.folder)
            self._good[block] = True


def _checksum(postings: Postings, block: int) -> int:
    some = slice(block * CHECKED, (block + 1) * CHECKED)
    return zlib.crc32(postings.tfs[some].data, zlib.crc32(postings.lows[some].data))


def _refuse_other_types(arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Refuse postings of another type or number; their checksums do not cover the headers of the files.

    Raises:
        ValueError: names the file.
    """
    for name, kinds in (("lows", (np.uint16,)), ("tfs", _COUNTS)):
        if arrays[name].dtype not in kinds or arrays[name].shape != (arrays["indptr"][-1],):
            raise ValueError(f"{name}.npy has other postings than indptr.npy counts")


def _smallest(largest: int) -> npt.DTypeLike:
    """Return the smallest type of term frequencies up to `largest`."""
    return next(kind for kind in _COUNTS if largest <= np.iinfo(kind).max)


def _parts(lengths: Ints) -> int:
    """Return the number of parts of a corpus; see `keys.Matrix`."""
    return max(1, -(-len(lengths) // (1 << PART_BITS)))


def positions_of_terms(terms: pl.Series, among: pl.Series) -> Longs:
    """Return the position of each term in `among`; -1 for absent ones."""
    rows = pl.DataFrame({"term": among}).with_row_index("position", offset=0)
    joined = pl.DataFrame({"term": terms}).join(rows, on="term", how="left", maintain_order="left")["position"]
    ids: Longs = joined.cast(pl.Int64).fill_null(-1).to_numpy()
    return ids


def save_array(path: Path, values: np.ndarray) -> None:
    """Write an array as `.npy`."""
    with disk.create(path) as file:
        np.save(file, values)


@dataclass(frozen=True)
class Impacts:
    """Postings weighted with a k1 and b (BM25/Lucene), or learned weights as they are.

    Attributes:
        k1, b: parameters of BM25; nan for learned weights.
        idf: [V] `ln(1 + (N - df + 0.5) / (df + 0.5))`, where N counts documents with at least one token; for learned
            weights the unit of the scores.
        scale: [N] `1 / (k1 * (1 - b + b * length / average length))`. A term adds `idf - idf / (1 + tf * scale)` to the
            score, which is how Lucene computes `idf * tf / (tf + 1 / scale)`. None for learned weights: a term adds
            `idf * tf`.
    """

    postings: Postings
    k1: float
    b: float
    idf: Floats
    scale: Floats | None

    @classmethod
    def learned(cls, postings: Postings, unit: float) -> Impacts:
        """Take the weights as they are; scores are sums of products of integers, in units of `unit`."""
        return cls(postings, math.nan, math.nan, np.full(len(postings.terms), unit, np.float32), None)

    @classmethod
    def of(cls, postings: Postings, k1: float, b: float) -> Impacts:
        """Weight postings, with document lengths rounded as in Lucene."""
        collection, one = postings.statistics, np.float32(1)
        df, counted = collection.df, collection.counted
        idf = np.log(1 + (counted - df + 0.5) / (df + 0.5)).astype(np.float32)
        average = np.float32(collection.tokens / counted) if counted else one
        lengths = quantize_lengths(postings.lengths if postings.positions is None else postings.positions).astype(
            np.float32
        )
        k1_, b_ = np.float32(k1), np.float32(b)
        with np.errstate(divide="ignore"):  # k1 = 0 makes BM25 binary
            scale = one / (k1_ * ((one - b_) + b_ * lengths / average))
        return cls(postings, k1, b, idf, scale)

    def of_documents(self, wanted: Longs) -> DocumentImpacts:
        """Return the impacts of some documents, in one pass over the postings.

        Args:
            wanted: [n] distinct rows.
        """
        from hybrid_cli.lexical import kernels

        postings = self.postings
        positions, counts = np.full(len(postings.lengths), -1, np.int32), np.zeros(len(wanted), np.int64)
        positions[wanted] = np.arange(len(wanted), dtype=np.int32)
        kernels.count(positions, self.matrix, counts)
        ends = np.concatenate(([0], np.cumsum(counts)))
        terms, values = np.empty(ends[-1], np.int32), np.empty(ends[-1], np.float32)
        kernels.transpose(positions, self.matrix, self.idf, ends[:-1].copy(), terms, values)
        return DocumentImpacts(ends, terms, values, len(self.idf))

    def blocks(self) -> Iterator[DocumentImpacts]:
        """Yield the impacts of consecutive documents: 8 bytes for each of 64 million postings, 4 bytes per document."""
        from hybrid_cli.lexical import kernels

        size = len(self.postings.lengths)
        counts = np.zeros(size, np.int64)
        kernels.count(np.arange(size, dtype=np.int32), self.matrix, counts)
        ends = np.cumsum(counts)
        full = np.searchsorted(ends, np.arange(POSTINGS_AT_ONCE, counts.sum(), POSTINGS_AT_ONCE), side="right")
        bounds = np.unique([0, *full.tolist(), size]).tolist()
        yield from (self.of_documents(np.arange(*pair)) for pair in pairwise(bounds))

    def by_document(self, folder: Path) -> DocumentImpacts:
        """Write the impacts of all documents to `folder`, unless they are there, and memory-map them; see `blocks`."""
        if not folder.exists():
            with storage.replacing(folder) as scratch:
                scratch.mkdir()
                _save_blocks(scratch, self.blocks())
        return DocumentImpacts(
            np.load(folder / layout.IMPACT_ENDS, mmap_mode="r"),
            _mapped(folder / layout.IMPACT_TERMS, np.int32),
            _mapped(folder / layout.IMPACT_VALUES, np.float32),
            len(self.idf),
        )

    @property
    def matrix(self) -> Matrix:
        """All postings in the form of the kernels."""
        return self.postings.matrix(self.scale)

    def bounds(self, terms: Ints) -> Bounds:
        """Return bounds, computed for the terms that occur in several queries in one pass over their postings.

        Args:
            terms: [T] terms of queries, with repetitions.
        """
        if self._bounds.ready[terms].all():
            return self._bounds
        with _FILLING:
            used, counts = np.unique(terms, return_counts=True)
            self._uses[used] = np.minimum(self._uses[used] + counts, _USES)
            new = used[(self._uses[used] == _USES) & ~self._bounds.ready[used]]
            if len(new):
                from hybrid_cli.lexical import kernels

                kernels.fill_bounds(new, self.postings.matrix(self.scale, new), self._bounds)
        return self._bounds

    @cached_property
    def _uses(self) -> npt.NDArray[np.uint8]:
        """Number of queries with each term, up to `_USES`."""
        return np.zeros(len(self.idf), np.uint8)

    @cached_property
    def _bounds(self) -> Bounds:
        """Bounds of no term yet; the system allots memory to those that are filled in."""
        df, size = self.postings.df, len(self.postings.lengths)
        shifts = np.ceil(np.log2(np.maximum(1, RANGE_POSTINGS * size / np.maximum(1, df)))).astype(np.int64)
        ranged = df >= LEAST_POSTINGS
        ends = np.concatenate(([0], np.cumsum(ranged * ((size >> shifts) + 1))))
        start_ends = np.concatenate(([0], np.cumsum(ranged * ((size >> (shifts + 2)) + 2))))
        shifts = np.where(ranged, shifts, -1).astype(np.int8)
        peaks, starts = np.zeros(ends[-1], np.uint8), np.zeros(start_ends[-1], np.int32)
        ready, largest, tenth = (
            np.zeros(len(df), np.bool_),
            np.zeros(len(df), np.float32),
            np.zeros(len(df), np.float32),
        )
        most = 1.0 if self.scale is not None else float(np.iinfo(self.postings.tfs.dtype).max)
        return Bounds(most, ready, largest, tenth, shifts, ends, peaks, start_ends, starts)

    def values(self) -> Floats:
        """Return the impact of each posting, [nnz]: the weight of the term in the document, including IDF."""
        from hybrid_cli.lexical import kernels

        impacts: Floats = kernels.values(self.matrix, self.idf)
        return impacts


@dataclass(frozen=True)
class DocumentImpacts:
    """Impacts by document.

    Attributes:
        ends: [N+1] start of each document's impacts.
        terms: [nnz] terms, ascending within a document.
        values: [nnz] impacts, including IDF.
        vocabulary: number of terms.
    """

    ends: Longs
    terms: Ints
    values: Floats
    vocabulary: int

    def __len__(self) -> int:
        return len(self.ends) - 1

    def rows(self, rows: Longs) -> Any:
        """Return the impacts of documents, scipy CSR [n, vocabulary]."""
        from scipy.sparse import csr_matrix

        counts = self.ends[rows + 1] - self.ends[rows]
        ends = np.concatenate(([0], np.cumsum(counts)))
        positions = np.arange(ends[-1]) + np.repeat(self.ends[rows] - ends[:-1], counts)
        return csr_matrix((self.values[positions], self.terms[positions], ends), shape=(len(rows), self.vocabulary))


def _mapped(file: Path, kind: Any) -> Any:
    return np.memmap(file, kind, "r") if file.stat().st_size else np.empty(0, kind)  # an empty file cannot be mapped


def _save_blocks(folder: Path, blocks: Iterable[DocumentImpacts]) -> None:
    """Write consecutive documents."""
    counts = []
    with disk.create(folder / layout.IMPACT_TERMS) as terms, disk.create(folder / layout.IMPACT_VALUES) as values:
        for block in blocks:
            terms.write(block.terms.data)
            values.write(block.values.data)
            counts.append(np.diff(block.ends))
            del block  # before the next one is made
    save_array(folder / layout.IMPACT_ENDS, np.concatenate(([0], np.cumsum(np.concatenate(counts)))))
