"""The training loop of all training commands: steps, validations, the learning curve."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Kind, layout
from hybrid_cli.encoders.devices import autocast
from hybrid_cli.errors import HybridError
from hybrid_cli.training import diagnostics, parallel
from hybrid_cli.training.batches import passes
from hybrid_cli.training.checkpoints import State, load_best, load_checkpoint, save_best, save_checkpoint
from hybrid_cli.training.dropout import FastDropout
from hybrid_cli.training.losses import Terms
from hybrid_cli.training.options import Optimization

VALIDATIONS = 10

Batch = TypeVar("Batch")
Contravariant = TypeVar("Contravariant", contravariant=True)


class Learner(Protocol[Contravariant]):
    """A model with its objective.

    Attributes:
        precision: precision of the forward pass; weights and losses stay float32.
    """

    precision: torch.dtype

    @property
    def model(self) -> nn.Module:
        """Module whose parameters are optimized and stored."""
        ...

    def backward(self, batch: Contravariant, scale: Callable[[Tensor], Tensor], step: int = 0) -> Terms:
        """Add the gradients of `scale(loss)` at optimizer step `step`.

        Returns:
            Detached terms of the loss, and diagnostics (see `losses.Vectors.record`).
        """
        ...


@dataclass(frozen=True)
class Validator:
    """Validation during training.

    Attributes:
        measure: returns values for the learning curve; called with the model in evaluation mode, in the precision of
            the training.
        every: steps between two validations, next to those at step 0 and at the last step; None for a tenth of all.
        criterion: value whose maximum selects the stored weights; None stores those of the last step.
        facts: values for the manifest.
        last: returns values of the stored weights, after the last step.
    """

    measure: Callable[[], dict[str, float]]
    every: int | None = None
    criterion: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    last: Callable[[], dict[str, float]] | None = None


@dataclass(frozen=True)
class Epochs:
    """Division of a training into epochs.

    Attributes:
        steps: optimizer steps per epoch.
        finished: called with the number of each complete epoch, from 1.
    """

    steps: int
    finished: Callable[[int], None] | None = None


@dataclass(frozen=True)
class Job(Generic[Batch]):
    """The training job of a command.

    Attributes:
        learner: model and objective.
        batches: maps n to the batches of all epochs from the n-th on.
        steps: number of optimizer steps.
        save: function that writes the trained model into a folder and returns counts for the manifest.
        validator: validation, if any.
        remedy: advice if the first steps have hardly any loss.
    """

    learner: Learner[Batch]
    batches: Callable[[int], Iterator[Batch]]
    steps: int
    save: Callable[[Path], Mapping[str, Any]]
    validator: Validator | None = None
    remedy: str = ""


def epoch_steps(plan: Optimization, examples: int) -> int:
    """Return the number of optimizer steps of an epoch of `examples` training examples."""
    return -(-examples // (plan.batch_size * plan.accumulate))


def steps_of(plan: Optimization, examples: int) -> int:
    """Return the number of optimizer steps for `examples` training examples."""
    return min(plan.max_steps or sys.maxsize, epoch_steps(plan, examples) * passes(plan))


def fit(
    learner: Learner[Batch],
    batches: Callable[[int], Iterator[Batch]],
    plan: Optimization,
    total: int,
    work: Path,
    validator: Validator | None = None,
    remedy: str = "",
    epochs: Epochs | None = None,
) -> State:
    """Train the model of a learner in place, and load the weights of the best validation or of the last step.

    Each step seeds its random numbers from (seed, step), so that a run resumed from a checkpoint ends with the same
    weights as an uninterrupted one.

    Args:
        learner: model and objective.
        batches: maps n to the batches of all epochs from the n-th on.
        plan: optimization settings.
        total: number of optimizer steps, of `plan.accumulate` batches each.
        work: folder of the unfinished artifact, with its checkpoint.
        validator: validation, if any.
        remedy: advice if the first steps have hardly any loss.
        epochs: division into epochs, for schedules and models by epoch.

    Returns:
        Learning curve, best value and its step.
    """
    trainer = Trainer(learner, plan)
    model = learner.model
    state = State()
    validator = None if parallel.rank() else validator
    for _ in parallel.first_alone():  # it may restore an interrupted checkpoint
        state = load_checkpoint(work, model, trainer.optimizer, trainer.scaler)
    parallel.share_weights(model)
    stream = batches(state.step * plan.accumulate)
    every = (validator.every if validator else None) or max(1, total // VALIDATIONS)
    if validator and not state.curve:
        _validate(learner, validator, state, work)
    if state.step and not parallel.rank():
        console.note(f"train: resumes after step {state.step:,}")
    with console.progress("train", total, "steps", lambda: diagnostics.line(state.curve), state.step) as advance:
        for step in range(state.step, total):
            trainer.set_rate(plan.learning_rate * rate_factor(plan, step, total, epochs.steps if epochs else total))
            torch.manual_seed(plan.seed * 1_000_003 + step + (parallel.rank() << 40))
            terms = trainer.step(islice(stream, plan.accumulate), step)
            state.step = step + 1
            state.curve += [(state.step, name, value) for name, value in terms.items()]
            if state.step == min(total, diagnostics.FIRST_STEPS) and not parallel.rank():
                diagnostics.check(state.curve, remedy)
            if validator and (state.step % every == 0 or state.step == total):
                _validate(learner, validator, state, work)
            if epochs and epochs.finished and state.step % epochs.steps == 0 and not parallel.rank():
                epochs.finished(state.step // epochs.steps)
            if state.step % plan.checkpoint_steps == 0 and not parallel.rank():
                save_checkpoint(work, model, trainer.optimizer, trainer.scaler, state)
            advance(1)
    if parallel.rank() or not load_best(work, model, state):
        state.best_step = state.step
    if validator and validator.last:
        _record(learner, validator.last, state, state.best_step)
    return state


def rate_factor(plan: Optimization, step: int, total: int, per_epoch: int) -> float:
    """Return the learning rate at `step` relative to its peak: linear warm-up from 0, then the schedule of the plan.

    Args:
        plan: warm-up and schedule; halving follows RoC (section 4.1).
        step: number of completed steps.
        total: number of steps.
        per_epoch: steps per epoch.
    """
    rising = round(total * plan.warmup) if plan.warmup_steps is None else plan.warmup_steps
    if step < rising:
        return (step + 1) / (rising + 1)
    if plan.schedule == "linear":
        return (total - step) / max(1, total - rising)
    if plan.schedule == "constant":
        return 1.0
    return float(0.5 ** max(0, step // per_epoch - plan.halve_after + 1))


def _validate(learner: Learner[Any], validator: Validator, state: State, work: Path) -> None:
    """Add the values of a validation to the learning curve, print them, and store the weights if they are the best."""
    values = _record(learner, validator.measure, state, state.step)
    if validator.criterion is not None and values[validator.criterion] >= state.best:  # ties: later
        state.best, state.best_step = values[validator.criterion], state.step
        save_best(work, learner.model, state)


def _record(
    learner: Learner[Any], measure: Callable[[], dict[str, float]], state: State, step: int
) -> dict[str, float]:
    """Add values of the current model, in the precision of the training, to the curve, print them, and return them."""
    learner.model.eval()
    with autocast(next(learner.model.parameters()).device, learner.precision):
        values = measure()
    learner.model.train()
    state.curve += [(step, name, value) for name, value in values.items()]
    console.note(f"step {step}: " + ", ".join(f"{name} {value:.4f}" for name, value in values.items()))
    return values


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameters of a model as groups of an optimizer: matrices and embeddings, which decay, and the others.

    As in BERT's optimizer, weights of normalizations and biases, also those of relative positions, do not decay;
    neither do scalars.
    """
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        decay = weight_decay if parameter.dim() > 1 and "bias" not in name else 0.0
        groups.setdefault(decay, []).append(parameter)
    return [{"params": parameters, "weight_decay": decay} for decay, parameters in groups.items()]


