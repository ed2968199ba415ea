"""Shards of vectors: Parquet files of ids and vectors, each complete, read one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from hybrid_cli import artifacts
from hybrid_cli.artifacts.layout import PARTS, VECTORS, part
from hybrid_cli.errors import InputError

_SPLIT = {"vector.list.element": "BYTE_STREAM_SPLIT"}  # the bytes of floats compress better separately

Vectors = np.ndarray[Any, np.dtype[np.float32]]


def shard_path(folder: Path, number: int) -> Path:
    """Return the path of shard `number` in a folder of vectors."""
    return folder / VECTORS / part(number)


def write_shard(path: Path, ids: pa.Array, vectors: np.ndarray, **facts: int) -> None:
    """Write ids and vectors [n, d] (float32 or float16) as one Parquet file, which is complete or absent.

    Args:
        path: path of the shard.
        ids: [n]
        vectors: [n, d]
        facts: numbers stored in the footer, for a run that resumes after an interruption.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    values = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    column = pa.FixedSizeListArray.from_arrays(values, vectors.shape[1])
    table = pa.table({"id": ids.cast(pa.string()), "vector": column})
    table = table.replace_schema_metadata({name: str(value) for name, value in facts.items()})
    with artifacts.replacing(path) as scratch:
        pq.write_table(table, scratch, compression="zstd", use_dictionary=False, column_encoding=_SPLIT)


def link_shard(path: Path, folder: Path) -> None:
    """Hard-link the shard at `path` into another folder of vectors; copy it where the file system has no hard links."""
    target = folder / VECTORS / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    artifacts.hard_link(path, target)


def shards(folder: Path) -> list[Path]:
    """Return the shards of a folder of vectors, in order.

    Raises:
        InputError: there are none.
    """
    found = sorted((folder / VECTORS).glob(PARTS))
    if not found:
        raise InputError(f"{folder}: has no {VECTORS}/{PARTS}; build it with `hybrid encode`")
    return found


def shard_facts(path: Path) -> dict[str, int]:
    """Return the facts that `write_shard` stored in the footer."""
    metadata = pq.read_schema(path).metadata or {}
    return {name.decode(): int(value) for name, value in metadata.items()}


def read_shard(path: Path) -> Vectors:
    """Return the vectors [n, d] of one shard as float32."""
    column = pq.read_table(path, columns=["vector"])["vector"].combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat, np.float32).reshape(len(column), column.type.list_size)


def read_ids(folder: Path) -> pl.Series:
    """Return the ids of a folder of vectors, by row."""
    return pl.concat([pl.read_parquet(path, columns=["id"])["id"] for path in shards(folder)])
