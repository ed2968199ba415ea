"""Gradients of pretraining: equal in chunks, with and without caching; terms by name."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from hybrid_cli.training.losses import Terms
from hybrid_cli.training.pretraining import IGNORED, MaskedLanguageModel, PretrainingLearner, Spans


class Tokenizer:
    pad_token_id = 0


def batch_of(spans: int = 6) -> Spans:
    rng = np.random.default_rng(0)
    ids = [np.array([101, *rng.integers(1000, 2000, rng.integers(4, 15)), 102]) for _ in range(spans)]
    labels = [np.where(rng.random(len(row)) < 0.4, row, IGNORED) for row in ids]
    return Spans(ids, labels)


def learner(tiny_bert: Path, cocondenser: bool, chunk_size: int | None) -> PretrainingLearner:
    torch.manual_seed(0)
    model = MaskedLanguageModel.load(tiny_bert, condenser=cocondenser).eval()
    return PretrainingLearner(model, Tokenizer(), torch.float32, chunk_size)


def gradients(
    tiny_bert: Path, cocondenser: bool, chunk_size: int | None, batch: Spans
) -> tuple[Terms, list[torch.Tensor | None]]:
    mine = learner(tiny_bert, cocondenser, chunk_size)
    terms = mine.backward(batch, lambda loss: 8 * loss)
    return terms, [parameter.grad for parameter in mine.model.parameters()]


@pytest.mark.parametrize("cocondenser", [False, True])
@pytest.mark.parametrize("chunk_size", [1, 2, 4, 6])
def test_chunks_do_not_change_the_gradient(tiny_bert: Path, cocondenser: bool, chunk_size: int) -> None:
    batch = batch_of()
    whole_terms, whole = gradients(tiny_bert, cocondenser, None, batch)
    terms, parts = gradients(tiny_bert, cocondenser, chunk_size, batch)
    torch.testing.assert_close(terms, whole_terms)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_the_gradient_is_that_of_the_sum_of_the_terms(tiny_bert: Path) -> None:
    """Compare with the loss written without rows, chunks and orders."""
    batch = batch_of()
    _, mine = gradients(tiny_bert, True, None, batch)
    model = learner(tiny_bert, True, None).model
    masked = sum((labels != IGNORED).sum() for labels in batch.labels)
    results = [
        model(torch.tensor(ids)[None], torch.ones(1, len(ids)), torch.tensor(labels)[None])
        for ids, labels in zip(batch.ids, batch.labels, strict=True)
    ]
    loss = sum(losses.sum() for _, losses in results) / masked
    vectors = [vector[0] for vector, _ in results]
    for i, vector in enumerate(vectors):
        scores = torch.stack([vector @ other for j, other in enumerate(vectors) if j != i])
        positive = vector @ vectors[i + 1 if i % 2 == 0 else i - 1]
        loss = loss + (torch.logsumexp(scores, 0) - positive) / len(vectors)
    (8 * loss).backward()
    for one, other in zip(mine, [parameter.grad for parameter in model.parameters()], strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_measured_terms_equal_trained_terms(tiny_bert: Path) -> None:
    batch = batch_of()
    for cocondenser, names in ((False, ["mlm"]), (True, ["mlm", "condenser_mlm", "span_contrast"])):
        mine = learner(tiny_bert, cocondenser, None)
        terms = mine.backward(batch, lambda loss: loss)
        assert list(terms) == names
        assert mine.measure(batch) == pytest.approx({f"held_out_{name}": terms[name].item() for name in names})


def test_the_order_of_pairs_does_not_matter(tiny_bert: Path) -> None:
    batch = batch_of()
    order = list(chain.from_iterable((2 * pair, 2 * pair + 1) for pair in (2, 0, 1)))
    moved = Spans([batch.ids[row] for row in order], [batch.labels[row] for row in order])
    plain, other = (gradients(tiny_bert, True, 2, spans) for spans in (batch, moved))
    torch.testing.assert_close(plain[0], other[0])
    for one, two in zip(plain[1], other[1], strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)
