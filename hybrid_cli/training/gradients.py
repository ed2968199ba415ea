"""Gradients of a large batch at the memory of one chunk (gradient caching; Gao et al., 2021; methods 3.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TypeVar

import torch
from torch import Tensor

from hybrid_cli.training import parallel
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

    Of several processes each encodes its share of the chunks, and adds what they give to its own gradients.
    """
    own = [chunks[number] for number in parallel.own(len(chunks))]
    if not cached and parallel.size() == 1:
        value, terms = loss(torch.cat([encode(chunk) for chunk in own]))
        value.backward()
        return terms
    states, vectors = [], []
    with torch.no_grad() if cached else nullcontext():
        for chunk in own:
            states.append(_random_state())
            vectors.append(encode(chunk))
    everything = parallel.gathered([each.detach() for each in vectors])
    leaves = torch.cat(everything).requires_grad_()
    value, terms = loss(leaves)
    gradients = _of_leaves(value, leaves).split([len(each) for each in everything])
    for number, chunk, state, known in zip(parallel.own(len(chunks)), own, states, vectors, strict=True):
        if not cached:
            known.backward(gradients[number])
            continue
        with torch.random.fork_rng():
            _restore(state)
            encode(chunk).backward(gradients[number])
    return terms


def _of_leaves(value: Tensor, leaves: Tensor) -> Tensor:
    """The gradient of the vectors; parameters of the loss itself get theirs in one process alone, as it is summed."""
    if parallel.rank():
        return torch.autograd.grad(value, leaves)[0]
    value.backward()
    assert leaves.grad is not None
    return leaves.grad


def _random_state() -> tuple[Tensor, list[Tensor]]:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def _restore(state: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
