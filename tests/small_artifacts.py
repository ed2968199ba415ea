"""Artifacts of a few rows, written through the real writers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from hybrid_cli import artifacts
from hybrid_cli.artifacts.indexes import docids_of
from hybrid_cli.indexes.dense import DenseIndex
from hybrid_cli.lexical.lucene import LuceneIndex
from hybrid_cli.runs.index import Index
from hybrid_cli.storage import SCHEMAS, Kind

Rows = Sequence[tuple[Any, ...]]
HITS: Rows = [("q1", "a", 1, 3.0), ("q1", "b", 2, 2.0), ("q2", "a", 1, 1.0)]


def run_table(rows: Rows = HITS) -> pa.Table:
    columns = [list(column) for column in zip(*rows, strict=True)]
    return pa.table(columns, schema=SCHEMAS[Kind.RUN])


def open_output(
    path: Path,
    *,
    inputs: Mapping[str, Path | artifacts.Named] | None = None,
    overwrite: bool = False,
    foreign: bool = False,
    kind: Kind = Kind.RUN,
    **options: Any,
) -> artifacts.Output:
    return artifacts.open_output(
        path, kind, "search", inputs=inputs or {}, options=options, overwrite=overwrite, foreign=foreign
    )


def write_run(path: Path, rows: Rows = HITS, **settings: Any) -> Path:
    open_output(path, **settings).write([run_table(rows)])
    return path


def write_folder(path: Path, content: str = "complete", **settings: Any) -> Path:
    with open_output(path, kind=Kind.DENSE_INDEX, **settings).folder() as (work, _):
        (work / "vectors.bin").write_text(content)
    return path


def interrupted(path: Path, error: Exception, **settings: Any) -> bool:
    """Start a folder, write a shard and stop with `error`; return whether the shard already existed."""
    found = False
    try:
        with open_output(path, kind=Kind.DENSE_INDEX, **settings).folder() as (work, _):
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


def write_corpus(path: Path, texts: Sequence[str], first: int = 0) -> Path:
    """Write a corpus of untitled documents d0, d1, ..., or from another number on."""
    docids = [f"d{number}" for number in range(first, first + len(texts))]
    table = pa.table([docids, [""] * len(texts), list(texts)], schema=SCHEMAS[Kind.CORPUS])
    open_output(path, kind=Kind.CORPUS).write([table])
    return path


def vector_hits(index: Index, vectors: Any, qids: Sequence[str], hits: int) -> pl.DataFrame:
    return index.table(index.hits(vectors, hits), pl.Series("qid", qids, dtype=pl.String))


def vector_scores(index: DenseIndex, pairs: pl.DataFrame, qids: Sequence[str], vectors: Any) -> pl.Series:
    """Return the exact scores of pairs of queries with vectors [n, d]."""
    queries = pl.DataFrame({"qid": qids}, schema={"qid": pl.String})
    return replace(index, encode=lambda _: vectors).score(pairs, queries)


def lucene_run(folder: Path, queries: pl.DataFrame, hits: int, **options: Any) -> pl.DataFrame:
    return LuceneIndex(folder, docids_of(folder), **options).search(queries, hits)
