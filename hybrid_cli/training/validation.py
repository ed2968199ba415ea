"""Validation of `train-lambda`: retrieval over a small pool of passages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from hybrid_cli import draws, runs
from hybrid_cli.encoders.contract import Encoder
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.complementarity import rbo
from hybrid_cli.training.options import Imitation


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
            raise InputError(
                "no dev query has two hits of the teacher; use another --dev split", code="no-hits", option="dev"
            )
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
