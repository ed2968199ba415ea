"""Gradients of a loss over a batch whose texts are encoded in chunks and by several processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from hybrid_cli.training import parallel
from hybrid_cli.training.losses import Terms

Chunk = TypeVar("Chunk")


@dataclass(frozen=True)
class Share(Generic[Chunk]):
    """The texts of a batch that this process encodes.

    Attributes:
        chunks: the texts in parts.
        order: position of each text in the chunks, [n].
    """

    chunks: Sequence[Chunk]
    order: Tensor


def backward(
    encode: Callable[[Chunk], Tensor],
    share: Share[Chunk],
    loss: Callable[[Sequence[Tensor]], tuple[Tensor, Terms]],
    *,
    cached: bool,
) -> Terms:
    """Add the gradients of `loss(vectors of the whole batch)` to the parameters behind `encode`.

    With caching, every chunk is encoded twice, the second time with the gradient of its vectors, so that only one
    chunk's graph is in memory (GradCache, section 3). The gradient is that of the whole batch up to float error; random
    states are restored, so dropout is the same in both passes. Of several processes, each encodes its own share.

    The loss is computed without autocast, in the precision of the vectors: inner products in bf16 have 8 significant
    bits, so that those above 128 would be whole numbers.

    Args:
        encode: chunk -> vectors [n, d]; may be random (dropout).
        share: texts of this process.
        loss: vectors [n, d] of the texts of each process -> (scalar, terms to report).
        cached: use gradient caching.

    Returns:
        Terms of the loss.
    """
    if not cached and parallel.size() == 1:
        value, terms = _without_autocast(loss, [torch.cat([encode(chunk) for chunk in share.chunks])[share.order]])
        value.backward()
        return terms
    states, vectors = [], []
    with torch.no_grad() if cached else nullcontext():
        for chunk in share.chunks:
            states.append(_random_state())
            vectors.append(encode(chunk))
    rows = torch.cat([part.detach() for part in vectors])[share.order] if vectors else torch.empty(0, 0)
    everything = parallel.gather(rows)
    leaves = torch.cat(everything).requires_grad_()
    counts = [len(part) for part in everything]
    value, terms = _without_autocast(loss, leaves.split(counts))
    gradients = _in_chunks(_gradient(value, leaves).split(counts)[parallel.rank()], share.order, vectors)
    for chunk, state, known, gradient in zip(share.chunks, states, vectors, gradients, strict=True):
        if not cached:
            known.backward(gradient)
            continue
        with torch.random.fork_rng([] if state[1] is None else [torch.cuda.current_device()]):
            _restore(state)
            encode(chunk).backward(gradient)
    return terms


def _without_autocast(
    loss: Callable[[Sequence[Tensor]], tuple[Tensor, Terms]], vectors: Sequence[Tensor]
) -> tuple[Tensor, Terms]:
    with torch.autocast(vectors[0].device.type, enabled=False):
        return loss(vectors)


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
