"""Several processes train as one (`torchrun --nproc-per-node 4 -m hybrid_cli train-dense ...`).

Each encodes its share of a batch, all get the vectors of the whole batch, so that every query sees the documents of all
devices (methods 3.3). Gradients are those of one process, up to float error and dropout. The first process keeps the
model; the others end with the last step.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from hybrid_cli import console
from hybrid_cli.artifacts import Output


def size() -> int:
    """How many processes train together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    """Which of them this one is; 0 keeps the model."""
    return distributed.get_rank() if distributed.is_initialized() else 0


@contextmanager
def folder(claim: Output) -> Iterator[tuple[Path, dict[str, Any]]]:
    """`claim.folder()` for the first process; the others read there what it has begun, and write nothing."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not distributed.is_initialized():
        distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if rank():
        console.set_quiet(True)
        distributed.barrier()
        yield claim.partial, {}
        return
    with claim.folder() as (work, counts):
        if size() > 1:
            distributed.barrier()
        yield work, counts
    if size() > 1:
        distributed.destroy_process_group()


def end_followers() -> None:
    """Where training is over, only the first process has more to do."""
    if rank():
        distributed.destroy_process_group()
        raise SystemExit(0)


def first_alone() -> Iterator[bool]:
    """`for mine in first_alone()`: the body runs in the first process, then in the others, which find what it left."""
    if size() == 1:
        yield True
        return
    if rank() == 0:
        yield True
    distributed.barrier()
    if rank():
        yield False


def own(chunks: int) -> range:
    """The numbers of the chunks that this process encodes."""
    return range(rank(), chunks, size())


def gathered(vectors: list[Tensor]) -> list[Tensor]:
    """The vectors [n, d] of all chunks in their order, from those of each process's own chunks."""
    if size() == 1:
        return vectors
    shapes: list[list[tuple[int, int]]] = [[] for _ in range(size())]
    distributed.all_gather_object(shapes, [tuple(each.shape) for each in vectors])
    lengths = [[count for count, _ in theirs] for theirs in shapes]
    width = next(width for theirs in shapes for _, width in theirs)
    device = vectors[0].device if vectors else torch.device("cuda" if torch.cuda.is_available() else "cpu")
    mine = torch.zeros(max(map(sum, lengths)), width, device=device)
    if vectors:
        mine[: sum(lengths[rank()])] = torch.cat(vectors)
    everyone = [torch.empty_like(mine) for _ in range(size())]
    distributed.all_gather(everyone, mine)
    parts = [whole[: sum(each)].split(each) for whole, each in zip(everyone, lengths, strict=True)]
    return [parts[chunk % size()][chunk // size()] for chunk in range(sum(map(len, lengths)))]


def add_up(parameters: Iterable[nn.Parameter]) -> None:
    """Give every process the sum of the gradients of all."""
    if size() == 1:
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        distributed.all_reduce(parameter.grad)
