"""Losses: pure functions of vectors and lexical scores, without model or state.

A loss takes `LossInputs` and returns named terms; their sum is minimized, and the learning curve shows each term. A
loss of `train-dense` is a function here and an entry of `LOSSES` in hybrid_cli/training/options.py, or a function of
another package (docs/extending.md). Keyword arguments with the name of an option receive its value, others that of
`--loss-option`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hybrid_cli.errors import InputError, option_error
from hybrid_cli.training.options import LOSS, LOSSES, RESIDUALS, XI, Distill

Terms = dict[str, Tensor]


def missing(keyword: str) -> Tensor:
    """Return the tensor in place of an input that a training does not have; every use of it is refused.

    Args:
        keyword: option of the command, and keyword of `train`, that gives the input.
    """

    def refuse(cls: type[Tensor], function: object, types: object, args: object = (), kwargs: object = None) -> None:
        reason = "the loss reads values that this training does not have; pass it"
        raise option_error(keyword, None, reason, code="missing-loss-input")

    more = {"__torch_function__": classmethod(refuse), "__repr__": lambda self: f"no --{keyword}"}
    return torch.empty(0).as_subclass(type("Missing", (Tensor,), more))


NO_SCORER, _NO_INDEX, _NO_TEACHER = map(missing, ("scorer", "index", "teacher"))


@dataclass(frozen=True)
class LossInputs:
    """Arguments of a loss for one batch of B queries with G documents each.

    Attributes:
        queries: [B, d].
        documents: [B, G, d]; the first document of each group is the positive, the others are hard negatives.
        scorer: [B, B * G] scores of a frozen scorer for every query and every document of the batch, or [B, G] for the
            query's own documents only; constants.
        allowed: [B, B * G]; False for another positive of the query among the documents of the batch.
        lexical_queries, lexical_documents: [B, d] and [B, G, d] projected BM25 vectors, for `orthogonality`; constants.
        teacher_queries, teacher_documents: [B, t] and [B, G, t] vectors of a teacher, for distillation.
        teacher_scores: [B, N] scores of a teacher for the first N of the query's own documents: the positive and the
            mined negatives; or [B, B * G] for every document of the batch.
        scorer_weight: weight of the scorer's scores in a residual loss; a scalar.
        step: number of completed optimizer steps.
        recorded: diagnostics that the loss records for the learning curve.

    Raises:
        InputError: any use of scores or constant vectors that the training does not have; names the missing option.
    """

    queries: Tensor
    documents: Tensor
    scorer: Tensor
    allowed: Tensor
    lexical_queries: Tensor = _NO_INDEX
    lexical_documents: Tensor = _NO_INDEX
    teacher_queries: Tensor = _NO_TEACHER
    teacher_documents: Tensor = _NO_TEACHER
    teacher_scores: Tensor = _NO_TEACHER
    scorer_weight: Tensor | float = 0.1
    step: int = 0
    recorded: Terms = field(default_factory=dict)

    def record(self, **values: Tensor) -> None:
        """Record diagnostics: scalars of the learning curve that are not part of the loss."""
        self.recorded.update({name: value.detach() for name, value in values.items()})

    def similarities(self) -> Terms:
        """Return the mean inner product of the queries with their positives, and with their hard negatives."""
        scores = torch.einsum("bd,bgd->bg", self.queries.detach(), self.documents.detach())
        means = {"positive_similarity": scores[:, 0].mean()}
        return {**means, "negative_similarity": scores[:, 1:].mean()} if scores.shape[1] > 1 else means

    def dense_scores(self, in_batch: bool) -> Tensor:
        """Return inner products of queries and documents: [B, B * G], or [B, G] of the query's own documents."""
        if in_batch:
            return self.queries @ self.documents.flatten(0, 1).T
        return torch.einsum("bd,bgd->bg", self.queries, self.documents)

    def scorer_scores(self, in_batch: bool) -> Tensor:
        """Return the scorer's scores of the same pairs."""
        size, group = self.documents.shape[:2]
        if in_batch or self.scorer.shape[1] == group:
            return self.scorer
        own = torch.arange(size, device=self.scorer.device)
        return self.scorer.view(size, size, group)[own, own]

    def negative_minus_positive(self, scores: Tensor, in_batch: bool) -> Tensor:
        """Return the scores of the negatives minus that of the positive, over all pairs of a query and a negative.

        Args:
            scores: of the pairs of `dense_scores`.
            in_batch: negatives are all documents of the batch that are not positives of the query.
        """
        if not in_batch:
            return scores[:, 1:] - scores[:, :1]
        size, group = self.documents.shape[:2]
        own = torch.arange(size, device=scores.device)
        negatives = self.allowed.index_put((own, own * group), torch.tensor(False, device=scores.device))
        return (scores - scores[own, own * group].unsqueeze(1))[negatives]


