"""BM25 and dense vectors of documents in memory.

    bm25 = BM25(k1=0.9, b=0.4).index(documents)
    dense = Dense(open_encoder("minilm")).index(documents)
    hits = fuse({"bm25": bm25.search(queries, 100), "dense": dense.search(queries, 100)})

The hits are those of the indexes that `index-bm25` and `encode` write. Documents and queries may be texts, dictionaries
or data frames.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import polars as pl

from hybrid_cli import languages
from hybrid_cli.collections.collection import Collection
from hybrid_cli.draws import rng, sample
from hybrid_cli.errors import InputError, named_keywords
from hybrid_cli.lexical.options import MAX_K1, STACKING, BM25Options, field_weight
from hybrid_cli.runs.given import DocumentsLike, as_array, documents_table
from hybrid_cli.runs.index import Allowed, Known

if TYPE_CHECKING:
    import numpy as np

    from hybrid_cli.encoders.contract import Encoder
    from hybrid_cli.indexes.dense import DenseIndex
    from hybrid_cli.lexical.index import LexicalIndex

_BATCH = 1024  # documents that are counted at once
_SAMPLED = 200  # documents whose language is detected


@named_keywords
@dataclass(frozen=True, kw_only=True)
class BM25(BM25Options):
    """BM25 as Lucene computes it, over an impact matrix in memory.

    Attributes:
        k1: saturation of term frequency; 0.9 by default.
        b: strength of document length normalization, from 0 to 1; 0.4 by default.
        fields: indexed fields, title and text by default; `title=3` counts each word of the title three times (BM25F).
        language: analyzer: `en` (Porter stemmer), a code such as `de`, `fr` or `zh`; that of most documents by default.
        identifiers: also index the parts of names such as `getUserById` and `foo.bar_baz`; False by default.

    Example:
        >>> from hybrid_cli import BM25
        >>> index = BM25(k1=1.2).index({"a": "salt in sea water", "b": "oxygen in the blood"})
        >>> index.search("salt water", k=5)["docid"].to_list()
        ['a']
    """

    def __post_init__(self) -> None:
        """Check the parameters."""
        if isinstance(self.fields, str):
            vars(self)["fields"] = (self.fields,)
        for name, most in (("k1", MAX_K1), ("b", 1)):
            if not isinstance(value := getattr(self, name), int | float) or not 0 <= value <= most:
                raise InputError(f"{name} {value}: needs a number from 0 to {most}", code="out-of-range", option=name)

    def index(self, documents: DocumentsLike) -> LexicalIndex:
        """Analyze documents and return their index; documents without a term of the query are no hits.

        Args:
            documents: texts, whose docids are "0", "1", ...; a dictionary `{docid: text}`; tuples (docid, text) or
                (docid, title, text), or the named ones of ir_datasets; dictionaries with `docid`, `text` and maybe
                `title`; or a data frame (polars or pandas) with such columns, also by the names of BEIR (`_id`) and
                PyTerrier (`docno`). Further columns of texts and numbers are metadata, for filters.

        Raises:
            InputError: unusable documents, no such field, or a language whose document lengths only Lucene knows.
            HybridError: Java is missing.
        """
        from hybrid_cli.lexical.analysis import LazyAnalyzer, choose_language
        from hybrid_cli.lexical.build import contents
        from hybrid_cli.lexical.builder import PostingsBuilder
        from hybrid_cli.lexical.impacts import Impacts
        from hybrid_cli.lexical.index import LexicalIndex

        table = documents_table(documents)
        try:
            names = [field_weight(field)[0] for field in self.fields]
        except ValueError as error:
            raise InputError(f"fields: {error}", code="invalid-field") from None
        if lacking := [name for name in names if table.schema.get(name) != pl.String]:
            raise InputError(f"the documents: no field {lacking[0]}", code="no-such-column", column=lacking[0])
        texts = contents(table.to_arrow(), self.fields)["contents"].to_arrow()
        if self.language in STACKING:
            raise InputError(f"language {self.language}: needs an index on disk (index-bm25)", code="language")
        sampled = texts.take(sample(len(texts), _SAMPLED, rng(0))).to_pylist()
        language = self.language or choose_language({languages.of_most(sampled): 1}, with_lucene=False)
        name = replace(self, language=language).analysis
        builder, analyzer = PostingsBuilder(), LazyAnalyzer(name)
        for begin in range(0, len(texts), _BATCH):
            builder.add(*analyzer.document_tokens(texts.slice(begin, _BATCH)))
        impacts = Impacts.of(builder.finish(), self.k1, self.b)
        return LexicalIndex(impacts, table["docid"], name).knowing(
            KnownTable(table, self, documents if isinstance(documents, Collection) else None)
        )


@named_keywords
@dataclass(frozen=True)
class Dense:
    """Exact search of the inner product of vectors.

    Attributes:
        encoder: `minilm`, a folder or an encoder of `open_encoder`; a model of sentence-transformers; a function from
            texts to vectors; or the vectors of the documents [N, d], of which the queries are vectors too.

    Example:
        >>> from hybrid_cli import Dense, open_encoder
        >>> index = Dense(open_encoder("minilm")).index({"a": "salt in sea water", "b": "oxygen in the blood"})
        >>> index.search("breathing", k=1)["docid"].to_list()
        ['b']
    """

    encoder: Any

    def index(self, documents: DocumentsLike) -> DenseIndex:
        """Encode documents and return their index.

        Args:
            documents: as for `BM25.index`.

        Raises:
            InputError: unusable documents, something that is no encoder, or another number of vectors.
        """
        from hybrid_cli.indexes.dense import DenseIndex

        table = documents_table(documents)
        if hasattr(self.encoder, "shape") or isinstance(self.encoder, list):
            vectors, encode = as_array(self.encoder, "the vectors"), None
            if vectors.ndim != 2 or len(vectors) != len(table):
                problem = f"the vectors: the shape {list(vectors.shape)} for {len(table):,} documents"
                raise InputError(problem, code="number-of-values", shape=vectors.shape)
        else:
            encoder = _encoder(self.encoder)
            vectors = encoder.encode_documents(table["title"].to_list(), table["text"].to_list())
            encode = partial(_encoded, encoder)
        return DenseIndex.of(table["docid"], vectors, encode).knowing(
            KnownTable(table, self, documents if isinstance(documents, Collection) else None)
        )


def _encoded(encoder: Encoder, queries: pl.DataFrame) -> np.ndarray:
    return encoder.encode_queries(queries["text"].to_list())


def _encoder(model: Any) -> Encoder:
    """Return an encoder of what `Dense` takes.

    Raises:
        InputError: something else.
    """
    if hasattr(model, "encode_queries") and not isinstance(model, type):
        return cast("Encoder", model)
    if isinstance(model, str | os.PathLike):
        from hybrid_cli.encoders.models import open_encoder

        return open_encoder(os.fspath(model))
    of_both = getattr(model, "encode", model)  # sentence-transformers
    sides = [getattr(model, name, of_both) for name in ("encode_query", "encode_document")]
    if not all(map(callable, sides)) or isinstance(model, type):
        problem = f"Dense: {type(model).__name__} is no encoder, model or function from texts to vectors"
        raise InputError(problem, code="not-an-encoder")
    from hybrid_cli.encoders.contract import FunctionEncoder

    named = type(getattr(model, "__name__", type(model).__name__), (FunctionEncoder,), {})
    return cast("Encoder", named(*sides))


@dataclass(frozen=True)
class KnownTable(Known):
    """What an index in memory was made of.

    Attributes:
        table: docid, title, text and metadata of the documents.
        maker: made the index.
        collection: has the documents; None for those of a table.
    """

    table: pl.DataFrame
    maker: BM25 | Dense
    collection: Collection | None = None

    def texts(self, docids: pl.Series) -> pl.DataFrame:
        """See `Known`."""
        found = pl.DataFrame({"docid": docids}).join(self.table, on="docid", how="left", maintain_order="left")
        others = found.drop("docid", "title", "text").columns
        return found.select("docid", "title", "text", *([pl.struct(others).alias("metadata")] if others else []))

    def allowed(self, text: str) -> Allowed:
        """See `Known`."""
        from hybrid_cli.retrieval.filters import allowed_of

        return allowed_of(text, self.table.drop("title", "text"))

    def pieces(self, number: int, seed: int) -> pl.DataFrame:
        """See `Known`."""
        from hybrid_cli.collections.sentences import pieces_of

        return pieces_of(self.table, number, seed)

    def queries(self) -> pl.DataFrame:
        """See `Known`."""
        if self.collection is None:
            return super().queries()
        of_splits = [self.collection.queries(split).select("qid", "text") for split in self.collection.splits]
        return pl.concat(of_splits).unique("qid", maintain_order=True)
