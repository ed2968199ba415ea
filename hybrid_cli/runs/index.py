"""What all indexes have in common: documents are rows, and their ids are looked up at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli.errors import InputError, named_keywords
from hybrid_cli.runs.context import context
from hybrid_cli.runs.given import QueriesLike, checked_depth, frame_of, queries_table
from hybrid_cli.runs.tables import SortedIds, empty, positions, ranks

Rows: TypeAlias = npt.NDArray[np.integer]
Scores: TypeAlias = npt.NDArray[np.float32]
Mask: TypeAlias = npt.NDArray[np.bool_]
_FILTERS = 4  # whose documents are kept
_SORTED = 8  # as many documents as ordered ones at most: then all are sorted, once


class Documents:
    """The ids of documents by row, and their order as strings, which breaks ties.

    Attributes:
        ids: [N]
    """

    def __init__(self, ids: pl.Series) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def sorted(self) -> SortedIds:
        """The ids in string order, with their rows."""
        return SortedIds(self.ids)

    def rows(self, ids: pl.Series) -> npt.NDArray[np.int64]:
        """Return the row of each id.

        Raises:
            InputError: some ids are unknown.
        """
        return self.sorted.positions(ids, "the index has no document")

    def order(self, rows: Rows) -> Rows:
        """Return numbers of rows that order as their ids."""
        if "sorted" in self.__dict__ or len(rows) * _SORTED > len(self):
            return self.sorted.numbers[rows]
        distinct, at = np.unique(rows, return_inverse=True)
        numbers = np.empty(len(distinct), np.int64)
        numbers[self.ids.gather(distinct).arg_sort().to_numpy()] = np.arange(len(distinct))
        return numbers[at]


@dataclass(frozen=True)
class Allowed:
    """The documents that a filter keeps.

    Attributes:
        docids: [N] ids of all documents with metadata.
        kept: [N] whether the filter keeps them.
    """

    docids: pl.Series
    kept: Mask

    def mask(self, docids: pl.Series) -> Mask:
        """Return whether each document of an index may be returned, by row."""
        if docids.equals(self.docids):
            return self.kept
        return docids.is_in(self.docids.filter(self.kept).implode()).to_numpy()


@dataclass(frozen=True)
class Hits:
    """Documents returned for queries, query by query, best first.

    Attributes:
        counts: [Q] number of hits of each query.
        rows: [H] rows of the documents.
        scores: [H] float32.
        columns: further columns [H] of a run; `passage` are rows of passages.
    """

    counts: Rows
    rows: Rows
    scores: Scores
    columns: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def none(cls, count: int) -> Hits:
        """Return no hits of `count` queries."""
        return cls(np.zeros(count, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))

    @classmethod
    def ranked(
        cls,
        count: int,
        queries: Rows,
        rows: Rows,
        scores: npt.NDArray[np.floating],
        documents: Documents,
        depth: int | None = None,
        columns: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Hits:
        """Rank the hits of `count` queries by score, with ties broken by docid.

        Args:
            count: number of queries.
            queries, rows, scores: [n] the hits, in any order.
            documents: the documents that the rows are of.
            depth: hits kept per query; None for all.
            columns: further columns [n].
        """
        if scores.dtype == np.float32:  # query and score as one integer, which sorts faster
            bits = (scores + np.float32(0)).view(np.int32)  # 0 and -0 are equal
            falling = (bits ^ (~(bits >> 31) & 0x7FFFFFFF)).view(np.uint32)
            keys = queries.astype(np.uint64) << np.uint64(32) | falling
            best = np.argsort(keys)
            same = np.diff(keys[best]) == 0
        else:
            best = np.lexsort((-scores, queries))
            same = (np.diff(queries[best]) == 0) & (np.diff(scores[best]) == 0)
        if same.any():
            tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
            groups = np.cumsum(~np.append(False, same))[tied]
            best[tied] = best[tied][np.lexsort((documents.order(rows[best[tied]]), groups))]
        counts = np.bincount(queries, minlength=count)
        if depth is not None:
            best, counts = best[ranks(counts) <= depth], np.minimum(counts, depth)
        further = {name: values[best] for name, values in (columns or {}).items()}
        return cls(counts, rows[best], scores[best].astype(np.float32), further)

    @property
    def queries(self) -> Rows:
        """Return the number of the query of each hit, [H]."""
        return np.repeat(np.arange(len(self.counts)), self.counts)


class Known(ABC):
    """What is known of the documents of an index besides their ids.

    Attributes:
        opened: opens the index again, as a copy in another process does; None for one in memory.
    """

    opened: Callable[[], Index] | None = None

    @abstractmethod
    def texts(self, docids: pl.Series) -> pl.DataFrame | None:
        """Return docid, title, text and perhaps `metadata`, a struct, of documents; None if the texts are lost."""

    @abstractmethod
    def allowed(self, text: str) -> Allowed:
        """Return the documents that a condition over the metadata keeps."""

    @abstractmethod
    def pieces(self, number: int, seed: int) -> pl.DataFrame:
        """Return pieces of sentences of the documents as queries (qid, text); none if the texts are lost."""

    def opened_by(self, opened: Callable[[], Index] | None) -> Self:
        """Return the same knowledge of an index that is opened in another way."""
        other = copy(self)
        vars(other)["opened"] = opened
        return other

    def queries(self) -> pl.DataFrame:
        """Return the queries (qid, text) of the collection.

        Raises:
            InputError: the documents are of no collection.
        """
        problem = "the documents that were indexed have no queries; pass queries, or index a collection"
        raise InputError(problem, code="missing-value", option="queries")


@named_keywords
class Index(ABC):
    """Documents that are searched; hits are rows of `documents`.

    BM25, learned sparse and dense indexes, retrievers and indexes of other packages are subclasses.

    Example:
        >>> import polars as pl
        >>> from hybrid_cli import BM25, Index
        >>> index: Index = BM25().index({"a": "salt in sea water", "b": "oxygen in the blood"})
        >>> prepared = index.prepare(pl.DataFrame({"qid": ["1"], "text": ["blood"]}))
        >>> index.documents.ids.gather(index.hits(prepared, 10).rows).to_list()
        ['b']
    """

    passages: Documents | None = None  # of which the hits are documents
    hits_at_once = 1 << 22
    kind = "such an index"  # in messages
    system: str | None = None  # bm25, learned, or dense
    known: Known | None = None

    @property
    @abstractmethod
    def documents(self) -> Documents:
        """The documents."""

    @abstractmethod
    def prepare(self, queries: pl.DataFrame) -> Any:
        """Analyze or encode queries (qid, text) once, for `hits` and `scores`."""

    @abstractmethod
    def hits(self, prepared: Any, k: int) -> Hits:
        """Return the top `k` documents of prepared queries."""

    def scores(self, prepared: Any, queries: Rows, rows: Rows) -> Scores:
        """Return the exact scores of pairs of a number of a prepared query and a row, [n] float32.

        Raises:
            InputError: the index scores only its hits.
        """
        problem = f"{self.kind} has no exact scores of pairs; use another rule for missing documents, such as zero"
        raise InputError(problem, code="no-exact-scores")

    @abstractmethod
    def within(self, allowed: Allowed) -> Self:
        """Return the same index whose hits are documents that a filter keeps; everything else is shared."""

    def search(
        self, queries: QueriesLike, k: int = 10, filter: str | None = None, min_probability: float | None = None
    ) -> pl.DataFrame:
        """Return the top documents of one or more queries.

        Args:
            queries: a text; several texts, whose qids are "0", "1", ...; texts by qid; a data frame; or vectors for a
                dense index: an array or a tensor [d] or [Q, d], or the column `vector` of a data frame.
            k: documents per query; 10 by default.
            filter: condition over the metadata of documents, such as `year >= 2020 AND lang = 'de'`.
            min_probability: least probability of a hit of a calibrated retriever.

        Returns:
            qid, docid, rank (from 1), score; of several indexes, rank and score in each, such as `bm25_rank` and
            `bm25_score`, null where the index does not return the document; of a calibrated retriever, `probability`;
            title and text if they are known, and `metadata`, a struct, if there is any. Of an index of passages, the
            hits are documents, and `passage` is the best passage, which gives title and text. In the order of the
            queries; those without hits have no rows.

        Raises:
            InputError: `k` is no whole number from 1 on, a query is no text, no condition over known columns, or hits
                have no probabilities.
        """
        k, table = checked_depth(k), queries_table(queries)
        if filter is not None and not isinstance(filter, str):
            raise InputError(f"filter: is {type(filter).__name__}; pass a text", code="other-type", option="filter")
        if "vector" in table.columns and self.system != "dense" and (table["text"] == "").any():
            problem = f"the queries: are vectors without a text, which {self.kind} needs; pass a data frame with both"
            raise InputError(problem, code="no-text")
        index = self if filter is None else self._filtered(filter)
        if min_probability is not None:
            index = index.probable(min_probability)
        hits = pl.concat(index.runs(table, k)) if len(table) else empty()
        shown = hits["passage" if "passage" in hits.columns else "docid"]
        documents = None if self.known is None else self.known.texts(shown)
        return hits if documents is None else hits.hstack(documents.get_columns()[1:])

    def context(self, query: str, tokens: int = 2000, k: int = 10, filter: str | None = None) -> pl.DataFrame:
        """Return the best parts of the hits of a query for a prompt, with their neighbors and their places.

        Args:
            query: a text.
            tokens: largest number of tokens of all parts and titles, estimated as a third of their bytes.
            k, filter: see `search`.

        Returns:
            docid, place ("whole document", "passages 2 to 4", "words 101 to 200"), title, text, tokens, and `metadata`
            if there is any.

        Raises:
            InputError: as `search`, no number of tokens, or an index that does not know its texts.
        """
        hits = self.search(query, k, filter)
        if self.known is None or "text" not in hits.columns:
            raise InputError("context: the texts of the documents are not known", code="no-texts")
        return context(hits, query, checked_depth(tokens, "tokens"), self.known.texts)

    @cached_property
    def _filtered(self) -> Callable[[str], Index]:
        if (known := self.known) is None:
            problem = "filter: the documents have no metadata; index a table with further columns, or a collection"
            raise InputError(problem, code="no-corpus", option="filter")
        return lru_cache(_FILTERS)(lambda text: self.within(known.allowed(text)))

    def probable(self, least: float) -> Index:
        """Return the retriever without the hits of a lower probability.

        Raises:
            InputError: the hits have no probabilities.
        """
        problem = "min_probability: one index gives no probabilities; pass a retriever of `compose --calibrate`"
        raise InputError(problem, code="not-calibrated")

    def tune(self, qrels: Any, queries: Any = None, measure: str = "") -> Index:
        """Return the retriever with the weights that judged queries choose; see `Retriever.tune`.

        Raises:
            InputError: one index, which has no weights.
        """
        raise InputError("tune: one index has no weights; pass several to `Retriever`", code="other-kind")

    def explain(self, query: str, docid: str) -> pl.DataFrame:
        """Return the parts of the score of a document: of BM25 term, boost and score; of a dense index its score; of a
        retriever each index with rank, score, weight and its part of the sum.

        Args:
            query: text of the query.
            docid: id of the document.

        Raises:
            InputError: the document is not in the index.
        """
        asked = queries_table(query)
        return pl.DataFrame({"score": self.score(asked.select("qid", docid=pl.lit(docid)), asked)})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.documents):,} documents)"

    def knowing(self, known: Known) -> Self:
        """Return the index itself, which now knows its documents."""
        vars(self)["known"] = known
        return self

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        vars(other).update(self.__getstate__())
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_filtered"}

    def __deepcopy__(self, memo: object) -> Self:
        """Return the same index, which never changes."""
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the call that opened the index."""
        known = self.known
        return super().__reduce_ex__(protocol) if known is None or known.opened is None else (known.opened, ())

    def runs(self, queries: pl.DataFrame, k: int) -> Iterator[pl.DataFrame]:
        """Yield the run of some queries (qid, text) at a time, as `search` returns it."""
        for some in self.some(queries, k):
            yield self.table(self.hits(self.prepare(some), k), some["qid"])

    def some(self, queries: pl.DataFrame, k: int) -> Iterator[pl.DataFrame]:
        """Yield queries whose hits are in memory at once."""
        return queries.iter_slices(max(1, self.hits_at_once // k))

    def table(self, hits: Hits, qids: pl.Series) -> pl.DataFrame:
        """Return hits as a run; `qids` are the ids of the queries."""
        if len(qids) == 1:  # a live query
            named = pl.Series([str(qids[0])] * len(hits.rows), dtype=pl.String)
        else:
            named = qids.cast(pl.String).gather(hits.queries)
        columns = dict(hits.columns)
        if self.passages is not None:
            columns["passage"] = self.passages.ids.gather(columns["passage"])
        rank = pl.Series(ranks(hits.counts), dtype=pl.Int32)
        return pl.DataFrame(
            {"qid": named, "docid": self.documents.ids[hits.rows], "rank": rank, "score": hits.scores, **columns}
        )

    def score(self, pairs: pl.DataFrame, queries: QueriesLike) -> pl.Series:
        """Return the exact scores of pairs, in the order of `pairs`, float32.

        Args:
            pairs: qid, docid.
            queries: see `search`.

        Raises:
            InputError: a docid is not in the index, a qid has no text, or the index scores only its hits.
        """
        if not (isinstance(queries, pl.DataFrame) and "qid" in queries.columns):  # stored vectors need no texts
            queries = queries_table(queries)
        return self.scorer(queries)(frame_of(pairs, "the pairs"))

    def scorer(self, queries: pl.DataFrame) -> Callable[[pl.DataFrame], pl.Series]:
        """Return `score` for queries that are prepared once, when the first pairs are scored."""
        prepared: list[Any] = []

        def score(pairs: pl.DataFrame) -> pl.Series:
            prepared[:] = prepared or [self.prepare(queries)]
            numbers = positions(pairs["qid"], queries["qid"], "no text for query")
            return pl.Series("score", self.scores(prepared[0], numbers, self.documents.rows(pairs["docid"])))

        return score
