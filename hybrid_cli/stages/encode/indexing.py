"""The index of stored vectors, its recall, and what the manifest of a job records."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from hybrid_cli import console
from hybrid_cli.artifacts import Output
from hybrid_cli.artifacts.indexes import read_info
from hybrid_cli.commands import VectorIndex
from hybrid_cli.commands.common import EncoderContract
from hybrid_cli.commands.retrieval import CombinedIndexes, DenseTexts, ImportedVectors
from hybrid_cli.encoders.contract import Encoder
from hybrid_cli.indexes import construction
from hybrid_cli.indexes.auto import RECALL_SAMPLE, choose, measure_recall
from hybrid_cli.indexes.dense import IndexInfo
from hybrid_cli.indexes.shards import refuse_lost_vectors
from hybrid_cli.reporting.tables import figure
from hybrid_cli.reporting.terminal import show_candidates
from hybrid_cli.storage import Kind

V = TypeVar("V", bound=VectorIndex)


def with_type(settings: V, binary: bool) -> V:
    """Return settings with an index type: the set one, else that for which the encoder was trained."""
    return settings if settings.index_type else settings.changed(index_type="binary" if binary else "flat")


def without_contract(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return options without those of the contract, which the manifest stores under `contract`."""
    contract = {"truncate_dim", *EncoderContract.declared()}
    return {name: value for name, value in recorded.items() if name not in contract}


def info_of_encoder(encoder: Encoder, vectors: int, truncated: int) -> IndexInfo:
    """Return the properties of an index of the vectors of an encoder, which is not built yet."""
    return IndexInfo(vectors, encoder.dim, encoder.fingerprint, encoder.describe(), truncated)


def check_space(
    settings: DenseTexts | ImportedVectors | CombinedIndexes, dim: int, vectors: int, output: Output
) -> None:
    """Check that FAISS can build the index, and that memory and disk hold it and the stored vectors."""
    size = 2 if settings.vector_dtype == "float16" else 4
    construction.check_recipe(settings, dim, vectors, output.partial, vectors * dim * size)


def finish(settings: VectorIndex, work: Path, info: IndexInfo, kind: Kind = Kind.DENSE_INDEX) -> dict[str, Any]:
    """Build the index of the shards in `work`, unless they are vectors of queries; return the counts."""
    built = _build(settings, work, info) if kind == Kind.DENSE_INDEX else info
    refuse_lost_vectors(work, info.vectors)
    return built.counts()


def _build(settings: VectorIndex, work: Path, info: IndexInfo) -> IndexInfo:
    """Build the index of the shards in `work`; measure the recall if the type or an option requires it."""
    if settings.index_type == "auto":
        with console.progress("choose", unit="indexes") as advance:
            tried = choose(work, settings, advance)
        show_candidates([asdict(candidate) for candidate in tried])
        return replace(info, factory=tried[-1].factory, recall={"recall@100": tried[-1].recall})
    with console.progress("index", info.vectors, "vectors") as advance:
        info = replace(info, factory=construction.build(work, settings, advance), recall={})
    return replace(info, recall=_recall(work, info, settings.seed)) if settings.recall_check else info


def _recall(folder: Path, info: IndexInfo, seed: int) -> dict[str, float]:
    recall = measure_recall(folder, info.factory, seed)
    shares = ", ".join(f"{name} {figure(share)}" for name, share in recall.items())
    asked = console.counted(document=min(info.vectors, RECALL_SAMPLE))
    measured = f"{shares} against exact search, for {asked} as queries"
    note = measured if recall else "an exact index; --recall-check measures approximate ones"
    console.note(f"encode: {info.factory}: {note}", code="recall", factory=info.factory, recall=recall)
    return recall


def check_recall(settings: VectorIndex, output: Output) -> Path:
    """Measure the recall of an up-to-date index, if requested."""
    if settings.recall_check:
        _recall(output.path, read_info(output.path), settings.seed)
    return output.path
