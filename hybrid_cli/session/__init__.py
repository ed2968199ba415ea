"""Common steps of all training commands: device, precision, output, training loop, files, and the teacher.

The modules of the package have the steps of the commands that `train` offers in memory too (`in_memory`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import distributed

from hybrid_cli import artifacts, console, storage
from hybrid_cli.artifacts.examples import open_dev_examples
from hybrid_cli.artifacts.indexes import model_input
from hybrid_cli.artifacts.opening import open_dense, query_encoder
from hybrid_cli.commands import DistillLite, TrainDense, TrainSparse
from hybrid_cli.commands.common import PROJECTION, Architecture, Training
from hybrid_cli.encoders.contract import Contract, Encoder, preset_fields, read_contract
from hybrid_cli.encoders.cross_encoder import is_reranker, load_reranker
from hybrid_cli.encoders.models import open_encoder, pick_device, pick_dtype, resolve
from hybrid_cli.errors import refuse_missing
from hybrid_cli.storage import SCHEMAS, Kind, Record, layout
from hybrid_cli.training import losses, parallel
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.callbacks import TensorBoard, open_callback
from hybrid_cli.training.dev_set import DevValidation, validator
from hybrid_cli.training.loop import Callback, Job, Progress, Validator, epoch_steps, steps_of, train, write_curve
from hybrid_cli.training.options import OF_PLUGINS
from hybrid_cli.training.teachers import SHARD_PAIRS, FrozenEncoder, ScoredExamples, TeacherScores, Texts, stored_scores

T = TypeVar("T")


class Session:
    """Context of one training, of a command or in memory.

    Args:
        settings: options of the command.
        inputs: role -> file or folder; None for inputs that are not used.
        resolved: values for the manifest, which override options of the same name.
        kind: kind of the output.
        given: role -> object in place of what the option of its name names, and `callback`, for a training in memory,
            which has no output; None for one of a command.

    Attributes:
        precision: precision of the forward pass.
        up_to_date: the output exists, with the same inputs and options.

    Raises:
        InputError: an input is unusable, or the output exists with other options.
    """

    def __init__(
        self,
        settings: Training,
        inputs: Mapping[str, Path | artifacts.Named | None] | None = None,
        resolved: Mapping[str, Any] | None = None,
        kind: Kind = Kind.ENCODER,
        given: Mapping[str, Any] | None = None,
    ):
        if settings.threads:
            torch.set_num_threads(settings.threads)
        options = {**settings.recorded(), **(resolved or {})}
        values = settings.values()
        if values.get("dynamic_negatives") and not values.get("refresh_negatives"):  # mined at checkpoints
            options["checkpoint_steps"] = settings.checkpoint_steps
        self.precision = torch.float32
        if settings.applies("dtype"):
            self.precision = pick_dtype(settings.dtype, pick_device(settings.device))
            options["dtype"] = str(self.precision).removeprefix("torch.")  # the resolved value of `auto`
        self._settings, self.given = settings, given or {}
        self._callbacks = [*map(open_callback, settings.callback), *self.given.get("callback", ())]
        if settings.track:
            refuse_missing(settings.track)
        self._epoch_steps: int | None = None
        self._output: artifacts.Output | None = None
        if given is None:
            if isinstance(dev := values.get("dev"), Path):
                storage.check_table(dev, Kind.EXAMPLES)
            known = {role: path for role, path in (inputs or {}).items() if path is not None}
            self._output = artifacts.output_of(settings, kind, known, options)
        self.up_to_date = self._output is not None and self._output.up_to_date

    def input(self, role: str, opener: Callable[[Any], T]) -> T:
        """Return the object of a role: the given one, or what the option of its name names, opened."""
        opened: T = self.given[role] if role in self.given else opener(getattr(self._settings, role))
        return opened

    def encoder(self, role: str) -> Encoder:
        """Return the encoder of a role."""
        settings = self._settings
        return self.input(role, partial(open_encoder, device=settings.device, dtype=settings.dtype))

    def train(self, prepare: Callable[[Path], Job[Any]], device: str | None = None) -> Progress:
        """Run the loop and write the encoder with its learning curve.

        Args:
            prepare: function from the folder of the unfinished artifact to the job.
            device: device of the model, if it is not that of the settings.

        Returns:
            Learning curve and number of steps.
        """
        if self._output is None:
            with tempfile.TemporaryDirectory() as folder:
                job = replace(prepare(Path(folder)), epoch_steps=self._epoch_steps)
                state = train(job, self._settings, Path(folder), self._callbacks)
            job.learner.model.eval()
            return state
        with _folder(self._output, device or self._settings.device) as (work, counts):
            job = prepare(work)
            if not parallel.rank():
                self._output.inputs_are_read()
            job = replace(job, epoch_steps=self._epoch_steps, facts=self._output.manifest.to_dict())
            keeper = [EpochKeeper(job, work)] if self._settings.keep_epochs else []
            state = train(job, self._settings, work, [*keeper, *self._callbacks, *self._tracker(work)])
            if not parallel.rank():
                counts.update(job.save(work))
                counts.update(job.validator.facts if job.validator else {})
                counts.update(steps=state.step, best_step=state.best_step, threads=torch.get_num_threads())
                write_curve(work, state, self._settings.command)
        return state

    def _tracker(self, work: Path) -> list[Callback]:
        """Open the tracker; print how to watch the training."""
        if not self._settings.track or parallel.rank():
            return []
        folder, later = work / layout.TRACKING, self._settings.output / layout.TRACKING
        watch = f"train: watch with tensorboard --logdir {folder}; after the training in {later}"
        console.note(watch, code="tracked", path=later, unfinished=folder)
        return [TensorBoard(folder)]

    def seed(self) -> None:
        """Seed PyTorch, directly before a stage makes new weights."""
        torch.manual_seed(self._settings.seed)

    def note(self, state: Progress, *data: str, **counts: int) -> None:
        """Print the output, facts and counts of its training data, and the steps."""
        facts = ", ".join([*data, console.counted(**counts, step=state.step)])
        if state.step and not state.best_step:
            problem = "no validation was better than that before the training, whose weights are kept; pass --keep last"
            console.warn(f"{self._settings.command}: {problem}", code="no-better-validation", option="keep")
        if self._output is not None:
            facts = f"{facts}, kept step {state.best_step:,}"
            self._output.note(facts, kept=state.best_step, steps=state.step, **counts)

    def steps(self, examples: int) -> int:
        """Return the number of optimizer steps for `examples` training examples; warn about options without effect."""
        plan = self._settings
        self._epoch_steps, steps = epoch_steps(plan, examples), steps_of(plan, examples)
        if plan.keep_epochs and steps < self._epoch_steps:
            problem = f"--keep-epochs: keeps no model, since an epoch has {self._epoch_steps:,} steps"
            console.warn(problem, code="no-effect", option="keep_epochs", steps=steps)
        if plan.warmup >= steps:
            problem = f"--warmup {plan.warmup:g}: of {steps:,} steps, none has the whole --learning-rate"
            console.warn(problem, code="no-effect", option="warmup", value=plan.warmup, steps=steps)
        return steps


@contextmanager
def _folder(output: artifacts.Output, device: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Open `output.folder()` in the first process; the others read the same folder and write nothing.

    A process group that exists already is used and kept.

    Args:
        output: output of the training.
        device: device of this process, of the type of the others.

    Raises:
        InputError: no such device, or a device that cannot train in several processes.
    """
    joined = parallel.start(pick_device(device))
    if parallel.rank():
        console.set_quiet(True)
        distributed.barrier()
        yield output.partial, {}
    else:
        with output.folder() as (work, counts):
            if parallel.size() > 1:
                distributed.barrier()
            yield work, counts
    if joined:
        distributed.destroy_process_group()


