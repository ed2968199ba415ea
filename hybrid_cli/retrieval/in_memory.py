"""BM25 and dense vectors of documents in memory.

    bm25 = BM25(k1=0.9, b=0.4).index(documents)
    dense = Dense(open_encoder("minilm")).index(documents)
    hits = fuse({"bm25": bm25.search(queries, 100), "dense": dense.search(queries, 100)})

The hits are those of the indexes that `index-bm25` and `encode` write. Documents and queries may be texts, dictionaries
or data frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from hybrid_cli.errors import InputError
from hybrid_cli.lexical.options import BM25Options, field_weight
from hybrid_cli.runs.given import DocumentsLike, documents_table
from hybrid_cli.runs.index import Allowed, Documents, Hits, Index, Rows, Scores

if TYPE_CHECKING:
    from hybrid_cli.encoders.contract import Encoder
    from hybrid_cli.lexical.index import LexicalIndex

_QUERIES_AT_ONCE = 256
_BATCH = 1024  # documents that are counted at once


@dataclass(frozen=True, kw_only=True)
class BM25(BM25Options):
    """BM25 as Lucene computes it, over an impact matrix in memory.

    Attributes:
        k1: saturation of term frequency; 0.9 by default.
        b: strength of document length normalization, from 0 to 1; 0.4 by default.
        fields: indexed fields, title and text by default; `title=3` counts each word of the title three times (BM25F).
        language: analyzer: en (Porter stemmer) by default, or a code such as `de`, `fr` or `zh`.

    Example:
        >>> from hybrid_cli import BM25
        >>> index = BM25(k1=1.2).index({"a": "salt in sea water", "b": "oxygen in the blood"})
        >>> index.search("salt water", k=5)["docid"].to_list()
        ['a']
    """

    def index(self, documents: DocumentsLike) -> LexicalIndex:
        """Analyze documents and return their index; documents without a term of the query are no hits.

        Args:
            documents: texts, whose docids are "0", "1", ...; a dictionary `{docid: text}`; dictionaries with `docid`,
                `text` and maybe `title`; or a data frame (polars or pandas) with such columns.

        Raises:
            InputError: unusable documents, no such field, or a language whose document lengths only Lucene knows.
            HybridError: Java is missing.
        """
        from hybrid_cli.lexical.analysis import STACKING, LazyAnalyzer
        from hybrid_cli.lexical.build import contents
        from hybrid_cli.lexical.builder import PostingsBuilder
        from hybrid_cli.lexical.impacts import Impacts
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
        builder, analyzer = PostingsBuilder(), LazyAnalyzer(self.language)
        texts = contents(table.to_arrow(), self.fields)["contents"].to_arrow()
        for begin in range(0, len(texts), _BATCH):
            builder.add(*analyzer.document_tokens(texts.slice(begin, _BATCH)))
        impacts = Impacts.of(builder.finish(), self.k1, self.b)
        return LexicalIndex(impacts, table["docid"], self.language)


@dataclass(frozen=True)
class Dense:
    """Exact search of the inner product of vectors.

    Attributes:
        encoder: encoder of queries and documents, such as `open_encoder("minilm")`.

    Example:
        >>> from hybrid_cli import Dense, open_encoder
        >>> index = Dense(open_encoder("minilm")).index({"a": "salt in sea water", "b": "oxygen in the blood"})
        >>> index.search("breathing", k=1)["docid"].to_list()
        ['b']
    """

    encoder: Encoder

    def index(self, documents: DocumentsLike) -> MemoryVectors:
        """Encode documents and return their index.

        Args:
            documents: as for `BM25.index`.

        Raises:
            InputError: unusable documents.
        """
        table = documents_table(documents)
        vectors = self.encoder.encode_documents(table["title"].to_list(), table["text"].to_list())
        return MemoryVectors(self.encoder, table["docid"], vectors)


@dataclass(frozen=True)
class MemoryVectors(Index):
    """Vectors in memory.

    Attributes:
        encoder: encoder of the queries.
        docids: [N]
        vectors: [N, d]
    """

    encoder: Encoder
    docids: pl.Series
    vectors: np.ndarray
    system = "dense"

    @cached_property
    def documents(self) -> Documents:
        """See `Index`."""
        return Documents(self.docids)

    def prepare(self, queries: pl.DataFrame) -> np.ndarray:
        """Return the vectors of queries, [Q, d]."""
        return self.encoder.encode_queries(queries["text"].to_list())

    def hits(self, prepared: np.ndarray, k: int) -> Hits:
        """See `Index`."""
        depth = min(k, len(self.docids))
        if not depth:
            return Hits.none(len(prepared))
        found = []
        for begin in range(0, len(prepared), _QUERIES_AT_ONCE):
            scores = prepared[begin : begin + _QUERIES_AT_ONCE] @ self.vectors.T
            least = np.partition(scores, -depth, axis=1)[:, -depth]
            queries, rows = np.nonzero(scores >= least[:, None])  # all ties of the last hit
            found.append((begin + queries, rows, scores[queries, rows]))
        queries, rows, scores = (np.concatenate(part) for part in zip(*found, strict=True))
        return Hits.ranked(len(prepared), queries, rows, scores, self.documents, depth)

    def scores(self, prepared: np.ndarray, queries: Rows, rows: Rows) -> Scores:
        """See `Index`."""
        scores: Scores = np.einsum("nd,nd->n", prepared[queries], self.vectors[rows])
        return scores

    def within(self, allowed: Allowed) -> MemoryVectors:
        """See `Index`; the documents are those that the filter keeps."""
        kept = allowed.mask(self.docids)
        return MemoryVectors(self.encoder, self.docids.filter(kept), self.vectors[kept])
