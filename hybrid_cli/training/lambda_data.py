"""Data of `train-lambda` (SPAR, section 4.1): teacher labels as batches, and a small pool for validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from hybrid_cli import draws, runs
from hybrid_cli.collections import collection as collections
from hybrid_cli.encoders.contract import Encoder
from hybrid_cli.errors import option_error, path_error
from hybrid_cli.evaluation.complementarity import rbo
from hybrid_cli.training.batches import Group, batches
from hybrid_cli.training.labels import Labels
from hybrid_cli.training.options import Imitation
from hybrid_cli.training.teachers import mapped_texts


@dataclass(frozen=True)
class SurrogatePool:
    """A small pool in place of the corpus: the teacher's top passage and one hard negative of each dev query (SPAR,
    section 4.1). N queries have 2N passages.

    Attributes:
        queries: qid, text.
        documents: docid, title, text.
        own: [N] position of each query's top passage among the documents.
        teacher: the teacher's ranking of the documents of the pool, as a run.
    """

    queries: pl.DataFrame
    documents: pl.DataFrame
    own: Sequence[int]
    teacher: pl.DataFrame

    @classmethod
    def of(
        cls,
        queries: pl.DataFrame,
        hits: pl.DataFrame,
        texts: Callable[[pl.Series], pl.DataFrame],
        score: Callable[[pl.DataFrame], pl.Series] | None = None,
        negatives: int = Imitation.negatives,
        seed: int = Imitation.seed,
    ) -> SurrogatePool:
        """Draw the pool.

        Args:
            queries: qid, text.
            hits: the teacher's run of these queries; the negative is one of the last `negatives` hits.
            texts: maps docids to docid, title, text.
            score: maps pairs (qid, docid) to the teacher's scores; None ranks only the hits of the run.
            negatives: number of bottom-ranked hits.
            seed: random seed.

        Raises:
            InputError: no query has two hits.
        """
        lists = hits.sort("qid", "rank").group_by("qid", maintain_order=True).agg("docid")
        lists = queries.join(lists, on="qid", maintain_order="left").filter(pl.col("docid").list.len() > 1)
        if not len(lists):
            raise option_error("dev", None, "no query has two hits of the teacher; use another split", code="no-hits")
        rng = draws.rng(seed)
        drawn = []
        for docids in lists["docid"].to_list():
            worst = docids[1:][-negatives:]
            drawn.append((docids[0], worst[rng.integers(len(worst))]))
        pool = pl.Series("docid", [docid for pair in drawn for docid in pair]).unique(maintain_order=True)
        documents = pool.to_frame().join(texts(pool), on="docid", maintain_order="left")
        row_of = {docid: row for row, docid in enumerate(pool)}
        asked = lists.select("qid", "text")
        if score is None:
            ranked = hits.filter(pl.col("docid").is_in(pool.implode())).select("qid", "docid", "score")
        else:
            ranked = asked.select("qid").join(pool.to_frame(), how="cross")
            ranked = ranked.with_columns(score(ranked).alias("score")).filter(pl.col("score") > 0)
        return cls(asked, documents, [row_of[best] for best, _ in drawn], runs.ranked(ranked, len(pool)))

    def measure(self, encoder: Encoder) -> dict[str, float]:
        """Return `dev_MRR` of each query's own passage in the pool, with ties counted against it, and `dev_RBO`, the
        overlap with the teacher's ranking.
        """
        queries = encoder.encode_queries(self.queries["text"].to_list())
        documents = encoder.encode_documents(self.documents["title"].to_list(), self.documents["text"].to_list())
        scores = queries @ documents.T
        own = scores[np.arange(len(scores)), self.own]
        ranks = (scores >= own[:, None]).sum(1)
        hits = pl.DataFrame(
            {
                "qid": self.queries["qid"].gather(np.repeat(np.arange(len(scores)), scores.shape[1])),
                "docid": pl.concat([self.documents["docid"]] * len(scores)),
                "score": scores.ravel(),
            }
        )
        overlap = rbo(runs.ranked(hits, scores.shape[1]), self.teacher)
        agreement = self.queries.join(overlap, on="qid", how="left", maintain_order="left")["value"].fill_null(0.0)
        return {"dev_MRR": float((1 / ranks).mean()), "dev_RBO": float(agreement.to_numpy().mean())}


PIECES = 8  # of a shard, which is read as often in an epoch


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
            reason = f"its lists have at most {depth} hits, fewer than the {least} of {given}; pass smaller numbers"
            raise path_error(labels.folder, reason, code="out-of-range", value=least, limit=depth)
        self.texts = mapped_texts(work, (pl.DataFrame(pl.from_arrow(part)) for part in collections.documents(corpus)))
        self._rows = self.texts.select("docid").with_row_index("row")
        self._kept = [table.select(pl.col("docids").list.len() >= least).to_series() for table in self._labels.tables()]
        self._sizes = [int(kept.sum()) for kept in self._kept]
        self.dropped = sum(len(kept) for kept in self._kept) - sum(self._sizes)
        if not sum(self._sizes):
            raise path_error(
                labels.folder, f"no query has {least} hits; pass a smaller --{' or --'.join(bounds)}", code="no-hits"
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
        for shard, positions in draws.shuffle_tables(self._sizes, seed, epoch, skip=skip, pieces=PIECES):
            texts, rows, scores = self._known(shard)
            for position in positions:
                rng = draws.rng(seed, epoch, shard, position)
                yield self._draw(texts[position], rows[position], scores[position], rng)

    def _known(self, shard: int) -> tuple[list[str], list[np.ndarray], list[np.ndarray]]:
        """Return text, corpus rows of the hits, and their scores, for each kept query of a shard."""
        table = self._labels.read(shard).filter(self._kept[shard])
        hits = table.select("docids").with_row_index("query").explode("docids").rename({"docids": "docid"})
        rows = hits.join(self._rows, on="docid", how="left", maintain_order="left")["row"]
        if rows.null_count():
            lost = hits["docid"].filter(rows.is_null())[0]
            raise path_error(self._labels.folder, f"document {lost} is not in the corpus", code="other-corpus", id=lost)
        bounds = np.cumsum(table["docids"].list.len().to_numpy())[:-1]
        scores = table["scores"].explode().to_numpy()
        return table["text"].to_list(), np.split(rows.to_numpy(), bounds), np.split(scores, bounds)

    def _draw(self, query: str, rows: np.ndarray, scores: np.ndarray, rng: np.random.Generator) -> Group:
        plan, size = self._plan, len(rows)
        listwise = plan.loss == "listwise"
        worst, negatives = (size, plan.list_passages) if listwise else (plan.negatives, 1)
        first = rng.integers(plan.positives)
        others = size - worst + rng.choice(worst, negatives, replace=worst < negatives)
        positions = [int(first), *others.tolist()]
        documents = self.texts[rows[positions].tolist()]
        return Group(
            query=query,
            docids=documents["docid"].to_list(),
            titles=documents["title"].to_list(),
            texts=documents["text"].to_list(),
            lexical=scores[positions].tolist(),
            positives=frozenset(self.texts["docid"].gather(rows[: plan.positives]).to_list()),
            noise=int(rng.integers(2**62)),
        )
