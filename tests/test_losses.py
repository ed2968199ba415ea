"""Losses against golden values of the papers' equations."""

import math
import pydoc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command import raises
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from hybrid_cli.commands import TrainDense
from hybrid_cli.training import losses
from hybrid_cli.training.losses import (
    NO_SCORER,
    LossInputs,
    bpr,
    distillation,
    divergence,
    kl,
    listwise,
    margin,
    matryoshka,
    nll,
    orthogonality,
    query_distillation,
    relaxed_signs,
    residual_margin,
    residual_nll,
    span_contrast,
    squared_cosine,
    with_distillation,
)


def scored(positive: list[float], negative: list[float], lexical: list[tuple[float, float]]) -> LossInputs:
    """Vectors whose inner products are the given scores: the query is 1, the documents are the scores."""
    size = len(positive)
    documents = torch.tensor([[[p], [n]] for p, n in zip(positive, negative, strict=True)])
    return LossInputs(
        torch.ones(size, 1), documents, torch.tensor(lexical), torch.ones(size, 2 * size, dtype=torch.bool)
    )


def test_residual_margin_shrinks_for_pairs_that_bm25_ranks_correctly() -> None:
    both = scored([3.0, 3.0], [2.5, 2.5], [(12.0, 9.0), (5.0, 14.0)])
    margins = [1 - 0.1 * (12 - 9), 1 - 0.1 * (5 - 14)]
    losses = [max(0, m - 3.0 + 2.5) for m in margins]
    assert losses == pytest.approx([0.2, 1.4])
    assert residual_margin(both)["residual_margin"].item() == pytest.approx(sum(losses) / 2)


def test_a_negative_margin_is_not_clamped() -> None:
    vectors = scored(
        [2.0], [2.5], [(30.0, 0.0)]
    )  # margin 1 - 3 = -2: no loss although the negative has the higher score
    assert residual_margin(vectors)["residual_margin"] == 0


