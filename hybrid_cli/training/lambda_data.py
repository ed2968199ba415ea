"""Teacher labels to batches: each query with one of the teacher's best passages and one of its worst (SPAR, 7.1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from hybrid_cli.collections import collection as collections
from hybrid_cli.config import Imitation, Optimization
from hybrid_cli.errors import InputError
from hybrid_cli.training.batches import Group, batched
from hybrid_cli.training.labels import Labels


class LabelledQueries:
    """Queries with the passages that a teacher ranked for them.

    A query's first `positives` hits are its positives, the last `negatives` of its list its hard negatives; each step
    draws one of these and as many of those as the plan says. Queries whose list is too short are left out. The texts
    of the corpus are held in memory.

    Attributes:
        dropped: how many queries were left out.
        texts: docid, title, text of the corpus.

    Raises:
        InputError: the labels are of another corpus, or none has a list long enough.
    """

    def __init__(self, folder: Path, corpus: Path, how: Imitation):
        self._labels, self._how = Labels(folder), how
        least, depth = how.positives + how.negatives, self._labels.depth
        if least > depth:
            raise InputError(
                f"{folder}: its lists have {depth} hits at most, --positives {how.positives} and --negatives "
                f"{how.negatives} need {least}; label with --depth {least} or more, or ask for fewer"
            )
        self.texts = collections.scan(corpus).select("docid", "title", "text").collect()
        self._rows = self.texts.select("docid").with_row_index("row")
        self._kept = [table.select(pl.col("docids").list.len() >= least).to_series() for table in self._labels.tables()]
        self._sizes = [int(kept.sum()) for kept in self._kept]
        self.dropped = sum(len(kept) for kept in self._kept) - sum(self._sizes)
        if not sum(self._sizes):
            raise InputError(f"{folder}: no query has {least} hits, as --positives and --negatives need together")
        self._known(0)  # refuses labels of another corpus before any work

    def __len__(self) -> int:
        return sum(self._sizes)

    def batches(self, plan: Optimization, done: int = 0) -> Iterator[list[Group]]:
        """Batches over all epochs, the last one of an epoch shorter; the first `done` are passed over."""
        steps = -(-len(self) // plan.batch_size)
        for epoch in range(done // steps, plan.epochs):
            skip = (done - epoch * steps) * plan.batch_size if epoch == done // steps else 0
            yield from batched(self._epoch(epoch, plan.seed, plan.negatives, skip), plan.batch_size)

    def _epoch(self, epoch: int, seed: int, negatives: int, skip: int) -> Iterator[Group]:
        """One pass in shuffled order: shards, then queries within each."""
        for shard in np.random.default_rng([seed, epoch]).permutation(len(self._sizes)).tolist():
            size = self._sizes[shard]
            if skip >= size:
                skip -= size
                continue
            order = np.random.default_rng([seed, epoch, shard]).permutation(size)
            texts, rows, scores = self._known(shard)
            for place in order[skip:].tolist():
                rng = np.random.default_rng([seed, epoch, shard, place])
                yield self._draw(texts[place], rows[place], scores[place], negatives, rng)
            skip = 0

    def _known(self, shard: int) -> tuple[list[str], list[np.ndarray], list[np.ndarray]]:
        """Text, corpus rows of the hits, and their scores, for each query of a shard that is kept."""
        table = self._labels.read(shard).filter(self._kept[shard])
        hits = table.select("docids").with_row_index("query").explode("docids").rename({"docids": "docid"})
        found = hits.join(self._rows, on="docid", how="left", maintain_order="left")["row"]
        if found.null_count():
            lost = hits["docid"].filter(found.is_null())[0]
            raise InputError(f"{self._labels.folder}: names document {lost}, which the corpus lacks; label this corpus")
        bounds = np.cumsum(table["docids"].list.len().to_numpy())[:-1]
        scores = table["scores"].explode().to_numpy()
        return table["text"].to_list(), np.split(found.to_numpy(), bounds), np.split(scores, bounds)

    def _draw(
        self, query: str, rows: np.ndarray, scores: np.ndarray, negatives: int, rng: np.random.Generator
    ) -> Group:
        how, size = self._how, len(rows)
        first = rng.integers(how.positives)
        worst = how.negatives if how.loss == "contrastive" else size  # list-wise, any of the list
        others = size - worst + rng.choice(worst, negatives, replace=worst < negatives)
        places = [int(first), *others.tolist()]
        documents = self.texts[rows[places].tolist()]
        return Group(
            query=query,
            docids=documents["docid"].to_list(),
            titles=documents["title"].to_list(),
            texts=documents["text"].to_list(),
            lexical=scores[places].tolist(),
            positives=frozenset(self.texts["docid"].gather(rows[: how.positives]).to_list()),
            noise=int(rng.integers(2**62)),
        )
