"""Retrievers on disk: `retriever.json` names indexes by relative path, and the fusion of their hits."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import console, storage
from hybrid_cli.artifacts import Manifest, lineage, read_manifest
from hybrid_cli.artifacts.indexes import known_corpora, manifests_of, shards_of
from hybrid_cli.artifacts.opening import open_index
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.sentences import sampled
from hybrid_cli.errors import InputError, option_error, path_error
from hybrid_cli.fusion.methods import METHODS, FusionRecipe
from hybrid_cli.fusion.options import RRF_K, Missing, Normalization
from hybrid_cli.fusion.weights import chosen_weights, read_tuned, stored_recipe, weights_path
from hybrid_cli.indexes.options import Searching
from hybrid_cli.inputs.json_values import make_typed, read_json
from hybrid_cli.passages import NO_GROUPS, Group
from hybrid_cli.retrieval.calibration import Calibration
from hybrid_cli.retrieval.retriever import DEFAULT_DEPTH, QUERIES, SEED, DefaultFusion, RerankStep, Retriever
from hybrid_cli.retrieval.retriever import default_shares as shares_of
from hybrid_cli.runs.files import short_names
from hybrid_cli.runs.index import Index
from hybrid_cli.settings.signature import values_of
from hybrid_cli.storage import Kind, disk, layout

OF_AUTO, COLLECTION_OF_AUTO = "retriever", "collection"  # in the folder of `auto`


@dataclass(frozen=True)
class StoredRetriever:
    """Content of `retriever.json`.

    Attributes:
        indexes: `path`, relative to the folder of the retriever, and `fingerprint` of each index.
        method, weights, missing, normalize, rrf_k, options: see `FusionRecipe`.
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
        history: other generations of the collection and the indexes, in the form of `indexes`; with `generation` and
            `changed` for those to which `update --rollback` returns.
    """

    indexes: Sequence[Mapping[str, str]]
    method: str
    weights: tuple[float, ...]
    missing: Missing
    depth: int
    group: Group = NO_GROUPS
    normalize: Normalization | None = None
    rrf_k: float = RRF_K
    options: Mapping[str, Any] = field(default_factory=dict)
    shares: tuple[float, ...] | None = None
    scales: tuple[float, ...] | None = None
    scaled_by: str | None = None
    reranker: Mapping[str, str | int] | None = None
    tuning: Mapping[str, Any] | None = None
    calibration: Mapping[str, Any] | None = None
    generation: int = 1
    changed: Mapping[str, int] | None = None
    history: Sequence[Mapping[str, Any]] = ()

    @property
    def recipe(self) -> FusionRecipe:
        """Return method and weights."""
        return FusionRecipe(self.method, self.weights, self.missing, self.normalize, self.rrf_k, self.options)

    def write(self, folder: Path) -> None:
        """Write `retriever.json`."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        disk.write_text(folder / layout.RETRIEVER, text + "\n")


