"""Pools for judging: the top hits of several runs, query by query, in an order that does not depend on the runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from hybrid_cli.draws import draw
from hybrid_cli.runs import Run

OVERLAP_DEPTH = 10


@dataclass(frozen=True)
class Pool:
    """The hits of one query that are judged.

    Attributes:
        qid: id of the query.
        docids: pooled documents, in random order.
        disagreement: distinct documents among the first `OVERLAP_DEPTH` hits of the runs, divided by the number of
            these hits; 0 if fewer than two runs answer the query.
    """

    qid: str
    docids: tuple[str, ...]
    disagreement: float


def pools(runs: Sequence[Run], depth: int, seed: int, shuffled: bool = False) -> list[Pool]:
    """Pool the first `depth` hits of every run.

    Queries on which the runs disagree come first: a query for which all runs return the same documents gives no
    evidence about their weights. Queries of equal disagreement are in random order. Every draw depends on the seed and
    the ids alone, so another run adds hits to a pool without reordering the others.

    Args:
        runs: at least one run.
        depth: hits pooled per run and query.
        seed: seed of both orders.
        shuffled: put all queries in random order.
    """
    tops = [_top(run, max(depth, OVERLAP_DEPTH)) for run in runs]
    whole = pl.concat([top.with_columns(run=pl.lit(number)) for number, top in enumerate(tops)])
    near = whole.filter(pl.col("rank") <= OVERLAP_DEPTH).group_by("qid")
    spread = near.agg(
        disagreement=pl.when(pl.col("run").n_unique() > 1).then(pl.col("docid").n_unique() / pl.len()).otherwise(0.0)
    )
    docids = whole.filter(pl.col("rank") <= depth).group_by("qid").agg(pl.col("docid").unique())
    pooled_rows = docids.join(spread, on="qid").iter_rows()
    made = [
        Pool(qid, tuple(sorted(pooled, key=lambda docid: draw(seed, "hit", qid, docid))), disagreement)
        for qid, pooled, disagreement in pooled_rows
    ]
    return sorted(made, key=lambda pool: (not shuffled and -pool.disagreement, draw(seed, "query", pool.qid)))


def _top(run: Run, depth: int) -> pl.DataFrame:
    """Return qid, docid and rank of the first hits of every query."""
    return pl.concat([pl.DataFrame(schema=_TOP), *_heads(run, depth)])


_TOP = {"qid": pl.String, "docid": pl.String, "rank": pl.Int32}


def _heads(run: Run, depth: int) -> Iterator[pl.DataFrame]:
    for block in run.blocks():
        yield block.filter(pl.col("rank") <= depth).select("qid", "docid", pl.col("rank").cast(pl.Int32))
