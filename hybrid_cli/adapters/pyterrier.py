"""A retriever as a transformer of PyTerrier."""

from __future__ import annotations

import os
from typing import Any

import polars as pl

from hybrid_cli.api import open_retriever
from hybrid_cli.errors import require_packages
from hybrid_cli.runs.given import frame_of
from hybrid_cli.runs.index import Index

with require_packages():
    import pyterrier


class HybridRetriever(pyterrier.Transformer):  # type: ignore[misc]  # mypy does not see the base class
    """The hits of an index or a retriever for a table of queries: qid, query.

    The result has their columns, and docno, docid, rank (from 0), score, title and text.
    """

    def __init__(self, index: Index | str | os.PathLike[str], k: int = 1000, filter: str | None = None) -> None:
        """Take an index, or open a retriever.

        Args:
            index: an index or retriever of Python, or the folder of a retriever or of `auto`, or its URL.
            k: documents per query.
            filter: condition over the metadata of documents.

        Raises:
            InputError: see `open_retriever`.
        """
        super().__init__()
        self._index = index if isinstance(index, Index) else open_retriever(index)
        self._k, self._filter = k, filter

    def transform(self, inp: Any) -> Any:
        """Return the hits of queries, a data frame of pandas as theirs; see the class."""
        asked = frame_of(inp, "the queries").with_columns(pl.col("qid").cast(pl.String))
        hits = self._index.search(asked.select("qid", "query"), self._k, self._filter)
        further = {name: hits[name].to_list() for name in ("title", "text") if name in hits.columns}
        named = hits.select(
            "qid", "docid", docno="docid", rank=pl.col("rank") - 1, score=pl.col("score").cast(pl.Float64)
        )
        columns: dict[str, Any] = named.to_dict(as_series=False) | further
        found = type(inp)(columns)  # of pandas
        return found.merge(inp.assign(qid=inp["qid"].astype(str)).drop_duplicates("qid"), on="qid", how="left")
