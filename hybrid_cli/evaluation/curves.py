"""Recall at every depth of a run."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

DEPTHS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)


def recall_by_depth(judged: pl.DataFrame, depths: Sequence[int], level: int = 1) -> pl.DataFrame:
    """Return R@k, averaged over all judged queries, at several depths; 0 for queries without a relevant document.

    Args:
        judged: qid, relevance and `position` of the judged documents, as returned by `judged_hits`.
        depths: in ascending order.
        level: lowest relevant grade.

    Returns:
        depth, recall.
    """
    relevant = judged.filter(pl.col("relevance") >= level)
    share = (1 / pl.len()).over("qid") / judged["qid"].n_unique()
    found = relevant.with_columns(share=share).drop_nulls("position").sort("position")
    summed = found.select(depth=pl.col("position").cast(pl.Int64), recall=pl.col("share").cum_sum())
    asked = pl.DataFrame({"depth": depths}, schema={"depth": pl.Int64})
    return asked.join_asof(summed, on="depth").with_columns(pl.col("recall").fill_null(0.0))


def answered_by_depth(first: pl.DataFrame, depths: Sequence[int]) -> pl.DataFrame:
    """Return the fraction of queries with a relevant document in the top k (Success@k, acc@k), at several depths.

    Args:
        first: qid, rank of the first relevant document (null if there is none).

    Returns:
        depth, recall.
    """
    shares = [int((first["rank"] <= depth).sum()) / max(len(first), 1) for depth in depths]
    return pl.DataFrame({"depth": depths, "recall": shares}, schema={"depth": pl.Int64, "recall": pl.Float64})