def rule_options(method: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters of the combination rule of a method, converted and checked.

    Raises:
        InputError: no such parameter, one without a value, or a value of another type.
    """
    rule = METHODS[method].rule
    return values_of(rule, texts, "--method-option", {*[*signature(rule).parameters][:3]})


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


def of_auto(path: Path) -> Path:
    """Return the retriever of a folder of `auto`; any other path as it is."""
    return path / OF_AUTO if is_retriever(path / OF_AUTO) and not is_retriever(path) else path


def user_folder(path: Path) -> Path:
    """Return the folder that the user named: that of `auto` for its parts, whose names are the same everywhere."""
    whole = path.resolve()
    return whole.parent if whole.name in (OF_AUTO, COLLECTION_OF_AUTO) and whole.parent.name else path


def find_retriever(path: Path) -> RetrieverFiles | None:
    """Read a retriever, or that of the folder of `auto`; None for any other path; see `RetrieverFiles.read`."""
    folder = of_auto(path)
    return RetrieverFiles.read(folder) if is_retriever(folder) else None


def read_retriever(folder: Path) -> StoredRetriever:
    """Return the content of a retriever.

    Raises:
        InputError: no retriever, a damaged one, or one whose method is not installed.
    """
    read_manifest(folder, Kind.RETRIEVER)
    storage.check_parts(folder, layout.RETRIEVER)
    stored = make_typed(StoredRetriever, read_json(folder / layout.RETRIEVER), folder / layout.RETRIEVER)
    if min(stored.depth, stored.generation) < 1:
        problem = f"needs depth and generation of 1 or more, not {stored.depth} and {stored.generation}; compose again"
        raise path_error(folder / layout.RETRIEVER, problem, code="out-of-range")
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
            text = f"{self.folder}: documents have changed since --calibrate; compose it again"
            console.warn(text, code="stale-calibration", path=self.folder, **self.stored.changed)
        return make_typed(Calibration, dict(self.stored.calibration), self.folder / layout.RETRIEVER)

    def of_kind(self, kind: Kind) -> list[Path]:
        """Return the lexical or the dense indexes."""
        pairs = zip(self.indexes, self.manifests, strict=True)
        return [path for path, (first, *_) in pairs if first.kind == kind]


def check_indexes(folder: Path, stored: StoredRetriever, runs: Sequence[Path]) -> None:
    """Refuse runs that were not searched in the indexes of a retriever, in their order; others have no manifest.

    Raises:
        InputError: another number of runs, or a run of another index.
    """
    if len(runs) != len(stored.indexes):
        problem = f"has {len(stored.indexes)} indexes, and there are {len(runs)} runs; pass one run for each, in order"
        raise path_error(folder, problem, code="tuned-for-others", value=len(runs))
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
            raise InputError(problem, code="no-exact-scores", path=index)


def named_reranker(model: str, depth: int, folder: Path) -> dict[str, str | int]:
    """Return the reranker as a retriever in `folder` stores it.

    Raises:
        InputError: no such model, or none that ranks.
    """
    from hybrid_cli.encoders.cross_encoder import load_reranker  # imports transformers
    from hybrid_cli.encoders.models import resolve

    path = resolve(model)
    load_reranker(path, device="cpu")
    name = os.path.relpath(os.path.realpath(path), os.path.realpath(folder)) if Path(model).exists() else model
    return {"model": name, "fingerprint": storage.fingerprint(path), "depth": depth}


def open_reranker(folder: Path, stored: Mapping[str, str | int], corpora: Sequence[Path], device: str) -> RerankStep:
    """Open the reranker of a retriever; no name is looked up outside of this machine.

    Raises:
        InputError: the model is gone or has changed, or the corpora are not where the indexes record them.
    """
    from hybrid_cli.collections.collection import TextStore
    from hybrid_cli.encoders.cross_encoder import load_reranker  # imports transformers
    from hybrid_cli.encoders.models import resolve

    name = reranker_path(folder, stored)
    try:
        path = resolve(name, local=True)
    except InputError as error:
        label = os.path.normpath(folder / name) if name.startswith(os.pardir) else name
        problem = f"its reranker {label} is missing; move it back, or compose again with --overwrite"
        raise path_error(folder, problem, code="recorded-model-missing", model=label) from error
    if storage.fingerprint(path) != stored["fingerprint"]:
        problem = f"its reranker {path} has changed since; compose again with --overwrite"
        raise path_error(folder, problem, code="recorded-model-changed")
    if not corpora:
        problem = "its reranker needs the texts, and the corpus is not where the indexes record it; move it back"
        raise path_error(folder, problem, code="corpus-missing")
    model, documents = load_reranker(path, device=device), TextStore(corpora)
    return RerankStep(int(stored["depth"]), lambda pairs: model.scores(pairs)[0], documents.texts)


def open_retriever(files: RetrieverFiles, options: Searching | None = None) -> Retriever:
    """Open a retriever that `compose` wrote.

    Args:
        files: the retriever on disk.
        options: device, threads, grouping of passages and least probability; defaults if None.

    Raises:
        InputError: an index, or the reranker, cannot be opened; or hits have no probabilities.
    """
    stored, options, reranker = files.stored, options or Searching(), None
    if stored.reranker is not None:
        corpora = known_corpora(files.manifests)
        reranker = open_reranker(files.folder, stored.reranker, corpora, options.device)
    if options.group is None:
        options = options.changed(group=stored.group)
    sides = dict(zip(files.names, open_sides(files.indexes, options).values(), strict=True))
    calibration = files.calibration if options.group == stored.group else None
    default = (default_shares(files.manifests), stored.scales)
    return Retriever(sides, stored.recipe, stored.depth, reranker, calibration, options.min_probability, default)


def open_searchable(
    path: Path,
    options: Searching | None = None,
    shards: Mapping[Path, Manifest] | None = None,
    vectors: Path | None = None,
) -> Index:
    """Open an index or a retriever for search; see `open_index`."""
    if is_retriever(path):
        return open_retriever(RetrieverFiles.read(path), options)
    return open_index(path, options, shards, vectors)


def open_sides(indexes: Sequence[Path], options: Searching | None = None) -> dict[str, Index]:
    """Open indexes as the sides of a retriever: name -> open index."""
    options = options or Searching()
    if options.engine == "lucene":
        raise option_error("engine", "lucene", "only with one index", code="option-does-not-apply")
    return dict(zip(short_names(indexes), (open_index(index, options) for index in indexes), strict=True))


def open_fused(
    indexes: Sequence[Path],
    manifests: Sequence[Sequence[Manifest]],
    options: Searching,
    weights: str | Sequence[float] | None,
) -> Retriever:
    """Open several indexes of one corpus, fused as a file of `fuse --tune` states, or by the default fusion.

    Args:
        indexes: the indexes.
        manifests: the manifests of each index, several for one of shards.
        options: search options.
        weights: `@FILE`, or one weight per index, in units of the deviations of the scores; None for the default.
    """
    names, sides = short_names(indexes), open_sides(indexes, options)
    if path := weights_path(weights):
        return Retriever(sides, stored_recipe(path, read_tuned(path), names, {}))
    shares = chosen_weights(weights, FusionRecipe("weighted-sum", default_shares(manifests), "exact"), names).weights
    fusion = default_fusion(sides, manifests, shares)
    return Retriever(sides, fusion.recipe, default=(default_shares(manifests), fusion.scales))


def default_shares(manifests: Sequence[Sequence[Manifest]]) -> tuple[float, ...]:
    """Return the untuned shares of indexes; see `retrieval.retriever.default_shares`."""
    return shares_of([index[0].kind == Kind.LEXICAL_INDEX for index in manifests])


def default_fusion(
    sides: Mapping[str, Index],
    manifests: Sequence[Sequence[Manifest]],
    shares: tuple[float, ...] | None = None,
    queries: Path | None = None,
    seed: int = SEED,
) -> DefaultFusion:
    """Measure the scales of open indexes, and return their fusion.

    Args:
        sides: the open indexes.
        manifests: the manifests of each index, several for one of shards.
        shares: weight of each index; None for the default.
        queries: query file that the scales are of; None for pieces of sentences of the documents.
        seed: random seed of the sample.

    Raises:
        InputError: the corpora are not where the indexes record them, or have no sentence.
    """
    shares = shares or default_shares(manifests)
    if len(sides) == 1:
        return DefaultFusion(shares)
    if queries is not None:
        table = collections.read_queries(queries).select("qid", "text")
        table, origin = table.sample(min(QUERIES, len(table)), seed=seed), f"queries of {queries.name}"
    else:
        corpora = known_corpora(manifests)
        table = sampled(corpora, QUERIES, seed) if corpora else pl.DataFrame()
        origin = "pieces of sentences of the documents"
        if not len(table):
            reason = "the documents have no sentence" if corpora else "the corpus is not where the indexes record it"
            problem = f"{reason}, which gives the scales of the scores; use `hybrid compose` with --queries or --method"
            raise InputError(problem, code="no-queries")
    recipe = FusionRecipe("weighted-sum", (1.0,) * len(sides), "exact")
    return DefaultFusion(shares, Retriever(sides, recipe, DEFAULT_DEPTH).scales(table), f"{len(table)} {origin}")
