"""Engines that Python scripts load from tables: `documents.parquet`, `load.py` and `ask.py`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from hybrid_cli.exports.documents import Served, write_line
from hybrid_cli.exports.engine import Fusion, Request
from hybrid_cli.exports.parquet import Parquet
from hybrid_cli.indexes.shards import Advance
from hybrid_cli.passages import NO_GROUPS
from hybrid_cli.storage import disk

TIES = "Documents with equal scores in a list may have other ranks there, and others of them are cut off."
_PASSAGES = 10  # asked for per document


class Tables(Parquet):
    """Tables, a script that loads them, and one that asks the queries.

    Attributes:
        name: name of the format.
    """

    name: ClassVar[str]

    def write(self, served: Served, folder: Path, advance: Advance) -> int:
        """See `Engine`."""
        for name, text in self.scripts(served).items():
            disk.write_text(folder / name, text)
        return super().write(served, folder, advance)

    @abstractmethod
    def scripts(self, served: Served) -> Mapping[str, str]:
        """Return name -> text of the scripts."""

    def write_queries(self, served: Served, queries: pl.DataFrame, folder: Path, request: Request | None) -> None:
        """Write `queries.jsonl`: qid, text and the request, with vectors and the ids of terms."""
        with disk.create_text(folder / "queries.jsonl") as file:
            for query in queries.iter_rows(named=True):
                body = {} if request is None else {"request": request(query)}
                write_line(file, {"qid": query["qid"], "text": query["text"], **body})


def hits_of(fusion: Fusion) -> int:
    """Return the number of hits that a request asks for: several passages for each document."""
    return fusion.hits if fusion.group == NO_GROUPS else _PASSAGES * fusion.hits


def both(query: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield ids and frequencies of the terms of a query."""
    return zip(query["indices"], query["values"], strict=True)
