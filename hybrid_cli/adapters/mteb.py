"""An index or a retriever as a model of MTEB's search protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import polars as pl

from hybrid_cli.errors import require_packages
from hybrid_cli.runs.index import Index

with require_packages():
    from mteb.models.model_meta import ModelMeta

Rows: TypeAlias = Iterable[Mapping[str, Any]]


class HybridSearch:
    """Indexes the documents of a task, and ranks them: `mteb.evaluate(HybridSearch(BM25().index), tasks)`.

    Args:
        build: makes an index or a retriever of a data frame of docid, title and text.
        name: name of the results, as `owner/name`.
    """

    def __init__(self, build: Callable[[pl.DataFrame], Index], name: str = "hybrid/retriever") -> None:
        self._build = build
        self.mteb_model_meta = ModelMeta.create_empty({"name": name, "revision": "1"})

    def index(self, corpus: Rows, **task: Any) -> None:
        """Index the documents of a task."""
        rows = [(str(row["id"]), row.get("title") or "", row["text"]) for row in corpus]
        self._index = self._build(pl.DataFrame(rows, ["docid", "title", "text"], orient="row"))

    def search(
        self, queries: Rows, *, top_k: int, top_ranked: Mapping[str, list[str]] | None = None, **task: Any
    ) -> dict[str, dict[str, float]]:
        """Return docid -> score of the hits of each query: of all documents, or of `top_ranked` alone."""
        rows = [(str(row["id"]), row["text"]) for row in queries]
        table, answers = pl.DataFrame(rows, ["qid", "text"], orient="row"), {qid: dict[str, float]() for qid, _ in rows}
        hits = self._index.search(table, top_k if top_ranked is None else len(self._index.documents))
        for qid, docid, score in hits.select("qid", "docid", "score").iter_rows():
            if top_ranked is None or docid in top_ranked[qid]:
                answers[qid][docid] = score
        return answers
