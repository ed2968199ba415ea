"""Frozen models: vectors of the training texts, and scores of every query and document of a batch.

The scores of a scorer (BM25, a Lambda, an ensemble) enter a residual loss, which trains the weighted sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import torch
from torch import Tensor, nn

from hybrid_cli import console, draws, storage
from hybrid_cli.encoders.contract import Encoder
from hybrid_cli.encoders.cross_encoder import Reranker, write_scores
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.indexes.dense import DenseIndex
from hybrid_cli.lexical.impacts import DocumentImpacts
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.runs.index import Index
from hybrid_cli.storage import SCHEMAS, Kind, disk, layout
from hybrid_cli.training import parallel
from hybrid_cli.training.batches import Examples, Group
from hybrid_cli.training.options import ScorerSchedule

BLOCK_TEXTS = 2048  # texts per file, the maximum that an interruption loses

Floats = npt.NDArray[np.float32]


# Scores [B, N] of the positive and the mined negatives, or [B, B * G] of all documents of the batch
TeacherScores = Callable[[list[Group]], Floats]


class Scorer(Protocol):
    """A frozen model that scores pairs of a query and a document."""

    def scores(self, queries: Sequence[str], docids: Sequence[str]) -> Floats:
        """Return the scores [n, m] of every query and every document."""


class Bm25Scorer:
    """BM25 scores from the impacts of a lexical index by document.

    Args:
        index: lexical index.
        docids: all documents that will be requested; only their impacts are held.

    Raises:
        InputError: a document is not in the index.
    """

    def __init__(self, index: LexicalIndex, docids: pl.Series):
        self.index = index
        try:
            impacts = index.rows(docids)
        except InputError as error:
            raise InputError(f"{error}; pass the --index of the examples", code="other-index", **error.fields) from None
        self._impacts, self._row_by_docid = impacts, dict(zip(docids.to_list(), range(len(docids)), strict=True))

    def scores(self, queries: Sequence[str], docids: Sequence[str]) -> Floats:
        """Return exact BM25 scores [n, m] of every query and every document, by one sparse product."""
        scores: Floats = (self.index.query_matrix(queries) @ self.rows(docids).T).toarray().astype(np.float32)
        return scores

    def rows(self, docids: Sequence[str]) -> Any:
        """Return the impacts of documents, scipy CSR [m, V]."""
        return self._impacts[[self._row_by_docid[docid] for docid in docids]]


class PostingsScorer:
    """BM25 scores of any documents of a lexical index, found in the postings of the terms of the queries.

    Nothing but the sorted ids is held. A query costs at most one binary search per term and document.

    Args:
        index: lexical index.
    """

    def __init__(self, index: LexicalIndex):
        self.index, self._rows_of = index, row_finder(index.docids)

    def scores(self, queries: Sequence[str], docids: Sequence[str]) -> Floats:
        """Return exact BM25 scores [n, m] of every query and every document.

        Raises:
            InputError: a document is not in the index.
        """
        from hybrid_cli.lexical import kernels

        rows, columns = np.unique(self._rows_of(docids), return_inverse=True)
        matrix = np.zeros((len(queries), len(rows)))
        kernels.score_every(rows, *self.index.kernel_arguments(self.index.bags(queries)), matrix)
        scores: Floats = matrix[:, columns].astype(np.float32)
        return scores


@dataclass(frozen=True)
class IndexScorer:
    """Scores of any index that scores pairs.

    Attributes:
        index: the index.
    """

    index: Index

    def scores(self, queries: Sequence[str], docids: Sequence[str]) -> Floats:
        """Return the scores [n, m] of every query and every document."""
        prepared = self.index.prepare(pl.DataFrame({"qid": map(str, range(len(queries))), "text": queries}))
        rows = self.index.documents.rows(pl.Series(docids, dtype=pl.String))
        pairs = np.repeat(np.arange(len(queries)), len(rows)), np.tile(rows, len(queries))
        return self.index.scores(prepared, *pairs).astype(np.float32).reshape(len(queries), len(docids))


def row_finder(docids: pl.Series) -> Callable[[Sequence[str]], npt.NDArray[np.int64]]:
    """Return a function from a few docids to their rows, by binary search: 8 bytes and the id per document.

    `runs.positions` reads all known ids in each call, which suits one call for a whole table. A training step asks for
    the few documents of a batch, so this function sorts the ids of the index once.
    """
    order = docids.arg_sort()
    known, rows = docids.gather(order), order.to_numpy().astype(np.int64)

    def find(wanted: Sequence[str]) -> npt.NDArray[np.int64]:
        ids = pl.Series(wanted, dtype=pl.String)
        positions = known.search_sorted(ids)
        ids_at = known.gather(positions.clip(0, len(known) - 1))
        if not ids_at.equals(ids):
            unknown = ids.filter(ids_at != ids)[0]
            raise InputError(f"the lexical index has no document {unknown}", code="unknown-id", id=unknown)
        chosen: npt.NDArray[np.int64] = rows[positions.to_numpy()]
        return chosen

    return find


def mapped_impacts(index: LexicalIndex, work: Path) -> DocumentImpacts:
    """Return the impacts of all documents, memory-mapped from a file in `work` that the first process writes."""
    for _ in parallel.first_alone():
        impacts = index.impacts.by_document(work / layout.DOCUMENT_IMPACTS)
    return impacts


def mapped_texts(work: Path, tables: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return tables with docid, title and text as one, memory-mapped from a file that the first process writes.

    Args:
        work: folder of the unfinished artifact, where the file is stored.
        tables: read once, unless the file exists.
    """
    file = work / layout.TEXTS
    for first in parallel.first_alone():
        if first and not file.exists():
            with storage.replacing(file) as scratch, disk.create(scratch) as opened:
                _write_arrow(opened, tables)
    mapped = pa.ipc.open_file(pa.memory_map(str(file))).read_all()  # polars reads the file into memory
    return pl.DataFrame(pl.from_arrow(mapped, rechunk=False))


