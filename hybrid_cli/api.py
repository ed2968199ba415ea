"""The Python interface: open an index, a retriever, an encoder or a run, and use it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hybrid_cli import runs
from hybrid_cli.artifacts import retrievers
from hybrid_cli.artifacts.belonging import belongs_together
from hybrid_cli.artifacts.indexes import index_kinds, known_corpora, manifests_of, metadata_of, open_texts
from hybrid_cli.artifacts.manifest import Manifest, naming_plugins
from hybrid_cli.artifacts.retrievers import RetrieverFiles, of_auto
from hybrid_cli.collections.collection import Collection, corpus_path
from hybrid_cli.collections.sentences import sampled
from hybrid_cli.commands import Encode, SearchOptions, TrainDense
from hybrid_cli.commands.retrieval import RETRIEVER
from hybrid_cli.errors import InputError, named_keywords
from hybrid_cli.retrieval.retriever import Retriever
from hybrid_cli.runs.index import Allowed, Index, Known
from hybrid_cli.settings.conversion import has_url

if TYPE_CHECKING:
    from hybrid_cli.encoders.contract import Encoder
    from hybrid_cli.encoders.options import Precision

PathLike = str | os.PathLike[str]


def _local(*paths: PathLike) -> list[Path]:
    """Return the paths of local artifacts, and of the copies of those in an object store."""
    if wrong := [path for path in paths if not isinstance(path, str | os.PathLike)]:
        problem = f"needs a path, not {type(wrong[0]).__name__}; data in memory are indexed: BM25().index(documents)"
        raise InputError(problem, code="other-type")
    if not any(has_url(os.fspath(path)) for path in paths):
        return [Path(path) for path in paths]
    from hybrid_cli.artifacts.remote import local_copies

    return local_copies(paths)


class _OnDisk(Known):
    """The corpora that indexes on disk record.

    Args:
        parts: the manifests of each index, several for one of shards.
        opened: the call that opened it.
    """

    def __init__(self, parts: Sequence[Sequence[Manifest]], opened: Callable[[], Index]) -> None:
        self._parts, self._store, self.opened = parts, open_texts(parts), opened

    def texts(self, docids: pl.Series) -> pl.DataFrame | None:
        return None if self._store is None else self._store.documents(docids)

    def allowed(self, text: str) -> Allowed:
        return metadata_of(self._parts).allowed(text)

    def pieces(self, number: int, seed: int) -> pl.DataFrame:
        corpora = known_corpora(self._parts)
        return sampled(corpora, number, seed) if corpora else pl.DataFrame()


def open_retriever(path: PathLike, **options: Any) -> Retriever:
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
    settings = SearchOptions(**SearchOptions.by_field(options))
    settings.check_facts(f"{folder} is {RETRIEVER}", index_kind=RETRIEVER)
    files = RetrieverFiles.read(of_auto(folder))
    index = retrievers.open_retriever(files, settings)
    return index.knowing(_OnDisk(files.manifests, partial(open_retriever, path, **options)))


def open_index(*paths: PathLike, weights: Sequence[float] | None = None, **options: Any) -> Index:
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
    settings = SearchOptions(**SearchOptions.by_field(options))
    kinds = frozenset[str]().union(*(index_kinds(manifests[0]) for manifests in parts))
    settings.check_facts(", ".join(map(str, folders)), index_kind=kinds)
    belongs_together(indexes=dict(zip(folders, parts, strict=True)))
    if len(folders) > 1:
        return retrievers.open_fused(folders, parts, settings, weights).knowing(_OnDisk(parts, again))
    if weights is not None:
        raise InputError("open_index: weights need several indexes", code="option-does-not-apply", option="weights")
    return retrievers.open_searchable(folders[0], settings).knowing(_OnDisk(parts, again))


@named_keywords
def open_encoder(
    model: PathLike = TrainDense.model, *, device: str = Encode.device, dtype: Precision = Encode.dtype
) -> Encoder:
    """Open an encoder: `encode_queries(texts)` and `encode_documents(titles, texts)` return float32 arrays [n, d].

    Args:
        model: minilm by default, a folder or its URL, a Hugging Face id, or `https://HOST/v1#NAME`: a model behind an
            embeddings API.
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
    from hybrid_cli.encoders.models import is_endpoint
    from hybrid_cli.encoders.models import open_encoder as opened

    name = model if isinstance(model, str) and is_endpoint(model) else _local(model)[0]
    with naming_plugins():
        return opened(str(name), device=device, dtype=dtype)


@named_keywords
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


@named_keywords
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
