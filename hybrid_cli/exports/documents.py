"""Documents with BM25 impacts and dense vectors, as every search engine gets them.

The inner product of a query's term frequencies with a document's impacts is the BM25 score, up to the rounding of the
engine's sum.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from hybrid_cli import console
from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import path_error
from hybrid_cli.indexes.dense import DenseIndex
from hybrid_cli.indexes.options import FLAT
from hybrid_cli.lexical.impacts import DocumentImpacts
from hybrid_cli.lexical.index import LexicalIndex

Rows: TypeAlias = npt.NDArray[np.int32]
_BATCH = 2048  # documents, and queries, at once
_TAKEN = {"docid", "title", "text", "bm25", "contents", "document", "impacts", "indices", "terms", "values"}  # fields


@dataclass(frozen=True)
class Served:
    """Indexes and texts of the same documents.

    Attributes:
        lexical: the lexical index.
        fields: indexed fields of a document, each as often as its weight.
        corpora: corpora of the documents; a later one replaces documents of earlier ones.
        work: folder for the impacts by document, which are memory-mapped.
        dense: field name -> dense index of the same documents.
    """

    lexical: LexicalIndex
    fields: Sequence[str]
    corpora: Sequence[Path]
    work: Path
    dense: Mapping[str, DenseIndex] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse a dense index of other documents, or of sign codes.

        Raises:
            InputError: see above.
        """
        for index in self.dense.values():
            ours, theirs = self.lexical.docids, index.docids
            if len(ours) != len(theirs) or not (ours.equals(theirs) or ours.is_in(theirs.implode()).all()):
                problem = "other documents than the lexical index; encode the same corpus"
                raise path_error(index.folder, problem, code="other-corpus")
            if index.binary:
                problem = "sign codes, which no engine scores so; encode with --index-type"
                raise path_error(index.folder, problem, code="other-index-type")

    def documents(self, impacts: bool = True) -> Iterator[pl.DataFrame]:
        """Yield docid, title, text, metadata, indices and values of impacts, and vectors, in the order of the corpora.

        Args:
            impacts: with indices and values.

        Raises:
            InputError: the corpora lack a document.
        """
        for frame, rows in self.texts():
            yield frame.with_columns(self._vectors(rows, impacts))

    def texts(self) -> Iterator[tuple[pl.DataFrame, Rows]]:
        """Yield docid, title, text and metadata, and the rows of these documents in the lexical index.

        Raises:
            InputError: the corpora lack a document.
        """
        count = 0
        for corpus, rows in zip(self.corpora, self._rows(), strict=True):
            begin, metadata = 0, collections.metadata(corpus, self.metadata).drop("docid")
            for batch in collections.documents(corpus, _BATCH):
                own, others = rows[begin : begin + len(batch)], metadata.slice(begin, len(batch))
                begin += len(batch)
                frame = pl.DataFrame(pl.from_arrow(batch)).hstack(others).filter(own >= 0)
                count += len(frame)
                if len(frame):
                    yield frame, own[own >= 0]
        if count < (total := len(self.lexical.docids)):
            lost = console.counted(document=total - count)
            problem = f"no texts of {lost}; pass the collection of the index with --collection"
            raise path_error(self.corpora[-1], problem, code="other-corpus")

    def rows(self, impacts: bool = True) -> Iterator[dict[str, Any]]:
        """Yield the rows of `documents`."""
        for frame in self.documents(impacts):
            yield from frame.iter_rows(named=True)

    def _rows(self) -> list[Rows]:
        """Return, for each corpus, the rows of its documents in the lexical index; -1 for others and replaced ones."""
        known, later, tables = self.lexical.docids, pl.Series([], dtype=pl.String), []
        for corpus in reversed(self.corpora):
            mine = collections.docids(corpus)
            rows = _positions(mine, known)
            if len(later):
                rows[mine.is_in(later.implode()).to_numpy()] = -1
            tables.append(rows)
            later = pl.concat([later, mine]) if len(tables) < len(self.corpora) else later
        return tables[::-1]

    def _vectors(self, rows: Rows, impacts: bool) -> list[pl.Series]:
        columns = _sparse(self._impacts.rows(rows.astype(np.int64))) if impacts else []
        for name, index in self.dense.items():
            columns.append(_dense(name, index.vectors_of(self._dense_rows[name][rows].astype(np.int64))))
        return columns

    @cached_property
    def _dense_rows(self) -> dict[str, Rows]:
        """Return, for each dense index, the row in it of each document of the lexical one."""
        return {name: _positions(self.lexical.docids, index.docids) for name, index in self.dense.items()}

    @cached_property
    def _impacts(self) -> DocumentImpacts:
        return self.lexical.impacts.by_document(self.work)

    def queries(self, queries: pl.DataFrame, encoders: Mapping[str, Any]) -> pl.DataFrame:
        """Return qid, text, indices and values (term frequencies), and vectors, for queries (qid, text)."""
        texts = queries["text"].to_list()
        columns = _sparse(self.lexical.query_matrix(texts))
        columns += [_dense(name, encoder.encode_queries(texts)) for name, encoder in encoders.items()]
        return queries.select("qid", "text").with_columns(columns)

    def with_terms(self, queries: pl.DataFrame) -> Iterator[dict[str, Any]]:
        """Yield the rows of queries (see `queries`) with `terms`: term -> frequency."""
        terms = self.terms
        for row in queries.iter_rows(named=True):
            yield {**row, "terms": dict(zip(terms.gather(row["indices"]), row["values"], strict=True))}

    @cached_property
    def metadata(self) -> dict[str, pl.DataType]:
        """Columns of the corpora besides id, title and text, with their types: texts, numbers or booleans.

        A column with the name of another field, or of an indexed one, is left out.
        """
        taken = {*_TAKEN, *self.fields, *self.dense}
        schemas = [collections.metadata_schema(corpus).items() for corpus in self.corpora]
        return {name: kind for schema in schemas for name, kind in schema if name not in taken}

    @property
    def dims(self) -> dict[str, int]:
        """Field name -> dimensions of its vectors."""
        return {name: index.dim for name, index in self.dense.items()}

    def exact(self, name: str) -> bool:
        """Return whether the index of a field finds the nearest vectors exactly."""
        return self.dense[name].info.factory == FLAT

    def unit(self, name: str) -> bool:
        """Return whether the vectors of a field have length 1."""
        return bool(self.dense[name].info.contract.get("normalize"))

    @property
    def terms(self) -> pl.Series:
        """Terms by id."""
        return self.lexical.impacts.postings.terms