def _write_arrow(file: Any, tables: Iterable[pl.DataFrame]) -> None:
    """Write tables in the layout that polars holds in memory, so that it can map them."""
    writer = None
    for table in tables:
        rows = table.to_arrow(compat_level=pl.CompatLevel.newest())
        writer = writer or pa.ipc.new_file(file, rows.schema)
        writer.write_table(rows)
    if writer is not None:
        writer.close()


class Texts(Protocol):
    """Texts of a training, such as those of examples."""

    def queries(self) -> Iterable[pl.DataFrame]:
        """Return tables with the column `text`: every query once."""

    def documents(self) -> Iterable[pl.DataFrame]:
        """Return tables of docid, title, text: every document once."""


@dataclass(frozen=True)
class MappedTexts:
    """The queries of examples, with documents in one table.

    Attributes:
        examples: the examples.
        texts: docid, title, text; memory-mapped.
    """

    examples: Examples
    texts: pl.DataFrame

    def queries(self) -> Iterable[pl.DataFrame]:
        """Return tables with the column `text`: every query once."""
        return self.examples.queries()

    def documents(self) -> Iterable[pl.DataFrame]:
        """Return the table."""
        return [self.texts]

    def check(self, corpus: Path) -> None:
        """Refuse a corpus that lacks a document of the examples."""
        docids = self.examples.docids()
        unknown = docids.filter(~docids.is_in(self.texts["docid"].implode()))
        if len(unknown):
            problem = f"has no document {unknown[0]} of {self.examples.path}; pass the --collection of the examples"
            raise path_error(corpus, problem, code="other-corpus", id=unknown[0], count=len(unknown))


def stored_scores(groups: list[Group]) -> Floats:
    """Return the scores [B, N] of a teacher that the examples store."""
    return np.array([group.teacher for group in groups], np.float32)


