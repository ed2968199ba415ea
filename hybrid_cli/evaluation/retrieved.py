"""The hits of runs that are measured, collected in one pass over blocks of queries, and those that are judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from hybrid_cli import console
from hybrid_cli.collections import collection as collections
from hybrid_cli.draws import draw
from hybrid_cli.evaluation.measures import evaluate_hits, note_ties, with_ties, without_query
from hybrid_cli.runs import Run, empty

_JUDGED = (pl.col("qid"), pl.col("docid"), pl.col("rank").alias("position"), pl.col("first"), pl.col("last"))


@dataclass(frozen=True)
class Retrieved:
    """The judged hits and the top hits of a run.

    Attributes:
        lengths: qid, length: queries with hits, and how many.
        judged: qid, docid, position (from 1) of the hits with a judgment; first and last position of their groups of
            equal scores.
        head: qid, docid, rank, score of the top hits of every query.
        removed: number of hits removed because their docid is the qid, or because of an earlier judgment.
    """

    lengths: pl.DataFrame
    judged: pl.DataFrame
    head: pl.DataFrame
    removed: int

    @property
    def longest(self) -> int:
        """Return the number of hits of the longest list; 0 for an empty run."""
        return int(self.lengths["length"].to_numpy().max(initial=0))


def removes_query(judged: Path | None, split: str | None = None, advice: str = "") -> bool:
    """Return whether hits with the id of their query are removed before a run is measured, and note it.

    They are where `prepare` found that the queries are documents of the corpus (BEIR: ArguAna, Quora).

    Args:
        judged: collection or file with the judgments.
        split: split of the collection.
        advice: end of the note.
    """
    count = 0 if judged is None else collections.queries_in_corpus(judged, split)
    if count:
        queries = f"{judged}: {count:,} queries{f' of {split}' if split else ''} are documents of the corpus"
        note = f"{queries}; hits with the id of their query are removed{advice}"
        console.note(note, code="queries-in-corpus", path=judged)
    return bool(count)


def retrieved(
    run: Run, qrels: pl.DataFrame | None, depth: int, remove_query: bool = False, residual: pl.DataFrame | None = None
) -> Retrieved:
    """Collect hits of a run.

    Args:
        run: the run.
        qrels: qid, docid, relevance; None collects no judged hits.
        depth: top hits collected per query.
        remove_query: remove hits whose docid is the qid, before positions are counted.
        residual: qid, docid of hits that are also removed.
    """
    lengths, judged, head = [], [], []
    pairs = None if qrels is None else qrels.select("qid", "docid")
    kept = 0
    for block in run.blocks():
        hits = block.select("qid", "docid", "rank", "score")
        if remove_query:
            hits = without_query(hits)
        if residual is not None:
            hits = hits.join(residual, on=["qid", "docid"], how="anti", maintain_order="left")
        if remove_query or residual is not None:
            hits = hits.with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32).over("qid"))
        kept += len(hits)
        lengths.append(hits.select(pl.col("qid").rle().alias("span")).unnest("span"))
        if pairs is not None:
            hits_judged = with_ties(hits).join(pairs, on=["qid", "docid"], how="semi", maintain_order="left")
            judged.append(hits_judged.select(_JUDGED))
        head.append(hits.filter(pl.col("rank") <= depth))
    counted = pl.concat([pl.DataFrame(schema={"len": pl.UInt32, "value": pl.String}), *lengths])
    return Retrieved(
        lengths=counted.select(qid="value", length=pl.col("len").cast(pl.Int64)),
        judged=pl.concat([with_ties(empty()).select(_JUDGED), *judged]),
        head=pl.concat([empty(), *head]),
        removed=run.rows - kept,
    )


def judged_values(
    name: str, run: Run, qrels: pl.DataFrame, measure: str, hits: int, remove_query: bool = False
) -> pl.DataFrame:
    """Return the value of every judged query, and note a range over the orders of equal scores.

    Args:
        name: name of the run, for the note.
        run: the run.
        qrels: qid, docid, relevance.
        measure: name of the measure.
        hits: hits measured per query.
        remove_query: see `retrieved`.
    """
    found = retrieved(run, qrels, 0, remove_query)
    judged = found.judged.filter(pl.col("position") <= hits)
    values = evaluate_hits(judged, found.lengths["qid"], qrels, [measure])
    note_ties(name, judged, qrels, [measure])
    return values


# --------------------------------------------------------------------------------------------------------------- pools

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
    tops = [retrieved(run, None, max(depth, OVERLAP_DEPTH)).head for run in runs]
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