Objective = Callable[[LossInputs], Terms]


def objective(
    name: str, ortho_weight: float = 0.0, distill: Distill | None = None, distill_weight: float = 1.0, **parameters: Any
) -> Objective:
    """Return a loss with its parameters.

    Args:
        name: name of a registered loss.
        ortho_weight: weight of the orthogonality to BM25's vectors, which is added (RoC).
        distill: loss on the scores of a teacher, which is added. With a residual loss, the teacher teaches the weighted
            sum with the scorer.
        distill_weight: weight of this loss.
        parameters: keyword arguments; those that the loss does not have are ignored.
    """
    parts = [_bound(name, parameters)]
    if distill is not None:
        taught = _bound(distill, {**parameters, "fused": name in RESIDUALS})
        parts.append(lambda vectors: {key: distill_weight * term for key, term in taught(vectors).items()})
    if ortho_weight:
        parts.append(partial(orthogonality, weight=ortho_weight))
    return sum_objectives(*parts) if len(parts) > 1 else parts[0]


def _bound(name: str, parameters: Mapping[str, Any]) -> Objective:
    function = LOSSES[name]
    bound = {key: parameters[key] for key in signature(function).parameters if key in parameters}
    return partial(_terms, name, partial(function, **bound))


def _terms(name: str, function: Objective, vectors: LossInputs) -> Terms:
    """Return the terms of a loss; refuse another result of one of a plugin."""
    terms = function(vectors)
    if not isinstance(terms, dict) or not all(isinstance(term, Tensor) and term.ndim == 0 for term in terms.values()):
        raise InputError(f"--loss {name}: needs to return a dict of scalar tensors", code="not-terms", name=name)
    return terms


def usual_temperature(unit: bool, loss: str = LOSS) -> float:
    """Return the default temperature: 1, as in the papers, or 0.05 for vectors of length 1.

    0.05 is our choice: inner products of such vectors do not exceed 1, so they would not reach a margin of 1
    (sentence-transformers trains with the same value). `bpr` rescales such vectors itself.
    """
    return 0.05 if unit and loss != "bpr" else 1.0


def residual_margin(vectors: LossInputs, xi: float = XI, temperature: float = 1.0, in_batch: bool = False) -> Terms:
    """Return the hinge with the residual margin (DualRM, eq. 3 and 4).

    `max(0, m - s(q,d+) + s(q,d-))` with `m = xi - w * (s_lex(q,d+) - s_lex(q,d-))`, the mean over all triples, which is
    the plain hinge on `w * s_lex + s`. The margin is not clamped; it may be negative. Records the share of triples with
    loss, and the mean of m.

    Args:
        vectors: batch, with the scores s_lex of the scorer and their weight w.
        xi: margin where the scorer's scores are equal.
        temperature: divisor of the inner products s; 1 in the paper.
        in_batch: negatives are all documents of the batch that are not positives of the query (our extension); False
            uses the query's own negatives.
    """
    weighted = vectors.scorer_weight * vectors.scorer_scores(in_batch)
    vectors.record(mean_margin=(xi + vectors.negative_minus_positive(weighted, in_batch)).mean())
    return {"residual_margin": _hinge(vectors, fused_scores(vectors, temperature, in_batch), xi, in_batch)}


def margin(vectors: LossInputs, xi: float = XI, temperature: float = 1.0, in_batch: bool = False) -> Terms:
    """Return the hinge with a constant margin: `residual_margin` without a scorer (CLEAR, ablation)."""
    vectors.record(mean_margin=torch.tensor(xi))
    return {"margin": _hinge(vectors, vectors.dense_scores(in_batch) / temperature, xi, in_batch)}


