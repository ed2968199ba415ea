"""The training loop of all training commands: steps, validations, the learning curve, checkpoints.

Checkpoints are replaced atomically, and compared with their checksums before they are used.

The curve shows a training that learns nothing: `active_share` is the share of triples with hinge loss, or the mean
probability of the likelihood that is not on the positive: in both, the mean derivative of the loss with respect to the
positive's score. Triples that already fulfil the margin have no gradient.
"""

from __future__ import annotations

import io
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import load_model, save_file, save_model
from torch import Tensor, nn

from hybrid_cli import console, storage
from hybrid_cli.encoders.models import autocast
from hybrid_cli.errors import DamageError, HybridError, path_error
from hybrid_cli.inputs.files import read_bytes
from hybrid_cli.inputs.json_values import read_json
from hybrid_cli.storage import Kind, disk, layout
from hybrid_cli.training import parallel
from hybrid_cli.training.batches import passes
from hybrid_cli.training.gradients import FastDropout
from hybrid_cli.training.losses import Terms
from hybrid_cli.training.options import Optimization

FIRST_STEPS, RECENT_STEPS = 10, 10
LITTLE_LOSS = 0.1
HARDER_NEGATIVES = "mine harder negatives (a lower --depth, or --sources run:PATH of a dense run)"
SHOWN_VALUES = {  # name in the learning curve -> name and format in the progress line
    "active_share": ("active", ".0%"),
    "mean_margin": ("margin", ".2f"),
    "positive_similarity": ("positives", ".2f"),
    "negative_similarity": ("negatives", ".2f"),
    "positive_score": ("positives", ".2f"),  # of rerankers
    "negative_score": ("negatives", ".2f"),
}

Curve = Sequence[tuple[int, str, float]]


def recent_means(curve: Curve) -> str:
    """Return the means of the last steps in one line: `active 34%, margin 0.97, positives 0.61, negatives 0.31`."""
    values: dict[str, list[float]] = {name: [] for name in SHOWN_VALUES}
    for step, name, value in reversed(curve):
        if step <= curve[-1][0] - RECENT_STEPS:
            break
        if name in values:
            values[name].append(value)
    means = {name: sum(recent) / len(recent) for name, recent in values.items() if recent}
    return ", ".join(f"{SHOWN_VALUES[name][0]} {mean:{SHOWN_VALUES[name][1]}}" for name, mean in means.items())


def warn_of_little_loss(curve: Curve, remedy: str = "") -> None:
    """Warn if the first steps have hardly any loss.

    Args:
        curve: step, name, value of all steps so far.
        remedy: advice, in the imperative.
    """
    shares = [value for _, name, value in curve if name == "active_share"]
    if shares and (mean := sum(shares) / len(shares)) < LITTLE_LOSS:
        problem = f"active share {mean:.1%} in the first {len(shares)} steps: hardly any loss is left to learn from"
        facts = {"active_share": mean, "steps": len(shares), "remedy": remedy}
        console.warn(f"{problem}; {remedy}".removesuffix("; "), code="hardly-any-loss", **facts)


VALIDATIONS = 10
LOG_STEPS = 10  # steps whose values are read from a GPU at once: each read waits for the GPU
CPU_LOG_STEPS = 1
_FULL_RATE = 3  # epochs before `halve` halves the rate (RoC, section 4.1)

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

    def backward(self, batch: Contravariant, scale: Callable[[Tensor], Tensor], step: int = 0) -> Terms:
        """Add the gradients of `scale(loss)` at optimizer step `step`.

        Returns:
            Detached terms of the loss, and diagnostics (see `losses.Vectors.record`).
        """


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


