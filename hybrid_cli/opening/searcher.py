"""Open lexical, dense and hybrid indexes for search by text, all with the same interface."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

import polars as pl

from hybrid_cli.artifacts import Manifest, read_manifest
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.fusion.weights import chosen_weights, stored_recipe, weights_path
from hybrid_cli.indexes.dense import DenseIndex
from hybrid_cli.indexes.faiss import ALL_GPUS, FLAT, pick_gpus
from hybrid_cli.indexes.shards import Vectors, read_ids, read_vectors
from hybrid_cli.opening.default_fusion import default_fusion, default_shares
from hybrid_cli.opening.dense import open_dense, read_info
from hybrid_cli.opening.exact import limit_threads, query_encoder, refusal
from hybrid_cli.opening.lexical import open_lexical
from hybrid_cli.opening.provenance import corpora_of, existing_paths, group_of
from hybrid_cli.opening.sharded import docids_of, index_manifest, merged, shards_of
from hybrid_cli.opening.stored_retriever import RetrieverFiles, is_retriever
from hybrid_cli.passages import NO_GROUPS, GroupRule
from hybrid_cli.retrieval.filters import Allowed
from hybrid_cli.retrieval.grouped import Grouped, Passages
from hybrid_cli.retrieval.in_memory import Answers, lexical_answers, numbered_lexical_side
from hybrid_cli.retrieval.numbered import NumberedAnswers, NumberedSide
from hybrid_cli.retrieval.retriever import Retriever, Side
from hybrid_cli.runs.names import short_names
from hybrid_cli.runs.tables import SCHEMA
from hybrid_cli.settings import SearchOptions
from hybrid_cli.storage import PROBABILITY, Kind, layout

if TYPE_CHECKING:
    from hybrid_cli.encoders.contract import Encoder
    from hybrid_cli.indexes.hybrid_search import HybridIndex
    from hybrid_cli.lexical.feedback import Rm3
    from hybrid_cli.lexical.index import LexicalIndex


Index = TypeVar("Index", "LexicalIndex", DenseIndex)
_HITS_AT_ONCE = 1 << 22  # of a lexical search


def _parts(queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
    """Yield queries whose hits are in memory at once."""
    return queries.iter_slices(max(1, _HITS_AT_ONCE // hits))


class Searcher(Protocol):
    """Interface of one or several open indexes."""

    def search(self, queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
        """Yield the run of some queries at a time.

        Args:
            queries: qid, text.
            hits: documents per query.
        """

    def within(self, allowed: Allowed) -> Searcher:
        """Return the same indexes whose hits are documents that a filter keeps."""


@dataclass(frozen=True)
class LexicalSearcher:
    """BM25 or learned weights through the impact matrix of one index or of shards."""

    indexes: tuple[LexicalIndex, ...]
    rm3: Rm3 | None
    threads: int | None

    def search(self, queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
        """See `Searcher`."""
        documents = sum(len(index.docids) for index in self.indexes)
        for some in _parts(queries, min(hits, documents)):
            runs_of_shards = [index.search(some, hits, self.threads, self.rm3) for index in self.indexes]
            yield runs_of_shards[0] if len(runs_of_shards) == 1 else merged(some, runs_of_shards, hits)

    def answer(self, queries: pl.DataFrame) -> Answers:
        """See `retrieval.retriever.Side`."""
        if len(self.indexes) > 1 or self.rm3:  # no exact scores
            return Answers(
                lambda depth: pl.concat(self.search(queries, depth)),
                lambda pairs: _only(self.indexes, self.rm3).score(pairs, queries),
            )
        return lexical_answers(self.indexes[0], queries, self.threads)

    def within(self, allowed: Allowed) -> LexicalSearcher:
        """See `Searcher`."""
        return replace(self, indexes=_within(self.indexes, allowed))

    @property
    def numbered(self) -> NumberedSide | None:
        """See `retrieval.retriever.Side`."""
        return None if len(self.indexes) > 1 or self.rm3 else numbered_lexical_side(self.indexes[0], self.threads)


@dataclass(frozen=True)
class LuceneSearcher:
    """BM25 through Lucene."""

    folder: Path
    k1: float | None
    b: float | None
    rm3: Rm3 | None
    threads: int | None
    language: str

    def search(self, queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
        """See `Searcher`."""
        from hybrid_cli.lexical import lucene

        for some in _parts(queries, hits):
            yield lucene.search(self.folder, some, hits, self.threads, self.k1, self.b, self.rm3, self.language)

    def answer(self, queries: pl.DataFrame) -> Answers:
        """See `retrieval.retriever.Side`; there are no exact scores."""
        return Answers(lambda depth: pl.concat(self.search(queries, depth)), _no_scores)

    def within(self, allowed: Allowed) -> NoReturn:
        """Refuse a filter: Lucene knows no metadata."""
        raise option_error("filter", None, "not with --engine lucene", code="option-does-not-apply")


@dataclass(frozen=True)
class DenseSearcher:
    """A dense index, or shards, with the encoder that built them."""

    indexes: tuple[DenseIndex, ...]
    encoder: Encoder

    def search(self, queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
        """See `Searcher`."""
        vectors = self.encoder.encode_queries(queries["text"].to_list())
        return _search_vectors(self.indexes, vectors, queries, hits)

    def answer(self, queries: pl.DataFrame) -> Answers:
        """See `retrieval.retriever.Side`."""
        vectors = self.encoder.encode_queries(queries["text"].to_list())
        return Answers(
            lambda depth: pl.concat(_search_vectors(self.indexes, vectors, queries, depth)),
            lambda pairs: _only(self.indexes).score(pairs, queries["qid"].to_list(), vectors),
        )

    def within(self, allowed: Allowed) -> DenseSearcher:
        """See `Searcher`."""
        return replace(self, indexes=_within(self.indexes, allowed))

    @property
    def numbered(self) -> NumberedSide | None:
        """See `retrieval.retriever.Side`."""
        return None if len(self.indexes) > 1 else NumberedSide(self.indexes[0].ids, self._numbered_answer)

    def _numbered_answer(self, queries: pl.DataFrame) -> NumberedAnswers:
        index, vectors = self.indexes[0], self.encoder.encode_queries(queries["text"].to_list())
        return NumberedAnswers(
            lambda depth: index.numbered_hits(vectors, depth),
            lambda numbers, documents: index.score_rows(numbers, index.ids.rows[documents], vectors),
        )


@dataclass(frozen=True)
class StoredQueriesSearcher:
    """A dense index, or shards, with query vectors that `encode` wrote; no model is loaded.

    Attributes:
        indexes: the dense index, or its shards.
        vectors: [Q, d] one vector per stored query.
    """

    indexes: tuple[DenseIndex, ...]
    vectors: Vectors

    def search(self, queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
        """See `Searcher`; queries are rows of `stored_queries`."""
        return _search_vectors(self.indexes, self.vectors[queries["row"].to_numpy()], queries, hits)

    def answer(self, queries: pl.DataFrame) -> Answers:
        """See `retrieval.retriever.Side`; there are no exact scores."""
        return Answers(lambda depth: pl.concat(self.search(queries, depth)), _no_scores)

    def within(self, allowed: Allowed) -> StoredQueriesSearcher:
        """See `Searcher`."""
        return replace(self, indexes=_within(self.indexes, allowed))


def _within(indexes: Sequence[Index], allowed: Allowed) -> tuple[Index, ...]:
    return tuple(index.within(allowed.mask(index.docids)) for index in indexes)


def _only(indexes: Sequence[Index], rm3: Rm3 | None = None) -> Index:
    """Return the index that scores pairs.

    Raises:
        InputError: the index has shards, or queries are expanded by their hits.
    """
    if len(indexes) > 1 or rm3:
        cause = "--rm3" if rm3 else "an index with shards"
        problem = f"{cause} has no exact scores of pairs; use another rule for missing documents, such as zero"
        raise InputError(problem, code="no-exact-scores", cause="rm3" if rm3 else "shards")
    return indexes[0]


def _search_vectors(
    indexes: Sequence[DenseIndex], vectors: Vectors, queries: pl.DataFrame, hits: int
) -> Iterator[pl.DataFrame]:
    """Yield the runs of query vectors [Q, d] in one index or in shards."""
    blocks = [index.search_blocks(vectors, queries["qid"].to_list(), hits) for index in indexes]
    yield from blocks[0] if len(blocks) == 1 else [merged(queries, chain.from_iterable(blocks), hits)]


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

    def answer(self, queries: pl.DataFrame) -> Answers:
        """See `retrieval.retriever.Side`; there are no exact scores."""
        return Answers(lambda depth: pl.concat(self.search(queries, depth)), _no_scores)

    def within(self, allowed: Allowed) -> HybridSearcher:
        """See `Searcher`."""
        return replace(self, index=self.index.within(allowed.mask(self.index.docids)))


@dataclass(frozen=True)
class RetrieverSearcher:
    """Several indexes and their fusion.

    Attributes:
        retriever: the open indexes.
        min_probability: least probability of a hit; None for all hits.
    """

    retriever: Retriever
    min_probability: float | None = None

    @classmethod
    def open(cls, files: RetrieverFiles, options: SearchOptions | None = None) -> RetrieverSearcher:
        """Open a retriever that `compose` wrote.

        Args:
            files: the retriever on disk.
            options: device and threads; defaults if None.

        Raises:
            InputError: an index, or the reranker, cannot be opened; or hits have no probabilities.
        """
        stored, options = files.stored, options or SearchOptions()
        reranker = None
        if stored.reranker is not None:
            from hybrid_cli.opening.rerankers import open_reranker  # imports transformers

            corpora = existing_paths(corpora_of(files.manifests))
            reranker = open_reranker(files.folder, stored.reranker, corpora, options.device)
        if options.group is None:
            options = options.changed(group=stored.group)
        sides = open_sides(files.indexes, options).values()
        named = dict(zip(files.names, sides, strict=True))
        calibration = files.calibration if options.group == stored.group else None
        retriever = Retriever(named, stored.recipe, stored.depth, reranker, calibration)
        retriever.check_probability(options.min_probability)
        return cls(retriever, options.min_probability)

    def search(self, queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
        """See `Searcher`; hits of a calibrated retriever have a `probability`."""
        if self.retriever.calibration is None:
            yield from self.retriever.runs(queries, hits)
            return
        for run in self.explained(queries, hits):
            yield run.select(*SCHEMA.names(), PROBABILITY.name)

    def explained(self, queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
        """Yield the run of some queries at a time, with rank and score in each index."""
        return self.retriever.explained(queries, hits, self.min_probability)

    def within(self, allowed: Allowed) -> RetrieverSearcher:
        """See `Searcher`."""
        return replace(self, retriever=self.retriever.within(allowed))


def open_searcher(path: Path, options: SearchOptions | None = None, shards: Sequence[Path] | None = None) -> Searcher:
    """Open one index or retriever for search.

    Args:
        path: a lexical or a dense index, a sharded index, a pattern of the names of shards, or a retriever.
        options: search options; defaults if None.
        shards: `shards_of(path)` of an earlier moment, all of which must still exist.

    Raises:
        InputError: the artifact is not an index, or the encoder differs from the one that built it.
    """
    options = options or SearchOptions()
    if is_retriever(path):
        return RetrieverSearcher.open(RetrieverFiles.read(path), options)
    return open_index(path, options, shards)


def with_probability(searcher: Searcher, min_probability: float) -> RetrieverSearcher:
    """Return a searcher that drops hits with a lower probability.

    Raises:
        InputError: the hits have no probabilities.
    """
    if not isinstance(searcher, RetrieverSearcher):
        problem = "min_probability: one index gives no probabilities; pass a retriever of `compose --calibrate`"
        raise InputError(problem, code="not-calibrated")
    searcher.retriever.check_probability(min_probability)
    return RetrieverSearcher(searcher.retriever, min_probability)


def open_index(
    path: Path, options: SearchOptions, shards: Sequence[Path] | None = None
) -> LexicalSearcher | LuceneSearcher | DenseSearcher | Grouped:
    """Open one index for search, of passages with their documents as hits; see `open_searcher`."""
    shards = shards or shards_of(path)
    opened = _open_index(path, options, shards)
    rule = group_of(options.group, [[index_manifest(shard) for shard in shards]])
    return opened if rule == NO_GROUPS else _grouped(opened, shards, rule)


def _grouped(opened: Passages, shards: Sequence[Path], rule: GroupRule) -> Grouped:
    """Return a searcher of passages whose hits are documents."""
    return Grouped(opened, lambda: pl.concat(map(docids_of, shards)), rule)


def _no_scores(pairs: pl.DataFrame) -> pl.Series:
    problem = "--group: Lucene and stored vectors of queries give no exact scores of pairs; use --group max"
    raise InputError(problem, code="no-exact-scores", option="group")


def _open_index(
    path: Path, options: SearchOptions, shards: Sequence[Path]
) -> LexicalSearcher | LuceneSearcher | DenseSearcher:
    if index_manifest(shards[0]).kind == Kind.DENSE_INDEX:
        limit_threads(options.threads)
        indexes = tuple(_with_options(shard, options) for shard in shards)
        return DenseSearcher(indexes, query_encoder(indexes[0], options.model, options.device, options.weight))
    whole = {"--rm3": options.rm3, "--engine lucene": options.engine == "lucene", "--impact-bits": options.impact_bits}
    if "shard" in index_manifest(shards[0]).counts and any(whole.values()):
        option = next(name for name, chosen in whole.items() if chosen)
        raise InputError(
            f"{option}: not with shards; build one index with `index-bm25`, without --shards",
            code="option-does-not-apply",
            option=option,
            kind="shards",
        )
    from hybrid_cli.lexical.feedback import Rm3

    rm3 = Rm3(options.fb_terms, options.fb_docs, options.fb_weight) if options.rm3 else None
    if options.engine == "lucene":
        if not (path / layout.LUCENE).is_dir():
            if "encoder" in index_manifest(path).counts:
                reason = f"{path}: has no Lucene index, since its weights are learned; omit it"
                raise option_error("engine", "lucene", reason, code="option-does-not-apply", path=path)
            reason = f"{path}: has no Lucene index; repeat index-bm25 with --overwrite, without --no-lucene"
            raise option_error("engine", "lucene", reason, code="no-lucene-index", path=path)
        language = read_manifest(path).options["language"]
        return LuceneSearcher(path, options.k1, options.b, rm3, options.threads, language)
    opened = tuple(open_lexical(shard, options.k1, options.b, options.model, options.device) for shard in shards)
    if options.impact_bits:
        from hybrid_cli.lexical.index import LexicalIndex

        opened = tuple(LexicalIndex(index.impacts.rounded(), index.docids, index.language) for index in opened)
    return LexicalSearcher(opened, rm3, options.threads)


def open_sides(indexes: Sequence[Path], options: SearchOptions | None = None) -> dict[str, Side]:
    """Open indexes as the sides of a retriever: name -> open index."""
    options = options or SearchOptions()
    if options.engine == "lucene":
        raise option_error("engine", "lucene", "only with one index", code="option-does-not-apply")
    return dict(zip(short_names(indexes), (open_index(index, options) for index in indexes), strict=True))  # type: ignore[misc]


def open_fused(
    indexes: Sequence[Path],
    manifests: Sequence[Sequence[Manifest]],
    options: SearchOptions,
    weights: str | Sequence[float] | None,
) -> Searcher:
    """Open several indexes of one corpus, fused as a file of `fuse --tune` states, or by the default fusion.

    Args:
        indexes: the indexes.
        manifests: the manifests of each index, several for one of shards.
        options: search options.
        weights: `@FILE`, or one weight per index, in units of the deviations of the scores; None for the default.
    """
    names, sides = short_names(indexes), open_sides(indexes, options)
    if path := weights_path(weights):
        return RetrieverSearcher(Retriever(sides, stored_recipe(path, names, {})))
    shares = chosen_weights(weights, FusionRecipe("weighted-sum", default_shares(manifests), "exact"), names).weights
    return RetrieverSearcher(Retriever(sides, default_fusion(sides, manifests, shares).recipe))


def open_hybrid(
    paths: Sequence[Path], weights: Sequence[float], options: SearchOptions | None = None
) -> HybridSearcher:
    """Open several indexes of one corpus for exact search by the weighted sum of their scores.

    Args:
        paths: one or more dense indexes, and at most one lexical index.
        weights: one per index.
        options: search options; defaults if None.

    Raises:
        InputError: the indexes cannot be searched together.
    """
    from hybrid_cli.opening.weighted_sum import open_sum  # imports numba

    options = options or SearchOptions(exact=True)
    index = open_sum(paths, weights, options.k1, options.b, options.device)
    limit_threads(options.threads)
    encoders = [query_encoder(dense, options.model, options.device, options.weight) for dense in index.dense]
    return HybridSearcher(index, tuple(encoders), options.threads)


def open_stored_queries(
    path: Path, vectors: Path, options: SearchOptions | None = None, shards: Sequence[Path] | None = None
) -> StoredQueriesSearcher | Grouped:
    """Open a dense index for search by query vectors that `encode` wrote.

    Args:
        path: the dense index, or a pattern of the names of shards.
        vectors: folder of vectors.
        options: search options; defaults if None.
        shards: see `open_searcher`.

    Raises:
        InputError: the vectors were made by another encoder.
    """
    options = options or SearchOptions()
    limit_threads(options.threads)
    paths = shards or shards_of(path)
    indexes = tuple(_with_options(shard, options) for shard in paths)
    index = indexes[0]
    info = read_info(vectors, Kind.VECTORS)
    if info.dim != index.dim:
        raise InputError(
            f"{vectors}: vectors of {info.dim} values; those of {path} have {index.dim}",
            code="other-width",
            path=vectors,
            value=info.dim,
            expected=index.dim,
            index=path,
        )
    if info.encoder != index.fingerprint:
        raise refusal(index, str(vectors), info.contract)
    opened = StoredQueriesSearcher(indexes, read_vectors(vectors))
    rule = group_of(options.group, [[index_manifest(shard) for shard in paths]])
    return opened if rule == NO_GROUPS else _grouped(opened, paths, rule)


def stored_queries(vectors: Path) -> pl.DataFrame:
    """Return qid and row of the query vectors that `encode` wrote."""
    return pl.DataFrame({"qid": read_ids(vectors)}).with_row_index("row")


def _with_options(path: Path, options: SearchOptions) -> DenseIndex:
    """Open a dense index with the search parameters of `options`."""
    index = open_dense(path, options.ef_search, options.nprobe, options.binary_k)
    if index.info.factory != FLAT:
        return index
    return replace(index, gpus=None if options.faiss_device == ALL_GPUS else tuple(pick_gpus(options.faiss_device)))
