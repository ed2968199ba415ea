"""Objectives: pure functions of vectors and lexical constants. No model, no configuration, no state.

Each takes `Vectors` and returns its terms by name; the loss is their sum, and the learning curve shows each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Terms = dict[str, Tensor]


@dataclass(frozen=True)
class Vectors:
    """What one step gives an objective.

    Attributes:
        queries: [B, d].
        documents: [B, G, d]; the first of each group is the positive, the others are its hard negatives.
        lexical: [B, G] exact lexical scores of those pairs; constants of the data.
        allowed: [B, B * G]; False where another document of the batch is a positive of the query too.
        lexical_queries, lexical_documents: [B, d] and [B, G, d] BM25's own vectors, projected; constants too, and there
            only where `orthogonality` is trained.
    """

    queries: Tensor
    documents: Tensor
    lexical: Tensor
    allowed: Tensor
    lexical_queries: Tensor | None = None
    lexical_documents: Tensor | None = None


Objective = Callable[[Vectors], Terms]


def residual_margin(vectors: Vectors, xi: float = 1.0, lexical_weight: float = 0.1, temperature: float = 1.0) -> Terms:
    """Hinge whose margin falls where the lexical model is right (CLEAR / DualRM, eq. 3-4).

    `max(0, m - s(q,d+) + s(q,d-))` with `m = xi - lexical_weight * (s_lex(q,d+) - s_lex(q,d-))`, the mean over all
    triples. It is the plain hinge on `lexical_weight * s_lex + s`. The margin may be negative and is not clamped.
    `s` is the inner product divided by `temperature`: 1 in the papers; vectors of length 1 need a smaller one, or the
    margin is out of their reach.
    """
    scores = torch.einsum("bd,bgd->bg", vectors.queries, vectors.documents) / temperature
    combined = scores + lexical_weight * vectors.lexical
    return {"residual_margin": functional.relu(xi - combined[:, :1] + combined[:, 1:]).mean()}


def margin(vectors: Vectors, xi: float = 1.0, temperature: float = 1.0) -> Terms:
    """The hinge with a constant margin: CLEAR's ablation, `residual_margin` with lexical weight 0."""
    return {"margin": residual_margin(vectors, xi, 0.0, temperature)["residual_margin"]}


def nll(vectors: Vectors, temperature: float = 1.0, in_batch: bool = True) -> Terms:
    """Negative log-likelihood of the positive (DPR).

    The others are all documents of the batch, hard negatives of other queries included (methods 3.1), or with
    `in_batch=False` the query's own negatives alone.
    """
    size, group = vectors.lexical.shape
    if not in_batch:
        own = torch.einsum("bd,bgd->bg", vectors.queries, vectors.documents) / temperature
        return {"nll": functional.cross_entropy(own, own.new_zeros(size, dtype=torch.long))}
    scores = vectors.queries @ vectors.documents.flatten(0, 1).T / temperature
    targets = torch.arange(size, device=scores.device) * group
    return {"nll": functional.cross_entropy(scores.masked_fill(~vectors.allowed, -torch.inf), targets)}


def orthogonality(vectors: Vectors, weight: float = 1.0) -> Terms:
    """Squared cosines between what the encoder and BM25 say of one text (RoC, eq. 8): their means over the queries and
    over all documents of the batch, added.

    A random projection has 1/d of each at the start, whatever the encoder does. No gradient goes into the lexical
    vectors; one that is all zero (a query of stop words) adds 0.

    Raises:
        ValueError: there are no lexical vectors.
    """
    if vectors.lexical_queries is None or vectors.lexical_documents is None:
        raise ValueError("orthogonality needs lexical vectors")
    queries = squared_cosine(vectors.queries, vectors.lexical_queries)
    documents = squared_cosine(vectors.documents, vectors.lexical_documents)
    return {"orthogonality": weight * (queries.mean() + documents.mean())}


def squared_cosine(vectors: Tensor, constants: Tensor) -> Tensor:
    """[...] from [..., d] and [..., d]; 0 where either is all zero."""
    return functional.cosine_similarity(vectors, constants.detach(), dim=-1, eps=1e-8).square()


def added(*objectives: Objective) -> Objective:
    """The objective whose terms are those of all."""

    def together(vectors: Vectors) -> Terms:
        return {name: term for objective in objectives for name, term in objective(vectors).items()}

    return together


def span_contrast(vectors: Tensor) -> Terms:
    """Corpus contrastive loss of coCondenser (Gao and Callan, 2022; methods 3.5).

    Each span is to find the other span of its document among all other spans of the batch, by inner product without a
    temperature.

    Args:
        vectors: [2 * B, d]; rows 2i and 2i + 1 are spans of one document.
    """
    scores = vectors @ vectors.T
    itself = torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
    others = torch.arange(len(vectors), device=vectors.device) ^ 1
    return {"span_contrast": functional.cross_entropy(scores.masked_fill(itself, -torch.inf), others)}