@dataclass(frozen=True)
class EpochKeeper(Callback):
    """Stores the model after each epoch.

    Attributes:
        job: the training.
        work: folder of the unfinished artifact.
    """

    job: Job[Any]
    work: Path

    def on_epoch(self, epoch: int) -> None:
        """Store the model of an epoch."""
        with storage.replacing(self.work / layout.EPOCHS / str(epoch)) as scratch:
            scratch.mkdir(parents=True)
            self.job.save(scratch)


def dev_validator(
    settings: TrainDense | DistillLite | TrainSparse,
    session: Session,
    encoder: Encoder,
    trained: Examples,
    index: Path | None = None,
    **more: Any,
) -> Validator | None:
    """Return the validation on mined examples that the options ask for.

    Args:
        settings: dev examples and options.
        session: the training.
        encoder: encoder to measure.
        trained: training examples.
        index: lexical index.
        more: other fields of `DevValidation`.
    """
    if settings.dev is None or parallel.rank():
        return None
    how = DevValidation(
        examples=session.input("dev", partial(open_dev_examples, index=index, threads=settings.threads)),
        trained=trained,
        options=settings,
        step_documents=settings.batch_size * settings.accumulate * (1 + settings.negatives),
        steps=steps_of(settings, len(trained)),
        **more,
    )
    return validator(encoder, how)


