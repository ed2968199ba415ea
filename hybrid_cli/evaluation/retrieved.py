"""The hits of a run that an evaluation needs, collected in one pass over blocks of queries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from hybrid_cli import console
from hybrid_cli.collections import collection
from hybrid_cli.evaluation.measures import with_ties, without_query
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
    count = 0 if judged is None else collection.queries_in_corpus(judged, split)
    if count:
        console.note(
            f"{judged}: {count:,} queries{f' of {split}' if split else ''} are documents of the corpus; hits with the "
            f"id of their query are removed{advice}",
            code="queries-in-corpus",
            path=judged,
            count=count,
        )
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
