"""Passages and their documents: the passages of D are named D#0, D#1, ... (`prepare --split-passages`).

A document has the score of its best passage (BERT-MaxP, section 3.2), or of several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli.errors import InputError
from hybrid_cli.passages import PASSAGE, GroupRule
from hybrid_cli.runs.index import Documents, Rows
from hybrid_cli.runs.tables import ranked

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


class Passages:
    """The passages of each document of an index.

    Attributes:
        documents: the documents, in the order of their first passages.
        document: [N] row of the document of each passage.
    """

    def __init__(self, passages: Documents) -> None:
        """Group passages."""
        self._passages, ids = passages, documents_of(passages.ids)
        table = pl.DataFrame({"id": ids}).with_row_index("row")
        first = table.select(pl.col("row").first().over("id")).to_series().to_numpy()
        firsts, self.document = np.unique(first, return_inverse=True)
        self.documents = Documents(ids.gather(firsts))

    @cached_property
    def _order(self) -> npt.NDArray[np.int64]:
        """Rows of all passages by document, and by id within each."""
        return np.lexsort((self._passages.sorted.numbers, self.document))

    def of(self, documents: Rows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the passages of documents [n]: number of the document and row of each."""
        begins, ends = (np.searchsorted(self.document[self._order], documents, side) for side in ("left", "right"))
        counts = ends - begins
        pairs = np.repeat(np.arange(len(documents)), counts)
        within = np.arange(len(pairs)) - np.repeat(np.cumsum(counts) - counts, counts)
        return pairs, self._order[begins[pairs] + within]