class Callback:
    """Functions that the training loop calls in the first process. A subclass overrides some of them.

    Example:
        >>> from hybrid_cli.training import Callback
        >>> class Printed(Callback):
        ...     def on_epoch(self, epoch):
        ...         print(f"epoch {epoch}")
        >>> Printed().on_epoch(1)
        epoch 1
    """

    def on_start(self, facts: Mapping[str, Any], curve: Sequence[tuple[int, str, float]]) -> None:
        """Receive `Job.facts`, and the learning curve of the checkpoint from which the training resumes."""

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        """Receive the terms of the loss and the diagnostics of an optimizer step, in the order of the steps.

        Values on a GPU are read once per `LOG_STEPS` steps, so a step is reported a few steps later.
        """

    def on_validation(self, step: int, values: Mapping[str, float]) -> None:
        """Receive the values of a validation after `step` optimizer steps, with the model in training mode.

        Values of the kept weights follow the last step, with the step of these weights.
        """

    def on_epoch(self, epoch: int) -> None:
        """Receive the number of a complete epoch, from 1."""

    def on_checkpoint(self, step: int) -> None:
        """Receive the step of a checkpoint that has been written."""

    def on_end(self) -> None:
        """Note the end of a training that started, also by an error or an interruption."""


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
        epoch_steps: optimizer steps per epoch, for schedules and callbacks; None for a training without epochs.
        facts: facts for callbacks; those of a command are the fields of the manifest (`stage`, `options`, `inputs`).
    """

    learner: Learner[Batch]
    batches: Callable[[int], Iterator[Batch]]
    steps: int
    save: Callable[[Path], Mapping[str, Any]]
    validator: Validator | None = None
    remedy: str = ""
    epoch_steps: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def epoch_steps(plan: Optimization, examples: int) -> int:
    """Return the number of optimizer steps of an epoch of `examples` training examples."""
    return -(-examples // (plan.batch_size * plan.accumulate))


def steps_of(plan: Optimization, examples: int) -> int:
    """Return the number of optimizer steps for `examples` training examples."""
    return min(plan.max_steps or sys.maxsize, epoch_steps(plan, examples) * passes(plan))


def train(job: Job[Batch], plan: Optimization, work: Path, callbacks: Sequence[Callback] = ()) -> Progress:
    """Train the model of a learner in place, and load the weights of the best validation or of the last step.

    Each step seeds its random numbers from (seed, step), so that a run resumed from a checkpoint ends with the same
    weights as an uninterrupted one.

    Args:
        job: model, objective, batches and validation; `plan.accumulate` batches are a step.
        plan: optimization settings.
        work: folder of the unfinished artifact, with its checkpoint; created if it is missing.
        callbacks: are called in order.

    Returns:
        Learning curve, best value and its step.
    """
    work.mkdir(parents=True, exist_ok=True)
    loop = _Loop(job, plan, work, () if parallel.rank() else callbacks)
    with ExitStack() as ends:
        loop.resume(ends)
        stream = job.batches(loop.state.step * plan.accumulate)
        line = partial(recent_means, loop.state.curve)
        with console.progress("train", job.steps, "steps", line, loop.state.step) as advance:
            for step in range(loop.state.step, job.steps):
                loop.step(islice(stream, plan.accumulate), step)
                advance(1)
        return loop.finished()


class _Loop(Generic[Batch]):
    """Progress and steps of a training; see `train`."""

    def __init__(self, job: Job[Batch], plan: Optimization, work: Path, callbacks: Sequence[Callback]):
        self.job, self.plan, self.work, self.callbacks = job, plan, work, callbacks
        self.learner, self.model = job.learner, job.learner.model
        self.trainer = Trainer(job.learner, plan)
        self.validator = None if parallel.rank() else job.validator
        self.every = (job.validator.every if job.validator else None) or max(1, job.steps // VALIDATIONS)
        self.log_steps = CPU_LOG_STEPS if next(self.model.parameters()).device.type == "cpu" else LOG_STEPS
        self.pending: list[tuple[int, list[Terms]]] = []
        self.state = Progress()

    def resume(self, ends: ExitStack) -> None:
        """Load the checkpoint of an interrupted training; else validate the model before the training.

        `ends` calls `on_end` of the callbacks.
        """
        for _ in parallel.first_alone():  # it may restore an interrupted checkpoint
            self.state = load_checkpoint(self.work, self.model, self.trainer.optimizer, self.trainer.scaler)
        parallel.share_weights(self.model)
        for callback in self.callbacks:
            callback.on_start(self.job.facts, self.state.curve)
            ends.callback(callback.on_end)
        if self.validator and not self.state.curve:
            self._validate(self.validator)
        if self.state.step and not parallel.rank():
            console.note(f"train: resumes after step {self.state.step:,}", code="resumed", step=self.state.step)

    def step(self, batches: Iterator[Batch], step: int) -> None:
        """Make an optimizer step, and what is due after it."""
        state, total, per_epoch = self.state, self.job.steps, self.job.epoch_steps
        for group in self.trainer.optimizer.param_groups:
            group["lr"] = self.plan.learning_rate * rate_factor(self.plan, step, total, per_epoch or total)
        torch.manual_seed(self.plan.seed * 1_000_003 + step + (parallel.rank() << 40))
        self.pending.append((step + 1, self.trainer.step(batches, step)))
        state.step = step + 1
        first = not parallel.rank()
        checked = state.step == min(total, FIRST_STEPS)
        validated = self.validator and (state.step % self.every == 0 or state.step == total)
        epoch = per_epoch is not None and state.step % per_epoch == 0
        stored = state.step % self.plan.checkpoint_steps == 0
        if checked or validated or epoch or stored or state.step == total or state.step % self.log_steps == 0:
            self._read()
        if checked and first:
            warn_of_little_loss(state.curve, self.job.remedy)
        if self.validator and validated:
            self._validate(self.validator)
        if epoch and per_epoch:
            for callback in self.callbacks:
                callback.on_epoch(state.step // per_epoch)
        if stored and first:
            save_checkpoint(self.work, self.model, self.trainer.optimizer, self.trainer.scaler, state)
            for callback in self.callbacks:
                callback.on_checkpoint(state.step)

    def finished(self) -> Progress:
        """Load the weights that are kept, and measure them; return the state."""
        if parallel.rank() or not load_best(self.work, self.model, self.state):
            self.state.best_step = self.state.step
        if self.validator and self.validator.last:
            self._measure(self.validator.last, self.state.best_step)
        return self.state

    def _read(self) -> None:
        """Read the values of the pending steps from the device, and add their means to the learning curve.

        Raises:
            HybridError: a value is not finite.
        """
        tensors = [value for _, batches in self.pending for terms in batches for value in terms.values()]
        values = iter(scalars(tensors))
        for step, batches in self.pending:
            means: dict[str, float] = {}
            for terms in batches:
                for name in terms:
                    means[name] = means.get(name, 0.0) + next(values) / self.plan.accumulate
            _refuse_infinite(step, means)
            self.state.curve += [(step, name, value) for name, value in means.items()]
            for callback in self.callbacks:
                callback.on_step(step, means)
        self.pending.clear()

    def _validate(self, validator: Validator) -> None:
        """Add the values of a validation to the curve, print them, and store the weights if they are the best."""
        state = self.state
        values = self._measure(validator.measure, state.step)
        if validator.criterion is not None and values[validator.criterion] >= state.best:  # ties: later
            state.best, state.best_step = values[validator.criterion], state.step
            save_best(self.work, self.model, state)

    def _measure(self, measure: Callable[[], dict[str, float]], step: int) -> dict[str, float]:
        """Add values of the model, in the precision of the training, to the curve, print them, and return them."""
        self.model.eval()
        with autocast(next(self.model.parameters()).device, self.learner.precision):
            values = measure()
        self.model.train()
        self.state.curve += [(step, name, value) for name, value in values.items()]
        console.note(f"step {step}: " + ", ".join(f"{name} {value:.4f}" for name, value in values.items()))
        for callback in self.callbacks:
            callback.on_validation(step, values)
        return values


def scalars(tensors: Sequence[Tensor]) -> list[float]:
    """Return the values of scalar tensors, with one read per device and type."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for number, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(number)
    values = [0.0] * len(tensors)
    for numbers in groups.values():
        read = torch.stack([tensors[number].reshape(()) for number in numbers]).tolist()
        for number, value in zip(numbers, read, strict=True):
            values[number] = value
    return values


