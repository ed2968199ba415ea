"""Hard negatives mined with the student itself, while it trains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import torch

from hybrid_cli import draws
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.training.batches import Group


@dataclass(frozen=True)
class StudentNegatives:
    """Adds to each query of a batch the documents that the student scores highest.

    They come from a random pool of the corpus that the student encodes again at every checkpoint, so that a training
    that resumes from a checkpoint uses the same ones.

    Attributes:
        encoder: the student.
        texts: docid, title, text of the corpus.
        number: documents added per query.
        pool: documents in the pool.
        every: steps between two checkpoints.
        seed: seed of the training.
        precision: floating-point type of the student's forward passes.
    """

    encoder: TransformerEncoder
    texts: pl.DataFrame
    number: int
    pool: int
    every: int
    seed: int
    precision: torch.dtype

    def added(self, batches: Iterator[list[Group]], done: int) -> Iterator[list[Group]]:
        """Yield the batches, each query with `number` more documents.

        Args:
            batches: from step `done` on.
            done: number of the first step.
        """
        documents, vectors = self.texts.clear(), np.empty((0, 0), np.float32)
        for step, batch in enumerate(batches, done):
            if step % self.every == 0 or step == done:
                rows = draws.sample(len(self.texts), self.pool, draws.rng(self.seed, step, 1))
                documents = self.texts[rows.tolist()]
                vectors = self._encoded(documents["title"].to_list(), documents["text"].to_list())
            scores = self._encoded(None, [group.query for group in batch]) @ vectors.T
            yield [self._extended(group, row, documents) for group, row in zip(batch, scores, strict=True)]

    def _extended(self, group: Group, scores: np.ndarray, documents: pl.DataFrame) -> Group:
        known = np.flatnonzero(documents["docid"].is_in(group.docids).to_numpy())
        scores[known] = -np.inf
        best = documents[np.argsort(-scores, kind="stable")[: self.number].tolist()]
        return replace(
            group,
            docids=group.docids + best["docid"].to_list(),
            titles=group.titles + best["title"].to_list(),
            texts=group.texts + best["text"].to_list(),
            lexical=group.lexical + [0.0] * len(best),
        )

    def _encoded(self, titles: list[str] | None, texts: list[str]) -> np.ndarray:
        """Return vectors of documents, or without titles of queries, by the student in its present state."""
        device = self.encoder.device.type
        self.encoder.eval()
        with torch.autocast(device, self.precision, enabled=self.precision != torch.float32):
            found = (
                self.encoder.encode_queries(texts) if titles is None else self.encoder.encode_documents(titles, texts)
            )
        self.encoder.train()
        return found
