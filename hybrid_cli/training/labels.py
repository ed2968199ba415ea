"""Teacher labels on disk: for each query the best documents of a sparse ranker, in shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pyarrow as pa

from hybrid_cli import artifacts
from hybrid_cli.artifacts import SCHEMAS, Kind, Manifest

_FOLDER = "labels"


class Labels:
    """Labels that `hybrid label` wrote, one shard in memory at a time.

    Attributes:
        folder: where they are.
        depth: hits that the longest lists have.
        shards: how many files, in the order of the queries.

    Raises:
        InputError: not teacher labels, or a shard is missing or damaged.
    """

    def __init__(self, folder: Path):
        manifest = artifacts.read_manifest(folder, Kind.LABELS)
        self.folder, self.depth = folder, int(manifest.options["depth"])
        self.shards = int(manifest.counts["shards"])
        for number in range(self.shards):
            artifacts.check_table(artifacts.validate_parquet(shard_path(folder, number)), Kind.LABELS)

    def __len__(self) -> int:
        """How many queries have labels."""
        return sum(artifacts.row_count(shard_path(self.folder, number)) for number in range(self.shards))

    def read(self, shard: int) -> pl.DataFrame:
        """qid, text, source (null for given queries), docids and scores (lists, best first) of one shard."""
        return pl.read_parquet(shard_path(self.folder, shard))

    def tables(self) -> Iterator[pl.DataFrame]:
        """Shard after shard."""
        return map(self.read, range(self.shards))


def shard_path(folder: Path, number: int) -> Path:
    """Where shard `number` stands."""
    return folder / _FOLDER / f"part-{number:05d}.parquet"


def write_shard(path: Path, table: pa.Table, manifest: Manifest, **counts: int) -> None:
    """Write one shard; it appears whole or not at all. `counts` are kept in its manifest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}")
    artifacts.write_parquet(scratch, [table], SCHEMAS[Kind.LABELS], replace(manifest, counts=counts))
    scratch.replace(path)