def _refuse_infinite(step: int, values: Mapping[str, float]) -> None:
    if wrong := {name: value for name, value in values.items() if not np.isfinite(value)}:
        problem = f"step {step}: {', '.join(wrong)} not finite; lower --learning-rate, or use --dtype fp32"
        raise HybridError(problem, code="values-not-finite", step=step, names=list(wrong))


def rate_factor(plan: Optimization, step: int, total: int, per_epoch: int) -> float:
    """Return the learning rate at `step` relative to its peak: linear warm-up from 0, then the schedule of the plan.

    Args:
        plan: warm-up and schedule; halving follows RoC (section 4.1).
        step: number of completed steps.
        total: number of steps.
        per_epoch: steps per epoch.
    """
    rising = round(total * plan.warmup if plan.warmup < 1 else plan.warmup)
    if step < rising:
        return (step + 1) / (rising + 1)
    if plan.schedule == "linear":
        return (total - step) / max(1, total - rising)
    if plan.schedule == "constant":
        return 1.0
    return float(0.5 ** max(0, step // per_epoch - _FULL_RATE + 1))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameters of a model as groups of an optimizer: matrices and embeddings, which decay, and the others.

    As in BERT's optimizer, weights of normalizations and biases, also those of relative positions, do not decay;
    neither do scalars.
    """
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        decay = weight_decay if parameter.dim() > 1 and "bias" not in name else 0.0
        groups.setdefault(decay, []).append(parameter)
    return [{"params": parameters, "weight_decay": decay} for decay, parameters in groups.items()]


class Trainer(Generic[Batch]):
    """Optimizer steps of a learner, with AdamW and the loss scaling of the precision.

    Scalars, such as the weight of a scorer, are clipped apart from the other parameters.
    """

    def __init__(self, learner: Learner[Batch], plan: Optimization):
        self.learner, self.plan = learner, plan
        self.parameters = [weight for weight in learner.model.train().parameters() if weight.requires_grad]
        # The backward pass that computes states again runs outside of the mode, and would draw other masks.
        again = any(getattr(part, "gradient_checkpointing", False) for part in learner.model.modules())
        self._dropout: Callable[[], AbstractContextManager[Any]] = nullcontext if again else FastDropout
        scalars = [parameter for parameter in self.parameters if not parameter.dim()]
        tensors = [parameter for parameter in self.parameters if parameter.dim()]
        self.clipped = [tensors, scalars] if scalars else [tensors]
        self.optimizer = torch.optim.AdamW(
            parameter_groups(learner.model, plan.weight_decay), lr=plan.learning_rate, eps=1e-8, fused=True
        )
        self.scaler = torch.amp.GradScaler(self.parameters[0].device.type, enabled=learner.precision == torch.float16)

    def step(self, batches: Iterator[Batch], step: int = 0) -> list[Terms]:
        """Make one optimizer step over some batches; return the terms of the loss and diagnostics of each batch."""
        terms = []
        for batch in batches:
            with self._dropout():
                terms.append(self.learner.backward(batch, self._scaled, step))
        parallel.sum_gradients(self.parameters)
        self.scaler.unscale_(self.optimizer)
        for parameters in self.clipped:
            torch.nn.utils.clip_grad_norm_(parameters, self.plan.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return terms

    def _scaled(self, loss: Tensor) -> Tensor:
        return self.scaler.scale(loss / self.plan.accumulate)


def write_curve(folder: Path, state: Progress, stage: str) -> None:
    """Write the learning curve: step, name, value."""
    steps, names, values = zip(*state.curve, strict=True)
    table = pa.table({"step": steps, "name": names, "value": values})
    record = storage.Record(Kind.LEARNING_CURVE, stage)
    storage.write_parquet(folder / layout.CURVE, [table], storage.SCHEMAS[Kind.LEARNING_CURVE], record)


# -------------------------------------------------------------------------------------------------------- checkpoints


_BUFFER = 1 << 20  # bytes; PyTorch writes four pieces for each tensor


@dataclass
class Progress:
    """Progress of a training: completed steps, learning curve, best dev value, its step, checksum of its weights."""

    step: int = 0
    curve: list[tuple[int, str, float]] = field(default_factory=list)
    best: float = -1.0
    best_step: int = 0
    best_checksum: str = ""


def save_checkpoint(
    work: Path, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, state: Progress
) -> None:
    """Replace the checkpoint in `work` atomically; remove best weights that are not its own."""
    with storage.replacing(work / layout.CHECKPOINT) as scratch:
        scratch.mkdir()
        with disk.by_name(scratch / layout.WEIGHTS) as file:
            _save(model, file)
        with disk.create(scratch / layout.OPTIMIZER) as file, io.BufferedWriter(file, _BUFFER) as buffered:
            torch.save({"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, buffered)
        disk.write_text(scratch / layout.STATE, json.dumps(vars(state)))
        disk.write_text(scratch / layout.CHECKSUM, storage.hash_folder(scratch))
    for file in work.glob(layout.BEST_WEIGHTS.format("*")):
        if file != _best(work, state):
            disk.remove(file)


def load_checkpoint(
    work: Path, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> Progress:
    """Load the checkpoint in `work`, if there is one, and return its progress.

    Raises:
        DamageError: its files are not those that were written.
        InputError: another version of hybrid wrote it.
    """
    folder = work / layout.CHECKPOINT
    storage.restore(folder)
    if not folder.exists():
        return Progress()
    stored = folder / layout.CHECKSUM
    written = read_bytes(stored).decode("ascii", "replace") if stored.is_file() else None
    _refuse_damage(folder, written, storage.hash_folder(folder, (layout.CHECKSUM,)))
    try:
        _load(model, folder / layout.WEIGHTS)
        with warnings.catch_warnings(action="ignore"):  # of other protocols of pickle
            saved = torch.load(folder / layout.OPTIMIZER, map_location="cpu", weights_only=True)  # not on the first GPU
        optimizer.load_state_dict(saved["optimizer"])
        scaler.load_state_dict(saved["scaler"])
        fields = read_json(folder / layout.STATE)
        return Progress(**{**fields, "curve": [tuple(row) for row in fields["curve"]]})
    except HybridError:
        raise
    except Exception as error:  # foreign pickles raise every class
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        problem = f"was written by another version ({reason}); use that one, or remove {work}"
        raise path_error(folder, problem, code="checkpoint-of-another-version") from None


def save_best(work: Path, model: nn.Module, state: Progress) -> None:
    """Store the weights of `state.best_step` as the best so far, next to those of the checkpoint."""
    with storage.replacing(_best(work, state)) as scratch:
        with disk.by_name(scratch) as file:
            _save(model, file)
        state.best_checksum = storage.fingerprint(scratch)


def load_best(work: Path, model: nn.Module, state: Progress) -> bool:
    """Load the best weights; return whether any were stored.

    Raises:
        DamageError: the file is not the one that was written.
    """
    file = _best(work, state)
    if state.best_checksum:
        _refuse_damage(file, state.best_checksum, storage.fingerprint(file) if file.is_file() else None)
        _load(model, file)
    return bool(state.best_checksum)


def _save(model: nn.Module, file: Path) -> None:
    """Write the weights of a model; of one with frozen weights, the others alone."""
    if all(weight.requires_grad for weight in model.parameters()):
        save_model(model, str(file))
    else:
        trained = {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}
        save_file(trained, file)


def _load(model: nn.Module, file: Path) -> None:
    load_model(model, str(file), strict=all(weight.requires_grad for weight in model.parameters()))


def _best(work: Path, state: Progress) -> Path:
    return work / layout.BEST_WEIGHTS.format(state.best_step)


def _refuse_damage(path: Path, written: str | None, current: str | None) -> None:
    if written != current:
        raise DamageError(f"{path}: changed after it was written; remove {path.parent}", code="damaged", path=path)
