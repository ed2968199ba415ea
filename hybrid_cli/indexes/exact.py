"""The exact scores of a run's pairs, retrieved or not: from the index and the queries that the run was made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind, Manifest
from hybrid_cli.collections import collection
from hybrid_cli.encoders.contract import differences
from hybrid_cli.encoders.models import recorded_model, resolve
from hybrid_cli.errors import InputError
from hybrid_cli.indexes.dense import DenseIndex
from hybrid_cli.indexes.shards import read_ids, read_shard, shards

if TYPE_CHECKING:
    from hybrid_cli.encoders.encoder import Encoder

COMBINED = "encoder"  # in the folder of an index, the combination that made it
Scorer = Callable[[pl.DataFrame], pl.Series]


@dataclass(frozen=True)
class ExactSource:
    """What gives the exact scores of one run's pairs.

    Attributes:
        index: a lexical or a dense index.
        manifest: its manifest.
        queries: a file of texts, or for a dense index a folder of vectors.
        searched: the options that the run was searched with.
        model: path or name of the model that the run was searched with, if not the one of the index.
    """

    index: Path
    manifest: Manifest
    queries: Path
    searched: Mapping[str, Any]
    model: str | None = None


def index_manifest(path: Path) -> Manifest:
    """Read the manifest of a lexical or dense index.

    Raises:
        InputError: the artifact is not an index.
    """
    manifest = artifacts.read_manifest(path)
    if manifest.kind not in (Kind.LEXICAL_INDEX, Kind.DENSE_INDEX):
        raise InputError(f"{path}: is {manifest.kind.phrase} (made by `{manifest.stage}`); an index is needed here")
    return manifest


def exact_source(run: Path, index: Path, queries: Path | None = None) -> ExactSource:
    """Check that `run` was searched in `index`, and find its queries where it recorded them, or take `queries`.

    A run without a manifest is believed, but does not know its queries.

    Raises:
        InputError: another index, queries that are gone or have changed, or a search with feedback.
    """
    manifest = index_manifest(index)
    made = artifacts.find_manifest(run)
    if made is None:
        if queries is None:
            raise InputError(f"{run}: does not say what queries it answers; name them with --queries")
        return ExactSource(index, manifest, queries, {})
    if made.inputs.get("index", {}).get("fingerprint") != manifest.fingerprint:
        raise InputError(f"{run}: was not searched in {index}; give --index in the order of the runs")
    if made.options.get("rm3"):
        raise InputError(f"{run}: was searched with --rm3, whose exact scores are not known; choose another --missing")
    return ExactSource(index, manifest, queries or _recorded_queries(run, made), made.options, recorded_model(made))


def _recorded_queries(run: Path, made: Manifest) -> Path:
    path = made.input_path("queries")
    if path is None or not path.exists():
        raise InputError(f"{run}: its queries are not at {path} any more; name them with --queries")
    if artifacts.fingerprint(path) != made.inputs["queries"]["fingerprint"]:
        raise InputError(f"{run}: its queries at {path} have changed since; search again, or name them with --queries")
    return path


def exact_scorer(source: ExactSource, device: str = "auto") -> Scorer:
    """A function from pairs (qid, docid) to their scores, as a search of the index gives them: float32."""
    if source.manifest.kind == Kind.LEXICAL_INDEX:
        return _lexical_scorer(source)
    return _dense_scorer(source, device)


def _lexical_scorer(source: ExactSource) -> Scorer:
    from hybrid_cli.lexical.index import LexicalIndex

    index = LexicalIndex.open(source.index, source.searched.get("k1"), source.searched.get("b"))
    return lambda pairs: index.score(pairs, _asked(source.queries, pairs))


def _dense_scorer(source: ExactSource, device: str) -> Scorer:
    index = DenseIndex.open(source.index)
    if source.queries.is_dir():
        qids, vectors = (
            read_ids(source.queries).to_list(),
            np.concatenate([read_shard(p) for p in shards(source.queries)]),
        )
        return lambda pairs: index.score(pairs, qids, vectors)
    encoder = query_encoder(index, source.model, device, source.searched.get("weight"))

    def score(pairs: pl.DataFrame) -> pl.Series:
        asked = _asked(source.queries, pairs)
        return index.score(pairs, asked["qid"].to_list(), encoder.encode_queries(asked["text"].to_list()))

    return score


def _asked(queries: Path, pairs: pl.DataFrame) -> pl.DataFrame:
    """Those of the queries that the pairs are about."""
    return collection.read_queries(queries).filter(pl.col("qid").is_in(pairs["qid"].unique().implode()))


def query_encoder(
    index: DenseIndex, model: str | Path | None = None, device: str = "auto", weight: float | None = None
) -> Encoder:
    """The encoder that made a dense index: `model`, the combination that lies in the index, or where it was recorded.

    Args:
        weight: of a combination's second encoder, if not its own.

    Raises:
        InputError: what is there now makes other vectors.
    """
    from hybrid_cli.encoders.encoder import open_encoder

    options = index.manifest.options
    model = model or model_of(index)
    changes = {**options["contract"], **({} if weight is None else {"weight": weight})}
    encoder = open_encoder(model, device=device, dtype=options["dtype"], overrides=changes)
    if encoder.fingerprint != index.fingerprint:
        raise InputError(refusal(index, str(model), encoder.describe()))
    return encoder


def model_of(index: DenseIndex) -> Path:
    """Return the folder of the encoder that made an index: inside the index, or as its manifest recorded it.

    Raises:
        InputError: the encoder is neither here nor there.
    """
    inside = index.folder / COMBINED
    if inside.is_dir():
        return inside
    recorded = recorded_model(index.manifest)
    if recorded is None or (index.manifest.input_path("model") and not Path(recorded).exists()):
        raise InputError(f"{index.folder}: its encoder is not at {recorded} any more; pass the model with --model")
    return resolve(recorded)


def refusal(index: DenseIndex, model: str, contract: Mapping[str, Any]) -> str:
    """Why queries that `model` encoded under `contract` do not belong to the index."""
    differ = differences(index.contract, contract)
    what = "encoded with " + "; ".join(differ) if differ else "encoded by other weights"
    return f"{index.folder}: was {what} as {model} has; encode again, or name the model that made it with --model"