def nll(vectors: LossInputs, temperature: float = 1.0, in_batch: bool = True) -> Terms:
    """Return the negative log-likelihood of the positive (DPR, eq. 2).

    Records the mean probability of all documents but the positive.

    Args:
        vectors: batch.
        temperature: divisor of the scores; 1 in the paper.
        in_batch: compare with all documents of the batch, the hard negatives of other queries included; False compares
            with the query's own negatives only.
    """
    return {"nll": _likelihood(vectors, vectors.dense_scores(in_batch) / temperature, in_batch)}


def residual_nll(vectors: LossInputs, temperature: float = 1.0, in_batch: bool = True) -> Terms:
    """Return the likelihood of the positive under the fused score `s / temperature + w * s_scorer`.

    With a Lambda as the scorer and a learned weight: joint training (SPAR, section 4.2). With an ensemble: gradient
    boosting (DrBoost). With BM25: our own, the likelihood in place of DualRM's hinge on the same sum. Records the
    diagnostics of `nll`.

    Args:
        vectors: batch, with the scores of the scorer and their weight w.
        temperature: divisor of the inner products s.
        in_batch: compare with all documents of the batch, as in `nll`.
    """
    return {"residual_nll": _likelihood(vectors, fused_scores(vectors, temperature, in_batch), in_batch)}


def fused_scores(vectors: LossInputs, temperature: float, in_batch: bool) -> Tensor:
    """Return `s / temperature + w * s_scorer`: [B, B * G], or [B, G] of the query's own documents."""
    return vectors.dense_scores(in_batch) / temperature + vectors.scorer_weight * vectors.scorer_scores(in_batch)


def _likelihood(vectors: LossInputs, scores: Tensor, in_batch: bool) -> Tensor:
    positives = torch.arange(len(scores), device=scores.device) * (vectors.documents.shape[1] if in_batch else 0)
    if in_batch:
        scores = scores.masked_fill(~vectors.allowed, -torch.inf)
    own = scores.detach().softmax(1).gather(1, positives.unsqueeze(1))
    vectors.record(active_share=1 - own.mean())
    return functional.cross_entropy(scores, positives)


def _hinge(vectors: LossInputs, scores: Tensor, xi: float, in_batch: bool, name: str = "active_share") -> Tensor:
    """Return the mean of `max(0, xi - score of the positive + score)` over the negatives; record the share above 0."""
    hinge = functional.relu(xi + vectors.negative_minus_positive(scores, in_batch))
    vectors.record(**{name: (hinge > 0).float().mean()})
    return hinge.mean()


def bpr(
    vectors: LossInputs, xi: float = 0.1, gamma: float = 0.1, temperature: float = 1.0, unit: bool = False
) -> Terms:
    """Return the two losses of binary passage retrieval, which are added without weights (BPR, section 3).

    `candidates`: hinge `max(0, xi - <h(q), h(d+)> + <h(q), h(d-)>)` of relaxed codes h, the mean over all documents of
    the batch that are not positives of the query. `rerank`: likelihood (`nll`) of the float query with the relaxed
    codes of the documents. Records the share of pairs with hinge loss, and the diagnostics of `nll`.

    Args:
        vectors: batch.
        xi: margin.
        gamma: rate at which the relaxed codes approach the signs.
        temperature: divisor of the scores of `rerank`.
        unit: the vectors have length 1; see `relaxed_signs`.
    """
    codes = replace(
        vectors,
        queries=relaxed_signs(vectors.queries, vectors.step, gamma, unit),
        documents=relaxed_signs(vectors.documents, vectors.step, gamma, unit),
    )
    return {
        "candidates": _hinge(codes, codes.dense_scores(True), xi, True, "candidates_active_share"),
        "rerank": nll(replace(codes, queries=vectors.queries), temperature)["nll"],
    }


def relaxed_signs(vectors: Tensor, step: int, gamma: float = 0.1, unit: bool = False) -> Tensor:
    """Return tanh(x * sqrt(1 + gamma * step)), which approaches the sign with the steps (HashNet; BPR, section 3).

    The schedule assumes values of about 1, as in BERT's vectors. Vectors of length 1 (`unit`) are multiplied by
    sqrt(d) first (our choice): their values of about 1 / sqrt(d) would stay in the linear part of tanh.
    """
    scale = vectors.shape[-1] ** 0.5 if unit else 1.0
    return torch.tanh(vectors * scale * (1 + gamma * step) ** 0.5)


