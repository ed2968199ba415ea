"""Accuracy at k: the share of questions with an answer among the texts of their first k hits (methods of DPR, SPAR)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from hybrid_cli.collections.answers import matcher, passage_form
from hybrid_cli.config import AnswerMatch
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.measures import ACCURACY, Measure, in_order


def with_answers(queries: pl.DataFrame) -> pl.DataFrame:
    """The queries that have a non-empty answer.

    Raises:
        InputError: none has one.
    """
    asked = queries.filter(pl.col("answers").list.eval(pl.element().str.strip_chars() != "").list.any())
    if len(asked) == 0:
        raise InputError("acc@k needs answers, and no query has any; use Success@k to judge by the qrels")
    return asked


def candidates(run: pl.DataFrame, queries: pl.DataFrame, measures: Sequence[Measure]) -> pl.Series:
    """The documents whose texts `evaluate_answers` will read."""
    hits = in_order(run, _depth(measures)).join(queries, on="qid", how="semi")
    return hits["docid"].unique(maintain_order=True)


def passages(texts: pl.DataFrame, mode: AnswerMatch = "string") -> dict[str, str]:
    """docid -> the form of its text that answers are looked for in; once for all runs and questions."""
    return {docid: passage_form(text, mode) for docid, text in texts.select("docid", "text").iter_rows()}


def evaluate_answers(
    run: pl.DataFrame,
    queries: pl.DataFrame,
    found: Mapping[str, str],
    measures: Sequence[Measure],
    mode: AnswerMatch = "string",
) -> pl.DataFrame:
    """`acc@k` of every query that has answers, 0 where the run has no hits.

    Args:
        run: qid, docid, rank.
        queries: qid, answers (list of strings), as `with_answers` gives them.
        found: what `passages` made of the texts of the first hits.
        measures: those of the family `acc`.

    Returns:
        measure, qid, value (0 or 1), as `evaluate_run` has them.

    Raises:
        InputError: a document of the run is not in the collection.
    """
    wanted = [measure for measure in measures if measure.family is ACCURACY]
    hits = in_order(run, _depth(wanted)).join(queries, on="qid", how="semi")
    listed = hits.group_by("qid", maintain_order=True).agg(pl.col("docid").sort_by("position"))
    ranking = dict(listed.iter_rows())
    first = [
        _first_answer(ranking.get(qid, []), answers, found, mode)
        for qid, answers in queries.select("qid", "answers").iter_rows()
    ]
    rank = pl.Series("rank", first, dtype=pl.Int64)
    return pl.concat(
        pl.select(
            pl.lit(measure.name).alias("measure"),
            queries["qid"],
            (rank <= measure.cutoff).fill_null(False).cast(pl.Float64).alias("value"),
        )
        for measure in wanted
    )


def judgements(
    hits: pl.DataFrame, queries: pl.DataFrame, found: Mapping[str, str], mode: AnswerMatch = "string"
) -> pl.DataFrame:
    """Hits judged by the answers in their texts.

    Args:
        hits: qid, docid, each pair once.
        queries, found: as for `evaluate_answers`.

    Returns:
        qid, docid, relevance (1) of the hits that bear an answer. Every query has a row more without a docid, so that
        one whose answers no hit bears is known to have something relevant.
    """
    bears = {qid: matcher(answers, mode) for qid, answers in queries.select("qid", "answers").iter_rows()}
    rows: list[tuple[str, str | None, int]] = [(qid, None, 1) for qid in bears]
    rows += [(qid, docid, 1) for qid, docid in hits.iter_rows() if qid in bears and bears[qid](_passage(docid, found))]
    schema = {"qid": pl.String, "docid": pl.String, "relevance": pl.Int32}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _depth(measures: Sequence[Measure]) -> int:
    return max(measure.cutoff or 0 for measure in measures if measure.family is ACCURACY)


def _first_answer(
    docids: Sequence[str], answers: Sequence[str], found: Mapping[str, str], mode: AnswerMatch
) -> int | None:
    """The rank of the first passage that bears an answer."""
    bears = matcher(answers, mode)
    for rank, docid in enumerate(docids, 1):
        if bears(_passage(docid, found)):
            return rank
    return None


def _passage(docid: str, found: Mapping[str, str]) -> str:
    if docid not in found:
        raise InputError(f"the run has document '{docid}', which the corpus lacks; name the corpus it was made from")
    return found[docid]
