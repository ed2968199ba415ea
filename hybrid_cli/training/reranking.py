"""Training of rerankers: losses on the scores of a query's documents, the learner, and validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor
from torch.nn import functional

from hybrid_cli.encoders.contract import Contract
from hybrid_cli.encoders.cross_encoder import CrossEncoder
from hybrid_cli.encoders.models import autocast
from hybrid_cli.training import parallel
from hybrid_cli.training.batches import Examples, Group
from hybrid_cli.training.dev_set import reciprocal_ranks
from hybrid_cli.training.gradients import Share, backward
from hybrid_cli.training.losses import Terms
from hybrid_cli.training.options import RerankerLoss
from hybrid_cli.training.roc import MatchMasking

DEV_NEGATIVES = 50  # of each dev query

Objective = Callable[[Tensor], Terms]
Chunk = dict[str, Tensor]


def listwise(scores: Tensor) -> Terms:
    """Return the cross-entropy of the positive within each group (LCE, eq. 3).

    Args:
        scores: [B, G]; the first document of each group is the positive.
    """
    return {"listwise": -functional.log_softmax(scores, dim=1)[:, 0].mean()}


def pointwise(scores: Tensor) -> Terms:
    """Return the binary cross-entropy of all pairs (monoBERT, eq. 1); the mean, where the paper has the sum.

    Args:
        scores: [B, G]; the first document of each group is relevant, the others are not.
    """
    wanted = torch.zeros_like(scores)
    wanted[:, 0] = 1
    return {"pointwise": functional.binary_cross_entropy_with_logits(scores, wanted)}


LOSSES: dict[RerankerLoss, Objective] = {"listwise": listwise, "pointwise": pointwise}


def diagnostics(scores: Tensor, loss: RerankerLoss) -> Terms:
    """Return the mean scores of positives and negatives, and the share of the loss that is left.

    `active_share` is the mean derivative of the loss of a positive with respect to its score.
    """
    scores = scores.detach()
    likely = scores[:, 0].sigmoid() if loss == "pointwise" else scores.softmax(1)[:, 0]
    return {
        "active_share": (1 - likely).mean(),
        "positive_score": scores[:, 0].mean(),
        "negative_score": scores[:, 1:].mean(),
    }


class RerankerLearner:
    """Computes the gradients of a reranker on groups of a positive and negatives.

    Args:
        model: the reranker to train.
        loss: name of the loss.
        precision: precision of the forward pass.
        chunk_size: pairs scored at once with gradient caching; None scores the whole batch at once.
        mask_matches: probability of masking a word of the query in a document (RoC, section 3.4); 0 masks nothing.
    """

    def __init__(
        self,
        model: CrossEncoder,
        loss: RerankerLoss,
        precision: torch.dtype,
        chunk_size: int | None = None,
        mask_matches: float = 0,
    ):
        self.model, self.loss, self.precision, self.chunk_size = model, loss, precision, chunk_size
        bare = Contract()  # without prefixes: the first token of each side is a special token
        self._masking = MatchMasking(model.tokenizer, bare, mask_matches) if mask_matches else None

    def backward(self, groups: list[Group], scale: Callable[[Tensor], Tensor], step: int = 0) -> Terms:
        """Add the gradients of one batch; return the terms of its loss, and diagnostics."""
        recorded: Terms = {}

        def loss(chunks: Sequence[Tensor]) -> Terms:
            scores = torch.cat(list(chunks)).view(len(groups), -1)
            recorded.update(diagnostics(scores, self.loss))
            return LOSSES[self.loss](scores)

        def encode(chunk: Chunk) -> Tensor:
            scores: Tensor = self.model(**chunk)
            return scores.float().unsqueeze(1)

        share, cached = self._share(parallel.share(groups)), self.chunk_size is not None
        with nullcontext() if cached else self._autocast():
            return backward(encode, share, loss, scale, cached=cached, context=self._autocast) | recorded

    def _autocast(self) -> torch.autocast:
        return autocast(self.model.device, self.precision)

    def _share(self, groups: Sequence[Group]) -> Share[Chunk]:
        """Return chunks of pairs of similar length."""
        if not groups:  # more processes than queries
            return Share([], torch.empty(0, dtype=torch.long))
        encoded = self.inputs(groups)
        return Share.of([*map(len, encoded["input_ids"])], partial(self.model.padded, encoded), self.chunk_size)

    def inputs(self, groups: Sequence[Group]) -> Any:
        """Return the tokenizer's encodings of all pairs, group by group, with masked matches."""
        width = len(groups[0].docids)
        queries = [group.query for group in groups for _ in range(width)]
        documents = [
            self.model.input.document(title, text)
            for group in groups
            for title, text in zip(group.titles, group.texts, strict=True)
        ]
        encoded = self.model.tokens(queries, documents)
        if self._masking is not None:
            for position, pair in enumerate(encoded.encodings):
                start = pair.sequence_ids.index(1) if 1 in pair.sequence_ids else len(pair.ids)
                query, document = pair.ids[:start], pair.ids[start - 1 :]
                seed = [groups[position // width].noise, position % width]
                encoded["input_ids"][position] = [*query[:-1], *self._masking(document, query, seed)]
        return encoded


class DevRanking:
    """Measures a reranker: ranks the judged documents and some negatives of each dev query.

    Args:
        examples: dev examples.
        queries: number of queries.
        model: reranker to measure.
    """

    def __init__(self, examples: Path, queries: int, model: CrossEncoder):
        self.model = model
        rows = Examples(examples).dev_rows(queries)
        judged = rows.select("qid", "query", "docid", "title", "text", relevant=pl.lit(True))
        negatives = rows.select("qid", "query", "negatives").explode("negatives", empty_as_null=False)
        negatives = negatives.unnest("negatives").select(
            "qid", "query", "docid", "title", "text", relevant=pl.lit(False)
        )
        pairs = pl.concat([judged, negatives.drop_nulls("docid")])
        pairs = pairs.unique(["qid", "docid"], keep="first", maintain_order=True)
        rank = pl.int_range(pl.len()).over("qid", "relevant")
        self.pairs = pairs.filter(pl.col("relevant") | (rank < DEV_NEGATIVES))

    def measure(self) -> dict[str, float]:
        """Return `dev_MRR@10`, with ties counted against the relevant documents, and `dev_listwise`.

        `dev_listwise` is the cross-entropy of the first relevant document among the negatives of its query.
        """
        with torch.autocast(self.model.device.type, enabled=False):  # scores in bf16 tie
            scored = self.pairs.with_columns(score=pl.Series(self.model.scores(self.pairs)[0]))
        ranks, losses = [], []
        for part in scored.partition_by("qid", maintain_order=True):
            scores, relevant = part["score"].to_numpy(), part["relevant"].to_numpy()
            ranks.append(reciprocal_ranks(scores[None], [np.flatnonzero(relevant)])[0])
            group = torch.from_numpy(np.concatenate([scores[relevant][:1], scores[~relevant]]))
            losses.append(listwise(group.unsqueeze(0))["listwise"].item())
        return {"dev_MRR@10": float(np.mean(ranks)), "dev_listwise": float(np.mean(losses))}
