"""Tables of documents, terms and queries, which many tools read."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from hybrid_cli.exports.documents import Served
from hybrid_cli.exports.engine import Engine, Fusion, Request, Translation
from hybrid_cli.indexes.shards import Advance
from hybrid_cli.storage import disk


class Parquet(Engine):
    """`documents.parquet`, `terms.parquet` and `queries.parquet`."""

    lexical = "values"

    def write(self, served: Served, folder: Path, advance: Advance) -> int:
        """See `Engine`."""
        count = 0
        with (
            disk.create(folder / "documents.parquet") as file,
            pq.ParquetWriter(file, _schema(served), compression="zstd") as writer,
        ):
            for frame in served.documents():
                writer.write_table(frame.to_arrow().cast(_schema(served)))
                count += len(frame)
                advance(len(frame))
        with disk.create(folder / "terms.parquet") as file:
            pl.DataFrame({"term": served.terms}).with_row_index("id").write_parquet(file)
        return count

    def write_queries(self, served: Served, queries: pl.DataFrame, folder: Path, request: Request | None) -> None:
        """Write `queries.parquet`."""
        with disk.create(folder / "queries.parquet") as file:
            queries.write_parquet(file)

    def translate(self, fusion: Fusion) -> Translation | None:
        """See `Engine`."""
        return None


def _schema(served: Served) -> pa.Schema:
    columns: dict[str, pa.DataType] = {name: pa.string() for name in ("docid", "title", "text")}
    columns |= {name: pl.Series([], dtype=kind).to_arrow().type for name, kind in served.metadata.items()}
    columns |= {"indices": pa.list_(pa.int32()), "values": pa.list_(pa.float32())}
    return pa.schema({**columns, **dict.fromkeys(served.dense, pa.list_(pa.float32()))})
