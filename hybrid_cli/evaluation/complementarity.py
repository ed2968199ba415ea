"""What one run finds that another does not: the ratio of complementarity (methods 4.1), overlap and RBO (7.4).

D and S are sets of queries: those for which the dense and the sparse run have a relevant document among their first k
hits. All counts of them come from the rank of the first relevant document, which `first_relevant` gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
import polars as pl

from hybrid_cli import config
from hybrid_cli.evaluation.measures import in_order

_DEFAULT = config.Complementarity()


@dataclass(frozen=True)
class Sets:
    """The two sets of queries at one cutoff, as counts; `queries` are those with anything relevant, U in the paper."""

    cutoff: int
    queries: int
    dense: int
    sparse: int
    dense_only: int
    sparse_only: int
    both: int
    fail: int

    @property
    def roc(self) -> float:
        """RoC(D;S) = |D - S| / |D|, the share of what the dense run finds that is its own; NaN where D is empty."""
        return self.dense_only / self.dense if self.dense else nan

    @property
    def mirror(self) -> float:
        """RoC(S;D) = |S - D| / |S|; NaN where S is empty."""
        return self.sparse_only / self.sparse if self.sparse else nan

    @property
    def oracle(self) -> float:
        """Share of the queries that at least one of the two answers: what a perfect choice between them would reach."""
        return 1 - self.fail / self.queries if self.queries else nan


def first_relevant(run: pl.DataFrame, qrels: pl.DataFrame, level: int = 1) -> pl.DataFrame:
    """Where a run has its first relevant document, for every judged query that has one.

    Args:
        run: qid, docid, rank; the order within a query is that of the ranks.
        qrels: qid, docid, relevance.
        level: the lowest grade that is relevant.

    Returns:
        qid, rank (int32 from 1, null where the run has none or lacks the query), in the order of the qrels.
    """
    relevant = qrels.lazy().filter(pl.col("relevance") >= level).select("qid", "docid")
    found = in_order(run).lazy().join(relevant, on=["qid", "docid"], how="semi")
    first = found.group_by("qid").agg(pl.col("position").min().cast(pl.Int32).alias("rank"))
    queries = relevant.select("qid").unique(maintain_order=True)
    return queries.join(first, on="qid", how="left", maintain_order="left").collect()


def sets(first_dense: pl.DataFrame, first_sparse: pl.DataFrame, cutoff: int) -> Sets:
    """D and S at a cutoff, from what `first_relevant` returned for two runs and the same qrels."""
    ranks = first_dense.join(first_sparse, on="qid", how="left", suffix="_sparse")
    dense = (ranks["rank"] <= cutoff).fill_null(False).to_numpy()
    sparse = (ranks["rank_sparse"] <= cutoff).fill_null(False).to_numpy()
    both, either = int((dense & sparse).sum()), int((dense | sparse).sum())
    found_dense, found_sparse = int(dense.sum()), int(sparse.sum())
    return Sets(
        cutoff=cutoff,
        queries=len(ranks),
        dense=found_dense,
        sparse=found_sparse,
        dense_only=found_dense - both,
        sparse_only=found_sparse - both,
        both=both,
        fail=len(ranks) - either,
    )


# ------------------------------------------------------------------------------------------------- two lists of hits


def overlap(run_a: pl.DataFrame, run_b: pl.DataFrame, cutoff: int) -> pl.DataFrame:
    """Which share of their first hits two runs have in common, for every query that either answers.

    Returns:
        qid, value: documents that both have among their first `cutoff`, divided by the longer of these two lists.
    """
    lengths, meetings = _side_by_side(run_a, run_b, cutoff)
    common = meetings.group_by("qid").len("common")
    share = pl.col("common").fill_null(0) / pl.max_horizontal("length_a", "length_b")
    return lengths.join(common, on="qid", how="left", maintain_order="left").select("qid", value=share)


def rbo(
    run_a: pl.DataFrame, run_b: pl.DataFrame, p: float = _DEFAULT.rbo_p, depth: int = _DEFAULT.rbo_depth
) -> pl.DataFrame:
    """Rank-biased overlap of the first hits of two runs, extrapolated (Webber et al. 2010, equation 32).

    With A_d the overlap at depth d, lists of k hits have (1-p) sum_d p^(d-1) A_d + A_k p^k. In a list that is shorter
    than the other the agreement is taken to go on. Counted by document this is a sum over the common ones: with W(n) =
    (1-p) sum_{d<=n} p^(d-1)/d and E(n) = W(n) + p^n/n, one that both lists hold by depth d adds E(k) - W(d-1), where k
    is the length of the shorter list, or of the longer one if d lies beyond the shorter.

    Args:
        p: how likely a reader goes on to the next document, between 0 and 1.
        depth: hits of each list that are compared.

    Returns:
        qid, value, for every query that either run answers: 1 for equal lists, 0 where nothing is in common.
    """
    lengths, meetings = _side_by_side(run_a, run_b, depth)
    ranks = np.arange(1, depth + 1)
    within = np.concatenate(([0.0], np.cumsum((1 - p) * p ** (ranks - 1) / ranks)))
    extended = within + np.concatenate(([0.0], p**ranks / ranks))
    pairs = meetings.join(lengths, on="qid", how="left", maintain_order="left")
    at, a, b = (pairs[name].to_numpy() for name in ("depth", "length_a", "length_b"))
    end = np.where(at <= np.minimum(a, b), np.minimum(a, b), np.maximum(a, b))
    gains = pairs.select("qid", value=pl.Series(extended[end] - within[at - 1])).group_by("qid").agg(pl.sum("value"))
    found = lengths.join(gains, on="qid", how="left", maintain_order="left")
    return found.select("qid", pl.col("value").fill_null(0.0))


def _side_by_side(run_a: pl.DataFrame, run_b: pl.DataFrame, cutoff: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The lengths of the first `cutoff` hits (qid, length_a, length_b), and where the two lists meet.

    The second frame (qid, depth) has a row for each common document: the depth at which both lists hold it.
    """
    heads = [in_order(run, cutoff) for run in (run_a, run_b)]
    length_a, length_b = (
        head.group_by("qid", maintain_order=True).agg(pl.len().cast(pl.Int64).alias(name))
        for head, name in zip(heads, ("length_a", "length_b"), strict=True)
    )
    lengths = length_a.join(length_b, on="qid", how="full", coalesce=True, maintain_order="left_right").fill_null(0)
    met = heads[0].join(heads[1], on=["qid", "docid"], suffix="_b")
    return lengths, met.select("qid", depth=pl.max_horizontal("position", "position_b").cast(pl.Int64))


