"""Training in several processes: `torchrun --nproc-per-node 4 -m hybrid_cli train-dense ...`.

Each process encodes its share of a batch and receives the vectors of the whole batch, so that every query sees the
documents of all devices (DPR, section 3.2, with negatives across devices). Gradients equal those of one process up to
float error and dropout. Only the first process writes.
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
from hybrid_cli.errors import InputError


def requested() -> int:
    """Return the number of processes that the launcher started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def size() -> int:
    """Return the number of processes that train together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    """Return the number of this process; process 0 writes."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def refuse(command: str) -> None:
    """Refuse several processes for a command that trains in one.

    Raises:
        InputError: the launcher started more than one process.
    """
    if requested() > 1:
        raise InputError(f"{command}: trains in one process; start it without torchrun")


@contextmanager
def folder(output: Output) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Open `output.folder()` in the first process; the others read the same folder and write nothing."""
    if requested() > 1 and not distributed.is_initialized():
        distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if rank():
        console.set_quiet(True)
        distributed.barrier()
        yield output.partial, {}
    else:
        with output.folder() as (work, counts):
            if size() > 1:
                distributed.barrier()
            yield work, counts
    if size() > 1:
        distributed.destroy_process_group()


def first_alone() -> Iterator[bool]:
    """Run the body of a `for` loop first in the first process, then in the others."""
    if size() == 1:
        yield True
        return
    if rank() == 0:
        yield True
    distributed.barrier()
    if rank():
        yield False


def own(chunks: int) -> range:
    """Return the numbers of the chunks that this process encodes."""
    return range(rank(), chunks, size())


def gather(vectors: list[Tensor]) -> list[Tensor]:
    """Gather the vectors [n, d] of all chunks in order, from the chunks of each process."""
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


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace the gradients of every process by their sum over all processes."""
    if size() == 1:
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        distributed.all_reduce(parameter.grad)
