"""Objectives: pure functions of vectors and lexical constants. No model, no configuration, no state.

Each takes `Vectors` and returns its terms by name; the loss is their sum, and the learning curve shows each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from hybrid_cli.config import Reduction
from hybrid_cli.errors import InputError

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
        teacher_queries, teacher_documents: [B, t] and [B, G, t] vectors of a teacher; there only in distillation.
        other: [B, B * G] another model's scores of every query with every document of the batch, there only where it
            is imitated or completed.
        step: optimiser steps done, for what changes with them.
    """

    queries: Tensor
    documents: Tensor
    lexical: Tensor
    allowed: Tensor
    lexical_queries: Tensor | None = None
    lexical_documents: Tensor | None = None
    other: Tensor | None = None
    teacher_queries: Tensor | None = None
    teacher_documents: Tensor | None = None
    step: int = 0


Objective = Callable[[Vectors], Terms]


def usual_temperature(unit: bool) -> float:
    """What divides scores: nothing, or for vectors of length 1 .05, with which sentence-transformers trains them."""
    return 0.05 if unit else 1.0


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


def nll(vectors: Vectors, temperature: float = 1.0, in_batch: bool = True, other_weight: Tensor | None = None) -> Terms:
    """Negative log-likelihood of the positive (DPR).

    The others are all documents of the batch, hard negatives of other queries included (methods 3.1), or with
    `in_batch=False` the query's own negatives alone. With `other_weight` (a scalar, which may be trained) the scores
    are those of the sum with the other model (SPAR's joint training, methods 7.2).
    """
    size, group = vectors.lexical.shape
    scores = vectors.queries @ vectors.documents.flatten(0, 1).T
    if other_weight is not None:
        assert vectors.other is not None
        scores = scores + other_weight * vectors.other
    own = torch.arange(size, device=scores.device)
    if not in_batch:
        groups = scores.view(size, size, group)[own, own] / temperature
        return {"nll": functional.cross_entropy(groups, torch.zeros_like(own))}
    seen = (scores / temperature).masked_fill(~vectors.allowed, -torch.inf)
    return {"nll": functional.cross_entropy(seen, own * group)}


def bpr(vectors: Vectors, xi: float = 0.1, gamma: float = 0.1, temperature: float = 1.0) -> Terms:
    """What makes sign codes that find, and float queries that order what they find (BPR; methods 8.1).

    `candidates`: the hinge `max(0, xi - <h(q), h(d+)> + <h(q), h(d-)>)` of relaxed codes h, the mean over all documents
    of the batch that are no positives of the query. `rerank`: the likelihood (`nll`) of the float query with the
    relaxed codes of the documents. Added one to one.
    """
    codes = replace(
        vectors,
        queries=relaxed_signs(vectors.queries, vectors.step, gamma),
        documents=relaxed_signs(vectors.documents, vectors.step, gamma),
    )
    size, group = vectors.lexical.shape
    scores = codes.queries @ codes.documents.flatten(0, 1).T
    own = torch.arange(size, device=scores.device)
    others = vectors.allowed.index_put((own, own * group), torch.tensor(False, device=scores.device))
    hinge = functional.relu(xi - scores[own, own * group].unsqueeze(1) + scores)
    return {
        "candidates": hinge[others].mean(),
        "rerank": nll(replace(codes, queries=vectors.queries), temperature)["nll"],
    }


def relaxed_signs(vectors: Tensor, step: int, gamma: float = 0.1) -> Tensor:
    """tanh(x * sqrt(1 + gamma * step)): signs with a gradient, sharper from step to step (HashNet; methods 8.1)."""
    return torch.tanh(vectors * (1 + gamma * step) ** 0.5)


def on_other(objective: Objective) -> Objective:
    """The objective with the other model's scores in the place of the lexical ones."""

    def replaced(vectors: Vectors) -> Terms:
        assert vectors.other is not None
        size, group = vectors.lexical.shape
        own = torch.arange(size, device=vectors.other.device)
        return objective(replace(vectors, lexical=vectors.other.view(size, size, group)[own, own]))

    return replaced


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


