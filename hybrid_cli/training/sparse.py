"""Objectives of learned sparse encoders: FLOPS regularization, SparTerm's gate, DeepCT's regression on term recall."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from hybrid_cli import draws
from hybrid_cli.encoders.models import autocast
from hybrid_cli.encoders.sparse import SparseEncoder
from hybrid_cli.encoders.sparse_towers import TokenWeights
from hybrid_cli.encoders.transformer import batches_by_length
from hybrid_cli.lexical.analysis import LazyAnalyzer
from hybrid_cli.lexical.options import ENGLISH
from hybrid_cli.training import parallel
from hybrid_cli.training.batches import Examples, batches
from hybrid_cli.training.gradients import TOKENS_AT_ONCE
from hybrid_cli.training.losses import LossInputs, Objective, Terms
from hybrid_cli.training.options import Flops, Optimization

_RISING = 0.33  # of the steps


def flops(weights: Tensor) -> Tensor:
    """Return the sum over the terms of the squared mean weight in a batch [n, V] (SPLADE, eq. 4)."""
    return weights.abs().mean(0).square().sum()


def growth(step: int, steps: int) -> float:
    """Return the factor of the regularization at a step: it rises with the square of the step in the first third."""
    rising = steps * _RISING
    return 1.0 if step >= rising else (step / rising) ** 2


def sparse_objective(
    relevance: Objective, regularization: Flops, steps: int, size: int, gated: bool = False
) -> Objective:
    """Return `relevance` of the weights plus the regularization, and the gate's loss for SparTerm.

    Records the mean number of terms of a query and of a document.

    Args:
        relevance: loss of vectors.
        regularization: its weights.
        steps: number of optimizer steps.
        size: size of the vocabulary; scores of the gate and own terms follow the weights (`VocabularyWeights`).
        gated: train the gate of SparTerm.
    """

    def objective(vectors: LossInputs) -> Terms:
        inputs = replace(vectors, queries=vectors.queries[..., :size], documents=vectors.documents[..., :size])
        documents, share = inputs.documents.flatten(0, 1), growth(vectors.step, steps)
        counts = {"query_terms": inputs.queries, "document_terms": documents}
        vectors.record(**inputs.similarities(), **{n: (w > 0).sum(1).float().mean() for n, w in counts.items()})
        terms = relevance(inputs)
        terms["query_flops"] = share * regularization.query_flops * flops(inputs.queries)
        terms["document_flops"] = share * regularization.doc_flops * flops(documents)
        if gated:
            terms["gate"] = gate_loss(vectors.documents[:, 0, size : 2 * size], vectors.queries[:, 2 * size :])
        return terms

    return objective


def gate_loss(scores: Tensor, wanted: Tensor) -> Tensor:
    """Return the binary cross-entropy of a positive's gate on the terms of its query (SparTerm, section 3).

    Our choice: both classes have the same weight, since a query has few terms of the vocabulary.

    Args:
        scores: [n, V] scores of the gate.
        wanted: [n, V] 1 for terms of the query, else 0.
    """
    inside, outside = functional.softplus(-scores) * wanted, functional.softplus(scores) * (1 - wanted)
    return inside.sum() / wanted.sum().clamp(min=1) + outside.sum() / (1 - wanted).sum().clamp(min=1)


# --------------------------------------------------------------------------------------------------------------- DeepCT


@dataclass(frozen=True)
class Passage:
    """A passage, and the share of its training queries that contain each term."""

    title: str
    text: str
    recall: dict[str, float]

    def target(self, terms: Sequence[str]) -> float:
        """Return the weight of a word with these terms."""
        return max((self.recall.get(term, 0.0) for term in terms), default=0.0)


class TermRecall:
    """The positives of training examples, with query term recall (DeepCT, eq. 1)."""

    def __init__(self, examples: Examples, plan: Optimization):
        self._plan = plan
        rows = examples.queries_of_positives()
        queries = rows["queries"].explode(empty_as_null=False).unique().to_list()
        analyzed = zip(queries, map(set, LazyAnalyzer(ENGLISH).analyze(queries)), strict=True)
        terms = dict(analyzed)
        self._passages = [
            Passage(title, text, recall([terms[query] for query in own]))
            for title, text, own in rows.select("title", "text", "queries").iter_rows()
        ]

    def __len__(self) -> int:
        return len(self._passages)

    def batches(self, done: int = 0) -> Iterator[list[Passage]]:
        """Yield the batches of all epochs from the `done`-th on."""

        def epoch(number: int, skip: int) -> Iterator[Passage]:
            for _, rows in draws.shuffle_tables([len(self)], self._plan.seed, number, skip=skip):
                yield from (self._passages[row] for row in rows)

        return batches(len(self), epoch, self._plan, done)


def recall(queries: Sequence[set[str]]) -> dict[str, float]:
    """Return the share of the queries that contain each of their terms."""
    shares: dict[str, float] = {}
    for terms in queries:
        for term in terms:
            shares[term] = shares.get(term, 0.0) + 1 / len(queries)
    return shares


class RecallLearner:
    """Computes the gradients of the squared error of word weights (DeepCT, eq. 3): a word's first piece has its weight.

    Args:
        encoder: DeepCT encoder.
        precision: precision of the forward pass.
        chunk_size: passages in memory at once; None for 4,096 tokens at once.
    """

    def __init__(self, encoder: SparseEncoder, precision: torch.dtype, chunk_size: int | None = None):
        self.model, self.precision, self.chunk_size = encoder, precision, chunk_size

    def backward(self, passages: list[Passage], scale: Callable[[Tensor], Tensor], step: int = 0) -> Terms:
        """Add the gradients of one batch; return the mean squared error over its words."""
        batch = parallel.share(passages)
        network, device = self.model.document_tower.network, self.model.device
        assert isinstance(network, TokenWeights)
        ids, words = (
            self.model.words([self.model.contract.document(document.title, document.text) for document in batch])
            if batch
            else ([], [])
        )
        count = parallel.total(torch.tensor(sum(map(len, words)), device=device)).clamp(min=1)
        total = torch.zeros((), device=device)
        for rows in batches_by_length([*map(len, ids)], TOKENS_AT_ONCE, self.chunk_size):
            batch_ids, mask = self.model.document_tower.batch([ids[row] for row in rows])
            with autocast(device, self.precision):
                weights = network.tokens(batch_ids.to(device), mask.to(device))
            positions = [(at, position) for at, row in enumerate(rows.tolist()) for position, _ in words[row]]
            if not positions:
                continue
            wanted = torch.tensor([batch[row].target(terms) for row in rows.tolist() for _, terms in words[row]])
            at, position = torch.tensor(positions, device=device).T
            loss = (weights[at, position] - wanted.to(device)).square().sum() / count
            scale(loss).backward()
            total += loss.detach()
        return {"term_recall": parallel.total(total)}
