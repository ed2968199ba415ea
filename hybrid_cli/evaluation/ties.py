"""The range of a measure over all orders of equal scores."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from hybrid_cli import console
from hybrid_cli.evaluation.measures import evaluate_positions, judged_hits, mean_of

NOTED = 0.002  # width of a range that is printed
_TIED = ("qid", "docid", "first", "last")


def with_ties(hits: pl.DataFrame) -> pl.DataFrame:
    """Add `first` and `last`, the ranks at the ends of the group of equal scores that contains each hit.

    Args:
        hits: qid, rank, score; whole queries in the order of query and rank.
    """
    begins = pl.col("qid").ne_missing(pl.col("qid").shift(1)) | pl.col("score").ne_missing(pl.col("score").shift(1))
    return hits.with_columns(
        first=pl.when(begins).then("rank").forward_fill(),
        last=pl.when(begins.shift(-1, fill_value=True)).then("rank").backward_fill(),
    )


def note_ties(name: str, hits: pl.DataFrame, qrels: pl.DataFrame, measures: Sequence[str], level: int = 1) -> None:
    """Print the ranges of the measures that depend on the order of equal scores by more than `NOTED`."""
    found = ranges(hits, qrels, measures, level)
    wide = [f"{measure} {low:.4f} to {high:.4f}" for measure, (low, high) in found.items() if high - low > NOTED]
    if wide:
        console.note(f"{name}: depends on the order of equal scores: {', '.join(wide)}")


def ranges(
    hits: pl.DataFrame, qrels: pl.DataFrame, measures: Sequence[str], level: int = 1
) -> dict[str, tuple[float, float]]:
    """Return measure -> lowest and highest mean over the orders of equal scores; empty if no judged hit is tied.

    The lowest has the documents of each group of equal scores in ascending order of grade, documents without a judgment
    first; the highest has the opposite order.

    Args:
        hits: qid, docid, first, last: at least all judged hits, as returned by `with_ties`.
        qrels: qid, docid, relevance.
        measures: names, without `acc@k`.
        level: lowest relevant grade.
    """
    if not measures or not (hits["first"] < hits["last"]).any():
        return {}
    judged = judged_hits(hits.select(*_TIED), qrels)
    place = pl.col("relevance").rank("ordinal", descending=True).over("qid", "first").cast(pl.Int32) - 1
    worst, best = (
        evaluate_positions(judged.with_columns(position=position).drop("first", "last"), measures, level)
        for position in (pl.col("last") - place, pl.col("first") + place)
    )
    return {measure: (mean_of(worst, measure), mean_of(best, measure)) for measure in measures}
