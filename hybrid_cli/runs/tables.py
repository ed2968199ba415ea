"""Runs: one row per hit, ordered by query and rank.

`ranked` holds the only tie-breaking rule: score descending, then docid ascending as a string.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from hybrid_cli.errors import InputError
from hybrid_cli.storage import SCHEMAS, Kind

_MANY = 4096  # ids, above which polars takes less time
_FEW = 64  # known ids, for which a dictionary takes the least time
_IN_DICTIONARY = 1 << 17  # sorted ids, of which a dictionary takes some 20 MB
SCHEMA = pl.DataFrame(SCHEMAS[Kind.RUN].empty_table()).schema  # qid, docid, rank, score


def empty() -> pl.DataFrame:
    """Return a run without hits."""
    return pl.DataFrame(schema=SCHEMA)


def ranked(hits: pl.LazyFrame | pl.DataFrame, depth: int | None = None) -> pl.DataFrame:
    """Rank the hits of each query by score, with ties broken by docid.

    Args:
        hits: qid, docid, score.
        depth: hits kept per query; None for all.

    Returns:
        A run; queries keep the order of their first appearance.
    """
    best = pl.col("docid", "score").sort_by(["score", "docid"], descending=[True, False])
    rank = pl.int_range(1, pl.len() + 1, dtype=pl.Int32).alias("rank")
    if depth is not None:
        best, rank = best.head(depth), rank.head(depth)
    ordered = hits.lazy().group_by("qid", maintain_order=True).agg(best, rank).explode("docid", "rank", "score")
    return ordered.select("qid", "docid", "rank", pl.col("score").cast(pl.Float32)).collect()


def ranks(lengths: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return 1 to n for each length n, in one array."""
    ends = np.cumsum(lengths)
    return np.asarray(np.arange(1, lengths.sum() + 1) - np.repeat(ends - lengths, lengths))


def rerank_hits(hits: pl.DataFrame, depth: int) -> pl.DataFrame:
    """Put the rescored hits of each query first, in the order of their new scores.

    The other hits follow in their order. Their scores have the previous distances to the last rescored hit, but are
    below the lowest new score, also where the distance is 0.

    Args:
        hits: qid, docid, rank, score, and new_score, null for hits without one; in the order of query and rank.
        depth: largest rank of a rescored hit.

    Returns:
        A run of the same hits; queries keep their order.
    """
    known = pl.col("new_score").is_not_null() & (pl.col("rank") <= depth)
    first = ranked(hits.filter(known).select("qid", "docid", score="new_score"))
    lowest = pl.col("new_score").filter(known).min().over("qid")
    fall = (pl.col("score") - pl.col("score").filter(known).last().over("qid")).clip(upper_bound=0)
    below = lowest.map_batches(lambda scores: np.nextafter(scores.to_numpy(), np.float32(-np.inf)), pl.Float32)
    score = pl.min_horizontal(lowest + fall.cum_min().over("qid"), below)
    score = pl.when(lowest.is_null()).then("score").otherwise(score)
    rest = hits.with_columns(score=score).filter(~known).select(first.columns).cast(dict(first.schema))  # type: ignore[arg-type]
    order = hits.select("qid").unique(maintain_order=True).with_row_index("position")
    both = pl.concat([first, rest]).join(order, on="qid", maintain_order="left")
    return both.sort("position", "rank").drop("position")


def positions(ids: pl.Series, known: pl.Series, complaint: str) -> npt.NDArray[np.int64]:
    """Return the position of each id in `known`, the first one where ids repeat.

    Args:
        ids: ids to find.
        known: ids to search.
        complaint: start of the error message, before the first unknown id: "no text for query".

    Raises:
        InputError: some ids are unknown.
    """
    wanted = ids.cast(pl.String)
    if len(known) <= _FEW:
        rows_by_id = {text: row for row, text in reversed(list(enumerate(known.cast(pl.String).to_list())))}
        at = np.array([rows_by_id.get(text, -1) for text in wanted.to_list()], np.int64)
        _refuse_unknown(wanted.filter(pl.Series(at < 0, dtype=pl.Boolean)), complaint)
        return at
    mine = pl.col("id").is_in(wanted.implode())  # a hash table of `known` would need 180 bytes per id
    rows = pl.LazyFrame({"id": known.cast(pl.String)}).with_row_index("at").filter(mine).unique("id", keep="first")
    joined = pl.LazyFrame({"id": wanted}).join(rows, on="id", how="left", maintain_order="left").collect()
    _refuse_unknown(joined.filter(pl.col("at").is_null())["id"], complaint)
    return joined["at"].to_numpy().astype(np.int64)


class SortedIds:
    """Unique ids, sorted once: positions of a few ids take the same time in a list of any length.

    Attributes:
        ids: [N] the ids, in string order.
        rows: [N] position of each of `ids` in the given list.
    """

    def __init__(self, known: pl.Series, rows: pl.Series | None = None) -> None:
        """Sort ids; `rows` are their positions, if these are not 0, 1, ..."""
        order = known.arg_sort()
        self.ids, self.rows = known.gather(order), (order if rows is None else rows.gather(order)).to_numpy()
        self._arrow = self.ids.to_arrow()  # a few ids are taken from it in less time than from a series

    def find(self, ids: pl.Series) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the position of each id, and whether it is known; the position of an unknown id means nothing."""
        if not len(self.ids):
            return np.zeros(len(ids), np.int64), np.zeros(len(ids), np.bool_)
        if len(ids) <= _FEW and len(self.ids) <= _IN_DICTIONARY:
            rows = np.array([self._rows_by_id.get(text, -1) for text in ids.to_list()], np.int64)
            return rows, rows >= 0
        at = np.minimum(np.asarray(self.ids.search_sorted(ids)), len(self.ids) - 1)
        if len(ids) > _MANY:
            return self.rows[at].astype(np.int64), self.ids.gather(at).eq_missing(ids).to_numpy()
        same = zip(self._arrow.take(pa.array(at)).to_pylist(), ids.to_list(), strict=True)
        return self.rows[at].astype(np.int64), np.array([one == other for one, other in same], np.bool_)

    @cached_property
    def _rows_by_id(self) -> dict[str, int]:
        return dict(zip(self.ids.to_list(), self.rows.tolist(), strict=True))

    @cached_property
    def numbers(self) -> npt.NDArray[np.int32]:
        """Number [N] in string order of each id of the given list, whose rows are 0, 1, ..."""
        numbers = np.empty(len(self.ids), np.int32)
        numbers[self.rows] = np.arange(len(self.ids), dtype=np.int32)
        return numbers

    def gather(self, at: npt.NDArray[Any]) -> pl.Series:
        """Return the ids at places of the sorted list."""
        return self.ids.gather(at) if len(at) > _MANY else pl.Series(pl.from_arrow(self._arrow.take(pa.array(at))))

    def positions(self, ids: pl.Series, complaint: str) -> npt.NDArray[np.int64]:
        """Return the position of each id; see `positions`."""
        wanted = ids.cast(pl.String)
        rows, known = self.find(wanted)
        _refuse_unknown(wanted.filter(~known), complaint)
        return rows


def _refuse_unknown(ids: pl.Series, complaint: str) -> None:
    if not len(ids):
        return
    unknown = ids.unique(maintain_order=True)
    if len(unknown):
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise InputError(f"{complaint} {unknown[0]}{more}", code="unknown-id", id=unknown[0], count=len(unknown))
