"""Training examples and teacher labels to batches: seeded order, seeded draws.

Order and draws depend on (seed, epoch, row) alone: not on workers, and not on where an interrupted training resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import torch
from torch import Tensor

from hybrid_cli import artifacts, draws
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections import collection as collections
from hybrid_cli.config import Imitation, Optimization
from hybrid_cli.errors import InputError
from hybrid_cli.training.labels import Labels


@dataclass(frozen=True)
class Group:
    """A query with its documents for one step: a positive, then the negatives.

    Attributes:
        query: text.
        docids, titles, texts: of the documents, [G].
        lexical: scores of BM25, or of the teacher, [G].
        positives: docids of all relevant documents.
        noise: seed of whatever else is random in the group, such as masks.
    """

    query: str
    docids: list[str]
    titles: list[str]
    texts: list[str]
    lexical: list[float]
    positives: frozenset[str]
    noise: int = 0


class Examples:
    """Training examples that `hybrid mine-negatives` wrote, one row group in memory at a time.

    Args:
        path: Parquet file.

    Raises:
        InputError: not training examples, or none.
    """

    def __init__(self, path: Path):
        self._path = artifacts.check_table(path, Kind.EXAMPLES)
        self._file = pq.ParquetFile(path)
        self._sizes = [self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)]
        if not sum(self._sizes):
            raise InputError(f"{path}: has no training examples")
        self._positives = self._known_positives()

    def __len__(self) -> int:
        """Return the number of examples."""
        return sum(self._sizes)

    def check_lexical(self) -> None:
        """Refuse examples without lexical scores, for objectives that need them."""
        if pq.read_table(self._path, columns=["lexical_score"])["lexical_score"].null_count:
            raise InputError(
                f"{self._path}: has no lexical scores; mine the examples with --index, or train with another --loss"
            )

    def docids(self) -> pl.Series:
        """Return the ids of all documents, each once, sorted."""
        table = self._table("docid", "negatives")
        negatives = table["negatives"].explode(empty_as_null=False).struct.field("docid")
        return pl.concat([table["docid"], negatives.drop_nulls()]).unique().sort()

    def queries(self) -> Iterator[pl.DataFrame]:
        """Yield tables of column `text`: every query once, in the order of the file."""
        yield self._table("query").rename({"query": "text"}).unique(maintain_order=True)

    def documents(self) -> Iterator[pl.DataFrame]:
        """Yield tables of docid, title, text: every document once, in the order of the file."""
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
        """Yield one epoch in shuffled order (row groups, then rows within each), without the first `skip` examples.

        Args:
            epoch: number of the epoch, from 0.
            seed: seed of the training.
            negatives: negatives drawn per example.
            skip: examples to leave out at the beginning.

        Raises:
            InputError: an example has no negatives to draw from.
        """
        starts = np.concatenate([[0], np.cumsum(self._sizes)]).tolist()
        for part, rows in draws.shuffled(self._sizes, seed, epoch, skip=skip):
            table = self._file.read_row_group(part)
            for row in rows:
                chance = draws.rng(seed, epoch, starts[part] + row)
                yield self._draw(table.slice(row, 1).to_pylist()[0], negatives, chance)

    def _draw(self, row: dict[str, Any], negatives: int, chance: np.random.Generator) -> Group:
        pool = row["negatives"] or []
        if not pool and negatives:
            raise InputError(f"{self._path}: query {row['qid']} has no negatives; add random ones (--sources random:N)")
        chosen = [pool[i] for i in chance.choice(len(pool), negatives, replace=len(pool) < negatives)]
        documents = [row, *chosen]
        return Group(
            query=row["query"],
            docids=[document["docid"] for document in documents],
            titles=[document["title"] for document in documents],
            texts=[document["text"] for document in documents],
            lexical=[document["lexical_score"] or 0.0 for document in documents],
            positives=self._positives[row["qid"]],
            noise=int(chance.integers(2**62)),
        )

    def batches(self, plan: Optimization, done: int = 0) -> Iterator[list[Group]]:
        """Yield the batches of all epochs without the first `done`; the last batch of an epoch may be shorter."""
        return _batches(lambda epoch, skip: self.epoch(epoch, plan.seed, plan.negatives, skip), len(self), plan, done)

    def dev_rows(self, most: int) -> list[dict[str, Any]]:
        """Return the first `most` examples with all their negatives, for validation."""
        rows: list[dict[str, Any]] = []
        for part in range(len(self._sizes)):
            rows += self._file.read_row_group(part).slice(0, most - len(rows)).to_pylist()
            if len(rows) >= most:
                break
        return rows


class LabelledQueries:
    """Queries with the passages that a teacher ranked for them (SPAR, section 4.1).

    The first `positives` hits of a query are its positives, the last `negatives` its hard negatives; a step draws one
    positive, and as many negatives as the plan asks for. With the list-wise loss, negatives come from the whole list
    (our choice: the teacher's scores of all of them are known). Queries with a shorter list are dropped (our choice:
    the two groups would overlap). The texts of the corpus are in memory.

    Args:
        folder: output of `hybrid label`.
        corpus: the corpus that was labelled.
        how: positives, negatives and loss.

    Attributes:
        dropped: number of queries that were dropped.
        texts: docid, title, text of the corpus.

    Raises:
        InputError: labels of another corpus, or no list that is long enough.
    """

    def __init__(self, folder: Path, corpus: Path, how: Imitation):
        self._labels, self._how = Labels(folder), how
        least, depth = how.positives + how.negatives, self._labels.depth
        if least > depth:
            raise InputError(
                f"{folder}: has at most {depth} hits per query; --positives {how.positives} and --negatives "
                f"{how.negatives} need {least}; run `hybrid label --depth {least}`, or lower the numbers"
            )
        self.texts = collections.scan(corpus).select("docid", "title", "text").collect()
        self._rows = self.texts.select("docid").with_row_index("row")
        self._kept = [table.select(pl.col("docids").list.len() >= least).to_series() for table in self._labels.tables()]
        self._sizes = [int(kept.sum()) for kept in self._kept]
        self.dropped = sum(len(kept) for kept in self._kept) - sum(self._sizes)
        if not sum(self._sizes):
            raise InputError(f"{folder}: no query has {least} hits, as --positives and --negatives together need")
        self._known(0)  # refuses labels of another corpus before any work

    def __len__(self) -> int:
        """Return the number of queries that are kept."""
        return sum(self._sizes)

    def batches(self, plan: Optimization, done: int = 0) -> Iterator[list[Group]]:
        """Yield the batches of all epochs without the first `done`; the last batch of an epoch may be shorter."""
        return _batches(lambda epoch, skip: self._epoch(epoch, plan.seed, plan.negatives, skip), len(self), plan, done)

    def _epoch(self, epoch: int, seed: int, negatives: int, skip: int) -> Iterator[Group]:
        """Yield one epoch in shuffled order: shards, then queries within each."""
        for shard, places in draws.shuffled(self._sizes, seed, epoch, skip=skip):
            texts, rows, scores = self._known(shard)
            for place in places:
                chance = draws.rng(seed, epoch, shard, place)
                yield self._draw(texts[place], rows[place], scores[place], negatives, chance)

    def _known(self, shard: int) -> tuple[list[str], list[np.ndarray], list[np.ndarray]]:
        """Return text, corpus rows of the hits, and scores of the hits, for each query of a shard that is kept."""
        table = self._labels.read(shard).filter(self._kept[shard])
        hits = table.select("docids").with_row_index("query").explode("docids").rename({"docids": "docid"})
        found = hits.join(self._rows, on="docid", how="left", maintain_order="left")["row"]
        if found.null_count():
            lost = hits["docid"].filter(found.is_null())[0]
            raise InputError(f"{self._labels.folder}: document {lost} is not in the corpus; label this corpus again")
        bounds = np.cumsum(table["docids"].list.len().to_numpy())[:-1]
        scores = table["scores"].explode().to_numpy()
        return table["text"].to_list(), np.split(found.to_numpy(), bounds), np.split(scores, bounds)

    def _draw(
        self, query: str, rows: np.ndarray, scores: np.ndarray, negatives: int, chance: np.random.Generator
    ) -> Group:
        how, size = self._how, len(rows)
        first = chance.integers(how.positives)
        worst = how.negatives if how.loss == "contrastive" else size
        others = size - worst + chance.choice(worst, negatives, replace=worst < negatives)
        places = [int(first), *others.tolist()]
        documents = self.texts[rows[places].tolist()]
        return Group(
            query=query,
            docids=documents["docid"].to_list(),
            titles=documents["title"].to_list(),
            texts=documents["text"].to_list(),
            lexical=scores[places].tolist(),
            positives=frozenset(self.texts["docid"].gather(rows[: how.positives]).to_list()),
            noise=int(chance.integers(2**62)),
        )


def _batches(
    one_epoch: Callable[[int, int], Iterator[Group]], size: int, plan: Optimization, done: int
) -> Iterator[list[Group]]:
    """Yield the batches of all epochs without the first `done`.

    Args:
        one_epoch: (epoch, groups to skip) -> groups.
        size: groups of an epoch.
        plan: epochs and batch size.
        done: batches to leave out.
    """
    steps = -(-size // plan.batch_size)
    for epoch in range(done // steps, plan.epochs):
        skip = (done - epoch * steps) * plan.batch_size if epoch == done // steps else 0
        groups = one_epoch(epoch, skip)
        while batch := list(islice(groups, plan.batch_size)):
            yield batch


def lexical_scores(groups: list[Group]) -> Tensor:
    """Return the lexical scores, [B, G]."""
    return torch.tensor([group.lexical for group in groups], dtype=torch.float32)


def allowed(groups: list[Group]) -> Tensor:
    """Return the in-batch mask [B, B * G]: False where a document of another group is a positive of the query."""
    columns = [docid for group in groups for docid in group.docids]
    mask = torch.tensor([[docid not in group.positives for docid in columns] for group in groups])
    width = len(columns) // len(groups)
    own = torch.arange(len(groups))
    mask[own, own * width] = True
    return mask
