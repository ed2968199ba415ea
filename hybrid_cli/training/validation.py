"""Validation during training: retrieval over a small pool of passages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch

from hybrid_cli import draws, runs
from hybrid_cli.encoders.contract import Encoder
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.complementarity import rbo
from hybrid_cli.training.losses import squared_cosine
from hybrid_cli.training.roc import Bm25Vectors


@dataclass(frozen=True)
class DevPool:
    """Dev examples as a small collection of the positives and negatives of all queries."""

    queries: list[str]
    docids: list[str]
    titles: list[str]
    texts: list[str]
    relevant: list[list[int]]
    candidates: list[list[int]]
    lexical: list[list[float]]

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> DevPool:
        """Pool the rows of a file of training examples; merge the rows of each query."""
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
        self, encoder: Encoder, lexical_weights: Sequence[float], lexical: Bm25Vectors | None = None
    ) -> dict[str, float]:
        """Return values for the learning curve.

        Args:
            encoder: encoder to measure.
            lexical_weights: weights of the lexical scores in the hybrid score.
            lexical: BM25's vectors and scores, for the last two values.

        Returns:
            `dev_MRR@10`: dense scores over the whole pool. `dev_hybrid_MRR@10`: `weight * s_lex + s` over each query's
            own candidates, whose lexical scores are known, with the best of `lexical_weights`. `dev_cos2`: mean squared
            cosine between the encoder's and BM25's vectors, averaged over queries and documents. `dev_RoC@10` over the
            whole pool (RoC, section 3.1), omitted if no query has a relevant document in its top ten.
        """
        queries = encoder.encode_queries(self.queries)
        documents = encoder.encode_documents(self.titles, self.texts)
        if encoder.describe().get("binary"):  # sign codes, as in a search
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
        """Return reciprocal ranks [n] of scores [n, documents of the pool]."""
        return np.array([_reciprocal_rank(row, own) for row, own in zip(scores, self.relevant, strict=True)])

    def _hybrid(self, scores: np.ndarray, lexical_weight: float) -> float:
        values = []
        for row, relevant, own, lexical in zip(scores, self.relevant, self.candidates, self.lexical, strict=True):
            combined = row[own] + lexical_weight * np.asarray(lexical, np.float32)
            values.append(_reciprocal_rank(combined, [own.index(document) for document in relevant]))
        return float(np.mean(values))


def _reciprocal_rank(scores: np.ndarray, relevant: list[int], cut: int = 10) -> float:
    """Return 1 / rank of the best relevant document, with ties counted against it; 0 below rank `cut`."""
    best = scores[relevant].max()
    others = np.delete(scores, relevant)
    rank = 1 + int((others >= best).sum())
    return 1 / rank if rank <= cut else 0.0


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
        negatives: int = 5,
        seed: int = 42,
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
            raise InputError("no dev query has two hits of the teacher; use another --dev split")
        rng = draws.rng(seed)
        drawn = []
        for docids in lists["docid"].to_list():
            worst = docids[1:][-negatives:]
            drawn.append((docids[0], worst[rng.integers(len(worst))]))
        pool = pl.Series("docid", [docid for pair in drawn for docid in pair]).unique(maintain_order=True)
        documents = pool.to_frame().join(texts(pool), on="docid", maintain_order="left")
        place = {docid: row for row, docid in enumerate(pool)}
        asked = lists.select("qid", "text")
        if score is None:
            ranked = hits.filter(pl.col("docid").is_in(pool.implode())).select("qid", "docid", "score")
        else:
            ranked = asked.select("qid").join(pool.to_frame(), how="cross")
            ranked = ranked.with_columns(score(ranked).alias("score")).filter(pl.col("score") > 0)
        return cls(asked, documents, [place[best] for best, _ in drawn], runs.ranked(ranked, len(pool)))

    def measure(self, encoder: Encoder) -> dict[str, float]:
        """Return `dev_MRR` of each query's own passage in the pool, with ties counted against it, and `dev_RBO`, the
        overlap with the teacher's ranking.
        """
        queries = encoder.encode_queries(self.queries["text"].to_list())
        documents = encoder.encode_documents(self.documents["title"].to_list(), self.documents["text"].to_list())
        scores = queries @ documents.T
        own = scores[np.arange(len(scores)), self.own]
        ranks = (scores >= own[:, None]).sum(1)
        found = pl.DataFrame(
            {
                "qid": self.queries["qid"].gather(np.repeat(np.arange(len(scores)), scores.shape[1])),
                "docid": pl.concat([self.documents["docid"]] * len(scores)),
                "score": scores.ravel(),
            }
        )
        overlap = rbo(runs.ranked(found, scores.shape[1]), self.teacher)
        agreement = self.queries.join(overlap, on="qid", how="left", maintain_order="left")["value"].fill_null(0.0)
        return {"dev_MRR": float((1 / ranks).mean()), "dev_RBO": float(agreement.to_numpy().mean())}
