"""Training examples to batches: a seeded order, seeded draws, tokens.

Order and draws depend on (seed, epoch, row) alone, never on workers or on where an interrupted training goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import torch
from torch import Tensor

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind
from hybrid_cli.config import Optimization
from hybrid_cli.errors import InputError


@dataclass(frozen=True)
class Group:
    """A query with its positive and the negatives drawn for this step; `noise` seeds what else is random in it."""

    query: str
    docids: list[str]
    titles: list[str]
    texts: list[str]
    lexical: list[float]
    positives: frozenset[str]
    noise: int = 0


class Examples:
    """A file of training examples, read row group by row group."""

    def __init__(self, path: Path):
        self._path = artifacts.check_table(path, Kind.EXAMPLES)
        self._file = pq.ParquetFile(path)
        self._sizes = [self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)]
        if not sum(self._sizes):
            raise InputError(f"{path}: holds no training examples")
        self._positives = self._known_positives()

    def __len__(self) -> int:
        return sum(self._sizes)

    def check_lexical(self) -> None:
        """Refuse examples that were mined without a lexical index, where an objective needs its scores."""
        if pq.read_table(self._path, columns=["lexical_score"])["lexical_score"].null_count:
            raise InputError(f"{self._path}: has no lexical scores; mine it with --index, or train with another --loss")

    def docids(self) -> pl.Series:
        """Every document that an example names, once."""
        table = self._table("docid", "negatives")
        negatives = table["negatives"].explode(empty_as_null=False).struct.field("docid")
        return pl.concat([table["docid"], negatives.drop_nulls()]).unique().sort()

    def queries(self) -> Iterator[pl.DataFrame]:
        """Tables of column `text`: every query once, in the order of the file."""
        yield self._table("query").rename({"query": "text"}).unique(maintain_order=True)

    def documents(self) -> Iterator[pl.DataFrame]:
        """Tables of docid, title, text: every document that an example names once, in the order of the file."""
        seen = pl.Series("docid", [], pl.String)
        columns = ("docid", "title", "text")
        for part in range(len(self._sizes)):
            rows = pl.from_arrow(self._file.read_row_group(part, columns=[*columns, "negatives"]))
            assert isinstance(rows, pl.DataFrame)
            negatives = rows.select(pl.col("negatives").explode(empty_as_null=False)).unnest("negatives")
            table = pl.concat([rows.select(columns), negatives.select(columns)]).drop_nulls("docid")
            table = table.unique("docid", keep="first", maintain_order=True)
            table = table.filter(~pl.col("docid").is_in(seen.implode()))
            seen = pl.concat([seen, table["docid"]])
            yield table

    def _table(self, *columns: str) -> pl.DataFrame:
        table = pl.from_arrow(pq.read_table(self._path, columns=list(columns)))
        assert isinstance(table, pl.DataFrame)
        return table

    def _known_positives(self) -> dict[str, frozenset[str]]:
        ids = pq.read_table(self._path, columns=["qid", "docid"])
        known: dict[str, set[str]] = {}
        for qid, docid in zip(ids["qid"].to_pylist(), ids["docid"].to_pylist(), strict=True):
            known.setdefault(qid, set()).add(docid)
        return {qid: frozenset(docids) for qid, docids in known.items()}

    def epoch(self, epoch: int, seed: int, negatives: int, skip: int = 0) -> Iterator[Group]:
        """One pass in shuffled order (row groups, then rows within each), from the `skip`-th example on."""
        starts = np.concatenate([[0], np.cumsum(self._sizes)])
        for part in np.random.default_rng([seed, epoch]).permutation(len(self._sizes)):
            size = self._sizes[part]
            if skip >= size:
                skip -= size
                continue
            table = self._file.read_row_group(part)
            order = np.random.default_rng([seed, epoch, int(part)]).permutation(size)
            for row in order[skip:]:
                rng = np.random.default_rng([seed, epoch, int(starts[part] + row)])
                yield self._draw(table.slice(row, 1).to_pylist()[0], negatives, rng)
            skip = 0

    def _draw(self, row: dict[str, Any], negatives: int, rng: np.random.Generator) -> Group:
        pool = row["negatives"] or []
        if not pool and negatives:
            raise InputError(f"{self._path}: query {row['qid']} has no negatives; mine again, or with random ones")
        chosen = [pool[i] for i in rng.choice(len(pool), negatives, replace=len(pool) < negatives)]
        documents = [row, *chosen]
        return Group(
            query=row["query"],
            docids=[document["docid"] for document in documents],
            titles=[document["title"] for document in documents],
            texts=[document["text"] for document in documents],
            lexical=[document["lexical_score"] or 0.0 for document in documents],
            positives=self._positives[row["qid"]],
            noise=int(rng.integers(2**62)),
        )

    def batches(self, plan: Optimization, done: int = 0) -> Iterator[list[Group]]:
        """Batches over all epochs, the last one of an epoch shorter; the first `done` are passed over."""
        steps = -(-len(self) // plan.batch_size)
        for epoch in range(done // steps, plan.epochs):
            skip = (done - epoch * steps) * plan.batch_size if epoch == done // steps else 0
            yield from batched(self.epoch(epoch, plan.seed, plan.negatives, skip), plan.batch_size)

    def dev_rows(self, most: int) -> list[dict[str, Any]]:
        """The first `most` examples with all their negatives, for validation."""
        rows: list[dict[str, Any]] = []
        for part in range(len(self._sizes)):
            rows += self._file.read_row_group(part).slice(0, most - len(rows)).to_pylist()
            if len(rows) >= most:
                break
        return rows


def batched(groups: Iterator[Group], size: int) -> Iterator[list[Group]]:
    """Lists of `size`, the last one shorter."""
    while batch := list(islice(groups, size)):
        yield batch


def lexical_scores(groups: list[Group]) -> Tensor:
    """[B, G] exact lexical scores."""
    return torch.tensor([group.lexical for group in groups], dtype=torch.float32)


def allowed(groups: list[Group]) -> Tensor:
    """[B, B * G]: False where another document of the batch is a positive of the query (a false in-batch negative)."""
    columns = [docid for group in groups for docid in group.docids]
    mask = torch.tensor([[docid not in group.positives for docid in columns] for group in groups])
    width = len(columns) // len(groups)
    own = torch.arange(len(groups))
    mask[own, own * width] = True
    return mask
