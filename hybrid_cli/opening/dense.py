"""Opening a dense index, with the checks of its manifest."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import polars as pl

from hybrid_cli import artifacts, storage
from hybrid_cli.artifacts import Manifest
from hybrid_cli.errors import InputError
from hybrid_cli.indexes.dense import DenseIndex, IndexInfo
from hybrid_cli.storage import Kind
from hybrid_cli.storage.layout import DOCIDS


def open_dense(
    folder: Path, ef_search: int | None = None, nprobe: int | None = None, binary_k: int | None = None
) -> DenseIndex:
    """Open a dense index; FAISS and its file are loaded at the first search.

    Raises:
        InputError: `folder` is not a dense index.
    """
    manifest = artifacts.read_manifest(folder, Kind.DENSE_INDEX)
    info = info_of(manifest)
    with storage.one_version(folder, manifest):
        storage.check_parts(folder, DOCIDS)
        docids = pl.read_parquet(storage.validate_parquet(folder / DOCIDS), glob=False)["docid"]
    return DenseIndex(folder, info, docids, manifest, ef_search, nprobe, binary_k)


def info_of(manifest: Manifest) -> IndexInfo:
    """Return the properties of a dense index, or of encoded queries, from its manifest.

    Raises:
        InputError: a property is missing.
    """
    stored = manifest.counts
    values = {declared.name: stored[declared.name] for declared in fields(IndexInfo) if declared.name in stored}
    if missing := {"vectors", "dim", "encoder", "contract"} - set(values):
        facts = ", ".join(sorted(missing))
        raise InputError(
            f"{manifest.location}: {facts} missing in the manifest; encode again with --overwrite",
            code="damaged-manifest",
            path=manifest.location,
            missing=sorted(missing),
        )
    return IndexInfo(**values, recall={name: value for name, value in stored.items() if name.startswith("recall@")})


def read_info(path: Path, kind: Kind = Kind.DENSE_INDEX) -> IndexInfo:
    """Return the properties of the dense index at `path`, or of encoded queries with `Kind.VECTORS`.

    Raises:
        InputError: `path` is another kind of artifact.
    """
    return info_of(artifacts.read_manifest(path, kind))
