"""Hard negatives that the model in training ranks first, alone or in the sum with a frozen scorer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import torch

from hybrid_cli import console, draws
from hybrid_cli.encoders.models import autocast
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError
from hybrid_cli.training.batches import Group
from hybrid_cli.training.negatives import fold_columns
from hybrid_cli.training.options import Optimization
from hybrid_cli.training.teachers import Scorer, ScorerWeight


@dataclass(frozen=True)
class Fusion:
    """The sum whose top hits are negatives: `s / temperature + weight * s_scorer`."""

    temperature: float
    scorer: Scorer
    weight: ScorerWeight


@dataclass(frozen=True)
class StudentNegatives:
    """Adds the student's top-ranked documents to the queries of a batch, as hard negatives.

    They come from a pool of documents that the student encodes again at every checkpoint, so that a resumed run sees
    the same documents.

    Attributes:
        encoder: the student.
        texts: docid, title, text of the documents that the pool is drawn from.
        plan: settings of the training.
        precision: precision of the student's forward pass.
        count: negatives per query.
        pool: documents of the pool.
        excluded: maps a query to the documents that are never added; those that it has are not added either.
        fusion: the sum that ranks; None ranks by the student alone.
    """

    encoder: TransformerEncoder
    texts: pl.DataFrame
    plan: Optimization
    precision: torch.dtype
    count: int
    pool: int = 2048
    excluded: Callable[[Group], Set[str]] = lambda group: frozenset()
    fusion: Fusion | None = None

    def __post_init__(self) -> None:
        documents = min(self.pool, len(self.texts))
        if self.count >= documents:
            console.warn(
                f"{self.count:,} negatives per query from the model in training: the pool has {documents:,} documents, "
                "so some are added several times; pass a lower number",
                code="small-pool", count=self.count, documents=documents,
            )  # fmt: skip

    def added(self, batches: Iterator[list[Group]], done: int) -> Iterator[list[Group]]:
        """Yield the batches from the `done`-th on, with `count` more documents per query.

        Raises:
            InputError: all documents of the pool are excluded for a query.
        """
        documents, vectors = self.texts.clear(), np.empty((0, 0), np.float32)
        every = self.plan.checkpoint_steps * self.plan.accumulate
        for number, batch in enumerate(batches, done):
            if number % every == 0 or number == done:
                rows = draws.sample(len(self.texts), self.pool, draws.rng(self.plan.seed, number, 1))
                documents = self.texts[rows.tolist()]
                vectors = self._encoded(documents["title"].to_list(), documents["text"].to_list())
            queries = [group.query for group in batch]
            scores = self._encoded(None, queries) @ vectors.T
            if self.fusion is not None:
                weight = self.fusion.weight(number // self.plan.accumulate, batch[0].noise).item()
                scorer = self.fusion.scorer.scores(queries, documents["docid"].to_list())
                scores = scores / self.fusion.temperature + weight * scorer
            yield [self._extended(group, row, documents) for group, row in zip(batch, scores, strict=True)]

    def _extended(self, group: Group, scores: np.ndarray, documents: pl.DataFrame) -> Group:
        without = [*group.docids, *self.excluded(group)]
        known = documents["docid"].is_in(without).to_numpy()
        if known.all():
            raise InputError(f"query {group.query!r}: no document is a negative; mine more", code="no-negatives")
        ranked = np.argsort(np.where(known, np.inf, -scores), kind="stable")[: np.count_nonzero(~known)]
        best = documents[np.resize(ranked[: self.count], self.count).tolist()]  # repeated where the pool is too small
        return replace(
            group,
            docids=group.docids + best["docid"].to_list(),
            titles=group.titles + best["title"].to_list(),
            texts=group.texts + best["text"].to_list(),
            lexical=group.lexical + [0.0] * len(best),
        )

    def _encoded(self, titles: list[str] | None, texts: list[str]) -> np.ndarray:
        """Return the student's current vectors of documents or, without titles, of queries."""
        self.encoder.eval()
        with autocast(self.encoder.device, self.precision):
            vectors = (
                self.encoder.encode_queries(texts) if titles is None else self.encoder.encode_documents(titles, texts)
            )
        self.encoder.train()
        return vectors


def relevant(texts: pl.DataFrame) -> Callable[[Group], Set[str]]:
    """Return a function from a query to its positives and the documents with the text of one.

    Args:
        texts: docid, title, text of all documents.
    """
    hashes = texts.select("docid", fold_columns("title", "text").hash().alias("hash"))
    alike = hashes.group_by("hash").agg("docid")
    same = dict(hashes.join(alike, on="hash", suffix="s").select("docid", "docids").iter_rows())
    return lambda group: {other for docid in group.positives for other in same.get(docid, [docid])}
