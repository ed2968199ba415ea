"""Titles and texts of documents by id, in a memory-mapped file: a few documents are read without the others."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from hybrid_cli.collections import collection as collections
from hybrid_cli.runs import SortedIds
from hybrid_cli.storage import SCHEMAS, Kind


class TextStore:
    """The documents of corpora; a later corpus replaces the documents of earlier ones.

    The file is made on first use, among the temporary files, without a name: it goes with the process.
    """

    def __init__(self, corpora: Sequence[Path]) -> None:
        self.corpora = tuple(corpora)

    def texts(self, docids: pl.Series) -> pl.DataFrame:
        """Return docid, title and text of documents, in the given order; both are null for unknown ids."""
        rows, known = self._ids.find(docids)
        batches = np.searchsorted(self._begins, rows, "right") - 1
        at = list(zip(batches.tolist(), (rows - self._begins[batches]).tolist(), known.tolist(), strict=True))
        values = {
            name: [self._batches[batch].column(name)[row].as_py() if there else None for batch, row, there in at]
            for name in ("title", "text")
        }
        return pl.DataFrame({"docid": docids, **values}, schema_overrides={"title": pl.String, "text": pl.String})

    @cached_property
    def _batches(self) -> list[pa.RecordBatch]:
        with tempfile.NamedTemporaryFile() as file:
            with pa.ipc.new_file(file, SCHEMAS[Kind.CORPUS]) as writer:
                for corpus in self.corpora:
                    for batch in collections.documents(corpus):
                        writer.write_batch(batch)
            file.flush()
            reader = pa.ipc.open_file(pa.memory_map(file.name))
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]

    @cached_property
    def _begins(self) -> np.ndarray:
        """Number [B] of the first document of each batch."""
        return np.cumsum([0, *(len(batch) for batch in self._batches[:-1])])

    @cached_property
    def _ids(self) -> SortedIds:
        batches = [pl.Series(pl.from_arrow(batch.column("docid"))) for batch in self._batches]
        docids = pl.concat([pl.Series(dtype=pl.String), *batches])
        if len(self.corpora) == 1:
            return SortedIds(docids)
        last = docids.is_last_distinct()
        return SortedIds(docids.filter(last), last.arg_true())
