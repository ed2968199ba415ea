"""Indexes opened for search, with the encoders that built them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hybrid_cli import storage
from hybrid_cli.artifacts import Manifest, read_manifest
from hybrid_cli.artifacts.indexes import (
    docids_of,
    find_model,
    group_of,
    info_of,
    quantization,
    read_info,
    shards_of,
)
from hybrid_cli.encoders.contract import TRANSFORMER, differences
from hybrid_cli.encoders.models import is_endpoint, resolve
from hybrid_cli.encoders.options import DEVICE, Calling, Precision
from hybrid_cli.errors import InputError, option_error, path_error
from hybrid_cli.indexes.dense import DenseIndex
from hybrid_cli.indexes.faiss import ALL_GPUS, pick_gpus, set_threads
from hybrid_cli.indexes.options import FLAT, Searching
from hybrid_cli.indexes.shards import Vectors, read_ids, read_vectors
from hybrid_cli.lexical.impacts import READ_WHOLE
from hybrid_cli.lexical.index import ExpandedQueries, LexicalIndex, read_parameters
from hybrid_cli.lexical.options import analysis_of
from hybrid_cli.passages import NO_GROUPS
from hybrid_cli.retrieval.composed import Grouped, ShardedIndex
from hybrid_cli.runs import SortedIds
from hybrid_cli.runs.index import Index
from hybrid_cli.storage import Kind, layout
from hybrid_cli.storage.layout import INDEX_ENCODER

if TYPE_CHECKING:
    from hybrid_cli.encoders.contract import Encoder
    from hybrid_cli.encoders.sparse import TermWeights
    from hybrid_cli.indexes.hybrid_search import HybridIndex
    from hybrid_cli.lexical.feedback import Rm3


def open_index(
    path: Path,
    options: Searching | None = None,
    shards: Mapping[Path, Manifest] | None = None,
    vectors: Path | None = None,
) -> Index:
    """Open one index for search, of passages with their documents as hits.

    Args:
        path: a lexical or a dense index, a sharded index, or a pattern of the names of shards.
        options: search options; defaults if None.
        shards: `shards_of(path)` of an earlier moment, all of which must still exist.
        vectors: folder of the vectors of queries that `encode` wrote, for a dense index: no model is loaded.

    Raises:
        InputError: the artifact is not an index, or the encoder differs from the one that built it.
    """
    options, shards = options or Searching(), shards or shards_of(path)
    manifests = list(shards.values())
    parts: Sequence[Index]
    if manifests[0].kind == Kind.DENSE_INDEX:
        parts = _dense_parts(shards, options, vectors)
    else:
        parts = _lexical_parts(path, options, shards, manifests[0])
    opened = parts[0] if len(parts) == 1 else ShardedIndex(parts)
    rule = group_of(options.group, [manifests])
    return opened if rule == NO_GROUPS else Grouped(opened, rule)


def _dense_parts(shards: Iterable[Path], options: Searching, vectors: Path | None) -> list[DenseIndex]:
    limit_threads(options.threads)
    indexes = [_with_options(shard, options) for shard in shards]
    encode: Callable[[pl.DataFrame], Vectors] | None = None
    if vectors is None and (indexes[0].fingerprint or options.model):  # else queries are vectors
        encode = _encoded_by(indexes[0], options)
    elif vectors is not None:
        encode = _stored_vectors(indexes[0], vectors)
    return [replace(index, encode=encode) for index in indexes]


def encoded_by(encoder: Encoder) -> Callable[[pl.DataFrame], Vectors]:
    """Return the function from queries (qid, text) to their vectors."""
    return lambda queries: encoder.encode_queries(queries["text"].to_list())


def _encoded_by(index: DenseIndex, options: Searching) -> Callable[[pl.DataFrame], Vectors]:
    encoder = query_encoder(index, options.model, options.device, options.weight)
    if hasattr(encoder, "limit"):  # behind an API
        encoder.limit(Calling(timeout=options.timeout))
    return encoded_by(encoder)


def _stored_vectors(index: DenseIndex, folder: Path) -> Callable[[pl.DataFrame], Vectors]:
    """Return the function from queries (qid) to the vectors that `encode` wrote.

    Raises:
        InputError: the vectors were made by another encoder.
    """
    info = read_info(folder, Kind.VECTORS)
    if info.dim != index.dim:
        problem = f"has vectors of {info.dim} values; those of {index.folder} have {index.dim}"
        raise path_error(folder, problem, code="other-width", value=info.dim, expected=index.dim, index=index.folder)
    if info.encoder != index.fingerprint:
        raise _refusal(index.folder, index.info.contract, str(folder), info.contract)
    stored, ids = read_vectors(folder), SortedIds(read_ids(folder))
    return lambda queries: stored[ids.positions(queries["qid"], "no vector for query")]


def _with_options(path: Path, options: Searching) -> DenseIndex:
    """Open a dense index with the search parameters of `options`."""
    index = open_dense(path, options.ef_search, options.nprobe, options.binary_k)
    if index.info.factory != FLAT:
        return index
    return replace(index, gpus=None if options.faiss_device == ALL_GPUS else tuple(pick_gpus(options.faiss_device)))


def _lexical_parts(path: Path, options: Searching, shards: Iterable[Path], first: Manifest) -> list[Index]:
    whole = {"--rm3": options.rm3, f"--engine {options.engine}": options.engine != "matrix"}
    if "shard" in first.counts and any(whole.values()):
        option = next(name for name, chosen in whole.items() if chosen)
        problem = f"{option}: not with shards; build one index with `index-bm25`, without --shards"
        raise InputError(problem, code="option-does-not-apply", option=option)
    from hybrid_cli.lexical.feedback import Rm3

    rm3 = Rm3(options.fb_terms, options.fb_docs, options.fb_weight) if options.rm3 else None
    if options.engine == "lucene":
        return [_open_lucene(path, options, first, rm3)]
    given = options.k1, options.b, options.model, options.device, options.threads
    opened = [open_lexical(shard, *given) for shard in shards]
    return [ExpandedQueries(opened[0], rm3)] if rm3 else [*opened]


def _open_lucene(path: Path, options: Searching, manifest: Manifest, rm3: Rm3 | None) -> Index:
    if not (path / layout.LUCENE).is_dir():
        learned = "encoder" in manifest.counts
        reason = f"{path}: has no Lucene index, since its weights are learned; omit it"
        if not learned:
            reason = f"{path}: has no Lucene index; repeat index-bm25 with --overwrite and --lucene"
        code = "option-does-not-apply" if learned else "no-lucene-index"
        raise option_error("engine", "lucene", reason, code=code, path=path)
    from hybrid_cli.lexical.lucene import LuceneIndex

    name = analysis_of(manifest.options)
    return LuceneIndex(path, docids_of(path), options.k1, options.b, rm3, options.threads, name)


def open_hybrid(paths: Sequence[Path], weights: Sequence[float], options: Searching | None = None) -> HybridIndex:
    """Open several indexes of one corpus for exact search by the weighted sum of their scores.

    Args:
        paths: one or more dense indexes, and at most one lexical index.
        weights: one per index.
        options: search options; defaults if None.

    Raises:
        InputError: no dense index, two lexical indexes, or indexes of different documents.
    """
    from hybrid_cli.indexes.hybrid_search import HybridIndex  # imports numba

    options = options or Searching()
    kinds = [read_manifest(path).kind for path in paths]
    if Kind.DENSE_INDEX not in kinds or kinds.count(Kind.LEXICAL_INDEX) > 1:
        problem = f"{', '.join(map(str, paths))}: exact search needs one or more dense indexes, and at most one lexical"
        raise InputError(f"{problem} index", code="needs-indexes")
    limit_threads(options.threads)
    opened: list[LexicalIndex | DenseIndex] = [
        open_lexical(path, options.k1, options.b, device=options.device, threads=options.threads)
        if kind == Kind.LEXICAL_INDEX
        else open_dense(path)
        for path, kind in zip(paths, kinds, strict=True)
    ]
    for path, index in zip(paths, opened, strict=True):
        if not index.docids.equals(opened[0].docids):
            problem = f"{path}: other documents than {paths[0]}; build both indexes from one corpus"
            raise InputError(problem, code="other-corpus", path=path, other=paths[0])
    weighted = list(zip(opened, weights, strict=True))
    dense = [(index, weight) for index, weight in weighted if isinstance(index, DenseIndex)]
    lexical = [(index, weight) for index, weight in weighted if isinstance(index, LexicalIndex)]
    for index, _ in dense:
        index.encode = _encoded_by(index, options)
    indexes, shares = zip(*dense, strict=True)
    bm25, share = lexical[0] if lexical else (None, 0.0)
    return HybridIndex(indexes, shares, bm25, share, threads=options.threads)


@dataclass(frozen=True)
class EncodedQueries:
    """The query side of a sparse encoder, as `lexical.index.QueryWeights`."""

    encoder: TermWeights
    steps: int

    def query_weights(self, texts: Sequence[str]) -> pl.DataFrame:
        """Return query, term and boost."""
        return self.encoder.query_boosts(texts, self.steps)


def open_lexical(
    folder: Path,
    k1: float | None = None,
    b: float | None = None,
    model: str | Path | None = None,
    device: str = DEVICE,
    threads: int | None = None,
) -> LexicalIndex:
    """Open a lexical index: of BM25, or of learned weights with the encoder that built it.

    Args:
        folder: the index.
        k1, b: override the stored values of BM25.
        model: overrides the recorded encoder.
        device: device of the encoder.
        threads: CPU threads of a search; None for all cores.

    Raises:
        InputError: not a lexical index, or its encoder is missing or has changed.
    """
    manifest = read_manifest(folder, Kind.LEXICAL_INDEX)
    steps = quantization(manifest)
    if steps is None:
        index = open_bm25(folder, k1, b)
    else:
        queries = EncodedQueries(encoder_of(folder, manifest, model, device), steps)
        with storage.one_version(folder, manifest):
            storage.check_parts(folder, *READ_WHOLE, layout.DOCIDS)
            index = LexicalIndex.load_learned(folder, queries, steps)
    index.threads = threads
    return index


def open_bm25(folder: Path, k1: float | None = None, b: float | None = None) -> LexicalIndex:
    """Open an index of BM25; k1 and b override the stored values.

    Raises:
        InputError: the folder is not a lexical index, or has learned weights (see `open_lexical`).
        HybridError: the index is damaged.
    """
    manifest = read_manifest(folder, Kind.LEXICAL_INDEX)
    if quantization(manifest) is not None:
        problem = "has learned weights; needs an index of BM25, built by `hybrid index-bm25`"
        raise path_error(folder, problem, code="learned-weights")
    with storage.one_version(folder, manifest):
        storage.check_parts(folder, *READ_WHOLE, layout.DOCIDS, layout.PARAMETERS)
        recorded = read_parameters(folder)
        parameters = (recorded["k1"] if k1 is None else k1, recorded["b"] if b is None else b)
        return LexicalIndex.load(folder, analysis_of(manifest.options), parameters)


def encoder_of(folder: Path, manifest: Manifest, model: str | Path | None, device: str) -> TermWeights:
    """Return the sparse encoder of an index of learned weights.

    Args:
        folder: the index.
        manifest: its manifest.
        model: overrides the recorded encoder.
        device: device of the encoder.

    Raises:
        InputError: the encoder is missing or has changed.
    """
    from hybrid_cli.encoders.sparse import load_sparse

    model_folder = find_model(folder, manifest) if model is None else resolve(model)
    options = manifest.options
    encoder = load_sparse(
        model_folder,
        device=device,
        dtype=options["dtype"],
        architecture=options.get("architecture"),
        **options["contract"],
    )
    if encoder.fingerprint != manifest.counts["encoder"]:
        raise _refusal(folder, manifest.counts["contract"], str(model or model_folder), encoder.describe())
    return encoder


def open_dense(
    folder: Path, ef_search: int | None = None, nprobe: int | None = None, binary_k: int | None = None
) -> DenseIndex:
    """Open a dense index; FAISS and its file are loaded at the first search.

    Raises:
        InputError: `folder` is not a dense index.
    """
    manifest = read_manifest(folder, Kind.DENSE_INDEX)
    info = info_of(manifest)
    with storage.one_version(folder, manifest):
        docids = docids_of(folder)
    return DenseIndex(folder, info, docids, manifest, ef_search, nprobe, binary_k)


def query_encoder(
    index: DenseIndex,
    model: str | Path | None = None,
    device: str = DEVICE,
    weight: float | None = None,
    of_documents: bool = False,
) -> Encoder:
    """Open the encoder of a dense index.

    Args:
        index: a dense index.
        model: overrides the recorded model, and the combination stored in the index.
        device: device of the encoder.
        weight: overrides the weight of a combination's second encoder.
        of_documents: open it for documents.

    Raises:
        InputError: weights or contract of the encoder differ from those of the index.
    """
    from hybrid_cli.encoders.models import open_encoder, open_query_encoder

    if not index.fingerprint:
        problem = "its vectors come from another tool; pass vectors with --queries, or import it again with --model"
        raise path_error(index.folder, problem, code="no-encoder")
    options = read_manifest(index.folder).options
    known = index.info.contract if model is None or is_endpoint(model) else None
    model = model or model_of(index)
    changes = {**options["contract"], **({} if weight is None else {"weight": weight})}
    dtype: Precision = options.get("dtype", "fp32")  # a static encoder has none
    if options.get("dtype") == "int8":  # of version 0.2.0
        if of_documents:
            problem = "has vectors in int8, which hybrid no longer computes; encode again with --dtype fp32 --overwrite"
            raise path_error(index.folder, problem, code="other-encoder")
        dtype = "fp32"
    opened = open_encoder if of_documents else open_query_encoder
    encoder = opened(model, device=device, dtype=dtype, overrides=changes, known=known)
    if encoder.fingerprint != index.fingerprint:
        raise _refusal(index.folder, index.info.contract, str(model), encoder.describe())
    return encoder


def model_of(index: DenseIndex) -> Path:
    """Return the folder of the encoder of an index: inside the index, or at the recorded path.

    Raises:
        InputError: the encoder no longer exists.
    """
    inside = index.folder / INDEX_ENCODER
    if inside.is_dir():
        return inside
    return find_model(index.folder, read_manifest(index.folder))


def _refusal(folder: Path, known: Mapping[str, Any], model: str, contract: Mapping[str, Any]) -> InputError:
    """Return the error about a `model` whose weights or `contract` differ from those of an index."""
    before, now = (description.get("kind", TRANSFORMER) for description in (known, contract))
    differ = differences(known, contract)
    what = f"with {'; '.join(differ)} in {model}" if differ else f"with other weights than those of {model}"
    what = what if before == now else f"by a {before} encoder, and {model} is a {now} encoder"
    reason = f"was encoded {what}; encode again, or pass the model of the index with --model"
    return path_error(folder, reason, code="other-encoder", model=model, differences=differ)


def limit_threads(threads: int | None) -> None:
    """Set the number of threads of PyTorch and FAISS, which are not imported for it; None keeps all cores."""
    if threads:
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(threads)
        set_threads(threads)
