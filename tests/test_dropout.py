"""Fast dropout against PyTorch's arithmetic: probabilities, scales, attention, and models in training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModel

from hybrid_cli.training import dropout
from hybrid_cli.training.dropout import FastDropout


@pytest.mark.parametrize("p", [0.1, 0.25, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_dropped_with_the_probability_and_scaled(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    with FastDropout():
        found = functional.dropout(torch.ones(401, 997, dtype=dtype), p)
    kept = found != 0
    assert found[kept].unique().tolist() == [pytest.approx(1 / (1 - p), rel=1e-4 if dtype == torch.float32 else 4e-3)]
    rates = kept.flatten()[: 4 * 90_000].view(-1, 4).float().mean(0)  # of the four decisions of a number
    assert (rates - (1 - p)).abs().max() < 5 * (p * (1 - p) / 90_000) ** 0.5
    pairs = kept.flatten()[: 4 * 90_000].view(-1, 4).float().T
    assert (torch.corrcoef(pairs) - torch.eye(4)).abs().max() < 5 / 90_000**0.5


def attention(masked: Tensor | None, p: float) -> tuple[Tensor, Tensor]:
    """Return the result of FastDropout and that of plain arithmetic with the same mask."""
    torch.manual_seed(2)
    query, key, value = torch.randn(3, 2, 4, 7, 8).unbind()
    torch.manual_seed(3)
    with FastDropout():
        found = functional.scaled_dot_product_attention(query, key, value, masked, dropout_p=p)
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / 8**0.5
    if masked is not None:
        scores += torch.zeros(masked.shape).masked_fill(~masked, -torch.inf) if masked.dtype == torch.bool else masked
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    torch.manual_seed(3)
    return found, torch.einsum("bhqk,bhkd->bhqd", weights * dropout.mask(weights, p), value)


def test_attention_weights_are_dropped_after_the_softmax() -> None:
    keys = torch.arange(7) < torch.tensor([[7], [4]])
    for masked in (None, keys[:, None, None], torch.where(keys, 0.0, -1e9)[:, None, None]):
        found, expected = attention(masked, 0.3)
        assert torch.allclose(found, expected, atol=1e-5)


def test_attention_without_dropout_is_that_of_pytorch() -> None:
    torch.manual_seed(4)
    query, key, value = torch.randn(3, 8, 4, 7, 8).unbind()
    with FastDropout():
        causal = functional.scaled_dot_product_attention(query, key, value, dropout_p=0.3, is_causal=True)
        found = functional.scaled_dot_product_attention(query, key, value)
    assert found.equal(functional.scaled_dot_product_attention(query, key, value))
    assert causal[:, :, 0].count_nonzero() < causal[:, :, 0].numel()  # the first row reads one value: dropped or not


def test_a_model_in_training_gets_the_same_masks_from_the_same_random_state(tiny_bert: Path) -> None:
    model = AutoModel.from_pretrained(tiny_bert, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2).train()
    tokens = torch.arange(10, 26).view(2, 8)

    def states(seed: int) -> Tensor:
        torch.manual_seed(seed)
        with FastDropout():
            found: Tensor = model(tokens).last_hidden_state
        return found.detach()

    assert states(1).equal(states(1))
    assert not states(1).equal(states(2))
    torch.manual_seed(1)
    assert not states(1).equal(model(tokens).last_hidden_state)  # PyTorch draws other masks
    model.eval()
    assert states(1).equal(states(2))
