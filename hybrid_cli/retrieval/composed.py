"""Indexes made of others: passages whose hits are documents, and shards that are searched as one index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli.indexes.dense import DenseIndex
from hybrid_cli.passages import MAX, GroupRule
from hybrid_cli.runs import groups
from hybrid_cli.runs.index import Allowed, Documents, Hits, Index, Rows, Scores

_FIRST = 4  # passages that are searched for each document at first


@dataclass(frozen=True, repr=False)
class Grouped(Index):
    """An index of passages whose hits are documents.

    The documents of a list are those of the first passages, as many as asked for. Their scores are those of their best
    passages (`max`), or by `mean` and `sum2` of the exact scores of all their passages.

    Attributes:
        index: the index of passages.
        rule: how passages score a document.
    """

    index: Index
    rule: GroupRule

    @property
    def kind(self) -> str:  # type: ignore[override]
        """See `Index`."""
        return self.index.kind

    @property
    def system(self) -> str | None:  # type: ignore[override]
        """See `Index`."""
        return self.index.system

    @property
    def passages(self) -> Documents:  # type: ignore[override]
        """The passages."""
        return self.index.documents

    @property
    def documents(self) -> Documents:
        """See `Index`."""
        return self._groups.documents

    @cached_property
    def _groups(self) -> groups.Passages:
        return groups.Passages(self.passages)

    def prepare(self, queries: pl.DataFrame) -> Any:
        """See `Index`."""
        return self.index.prepare(queries)

    def some(self, queries: pl.DataFrame, k: int) -> Iterator[pl.DataFrame]:
        """See `Index`."""
        return self.index.some(queries, _FIRST * k)

    def hits(self, prepared: Any, k: int) -> Hits:
        """See `Index`; `passage` is the best passage of each document."""
        searched = _FIRST * k
        while True:
            found = self.index.hits(prepared, searched)
            queries, rows = found.queries, self._groups.document[found.rows]
            best = np.unique((queries << 32) + rows, return_index=True)[1]  # the first passage of each document
            counts = np.bincount(queries[best], minlength=len(found.counts))
            if not ((counts < k) & (found.counts >= searched)).any():
                break
            searched *= _FIRST
        passages, some = {"passage": found.rows[best]}, (len(counts), queries[best], rows[best])
        hits = Hits.ranked(*some, found.scores[best], self.documents, k, passages)
        if self.rule == MAX:
            return hits
        exact = self._exact(prepared, hits.queries, hits.rows)
        return Hits.ranked(len(counts), hits.queries, hits.rows, exact, self.documents, columns=hits.columns)

    def scores(self, prepared: Any, queries: Rows, rows: Rows) -> Scores:
        """See `Index`."""
        return self._exact(prepared, queries, rows).astype(np.float32)

    def within(self, allowed: Allowed) -> Grouped:
        """See `Index`; passages have the metadata of their documents."""
        other = replace(self, index=self.index.within(allowed))
        other.__dict__["_groups"] = self._groups
        return other

    def _exact(self, prepared: Any, queries: Rows, rows: Rows) -> npt.NDArray[np.float64]:
        """Return the exact scores of documents from those of all their passages."""
        pair, passages = self._groups.of(rows)
        scores = self.index.scores(prepared, queries[pair], passages)
        each = pl.DataFrame({"pair": pair, "score": scores.astype(np.float64)})
        return each.group_by("pair", maintain_order=True).agg(groups.SCORES[self.rule])["score"].to_numpy()


@dataclass(frozen=True, repr=False)
class ShardedIndex(Index):
    """Shards of one index, lexical or dense.

    Attributes:
        parts: the indexes, whose documents follow each other.
    """

    parts: Sequence[Index]
    kind = "an index with shards"

    @property
    def system(self) -> str | None:  # type: ignore[override]
        """See `Index`."""
        return self.parts[0].system

    @cached_property
    def documents(self) -> Documents:
        """See `Index`."""
        return Documents(pl.concat(part.documents.ids for part in self.parts))

    def prepare(self, queries: pl.DataFrame) -> list[Any]:
        """Return the queries for each shard; vectors are the same for all."""
        first = self.parts[0]
        if isinstance(first, DenseIndex):
            return [first.prepare(queries)] * len(self.parts)
        return [part.prepare(queries) for part in self.parts]

    def some(self, queries: pl.DataFrame, k: int) -> Iterator[pl.DataFrame]:
        """See `Index`."""
        return self.parts[0].some(queries, k)

    def hits(self, prepared: list[Any], k: int) -> Hits:
        """See `Index`."""
        hits = [part.hits(queries, k) for part, queries in zip(self.parts, prepared, strict=True)]
        begins = np.cumsum([0, *(len(part.documents) for part in self.parts)])
        rows = np.concatenate([begin + mine.rows for begin, mine in zip(begins, hits, strict=False)])
        queries, scores = (np.concatenate([getattr(mine, name) for mine in hits]) for name in ("queries", "scores"))
        return Hits.ranked(len(hits[0].counts), queries, rows, scores, self.documents, k)

    def within(self, allowed: Allowed) -> ShardedIndex:
        """See `Index`."""
        other = replace(self, parts=[part.within(allowed) for part in self.parts])
        other.__dict__["documents"] = self.documents
        return other
