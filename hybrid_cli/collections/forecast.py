"""A forecast of the memory and disk space for a collection, from the first documents of its source."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hybrid_cli import console, storage
from hybrid_cli.collections.options import Import
from hybrid_cli.collections.source import Document, Source, document_passages
from hybrid_cli.input_files import consumed_bytes, files_of_folder, is_compressed, open_binary

FIRST = 10_000  # documents that are read
ID_BYTES = 130  # of an id in a set; studies/memory.md
_COPY_BYTES = 67  # of an id in a second set
_ROLES = ("corpus", "documents")  # first words of the roles of files with documents
_FEWER = "use --sample"


def forecast(source: Source, options: Import, folder: Path) -> None:
    """Print the memory and the disk space for a collection, if it is much, and refuse what does not fit.

    Without a file of documents, nothing is known before all documents are read, unless the source knows their number.
    Training files repeat passages, so that their size does not tell the number of documents.

    Args:
        source: documents of the files, before a sample is drawn or passages are split.
        options: `sample` and `split_passages`.
        folder: folder that is written.

    Raises:
        HybridError: memory or disk space does not suffice.
    """
    files = _document_files(source)
    if not files and source.total is None:
        return
    first = list(islice(source.documents(), FIRST))
    if len(first) < FIRST:
        return
    total: float | None = source.total
    if total is None:
        share = _share(first, files)
        if not share:
            return
        total = len(first) / share
    kept = min(total, options.sample or total)
    size = options.split_passages
    if size:
        first = [passage for row in first for passage in document_passages(row, size, options.passage_stride or size)]
    written = kept * len(first) / FIRST
    ids = written + (kept if size else 0) + (total if options.pseudo_queries else 0)
    memory = ID_BYTES * ids + ((ID_BYTES + _COPY_BYTES) * total if options.sample else 0)
    purpose = f"prepare: about {written:,.0f} {'passages' if size else 'documents'}"
    # A sample also holds the ids of all documents, so it helps only where passages outnumber them.
    helps = options.sample is None and ids > 2 * total
    console.forecast(int(memory), purpose, _FEWER if helps else "")
    console.forecast(int(written * _stored_bytes(first)), purpose, "" if options.sample else _FEWER, folder)


def _document_files(source: Source) -> list[Path]:
    paths: list[Path] = []
    for role, path in source.files.items():
        if role.split()[0] in _ROLES:
            paths += files_of_folder(path).paths if path.is_dir() else [path]
    return paths


def _share(first: Sequence[Document], files: Sequence[Path]) -> float | None:
    """Return the part of the files' bytes that holds the first documents; None where the locations do not tell."""
    read = list(dict.fromkeys(row.location.file for row in first))
    last = first[-1].location
    sizes = {str(path): path.stat().st_size for path in files}
    if any(str(path) not in sizes for path in read):
        return None
    path = Path(last.file)
    if last.unit == "line":
        part = _consumed(path, last.number)
    elif last.unit == "row":
        part = sizes[str(path)] * last.number / pq.read_metadata(path).num_rows
    else:
        return None
    return (sum(sizes[str(file)] for file in read[:-1]) + part) / sum(sizes.values())


def _consumed(path: Path, lines: int) -> int:
    """Return the bytes of the first lines of a file, compressed as in the file."""
    with open_binary(path) as file:
        plain = sum(map(len, islice(file, lines)))
        compressed = consumed_bytes(file) if is_compressed(path) else plain
    return min(compressed, path.stat().st_size)


def _stored_bytes(documents: Sequence[Document]) -> float:
    """Return the mean size of a document in a Parquet file."""
    columns = zip(*((row.docid, row.title, row.text, *row.others) for row in documents), strict=True)
    table = pa.table({str(number): pa.array(column) for number, column in enumerate(columns)})
    return storage.stored_bytes(table) / len(documents)
