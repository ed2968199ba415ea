"""The queries that a fused run hurts and helps most, with their texts and the top documents of each list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from hybrid_cli.evaluation.complementarity import changes, most_changed

SHOWN_HITS = 3
_TEXT_CHARACTERS = 200


@dataclass(frozen=True)
class Hit:
    """One hit with the start of its text; `title` and `text` are empty without a corpus."""

    docid: str
    title: str
    text: str
    relevant: bool


@dataclass(frozen=True)
class Listed:
    """One run on one query: value, rank of the first relevant document, top hits."""

    value: float
    first: int | None
    hits: Sequence[Hit]


@dataclass(frozen=True)
class Changed:
    """A query on which a run differs much from the better of two others.

    Attributes:
        text: text of the query; empty without queries.
        change: value of `run` minus the better value of the two.
        lists: name -> list, of the two and of `run`.
    """

    run: str
    qid: str
    text: str
    change: float
    lists: Mapping[str, Listed]


def pick(values: pl.DataFrame, others: Sequence[str], pair: tuple[str, str], measure: str, count: int) -> pl.DataFrame:
    """Choose the queries to show: for each run those it hurts most, worst first, then those it helps most.

    Args:
        values: run, measure, qid, value.
        others: the runs.
        pair: two runs; the better value of the two is the baseline.
        measure: name of the measure.
        count: queries hurt, and queries helped, per run.

    Returns:
        run, qid, change.
    """
    schema = {"run": pl.String, "qid": pl.String, "change": pl.Float64}
    picked = [
        part.select(pl.lit(run).alias("run"), "qid", "change")
        for run in others
        for part in most_changed(changes(values, run, pair, measure), count)
    ]
    return pl.concat([pl.DataFrame(schema=schema), *picked])


def first_hits(
    heads: Mapping[str, pl.DataFrame], relevant: pl.DataFrame, picked: pl.DataFrame, count: int
) -> pl.DataFrame:
    """Return the top hits of every run for the chosen queries.

    Args:
        heads: name -> qid, docid, rank.
        relevant: qid, docid of the relevant documents.
        picked: result of `pick`.
        count: hits per list.

    Returns:
        run, qid, docid, rank, relevant.
    """
    qids = picked["qid"].implode()
    shown = [
        head.filter(pl.col("qid").is_in(qids) & (pl.col("rank") <= count)).select(
            pl.lit(name).alias("run"), "qid", "docid", "rank"
        )
        for name, head in heads.items()
    ]
    known = relevant.select("qid", "docid", relevant=pl.lit(True))
    joined = pl.concat(shown).join(known, on=["qid", "docid"], how="left", maintain_order="left")
    return joined.with_columns(pl.col("relevant").fill_null(False)).sort("run", "qid", "rank")


def describe(
    picked: pl.DataFrame,
    pair: tuple[str, str],
    values: pl.DataFrame,
    first: Mapping[str, pl.DataFrame],
    hits: pl.DataFrame,
    queries: pl.DataFrame,
    documents: pl.DataFrame,
) -> list[Changed]:
    """Add texts and lists to the chosen queries.

    Args:
        picked: result of `pick`.
        pair: the two baseline runs.
        values: run, qid, value of the measure.
        first: name -> qid, rank of the first relevant document (null if there is none).
        hits: result of `first_hits`.
        queries: qid, text; may be incomplete.
        documents: docid, title, text; may be incomplete.
    """
    asked = {qid: " ".join(text.split()) for qid, text in queries.join(picked, on="qid", how="semi").iter_rows()}
    text = pl.col("text").fill_null("").str.head(_TEXT_CHARACTERS)
    shown = hits.join(documents, on="docid", how="left", maintain_order="left").with_columns(
        pl.col("title").fill_null(""), text
    )

    def listed(run: str, qid: str) -> Listed:
        value = values.filter(run=run, qid=qid)["value"].item()
        ranks = first[run].filter(qid=qid)["rank"]
        rows = shown.filter(run=run, qid=qid).select("docid", "title", "text", "relevant")
        return Listed(value, ranks[0] if len(ranks) else None, [Hit(*row) for row in rows.iter_rows()])

    return [
        Changed(run, qid, asked.get(qid, ""), change, {name: listed(name, qid) for name in (*pair, run)})
        for run, qid, change in picked.select("run", "qid", "change").iter_rows()
    ]
