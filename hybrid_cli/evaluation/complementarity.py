"""Measures of complementarity: RoC, overlap, rank-biased overlap, and changes per query.

D and S are the sets of queries for which the dense and the sparse run have a relevant document in the top k
(RoC, section 3.1). Their sizes follow from the rank of the first relevant document; see `first_relevant`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
import polars as pl

from hybrid_cli.evaluation.measures import in_order

CUTOFFS = (1, 5, 10, 20, 100)
RBO_P, RBO_DEPTH = 0.9, 100  # p: SPAR, table 6; depth: our choice, as R@100


@dataclass(frozen=True)
class Sets:
    """Sizes of D and S at one cutoff; `queries` counts those with a relevant document (U in RoC)."""

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
        """Return RoC(D;S) = |D - S| / |D|, the fraction of D that only the dense run answers; NaN if D is empty."""
        return self.dense_only / self.dense if self.dense else nan

    @property
    def mirror(self) -> float:
        """Return RoC(S;D) = |S - D| / |S|; NaN if S is empty."""
        return self.sparse_only / self.sparse if self.sparse else nan

    @property
    def oracle(self) -> float:
        """Return the fraction of queries in D or S: the bound of any choice between the two lists."""
        return 1 - self.fail / self.queries if self.queries else nan

    def interval(self, count: int, of: int | None = None) -> tuple[float, float]:
        """Return the ends of the 95% Wilson interval of a count, as shares of `of` queries (all); of none, 0 and 1."""
        from scipy.stats import binomtest  # slow to import

        whole = self.queries if of is None else of
        if not whole:
            return 0.0, 1.0
        found = binomtest(count, whole).proportion_ci(0.95, "wilson")
        return float(found.low), float(found.high)


def first_relevant(run: pl.DataFrame, qrels: pl.DataFrame, level: int = 1) -> pl.DataFrame:
    """Return the rank of the first relevant document, for every query with one in the qrels.

    Args:
        run: qid, docid, rank.
        qrels: qid, docid, relevance.
        level: lowest relevant grade.

    Returns:
        qid, rank (int32 from 1; null if the run has no relevant document for the query), in the order of the qrels.
    """
    return first_position(in_order(run), qrels, level)


def first_position(hits: pl.DataFrame, qrels: pl.DataFrame, level: int = 1) -> pl.DataFrame:
    """Return the same from qid, docid, position of the judged hits."""
    relevant = qrels.lazy().filter(pl.col("relevance") >= level).select("qid", "docid")
    hits_relevant = hits.lazy().join(relevant, on=["qid", "docid"], how="semi")
    first = hits_relevant.group_by("qid").agg(pl.col("position").min().cast(pl.Int32).alias("rank"))
    queries = relevant.select("qid").unique(maintain_order=True)
    return queries.join(first, on="qid", how="left", maintain_order="left").collect()


def sets(first_dense: pl.DataFrame, first_sparse: pl.DataFrame, cutoff: int) -> Sets:
    """Return the sizes of D and S at a cutoff, from the `first_relevant` of two runs and the same qrels."""
    ranks = first_dense.join(first_sparse, on="qid", how="left", suffix="_sparse")
    dense = (ranks["rank"] <= cutoff).fill_null(False).to_numpy()
    sparse = (ranks["rank_sparse"] <= cutoff).fill_null(False).to_numpy()
    both, either = int((dense & sparse).sum()), int((dense | sparse).sum())
    answered_dense, answered_sparse = int(dense.sum()), int(sparse.sum())
    return Sets(
        cutoff=cutoff,
        queries=len(ranks),
        dense=answered_dense,
        sparse=answered_sparse,
        dense_only=answered_dense - both,
        sparse_only=answered_sparse - both,
        both=both,
        fail=len(ranks) - either,
    )


# -------------------------------------------------------------------------------------------------------------- overlap


def overlap(run_a: pl.DataFrame, run_b: pl.DataFrame, cutoff: int) -> pl.DataFrame:
    """Return the fraction of common documents in the top `cutoff` of two runs.

    Returns:
        qid, value: common documents divided by the length of the longer list, for every query of either run.
    """
    lengths, meetings = _side_by_side(run_a, run_b, cutoff)
    common = meetings.group_by("qid").len("common")
    share = pl.col("common").fill_null(0) / pl.max_horizontal("length_a", "length_b")
    return lengths.join(common, on="qid", how="left", maintain_order="left").select("qid", value=share)


def rbo(run_a: pl.DataFrame, run_b: pl.DataFrame, p: float = RBO_P, depth: int = RBO_DEPTH) -> pl.DataFrame:
    """Return the extrapolated rank-biased overlap of two runs (RBO, eq. 32).

    With A_d the overlap at depth d, lists of k hits have (1-p) sum_d p^(d-1) A_d + A_k p^k. Beyond the end of the
    shorter list, the agreement is assumed to continue. Computed as a sum over common documents: with W(n) =
    (1-p) sum_{d<=n} p^(d-1)/d and E(n) = W(n) + p^n/n, a document that both lists contain by depth d adds
    E(k) - W(d-1), where k is the length of the shorter list, or of the longer one if d exceeds the shorter.

    Args:
        run_a, run_b: qid, docid, rank.
        p: persistence: the probability that a user continues to the next document.
        depth: hits compared of each list.

    Returns:
        qid, value, for every query of either run: 1 for equal lists, 0 for disjoint ones.
    """
    lengths, meetings = _side_by_side(run_a, run_b, depth)
    ranks = np.arange(1, depth + 1)
    within = np.concatenate(([0.0], np.cumsum((1 - p) * p ** (ranks - 1) / ranks)))
    extended = within + np.concatenate(([0.0], p**ranks / ranks))
    pairs = meetings.join(lengths.with_row_index("query"), on="qid", how="left", maintain_order="left")
    at, a, b, query = (pairs[name].to_numpy() for name in ("depth", "length_a", "length_b", "query"))
    end = np.where(at <= np.minimum(a, b), np.minimum(a, b), np.maximum(a, b))
    # added in the order of the ranks: a sum of a parallel group-by may differ in the last bit between two calls
    gains = np.bincount(query, extended[end] - within[at - 1], minlength=len(lengths))
    return lengths.select("qid", value=pl.Series(gains, dtype=pl.Float64))


def _side_by_side(run_a: pl.DataFrame, run_b: pl.DataFrame, cutoff: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the lengths of the top `cutoff` of both lists (qid, length_a, length_b), and their common documents.

    The second frame (qid, depth) has one row per common document: the depth at which both lists contain it.
    """
    heads = [in_order(run, cutoff) for run in (run_a, run_b)]
    length_a, length_b = (
        head.group_by("qid", maintain_order=True).agg(pl.len().cast(pl.Int64).alias(name))
        for head, name in zip(heads, ("length_a", "length_b"), strict=True)
    )
    lengths = length_a.join(length_b, on="qid", how="full", coalesce=True, maintain_order="left_right").fill_null(0)
    met = heads[0].join(heads[1], on=["qid", "docid"], suffix="_b", maintain_order="left")
    return lengths, met.select("qid", depth=pl.max_horizontal("position", "position_b").cast(pl.Int64))


# ---------------------------------------------------------------------------------------------------- changes per query


def changes(values: pl.DataFrame, run: str, bases: Sequence[str], measure: str) -> pl.DataFrame:
    """Return the change of each query's value relative to the best of some other runs.

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
    """Count wins, ties and losses in the result of `changes`."""
    signs = changed["change"].sign()
    return int((signs > 0).sum()), int((signs == 0).sum()), int((signs < 0).sum())


def most_changed(changed: pl.DataFrame, count: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the queries hurt most and helped most, at most `count` of each; ties ordered by qid."""
    hurt = changed.filter(pl.col("change") < 0).sort("change", "qid")
    helped = changed.filter(pl.col("change") > 0).sort("change", "qid", descending=[True, False])
    return hurt.head(count), helped.head(count)