class Trainer(Generic[Batch]):
    """Optimizer steps of a learner, with AdamW and the loss scaling of the precision.

    Scalars, such as the weight of a scorer, are clipped apart from the other parameters.
    """

    def __init__(self, learner: Learner[Batch], plan: Optimization):
        self.learner, self.plan = learner, plan
        self.parameters = list(learner.model.train().parameters())
        scalars = [each for each in self.parameters if not each.dim()]
        tensors = [each for each in self.parameters if each.dim()]
        self.clipped = [tensors, scalars] if scalars else [tensors]
        self.optimizer = torch.optim.AdamW(
            parameter_groups(learner.model, plan.weight_decay), lr=plan.learning_rate, eps=1e-8, fused=True
        )
        self.scaler = torch.amp.GradScaler(self.parameters[0].device.type, enabled=learner.precision == torch.float16)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def step(self, batches: Iterator[Batch], step: int = 0) -> dict[str, float]:
        """Make one optimizer step over some batches; return the mean of each term of the loss and diagnostic."""
        totals: dict[str, float] = {}
        for batch in batches:
            with FastDropout():
                terms = self.learner.backward(batch, self._scaled, step)
            for name, value in terms.items():
                totals[name] = totals.get(name, 0.0) + value.item() / self.plan.accumulate
        if wrong := [f"{name} {value}" for name, value in totals.items() if not np.isfinite(value)]:
            remedy = "lower --learning-rate" if step else "check the weights of the start model"
            raise HybridError(
                f"step {step + 1}: values of the training are not finite ({', '.join(wrong)}); {remedy}, or use "
                "--precision fp32"
            )
        parallel.sum_gradients(self.parameters)
        self.scaler.unscale_(self.optimizer)
        for parameters in self.clipped:
            torch.nn.utils.clip_grad_norm_(parameters, self.plan.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return totals

    def _scaled(self, loss: Tensor) -> Tensor:
        return self.scaler.scale(loss / self.plan.accumulate)


def write_curve(folder: Path, state: State, stage: str) -> None:
    """Write the learning curve: step, name, value."""
    steps, names, values = zip(*state.curve, strict=True)
    table = pa.table({"step": steps, "name": names, "value": values})
    manifest = artifacts.Manifest(Kind.LEARNING_CURVE, stage, {}, {})
    artifacts.write_parquet(folder / layout.CURVE, [table], artifacts.SCHEMAS[Kind.LEARNING_CURVE], manifest)
