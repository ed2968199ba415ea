"""Training by plain gradient descent, to compare two ways of computing the same gradients.

AdamW divides a gradient by its own size. Where a gradient is 0 but for rounding, its step has full length and an
arbitrary direction, so that equal trainings end apart on some processors; and a gradient that is wrong by a factor
makes the same step.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

Steps = list[list[Tensor]]  # the gradient of each parameter at each optimizer step
TOLERANCE = 1e-3  # rounding gives at most 4e-5; wrong reductions give .1 and more


@contextmanager
def gradient_descent() -> Iterator[Steps]:
    """Train by gradient descent in place of AdamW within this context; yield the gradients of the steps so far."""
    steps: Steps = []

    def record(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        steps.append([torch.zeros_like(each) if each.grad is None else each.grad.clone() for each in parameters])

    hook = register_optimizer_step_pre_hook(record)
    with patch.object(torch.optim, "AdamW", _plain):
        yield steps
    hook.remove()


def _plain(groups: list[dict[str, Any]], lr: float, **of_adam: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr)


def errors(found: Sequence[Sequence[Tensor]], expected: Sequence[Sequence[Tensor]]) -> list[float]:
    """Return the largest relative error of a parameter's gradient at each step.

    An error is relative to the norm of the parameter's gradient, plus a thousandth of that of all parameters: some
    gradients, such as that of an attention's key bias, are 0 but for rounding.
    """
    found_errors = []
    for ours, theirs in zip(found, expected, strict=True):
        norms = torch.stack([each.double().norm() for each in theirs])
        assert norms.norm() > 0, "untrained"
        apart = [(our.double() - their.double()).norm() for our, their in zip(ours, theirs, strict=True)]
        found_errors.append(float((torch.stack(apart) / (norms + norms.norm() / 1000)).max()))
    return found_errors
