"""Artifacts of a few rows, written through the real writers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa

from hybrid_cli import artifacts
from hybrid_cli.artifacts import SCHEMAS, Kind

HITS = [("q1", "a", 1, 3.0), ("q1", "b", 2, 2.0), ("q2", "a", 1, 1.0)]


def run_table(rows=HITS) -> pa.Table:
    columns = [list(column) for column in zip(*rows, strict=True)]
    return pa.table(columns, schema=SCHEMAS[Kind.RUN])


def claim(path: Path, *, inputs=None, overwrite=False, foreign=False, kind=Kind.RUN, **options) -> artifacts.Output:
    return artifacts.open_output(
        path, kind, "search", inputs=inputs or {}, options=options, overwrite=overwrite, foreign=foreign
    )


def write_run(path: Path, rows=HITS, **settings) -> Path:
    claim(path, **settings).write([run_table(rows)])
    return path


def write_folder(path: Path, content: str = "whole", **settings) -> Path:
    with claim(path, kind=Kind.DENSE_INDEX, **settings).folder() as (work, _):
        (work / "vectors.bin").write_text(content)
    return path


def interrupted(path: Path, error: Exception, **settings) -> bool:
    """Begin a folder, write a shard and stop with `error`; whether that shard was there already."""
    found = False
    try:
        with claim(path, kind=Kind.DENSE_INDEX, **settings).folder() as (work, _):
            found = (work / "shard").exists()
            (work / "shard").write_text("done")
            raise error
    except type(error):
        return found


def scratch_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def foreign(path: Path, frame: pl.DataFrame) -> Path:
    frame.write_parquet(path)
    return path


def write_corpus(path: Path, texts: Sequence[str]) -> Path:
    """A corpus of untitled documents d0, d1, ..."""
    docids = [f"d{number}" for number in range(len(texts))]
    table = pa.table([docids, [""] * len(texts), list(texts)], schema=SCHEMAS[Kind.CORPUS])
    claim(path, kind=Kind.CORPUS).write([table])
    return path
