"""Gradient caching equals the plain gradient, dropout included."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn
from torch.nn import functional

from hybrid_cli.training.gradients import Share, backward
from hybrid_cli.training.losses import Terms


def gradients(chunk: int, cached: bool, dropout: float) -> list[torch.Tensor | None]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Dropout(dropout), nn.Linear(12, 5))
    inputs = torch.randn(8, 6)

    order = torch.tensor([3, 0, 5, 1, 7, 2, 6, 4])

    def loss(vectors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Terms]:
        scores = vectors[0][:4] @ vectors[0][4:].T
        value = functional.cross_entropy(scores, torch.arange(4))
        return value, {"nll": value}

    torch.manual_seed(1)
    backward(model, Share(inputs.split(chunk), order), loss, cached=cached)
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("chunk", [1, 2, 3, 8])
def test_cached_gradients_equal_those_of_the_whole_batch(chunk: int) -> None:
    for plain, cached in zip(gradients(8, False, 0.0), gradients(chunk, True, 0.0), strict=True):
        torch.testing.assert_close(plain, cached, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk", [1, 2, 8])
def test_dropout_is_the_same_in_both_passes(chunk: int) -> None:
    for plain, cached in zip(gradients(chunk, False, 0.5), gradients(chunk, True, 0.5), strict=True):
        torch.testing.assert_close(plain, cached, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cached", [False, True])
def test_scores_are_not_rounded_to_the_precision_of_the_encoder(cached: bool) -> None:
    """In bf16, inner products above 128 are whole numbers, and a margin of 1 is one step."""
    inputs, seen = 10 * torch.eye(4) + torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), []

    def loss(vectors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Terms]:
        seen.append(scores := vectors[0] @ vectors[0].T)
        return scores.sum(), {}

    leaf = inputs.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        backward(lambda chunk: chunk, Share([leaf], torch.arange(4)), loss, cached=cached)
    torch.testing.assert_close(seen[0], inputs.detach() @ inputs.detach().T, rtol=1e-6, atol=1e-6)