class FrozenEncoder:
    """The vectors of a frozen encoder, such as a Lambda or an ensemble; every text of the examples is encoded once.

    Args:
        encoder: the encoder.
        examples: training examples.
        work: folder of the unfinished artifact, where the vectors are stored for resuming.
        role: name of the encoder in this folder.
        index: dense index of this encoder with the vectors of the documents.

    Raises:
        InputError: a document is not in the index.
    """

    def __init__(self, encoder: Encoder, examples: Texts, work: Path, role: str = "", index: DenseIndex | None = None):
        self.dim = encoder.dim

        def of_documents(part: pl.DataFrame) -> Floats:
            if index is not None:
                return index.vectors_of(index.documents.rows(part["docid"]))
            return encoder.encode_documents(part["title"].to_list(), part["text"].to_list())

        for _ in parallel.first_alone():
            with console.progress("encode with the frozen model", unit="texts") as advance:
                self._queries, self._query_rows = stored_vectors(
                    work,
                    f"{role}queries",
                    examples.queries(),
                    lambda part: encoder.encode_queries(part["text"].to_list()),
                    advance,
                )
                self._documents, self._document_rows = stored_vectors(
                    work, f"{role}documents", examples.documents(), of_documents, advance
                )

    def scores(self, queries: Sequence[str], docids: Sequence[str]) -> Floats:
        """Return the scores [n, m] of every query and every document."""
        rows = [self._document_rows[docid] for docid in docids]
        scores: Floats = self._queries[[self._query_rows[query] for query in queries]] @ self._documents[rows].T
        return scores

    def own_scores(self, groups: list[Group]) -> Floats:
        """Return the scores [B, N] of the positive and the mined negatives of each query."""
        mined = [[self._document_rows[docid] for docid in group.docids[: len(group.teacher)]] for group in groups]
        scores: Floats = np.einsum("bd,bgd->bg", self.queries(groups), self._documents[mined])
        return scores

    def batch_scores(self, groups: list[Group]) -> Floats:
        """Return the scores [B, B * G] of every query and every document of a batch."""
        scores: Floats = self.queries(groups) @ self.documents(groups).reshape(-1, self.dim).T
        return scores

    def queries(self, groups: list[Group]) -> Floats:
        """Return vectors [B, dim]."""
        return self._queries[[self._query_rows[group.query] for group in groups]]

    def documents(self, groups: list[Group]) -> Floats:
        """Return vectors [B, G, dim]."""
        return self._documents[[[self._document_rows[docid] for docid in group.docids] for group in groups]]


def stored_vectors(
    work: Path,
    role: str,
    tables: Iterable[pl.DataFrame],
    encode: Callable[[pl.DataFrame], np.ndarray],
    advance: Callable[[int], None],
) -> tuple[Floats, dict[str, int]]:
    """Encode all rows of tables, or read the vectors of an interrupted call.

    Args:
        work: folder of the unfinished artifact, where the vectors are stored.
        role: name of the vectors.
        tables: texts, with an id or text in the first column.
        encode: maps a table to vectors [n, dim].
        advance: reports progress in rows.

    Returns:
        Vectors [n, dim] of all rows, memory-mapped from a file; row numbers of the values of the first column.
    """
    folder = work / layout.FROZEN
    folder.mkdir(exist_ok=True)
    whole, files = folder / f"{role}.npy", list[Path]()
    rows: dict[str, int] = {}
    for part in (part for table in tables for part in table.iter_slices(BLOCK_TEXTS)):
        file = folder / f"{role}-{len(files):06}.npy"
        if not whole.exists() and not file.exists():
            with storage.replacing(file) as scratch, disk.create(scratch) as opened:
                np.save(opened, encode(part))
        files.append(file)
        rows.update(zip(part.to_series(0).to_list(), range(len(rows), len(rows) + len(part)), strict=True))
        advance(len(part))
    if not whole.exists():
        with storage.replacing(whole) as scratch, disk.create(scratch) as opened:
            _join(files, len(rows), opened)
        for file in files:
            disk.remove(file)
    return np.load(whole, mmap_mode="r"), rows


def _join(files: Sequence[Path], rows: int, opened: Any) -> None:
    """Write the arrays of several files, one after the other, as one array."""
    first = np.load(files[0], mmap_mode="r")
    header = {"descr": first.dtype.str, "fortran_order": False, "shape": (rows, first.shape[1])}
    np.lib.format.write_array_header_1_0(opened, header)
    for file in files:
        opened.write(np.ascontiguousarray(np.load(file)).data)


class ScorerWeight(nn.Module):
    """Weight of the scorer in the sum `s / temperature + weight * s_scorer`, over the steps of a training.

    Schedules (our choices, except `learned`; SPAR, section 4.2): `fixed` is `value` in every step. `anneal` rises
    linearly from 0 in the first step, where the model learns alone, to `value` in the last one. `random` is uniform
    between 0 and `value` for each batch, so that the model suits many weights. `learned` is
    `value * exp(1000 * logarithm)`: a learning rate of 2e-5 changes the weight by at most 2% per step, one of 3e-4 by
    35%. Its gradient is clipped apart from that of the encoder, which is far smaller (`loop.Trainer`).

    Args:
        value: see above.
        schedule: name of the schedule.
        steps: number of optimizer steps.
    """

    def __init__(self, value: float, schedule: ScorerSchedule = "fixed", steps: int = 1):
        super().__init__()
        self.value, self.schedule, self.steps = value, schedule, steps
        self.logarithm = nn.Parameter(torch.zeros(())) if schedule == "learned" else None

    def forward(self, step: int, noise: int) -> Tensor:
        """Return the weight, a scalar, of a batch in optimizer step `step`; `noise` seeds its random draws."""
        if self.logarithm is not None:
            return self.value * torch.exp(1000 * self.logarithm)
        share = 1.0
        if self.schedule == "anneal":
            share = step / max(1, self.steps - 1)
        elif self.schedule == "random":
            share = draws.generator(noise, "scorer weight").random()
        return torch.tensor(self.value * share)


