"""Indexes on disk: their manifests, kinds, ids and shards, and the corpora and models that they record."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs

from hybrid_cli import artifacts, console, storage
from hybrid_cli.artifacts import Input, Manifest, Named, Output, Recorded, has_content, recorded_input
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.collection import TextStore
from hybrid_cli.encoders.contract import ENDPOINT, is_static
from hybrid_cli.encoders.models import resolve
from hybrid_cli.errors import HybridError, InputError, path_error, refuse_missing
from hybrid_cli.indexes.dense import IndexInfo
from hybrid_cli.indexes.faiss import is_binary
from hybrid_cli.indexes.options import ENDPOINT_INDEX, FLAT, LEARNED, TRANSFORMER_INDEX
from hybrid_cli.lexical.index import LexicalIndex, read_parameters
from hybrid_cli.passages import MAX, NO_GROUPS, Group
from hybrid_cli.retrieval.filters import Metadata
from hybrid_cli.storage import Kind, disk, layout

_LISTS = re.compile(r"IVF\d+")  # their number depends on the number of vectors


def index_manifest(path: Path, sharded: bool = False) -> Manifest:
    """Return the manifest of a lexical or dense index, or with `sharded` of a sharded one too.

    Raises:
        InputError: the artifact is not such an index.
    """
    manifest = artifacts.read_manifest(path)
    return manifest if sharded and manifest.kind == Kind.SHARDS else _of_index(path, manifest)


def _of_index(path: Path, manifest: Manifest) -> Manifest:
    if manifest.kind in (Kind.LEXICAL_INDEX, Kind.DENSE_INDEX):
        return manifest
    only = "only `search` and `update` read a sharded index; build one without --shards"
    raise manifest.other_kind(path, only if manifest.kind == Kind.SHARDS else "an index is needed here")


def shards_of(index: Path) -> dict[Path, Manifest]:
    """Return the indexes that are searched as one: those of a pattern, of a sharded index, or the index itself.

    Returns:
        path -> manifest, each read once.

    Raises:
        InputError: no such index, a shard is missing, or shards that do not belong together.
    """
    if has_magic(str(index)) and not index.exists():
        folders = (path for path in sorted(map(Path, glob(str(index)))) if path.is_dir())
        shards = {shard: manifest for folder in folders for shard, manifest in shards_of(folder).items()}
        if not shards:
            raise path_error(index, "no index has such a name", code="no-such-file")
    elif (whole := artifacts.read_manifest(index)).kind == Kind.SHARDS:
        shards = {shard: index_manifest(shard) for shard in sorted(index.glob(layout.SHARDS))}
    else:
        return {index: _of_index(index, whole)}
    (first, kind), *others = ((path, manifest.kind) for path, manifest in shards.items())
    for path, other in others:
        if other != kind:
            raise shards[path].other_kind(path, f"{first} is {kind.phrase}", kind)
    if kind == Kind.LEXICAL_INDEX:
        _check_lexical(index, shards)
    else:
        _check_dense(shards)
    return shards


def manifests_of(indexes: Sequence[Path]) -> list[list[Manifest]]:
    """Return the manifests of each index, several for one of shards."""
    return [[*shards_of(index).values()] for index in indexes]


def write_manifests(output: Output, work: Path, language: str) -> dict[str, Any]:
    """Write the manifest of every shard in `work`; return the counts of the sharded index."""
    shards = sorted(work.glob(layout.SHARDS))
    documents, stored = 0, read_parameters(shards[0])
    for number, shard in enumerate(shards):
        counts = LexicalIndex.load(shard, language, (stored["k1"], stored["b"])).counts()
        documents += counts["documents"]
        counts |= {"shard": number, "shards": len(shards)}
        manifest = output.manifest.of_part(shard, output.path / shard.name, Kind.LEXICAL_INDEX, counts)
        disk.write_text(shard / storage.MANIFEST, manifest.to_json())
    storage.refuse_lost(shard / storage.MANIFEST for shard in shards)
    return {"documents": documents, "shards": len(shards), "k1": stored["k1"], "b": stored["b"]}


def docids_of(index: Path) -> pl.Series:
    """Return the ids of an index, by row."""
    storage.check_parts(index, layout.DOCIDS)
    return pl.read_parquet(storage.validate_parquet(index / layout.DOCIDS), glob=False)["docid"]


def ids_of(index: Path) -> pl.Series:
    """Return the ids of an index, by row; of a sharded index, those of all shards.

    Raises:
        InputError: a shard is missing.
    """
    return pl.concat(docids_of(shard) for shard in shards_of(index))


def info_of(manifest: Manifest) -> IndexInfo:
    """Return the properties of a dense index, or of encoded queries, from its manifest.

    Raises:
        InputError: a property is missing.
    """
    stored = manifest.counts
    values = {declared.name: stored[declared.name] for declared in fields(IndexInfo) if declared.name in stored}
    if missing := {"vectors", "dim", "encoder", "contract"} - set(values):
        facts = ", ".join(sorted(missing))
        problem = f"{facts} missing in the manifest; encode again with --overwrite"
        raise path_error(manifest.location, problem, code="damaged-manifest")
    return IndexInfo(**values, recall={name: value for name, value in stored.items() if name.startswith("recall@")})


def read_info(path: Path, kind: Kind = Kind.DENSE_INDEX) -> IndexInfo:
    """Return the properties of the dense index at `path`, or of encoded queries with `Kind.VECTORS`.

    Raises:
        InputError: `path` is another kind of artifact.
    """
    return info_of(artifacts.read_manifest(path, kind))


def quantization(manifest: Manifest) -> int | None:
    """Return the steps per unit of the learned weights of an index; None for an index of BM25."""
    steps = manifest.counts.get("quantization")
    return None if steps is None else int(steps)


def check_models(indexes: Iterable[Sequence[Manifest]]) -> None:
    """Refuse indexes whose queries a model encodes, if the packages of models are not installed.

    Raises:
        PackageError: names the extra.
    """
    for first, *_ in indexes:
        dense = first.kind == Kind.DENSE_INDEX and ENDPOINT_INDEX not in index_kinds(first)
        if first.counts.get("encoder") and (dense or quantization(first) is not None):
            refuse_missing("tokenizers", "torch", "transformers")


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
    elsewhere = info.contract.get("kind") == ENDPOINT
    kinds |= set() if is_static(info.contract) else {ENDPOINT_INDEX if elsewhere else TRANSFORMER_INDEX}
    kinds |= {"a flat index"} if factory == FLAT else set()
    return frozenset(kinds | ({"a binary index"} if is_binary(factory) else set()))


def kind_in_words(index: Path, manifest: Manifest) -> str:
    """Return `out/dense is a dense index`, for messages; an index of learned weights is not called lexical."""
    kinds = index_kinds(manifest)
    static = " of a static encoder" if "a dense index" in kinds and TRANSFORMER_INDEX not in kinds else ""
    return f"{index} is {LEARNED if LEARNED in kinds else manifest.kind.phrase}{static}"


def _check_lexical(pattern: Path, shards: Mapping[Path, Manifest]) -> None:
    """Refuse lexical indexes without common statistics, and a set of shards that is not complete."""
    home, first = next(iter(shards.items()))
    for path, manifest in shards.items():
        if "shard" not in manifest.counts:
            problem = "has statistics of its own documents only; build shards with `index-bm25 --shards`"
            raise path_error(path, problem, code="other-statistics")
        if not artifacts.same_call(manifest, first) or _parameters(manifest) != _parameters(first):
            problem = f"has other statistics than {home}; use the shards of one sharded index"
            raise path_error(path, problem, code="other-statistics")
    numbers = [manifest.counts["shard"] for manifest in shards.values()]
    absent = sorted(set(range(first.counts["shards"])) - set(numbers))
    if absent:
        last = first.counts["shards"] - 1
        problem = f"shard {absent[0]} of 0 to {last} is missing; restore it, or build the index again with --overwrite"
        raise path_error(pattern, problem, code="missing-shard")
    if len(set(numbers)) < len(numbers):
        raise path_error(pattern, "contains a shard twice; name each shard once", code="repeated-input")


def _parameters(manifest: Manifest) -> tuple[float, ...]:
    return tuple(manifest.counts[name] for name in ("shards", "k1", "b"))


def _check_dense(shards: Mapping[Path, Manifest]) -> None:
    """Refuse dense indexes of other vectors or types, and a document in two of them."""
    infos = {path: info_of(manifest) for path, manifest in shards.items()}
    home, first = next(iter(infos.items()))
    for path, info in infos.items():
        if (info.encoder, info.dim) != (first.encoder, first.dim):
            problem = f"has vectors of another encoder than {home}; encode both with one model"
            raise path_error(path, problem, code="other-encoder")
        if _LISTS.sub("IVF", info.factory) != _LISTS.sub("IVF", first.factory):
            problem = f"has index type {info.factory}, {home} has {first.factory}; rebuild one of them"
            raise path_error(path, problem, code="other-index-type")
    known = pl.concat([pl.DataFrame({"docid": docids_of(path), "shard": str(path)}) for path in shards])
    repeated = known.filter(pl.col("docid").is_duplicated()).sort("docid", maintain_order=True)
    if len(repeated):
        docid, second = repeated.row(0)[0], repeated.row(1)[1]
        problem = f"document {docid} is in {repeated.row(0)[1]} too; remove it from one of them"
        raise path_error(second, problem, code="duplicate-id", id=docid)


REBUILD = "; build the index again with --overwrite, or pass the collection from which it was built"


def corpora_of(indexes: Iterable[Sequence[Manifest]]) -> list[Recorded]:
    """Return the corpora of indexes with the same documents: those of the index that lost fewest.

    Args:
        indexes: the manifests of each index; several for one of shards.
    """
    recorded = [corpora_of_shards(manifests) for manifests in indexes]
    return min((corpora for corpora in recorded if corpora), key=lambda corpora: len(lost_corpora(corpora)), default=[])


def group_of(given: Group | None, indexes: Iterable[Sequence[Manifest]]) -> Group:
    """Return how passages give documents: as given, else by the best passage for a collection of passages."""
    if given is not None:
        return given
    return MAX if any(corpus.split_passages for corpus in corpora_of(indexes)) else NO_GROUPS


def corpora_of_shards(manifests: Sequence[Manifest]) -> list[Recorded]:
    """Return the corpora that the shards of an index record, each once."""
    corpora = [corpus for manifest in manifests for corpus in recorded_corpora(manifest).values()]
    return list({(corpus.path, corpus.fingerprint): corpus for corpus in corpora}.values())


def recorded_corpora(manifest: Manifest) -> dict[str, Recorded]:
    """Return role -> corpora that an index records, several after `update --add`."""
    roles = [role for role in manifest.inputs if role.split()[0] in ("corpus", "texts")]
    return {role: corpus for role in roles if (corpus := artifacts.recorded_input(manifest, role)) is not None}


def lost_corpora(corpora: Iterable[Recorded]) -> dict[Path, str]:
    """Return path -> what happened, for the recorded corpora that are missing or have changed."""
    return {
        corpus.path: f"{corpus.path} "
        + ("has changed since the index was built" if corpus.path.exists() else "is missing")
        for corpus in corpora
        if not corpus.is_unchanged
    }


def warn_lost(corpora: Iterable[Recorded], consequence: str) -> None:
    """Warn that recorded corpora are missing or have changed; the consequence says what to do."""
    if lost := lost_corpora(corpora):
        missing = [path for path in lost if not path.exists()]
        text = f"{', '.join(lost.values())}: {consequence}"
        console.warn(text, code="corpus-changed", paths=list(lost), missing=missing)


def open_texts(indexes: Iterable[Sequence[Manifest]]) -> TextStore | None:
    """Return titles and texts of the documents of indexes; None, with a warning, if their corpora are lost.

    Args:
        indexes: the manifests of each index, several for one of shards.
    """
    corpora = known_corpora(indexes, "hits may lack titles or show others; build the index again with --overwrite")
    return TextStore(corpora) if corpora else None


def known_corpora(indexes: Iterable[Sequence[Manifest]], consequence: str = "") -> list[Path]:
    """Return the recorded corpora that are there; with a consequence, warn about those that are not as before."""
    corpora = corpora_of(indexes)
    if consequence:
        warn_lost(corpora, consequence)
    return list(dict.fromkeys(corpus.path for corpus in corpora if corpus.path.exists()))


def metadata_of(indexes: Iterable[Sequence[Manifest]], collection: Path | None = None) -> Metadata:
    """Return the metadata of the documents of indexes, from the corpora that they record.

    Args:
        indexes: the manifests of each index, several for one of shards.
        collection: replaces a recorded corpus with the same content.

    Raises:
        InputError: no recorded corpus, or one that is missing or has changed: a filter must be exact.
    """
    recorded = corpora_of(indexes)
    if not recorded:
        problem = "--filter: the index records no corpus, whose metadata it needs; build it with `hybrid`"
        raise InputError(problem, code="no-corpus", option="filter")
    given = None if collection is None else collections.corpus_path(collection)
    paths: list[Path] = []
    for corpus in recorded:
        if corpus.is_unchanged:
            paths.append(corpus.path)
        elif given is not None and artifacts.has_content(given, corpus.fingerprint):
            paths.append(given)
        else:
            problem = f"--filter: needs the documents' metadata, and {lost_corpora([corpus])[corpus.path]}{REBUILD}"
            lost = not corpus.path.exists()
            raise InputError(problem, code="corpus-changed", option="filter", path=corpus.path, missing=lost)
    return Metadata(paths)


def warn_changed(manifests: Iterable[Manifest]) -> None:
    """Warn that indexes are older than their corpora; hits need no texts, so missing corpora do not count."""
    recorded = [corpus for manifest in manifests for corpus in recorded_corpora(manifest).values()]
    warn_lost((corpus for corpus in recorded if corpus.path.exists()), "hits are of its former documents" + REBUILD)


def texts(corpora: Iterable[Path], docids: pl.Series) -> pl.DataFrame:
    """Return docid, title and text of documents; a later corpus replaces the documents of earlier ones."""
    rows = pl.concat([collections.texts(corpus, docids) for corpus in corpora])
    return rows.unique("docid", keep="last", maintain_order=True)


def documents(corpora: Sequence[Path], docids: pl.Series) -> pl.DataFrame:
    """Return the texts of documents (see `texts`) and, where the corpora have it, their `metadata`: a struct."""
    rows, schema = texts(corpora, docids), TextStore(corpora).schema
    if not schema:
        return rows
    tables = [collections.metadata(corpus, schema).filter(pl.col("docid").is_in(rows["docid"])) for corpus in corpora]
    values = pl.concat(tables).unique("docid", keep="last").select("docid", metadata=pl.struct(cs.by_name(*schema)))
    return rows.join(values, on="docid", how="left", maintain_order="left")


def input_path(manifest: Manifest, role: str) -> Path | None:
    """Return the path of an input; for a model recorded by name, its folder on this machine, or None."""
    if "name" not in manifest.inputs[role]:
        return manifest.input_path(role)
    try:
        return resolve(manifest.inputs[role]["name"], local=True)
    except HybridError:
        return None


def model_input(name: str) -> Path | Named:
    """Return a model as an input of a stage: a folder, or the name of a model from a package or from the hub.

    Raises:
        InputError: see `resolve`.
    """
    folder = resolve(name)
    return folder if folder == Path(name) else Named(name, folder)


def recorded_model_input(manifest: Manifest) -> dict[str, Input]:
    """Return the encoder of an index as an input of a derived one: as recorded, even if missing or changed."""
    recorded = recorded_input(manifest, "model")
    return {} if recorded is None else {"model": recorded}


def find_model(index: Path, manifest: Manifest) -> Path:
    """Return the folder of the recorded encoder of an index; see `recorded_model`.

    Raises:
        InputError: no encoder is recorded, or it is no longer there.
    """
    folder = recorded_model(index, manifest)
    if folder is None:
        raise path_error(index, "records no encoder; pass it with --model", code="no-recorded-model")
    if not folder.exists():
        problem = f"its encoder is no longer at {folder}; pass it with --model"
        raise path_error(index, problem, code="recorded-model-missing", model=str(folder))
    return resolve(folder)


def recorded_model(artifact: Path, manifest: Manifest) -> Path | None:
    """Return the folder of the model that an artifact records; None if it records none.

    No artifact makes hybrid ask the hub: a model recorded by name is opened from the Hugging Face cache alone, and only
    with the recorded content.

    Args:
        artifact: path of the artifact, for messages.
        manifest: its manifest.

    Raises:
        InputError: a model recorded by name is not on this machine, or has other content.
        PackageError: its package is not installed.
    """
    if (path := manifest.input_path("model")) is not None:
        return path
    if (recorded := manifest.inputs.get("model", {})).get("name") is None:
        return None
    name = recorded["name"]
    try:
        folder = resolve(name, local=True)
    except InputError:
        problem = f"records the model {name!r}, which is not in the local cache; if you trust it, pass --model {name}"
        raise path_error(artifact, problem, code="recorded-model-missing", model=name) from None
    if not has_content(folder, recorded["fingerprint"]):
        problem = f"records the model {name!r} with other content than {folder}; pass the right one with --model"
        raise path_error(artifact, problem, code="recorded-model-changed")
    return folder
