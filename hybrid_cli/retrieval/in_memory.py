"""BM25 and dense vectors of documents in memory.

    bm25 = BM25(k1=0.9, b=0.4).index(documents)
    dense = Dense(open_encoder("minilm")).index(documents)
    hits = fuse({"bm25": bm25.search(queries, 100), "dense": dense.search(queries, 100)})

The hits are those of the indexes that `index-bm25` and `encode` write. Documents and queries may be texts, dictionaries
or data frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import polars as pl
import polars.selectors as cs

from hybrid_cli import runs
from hybrid_cli.errors import InputError
from hybrid_cli.inputs.files import DOCIDS, QIDS, fold_name
from hybrid_cli.lexical.options import BM25Options, field_weight
from hybrid_cli.retrieval.filters import Allowed
from hybrid_cli.retrieval.numbered import NumberedAnswers, NumberedSide
from hybrid_cli.runs import frame_of, table_of

if TYPE_CHECKING:
    from hybrid_cli.encoders.contract import Encoder
    from hybrid_cli.lexical.index import LexicalIndex


Documents = Sequence[str] | Sequence[Mapping[str, str]] | Mapping[str, str] | pl.DataFrame | Any  # Any: pandas
Queries = str | Sequence[str] | Mapping[str, str] | pl.DataFrame | Any


def documents_table(documents: Documents) -> pl.DataFrame:
    """Return documents as a table: docid, title, text, and their other fields of text.

    Args:
        documents: texts, whose docids are "0", "1", ...; a dictionary `{docid: text}`; dictionaries with `docid`,
            `text` and maybe `title`; or a data frame with such columns.

    Raises:
        InputError: something else, no text, or a docid that is missing or not unique.
    """
    table = _table(documents, "docid", DOCIDS, "the documents")
    if "title" not in table.columns:
        table = table.with_columns(title=pl.lit(""))
    if table["docid"].is_duplicated().any():
        repeated = table.filter(pl.col("docid").is_duplicated())["docid"][0]
        raise InputError(f"the documents: two have the id {repeated}", code="duplicate-id", id=repeated)
    others = [name for name in table.columns if name not in ("docid", "title", "text")]
    return table.select("docid", "title", "text", *others).fill_null("")


def queries_table(queries: Queries) -> pl.DataFrame:
    """Return queries as a table: qid, text.

    Args:
        queries: a text, or several texts, whose qids are "0", "1", ...; texts by qid; or a data frame with qid and
            text.

    Raises:
        InputError: something else, or a qid that is not unique.
    """
    if isinstance(queries, str):
        return pl.DataFrame({"qid": ["0"], "text": [queries]})
    table = _table(queries, "qid", QIDS, "the queries").select("qid", "text")
    if table["qid"].is_duplicated().any():
        repeated = table.filter(pl.col("qid").is_duplicated())["qid"][0]
        raise InputError(f"the queries: two have the id {repeated}", code="duplicate-id", id=repeated)
    if table["text"].null_count():
        qid = table.filter(pl.col("text").is_null())["qid"][0]
        raise InputError(f"the queries: {qid} has no text", code="no-text", id=qid)
    return table


def checked_depth(k: int) -> int:
    """Return the number of hits per query.

    Raises:
        InputError: no whole number from 1 on.
    """
    if not isinstance(k, Integral) or k < 1:
        raise InputError(f"k {k}: needs a whole number >= 1", code="invalid-depth", value=k)
    return int(k)


def _table(given: Any, key: str, names: Iterable[str], name: str) -> pl.DataFrame:
    """Return a table with the columns `key` and `text`, both texts."""
    if isinstance(given, Mapping):
        frame = table_of({key: list(given), "text": list(given.values())}, name)
    elif isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"{name}: {given!r} is no list; pass texts, texts by id, or a data frame", code="not-a-list")
    elif isinstance(given, pl.DataFrame) or hasattr(given, "columns"):
        frame = frame_of(given, name)
    else:
        frame = _of_list(list(given), key, name)
    by_name = {fold_name(column): column for column in reversed(frame.columns)}
    usual = next((by_name[spelling] for spelling in names if spelling in by_name), None)
    if usual is None or "text" not in by_name:
        raise InputError(f"{name}: no column {'text' if usual else key}", code="no-such-column")
    frame = frame.rename({column: new for column, new in ((usual, key), (by_name["text"], "text")) if column != new})
    if (not frame[key].dtype.is_integer() and frame[key].dtype != pl.String) or frame[key].null_count():
        raise InputError(f"{name}: an id is no text or whole number", code="other-type")
    for column in {"title", "text"} & set(frame.columns):
        if frame[column].dtype not in (pl.String, pl.Null):
            raise InputError(f"{name}: {column} is {frame[column].dtype}, no text", code="other-type", column=column)
    texts = frame.select(key, "text", cs.string() - cs.by_name(key, "text"))
    return texts.with_columns(pl.col(key, "text").cast(pl.String))


def _of_list(rows: list[Any], key: str, name: str) -> pl.DataFrame:
    if all(isinstance(row, str) for row in rows):
        schema = {key: pl.String, "text": pl.String}
        return pl.DataFrame({key: [str(number) for number in range(len(rows))], "text": rows}, schema=schema)
    if all(isinstance(row, Mapping) for row in rows):
        columns = dict.fromkeys(column for row in rows for column in row)
        return table_of({column: [row.get(column) for row in rows] for column in columns}, name)
    wrong = next(row for row in rows if not isinstance(row, str))
    raise InputError(f"{name}: {wrong!r} is no text, and no dictionary with {key} and text", code="not-a-text")


_QUERIES_AT_ONCE = 256


@dataclass(frozen=True)
class Answers:
    """What one index returns for some queries, which are analyzed or encoded once.

    Attributes:
        hits: from a number of documents per query to a run.
        score: from pairs (qid, docid) to their scores, float32.
    """

    hits: Callable[[int], pl.DataFrame]
    score: Callable[[pl.DataFrame], pl.Series]


def lexical_answers(index: LexicalIndex, queries: pl.DataFrame, threads: int | None = None) -> Answers:
    """Return the answers of a lexical index to queries (qid, text)."""
    bags, qids = index.bags(queries["text"].to_list()), queries["qid"]
    return Answers(
        lambda depth: index.search_bags(qids, bags, depth, threads), lambda pairs: index.score_bags(pairs, qids, bags)
    )


def numbered_lexical_side(index: LexicalIndex, threads: int | None = None) -> NumberedSide:
    """Return a lexical index whose documents have numbers."""

    def answer(queries: pl.DataFrame) -> NumberedAnswers:
        bags = index.bags(queries["text"].to_list())
        return NumberedAnswers(
            lambda depth: index.numbered_hits(bags, depth, threads),
            lambda numbers, documents: index.score_rows(numbers, index.ids.rows[documents], bags),
        )

    return NumberedSide(index.ids, answer)


class MemoryIndex(Protocol):
    """An index in memory."""

    def search(self, queries: Queries, k: int = 10) -> pl.DataFrame:
        """Return the top documents of one or more queries: qid, docid, rank (from 1), score.

        Args:
            queries: a text; several texts, whose qids are "0", "1", ...; texts by qid; or a data frame.
            k: documents per query.

        Raises:
            InputError: no queries, or `k` is no whole number from 1 on.
        """


@dataclass(frozen=True, kw_only=True)
class BM25(BM25Options):
    """BM25 as Lucene computes it, over an impact matrix in memory; see `BM25Options` for the parameters."""

    def index(self, documents: Documents) -> BM25Index:
        """Analyze documents and return their index.

        Args:
            documents: see `documents_table`; `fields` are indexed.

        Raises:
            InputError: unusable documents, no such field, or a language whose document lengths only Lucene knows.
            HybridError: Java is missing.
        """
        from hybrid_cli.lexical.analysis import STACKING
        from hybrid_cli.lexical.build import contents
        from hybrid_cli.lexical.builder import PostingsBuilder
        from hybrid_cli.lexical.impacts import Impacts
        from hybrid_cli.lexical.index import LexicalIndex
        from hybrid_cli.lexical.numbering import count, numbers_of

        table = documents_table(documents)
        try:
            names = [field_weight(field)[0] for field in self.fields]
        except ValueError as error:
            raise InputError(f"fields: {error}", code="invalid-field") from None
        if lacking := [name for name in names if name not in table.columns]:
            raise InputError(f"the documents: no field {lacking[0]}", code="no-such-column", column=lacking[0])
        if self.language in STACKING:
            raise InputError(f"language {self.language}: needs an index on disk (index-bm25)", code="language")
        builder, numbers = PostingsBuilder(), numbers_of(self.language)
        texts = contents(table.to_arrow(), self.fields)["contents"].to_arrow()
        builder.add_counted(numbers, count(*numbers.number(texts), numbers.places))
        impacts = Impacts.of(builder.finish(), self.k1, self.b)
        return BM25Index(LexicalIndex(impacts, table["docid"], self.language))


@dataclass(frozen=True)
class BM25Index:
    """An index of BM25 in memory."""

    lexical: LexicalIndex

    def search(self, queries: Queries, k: int = 10) -> pl.DataFrame:
        """See `MemoryIndex`; documents without a term of the query are no hits."""
        return self.lexical.search(queries_table(queries), checked_depth(k))

    def answer(self, queries: pl.DataFrame) -> Answers:
        """See `retriever.Side`."""
        return lexical_answers(self.lexical, queries)

    def within(self, allowed: Allowed) -> BM25Index:
        """See `retriever.Side`."""
        return BM25Index(self.lexical.within(allowed.mask(self.lexical.docids)))

    @property
    def numbered(self) -> NumberedSide:
        """See `retriever.Side`."""
        return numbered_lexical_side(self.lexical)


@dataclass(frozen=True)
class Dense:
    """Exact search of the inner product of vectors.

    Attributes:
        encoder: encoder of queries and documents, such as `open_encoder("minilm")`.
    """

    encoder: Encoder

    def index(self, documents: Documents) -> DenseMemoryIndex:
        """Encode documents and return their index.

        Raises:
            InputError: unusable documents; see `documents_table`.
        """
        table = documents_table(documents)
        vectors = self.encoder.encode_documents(table["title"].to_list(), table["text"].to_list())
        return DenseMemoryIndex(self.encoder, table["docid"], vectors)


@dataclass(frozen=True)
class DenseMemoryIndex:
    """Vectors in memory.

    Attributes:
        encoder: encoder of the queries.
        docids: [N]
        vectors: [N, d]
    """

    encoder: Encoder
    docids: pl.Series
    vectors: np.ndarray

    def search(self, queries: Queries, k: int = 10) -> pl.DataFrame:
        """See `MemoryIndex`; ties are ordered by docid."""
        asked = queries_table(queries)
        return self.answer(asked).hits(checked_depth(k)) if len(asked) else runs.empty()

    def answer(self, queries: pl.DataFrame) -> Answers:
        """See `retriever.Side`."""
        encoded = self.encoder.encode_queries(queries["text"].to_list())
        return Answers(
            lambda depth: self._hits(queries, encoded, depth), lambda pairs: self._score(pairs, queries, encoded)
        )

    def within(self, allowed: Allowed) -> DenseMemoryIndex:
        """See `retriever.Side`."""
        kept = allowed.mask(self.docids)
        return replace(self, docids=self.docids.filter(kept), vectors=self.vectors[kept])

    @property
    def numbered(self) -> NumberedSide | None:
        """See `retriever.Side`; numbers save little in memory."""
        return None

    def _score(self, pairs: pl.DataFrame, queries: pl.DataFrame, encoded: np.ndarray) -> pl.Series:
        asked = encoded[runs.positions(pairs["qid"], queries["qid"], "no text for query")]
        rows = runs.positions(pairs["docid"], self.docids, "the index has no document")
        return pl.Series("score", np.einsum("nd,nd->n", asked, self.vectors[rows]))

    def _hits(self, asked: pl.DataFrame, encoded: np.ndarray, depth: int) -> pl.DataFrame:
        k = min(depth, len(self.docids))
        if not k:
            return runs.empty()
        blocks = [
            self._best(asked["qid"][begin : begin + _QUERIES_AT_ONCE], encoded[begin : begin + _QUERIES_AT_ONCE], k)
            for begin in range(0, len(asked), _QUERIES_AT_ONCE)
        ]
        return pl.concat(blocks)

    def _best(self, qids: pl.Series, queries: np.ndarray, k: int) -> pl.DataFrame:
        scores = queries @ self.vectors.T
        least = np.partition(scores, -k, axis=1)[:, -k]
        rows, columns = np.nonzero(scores >= least[:, None])  # all ties of the last hit
        hits = {"qid": qids.gather(rows), "docid": self.docids.gather(columns), "score": scores[rows, columns]}
        return runs.ranked(pl.DataFrame(hits), k)