def _positions(ids: pl.Series, known: pl.Series) -> Rows:
    """Return the position of each id in `known`, whose ids are distinct; -1 for unknown ids."""
    if ids.equals(known):
        return np.arange(len(ids), dtype=np.int32)
    rows = pl.LazyFrame({"id": known}).with_row_index("at")
    joined = pl.LazyFrame({"id": ids}).join(rows, on="id", how="left", maintain_order="left")
    return joined.select(pl.col("at").cast(pl.Int32).fill_null(-1)).collect()["at"].to_numpy().copy()


def _sparse(matrix: Any) -> list[pl.Series]:
    """Return the lists `indices` and `values` of the rows of a CSR matrix."""
    matrix.sort_indices()
    ends = pa.array(matrix.indptr.astype(np.int32))
    parts = {"indices": matrix.indices.astype(np.int32), "values": matrix.data.astype(np.float32)}
    return [pl.Series(name, pl.from_arrow(pa.ListArray.from_arrays(ends, part))) for name, part in parts.items()]


def _dense(name: str, vectors: np.ndarray) -> pl.Series:
    return pl.Series(name, np.ascontiguousarray(vectors, np.float32))


def write_line(file: Any, record: Mapping[str, Any]) -> None:
    """Write a line of JSON."""
    file.write(json.dumps(record, ensure_ascii=False) + "\n")
