"""A run that is read a block of queries at a time, whether it is in memory or in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from hybrid_cli import memory
from hybrid_cli.runs.tables import ranks

BLOCK_ROWS = 1 << 16
ROW_BYTES = 640  # to read, join and measure a row of a block
_HELD_ROW = 64  # of docid and score in memory
Reader = Callable[[int, int], pl.DataFrame]


@dataclass(frozen=True)
class Run:
    """A run, in the order of query and rank.

    Attributes:
        queries: qid, begin (row of the first hit), length (number of hits), first and last (scores of these hits).
        rows: number of rows.
        deviation: standard deviation of all scores.
        reader: returns docid and score of the rows from `begin` to `end`.
        in_memory: whether `reader` reads from memory, so that any order is fast.
    """

    queries: pl.DataFrame
    rows: int
    deviation: float
    reader: Reader = field(repr=False)
    in_memory: bool = True

    @classmethod
    def of(cls, table: pl.DataFrame) -> Run:
        """Return the run of a table (qid, docid, rank, score); the hits of a query may be in several places."""
        begins = table.select(pl.col("qid").rle().struct.field("value"))
        if begins["value"].n_unique() != len(begins):
            first = pl.int_range(pl.len()).min().over("qid")
            table = table.sort(first, "rank", maintain_order=True)
        survey = Survey()
        survey.add(table)
        return survey.run(of_table(table.select("docid", "score")))

    @property
    def qids(self) -> pl.Series:
        """Return the ids of the queries, in order."""
        return self.queries["qid"]

    @property
    def rising(self) -> float:
        """Return the fraction of queries with several hits whose last hit has a higher score than the first."""
        several = self.queries.filter(pl.col("length") > 1)
        return float((several["first"] < several["last"]).to_numpy().mean()) if len(several) else 0.0

    def of_queries(self, qids: pl.Series) -> Run:
        """Return the same run, restricted to some queries."""
        return replace(self, queries=self.queries.filter(pl.col("qid").is_in(qids.unique().implode())))

    def in_order(self, qids: pl.Series) -> Run:
        """Return the same run, restricted to some queries in the given order.

        Hits in another order of queries than the file's are held in memory.
        """
        placed = qids.to_frame("qid").join(self.queries, on="qid", maintain_order="left")
        run = self if placed["begin"].is_sorted() else self.held()
        return replace(run, queries=placed)

    def top(self, hits: int | None) -> Run:
        """Return the same run with at most `hits` hits per query."""
        return (
            self if hits is None else replace(self, queries=self.queries.with_columns(pl.col("length").clip(0, hits)))
        )

    @property
    def first_docids(self) -> pl.Series:
        """Return the documents of the first query."""
        begins, lengths = (self.queries[name].head(1).to_numpy() for name in ("begin", "length"))
        return self.gathered(begins, lengths)["docid"]

    @property
    def hits(self) -> int:
        """Return the number of hits of all queries."""
        return int(self.queries["length"].sum())

    def by_qid(self) -> Run:
        """Return the same run with the queries in the order of their ids."""
        return self if self.qids.is_sorted() else replace(self.held(), queries=self.queries.sort("qid"))

    def blocks(self, rows: int | None = None) -> Iterator[pl.DataFrame]:
        """Yield qid, docid, rank, score in blocks of whole queries, of about `rows` rows."""
        rows = rows or BLOCK_ROWS
        begins, lengths = (self.queries[name].to_numpy() for name in ("begin", "length"))
        block = (np.cumsum(lengths) - 1) // rows
        for number in np.unique(block):
            first, last = np.searchsorted(block, [number, number + 1])
            yield self._block(begins[first:last], lengths[first:last], self.qids[int(first) : int(last)])

    def _block(self, begins: np.ndarray, lengths: np.ndarray, qids: pl.Series) -> pl.DataFrame:
        hits = self.gathered(begins, lengths)
        query = pl.Series(np.repeat(np.arange(len(qids)), lengths))
        return pl.DataFrame(
            {
                "qid": qids.gather(query),
                "docid": hits["docid"],
                "rank": pl.Series(ranks(lengths), dtype=pl.Int32),
                "score": hits["score"],
            }
        )

    def gathered(self, begins: np.ndarray, lengths: np.ndarray) -> pl.DataFrame:
        """Return docid and score of several spans of rows, in the given order; adjacent spans are read at once."""
        begins, lengths = begins[lengths > 0], lengths[lengths > 0]
        if not len(begins):
            return self.reader(0, 0)
        ends = begins + lengths
        heads = np.flatnonzero(np.append(True, begins[1:] != ends[:-1]))
        tails = np.append(heads[1:], len(begins)) - 1
        return pl.concat([self.reader(int(b), int(e)) for b, e in zip(begins[heads], ends[tails], strict=True)])

    def held(self) -> Run:
        """Return the same run with its hits in memory, for reading in any order."""
        if self.in_memory:
            return self
        memory.require(_HELD_ROW * self.rows, "a run in another order of queries")
        begins = range(0, max(self.rows, 1), BLOCK_ROWS)
        parts = [self.reader(begin, min(begin + BLOCK_ROWS, self.rows)) for begin in begins]
        table = pl.concat(parts, rechunk=True)
        return replace(self, reader=of_table(table), in_memory=True)

    def table(self) -> pl.DataFrame:
        """Return the whole run: qid, docid, rank, score."""
        begins, lengths = (self.queries[name].to_numpy() for name in ("begin", "length"))
        return self._block(begins, lengths, self.qids)


def of_table(table: pl.DataFrame) -> Reader:
    """Return a reader of a table (docid, score) in memory."""
    return lambda begin, end: table.slice(begin, end - begin)


class Survey:
    """Queries and statistics of a run, collected from blocks of whole queries."""

    def __init__(self) -> None:
        self.rows = 0
        self._mean = self._squares = 0.0
        self._parts: list[pl.DataFrame] = []

    @property
    def repeats(self) -> bool:
        """Return whether the hits of a query are in several places."""
        qids = pl.concat([pl.Series("qid", [], pl.String), *(part["qid"] for part in self._parts)])
        return qids.n_unique() < len(qids)

    @staticmethod
    def fits(block: pl.DataFrame, from_1: bool) -> bool:
        """Test whether a block (qid, docid, rank, score) of whole queries is part of a valid run in order.

        Args:
            from_1: ranks must be 1, 2, 3, ...; otherwise they may start anywhere and have gaps.
        """
        if block.null_count().sum_horizontal().item() or not block["score"].is_finite().all():
            return False
        if (block["docid"] == "").any() or (block["qid"] == "").any():
            return False
        spans = block.select(pl.col("qid").rle().alias("span")).unnest("span")
        lengths = spans["len"].to_numpy()
        if spans["value"].n_unique() < len(spans):
            return False
        rank, counted = block["rank"].to_numpy(), ranks(lengths.astype(np.int64))
        if not np.array_equal(rank, counted) and (from_1 or not (np.diff(rank) > 0)[counted[1:] > 1].all()):
            return False
        hits = pl.DataFrame({"query": np.repeat(np.arange(len(spans)), lengths), "docid": block["docid"]})
        return bool(hits.group_by("query").agg(pl.col("docid").n_unique() == pl.len())["docid"].all())

    def add(self, block: pl.DataFrame) -> None:
        """Add a block (qid, score); queries are in one piece."""
        if not len(block):
            return
        spans = block.select(pl.col("qid").rle().alias("span")).unnest("span")
        length = spans["len"].cast(pl.Int64)
        begin = length.cum_sum() - length
        scores = block["score"]
        self._parts.append(
            pl.DataFrame(
                {
                    "qid": spans["value"],
                    "begin": begin + self.rows,
                    "length": length,
                    "first": scores.gather(begin),
                    "last": scores.gather(begin + length - 1),
                }
            )
        )
        self._count(scores.cast(pl.Float64).to_numpy())

    def _count(self, scores: np.ndarray) -> None:
        """Merge mean and sum of squared differences (parallel variance)."""
        total, shift = self.rows + len(scores), scores.mean() - self._mean
        self._squares += ((scores - scores.mean()) ** 2).sum() + shift**2 * self.rows * len(scores) / total
        self._mean += shift * len(scores) / total
        self.rows = total

    def run(self, reader: Reader, in_memory: bool = True) -> Run:
        """Return the run; `reader` reads its rows."""
        empty = pl.DataFrame(
            schema={"qid": pl.String, "begin": pl.Int64, "length": pl.Int64, "first": pl.Float32, "last": pl.Float32}
        )
        queries = pl.concat([empty, *(part.cast(dict(empty.schema)) for part in self._parts)])  # type: ignore[arg-type]
        deviation = float(np.sqrt(self._squares / (self.rows - 1))) if self.rows > 1 else 0.0
        return Run(queries, self.rows, deviation, reader, in_memory)
