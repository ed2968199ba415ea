"""Read the files of documents of a source on the machines of a Ray cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from hybrid_cli import cluster
from hybrid_cli.collections.source import Document, DocumentFiles, Location, Source
from hybrid_cli.inputs import files as input_files

ROWS = 8192  # documents of a record batch
ReadFile = Callable[[], Iterator[Document]]


class File(NamedTuple):
    """Documents of a file as columns, which take less memory and time to send than rows.

    Attributes:
        path, unit: of the locations of the documents.
        batches: columns number (of the location), docid, title, text, what is left out, other fields, metadata.
    """

    path: Path | str
    unit: str
    batches: list[pa.RecordBatch]


def on_cluster(source: Source, where: cluster.Workers) -> Source:
    """Return a source whose documents are read on a Ray cluster, or the source itself without a cluster.

    A file is one block: as many files as blocks in progress are in memory, in this process and on the cluster.

    Raises (while documents are read):
        InputError: no such cluster, or a file cannot be read.
    """
    if where.ray_address is None or not isinstance(source.documents, DocumentFiles):
        return source
    files = source.documents.files

    def documents() -> Iterator[Document]:
        for file in cluster.map_blocks(where, partial(_reader, input_files.limits()), files):
            yield from documents_of(file)

    return replace(source, documents=documents)


def _reader(limits: input_files.Limits) -> Callable[[ReadFile], File]:
    def read(file: ReadFile) -> File:
        with input_files.change_limits(asdict(limits)):
            return read_file(file)

    return read


def read_file(read: ReadFile) -> File:
    """Return the documents of a file."""
    batches: list[pa.RecordBatch] = []
    rows: list[Document] = []
    location = Location("", 0)
    for row in read():
        rows.append(row)
        if len(rows) == ROWS:
            batches.append(_batch(rows))
            rows.clear()
        location = row.location
    if rows:
        batches.append(_batch(rows))
    return File(location.file, location.unit, batches)


def _batch(rows: list[Document]) -> pa.RecordBatch:
    docids, titles, texts, locations, others, left_out = zip(*rows, strict=True)
    counts = [json.dumps([[*key, count] for key, count in left.items()]) if left else None for left in left_out]
    arrays = [
        pa.array([location.number for location in locations]),
        *(pa.array(column, pa.string()) for column in (docids, titles, texts, counts)),
        *map(pa.array, zip(*others, strict=True)),
    ]
    return pa.RecordBatch.from_arrays(arrays, [str(number) for number in range(len(arrays))])


def documents_of(file: File) -> Iterator[Document]:
    """Yield the documents of a file."""
    for batch in file.batches:
        for number, docid, title, text, counts, *others in zip(*(column.to_pylist() for column in batch), strict=True):
            left_out = {(kind, name): count for kind, name, count in json.loads(counts)} if counts else None
            yield Document(docid, title, text, Location(file.path, number, file.unit), tuple(others), left_out)