@given(st.integers(0, 1000))
def test_residual_margin_is_the_plain_hinge_on_the_combined_score(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    queries, documents = torch.randn(5, 3, generator=generator), torch.randn(5, 4, 3, generator=generator)
    lexical = 20 * torch.rand(5, 4, generator=generator)
    vectors = LossInputs(queries, documents, lexical, torch.ones(5, 20, dtype=torch.bool))
    combined = torch.stack([documents[i] @ queries[i] for i in range(5)]) + 0.1 * lexical
    expected = functional.relu(1 - combined[:, :1] + combined[:, 1:]).mean()
    torch.testing.assert_close(residual_margin(vectors)["residual_margin"], expected)


def test_nll_of_the_golden_scores() -> None:
    # scores [[2, 1, 0, -1], [0, .5, 1, 3]], targets 0 and 2
    documents = torch.tensor([[[2.0, 0.0], [1.0, 0.5]], [[0.0, 1.0], [-1.0, 3.0]]])
    vectors = LossInputs(torch.eye(2), documents, torch.zeros(2, 2), torch.ones(2, 4, dtype=torch.bool))
    first = -2 + math.log(sum(math.exp(s) for s in (2, 1, 0, -1)))
    second = -1 + math.log(sum(math.exp(s) for s in (0, 0.5, 1, 3)))
    assert (first, second) == pytest.approx((0.4402, 2.2368), abs=1e-4)
    assert nll(vectors)["nll"].item() == pytest.approx((first + second) / 2)


def test_nll_without_in_batch_uses_only_the_documents_of_the_query() -> None:
    documents = torch.tensor([[[2.0, 0.0], [1.0, 0.5]], [[0.0, 1.0], [-1.0, 3.0]]])
    vectors = LossInputs(torch.eye(2), documents, torch.zeros(2, 2), torch.ones(2, 4, dtype=torch.bool))
    own = [-2 + math.log(math.exp(2) + math.exp(1)), -1 + math.log(math.exp(1) + math.exp(3))]
    assert nll(vectors, in_batch=False)["nll"].item() == pytest.approx(sum(own) / 2)


@given(st.permutations(range(4)))
def test_nll_is_invariant_under_the_order_of_the_batch(order: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, documents = torch.randn(4, 3, generator=generator), torch.randn(4, 2, 3, generator=generator)
    mask = torch.ones(4, 8, dtype=torch.bool)
    plain = nll(LossInputs(queries, documents, torch.zeros(4, 2), mask))["nll"]
    moved = nll(LossInputs(queries[list(order)], documents[list(order)], torch.zeros(4, 2), mask))["nll"]
    torch.testing.assert_close(plain, moved)


def test_a_false_in_batch_negative_does_not_count() -> None:
    documents = torch.tensor([[[2.0], [1.0]], [[5.0], [0.0]]])
    mask = torch.ones(2, 4, dtype=torch.bool)
    mask[0, 2] = False
    vectors = LossInputs(torch.ones(2, 1), documents, torch.zeros(2, 2), mask)
    first = -2 + math.log(sum(math.exp(s) for s in (2, 1, 0)))
    second = -5 + math.log(sum(math.exp(s) for s in (2, 1, 5, 0)))
    assert nll(vectors)["nll"].item() == pytest.approx((first + second) / 2)


def test_divergence_is_zero_for_equal_scores_up_to_a_constant_and_counts_rows_alike() -> None:
    teacher = torch.tensor([[1.0, 3.0, 2.0], [0.0, 0.0, 5.0]])
    assert divergence(teacher + 7, teacher).item() == pytest.approx(0, abs=1e-6)
    uniform = torch.zeros(2, 3)
    wanted = [sum(p * math.log(p * 3) for p in functional.softmax(row, 0).tolist()) for row in teacher]
    assert divergence(uniform, teacher).item() == pytest.approx(sum(wanted) / 2, abs=1e-5)
    assert divergence(uniform, teacher, 1e6).item() == pytest.approx(0, abs=1e-6)


def test_listwise_uses_every_document_and_does_not_train_the_teacher() -> None:
    vectors = scored([1.0, 2.0], [0.0, 3.0], [(0.0, 0.0), (0.0, 0.0)])
    teacher = torch.tensor([[1.0, 0.0, 2.0, 3.0], [0.0, 0.0, 9.0, 0.0]], requires_grad=True)
    loss = listwise(replace(vectors, scorer=teacher))["listwise"]
    scores = torch.tensor([[1.0, 0.0, 2.0, 3.0]] * 2)
    assert loss.item() == pytest.approx(divergence(scores, teacher).item())
    assert not loss.requires_grad  # neither these vectors nor the teacher need a gradient


FUSED = [  # dense scores / 2 + .5 * scorer, of queries (1, 0) and (0, 1)
    [2 / 2 + 0.5 * 2, 1 / 2 + 0.5 * 0, 0 / 2 + 0.5 * 1, -1 / 2 + 0.5 * 0],
    [0 / 2 + 0.5 * 0, 0.5 / 2 + 0.5 * 1, 1 / 2 + 0.5 * 4, 3 / 2 + 0.5 * 0],
]


def fused_vectors(weight: torch.Tensor | float = 0.5) -> LossInputs:
    documents = torch.tensor([[[2.0, 0.0], [1.0, 0.5]], [[0.0, 1.0], [-1.0, 3.0]]])
    scorer = torch.tensor([[2.0, 0.0, 1.0, 0.0], [0.0, 1.0, 4.0, 0.0]])
    return LossInputs(torch.eye(2), documents, scorer, torch.ones(2, 4, dtype=torch.bool), scorer_weight=weight)


def test_residual_nll_of_the_golden_scores() -> None:
    """Fused scores [[2, .5, .5, -.5], [0, .75, 2.5, 1.5]], positives 0 and 2; by hand .4242 and .4847."""
    assert FUSED == [[2.0, 0.5, 0.5, -0.5], [0.0, 0.75, 2.5, 1.5]]
    each = [math.log(sum(map(math.exp, row))) - row[positive] for row, positive in zip(FUSED, (0, 2), strict=True)]
    assert each == pytest.approx([0.4242, 0.4847], abs=1e-4)
    assert residual_nll(fused_vectors(), 2.0)["residual_nll"].item() == pytest.approx(sum(each) / 2)
    own = [math.log(1 + math.exp(0.5 - 2.0)), math.log(1 + math.exp(1.5 - 2.5))]
    found = residual_nll(fused_vectors(), 2.0, in_batch=False)["residual_nll"]
    assert found.item() == pytest.approx(sum(own) / 2)


def test_residual_margin_in_the_batch_of_the_golden_scores() -> None:
    """Margin 1, positives 2 and 2.5: all hinges are 0 (the largest is 1 - 2.5 + 1.5); margin 2: .5, .5; .25, 1."""
    assert residual_margin(fused_vectors(), 1.0, 2.0, in_batch=True)["residual_margin"] == 0
    hinges = [0.5, 0.5, 0.0, 0.0, 0.25, 1.0]
    found = residual_margin(fused_vectors(), 2.0, 2.0, in_batch=True)["residual_margin"]
    assert found.item() == pytest.approx(sum(hinges) / 6)
    own = residual_margin(fused_vectors(), 2.0, 2.0)["residual_margin"]
    assert own.item() == pytest.approx((0.5 + 1.0) / 2)
    allowed = torch.ones(2, 4, dtype=torch.bool)
    allowed[1, 1] = False  # another positive of the second query
    found = residual_margin(replace(fused_vectors(), allowed=allowed), 2.0, 2.0, in_batch=True)["residual_margin"]
    assert found.item() == pytest.approx((0.5 + 0.5 + 0.0 + 0.0 + 1.0) / 5)


@pytest.mark.parametrize("in_batch", [True, False])
def test_a_weight_of_zero_gives_the_loss_without_a_scorer(in_batch: bool) -> None:
    vectors = replace(random_vectors(5), scorer_weight=0.0)
    vectors = vectors if not in_batch else replace(vectors, scorer=torch.randn(4, 12))
    assert residual_nll(vectors, 0.5, in_batch)["residual_nll"] == nll(vectors, 0.5, in_batch)["nll"]
    residual = residual_margin(vectors, 0.7, 0.5, in_batch)["residual_margin"]
    assert residual == margin(vectors, 0.7, 0.5, in_batch)["margin"]


@pytest.mark.parametrize("objective", [residual_nll, residual_margin])
@pytest.mark.parametrize("in_batch", [True, False])
def test_residual_losses_have_the_gradient_of_finite_differences(objective: Any, in_batch: bool) -> None:
    """Gradients of queries, documents and weight; no hinge is at its kink in these draws."""
    generator = torch.Generator().manual_seed(3)
    queries, documents, scorer = (
        torch.randn(*size, generator=generator, dtype=torch.double) for size in ((3, 4), (3, 2, 4), (3, 6))
    )
    allowed = torch.ones(3, 6, dtype=torch.bool)
    allowed[0, 3] = False

    def value(queries: torch.Tensor, documents: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        vectors = LossInputs(queries, documents, scorer, allowed, scorer_weight=weight)
        return next(iter(objective(vectors, temperature=0.7, in_batch=in_batch).values()))  # type: ignore[no-any-return]

    inputs = [queries, documents, torch.tensor(0.4, dtype=torch.double)]
    assert value(*inputs) > 0
    assert torch.autograd.gradcheck(value, [each.requires_grad_() for each in inputs])


def test_options_reach_the_loss_they_apply_to() -> None:
    vectors = scored([3.0, 3.0], [2.5, 2.5], [(12.0, 9.0), (5.0, 14.0)])
    settings = TrainDense(Path("x"), output=Path("y"), loss="residual-margin", xi=2.0)
    vectors = replace(vectors, scorer_weight=0.0)
    residual = losses.objective(settings.loss, **settings.parameters() | {"temperature": 1.0})
    assert residual(vectors)["residual_margin"].item() == pytest.approx(1.5)
    binary = TrainDense(Path("x"), output=Path("y"), loss="bpr")
    for unit in (True, False):
        parameters = binary.parameters() | {"temperature": 1.0, "unit": unit}
        found, expected = losses.objective(binary.loss, **parameters)(vectors), bpr(vectors, unit=unit)
        assert {name: term.item() for name, term in found.items()} == {name: t.item() for name, t in expected.items()}


def test_squared_cosine_of_the_golden_vectors() -> None:
    cosines = squared_cosine(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[1.0, 2.0, 2.0]]))
    assert cosines.item() == pytest.approx(1 / 9)


def test_a_zero_lexical_vector_adds_zero_with_a_finite_gradient() -> None:
    queries = torch.ones(1, 3, requires_grad=True)
    squared_cosine(queries, torch.zeros(1, 3)).sum().backward()
    assert squared_cosine(queries, torch.zeros(1, 3)).item() == 0
    assert queries.grad is not None
    assert torch.isfinite(queries.grad).all()


def random_vectors(seed: int) -> LossInputs:
    generator = torch.Generator().manual_seed(seed)
    sizes = ((4, 6), (4, 3, 6), (4, 3), (4, 6), (4, 3, 6))
    queries, documents, lexical, own, theirs = (torch.randn(*size, generator=generator) for size in sizes)
    return LossInputs(queries, documents, lexical, torch.ones(4, 12, dtype=torch.bool), own, theirs)


@given(st.integers(0, 1000), st.floats(0, 100))
def test_orthogonality_is_the_mean_over_queries_and_over_all_documents(seed: int, weight: float) -> None:
    vectors = random_vectors(seed)
    assert vectors.lexical_queries is not None
    assert vectors.lexical_documents is not None

    def of(ours: torch.Tensor, theirs: torch.Tensor) -> list[float]:
        pairs = zip(ours.reshape(-1, 6), theirs.reshape(-1, 6), strict=True)
        return [((a @ b) / (a.norm() * b.norm())).item() ** 2 for a, b in pairs]

    queries = of(vectors.queries, vectors.lexical_queries)
    documents = of(vectors.documents, vectors.lexical_documents)
    expected = weight * (sum(queries) / 4 + sum(documents) / 12)
    assert orthogonality(vectors, weight)["orthogonality"].item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("objective", [nll, residual_margin])
def test_losses_add_up(objective: Any) -> None:
    vectors = random_vectors(1)
    both = losses.sum_objectives(objective, orthogonality)(vectors)
    assert both == {**objective(vectors), **orthogonality(vectors)}


def test_no_gradient_reaches_the_lexical_vectors() -> None:
    vectors = random_vectors(0)
    for vector in (vectors.queries, vectors.lexical_queries, vectors.lexical_documents):
        assert vector is not None
        vector.requires_grad_()
    orthogonality(vectors)["orthogonality"].backward()
    assert vectors.queries.grad is not None
    assert vectors.lexical_queries is not None
    assert vectors.lexical_queries.grad is None
    assert vectors.lexical_documents is not None
    assert vectors.lexical_documents.grad is None


@given(st.integers(1, 5), st.integers(0, 1000))
def test_span_contrast_is_the_mean_over_spans(documents: int, seed: int) -> None:
    vectors = torch.randn(2 * documents, 3, generator=torch.Generator().manual_seed(seed))
    total = 0.0
    for i, vector in enumerate(vectors):
        sums = sum(math.exp(vector @ other) for j, other in enumerate(vectors) if j != i)
        total -= math.log(math.exp(vector @ vectors[i + 1 if i % 2 == 0 else i - 1]) / sums)
    assert span_contrast(vectors)["span_contrast"].item() == pytest.approx(total / (2 * documents), abs=1e-5)


def test_bpr_of_the_golden_codes() -> None:
    query, documents = torch.tensor([[0.5, -0.2]]), torch.tensor([[[0.3, -0.4], [0.3, -0.35]]])
    scores = (relaxed_signs(query, 0) @ relaxed_signs(documents[0], 0).T)[0]
    assert scores.tolist() == pytest.approx([0.209614, 0.201015], abs=3e-6)
    vectors = LossInputs(query, documents, torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool))
    terms = bpr(vectors)
    assert terms["candidates"].item() == pytest.approx(0.091401, abs=3e-6)
    reranked = functional.cross_entropy(query @ torch.tanh(documents[0]).T, torch.tensor([0]))
    assert set(vectors.recorded) == {"active_share", "candidates_active_share"}
    assert terms["rerank"].item() == pytest.approx(reranked.item())


