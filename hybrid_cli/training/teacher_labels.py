"""Sparse rankers as teachers: the best documents of many queries at once (SPAR, methods 7.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from hybrid_cli import runs
from hybrid_cli.artifacts import SCHEMAS, Kind
from hybrid_cli.collections import collection as collections
from hybrid_cli.config import Labelling
from hybrid_cli.errors import InputError
from hybrid_cli.lexical.index import Barred, LexicalIndex
from hybrid_cli.training.negatives import folded

Longs: TypeAlias = npt.NDArray[np.int64]
# Hits of each query, [Q]; docids and scores of all of them, query after query, best first.
Hits: TypeAlias = tuple[npt.NDArray[np.integer], pl.Series, npt.NDArray[np.float32]]
_HASH = folded("text").hash().alias("hash")


class MatrixTeacher:
    """The impact matrix: BM25's own ranking.

    Args:
        index: of `corpus`.
        how: depth, and whether a sentence may find its own passage, or a query passages whose text it is.
    """

    def __init__(self, index: LexicalIndex, corpus: Path, how: Labelling, threads: int | None = None):
        self._index, self._how, self._threads = index, how, threads
        self._copies = None if how.keep_same_text else _Copies(corpus)

    def hits(self, queries: pl.DataFrame) -> Hits:
        """What BM25 finds for queries: text, and the corpus row that a sentence is from (null for others)."""
        bags = self._index.bags(queries["text"].to_list())
        return self._index.hits(bags, self._how.depth, self._threads, self._barred(queries))

    def _barred(self, queries: pl.DataFrame) -> Barred | None:
        numbers, rows = [], []
        if not self._how.keep_own:
            numbers.append(np.arange(len(queries)))
            rows.append(queries["row"].to_numpy())
        if self._copies is not None:
            copied, copies = self._copies.of(queries)
            numbers.append(copied)
            rows.append(copies)
        if not rows:
            return None
        number = np.concatenate(numbers)
        order = np.argsort(number, kind="stable")
        ends = np.concatenate(([0], np.cumsum(np.bincount(number, minlength=len(queries)))))
        return ends, np.concatenate(rows)[order]


class _Copies:
    """The documents whose text is a given one, white space aside; 16 bytes a document."""

    def __init__(self, corpus: Path):
        hashes = collections.scan(corpus).select(_HASH).collect()["hash"].to_numpy()
        self._rows = np.argsort(hashes)
        self._hashes = hashes[self._rows]

    def of(self, queries: pl.DataFrame) -> tuple[Longs, Longs]:
        """Pairs of a query (its place) and the row of a document whose text it is."""
        wanted = queries.select(_HASH)["hash"].to_numpy()
        first, last = (np.searchsorted(self._hashes, wanted, side) for side in ("left", "right"))
        return np.repeat(np.arange(len(wanted)), last - first), self._rows[_ranges(first, last - first)]


class RunTeacher:
    """The ranking that a run holds, such as that of a learned sparse model; the run is in memory whole.

    Args:
        path: the run; what it says of other queries is passed over.
        queries: those that will be asked: qid, text.

    Raises:
        InputError: not a run, a document that the corpus lacks, or none of the queries.
    """

    def __init__(self, path: Path, queries: pl.DataFrame, corpus: Path, how: Labelling):
        run = runs.read_run(path).join(queries, on="qid", how="semi", maintain_order="left")
        if not len(run):
            raise InputError(f"{path}: answers none of the {len(queries):,} queries; name the run of these queries")
        _refuse_unknown(run["docid"], corpus, path)
        if not how.keep_same_text:
            texts = collections.scan(corpus).select("docid", _HASH).collect()
            run = run.join(texts, on="docid", how="left", maintain_order="left").join(
                queries.select("qid", _HASH), on="qid", how="left", maintain_order="left", suffix="_of_query"
            )
            run = run.filter(pl.col("hash") != pl.col("hash_of_query"))
        best = pl.int_range(pl.len()).over("qid") < how.depth
        self._run = run.filter(best).select("qid", "docid", "score").with_row_index("first")
        self._spans = (
            self._run.group_by("qid")
            .agg(pl.col("first").min(), count=pl.len())
            .cast({"first": pl.Int64, "count": pl.Int64})
        )

    def hits(self, queries: pl.DataFrame) -> Hits:
        """What the run has for some of the queries: qid."""
        spans = queries.select("qid").join(self._spans, on="qid", how="left", maintain_order="left").fill_null(0)
        counts = spans["count"].to_numpy()
        found = self._run[_ranges(spans["first"].to_numpy(), counts)]
        return counts, found["docid"], found["score"].to_numpy()


def _ranges(first: Longs, counts: Longs) -> Longs:
    """`counts[i]` numbers from `first[i]` on, for each i in a row."""
    return np.arange(counts.sum()) + np.repeat(first - np.cumsum(counts) + counts, counts)


def _refuse_unknown(found: pl.Series, corpus: Path, where: Path) -> None:
    known = collections.docids(corpus)
    unknown = found.filter(~found.is_in(known.implode())).unique(maintain_order=True)
    if len(unknown):
        names = ", ".join(unknown.head(3)) + (", ..." if len(unknown) > 3 else "")
        raise InputError(
            f"{where}: {len(unknown):,} of its documents are not in {corpus} ({names}); name a run over this corpus"
        )


def labelled(queries: pl.DataFrame, hits: Hits) -> pa.Table:
    """Rows of teacher labels: the queries that have a hit, each with its hits as lists."""
    counts, docids, scores = hits
    ends = np.concatenate(([0], np.cumsum(counts[counts > 0]))).astype(np.int32)
    columns = queries.filter(pl.Series(counts > 0)).select("qid", "text", "source").to_arrow()
    lists = (docids.to_arrow().cast(pa.string()), pa.array(scores, pa.float32()))
    for name, values in zip(("docids", "scores"), lists, strict=True):
        columns = columns.append_column(name, pa.ListArray.from_arrays(ends, values))
    return columns.cast(SCHEMAS[Kind.LABELS])


def uniform_part(blocks: Iterable[pl.DataFrame], total: int, wanted: int, seed: int) -> Iterator[pl.DataFrame]:
    """`wanted` of `total` rows, every set of so many equally likely, in their order and one block in memory.

    Knuth's selection sampling: a row is taken with the probability that is left for it.
    """
    rng = np.random.default_rng(seed)
    for block in blocks:
        taken = np.zeros(len(block), bool)
        for place, draw in enumerate(rng.random(len(block)).tolist()):
            if draw * (total - place) < wanted:
                taken[place] = True
                wanted -= 1
        total -= len(block)
        yield block.filter(taken)
        if not wanted:
            return
