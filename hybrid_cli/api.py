"""The Python interface: open an index, a retriever, an encoder or a run, and use it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hybrid_cli import runs
from hybrid_cli.artifacts import retrievers
from hybrid_cli.artifacts.belonging import belongs_together
from hybrid_cli.artifacts.indexes import index_kinds, manifests_of, metadata_of, open_texts
from hybrid_cli.artifacts.manifest import Manifest, naming_plugins
from hybrid_cli.artifacts.retrievers import RetrieverFiles, of_auto
from hybrid_cli.collections.collection import Collection, TextStore, corpus_path
from hybrid_cli.commands import Encode, SearchOptions, TrainDense
from hybrid_cli.commands.retrieval import RETRIEVER
from hybrid_cli.errors import InputError
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.retrieval.retriever import Retriever
from hybrid_cli.runs.given import QueriesLike
from hybrid_cli.runs.index import Index
from hybrid_cli.settings.conversion import has_url

if TYPE_CHECKING:
    from hybrid_cli.encoders.contract import Encoder
    from hybrid_cli.encoders.options import Precision
    from hybrid_cli.evaluation.measures import QrelsLike

PathLike = str | os.PathLike[str]
_FILTERS = 4  # whose masks are kept


def _local(*paths: PathLike) -> list[Path]:
    """Return the paths of local artifacts, and of the copies of those in an object store."""
    if not any(has_url(os.fspath(path)) for path in paths):
        return [Path(path) for path in paths]
    from hybrid_cli.artifacts.remote import local_copies

    return local_copies(paths)


@dataclass(frozen=True)
class OpenIndex:
    """An open index or retriever; made by `open_index` and `open_retriever`.

    Attributes:
        index: the index, or several and their fusion.
        documents: titles and texts; None if the corpora are not at the paths recorded in the index.
        parts: the manifests of each index, several for one of shards; () by default.
        opened: the call that opened it, which a copy in another process repeats.

    Example:
        >>> from hybrid_cli import open_index
        >>> index = open_index("out/bm25")
        >>> index.search(["table salt", "the moon"], k=1)["qid"].to_list()
        ['0', '1']
    """

    index: Index
    documents: TextStore | None
    parts: Sequence[Sequence[Manifest]] = ()
    opened: Callable[[], OpenIndex] | None = None

    def __reduce__(self) -> tuple[Callable[[], OpenIndex], tuple[()]]:
        """Pickle the call that opened it."""
        assert self.opened is not None
        return self.opened, ()

    def __deepcopy__(self, memo: object) -> OpenIndex:
        """Return the same index, which never changes."""
        return self

    def search(
        self, queries: QueriesLike, k: int = 10, filter: str | None = None, min_probability: float | None = None
    ) -> pl.DataFrame:
        """Return the top documents of one or more queries.

        Args:
            queries: a text; several texts, whose qids are "0", "1", ...; texts by qid; or a data frame.
            k: documents per query; 10 by default.
            filter: condition over the metadata of documents, such as `year >= 2020 AND lang = 'de'`.
            min_probability: least probability of a hit of a calibrated retriever. A query without hits has no row.

        Returns:
            qid, docid, rank (from 1), score; of several indexes, rank and score in each, such as `bm25_rank` and
            `bm25_score`, null where the index does not return the document; of a calibrated retriever, `probability`;
            title and text if the corpus is known, and `metadata`, a struct, if it has any. Of an index of passages, the
            hits are documents, and `passage` is the best passage, which gives title and text.
            In the order of the queries.

        Raises:
            InputError: `k` is no whole number from 1 on, a query is no text, no condition over known columns, or hits
                have no probabilities.
        """
        index = self.index if filter is None else self._within(filter)
        if min_probability is not None:
            index = _with_probability(index, min_probability)
        hits = index.search(queries, k)
        if self.documents is None:
            return hits
        documents = self.documents.documents(hits["passage" if "passage" in hits.columns else "docid"])
        return hits.hstack(documents.drop("docid"))

    def tuned(self, queries: QueriesLike, qrels: QrelsLike, measure: str) -> OpenIndex:
        """Return the retriever with the weights that judged queries choose; see `Retriever.tuned`.

        Raises:
            InputError: one index, which has no weights, or useless judgments.
        """
        if not isinstance(self.index, Retriever) or self.opened is None:
            raise InputError("tuned: one index has no weights; open several, or a retriever", code="other-kind")
        index = self.index.tuned(queries, qrels, measure)
        return replace(self, index=index, opened=partial(_with_recipe, self.opened, index.recipe))

    @cached_property
    def _within(self) -> Callable[[str], Index]:
        """From a filter to the index of the documents that it keeps; the last ones are kept."""
        metadata = metadata_of(self.parts)
        return lru_cache(_FILTERS)(lambda text: self.index.within(metadata.allowed(text)))


def _with_recipe(opened: Callable[[], OpenIndex], recipe: FusionRecipe) -> OpenIndex:
    """Open a retriever, and return it with another fusion."""
    before = opened()
    assert isinstance(before.index, Retriever)
    return replace(before, index=replace(before.index, recipe=recipe), opened=partial(_with_recipe, opened, recipe))


def _with_probability(index: Index, min_probability: float) -> Index:
    """Return a retriever that drops hits with a lower probability.

    Raises:
        InputError: the hits have no probabilities.
    """
    if isinstance(index, Retriever):
        return replace(index, min_probability=min_probability)
    problem = "min_probability: one index gives no probabilities; pass a retriever of `compose --calibrate`"
    raise InputError(problem, code="not-calibrated")


def open_retriever(path: PathLike, **options: Any) -> OpenIndex:
    """Open a retriever that `hybrid compose` or `hybrid auto` wrote.

    Args:
        path: folder of the retriever or of `auto`, or its URL.
        options: `device`, `threads` and `min_probability`, as of `hybrid search`.

    Returns:
        The retriever; `search(queries, k=10)` returns its hits.

    Raises:
        InputError: no retriever, or an index of it is gone or was built again.

    Example:
        >>> from hybrid_cli import open_retriever
        >>> hits = open_retriever("out/retriever").search("table salt", k=3)
        >>> hits["rank"].to_list()
        [1, 2, 3]
    """
    folder = _local(path)[0]
    settings = SearchOptions(**options)
    settings.check_facts(f"{folder} is {RETRIEVER}", index_kind=RETRIEVER)
    files = RetrieverFiles.read(of_auto(folder))
    index, again = retrievers.open_retriever(files, settings), partial(open_retriever, path, **options)
    return OpenIndex(index, open_texts(files.manifests), files.manifests, again)


def open_index(*paths: PathLike, weights: Sequence[float] | None = None, **options: Any) -> OpenIndex:
    """Open an index, or several indexes of one corpus with the default fusion of `hybrid compose`.

    Args:
        paths: path or URL of one index, or of several.
        weights: one per index, for several indexes: weights of scores in units of their deviations; by default .3 for
            lexical and .7 for dense indexes.
        options: search options of `hybrid search`, such as `k1`, `rm3`, `nprobe`, `model`, `device`,
            `threads`.

    Returns:
        The index; `search(queries, k=10)` returns its hits.

    Raises:
        InputError: no index at a path, or an option that does not apply to it.

    Example:
        >>> from hybrid_cli import open_index
        >>> open_index("out/bm25", k1=1.2).search("table salt", k=2).columns
        ['qid', 'docid', 'rank', 'score', 'title', 'text']
        >>> hits = open_index("out/bm25", "out/dense", weights=[0.3, 0.7]).search("table salt")
        >>> {"bm25_rank", "dense_rank"} < set(hits.columns)
        True
    """
    folders = _local(*paths)
    if not folders:
        raise InputError("open_index: needs the path of an index", code="missing-value", option="paths")
    parts, again = manifests_of(folders), partial(open_index, *paths, weights=weights, **options)
    settings = SearchOptions(**options)
    kinds = frozenset[str]().union(*(index_kinds(manifests[0]) for manifests in parts))
    settings.check_facts(", ".join(map(str, folders)), index_kind=kinds)
    belongs_together(indexes=dict(zip(folders, parts, strict=True)))
    if len(folders) > 1:
        return OpenIndex(retrievers.open_fused(folders, parts, settings, weights), open_texts(parts), parts, again)
    if weights is not None:
        raise InputError("open_index: weights need several indexes", code="option-does-not-apply", option="weights")
    return OpenIndex(retrievers.open_searchable(folders[0], settings), open_texts(parts), parts, again)


def open_encoder(
    model: PathLike = TrainDense.model, *, device: str = Encode.device, dtype: Precision = Encode.dtype
) -> Encoder:
    """Open an encoder: `encode_queries(texts)` and `encode_documents(titles, texts)` return float32 arrays [n, d].

    Args:
        model: minilm by default, a folder or its URL, or a Hugging Face id.
        device: auto by default, `cpu`, `cuda`, ...
        dtype: auto by default (bf16 where the processor supports it, else fp32), `fp32`, `bf16` or `fp16`.

    Returns:
        The encoder; the inner product of the vectors of a query and a document is their score.

    Raises:
        InputError: no such model, or an unusable device or dtype.

    Example:
        >>> from hybrid_cli import open_encoder
        >>> encoder = open_encoder("minilm", dtype="fp32")
        >>> encoder.encode_queries(["progress bar"]).shape
        (1, 384)
    """
    from hybrid_cli.encoders.models import open_encoder as opened

    with naming_plugins():
        return opened(str(_local(model)[0]), device=device, dtype=dtype)


def open_collection(path: PathLike) -> Collection:
    """Open a collection that `hybrid prepare` wrote.

    Args:
        path: folder of the collection, or its URL.

    Returns:
        The collection, which `BM25().index`, `Dense(...).index` and `train` take.

    Raises:
        InputError: no collection.

    Example:
        >>> from hybrid_cli import open_collection
        >>> open_collection("data/rich").qrels("test").columns
        ['qid', 'docid', 'relevance']
    """
    folder = _local(path)[0]
    corpus_path(folder)
    return Collection(folder)


def open_run(path: PathLike) -> pl.DataFrame:
    """Read a run (Parquet, TREC or MS MARCO).

    Args:
        path: the file, or its URL.

    Returns:
        qid, docid, rank (from 1), score, in the order of the ranks.

    Raises:
        InputError: the file is not a run.

    Example:
        >>> from hybrid_cli import open_run
        >>> open_run("out/bm25.parquet").columns
        ['qid', 'docid', 'rank', 'score']
    """
    return runs.read_run(_local(path)[0])
