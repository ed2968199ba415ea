"""Retrievers on disk: `retriever.json` names indexes by relative path, and the fusion of their hits."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hybrid_cli import console, storage
from hybrid_cli.artifacts import Manifest, lineage, read_manifest
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.fusion.methods import METHODS, FusionRecipe
from hybrid_cli.fusion.options import RRF_K, Missing, Normalization
from hybrid_cli.inputs.json_values import make_typed, read_json
from hybrid_cli.opening.sharded import index_manifest, shards_of
from hybrid_cli.passages import NO_GROUPS, Group
from hybrid_cli.retrieval.calibration import Calibration
from hybrid_cli.runs.names import short_names
from hybrid_cli.storage import Kind, disk, layout

OF_AUTO = "retriever"  # in the folder of `auto`


@dataclass(frozen=True)
class StoredRetriever:
    """Content of `retriever.json`.

    Attributes:
        indexes: `path`, relative to the folder of the retriever, and `fingerprint` of each index.
        method, weights, missing, normalize, rrf_k: see `FusionRecipe`.
        depth: hits of each index that are fused.
        group: how passages give documents; `none` for hits as they are indexed.
        shares: weights in deviations of the scores, where the weights were derived from scales.
        scales: standard deviation of each index's scores over the collection.
        scaled_by: the queries that the scales are of, in words.
        reranker: `model` (a name, or a path relative to the folder), `fingerprint` and `depth`; None without one.
        tuning: evidence of the tuned weights, as `fuse --tune` writes it; None for untuned ones.
        calibration: probabilities of hits, the fields of `retrieval.calibration.Calibration`; None without.
        generation: number of the state of the documents; `update` writes the next one.
        changed: numbers of documents `added`, `replaced` and `removed` by `update` since weights and scales were
            chosen; None without an update.
    """

    indexes: Sequence[Mapping[str, str]]
    method: str
    weights: tuple[float, ...]
    missing: Missing
    depth: int
    group: Group = NO_GROUPS
    normalize: Normalization | None = None
    rrf_k: float = RRF_K
    shares: tuple[float, ...] | None = None
    scales: tuple[float, ...] | None = None
    scaled_by: str | None = None
    reranker: Mapping[str, str | int] | None = None
    tuning: Mapping[str, Any] | None = None
    calibration: Mapping[str, Any] | None = None
    generation: int = 1
    changed: Mapping[str, int] | None = None

    @property
    def recipe(self) -> FusionRecipe:
        """Return method and weights."""
        return FusionRecipe(self.method, self.weights, self.missing, self.normalize, self.rrf_k)

    def write(self, folder: Path) -> None:
        """Write `retriever.json`."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        disk.write_text(folder / layout.RETRIEVER, text + "\n")


def named_indexes(indexes: Sequence[Path], folder: Path) -> list[dict[str, str]]:
    """Return path, relative to the folder of a retriever, and fingerprint of indexes."""
    home = os.path.realpath(folder)
    return [
        {"path": os.path.relpath(os.path.realpath(index), home), "fingerprint": storage.fingerprint(index)}
        for index in indexes
    ]


def generation(path: Path, present: int, number: int) -> Path:
    """Return the path of another generation of a collection or index: `bm25`, `bm25.2`, `bm25.3`."""
    first = path.name.removesuffix(f".{present}") if present > 1 else path.name
    return path.with_name(first if number == 1 else f"{first}.{number}")


def reranker_path(folder: Path, stored: Mapping[str, str | int]) -> str:
    """Return the path of the reranker of a retriever, or the name of a model."""
    inside = Path(os.path.normpath(folder / str(stored["model"])))
    return str(inside) if inside.exists() else str(stored["model"])


def is_retriever(path: Path) -> bool:
    """Test whether a path is a folder that `compose` wrote."""
    made = storage.find_record(path) if path.is_dir() else None
    return made is not None and made.kind == Kind.RETRIEVER


def retriever_at(path: Path) -> Path | None:
    """Return a retriever, or that of the folder of `auto`; None for any other path."""
    return next((folder for folder in (path, path / OF_AUTO) if is_retriever(folder)), None)