def contract_changes(settings: Architecture) -> dict[str, Any]:
    """Return the fields of the encoder's contract set by a preset and by options."""
    names = [name for name in Contract.__dataclass_fields__ if name in settings.declared()]
    changes = {name: value for name in names if (value := getattr(settings, name)) is not None}
    return {**preset_fields(settings.preset, resolve(settings.model)), **changes} if settings.preset else changes


def start_contract(settings: Architecture, changes: Mapping[str, Any]) -> Contract:
    """Return the changed contract of the start model.

    Raises:
        InputError: options of a projection, which neither the model nor `--dim` has.
    """
    contract = read_contract(resolve(settings.model)).changed(**changes)
    start = "" if contract.dim is None else PROJECTION
    settings.check_facts(f"{settings.model} has no projection", start=start)
    return contract


# ----------------------------------------------------------------------------------------------------------- teachers


def teacher_input(settings: TrainDense | TrainSparse) -> dict[str, Path | artifacts.Named]:
    """Return the teacher as an input of the training; scores in the examples are a part of them."""
    if settings.teacher is None:
        return {}
    return {"teacher": Path(settings.teacher) if _is_index(settings.teacher) else model_input(settings.teacher)}


def _is_index(teacher: str) -> bool:
    manifest = artifacts.find_manifest(teacher)
    return manifest is not None and manifest.kind == Kind.DENSE_INDEX


def check_teacher(settings: TrainDense | TrainSparse | DistillLite, examples: Examples) -> None:
    """Refuse examples without the scores that a training needs, or with others than those of its teacher.

    Raises:
        InputError: names the query and the document.
    """
    if not settings.is_taught:
        return
    if isinstance(settings, DistillLite) or settings.teacher is None:
        examples.check_teacher()
    else:
        examples.refuse_scores("omit --teacher to use it, or mine without --scores")


def taught(
    settings: TrainDense | TrainSparse, session: Session, examples: Examples, known: Texts, work: Path
) -> tuple[Examples, TeacherScores | None]:
    """Return the examples to train on, and the scores of the teacher, if there is one.

    Args:
        settings: settings of the training.
        session: the training.
        examples: training examples.
        known: all texts that may be in a batch.
        work: folder of the unfinished artifact, where scores or vectors are stored for resuming.
    """
    if not settings.is_taught:
        return examples, stored_scores if settings.loss == OF_PLUGINS else None
    if settings.teacher is None:
        return examples, stored_scores
    given = session.given.get("teacher")
    index = open_dense(Path(settings.teacher)) if given is None and _is_index(settings.teacher) else None
    if index is not None or (hasattr(given, "encode_queries") if given else not is_reranker(resolve(settings.teacher))):
        encoder = query_encoder(index, device=settings.device) if index is not None else session.encoder("teacher")
        vectors = FrozenEncoder(encoder, known, work, "teacher-", index)
        in_batch = settings.distill == "kl" and settings.in_batch
        return examples, vectors.batch_scores if in_batch else vectors.own_scores
    file, load = work / layout.SCORED, partial(load_reranker, device=settings.device, dtype=settings.dtype)
    for first in parallel.first_alone():
        if first and not file.exists():
            job = ScoredExamples(examples, work / layout.SCORES, partial(session.input, "teacher", load), SHARD_PAIRS)
            job.score()
            with storage.replacing(file) as scratch:
                record = Record(Kind.EXAMPLES, settings.command)
                storage.write_parquet(scratch, job.tables(), SCHEMAS[Kind.EXAMPLES], record)
    return Examples(file, examples.remove_query), stored_scores


def taught_loss(settings: TrainSparse | DistillLite, loss: str, temperature: float) -> losses.Objective:
    """Return a loss, and the loss on the scores of a teacher that the options add."""
    return losses.objective(
        loss,
        distill=settings.distill,
        distill_weight=settings.distill_weight,
        temperature=temperature,
        teacher_temperature=settings.teacher_temperature,
        in_batch=settings.in_batch,
    )
