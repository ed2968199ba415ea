"""Retrieval over a pooled dev set while a model trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hybrid_cli.encoders.encoder import Encoder
from hybrid_cli.training.bm25_vectors import LexicalSide
from hybrid_cli.training.losses import squared_cosine


@dataclass(frozen=True)
class DevPool:
    """Dev examples as a small collection: every positive and negative of every query is a document of the pool."""

    queries: list[str]
    docids: list[str]
    titles: list[str]
    texts: list[str]
    relevant: list[list[int]]
    candidates: list[list[int]]
    lexical: list[list[float]]

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> DevPool:
        """Pool the rows of a file of training examples; several positives of a query come together."""
        documents: dict[str, tuple[int, str, str]] = {}
        queries: dict[str, tuple[str, dict[int, float], set[int]]] = {}
        for row in rows:
            _, scores, relevant = queries.setdefault(row["qid"], (row["query"], {}, set()))
            for document in [row, *(row["negatives"] or [])]:
                entry = documents.setdefault(document["docid"], (len(documents), document["title"], document["text"]))
                scores[entry[0]] = document["lexical_score"] or 0.0
            relevant.add(documents[row["docid"]][0])
        return cls(
            queries=[query for query, _, _ in queries.values()],
            docids=list(documents),
            titles=[title for _, title, _ in documents.values()],
            texts=[text for _, _, text in documents.values()],
            relevant=[sorted(relevant) for _, _, relevant in queries.values()],
            candidates=[list(scores) for _, scores, _ in queries.values()],
            lexical=[list(scores.values()) for _, scores, _ in queries.values()],
        )

    def measure(
        self, encoder: Encoder, lexical_weights: Sequence[float], lexical: LexicalSide | None = None
    ) -> dict[str, float]:
        """Values for the learning curve.

        Returns:
            `dev_MRR@10`: dense scores over the whole pool; `dev_hybrid_MRR@10`: `weight * s_lex + s` over each query's
            own candidates, the pairs whose lexical score is known, at the best of `lexical_weights`. With `lexical`
            also `dev_cos2`: the mean squared cosine between the encoder's and BM25's vectors, over queries and over
            documents, the mean of both; and `dev_RoC@10` over the whole pool, unless no query has a relevant document
            among its first ten.
        """
        queries = encoder.encode_queries(self.queries)
        documents = encoder.encode_documents(self.titles, self.texts)
        if encoder.describe().get("binary"):  # as a search sees them
            documents = np.where(documents >= 0, np.float32(1), np.float32(-1))
        scores = queries @ documents.T
        dense = self._reciprocal_ranks(scores)
        hybrid = max(self._hybrid(scores, weight) for weight in lexical_weights)
        values = {"dev_MRR@10": float(np.mean(dense)), "dev_hybrid_MRR@10": hybrid}
        if lexical is None:
            return values
        sides = [
            squared_cosine(torch.from_numpy(ours), torch.from_numpy(theirs)).mean().item()
            for ours, theirs in (
                (queries, lexical.queries(self.queries)),
                (documents, lexical.documents(self.docids)),
            )
        ]
        found = dense > 0
        alone = found & (self._reciprocal_ranks(lexical.scores(self.queries, self.docids)) == 0)
        return {
            **values,
            "dev_cos2": float(np.mean(sides)),
            **({"dev_RoC@10": float(alone.sum() / found.sum())} if found.any() else {}),
        }

    def _reciprocal_ranks(self, scores: np.ndarray) -> np.ndarray:
        """[n] from scores [n, documents of the pool]."""
        return np.array([_reciprocal_rank(row, own) for row, own in zip(scores, self.relevant, strict=True)])

    def _hybrid(self, scores: np.ndarray, lexical_weight: float) -> float:
        values = []
        for row, relevant, own, lexical in zip(scores, self.relevant, self.candidates, self.lexical, strict=True):
            combined = row[own] + lexical_weight * np.asarray(lexical, np.float32)
            values.append(_reciprocal_rank(combined, [own.index(document) for document in relevant]))
        return float(np.mean(values))


def _reciprocal_rank(scores: np.ndarray, relevant: list[int], cut: int = 10) -> float:
    """1 / rank of the best relevant document, ties against it; 0 beyond `cut`."""
    best = scores[relevant].max()
    others = np.delete(scores, relevant)
    rank = 1 + int((others >= best).sum())
    return 1 / rank if rank <= cut else 0.0