def test_relaxed_codes_of_unit_vectors_approach_the_signs() -> None:
    """After 120 steps, the length of the study in studies/lite.md."""
    vectors = functional.normalize(torch.randn(200, 384, generator=torch.Generator().manual_seed(0)), dim=-1)
    codes = relaxed_signs(vectors, 120, unit=True)
    assert codes.abs().mean() > 0.8
    assert torch.equal(codes.sign(), vectors.sign())
    assert relaxed_signs(vectors, 120).abs().mean() < 0.2  # without the factor, codes are nearly linear


def test_bpr_of_unit_vectors_rescales_the_codes_and_not_the_query_that_reranks() -> None:
    generator = torch.Generator().manual_seed(1)
    queries = functional.normalize(torch.randn(3, 9, generator=generator), dim=-1)
    documents = functional.normalize(torch.randn(3, 2, 9, generator=generator), dim=-1)
    unit = LossInputs(queries, documents, torch.zeros(3, 2), torch.ones(3, 6, dtype=torch.bool), step=20)
    terms, long = bpr(unit, unit=True), bpr(replace(unit, queries=3 * queries, documents=3 * documents))
    assert terms["candidates"].item() == pytest.approx(long["candidates"].item())
    codes = torch.tanh(3 * documents.flatten(0, 1) * 3**0.5)
    reranked = functional.cross_entropy(queries @ codes.T, torch.tensor([0, 2, 4]))
    assert terms["rerank"].item() == pytest.approx(reranked.item())


