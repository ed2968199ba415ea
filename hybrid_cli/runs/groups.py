"""Passages and their documents: the passages of D are named D#0, D#1, ... (`prepare --split-passages`).

A document has the score of its best passage (BERT-MaxP, section 3.2), or of several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli.errors import InputError
from hybrid_cli.passages import PASSAGE, GroupRule
from hybrid_cli.runs.tables import SortedIds, ranked

SCORES: Mapping[str, pl.Expr] = {  # of a document, from the scores of its passages
    "max": pl.col("score").max(),
    "mean": pl.col("score").mean(),
    "sum2": pl.col("score").top_k(2).sum(),
}


T = TypeVar("T", pl.Series, pl.Expr)


def documents_of(passages: T) -> T:
    """Return the document of each passage; other ids are unchanged."""
    return passages.str.replace(PASSAGE, "")


def are_passages(docids: pl.Series) -> bool:
    """Test whether all ids are those of passages."""
    return bool(len(docids)) and bool(docids.str.contains(PASSAGE).all())


def by_document(hits: pl.DataFrame, rule: GroupRule, depth: int | None = None) -> pl.DataFrame:
    """Return a run of documents from hits of passages.

    Args:
        hits: qid, docid, score of passages.
        rule: `max` is the best passage, `mean` the mean of all given ones, `sum2` the sum of the two best.
        depth: documents per query; None for all.

    Returns:
        A run, and for each document its best passage (column `passage`).
    """
    best = pl.col("docid").sort_by(["score", "docid"], descending=[True, False]).first().alias("passage")
    exact = hits.select("qid", "docid", pl.col("score").cast(pl.Float64), document=documents_of(hits["docid"]))
    grouped = exact.group_by("qid", "document", maintain_order=True).agg(SCORES[rule].alias("score"), best)
    grouped = grouped.rename({"document": "docid"})
    run = ranked(grouped.select("qid", "docid", "score"), depth)
    return run.join(grouped.select("qid", "docid", "passage"), on=["qid", "docid"], how="left", maintain_order="left")


def judgments_of_documents(qrels: pl.DataFrame) -> pl.DataFrame:
    """Return judgments of documents from those of passages: qid, docid, and the highest relevance."""
    documents = qrels.with_columns(docid=documents_of(qrels["docid"]))
    return documents.group_by("qid", "docid", maintain_order=True).agg(pl.col("relevance").max())


def judgments_for(qrels: pl.DataFrame, runs: Iterable[tuple[str, pl.Series]]) -> pl.DataFrame:
    """Return judgments of what runs have: judgments of passages hold for the documents in runs of documents.

    Args:
        qrels: qid, docid, relevance of passages.
        runs: name and some docids of each run.

    Raises:
        InputError: some runs have passages, others documents.
    """
    judged = documents_of(qrels["docid"]).implode()  # whose own ids may end in #NUMBER
    passages = {name: are_passages(docids) and not docids.is_in(judged).any() for name, docids in runs if len(docids)}
    if len(set(passages.values())) > 1:
        documents = next(name for name, kind in passages.items() if not kind)
        problem = f"{documents} has documents, and {next(name for name, kind in passages.items() if kind)} passages"
        raise InputError(f"{problem}; search both with the same --group", code="passages-and-documents", run=documents)
    return qrels if any(passages.values()) or not passages else judgments_of_documents(qrels)


class Expanded(NamedTuple):
    """The passages of some documents.

    Attributes:
        pairs: number of the document of each passage.
        passages: their ids.
    """

    pairs: npt.NDArray[np.int64]
    passages: pl.Series


class Passages:
    """The passages of each document of an index."""

    def __init__(self, docids: pl.Series) -> None:
        """Group the ids of passages, [N]."""
        table = pl.DataFrame({"document": documents_of(docids), "passage": docids}).sort("document", "passage")
        counts = table.group_by("document", maintain_order=True).len()
        self._passages, self._counts = table["passage"], counts["len"].to_numpy().astype(np.int64)
        self._documents, self._begins = SortedIds(counts["document"]), np.cumsum(self._counts) - self._counts

    def __len__(self) -> int:
        return len(self._passages)

    def of(self, documents: pl.Series) -> Expanded:
        """Return the passages of documents [n].

        Raises:
            InputError: a document without passages.
        """
        at = self._documents.positions(documents, "the index has no passage of document")
        counts = self._counts[at]
        pairs = np.repeat(np.arange(len(at)), counts)
        within = np.arange(len(pairs)) - np.repeat(np.cumsum(counts) - counts, counts)
        return Expanded(pairs, self._passages.gather(self._begins[at][pairs] + within))
