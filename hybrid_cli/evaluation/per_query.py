"""The queries that a fused run hurts and helps most, with their texts and the first documents of each list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from hybrid_cli.evaluation.complementarity import changes, most_changed

_TEXT_CHARACTERS = 200


@dataclass(frozen=True)
class Hit:
    """A document as it is shown; `title` and `text` (its beginning) are empty where no texts are known."""

    docid: str
    title: str
    text: str
    relevant: bool


@dataclass(frozen=True)
class Listed:
    """What one run has for a query: its value, the rank of its first relevant document if any, its first hits."""

    value: float
    first: int | None
    hits: Sequence[Hit]


@dataclass(frozen=True)
class Changed:
    """A query on which a run is far from the better of two others.

    Attributes:
        text: of the query; empty where no texts are known.
        change: the value of `run` minus the better one of the two.
        lists: of the two and of `run`, by name.
    """

    run: str
    qid: str
    text: str
    change: float
    lists: Mapping[str, Listed]


def pick(values: pl.DataFrame, others: Sequence[str], pair: tuple[str, str], measure: str, count: int) -> pl.DataFrame:
    """The queries to show: of each other run those it hurts most, worst first, then those it helps most.

    Args:
        values: run, measure, qid, value.
        pair: the two runs whose better value is the base.
        count: queries hurt, and queries helped, of each run.

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
    """The first hits of every run for the picked queries.

    Args:
        heads: name -> qid, docid, rank.
        relevant: qid, docid of what is relevant.
        count: hits of each list.

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
    """The picked queries in words.

    Args:
        values: run, qid, value of the measure they were picked by.
        first: name -> qid, rank of the first relevant document, null where there is none.
        hits: what `first_hits` returns.
        queries: qid, text. documents: docid, title, text. Both may lack rows.
    """
    asked = {qid: " ".join(text.split()) for qid, text in queries.join(picked, on="qid", how="semi").iter_rows()}
    text = pl.col("text").fill_null("").str.head(_TEXT_CHARACTERS)
    told = hits.join(documents, on="docid", how="left", maintain_order="left").with_columns(
        pl.col("title").fill_null(""), text
    )

    def listed(run: str, qid: str) -> Listed:
        value = values.filter(run=run, qid=qid)["value"].item()
        ranks = first[run].filter(qid=qid)["rank"]
        rows = told.filter(run=run, qid=qid).select("docid", "title", "text", "relevant")
        return Listed(value, ranks[0] if len(ranks) else None, [Hit(*row) for row in rows.iter_rows()])

    return [
        Changed(run, qid, asked.get(qid, ""), change, {name: listed(name, qid) for name in (*pair, run)})
        for run, qid, change in picked.select("run", "qid", "change").iter_rows()
    ]
