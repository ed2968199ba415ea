"""Gradients of a loss over a batch whose texts are encoded in chunks and by several processes, and their dropout.

Dropout on CPUs draws four decisions from one random number. Own code because PyTorch draws a number for every value, in
one thread on processors that MKL does not know: a quarter of a training step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hybrid_cli.encoders.transformer import batches_by_length
from hybrid_cli.training import parallel
from hybrid_cli.training.losses import Terms

Chunk = TypeVar("Chunk")
TOKENS_AT_ONCE = 4096


@dataclass(frozen=True)
class Share(Generic[Chunk]):
    """The texts of a batch that this process encodes.

    Attributes:
        chunks: the texts in parts.
        order: position of each text in the chunks, [n].
    """

    chunks: Sequence[Chunk]
    order: Tensor

    @classmethod
    def of(
        cls, lengths: Sequence[int], make: Callable[[np.ndarray], Chunk], most: int | None, tokens: int = TOKENS_AT_ONCE
    ) -> Share[Chunk]:
        """Return texts in chunks of similar length.

        Args:
            lengths: tokens of each text.
            make: makes a chunk of the texts in some rows.
            most: maximum texts of a chunk.
            tokens: maximum tokens of a chunk, padding included.
        """
        parts = [*batches_by_length(lengths, tokens, most)]
        rows = torch.from_numpy(np.concatenate([*parts, np.empty(0, np.int64)]))
        return cls([*map(make, parts)], torch.argsort(rows))

    def __add__(self, other: Share[Chunk]) -> Share[Chunk]:
        """Return these texts, and then those of `other`."""
        return Share([*self.chunks, *other.chunks], torch.cat([self.order, len(self.order) + other.order]))


def backward(
    encode: Callable[[Chunk], Tensor],
    share: Share[Chunk],
    loss: Callable[[Sequence[Tensor]], Terms],
    scale: Callable[[Tensor], Tensor],
    *,
    cached: bool,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Terms:
    """Add the gradients of the sum of `loss(vectors of the whole batch)` to the parameters behind `encode`.

    With caching, every chunk is encoded twice, the second time with the gradient of its vectors, so that only one
    chunk's graph is in memory (GradCache, section 3). The gradient is that of the whole batch up to float error; random
    states are restored, so dropout is the same in both passes. Of several processes, each encodes its own share.

    The loss is computed without autocast, in the precision of the vectors: inner products in bf16 have 8 significant
    bits, so that those above 128 would be whole numbers.

    Args:
        encode: chunk -> vectors [n, d]; may be random (dropout).
        share: texts of this process.
        loss: vectors [n, d] of the texts of each process -> terms, which are scalars.
        scale: scales the sum.
        cached: use gradient caching.
        context: with caching, makes the context of each pass over all chunks: one of autocast casts the weights once.

    Returns:
        Detached terms of the loss.
    """
    if not cached and parallel.size() == 1:
        value, terms = _scaled(loss, scale, [torch.cat([encode(chunk) for chunk in share.chunks])[share.order]])
        value.backward()
        return terms
    states, vectors = [], []
    with torch.no_grad() if cached else nullcontext(), context():
        for chunk in share.chunks:
            states.append(_random_state())
            vectors.append(encode(chunk))
    rows = torch.cat([part.detach() for part in vectors])[share.order] if vectors else torch.empty(0, 0)
    everything = parallel.gather(rows)
    leaves = torch.cat(everything).requires_grad_()
    counts = [len(part) for part in everything]
    value, terms = _scaled(loss, scale, leaves.split(counts))
    gradients = _in_chunks(_gradient(value, leaves).split(counts)[parallel.rank()], share.order, vectors)
    with context():  # another one: casts of the pass without a graph must not be reused
        for chunk, state, known, gradient in zip(share.chunks, states, vectors, gradients, strict=True):
            if not cached:
                known.backward(gradient)
                continue
            with torch.random.fork_rng([] if state[1] is None else [torch.cuda.current_device()]):
                _restore(state)
                encode(chunk).backward(gradient)
    return terms


def _scaled(
    loss: Callable[[Sequence[Tensor]], Terms], scale: Callable[[Tensor], Tensor], vectors: Sequence[Tensor]
) -> tuple[Tensor, Terms]:
    """Return the scaled sum of the terms, and the detached terms."""
    with torch.autocast(vectors[0].device.type, enabled=False):
        terms = loss(vectors)
        value = scale(torch.stack([*terms.values()]).sum())
    return value, {name: term.detach() for name, term in terms.items()}


def _in_chunks(gradient: Tensor, order: Tensor, vectors: list[Tensor]) -> tuple[Tensor, ...]:
    """Return the gradient [n, d] of the texts as gradients of the chunks' vectors."""
    moved = torch.empty_like(gradient)
    moved[order] = gradient
    return moved.split([len(part) for part in vectors]) if vectors else ()


def _gradient(value: Tensor, leaves: Tensor) -> Tensor:
    """Return the gradient of the vectors; only the first process adds the gradients of the loss's own parameters."""
    if parallel.rank():
        return torch.autograd.grad(value, leaves)[0]
    value.backward()
    assert leaves.grad is not None
    return leaves.grad


def _random_state() -> tuple[Tensor, Tensor | None]:
    """Return the random state of the processor and of the current GPU, if one is used."""
    return torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None


def _restore(state: tuple[Tensor, Tensor | None]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])


# ------------------------------------------------------------------------------------------------------------ dropout


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


def dropout_mask(values: Tensor, p: float) -> Tensor:
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
    return input * dropout_mask(input, p)


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
    attended: Tensor = (weights * dropout_mask(weights, dropout_p)) @ value
    return attended
