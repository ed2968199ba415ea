"""Dropout on CPUs that draws four decisions from one random number.

Own code because PyTorch draws a number for every value, in one thread on processors that MKL does not know: a quarter
of a training step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_STEPS = 1 << 16  # probabilities are multiples of 1/65536


class FastDropout(TorchFunctionMode):
    """Replaces dropout of vectors and of attention weights on CPUs within this context.

    Every value is dropped with the probability p, rounded to 1/65536, and scaled by 1 / (1 - p) otherwise, as PyTorch
    does. Masks depend only on PyTorch's random state.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is functional.dropout:
            return _dropout(*args, **(kwargs or {}))
        if function is functional.scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def mask(values: Tensor, p: float) -> Tensor:
    """Return factors for `values`, of their shape and type: 0 with probability p, else 1 / (1 - p)."""
    dropped = round(p * _STEPS)
    numbers = torch.empty(-(-values.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = numbers.view(torch.int16)[: values.numel()] >= dropped - _STEPS // 2
    return kept.to(values.dtype).mul_(_STEPS / (_STEPS - dropped)).view(values.shape)


def _fits(values: Tensor, p: float) -> bool:
    return values.device.type == "cpu" and 0 < round(p * _STEPS) < _STEPS


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or inplace or not _fits(input, p):
        return functional.dropout(input, p, training, inplace)
    return input * mask(input, p)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, **options: Any
) -> Tensor:
    scale = options.pop("scale", None)
    if not _fits(query, dropout_p) or any(options.values()):  # causal or grouped
        return functional.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, scale=scale, **options)
    scores = (query @ key.transpose(-2, -1)) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = scores.softmax(-1)
    attended: Tensor = (weights * mask(weights, dropout_p)) @ value
    return attended
