"""Training in several processes: `torchrun --nproc-per-node 4 -m hybrid_cli train-dense ...`.

Each process has a device of its own, tokenizes and encodes its share of a batch, and receives the vectors of the whole
batch, so that every query sees the documents of all devices (DPR, section 3.2, with negatives across devices).
Gradients equal those of one process up to float error and dropout. Only the first process writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor, distributed, nn

from hybrid_cli.errors import option_error

_PATIENCE = timedelta(days=1)  # the others wait while the first process validates or encodes with a frozen model
BUCKET = 1 << 24  # values of gradients that are summed at once

Item = TypeVar("Item")


def size() -> int:
    """Return the number of processes that train together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    """Return the number of this process; process 0 writes."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def start(name: str) -> bool:
    """Use a device in this process, and join the other processes of the launcher; return whether a group was made.

    Raises:
        InputError: several processes on a device that cannot train in several processes.
    """
    device = torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # before NCCL starts, which else opens a context of each process on GPU 0
    if os.environ.get("WORLD_SIZE", "1") == "1" or distributed.is_initialized():
        return False
    if device.type == "cuda":
        distributed.init_process_group("nccl", device_id=device, timeout=_PATIENCE)
    elif device.type == "cpu":
        distributed.init_process_group("gloo", timeout=_PATIENCE)
    else:
        raise option_error("device", device.type, "trains in one process; omit torchrun", code="option-does-not-apply")
    return True


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


def shares(count: int) -> list[int]:
    """Return the number of items of each process, of `count` items in all."""
    ends = [count * (number + 1) // size() for number in range(size())]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def share(items: Sequence[Item]) -> Sequence[Item]:
    """Return the items of this process."""
    return items[own_slice(len(items))]


def own_slice(count: int) -> slice:
    """Return the slice of this process's items in `count` items."""
    counts = shares(count)
    begin = sum(counts[: rank()])
    return slice(begin, begin + counts[rank()])


def gather(rows: Tensor) -> list[Tensor]:
    """Return the rows [n, d] of each process, in the order of the processes; n may differ, and is 0 without d."""
    if size() == 1:
        return [rows]
    rows = rows.to(_device())
    shape = torch.tensor(rows.shape, device=rows.device)
    shapes = [torch.empty_like(shape) for _ in range(size())]
    distributed.all_gather(shapes, shape)
    counts, widths = torch.stack(shapes).T.tolist()
    mine = rows.new_zeros(max(counts), max(widths))
    if len(rows):
        mine[: len(rows)] = rows
    everyone = [torch.empty_like(mine) for _ in range(size())]
    distributed.all_gather(everyone, mine)
    return [whole[:count] for whole, count in zip(everyone, counts, strict=True)]


def share_weights(model: nn.Module) -> None:
    """Replace the weights of every process by those of the first one."""
    if size() > 1:
        for tensor in model.state_dict().values():
            distributed.broadcast(tensor, 0)


def total(value: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes."""
    if size() > 1:
        distributed.all_reduce(value)
    return value


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace the gradients of every process by their sum over all processes, many parameters at once."""
    if size() == 1:
        return
    running = []
    for bucket in _buckets(parameters):
        flat = torch.cat([_gradient(parameter).flatten() for parameter in bucket])
        running.append((bucket, flat, distributed.all_reduce(flat, async_op=True)))
    for bucket, flat, sum_ in running:
        sum_.wait()
        values = flat.split([parameter.numel() for parameter in bucket])
        for parameter, value in zip(bucket, values, strict=True):
            _gradient(parameter).copy_(value.view_as(parameter))


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yield parameters with at most `BUCKET` values together, or one larger parameter."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        if bucket and sum(gradient.numel() for gradient in bucket) + parameter.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:  # no text of this process reached it
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _device() -> torch.device:
    """Return the device of tensors that processes exchange."""
    if distributed.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