# ---------------------------------------------------------------------------------------------------------- rerankers


SHARD_PAIRS = 4096  # the maximum that an interruption loses
_PAIR = ["qid", "docid"]
_NO_SCORES = pl.DataFrame(schema={"qid": pl.String, "docid": pl.String, "new": pl.Float32})


@dataclass
class ScoredExamples:
    """Training examples with the scores of a reranker.

    Attributes:
        examples: the examples.
        folder: folder of the shards.
        load: opens the reranker.
        shard_size: pairs per shard.
        batch_tokens: tokens per batch, padding included; None for the default of the device.
        qids: queries whose documents are scored; None for all.
    """

    examples: Examples
    folder: Path
    load: Callable[[], Reranker]
    shard_size: int = SHARD_PAIRS
    batch_tokens: int | None = None
    qids: pl.Series | None = None

    @cached_property
    def _model(self) -> Reranker:
        return self.load()

    def score(self) -> int:
        """Write the missing shards, each pair of a row group once; return the number of pairs.

        Raises:
            InputError: no example has a query of `qids`, or a document has a score already.
            HybridError: a score is not finite.
        """
        self.folder.mkdir(exist_ok=True)
        pairs = 0
        with console.progress("score the examples", unit="pairs") as advance:
            for _, parts in self._parts():
                for path, part in parts:
                    if not path.exists():
                        write_scores(path, part, self._model, self.batch_tokens)
                    advance(len(part))
                    pairs += len(part)
        if not pairs:
            problem = "has none of these queries; pass the queries of some of its examples"
            raise path_error(self.examples.path, problem, code="other-queries")
        return pairs

    def tables(self) -> Iterator[pa.Table]:
        """Yield the examples with the scores of the shards."""
        for rows, parts in self._parts():
            new = ((part, pl.read_parquet(path, glob=False)["score"]) for path, part in parts)
            scores = (part.select(_PAIR).with_columns(new=values) for part, values in new)
            scored = _with_scores(rows, pl.concat([_NO_SCORES, *scores]))
            yield scored.to_arrow(compat_level=pl.CompatLevel.oldest())

    def _parts(self) -> Iterator[tuple[pl.DataFrame, list[tuple[Path, pl.DataFrame]]]]:
        """Yield the row groups of the examples, and the paths and pairs of their shards."""
        number = 0
        for rows in self.examples.tables():
            parts = []
            for part in self._pairs(rows).iter_slices(self.shard_size):
                parts.append((self.folder / layout.part(number), part))
                number += 1
            yield rows, parts

    def _pairs(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the pairs to score: qid, query, docid, title, text."""
        if self.qids is not None:
            rows = rows.filter(pl.col("qid").is_in(self.qids.implode()))
        names = ["qid", "query", "docid", "title", "text"]
        pairs = pl.concat([rows.select(names), _negatives(rows).select(names)])
        return pairs.unique(_PAIR, keep="first", maintain_order=True)


def _negatives(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per negative: example, qid, query, and the fields of the negative."""
    exploded = rows.select("qid", "query", "negatives").with_row_index("example")
    return exploded.explode("negatives", empty_as_null=False).unnest("negatives").drop_nulls("docid")


def _with_scores(rows: pl.DataFrame, scores: pl.DataFrame) -> pl.DataFrame:
    """Return examples with new scores (qid, docid, new); others keep their score."""

    def scored(documents: pl.DataFrame) -> pl.DataFrame:
        old = pl.lit(None, pl.Float32) if "teacher_score" not in documents.columns else pl.col("teacher_score")
        joined = documents.join(scores, on=_PAIR, how="left", maintain_order="left")
        return joined.with_columns(teacher_score=pl.coalesce("new", old)).drop("new")

    fields = SCHEMAS[Kind.EXAMPLES].field("negatives").type.value_type
    lists = (
        scored(_negatives(rows))
        .group_by("example", maintain_order=True)
        .agg(negatives=pl.struct([field.name for field in fields]))
    )
    numbered = scored(rows.drop("negatives")).with_row_index("example")
    joined = numbered.join(lists, on="example", how="left", maintain_order="left")
    return joined.with_columns(pl.col("negatives").fill_null([])).drop("example")