def listwise(vectors: Vectors, temperature: float = 1.0, own_temperature: float = 1.0) -> Terms:
    """What another model's scores of all documents of the batch say, against what the vectors say (`divergence`).

    The vectors' scores are divided by `own_temperature` first, so that those of unit vectors can reach the other's.
    """
    assert vectors.other is not None
    scores = vectors.queries @ vectors.documents.flatten(0, 1).T / own_temperature
    return {"listwise": divergence(scores, vectors.other, temperature)}


def divergence(scores: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """KL divergence of soft-max(scores / T) from soft-max(teacher / T), [B, C] each; the mean over the rows."""
    wanted, found = (functional.log_softmax(values / temperature, dim=1) for values in (teacher.detach(), scores))
    return functional.kl_div(found, wanted, log_target=True, reduction="batchmean")


def distilled(objective: Objective, dim: int, weight: float = 1.0, reduction: Reduction = "mean") -> Objective:
    """The objective on the first `dim` values of the vectors, `distillation` on all others (LITE, eq. 11)."""

    def together(vectors: Vectors) -> Terms:
        small = replace(vectors, queries=vectors.queries[..., :dim], documents=vectors.documents[..., :dim])
        large = replace(vectors, queries=vectors.queries[..., dim:], documents=vectors.documents[..., dim:])
        return {**objective(small), "distillation": weight * distillation(large, reduction)["distillation"]}

    return together


def distillation(vectors: Vectors, reduction: Reduction = "mean") -> Terms:
    """`|v_q - q|^2 + |v_q - c+|^2 + |v_c - c|^2` (LITE, eq. 10), the teacher's vectors being q, c+ and c.

    The last term is of all documents of the batch. Each is the mean over its texts, or their sum. The first two pull a
    query to the middle between q and c+, so the loss has a floor above 0.
    """
    documents = _distance(vectors.documents, vectors.teacher_documents, reduction)
    return {"distillation": query_distillation(vectors, reduction)["distillation"] + documents}


def query_distillation(vectors: Vectors, reduction: Reduction = "sum") -> Terms:
    """The two terms of the queries alone: one query encoder for an ensemble (DrBoost, methods 5.3)."""
    assert vectors.teacher_documents is not None
    own = _distance(vectors.queries, vectors.teacher_queries, reduction)
    return {"distillation": own + _distance(vectors.queries, vectors.teacher_documents[:, 0], reduction)}


def _distance(ours: Tensor, theirs: Tensor | None, reduction: Reduction) -> Tensor:
    assert theirs is not None
    squares = (ours - theirs.detach()).square().sum(-1)
    return squares.sum() if reduction == "sum" else squares.mean()


def squared_cosine(vectors: Tensor, constants: Tensor) -> Tensor:
    """[...] from [..., d] and [..., d]; 0 where either is all zero."""
    return functional.cosine_similarity(vectors, constants.detach(), dim=-1, eps=1e-8).square()


def nested(objective: Objective, dims: Sequence[int], unit: bool) -> Objective:
    """The objective of every prefix of the vectors, the mean over them (Matryoshka; Kusupati et al., 2022).

    Args:
        dims: lengths of the prefixes.
        unit: whether vectors have length 1, and so must their prefixes.
    """

    def cut(vectors: Tensor, dim: int) -> Tensor:
        return functional.normalize(vectors[..., :dim], dim=-1) if unit else vectors[..., :dim]

    def together(vectors: Vectors) -> Terms:
        totals: Terms = {}
        for dim in dims:
            part = replace(vectors, queries=cut(vectors.queries, dim), documents=cut(vectors.documents, dim))
            for name, term in objective(part).items():
                totals[name] = totals.get(name, term.new_zeros(())) + term / len(dims)
        return totals

    return together


def check_nested(dims: Sequence[int], dim: int) -> None:
    """Refuse prefixes that vectors of length `dim` do not have.

    Raises:
        InputError: one of them is too long, or none.
    """
    if bad := [each for each in dims if not 0 < each <= dim]:
        raise InputError(f"--nested {bad[0]}: the vectors have {dim} values")


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
