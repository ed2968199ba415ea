"""Teacher labels as batches for training a Lambda (SPAR, section 4.1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from hybrid_cli import console, draws
from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import InputError
from hybrid_cli.storage import layout
from hybrid_cli.training.batches import Group, batches
from hybrid_cli.training.labels import Labels
from hybrid_cli.training.options import Imitation
from hybrid_cli.training.teachers import mapped_texts

PIECES = 8  # of a shard, which is read as often in an epoch
SAMPLE = "train on a collection of `prepare --sample`"  # needs less memory and disk space


class LabeledQueries:
    """Queries with the passages that a teacher ranked for them.

    Each step draws one of a query's first `positives` hits and, with the loss `contrastive`, one of the last
    `negatives` hits; with `listwise`, `list_passages` of all hits. Queries with fewer hits than
    `positives` and, with `contrastive`, `negatives` together are dropped.

    Attributes:
        dropped: number of dropped queries.
        texts: docid, title, text of the corpus, memory-mapped.

    Raises:
        InputError: the labels belong to another corpus, or all lists are too short.
    """

    def __init__(self, labels: Labels, corpus: Path, plan: Imitation, work: Path):
        self._labels, self._plan = labels, plan
        bounds = ["positives", *(["negatives"] if plan.loss == "contrastive" else [])]
        least, depth = sum(getattr(plan, name) for name in bounds), self._labels.depth
        if least > depth:
            given = " and ".join(f"--{name} {getattr(plan, name)}" for name in bounds)
            raise InputError(
                f"{labels.folder}: its lists have at most {depth} hits, fewer than the {least} of {given}; pass "
                f"smaller numbers, or `hybrid label --depth {least}`",
                code="out-of-range",
                path=labels.folder,
                value=least,
                limit=depth,
            )
        console.forecast(collections.text_bytes(corpus), "train-lambda: texts", SAMPLE, work / layout.TEXTS)
        self.texts = mapped_texts(work, (pl.DataFrame(pl.from_arrow(part)) for part in collections.documents(corpus)))
        self._rows = self.texts.select("docid").with_row_index("row")
        self._kept = [table.select(pl.col("docids").list.len() >= least).to_series() for table in self._labels.tables()]
        self._sizes = [int(kept.sum()) for kept in self._kept]
        self.dropped = sum(len(kept) for kept in self._kept) - sum(self._sizes)
        if not sum(self._sizes):
            raise InputError(
                f"{labels.folder}: no query has {least} hits; pass a smaller --{' or --'.join(bounds)}",
                code="no-hits",
                path=labels.folder,
                value=least,
            )
        self._known(0)  # checks that the labels belong to this corpus

    def __len__(self) -> int:
        return sum(self._sizes)

    def batches(self, done: int = 0) -> Iterator[list[Group]]:
        """Yield the batches of all epochs from the `done`-th on; the last batch of an epoch may be smaller."""
        return batches(len(self), self._epoch, self._plan, done)

    def _epoch(self, epoch: int, skip: int) -> Iterator[Group]:
        """Yield one epoch in shuffled order: pieces of shards, so that a part of an epoch sees the whole collection."""
        seed = self._plan.seed
        for shard, places in draws.shuffled(self._sizes, seed, epoch, skip=skip, pieces=PIECES):
            texts, rows, scores = self._known(shard)
            for place in places:
                rng = draws.rng(seed, epoch, shard, place)
                yield self._draw(texts[place], rows[place], scores[place], rng)

    def _known(self, shard: int) -> tuple[list[str], list[np.ndarray], list[np.ndarray]]:
        """Return text, corpus rows of the hits, and their scores, for each kept query of a shard."""
        table = self._labels.read(shard).filter(self._kept[shard])
        hits = table.select("docids").with_row_index("query").explode("docids").rename({"docids": "docid"})
        found = hits.join(self._rows, on="docid", how="left", maintain_order="left")["row"]
        if found.null_count():
            lost = hits["docid"].filter(found.is_null())[0]
            raise InputError(
                f"{self._labels.folder}: document {lost} is not in the corpus; label this corpus",
                code="other-corpus",
                path=self._labels.folder,
                id=lost,
            )
        bounds = np.cumsum(table["docids"].list.len().to_numpy())[:-1]
        scores = table["scores"].explode().to_numpy()
        return table["text"].to_list(), np.split(found.to_numpy(), bounds), np.split(scores, bounds)

    def _draw(self, query: str, rows: np.ndarray, scores: np.ndarray, rng: np.random.Generator) -> Group:
        plan, size = self._plan, len(rows)
        listwise = plan.loss == "listwise"
        worst, negatives = (size, plan.list_passages) if listwise else (plan.negatives, 1)
        first = rng.integers(plan.positives)
        others = size - worst + rng.choice(worst, negatives, replace=worst < negatives)
        places = [int(first), *others.tolist()]
        documents = self.texts[rows[places].tolist()]
        return Group(
            query=query,
            docids=documents["docid"].to_list(),
            titles=documents["title"].to_list(),
            texts=documents["text"].to_list(),
            lexical=scores[places].tolist(),
            positives=frozenset(self.texts["docid"].gather(rows[: plan.positives]).to_list()),
            noise=int(rng.integers(2**62)),
        )
