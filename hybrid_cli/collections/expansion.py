"""Expansion of documents by text from a file, such as generated queries (docT5query)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from hybrid_cli import console
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.readers.tables import Layout, cell, chosen_columns, open_table
from hybrid_cli.collections.readers.text_files import DOCID_FIELDS
from hybrid_cli.errors import path_error

_LAYOUT = Layout(
    "--expansion",
    {"docid": DOCID_FIELDS, "text": ("text", "query", "expansion", "contents")},
    frozenset(),
    {2: {"docid": "1", "text": "2"}},
    "name its columns docid and text",
)


def documents(
    collection: Path, expansion: Path | None, batch_rows: int = 8192, fields: Iterable[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the documents of a collection, with the expansion after the text.

    Args:
        collection: collection or corpus.
        expansion: TSV, CSV, JSON lines or Parquet file of docid and text; several rows of a document are joined.
        batch_rows: rows per batch.
        fields: fields of the documents to yield, besides title and text.

    Raises:
        InputError: an id that is not in the collection.
    """
    if expansion is None:
        yield from collections.documents(collection, batch_rows, fields)
        return
    added = _read(expansion)
    known = set(collections.docids(collection))
    if unknown := [docid for docid in added if docid not in known]:
        problem = (
            f"{console.counted(document=len(unknown))} not in {collection} ({unknown[0]}, ...); pass the expansion of "
            "this collection"
        )
        raise path_error(expansion, problem, code="unknown-id", id=unknown[0], count=len(unknown))
    for batch in collections.documents(collection, batch_rows, fields):
        pairs = zip(batch.column("docid").to_pylist(), batch.column("text").to_pylist(), strict=True)
        texts = pa.array([" ".join([text, *added.get(docid, ())]).strip() for docid, text in pairs], pa.string())
        yield batch.set_column(batch.schema.get_field_index("text"), "text", texts)


def _read(path: Path) -> dict[str, list[str]]:
    table = open_table(path, _LAYOUT, {}, None, None)
    columns = chosen_columns(table, _LAYOUT, {})
    texts: dict[str, list[str]] = {}
    for location, row in table.rows(columns.values()):
        texts.setdefault(cell(row, columns["docid"], location), []).append(cell(row, columns["text"], location))
    return texts
