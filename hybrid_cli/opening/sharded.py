"""Shards: indexes of different documents that are searched as one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from glob import glob, has_magic
from pathlib import Path

import polars as pl

from hybrid_cli import artifacts, runs, storage
from hybrid_cli.artifacts import Manifest
from hybrid_cli.errors import InputError
from hybrid_cli.opening.dense import info_of
from hybrid_cli.storage import Kind, layout

_LISTS = re.compile(r"IVF\d+")  # their number depends on the number of vectors


def index_manifest(path: Path, sharded: bool = False) -> Manifest:
    """Return the manifest of a lexical or dense index, or with `sharded` of a sharded one too.

    Raises:
        InputError: the artifact is not such an index.
    """
    manifest = artifacts.read_manifest(path)
    if manifest.kind in (Kind.LEXICAL_INDEX, Kind.DENSE_INDEX) or (sharded and manifest.kind == Kind.SHARDS):
        return manifest
    only = "only `search` and `update` read a sharded index; build one without --shards"
    raise manifest.other_kind(path, only if manifest.kind == Kind.SHARDS else "an index is needed here")


def shards_of(index: Path) -> tuple[Path, ...]:
    """Return the indexes that are searched as one: those of a pattern, of a sharded index, or the index itself.

    Raises:
        InputError: no such index, a shard is missing, or shards that do not belong together.
    """
    if has_magic(str(index)) and not index.exists():
        folders = (path for path in sorted(map(Path, glob(str(index)))) if path.is_dir())
        shards = tuple(shard for folder in folders for shard in shards_of(folder))
        if not shards:
            raise InputError(f"{index}: no index has such a name", code="no-such-file", path=index)
    elif index.is_dir() and artifacts.read_manifest(index).kind == Kind.SHARDS:
        shards = tuple(sorted(index.glob(layout.SHARDS)))
    else:
        return (index,)
    manifests = [index_manifest(path) for path in shards]
    for path, manifest in zip(shards[1:], manifests[1:], strict=True):
        if manifest.kind != manifests[0].kind:
            raise manifest.other_kind(path, f"{shards[0]} is {manifests[0].kind.phrase}", manifests[0].kind)
    if manifests[0].kind == Kind.LEXICAL_INDEX:
        _check_lexical(index, shards, manifests)
    else:
        _check_dense(shards, manifests)
    return shards


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


def merged(queries: pl.DataFrame, parts: Iterable[pl.DataFrame], hits: int) -> pl.DataFrame:
    """Return the best hits of all shards, in the order of the queries.

    Args:
        queries: qid.
        parts: runs of the shards.
        hits: documents per query.
    """
    hits_found = queries.select(pl.col("qid").cast(pl.String)).join(
        pl.concat([runs.empty(), *parts]), on="qid", maintain_order="left_right"
    )
    return runs.ranked(hits_found, hits) if len(hits_found) else runs.empty()


def _check_lexical(pattern: Path, shards: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    """Refuse lexical indexes without common statistics, and a set of shards that is not complete."""
    first = manifests[0]
    for path, manifest in zip(shards, manifests, strict=True):
        if "shard" not in manifest.counts:
            raise InputError(
                f"{path}: has statistics of its own documents only, so its scores differ from those of one index; "
                "build shards with `index-bm25 --shards`",
                code="other-statistics",
                path=path,
            )
        if not artifacts.same_call(manifest, first) or _parameters(manifest) != _parameters(first):
            raise InputError(
                f"{path}: has other statistics than {shards[0]} (another corpus, or other options); use the shards "
                "of one sharded index",
                code="other-statistics",
                path=path,
                other=shards[0],
            )
    numbers = [manifest.counts["shard"] for manifest in manifests]
    absent = sorted(set(range(first.counts["shards"])) - set(numbers))
    if absent:
        raise InputError(
            f"{pattern}: shard {absent[0]} of 0 to {first.counts['shards'] - 1} is missing; restore it, or build the "
            "shards again with `index-bm25 --shards --overwrite`",
            code="missing-shard",
            path=pattern,
            shard=absent[0],
            count=first.counts["shards"],
        )
    if len(set(numbers)) < len(numbers):
        raise InputError(
            f"{pattern}: contains a shard twice; name each shard once", code="repeated-input", path=pattern
        )


def _parameters(manifest: Manifest) -> tuple[float, ...]:
    return tuple(manifest.counts[name] for name in ("shards", "k1", "b"))


def _check_dense(shards: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    """Refuse dense indexes of other vectors or types, and a document in two of them."""
    infos = [info_of(manifest) for manifest in manifests]
    for path, info in zip(shards, infos, strict=True):
        if (info.encoder, info.dim) != (infos[0].encoder, infos[0].dim):
            raise InputError(
                f"{path}: has vectors of another encoder than {shards[0]}; encode both with one model",
                code="other-encoder",
                path=path,
                other=shards[0],
            )
        if _LISTS.sub("IVF", info.factory) != _LISTS.sub("IVF", infos[0].factory):
            raise InputError(
                f"{path}: has index type {info.factory}, {shards[0]} has {infos[0].factory}; rebuild one of them with "
                "`encode INDEX --index-type`",
                code="other-index-type",
                path=path,
                value=info.factory,
                expected=infos[0].factory,
            )
    known = pl.concat([pl.DataFrame({"docid": docids_of(path), "shard": str(path)}) for path in shards])
    repeated = known.filter(pl.col("docid").is_duplicated()).sort("docid", maintain_order=True)
    if len(repeated):
        docid, second = repeated.row(0)[0], repeated.row(1)[1]
        raise InputError(
            f"{second}: document {docid} is in {repeated.row(0)[1]} too; remove it from one of them",
            code="duplicate-id",
            path=second,
            other=repeated.row(0)[1],
            id=docid,
        )
