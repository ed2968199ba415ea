"""A retriever that is open for live queries: hits of each column, all candidates of a fusion, and texts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.text_store import TextStore
from hybrid_cli.errors import InputError
from hybrid_cli.fusion import lists
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.fusion.options import HITS
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.opening.default_fusion import default_fusion
from hybrid_cli.opening.provenance import corpora_of, existing_paths, group_of, metadata_of, warn_lost
from hybrid_cli.opening.searcher import LexicalSearcher, RetrieverSearcher, open_index
from hybrid_cli.opening.stored_retriever import (
    RetrieverFiles,
    StoredRetriever,
    manifests_of,
    named_indexes,
    retriever_at,
)
from hybrid_cli.passages import NO_GROUPS
from hybrid_cli.retrieval.filters import Allowed, Metadata
from hybrid_cli.retrieval.grouped import Grouped
from hybrid_cli.retrieval.in_memory import Answers
from hybrid_cli.retrieval.numbered import NumberedAnswers, NumberedSide
from hybrid_cli.retrieval.retriever import Retriever, Side
from hybrid_cli.runs.names import short_names
from hybrid_cli.settings import SearchOptions
from hybrid_cli.storage import Kind

FUSED = "hybrid"  # the column of the fusion
_FILTERS = 16  # whose documents are kept
_FACET_VALUES = 20


Observe = Callable[[str, str, float], None]  # name of a side, step, seconds


@dataclass(frozen=True, eq=False)
class Live:
    """An open retriever, or an index alone, and other retrievers to compare it with.

    Attributes:
        files: the retriever on disk; of an index alone, a retriever with one index.
        retriever: the open retriever.
        scales: deviation of each side's scores, in whose units a weight is shown.
        others: name -> retriever that is shown next to it.
    """

    files: RetrieverFiles
    retriever: Retriever
    scales: Sequence[float]
    others: Mapping[str, RetrieverSearcher] = field(default_factory=dict)

    @classmethod
    def open(
        cls, path: Path, others: Sequence[Path] = (), options: SearchOptions | None = None,
        observe: Observe = lambda side, step, seconds: None,
    ) -> Live:  # fmt: skip
        """Open a retriever, the folder of `auto`, or an index.

        Args:
            path: the retriever.
            others: retrievers that are shown next to it.
            options: device and threads; defaults if None.
            observe: receives the seconds of every step of a side: `query` (analysis or encoding), `hits` and `scores`.

        Raises:
            InputError: no retriever or index at a path, or one that cannot be opened.
        """
        options = options or SearchOptions()
        files = _files(path)
        retriever = _opened(files, options)
        timed = {name: _Timed(side, name, observe) for name, side in retriever.sides.items()}
        retriever, stored = replace(retriever, sides=timed), files.stored
        scales = stored.scales or (1.0,) * len(retriever.sides)
        if stored.scales is None and len(retriever.sides) > 1 and stored.missing == "exact":
            with suppress(InputError):  # no texts, of which the scales are
                scales = default_fusion(retriever.sides, files.manifests).scales
        folders = [retriever_at(other) or other for other in others]
        names = short_names([files.folder, *folders])[1:] if folders else []
        opened = {
            name: RetrieverSearcher(_opened(_files(folder), options))
            for name, folder in zip(names, folders, strict=True)
        }
        live = cls(files, retriever, scales, opened)
        if repeated := next((name for name in live.systems if live.systems.count(name) > 1), None):
            problem = f"--compare: two columns are named {repeated}; rename a folder"
            raise InputError(problem, code="repeated-name", option="compare", name=repeated)
        return live

    @property
    def name(self) -> str:
        """Return the name of the folder."""
        return self.files.folder.resolve().name

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
        recorded = corpora_of(self.files.manifests)
        warn_lost(recorded, "hits may lack titles or show others; build the index again with --overwrite")
        corpora = existing_paths(recorded)
        return TextStore(corpora) if corpora else None

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
        frame = self._metadata_table
        facets = []
        for name in frame.columns[1:]:
            column = frame[name]
            kind = _kind(column.dtype)
            facet: dict[str, Any] = {"name": name, "type": kind}
            if kind in ("number", "date"):
                facet |= {"min": _plain(column.min()), "max": _plain(column.max())}
            else:
                counts = column.drop_nulls().value_counts(sort=True).head(_FACET_VALUES)
                facet["values"] = [{"value": value, "count": count} for value, count in counts.iter_rows()]
            facets.append(facet)
        return facets

    def metadata_of(self, docid: str) -> dict[str, Any]:
        """Return the metadata of a document; empty for an unknown one."""
        frame = self._metadata_table
        rows = frame.filter(pl.col("docid") == docid).drop("docid").to_dicts() if len(frame.columns) > 1 else []
        return {name: _plain(value) for name, value in rows[0].items() if value is not None} if rows else {}

    @cached_property
    def _metadata_table(self) -> pl.DataFrame:
        try:
            schema = self.metadata.schema
        except InputError:  # the corpora have moved: hits are shown without metadata
            return pl.DataFrame({"docid": []}, schema={"docid": pl.String})
        frames = [collections.metadata(corpus, schema) for corpus in self.metadata.corpora]
        return pl.concat(frames).unique("docid", keep="last", maintain_order=True)

    @cached_property
    def documents(self) -> int:
        """Number of indexed documents or passages."""
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
            return pl.concat(self._within(condition).explained(queries, k), how="diagonal")
        if system in self.others:
            searcher = self.others[system]
            searcher = searcher if condition is None else searcher.within(self._allowed(condition))
            return pl.concat(searcher.explained(queries, k), how="diagonal")
        if system not in self.sides:
            problem = f"system {system}: unknown; choices: {', '.join(self.systems)}"
            raise InputError(problem, code="unknown-choice", option="system", value=system, choices=self.systems)
        return self._within(condition).sides[system].answer(queries).hits(k)

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
        depth = depth or retriever.depth
        every = depth * len(self.sides)
        plain = replace(retriever, depth=depth, reranker=None, calibration=None)
        if retriever.recipe.missing == "exact" or not self.has_exact_scores:
            return pl.concat(plain.explained(queries, every), how="diagonal")
        shared = replace(plain, sides={name: _Answered(side) for name, side in plain.sides.items()})
        recipe = FusionRecipe("weighted-sum", (1.0,) * len(self.sides), "exact")
        exact = pl.concat(replace(shared, recipe=recipe).explained(queries, every), how="diagonal")
        fused = pl.concat(shared.runs(queries, every))
        columns = [f"{name}_{part}" for name in self.sides for part in ("rank", "score")]
        return fused.join(
            exact.select("qid", "docid", *columns), on=["qid", "docid"], how="left", maintain_order="left"
        )

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
            InputError: a document is not in an index.
        """
        columns = [
            side.answer(queries).score(pairs).cast(pl.Float32).alias(f"{name}_score")
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
        searcher: Any = self.retriever.sides[side]
        searcher = searcher.side if isinstance(searcher, _Timed) else searcher
        searcher = searcher.index if isinstance(searcher, Grouped) else searcher
        if not isinstance(searcher, LexicalSearcher) or searcher.rm3:
            return None
        holders = [index for index in searcher.indexes if _holds(index, docid)]
        return holders[0].term_scores(query, docid) if holders else None

    @cached_property
    def _allowed(self) -> Any:
        return lru_cache(_FILTERS)(lambda condition: self.metadata.allowed(condition))

    @cached_property
    def _filtered(self) -> Any:
        return lru_cache(_FILTERS)(lambda condition: self.retriever.within(self._allowed(condition)))

    def _within(self, condition: str | None) -> Retriever:
        return self.retriever if condition is None else self._filtered(condition)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Timed:
    """A side that reports the seconds of each step."""

    side: Side
    name: str
    observe: Observe

    @property
    def numbered(self) -> NumberedSide | None:
        """See `retrieval.retriever.Side`."""
        numbered = self.side.numbered
        if numbered is None:
            return None
        return NumberedSide(numbered.ids, lambda queries: NumberedAnswers(*self._timed(numbered.answer, queries)))

    def answer(self, queries: pl.DataFrame) -> Answers:
        """See `retrieval.retriever.Side`."""
        return Answers(*self._timed(self.side.answer, queries))

    def within(self, allowed: Allowed) -> _Timed:
        """See `retrieval.retriever.Side`."""
        return replace(self, side=self.side.within(allowed))

    def _timed(self, answer: Callable[[pl.DataFrame], Any], queries: pl.DataFrame) -> tuple[Any, Any]:
        answers = self._clocked("query", answer)(queries)
        return self._clocked("hits", answers.hits), self._clocked("scores", answers.score)

    def _clocked(self, step: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = work(*arguments)
            self.observe(self.name, step, time.perf_counter() - start)
            return result

        return run


class _Answered:
    """A side that answers the same queries once."""

    def __init__(self, side: Side):
        self._side = side
        self._known: tuple[pl.DataFrame, Answers] | None = None

    numbered = None

    def answer(self, queries: pl.DataFrame) -> Answers:
        """See `retrieval.retriever.Side`."""
        if self._known is None or self._known[0] is not queries:
            answers = self._side.answer(queries)
            self._known = queries, Answers(lru_cache(1)(answers.hits), answers.score)
        return self._known[1]

    def within(self, allowed: Allowed) -> _Answered:
        """See `retrieval.retriever.Side`."""
        return _Answered(self._side.within(allowed))


def _holds(index: LexicalIndex, docid: str) -> bool:
    return bool(index.ids.find(pl.Series([docid]))[1][0])


def _kind(dtype: pl.DataType) -> str:
    if dtype == pl.Boolean:
        return "boolean"
    return "number" if dtype.is_numeric() else "date" if dtype.is_temporal() else "text"


def _plain(value: Any) -> Any:
    """Return a value that JSON has."""
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _files(path: Path) -> RetrieverFiles:
    """Return a retriever on disk, or an index as a retriever of one index."""
    if (folder := retriever_at(path)) is not None:
        return RetrieverFiles.read(folder)
    manifests = manifests_of([path])
    group = group_of(None, manifests)
    stored = StoredRetriever(named_indexes([path], path.parent), "weighted-sum", (1.0,), "zero", HITS, group)
    return RetrieverFiles(path, stored, [path], manifests)


def _opened(files: RetrieverFiles, options: SearchOptions) -> Retriever:
    if any(manifest.kind == Kind.DENSE_INDEX for shards in files.manifests for manifest in shards):
        import_module("torch")  # batches of queries need it; the first one would wait for the import
    if retriever_at(files.folder) is not None:
        return RetrieverSearcher.open(files, options).retriever
    side: Any = open_index(files.folder, options.changed(group=files.stored.group or NO_GROUPS))
    return Retriever({files.names[0]: side}, files.stored.recipe, files.stored.depth)
