"""Gradients of a large batch at the memory of one chunk (gradient caching; Gao et al., 2021; methods 3.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from hybrid_cli.training.losses import Terms

Chunk = TypeVar("Chunk")


def backward(
    encode: Callable[[Chunk], Tensor],
    chunks: Sequence[Chunk],
    loss: Callable[[Tensor], tuple[Tensor, Terms]],
    *,
    cached: bool,
) -> Terms:
    """Add the gradients of `loss(vectors of all chunks)` to the parameters behind `encode`.

    Args:
        encode: chunk to vectors [n, d]; may be random (dropout).
        chunks: the batch in pieces.
        loss: vectors of the whole batch, in the order of the chunks, to (scalar to go back from, terms to report).
        cached: encode every chunk twice, the second time with the gradient of its vectors, and hold one chunk's graph
            at a time; equal to the plain way up to float error, dropout replayed.
    """
    if not cached:
        value, terms = loss(torch.cat([encode(chunk) for chunk in chunks]))
        value.backward()
        return terms
    states, vectors = [], []
    with torch.no_grad():
        for chunk in chunks:
            states.append(_random_state())
            vectors.append(encode(chunk))
    leaves = torch.cat(vectors).requires_grad_()
    value, terms = loss(leaves)
    value.backward()
    assert leaves.grad is not None
    for chunk, state, gradient in zip(chunks, states, leaves.grad.split([len(v) for v in vectors]), strict=True):
        with torch.random.fork_rng():
            _restore(state)
            encode(chunk).backward(gradient)
    return terms


def _random_state() -> tuple[Tensor, list[Tensor]]:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def _restore(state: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
