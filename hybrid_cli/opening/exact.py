"""Exact scores of pairs of query and document, from the index and the queries of a run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hybrid_cli import artifacts, storage
from hybrid_cli.artifacts import Manifest
from hybrid_cli.collections import collection
from hybrid_cli.encoders.contract import TRANSFORMER, differences, is_static
from hybrid_cli.encoders.options import Precision
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.indexes.dense import DenseIndex
from hybrid_cli.indexes.faiss import FLAT, is_binary, set_threads
from hybrid_cli.indexes.shards import Vectors, read_ids, read_vectors
from hybrid_cli.opening.dense import info_of, open_dense
from hybrid_cli.opening.lexical import open_lexical, quantization
from hybrid_cli.opening.models import find_model, recorded_model
from hybrid_cli.opening.provenance import refuse_other_queries
from hybrid_cli.opening.sharded import ids_of, index_manifest
from hybrid_cli.retrieval.grouped import document_scores
from hybrid_cli.runs import groups
from hybrid_cli.settings.common import OnDevice
from hybrid_cli.settings.retrieval import LEARNED, TRANSFORMER_INDEX
from hybrid_cli.storage import Kind
from hybrid_cli.storage.layout import INDEX_ENCODER

if TYPE_CHECKING:
    from hybrid_cli.encoders.contract import Encoder

Scorer = Callable[[pl.DataFrame], pl.Series]


@dataclass(frozen=True)
class ExactSource:
    """Index, queries and search options that determine the exact scores of a run.

    Attributes:
        index: a lexical or a dense index.
        manifest: manifest of the index.
        queries: a file of texts, or for a dense index a folder of vectors.
        searched: search options of the run.
        model: folder of the model used for the search, if not the recorded model of the index.
    """

    index: Path
    manifest: Manifest
    queries: Path
    searched: Mapping[str, Any]
    model: Path | None = None


def index_kinds(manifest: Manifest) -> frozenset[str]:
    """Return the kinds of an index, as named in the declarations of `SearchOptions`."""
    if manifest.kind == Kind.SHARDS:
        return frozenset({manifest.kind.phrase})
    if manifest.kind == Kind.LEXICAL_INDEX:
        sparse = {LEARNED, TRANSFORMER_INDEX}
        return frozenset({"a lexical index"} if quantization(manifest) is None else sparse)
    info = info_of(manifest)
    factory = info.factory
    parts = {"HNSW": "an HNSW index", "IVF": "an IVF index"}
    kinds = {"a dense index", *(kind for part, kind in parts.items() if part in factory)}
    kinds |= set() if is_static(info.contract) else {TRANSFORMER_INDEX}
    kinds |= {"a flat index"} if factory == FLAT else set()
    return frozenset(kinds | ({"a binary index"} if is_binary(factory) else set()))


def kind_in_words(index: Path, manifest: Manifest) -> str:
    """Return `out/dense is a dense index`, for messages; an index of learned weights is not called lexical."""
    kinds = index_kinds(manifest)
    static = " of a static encoder" if "a dense index" in kinds and TRANSFORMER_INDEX not in kinds else ""
    return f"{index} is {LEARNED if LEARNED in kinds else manifest.kind.phrase}{static}"


def exact_source(run: Path, index: Path, queries: Path | None = None) -> ExactSource:
    """Check that `run` was searched in `index`, and locate its queries.

    Args:
        run: a run; without a manifest it is not checked.
        index: index in which the run was searched.
        queries: overrides the recorded queries; needed for a run without a manifest.

    Raises:
        InputError: another index, other queries or missing ones, or a search with feedback.
    """
    manifest = index_manifest(index)
    made = artifacts.find_manifest(run)
    if made is None:
        if queries is None:
            raise InputError(
                f"{run}: the queries are not recorded; pass them with --queries", code="queries-missing", path=run
            )
        return ExactSource(index, manifest, queries, {})
    if made.inputs.get("index", {}).get("fingerprint") != manifest.fingerprint:
        before = made.input_path("index")
        if "index 2" in made.inputs and "index" not in made.inputs and made.stage == "search":
            raise InputError(
                f"{run}: was searched in shards, which give no exact scores; use another --missing",
                code="no-exact-scores",
                path=run,
                cause="shards",
            )
        if before is not None and before.exists() and before.samefile(index):
            raise InputError(
                f"{run}: {index} has changed since the search{_change(made, manifest)}; search again",
                code="index-changed",
                path=run,
                index=index,
            )
        raise InputError(
            f"{run}: was not searched in {index}; pass --index in the order of the runs",
            code="other-index",
            path=run,
            index=index,
        )
    if made.options.get("rm3"):
        raise InputError(
            f"{run}: was searched with --rm3, which has no exact scores; use another --missing",
            code="no-exact-scores",
            path=run,
            cause="rm3",
        )
    if queries is not None:
        refuse_other_queries(run, queries)
    return ExactSource(
        index, manifest, queries or _recorded_queries(run, made), made.options, recorded_model(run, made)
    )


def exact_sources(runs: Mapping[str, Path], indexes: Sequence[Path], queries: Path | None = None) -> list[ExactSource]:
    """Return one source per run; see `exact_source`.

    Raises:
        InputError: not one index per run.
    """
    if len(indexes) != len(runs):
        raise InputError(
            f"--index: {len(indexes)} indexes for {len(runs)} runs; give one per run, in order",
            code="number-of-values",
            option="index",
            value=len(indexes),
            expected=len(runs),
        )
    return [exact_source(run, index, queries) for run, index in zip(runs.values(), indexes, strict=True)]


def _change(made: Manifest, index: Manifest) -> str:
    """Return the change of k1 and b between a run and its index, in words."""
    changed = [
        f"{name}={made.counts[name]:g} in the run, {index.counts[name]:g} in the index"
        for name in ("k1", "b")
        if name in made.counts and name in index.counts and made.counts[name] != index.counts[name]
    ]
    return f" ({'; '.join(changed)})" if changed else ""


def _recorded_queries(run: Path, made: Manifest) -> Path:
    path = made.input_path("queries")
    if path is None or not path.exists():
        where = f"no longer at {made.input_label('queries')}" if "queries" in made.inputs else "not recorded"
        raise InputError(f"{run}: its queries are {where}; pass them with --queries", code="queries-missing", path=run)
    if storage.fingerprint(path) != made.inputs["queries"]["fingerprint"]:
        raise InputError(
            f"{run}: its queries at {path} have changed; search again, or pass them with --queries",
            code="input-changed",
            path=run,
            queries=path,
            option="queries",
        )
    return path


def limit_threads(threads: int | None) -> None:
    """Set the number of threads of PyTorch and FAISS, which are not imported for it; None keeps all cores."""
    if threads:
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(threads)
        set_threads(threads)


def exact_scorer(source: ExactSource, qids: pl.Series | None = None, device: str = OnDevice.device) -> Scorer:
    """Return a function from pairs (qid, docid) to their scores by the index (float32).

    Args:
        source: index and queries.
        qids: ids of all queries of the pairs; None for those of the source. They are encoded together, so scores do
            not depend on the calls.
        device: device of the encoder.
    """
    lexical = source.manifest.kind == Kind.LEXICAL_INDEX
    scorer = _lexical_scorer(source, qids, device) if lexical else _dense_scorer(source, qids, device)
    if (rule := source.searched.get("group")) is None:
        return scorer
    passages = groups.Passages(ids_of(source.index))
    return lambda pairs: document_scores(pairs, passages, scorer, rule).cast(pl.Float32)


def _lexical_scorer(source: ExactSource, qids: pl.Series | None, device: str) -> Scorer:
    index = open_lexical(source.index, source.searched.get("k1"), source.searched.get("b"), source.model, device)
    asked = _asked(source.queries, qids)
    return lambda pairs: index.score(pairs, asked if qids is not None else _of_pairs(asked, pairs))


def _of_pairs(asked: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    return asked.join(pairs, on="qid", how="semi", maintain_order="left")


def _dense_scorer(source: ExactSource, qids: pl.Series | None, device: str) -> Scorer:
    index = open_dense(source.index)
    if source.queries.is_dir():
        stored = read_vectors(source.queries)
        ids = read_ids(source.queries).to_list()
        return lambda pairs: index.score(pairs, ids, stored)
    encoder = query_encoder(index, source.model, device, source.searched.get("weight"))

    @cache
    def vectors() -> tuple[list[str], Vectors]:
        asked = _asked(source.queries, qids)
        return asked["qid"].to_list(), encoder.encode_queries(asked["text"].to_list())

    return lambda pairs: index.score(pairs, *vectors())


def _asked(queries: Path, qids: pl.Series | None) -> pl.DataFrame:
    every = collection.read_queries(queries)
    return every if qids is None else every.filter(pl.col("qid").is_in(qids.unique().implode()))


def query_encoder(
    index: DenseIndex,
    model: str | Path | None = None,
    device: str = OnDevice.device,
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
        raise InputError(
            f"{index.folder}: its vectors come from another tool, so it has no encoder; pass query vectors with "
            "--queries (`encode --from-vectors`), or import it again with --model",
            code="no-encoder",
            path=index.folder,
        )
    options = _options(index)
    known = index.info.contract if model is None else None
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
        raise refusal(index, str(model), encoder.describe())
    return encoder


def model_of(index: DenseIndex) -> Path:
    """Return the folder of the encoder of an index: inside the index, or at the recorded path.

    Raises:
        InputError: the encoder no longer exists.
    """
    inside = index.folder / INDEX_ENCODER
    if inside.is_dir():
        return inside
    return find_model(index.folder, artifacts.read_manifest(index.folder))


def _options(index: DenseIndex) -> Mapping[str, Any]:
    return artifacts.read_manifest(index.folder).options


def refusal(index: DenseIndex, model: str, contract: Mapping[str, Any]) -> InputError:
    """Return the error about a `model` whose weights or `contract` differ from those of the index."""
    kinds = [description.get("kind", TRANSFORMER) for description in (index.info.contract, contract)]
    differ = differences(index.info.contract, contract)
    if kinds[0] != kinds[1]:
        reason = (
            f"holds vectors of a {kinds[0]} encoder, and {model} is a {kinds[1]} encoder; pass the "
            "model of the index with --model, or encode again"
        )
    else:
        what = f"with {'; '.join(differ)} in {model}" if differ else f"with other weights than those of {model}"
        reason = f"was encoded {what}; encode again, or pass the model of the index with --model"
    return path_error(index.folder, reason, code="other-encoder", model=model, differences=differ)
