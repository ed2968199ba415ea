"""Open lexical, dense and hybrid indexes for search by text, all with the same interface."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import polars as pl

from hybrid_cli.artifacts import Kind, Manifest
from hybrid_cli.errors import InputError
from hybrid_cli.indexes.dense import DenseIndex, IndexInfo
from hybrid_cli.indexes.exact import index_manifest, limit_threads, query_encoder, refusal
from hybrid_cli.indexes.faiss import is_binary
from hybrid_cli.indexes.shards import Vectors, read_ids, read_shard, shards
from hybrid_cli.settings import SearchOptions

if TYPE_CHECKING:
    from hybrid_cli.encoders.contract import Encoder
    from hybrid_cli.indexes.hybrid_search import HybridIndex
    from hybrid_cli.lexical.feedback import Rm3
    from hybrid_cli.lexical.index import LexicalIndex


class Searcher(Protocol):
    """Interface of one or several open indexes."""

    def search(self, queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
        """Yield the run of some queries at a time.

        Args:
            queries: qid, text.
            hits: documents per query.
        """


@dataclass(frozen=True)
class LexicalSearcher:
    """BM25 through the impact matrix."""

    index: LexicalIndex
    rm3: Rm3 | None
    threads: int | None

    def search(self, queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
        """See `Searcher`."""
        yield self.index.search(queries, hits, self.threads, self.rm3)


@dataclass(frozen=True)
class LuceneSearcher:
    """BM25 through Lucene."""

    folder: Path
    k1: float | None
    b: float | None
    rm3: Rm3 | None
    threads: int | None

    def search(self, queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
        """See `Searcher`."""
        from hybrid_cli.lexical import lucene

        yield lucene.search(self.folder, queries, hits, self.threads, self.k1, self.b, self.rm3)


@dataclass(frozen=True)
class DenseSearcher:
    """A dense index with the encoder that built it."""

    index: DenseIndex
    encoder: Encoder

    def search(self, queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
        """See `Searcher`."""
        vectors = self.encoder.encode_queries(queries["text"].to_list())
        return self.index.search_blocks(vectors, queries["qid"].to_list(), hits)


@dataclass(frozen=True)
class StoredQueriesSearcher:
    """A dense index with query vectors that `encode` wrote; no model is loaded.

    Attributes:
        index: the dense index.
        vectors: [Q, d] one vector per stored query.
    """

    index: DenseIndex
    vectors: Vectors

    def search(self, queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
        """See `Searcher`; queries are rows of `stored_queries`."""
        return self.index.search_blocks(self.vectors[queries["row"].to_numpy()], queries["qid"].to_list(), hits)


@dataclass(frozen=True)
class HybridSearcher:
    """Indexes whose weighted scores are summed exactly, with the encoders of the dense ones."""

    index: HybridIndex
    encoders: tuple[Encoder, ...]
    threads: int | None

    def search(self, queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
        """See `Searcher`."""
        texts = queries["text"].to_list()
        vectors = [encoder.encode_queries(texts) for encoder in self.encoders]
        return self.index.search_blocks(vectors, queries, hits, self.threads)


def index_kinds(manifest: Manifest) -> frozenset[str]:
    """Return the kinds of an index, as named in the declarations of `SearchOptions`."""
    if manifest.kind == Kind.LEXICAL_INDEX:
        return frozenset({"a lexical index"})
    factory = IndexInfo.of(manifest).factory
    parts = {"HNSW": "an HNSW index", "IVF": "an IVF index"}
    kinds = {"a dense index", *(kind for part, kind in parts.items() if part in factory)}
    return frozenset(kinds | ({"a binary index"} if is_binary(factory) else set()))


def open_searcher(path: Path, options: SearchOptions | None = None) -> Searcher:
    """Open one index for search.

    Args:
        path: a lexical or a dense index.
        options: search options; defaults if None.

    Raises:
        InputError: the artifact is not an index, or the encoder differs from the one that built it.
    """
    options = options or SearchOptions()
    if index_manifest(path).kind == Kind.DENSE_INDEX:
        limit_threads(options.threads)
        index = open_dense(path, options)
        return DenseSearcher(index, query_encoder(index, options.model, options.device, options.weight))
    from hybrid_cli.lexical.feedback import Rm3
    from hybrid_cli.lexical.index import LexicalIndex

    rm3 = Rm3(options.fb_terms, options.fb_docs, options.fb_weight) if options.rm3 else None
    if options.engine == "lucene":
        return LuceneSearcher(path, options.k1, options.b, rm3, options.threads)
    return LexicalSearcher(LexicalIndex.open(path, options.k1, options.b), rm3, options.threads)


def open_hybrid(paths: Sequence[Path], weights: Sequence[float], options: SearchOptions | None = None) -> Searcher:
    """Open several indexes of one corpus for exact search by the weighted sum of their scores.

    Args:
        paths: one or more dense indexes, and at most one lexical index.
        weights: one per index.
        options: search options; defaults if None.

    Raises:
        InputError: the indexes cannot be searched together.
    """
    from hybrid_cli.indexes.hybrid_search import HybridIndex

    options = options or SearchOptions(exact=True)
    index = HybridIndex.open(paths, weights, options.k1, options.b)
    limit_threads(options.threads)
    encoders = [query_encoder(dense, options.model, options.device, options.weight) for dense in index.dense]
    return HybridSearcher(index, tuple(encoders), options.threads)


def open_stored_queries(path: Path, vectors: Path, options: SearchOptions | None = None) -> StoredQueriesSearcher:
    """Open a dense index for search by query vectors that `encode` wrote.

    Args:
        path: the dense index.
        vectors: folder of vectors.
        options: search options; defaults if None.

    Raises:
        InputError: the vectors were made by another encoder.
    """
    options = options or SearchOptions()
    limit_threads(options.threads)
    index = open_dense(path, options)
    info = IndexInfo.read(vectors, Kind.VECTORS)
    if info.dim != index.dim:
        raise InputError(f"{vectors}: vectors of {info.dim} values; those of {path} have {index.dim}")
    if info.encoder != index.fingerprint:
        raise InputError(refusal(index, str(vectors), info.contract))
    stored = np.concatenate([read_shard(shard) for shard in shards(vectors)])
    return StoredQueriesSearcher(index, stored)


def stored_queries(vectors: Path) -> pl.DataFrame:
    """Return qid and row of the query vectors that `encode` wrote."""
    return pl.DataFrame({"qid": read_ids(vectors)}).with_row_index("row")


def open_dense(path: Path, options: SearchOptions) -> DenseIndex:
    """Open a dense index with the search parameters of `options`."""
    return DenseIndex.open(path, options.ef_search, options.nprobe, options.binary_k)
