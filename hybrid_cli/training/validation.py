"""Validation during training: retrieval over a small pool of passages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from hybrid_cli import artifacts, draws, runs
from hybrid_cli.artifacts import Kind
from hybrid_cli.encoders.contract import Encoder
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.complementarity import rbo
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.settings import TrainLambda
from hybrid_cli.settings.common import ExampleValidation
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.loop import Validator
from hybrid_cli.training.losses import squared_cosine
from hybrid_cli.training.roc import Bm25Vectors

Floats = npt.NDArray[np.float32]

WEIGHTS = (0.0, *(2.0**power for power in range(-4, 5)))  # of BM25 in the sum, both sides with unit deviation


@dataclass(frozen=True)
class DevPool:
    """Dev examples as a small collection of the positives and negatives of all queries."""

    queries: list[str]
    docids: list[str]
    titles: list[str]
    texts: list[str]
    relevant: list[list[int]]

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> DevPool:
        """Pool the rows of a file of training examples; merge the rows of each query."""
        documents: dict[str, tuple[int, str, str]] = {}
        queries: dict[str, tuple[str, set[int]]] = {}
        for row in rows:
            _, relevant = queries.setdefault(row["qid"], (row["query"], set()))
            for document in [row, *(row["negatives"] or [])]:
                documents.setdefault(document["docid"], (len(documents), document["title"], document["text"]))
            relevant.add(documents[row["docid"]][0])
        return cls(
            queries=[query for query, _ in queries.values()],
            docids=list(documents),
            titles=[title for _, title, _ in documents.values()],
            texts=[text for _, _, text in documents.values()],
            relevant=[sorted(relevant) for _, relevant in queries.values()],
        )

    def lexical_scores(self, index: LexicalIndex) -> Floats:
        """Return exact BM25 scores [n, m] of every query and every document."""
        rows = index.rows(pl.Series(self.docids, dtype=pl.String))
        scores: Floats = (index.query_matrix(self.queries) @ rows.T).toarray().astype(np.float32)
        return scores

    def measure(
        self, encoder: Encoder, lexical: Floats | None = None, vectors: Bm25Vectors | None = None
    ) -> dict[str, float]:
        """Return values for the learning curve, all over the whole pool.

        Args:
            encoder: encoder to measure.
            lexical: BM25 scores [n, m], for the second and the third value.
            vectors: BM25's vectors, for the last value.

        Returns:
            `dev_MRR@10`: dense scores. `dev_hybrid_MRR@10`: the best weighted sum with BM25, of `WEIGHTS` relative to
            the ratio of the standard deviations, so that the scale of an encoder's scores has no effect. `dev_RoC@10`
            (RoC, section 3.1), omitted if no query has a relevant document in its top ten. `dev_cos2`: mean squared
            cosine between the encoder's and BM25's vectors, averaged over queries and documents.
        """
        queries = encoder.encode_queries(self.queries)
        documents = encoder.encode_documents(self.titles, self.texts)
        if encoder.describe().get("binary"):  # the codes that a search uses
            documents = np.where(documents >= 0, np.float32(1), np.float32(-1))
        scores = queries @ documents.T
        dense = self._reciprocal_ranks(scores)
        values = {"dev_MRR@10": float(np.mean(dense))}
        if lexical is not None:
            unit = float(scores.std() / (lexical.std() or 1.0))
            sums = [self._reciprocal_ranks(scores + weight * unit * lexical) for weight in WEIGHTS]
            values["dev_hybrid_MRR@10"] = max(float(np.mean(ranks)) for ranks in sums)
            found = dense > 0
            alone = found & (self._reciprocal_ranks(lexical) == 0)
            values |= {"dev_RoC@10": float(alone.sum() / found.sum())} if found.any() else {}
        if vectors is not None:
            sides = [
                squared_cosine(torch.from_numpy(ours), torch.from_numpy(theirs)).mean().item()
                for ours, theirs in (
                    (queries, vectors.queries(self.queries)),
                    (documents, vectors.documents(self.docids)),
                )
            ]
            values["dev_cos2"] = float(np.mean(sides))
        return values

    def _reciprocal_ranks(self, scores: np.ndarray) -> np.ndarray:
        """Return reciprocal ranks [n] of scores [n, documents of the pool]."""
        return np.array([_reciprocal_rank(row, own) for row, own in zip(scores, self.relevant, strict=True)])


def validator(
    settings: ExampleValidation, encoder: Encoder, index: Path | None = None, vectors: Bm25Vectors | None = None
) -> Validator | None:
    """Return the validation on mined examples, if there are any.

    Checkpoints of all losses are chosen by `dev_hybrid_MRR@10`, the use of the encoder in a hybrid, or by `dev_MRR@10`
    if no lexical index is known.

    Args:
        settings: dev examples and options.
        encoder: encoder to measure.
        index: lexical index; None uses the one that the examples were mined with, if it still exists.
        vectors: BM25's vectors of the dev examples.
    """
    if settings.dev is None:
        return None
    pool = DevPool.of(Examples(settings.dev).dev_rows(settings.dev_queries))
    index = index or _index_of(settings.dev)
    scores = pool.lexical_scores(LexicalIndex.open(index)) if index else None
    criterion = "dev_MRR@10" if scores is None else "dev_hybrid_MRR@10"
    measure = partial(pool.measure, encoder, scores, vectors)
    return Validator(measure, settings.eval_steps, criterion if settings.keep == "best" else None)


def _index_of(examples: Path) -> Path | None:
    """Return the lexical index that examples were mined with, if it still exists with the same content."""
    manifest = artifacts.read_manifest(examples, Kind.EXAMPLES)
    index = manifest.input_path("index")
    if index is None or not index.exists():
        return None
    return index if artifacts.fingerprint(index) == manifest.inputs["index"]["fingerprint"] else None


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
        negatives: int = TrainLambda.negatives,
        seed: int = TrainLambda.seed,
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