def orthogonality(vectors: LossInputs, weight: float = 1.0) -> Terms:
    """Return the squared cosines between the encoder's and BM25's vectors (RoC, eq. 8).

    The result is the sum of the means over the queries and over all documents of the batch. At the start of training,
    each mean is about 1 / d for a random projection to d dimensions. All-zero lexical vectors (queries of stop words)
    count as 0.
    """
    queries = squared_cosine(vectors.queries, vectors.lexical_queries)
    documents = squared_cosine(vectors.documents, vectors.lexical_documents)
    return {"orthogonality": weight * (queries.mean() + documents.mean())}


def listwise(vectors: LossInputs, temperature: float = 1.0, own_temperature: float = 1.0) -> Terms:
    """Return the divergence from the scorer's scores; see `divergence`.

    The documents are those that the scorer scores: all of the batch, or the query's own. The inner products are first
    divided by `own_temperature`, so that vectors of length 1 reach the scale of the other scores.
    """
    scores = vectors.dense_scores(in_batch=vectors.scorer.shape[1] != vectors.documents.shape[1])
    return {"listwise": divergence(scores / own_temperature, vectors.scorer, temperature)}


def divergence(scores: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return KL(softmax(teacher / T) || softmax(scores / T)) of scores [B, C], the mean over the rows."""
    wanted, actual = (functional.log_softmax(values / temperature, dim=1) for values in (teacher.detach(), scores))
    return functional.kl_div(actual, wanted, log_target=True, reduction="batchmean")


def margin_mse(
    vectors: LossInputs, temperature: float = 1.0, teacher_temperature: float = 1.0, fused: bool = False
) -> Terms:
    """Return the mean of `((s+ - s-) - (t+ - t-))^2` over all pairs of a query and one of its negatives (Margin-MSE).

    Records the mean differences of both, whose scales should agree.

    Args:
        vectors: batch, with the scores t of the teacher.
        temperature: divisor of the inner products s.
        teacher_temperature: divisor of the teacher's scores.
        fused: s is the weighted sum with the scorer; see `fused_scores`.
    """
    scores, teacher = _taught_scores(vectors, temperature, teacher_temperature, fused)
    errors = (scores[:, :1] - scores[:, 1:]) - (teacher[:, :1] - teacher[:, 1:])
    return {"margin_mse": errors.square().mean()}


def kl(vectors: LossInputs, temperature: float = 1.0, teacher_temperature: float = 1.0, fused: bool = False) -> Terms:
    """Return KL(softmax(t) || softmax(s)) over the documents that the teacher scores; see `margin_mse`, `divergence`.

    They are the query's own, or all of the batch, as in TCT-ColBERT, section 3.2.
    """
    return {"kl": divergence(*_taught_scores(vectors, temperature, teacher_temperature, fused))}


def _taught_scores(
    vectors: LossInputs, temperature: float, teacher_temperature: float, fused: bool
) -> tuple[Tensor, Tensor]:
    """Return the scores [B, N] or [B, B * G] of the model and of the teacher for the same documents, both divided.

    Raises:
        ValueError: the teacher scored one document per query only.
    """
    if vectors.teacher_scores.shape[1] < 2:
        raise ValueError("distillation needs a teacher's scores of a positive and at least one negative")
    size, group = vectors.documents.shape[:2]
    teacher = vectors.teacher_scores.detach() / teacher_temperature
    in_batch = teacher.shape[1] > group
    scores = fused_scores(vectors, temperature, in_batch) if fused else vectors.dense_scores(in_batch) / temperature
    scores = scores[:, : teacher.shape[1]]
    own = torch.arange(size, device=scores.device) * (group if in_batch else 0)
    others = teacher.shape[1] - 1
    margins = ((values.gather(1, own.unsqueeze(1)) - values).sum(1).mean() / others for values in (scores, teacher))
    vectors.record(**dict(zip(("student_margin", "teacher_margin"), margins, strict=True)))
    return scores, teacher


def with_distillation(relevance: Objective, dim: int, weight: float = 1.0) -> Objective:
    """Return `relevance` of the first `dim` values plus `distillation` of the other values (LITE, eq. 11)."""

    def objective(vectors: LossInputs) -> Terms:
        small = replace(vectors, queries=vectors.queries[..., :dim], documents=vectors.documents[..., :dim])
        large = replace(vectors, queries=vectors.queries[..., dim:], documents=vectors.documents[..., dim:])
        vectors.record(**small.similarities())
        return {**relevance(small), "distillation": weight * distillation(large)["distillation"]}

    return objective


def distillation(vectors: LossInputs) -> Terms:
    """Return `|v_q - q|^2 + |v_q - c+|^2 + |v_c - c|^2` with the teacher's vectors q, c+ and c (LITE, eq. 10).

    Each term is a mean over texts, the last term over all documents of the batch. (The paper leaves the
    reduction open; the mean, our choice, does not depend on the batch size.) The first two terms pull a query to the
    middle between q and c+, so the minimum is above 0.
    """
    documents = _distance(vectors.documents, vectors.teacher_documents)
    return {"distillation": query_distillation(vectors)["distillation"] + documents}


def query_distillation(vectors: LossInputs) -> Terms:
    """Return the two query terms of `distillation`, for a query encoder of an ensemble (LITE, section 4)."""
    own = _distance(vectors.queries, vectors.teacher_queries)
    return {"distillation": own + _distance(vectors.queries, vectors.teacher_documents[:, 0])}


def _distance(ours: Tensor, theirs: Tensor) -> Tensor:
    return (ours - theirs.detach()).square().sum(-1).mean()


def squared_cosine(vectors: Tensor, constants: Tensor) -> Tensor:
    """Return squared cosines [...] of vectors [..., d] and constants [..., d]; 0 if either is all zero."""
    return functional.cosine_similarity(vectors, constants.detach(), dim=-1, eps=1e-8).square()


def matryoshka(relevance: Objective, dims: Sequence[int], unit: bool) -> Objective:
    """Return the mean of an objective over vector prefixes (Matryoshka, eq. 1, with equal weights).

    Args:
        relevance: objective.
        dims: lengths of the prefixes.
        unit: normalize each prefix to length 1, for encoders that normalize.
    """

    def cut(vectors: Tensor, dim: int) -> Tensor:
        return functional.normalize(vectors[..., :dim], dim=-1) if unit else vectors[..., :dim]

    def objective(vectors: LossInputs) -> Terms:
        totals: Terms = {}
        for dim in dims:
            part = replace(vectors, queries=cut(vectors.queries, dim), documents=cut(vectors.documents, dim))
            for name, term in relevance(part).items():
                totals[name] = totals.get(name, term.new_zeros(())) + term / len(dims)
        return totals

    return objective


def with_prefixes(relevance: Objective, dims: Sequence[int], dim: int, unit: bool) -> Objective:
    """Return the mean of an objective over prefixes and whole vectors of length `dim`, if there are prefixes."""
    check_prefixes(dims, dim)
    return matryoshka(relevance, [*dims, dim], unit) if dims else relevance


def check_prefixes(dims: Sequence[int], dim: int) -> None:
    """Refuse prefixes longer than the vectors.

    Raises:
        InputError: a prefix is longer than `dim`.
    """
    if bad := [length for length in dims if not 0 < length <= dim]:
        raise option_error("matryoshka_dims", bad[0], f"the vectors have {dim} values", limit=dim)


def sum_objectives(*objectives: Objective) -> Objective:
    """Return the sum of objectives, with the terms of all."""

    def objective(vectors: LossInputs) -> Terms:
        return {name: term for part in objectives for name, term in part(vectors).items()}

    return objective


def span_contrast(vectors: Tensor) -> Terms:
    """Return the corpus contrastive loss (coCondenser, section 3.2).

    Each span retrieves the other span of its document among all other spans of the batch, by inner product.

    Args:
        vectors: [2 * B, d]; rows 2i and 2i + 1 are spans of one document.
    """
    scores = vectors @ vectors.T
    itself = torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
    others = torch.arange(len(vectors), device=vectors.device) ^ 1
    return {"span_contrast": functional.cross_entropy(scores.masked_fill(itself, -torch.inf), others)}