# ----------------------------------------------------------------------------------------------------- query by query


def changes(values: pl.DataFrame, run: str, bases: Sequence[str], measure: str) -> pl.DataFrame:
    """How a run differs from the best of some others, query by query.

    Args:
        values: run, measure, qid, value.

    Returns:
        qid, value, base (the highest value among `bases`), change (their difference), in the order of `values`.
    """
    ours = values.filter(run=run, measure=measure).select("qid", "value")
    others = values.filter(pl.col("run").is_in(list(bases)) & (pl.col("measure") == measure))
    best = others.group_by("qid").agg(base=pl.max("value"))
    joined = ours.join(best, on="qid", how="left", maintain_order="left")
    return joined.with_columns(change=pl.col("value") - pl.col("base"))


def tally(changed: pl.DataFrame) -> tuple[int, int, int]:
    """Queries won, tied and lost, from what `changes` returned."""
    signs = changed["change"].sign()
    return int((signs > 0).sum()), int((signs == 0).sum()), int((signs < 0).sum())


def most_changed(changed: pl.DataFrame, count: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The queries hurt most and those helped most, at most `count` of each; equal changes in the order of the qids."""
    hurt = changed.filter(pl.col("change") < 0).sort("change", "qid")
    helped = changed.filter(pl.col("change") > 0).sort("change", "qid", descending=[True, False])
    return hurt.head(count), helped.head(count)
