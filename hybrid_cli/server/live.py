"""A retriever that is open for live queries: hits of each column, all candidates of a fusion, and texts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli.artifacts.indexes import group_of, manifests_of, metadata_of, open_texts
from hybrid_cli.artifacts.opening import open_index
from hybrid_cli.artifacts.retrievers import (
    RetrieverFiles,
    StoredRetriever,
    default_fusion,
    find_retriever,
    is_retriever,
    named_indexes,
    of_auto,
    open_retriever,
    user_folder,
)
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.collection import TextStore
from hybrid_cli.commands import SearchOptions
from hybrid_cli.errors import InputError
from hybrid_cli.fusion import lists
from hybrid_cli.fusion.options import HITS
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.passages import NO_GROUPS
from hybrid_cli.retrieval.composed import Grouped, ShardedIndex
from hybrid_cli.retrieval.filters import Metadata, kind_of
from hybrid_cli.retrieval.retriever import Retriever
from hybrid_cli.runs.files import short_names
from hybrid_cli.runs.groups import documents_of
from hybrid_cli.runs.index import Allowed, Documents, Hits, Index, Rows, Scores
from hybrid_cli.runs.tables import SortedIds, empty
from hybrid_cli.storage import Kind

FUSED = "hybrid"  # the column of the fusion
_FILTERS = 16  # whose documents are kept
_VIEWS = 64  # of restricted tokens, kept open
_FACET_VALUES = 20
EXAMPLES, _EXAMPLE_WORDS = 6, 8


Observe = Callable[[str, str, float], None]  # name of a side, step, seconds
Engines = Callable[[Retriever], Mapping[str, Index]]  # name -> search engine, next to a retriever


@dataclass(frozen=True, eq=False)
class Live:
    """An open retriever, or an index alone, and other retrievers to compare it with.

    Attributes:
        files: the retriever on disk; of an index alone, a retriever with one index.
        retriever: the open retriever.
        scales: deviation of each side's scores, in whose units a weight is shown.
        others: name -> retriever or search engine that is shown next to it.
        only: documents of a restricted view; None for all.
    """

    files: RetrieverFiles
    retriever: Retriever
    scales: Sequence[float]
    others: Mapping[str, Index] = field(default_factory=dict)
    only: Allowed | None = None

    @classmethod
    def open(
        cls,
        path: Path,
        others: Sequence[Path] = (),
        options: SearchOptions | None = None,
        observe: Observe = lambda side, step, seconds: None,
        engines: Engines = lambda retriever: {},
    ) -> Live:
        """Open a retriever, the folder of `auto`, or an index.

        Args:
            path: the retriever.
            others: retrievers that are shown next to it.
            options: device and threads; defaults if None.
            observe: receives the seconds of every step of a side: `query` (analysis or encoding), `hits` and `scores`.
            engines: returns name -> index of search engines that are shown next to it.

        Raises:
            InputError: no retriever or index at a path, or one that cannot be opened.
        """
        options = options or SearchOptions()
        files = _files(path)
        retriever = _opened(files, options)
        asked = engines(retriever)
        timed = {name: Timed(side, name, observe) for name, side in retriever.sides.items()}
        retriever, stored = replace(retriever, sides=timed), files.stored
        scales = stored.scales or (1.0,) * len(retriever.sides)
        if stored.scales is None and len(retriever.sides) > 1 and stored.missing == "exact":
            with suppress(InputError):  # no texts, of which the scales are
                scales = default_fusion(retriever.sides, files.manifests).scales
        folders = [of_auto(other) for other in others]
        names = short_names([*map(user_folder, [files.folder, *folders])])[1:] if folders else []
        opened = {name: _opened(_files(folder), options) for name, folder in zip(names, folders, strict=True)}
        live = cls(files, retriever, scales, {**opened, **asked})
        if repeated := next((name for name in live.systems if live.systems.count(name) > 1), None):
            problem = f"two columns are named {repeated}; rename a folder"
            raise InputError(problem, code="repeated-name", option="compare", name=repeated)
        return live

    @property
    def name(self) -> str:
        """Return the name of the folder."""
        return user_folder(self.files.folder).resolve().name

    @property
    def sides(self) -> list[str]:
        """Return the names of the indexes."""
        return list(self.retriever.sides)

    @property
    def kinds(self) -> list[str]:
        """Return `lexical` or `dense` for each side."""
        return ["lexical" if index[0].kind == Kind.LEXICAL_INDEX else "dense" for index in self.files.manifests]

    @property
    def systems(self) -> list[str]:
        """Return the names of all columns: the sides, their fusion, and the other retrievers."""
        return [*self.sides, *([FUSED] if len(self.sides) > 1 else []), *self.others]

    @property
    def main(self) -> str:
        """Return the column of the retriever itself."""
        return FUSED if len(self.sides) > 1 else self.sides[0]

    @property
    def has_exact_scores(self) -> bool:
        """Return whether every index scores any document."""
        return all(len(index) == 1 for index in self.files.manifests)

    @cached_property
    def texts(self) -> TextStore | None:
        """Titles and texts; None if the corpora are not where the indexes record them."""
        store = open_texts(self.files.manifests)
        return store if store is None or self.only is None else store.within(self._visible)

    @cached_property
    def metadata(self) -> Metadata:
        """The metadata of the documents.

        Raises:
            InputError: the corpora are not where the indexes record them.
        """
        return metadata_of(self.files.manifests)

    @cached_property
    def facets(self) -> list[dict[str, Any]]:
        """Name and type of each column of the metadata, with its most frequent values or its range."""
        schema, facets = self.columns, []
        tables = [collections.metadata(corpus, schema) for corpus in self.metadata.corpora] if schema else []
        frame = pl.concat([pl.DataFrame(schema={"docid": pl.String, **schema}), *tables])
        frame = frame.unique("docid", keep="last", maintain_order=True)
        frame = frame if self.only is None else frame.filter(self.only.mask(frame["docid"]))
        for name in frame.columns[1:]:
            column = frame[name]
            kind = kind_of(column.dtype)
            facet: dict[str, Any] = {"name": name, "type": kind}
            if kind == "number":
                facet |= {"min": _finite(column.min()), "max": _finite(column.max())}
            else:
                column = column.explode() if kind == "list" else column
                counts = column.drop_nulls().value_counts(sort=True).head(_FACET_VALUES)
                facet["values"] = [{"value": value, "count": count} for value, count in counts.iter_rows()]
            facets.append(facet)
        return facets

    @property
    def columns(self) -> dict[str, pl.DataType]:
        """Type of each column that a filter may name; none where the corpora have moved."""
        with suppress(InputError):
            return self.metadata.schema
        return {}

    @cached_property
    def examples(self) -> list[str]:
        """Titles of some documents, or their first words, which can be searched for."""
        if self.texts is None:
            return []
        index = next(iter(self.retriever.sides.values()))
        ids = (index.passages or index.documents).ids
        ids = ids if self.only is None else ids.filter(self.only.mask(ids))
        some = self.texts.texts(ids.gather_every(max(1, len(ids) // EXAMPLES)).head(EXAMPLES))
        starts = (" ".join((title or text or "").split()[:_EXAMPLE_WORDS]) for _, title, text in some.iter_rows())
        return [start for start in dict.fromkeys(starts) if start]

    @cached_property
    def documents(self) -> int:
        """Number of indexed documents or passages."""
        if self.only is not None:
            return int(self.only.kept.sum())
        return int(sum(manifest.counts.get("documents", 0) for manifest in self.files.manifests[0]))

    def search(self, queries: pl.DataFrame, k: int, system: str, condition: str | None = None) -> pl.DataFrame:
        """Return the hits of one column.

        Args:
            queries: qid, text.
            k: documents per query.
            system: name of a column.
            condition: filter over the metadata; None for all documents.

        Returns:
            qid, docid, rank, score; of a fusion, `SIDE_rank` and `SIDE_score` of each side, and of a calibrated one
            `probability`; of passages, `passage`.

        Raises:
            InputError: an unknown column, or no condition over known columns.
        """
        if system == self.main and len(self.sides) > 1:
            index: Index = self._within(condition)
        elif system in self.others:
            other = self.others[system]
            index = other if condition is None else other.within(self._allowed(condition))
        elif system in self.sides:
            index = self._within(condition).sides[system]
        else:
            problem = f"system {system}: unknown; choices: {', '.join(self.systems)}"
            raise InputError(problem, code="unknown-choice", option="system", value=system, choices=self.systems)
        return pl.concat(index.runs(queries, k)) if len(queries) else empty()

    def candidates(self, queries: pl.DataFrame, condition: str | None = None, depth: int | None = None) -> pl.DataFrame:
        """Return the documents that some side returns, in the order of the fused scores.

        Args:
            queries: qid, text.
            condition: filter over the metadata; None for all documents.
            depth: hits of each side; None for the depth of the retriever.

        Returns:
            qid, docid, rank, score (fused, without a reranker), and for each side `SIDE_rank`, null if it does not
            return the document, and `SIDE_score`, exact if every index scores any document.
        """
        retriever = self._within(condition)
        if depth is not None and depth != retriever.depth:
            retriever = replace(retriever, depth=depth)
        exact = retriever.recipe.missing == "exact" or self.has_exact_scores
        some = retriever.candidates(retriever.prepare(queries), exact)
        hits = some.fused(retriever.recipe, retriever.depth * len(self.sides))
        columns = some.columns(some.find(hits.queries, hits.rows), self.sides)
        return retriever.table(replace(hits, columns=columns), queries["qid"])

    def values(self, table: pl.DataFrame, docids: Sequence[str] = ()) -> pl.DataFrame:
        """Return the normalized value of each side for the candidates of one query, as the fusion sums them.

        Args:
            table: the result of `candidates` for one query, and further rows.
            docids: documents that are returned; none for all.

        Returns:
            docid, `value_i` of side i (null if ignored), and the fused score.
        """
        recipe = self.retriever.recipe
        columns = []
        for number, name in enumerate(self.sides):
            score, rank = pl.col(f"{name}_score").cast(pl.Float64), pl.col(f"{name}_rank").cast(pl.Float64)
            if recipe.missing == "exact":
                rank = (-score).rank("ordinal").cast(pl.Float64)
            else:
                score = pl.when(rank.is_not_null()).then(score)
            columns += [score.alias(f"score_{number}"), rank.alias(f"rank_{number}")]
        frame = table.sort("docid").select(pl.lit(0, pl.UInt32).alias("query"), "docid", *columns)
        valued = lists.values(frame, recipe)
        scored = valued.hstack([lists.fused(valued, recipe)["score"]])
        return scored.filter(pl.col("docid").is_in(list(docids))) if docids else scored

    def scores(self, queries: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
        """Return `SIDE_score` of any documents; null if an index scores only its hits.

        Args:
            queries: qid, text.
            pairs: qid, docid.

        Raises:
            InputError: a document is not in an index, or not of the view.
        """
        if self.only is not None:
            self._visible.positions(pairs["docid"], "no document")
        columns = [
            side.scorer(queries)(pairs).alias(f"{name}_score")
            if self.has_exact_scores
            else pl.Series(f"{name}_score", [None] * len(pairs), pl.Float32)
            for name, side in self.retriever.sides.items()
        ]
        return pairs.hstack(columns)

    def terms(self, side: str, query: str, docid: str) -> pl.DataFrame | None:
        """Return the terms of a query in a document: term, boost and score; None for a dense side.

        Args:
            side: name of the side.
            query: text of the query.
            docid: a document, or a passage of an index of passages.
        """
        index = self.retriever.sides[side]
        while isinstance(index, Timed | Grouped):
            index = index.index
        parts = index.parts if isinstance(index, ShardedIndex) else [index]
        holders = [part for part in parts if isinstance(part, LexicalIndex) and _holds(part, docid)]
        return holders[0].explain(query, docid) if holders else None

    @cached_property
    def _allowed(self) -> Any:
        return lru_cache(_FILTERS)(lambda condition: self.metadata.allowed(condition, self.only))

    @cached_property
    def _filtered(self) -> Any:
        return lru_cache(_FILTERS)(lambda condition: self.retriever.within(self._allowed(condition)))

    def restricted(self, condition: str) -> Live:
        """Return the retriever for those who may only see the documents of a condition.

        Other documents are not found, shown, explained or counted; scores keep the statistics of all documents.

        Raises:
            InputError: no condition over the columns of the metadata.
        """
        return self._views(condition)  # type: ignore[no-any-return]

    @cached_property
    def _visible(self) -> SortedIds:
        """The documents of the view, and those that its passages are of."""
        assert self.only is not None
        kept = self.only.docids.filter(self.only.kept)
        of_passages = documents_of(kept).filter(~documents_of(kept).is_in(self.only.docids.implode()))
        return SortedIds(pl.concat([kept, of_passages]).unique(maintain_order=True))

    @cached_property
    def _views(self) -> Any:
        def view(condition: str) -> Live:
            only = self.metadata.allowed(condition)
            others = {name: other.within(only) for name, other in self.others.items()}
            return replace(self, retriever=self.retriever.within(only), others=others, only=only)

        return lru_cache(_VIEWS)(view)

    def _within(self, condition: str | None) -> Retriever:
        return self.retriever if condition is None else self._filtered(condition)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Timed(Index):
    """An index that reports the seconds of each step."""

    index: Index
    name: str
    observe: Observe

    @property
    def documents(self) -> Documents:
        """See `Index`."""
        return self.index.documents

    @property
    def passages(self) -> Documents | None:  # type: ignore[override]
        """See `Index`."""
        return self.index.passages

    def prepare(self, queries: pl.DataFrame) -> Any:
        """See `Index`."""
        return self._clocked("query", self.index.prepare, queries)

    def hits(self, prepared: Any, k: int) -> Hits:
        """See `Index`."""
        return self._clocked("hits", self.index.hits, prepared, k)  # type: ignore[no-any-return]

    def scores(self, prepared: Any, queries: Rows, rows: Rows) -> Scores:
        """See `Index`."""
        return self._clocked("scores", self.index.scores, prepared, queries, rows)  # type: ignore[no-any-return]

    def within(self, allowed: Allowed) -> Timed:
        """See `Index`."""
        return replace(self, index=self.index.within(allowed))

    def _clocked(self, step: str, work: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        result = work(*arguments)
        self.observe(self.name, step, time.perf_counter() - start)
        return result


def _holds(index: LexicalIndex, docid: str) -> bool:
    return bool(index.documents.sorted.find(pl.Series([docid]))[1][0])


def _finite(value: Any) -> Any:
    """Return a number that JSON has, or None."""
    return value if value is not None and math.isfinite(value) else None


def _files(path: Path) -> RetrieverFiles:
    """Return a retriever on disk, or an index as a retriever of one index."""
    if (files := find_retriever(path)) is not None:
        return files
    manifests = manifests_of([path])
    group = group_of(None, manifests)
    stored = StoredRetriever(named_indexes([path], path.parent), "weighted-sum", (1.0,), "zero", HITS, group)
    return RetrieverFiles(path, stored, [path], manifests)


def _opened(files: RetrieverFiles, options: SearchOptions) -> Retriever:
    if is_retriever(files.folder):
        return open_retriever(files, options)
    side = open_index(files.folder, options.changed(group=files.stored.group or NO_GROUPS))
    return Retriever({files.names[0]: side}, files.stored.recipe, files.stored.depth)