def test_bpr_uses_every_document_of_the_batch_except_the_positives() -> None:
    torch.manual_seed(0)
    allowed = torch.ones(3, 6, dtype=torch.bool)
    allowed[0, 2] = False  # the second query's positive is also one of the first query
    vectors = LossInputs(torch.randn(3, 4), torch.randn(3, 2, 4), torch.zeros(3, 2), allowed, step=50)
    codes = torch.tanh(vectors.documents.flatten(0, 1) * 6**0.5)
    scores = (torch.tanh(vectors.queries * 6**0.5) @ codes.T).tolist()
    pairs = [(q, d) for q in range(3) for d in range(6) if d != 2 * q and (q, d) != (0, 2)]
    hinges = [max(0.0, 0.1 - scores[q][2 * q] + scores[q][d]) for q, d in pairs]
    assert len(hinges) == 14
    assert bpr(vectors)["candidates"].item() == pytest.approx(sum(hinges) / 14, rel=1e-5)


def test_matryoshka_is_the_mean_over_the_prefixes() -> None:
    torch.manual_seed(1)
    queries, documents = torch.randn(3, 8), torch.randn(3, 2, 8)
    vectors = LossInputs(queries, documents, torch.zeros(3, 2), torch.ones(3, 6, dtype=torch.bool))
    each = [nll(replace(vectors, queries=queries[:, :d], documents=documents[..., :d]))["nll"].item() for d in (2, 8)]
    assert matryoshka(nll, [2, 8], unit=False)(vectors)["nll"].item() == pytest.approx(sum(each) / 2)
    seen = []

    def lengths(part: LossInputs) -> dict[str, torch.Tensor]:
        seen.append(part.documents.norm(dim=-1))
        return nll(part)

    matryoshka(lengths, [2, 8], unit=True)(vectors)
    assert all(torch.allclose(norms, torch.ones(3, 2)) for norms in seen)


