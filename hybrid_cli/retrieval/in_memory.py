"""BM25 and dense vectors of documents in memory.

    bm25 = BM25(k1=0.9, b=0.4).index(documents)
    dense = Dense(open_encoder("minilm")).index(documents)
    hits = fuse({"bm25": bm25.search(queries, 100), "dense": dense.search(queries, 100)})

The hits are those of the indexes that `index-bm25` and `encode` write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import polars as pl

from hybrid_cli import runs
from hybrid_cli.errors import InputError
from hybrid_cli.lexical.options import BM25Options, field_weight
from hybrid_cli.retrieval.given import Documents, Queries, checked_depth, documents_table, queries_table

if TYPE_CHECKING:
    from hybrid_cli.encoders.contract import Encoder
    from hybrid_cli.lexical.index import LexicalIndex

_QUERIES_AT_ONCE = 256


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
            documents: see `given.documents_table`; `fields` are indexed.

        Raises:
            InputError: unusable documents, no such field, or a language whose document lengths only Lucene knows.
            HybridError: Java is missing.
        """
        from hybrid_cli.lexical.analysis import STACKING, Analyzer
        from hybrid_cli.lexical.build import contents
        from hybrid_cli.lexical.impacts import Impacts, PostingsBuilder
        from hybrid_cli.lexical.index import LexicalIndex

        table = documents_table(documents)
        try:
            names = [field_weight(field)[0] for field in self.fields]
        except ValueError as error:
            raise InputError(f"fields: {error}", code="invalid-field") from None
        if lacking := [name for name in names if name not in table.columns]:
            raise InputError(f"the documents: no field {lacking[0]}", code="no-such-column", column=lacking[0])
        if self.language in STACKING:
            raise InputError(f"language {self.language}: needs an index on disk (index-bm25)", code="language")
        builder = PostingsBuilder()
        texts = contents(table.to_arrow(), self.fields)["contents"].to_list()
        builder.add(*Analyzer(self.language).document_tokens(texts))
        impacts = Impacts.of(builder.finish(), self.k1, self.b)
        return BM25Index(LexicalIndex(impacts, table["docid"], self.language))


@dataclass(frozen=True)
class BM25Index:
    """An index of BM25 in memory."""

    lexical: LexicalIndex

    def search(self, queries: Queries, k: int = 10) -> pl.DataFrame:
        """See `MemoryIndex`; documents without a term of the query are no hits."""
        return self.lexical.search(queries_table(queries), checked_depth(k))


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
            InputError: unusable documents; see `given.documents_table`.
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
        asked, k = queries_table(queries), min(checked_depth(k), len(self.docids))
        if not len(asked) or not k:
            return runs.empty()
        encoded = self.encoder.encode_queries(asked["text"].to_list())
        found = [
            self._best(asked["qid"][begin : begin + _QUERIES_AT_ONCE], encoded[begin : begin + _QUERIES_AT_ONCE], k)
            for begin in range(0, len(asked), _QUERIES_AT_ONCE)
        ]
        return pl.concat(found)

    def _best(self, qids: pl.Series, queries: np.ndarray, k: int) -> pl.DataFrame:
        scores = queries @ self.vectors.T
        least = np.partition(scores, -k, axis=1)[:, -k]
        rows, columns = np.nonzero(scores >= least[:, None])  # all ties of the last hit
        hits = {"qid": qids.gather(rows), "docid": self.docids.gather(columns), "score": scores[rows, columns]}
        return runs.ranked(pl.DataFrame(hits), k)
