"""The training loop: the only one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from hybrid_cli import console
from hybrid_cli.config import Optimization
from hybrid_cli.errors import HybridError
from hybrid_cli.training import checkpoint, parallel
from hybrid_cli.training.checkpoint import State
from hybrid_cli.training.losses import Terms

LOOKS = 10

Batch = TypeVar("Batch")
Contravariant = TypeVar("Contravariant", contravariant=True)
Validate = Callable[[], dict[str, float]]


class Learner(Protocol[Contravariant]):
    """What is trained, and for what.

    Attributes:
        precision: what its forward pass computes in; weights and losses stay float32.
    """

    precision: torch.dtype

    @property
    def model(self) -> nn.Module:
        """Whose parameters are optimised and kept."""
        ...

    def backward(self, batch: Contravariant, scale: Callable[[Tensor], Tensor]) -> Terms:
        """Add the gradients of `scale(loss)`; the loss's terms by name, detached."""
        ...


def steps_of(plan: Optimization, examples: int) -> int:
    """Optimiser steps of a training over so many examples."""
    per_epoch = -(-examples // (plan.batch_size * plan.accumulate))
    return min(plan.max_steps or per_epoch * plan.epochs, per_epoch * plan.epochs)


def fit(
    learner: Learner[Batch],
    batches: Callable[[int], Iterator[Batch]],
    plan: Optimization,
    total: int,
    work: Path,
    *,
    begin: Callable[[int], None] = lambda step: None,
    validate: Validate | None = None,
    criterion: str = "",
) -> State:
    """Train the learner's model in place and leave it at its best, or at its last step where nothing validates.

    Every step seeds its own randomness from (seed, step), so a training that is stopped anywhere and begun again from
    the checkpoint in `work` ends with the same weights.

    Args:
        batches: the batches of all epochs, from the n-th one on.
        total: optimiser steps; `plan.accumulate` batches each.
        begin: told before each optimiser step how many were done, also in an earlier run.
        validate: values for the learning curve, the model in evaluation mode.
        criterion: the name among them that decides which weights are best, higher being better.

    Returns:
        The learning curve, the best value and its step.
    """
    trainer = Trainer(learner, plan)
    model = learner.model
    state = checkpoint.restore(work, model, trainer.optimizer, trainer.scaler)
    look_every = plan.eval_steps or max(1, total // LOOKS)
    stream = batches(state.step * plan.accumulate)
    validate = None if parallel.rank() else validate
    if validate and not state.curve:
        _look(model, validate, criterion, plan, state, work)
    with console.progress("train", total, "steps") as advance:
        advance(state.step)
        for step in range(state.step, total):
            trainer.set_rate(plan.learning_rate * rate_factor(step, total, plan.warmup))
            torch.manual_seed(plan.seed * 1_000_003 + step + (parallel.rank() << 40))
            begin(step)
            terms = trainer.step(islice(stream, plan.accumulate))
            state.step = step + 1
            state.curve += [(state.step, name, value) for name, value in terms.items()]
            if validate and (state.step % look_every == 0 or state.step == total):
                _look(model, validate, criterion, plan, state, work)
            if state.step % plan.checkpoint_steps == 0 and not parallel.rank():
                checkpoint.save(work, model, trainer.optimizer, trainer.scaler, state)
            advance(1)
    parallel.end_followers()
    if not checkpoint.load_best(work, model):
        state.best_step = state.step
    return state


def rate_factor(step: int, total: int, warmup: float) -> float:
    """Share of the peak learning rate at `step`: linear from 0 up over the warm-up, then linear down to 0."""
    rising = round(total * warmup)
    if step < rising:
        return (step + 1) / (rising + 1)
    return (total - step) / max(1, total - rising)


def _look(model: nn.Module, validate: Validate, criterion: str, plan: Optimization, state: State, work: Path) -> None:
    model.eval()
    values = validate()
    model.train()
    state.curve += [(state.step, name, value) for name, value in values.items()]
    console.note(f"step {state.step}: " + ", ".join(f"{name} {value:.4f}" for name, value in values.items()))
    if plan.keep == "best" and values[criterion] > state.best:
        state.best, state.best_step = values[criterion], state.step
        checkpoint.save_best(work, model)


class Trainer(Generic[Batch]):
    """What one optimiser step needs: a learner, an optimiser, a scale for its precision."""

    def __init__(self, learner: Learner[Batch], plan: Optimization):
        self.learner, self.plan = learner, plan
        self.parameters = list(learner.model.train().parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=plan.learning_rate, eps=1e-8, weight_decay=plan.weight_decay, fused=True
        )
        self.scaler = torch.amp.GradScaler(self.parameters[0].device.type, enabled=learner.precision == torch.float16)

    def set_rate(self, rate: float) -> None:
        """The learning rate of the next step."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def step(self, micro_batches: Iterator[Batch]) -> dict[str, float]:
        """One optimiser step; the terms' means over its batches."""
        totals: dict[str, float] = {}
        for batch in micro_batches:
            for name, value in self.learner.backward(batch, self._scaled).items():
                totals[name] = totals.get(name, 0.0) + value.item() / self.plan.accumulate
        if not all(np.isfinite(value) for value in totals.values()):
            raise HybridError(
                f"the loss is no longer a number ({totals}); lower --learning-rate, or use --precision fp32"
            )
        parallel.add_up(self.parameters)
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.parameters, self.plan.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return totals

    def _scaled(self, loss: Tensor) -> Tensor:
        return self.scaler.scale(loss / self.plan.accumulate)
