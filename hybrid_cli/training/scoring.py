"""Scores of a reranker for all documents of training examples, in shards on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl
import pyarrow as pa

from hybrid_cli import console
from hybrid_cli.encoders.cross_encoder import Reranker
from hybrid_cli.encoders.reranking import write_scores
from hybrid_cli.errors import path_error
from hybrid_cli.storage import SCHEMAS, Kind, layout
from hybrid_cli.training.batches import Examples

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
            scores = (part.select(_PAIR).with_columns(new=_read_scores(path)) for path, part in parts)
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


def _read_scores(path: Path) -> pl.Series:
    return pl.read_parquet(path, glob=False, columns=["score"])["score"]


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
