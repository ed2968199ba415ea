"""What a student takes for relevant: documents that it ranks high itself, shown to it with the teacher's scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import torch

from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.training.batches import Group


@dataclass(frozen=True)
class OwnErrors:
    """The student's best documents for each query of a batch, beside those that the batch has.

    They are looked up in a part of the corpus that the student encodes anew at every checkpoint, so that a training
    that was killed sees the same ones.

    Attributes:
        texts: docid, title, text of the corpus.
        number: documents added to each query.
        pool: how large that part is.
        every: steps between two checkpoints.
        precision: what the student computes in.
    """

    encoder: TransformerEncoder
    texts: pl.DataFrame
    number: int
    pool: int
    every: int
    seed: int
    precision: torch.dtype

    def added(self, batches: Iterator[list[Group]], done: int) -> Iterator[list[Group]]:
        """The batches from the `done`-th on, each query with `number` more documents."""
        documents, vectors = self.texts.clear(), np.empty((0, 0), np.float32)
        for step, batch in enumerate(batches, done):
            if step % self.every == 0 or step == done:
                size = min(self.pool, len(self.texts))
                rows = np.random.default_rng([self.seed, step, 1]).choice(len(self.texts), size, replace=False)
                documents = self.texts[np.sort(rows).tolist()]
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
        """Vectors of documents, or without titles of queries, as the student is now."""
        device = self.encoder.device.type
        self.encoder.eval()
        with torch.autocast(device, self.precision, enabled=self.precision != torch.float32):
            found = (
                self.encoder.encode_queries(texts) if titles is None else self.encoder.encode_documents(titles, texts)
            )
        self.encoder.train()
        return found