def test_distillation_of_the_golden_example() -> None:
    """One item: 1 + 2 + 5 (LITE, eq. 10)."""
    vectors = replace(
        LossInputs(torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 1.0]]]), torch.zeros(1, 1), torch.ones(1, 1) > 0),
        teacher_queries=torch.tensor([[0.0, 0.0]]),
        teacher_documents=torch.tensor([[[2.0, 2.0]]]),
    )
    assert distillation(vectors)["distillation"].item() == pytest.approx(8)
    assert query_distillation(vectors)["distillation"].item() == pytest.approx(6)


@given(st.integers(0, 1000))
def test_distillation_is_the_mean_over_the_texts_of_each_term(seed: int) -> None:
    vectors = random_vectors(seed)
    vectors = replace(vectors, teacher_queries=vectors.queries + 1, teacher_documents=vectors.documents + 2)
    own, positive = 6.0, (vectors.queries - vectors.documents[:, 0] - 2).square().sum(1)
    means = own + positive.mean().item() + 24.0
    assert distillation(vectors)["distillation"].item() == pytest.approx(means, rel=1e-4)


def test_the_first_values_retrieve_and_the_others_match_the_teacher() -> None:
    vectors = replace(random_vectors(3), teacher_queries=torch.zeros(4, 2), teacher_documents=torch.zeros(4, 3, 2))
    terms = with_distillation(nll, 4, weight=0.5)(vectors)
    small = replace(vectors, queries=vectors.queries[:, :4], documents=vectors.documents[..., :4])
    large = replace(vectors, queries=vectors.queries[:, 4:], documents=vectors.documents[..., 4:])
    assert terms["nll"].item() == pytest.approx(nll(small)["nll"].item())
    assert terms["distillation"].item() == pytest.approx(0.5 * distillation(large)["distillation"].item())


def test_inputs_that_a_training_lacks_are_refused_where_they_are_used() -> None:
    """They can be shown, copied to another batch, and nothing else."""
    vectors = LossInputs(torch.eye(2), torch.ones(2, 2, 2), NO_SCORER, torch.ones(2, 4, dtype=torch.bool))
    assert repr(replace(vectors, step=3))  # a look at them is no use
    assert "scorer" in pydoc.render_doc(LossInputs)
    uses: list[tuple[str, Callable[[LossInputs], object]]] = [
        ("scorer", lambda batch: residual_margin(batch)),
        ("scorer", lambda batch: 2.0 - batch.scorer),
        ("scorer", lambda batch: torch.cat([batch.queries, batch.scorer])),
        ("scorer", lambda batch: batch.scorer.shape),
        ("scorer", lambda batch: batch.scorer.tolist()),
        ("scorer", lambda batch: bool(batch.scorer)),
        ("index", lambda batch: orthogonality(batch)),
        ("teacher", lambda batch: query_distillation(batch)),
        ("teacher", lambda batch: kl(batch)),
    ]
    for keyword, use in uses:
        with raises("missing-loss-input", option=keyword):
            use(vectors)
