"""Tables of documents, terms and queries: for many tools, and for engines that a Python script loads from them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from hybrid_cli.exports.documents import Served, write_line
from hybrid_cli.exports.engine import Engine, Fusion, Request, Translation
from hybrid_cli.indexes.shards import Advance
from hybrid_cli.passages import NO_GROUPS
from hybrid_cli.storage import disk

TIES = "Documents with equal scores in a list may have other ranks there, and others of them are cut off."
_PASSAGES = 10  # asked for per document


class Parquet(Engine):
    """`documents.parquet`, `terms.parquet` and `queries.parquet`, which many tools read."""

    name = "parquet"
    lexical = "values"

    def write(self, served: Served, folder: Path, advance: Advance) -> int:
        """See `Engine`."""
        count, writer = 0, None
        with disk.create(folder / "documents.parquet") as file, ExitStack() as opened:
            for frame in self.frames(served):
                table = frame.to_arrow()
                schema = pa.schema([(column.name, _plain(column.type)) for column in table.schema])
                if writer is None:
                    writer = opened.enter_context(pq.ParquetWriter(file, schema, compression="zstd"))
                writer.write_table(table.cast(schema))
                count += len(frame)
                advance(len(frame))
        with disk.create(folder / "terms.parquet") as file:
            pl.DataFrame({"term": served.terms}).with_row_index("id").write_parquet(file)
        return count

    def frames(self, served: Served) -> Iterator[pl.DataFrame]:
        """Yield the documents with the columns of the table."""
        return served.documents()

    def write_queries(self, served: Served, queries: pl.DataFrame, folder: Path, request: Request | None) -> None:
        """Write `queries.parquet`."""
        with disk.create(folder / "queries.parquet") as file:
            queries.write_parquet(file)

    def translate(self, fusion: Fusion) -> Translation | None:
        """See `Engine`."""
        return None


class Tables(Parquet):
    """Tables, a script that loads them, and one that asks the queries."""

    def write(self, served: Served, folder: Path, advance: Advance) -> int:
        """See `Engine`."""
        for name, text in self.scripts(served).items():
            disk.write_text(folder / name, text)
        return super().write(served, folder, advance)

    @abstractmethod
    def scripts(self, served: Served) -> Mapping[str, str]:
        """Return name -> text of the scripts."""

    def write_queries(self, served: Served, queries: pl.DataFrame, folder: Path, request: Request | None) -> None:
        """Write `queries.jsonl`: qid, text and the request, with vectors and the ids of terms."""
        with disk.create_text(folder / "queries.jsonl") as file:
            for query in queries.iter_rows(named=True):
                body = {} if request is None else {"request": request(query)}
                write_line(file, {"qid": query["qid"], "text": query["text"], **body})


def hits_of(fusion: Fusion) -> int:
    """Return the number of hits that a request asks for: several passages for each document."""
    return fusion.hits if fusion.group == NO_GROUPS else _PASSAGES * fusion.hits


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type with 32-bit offsets, which every reader knows."""
    if pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    return pa.string() if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) else kind
