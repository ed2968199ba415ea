"""Losses on vectors: orthogonality, span contrast, binary codes, prefixes of vectors, distillation."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from hybrid_cli.training.losses import (
    LossInputs,
    bpr,
    distillation,
    matryoshka,
    nll,
    orthogonality,
    query_distillation,
    relaxed_signs,
    span_contrast,
    squared_cosine,
    with_distillation,
)


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


@given(st.permutations(range(4)), st.lists(st.booleans(), min_size=4, max_size=4))
def test_span_contrast_is_invariant_under_the_order_of_documents_and_of_their_spans(
    order: list[int], swapped: list[bool]
) -> None:
    vectors = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    moved = [vectors[2 * i + (place ^ swap)] for i, swap in zip(order, swapped, strict=True) for place in (0, 1)]
    torch.testing.assert_close(span_contrast(torch.stack(moved)), span_contrast(vectors))


@given(st.integers(0, 1000))
def test_a_rotation_of_the_encoder_changes_the_squared_cosines_and_no_score(seed: int) -> None:
    """Orthogonality can be satisfied without changing any ranking."""
    vectors = random_vectors(seed)
    rotation, _ = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(seed)))
    rotated = replace(vectors, queries=vectors.queries @ rotation, documents=vectors.documents @ rotation)
    torch.testing.assert_close(nll(rotated)["nll"], nll(vectors)["nll"], rtol=1e-4, atol=1e-5)
    assert orthogonality(rotated)["orthogonality"] != orthogonality(vectors)["orthogonality"]


def test_bpr_of_the_golden_codes() -> None:
    query, documents = torch.tensor([[0.5, -0.2]]), torch.tensor([[[0.3, -0.4], [0.3, -0.35]]])
    scores = (relaxed_signs(query, 0) @ relaxed_signs(documents[0], 0).T)[0]
    assert scores.tolist() == pytest.approx([0.209614, 0.201015], abs=3e-6)
    vectors = LossInputs(query, documents, torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool))
    terms = bpr(vectors)
    assert terms["candidates"].item() == pytest.approx(0.091401, abs=3e-6)
    reranked = functional.cross_entropy(query @ torch.tanh(documents[0]).T, torch.tensor([0]))
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
    plain = LossInputs(queries, documents, torch.zeros(3, 2), torch.ones(3, 6, dtype=torch.bool), step=20)
    terms = bpr(plain, unit=True)
    assert terms["candidates"].item() == pytest.approx(
        bpr(replace(plain, queries=3 * queries, documents=3 * documents))["candidates"].item()
    )
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