def read_retriever(folder: Path) -> StoredRetriever:
    """Return the content of a retriever.

    Raises:
        InputError: no retriever, a damaged one, or one whose method is not installed.
    """
    read_manifest(folder, Kind.RETRIEVER)
    storage.check_parts(folder, layout.RETRIEVER)
    stored = make_typed(StoredRetriever, read_json(folder / layout.RETRIEVER), folder / layout.RETRIEVER)
    if stored.method not in METHODS:
        problem = f"is fused by {stored.method}, which is not installed; install its package, or compose again"
        raise path_error(folder, problem, code="missing-plugin", group="fusion_methods", name=stored.method)
    return stored


def index_paths(folder: Path, stored: StoredRetriever) -> list[Path]:
    """Return the indexes of a retriever, where they are what was composed.

    Raises:
        InputError: an index is gone, or was built again.
    """
    paths = []
    for index in stored.indexes:
        path = Path(os.path.normpath(folder / index["path"]))
        if not path.exists():
            problem = f"its index {path} is missing; move it back, or compose again with --overwrite"
            raise path_error(folder, problem, code="index-missing", index=path)
        if storage.fingerprint(path) != index["fingerprint"]:
            problem = f"its index {path} has changed since; tune and compose again with --overwrite"
            raise path_error(folder, problem, code="index-changed", index=path)
        paths.append(path)
    return paths


@dataclass(frozen=True)
class RetrieverFiles:
    """A retriever on disk and its indexes, each read once.

    Attributes:
        stored: content of `retriever.json`.
        indexes: paths of the indexes, in order.
        manifests: the manifests of each index, several for one of shards.
    """

    folder: Path
    stored: StoredRetriever
    indexes: Sequence[Path]
    manifests: Sequence[Sequence[Manifest]]

    @classmethod
    def read(cls, folder: Path) -> RetrieverFiles:
        """Read a retriever, and the manifests of its indexes.

        Raises:
            InputError: see `read_retriever` and `index_paths`.
        """
        stored = read_retriever(folder)
        indexes = index_paths(folder, stored)
        return cls(folder, stored, indexes, manifests_of(indexes))

    @property
    def first_indexes(self) -> list[Path]:
        """Return the paths of the first generation of the indexes, which may be gone: their names stay."""
        return [generation(index, self.stored.generation, 1) for index in self.indexes]

    @property
    def names(self) -> list[str]:
        """Return the short name of each index, the same in every generation."""
        return short_names(self.first_indexes)

    @property
    def calibration(self) -> Calibration | None:
        """The probabilities of hits; None without; warn if documents have changed since they were learned."""
        if self.stored.calibration is None:
            return None
        if self.stored.changed is not None:
            console.warn(
                f"{self.folder}: documents have changed since its probabilities were learned; compose it again with "
                "--calibrate", code="stale-calibration", path=self.folder, **self.stored.changed,
            )  # fmt: skip
        return make_typed(Calibration, dict(self.stored.calibration), self.folder / layout.RETRIEVER)

    def of_kind(self, kind: Kind) -> list[Path]:
        """Return the lexical or the dense indexes."""
        pairs = zip(self.indexes, self.manifests, strict=True)
        return [path for path, (first, *_) in pairs if first.kind == kind]


def manifests_of(indexes: Sequence[Path]) -> list[list[Manifest]]:
    """Return the manifests of each index, several for one of shards."""
    return [[index_manifest(shard) for shard in shards_of(index)] for index in indexes]


def check_indexes(folder: Path, stored: StoredRetriever, runs: Sequence[Path]) -> None:
    """Refuse runs that were not searched in the indexes of a retriever, in their order; others have no manifest.

    Raises:
        InputError: another number of runs, or a run of another index.
    """
    if len(runs) != len(stored.indexes):
        problem = f"has {len(stored.indexes)} indexes, and there are {len(runs)} runs; pass one run for each, in order"
        raise path_error(folder, problem, code="tuned-for-others", value=len(runs), expected=len(stored.indexes))
    for run, index in zip(runs, stored.indexes, strict=True):
        searched = lineage.system_of(run).index
        if searched not in (None, index["fingerprint"]):
            problem = f"was not searched in {index['path']} of {folder}; pass the runs in the order of its indexes"
            raise path_error(run, problem, code="other-index", index=index["path"])


def refuse_shards(indexes: Sequence[Path]) -> None:
    """Refuse indexes without exact scores of pairs.

    Raises:
        InputError: an index has shards.
    """
    for index in indexes:
        if len(shards_of(index)) > 1:
            problem = f"{index}: has shards, which give no exact scores; pass another --missing, such as zero"
            raise InputError(problem, code="no-exact-scores", path=index, cause="shards")
