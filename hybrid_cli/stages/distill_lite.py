"""`distill-lite`: distill a teacher into a small student (LITE), or into a query encoder of an ensemble (DrBoost)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from hybrid_cli import artifacts
from hybrid_cli.artifacts.examples import open_examples
from hybrid_cli.artifacts.indexes import model_input
from hybrid_cli.commands import DistillLite
from hybrid_cli.encoders import composite
from hybrid_cli.encoders.composite import Pair
from hybrid_cli.encoders.contract import read_contract
from hybrid_cli.encoders.cross_encoder import is_reranker
from hybrid_cli.encoders.models import open_encoder, resolve
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import option_error
from hybrid_cli.session import Session, check_teacher, contract_changes, dev_validator, taught_loss
from hybrid_cli.stages import stage
from hybrid_cli.storage.layout import PAIR_SIDES
from hybrid_cli.training import losses
from hybrid_cli.training.dense import BatchSources, DenseLearner, load_start
from hybrid_cli.training.loop import HARDER_NEGATIVES, Job
from hybrid_cli.training.teachers import FrozenEncoder, stored_scores


@stage(DistillLite)
def distill_lite(settings: DistillLite) -> Path:
    """Train a student with two heads: the small one retrieves, the large one matches the teacher (LITE, section 4).

    The large head, one per tower, is dropped at the end. With `queries_only`, train only a query encoder, in the vector
    space of the teacher's documents.

    Returns:
        Folder of the student, or of the pair of query encoder and teacher.

    Raises:
        InputError: examples or models are unusable or incompatible.
    """
    if is_reranker(resolve(settings.teacher)):
        reason = "is a reranker, which has no vectors; use train-dense --dim N --distill kl --teacher RERANKER"
        raise option_error("teacher", settings.teacher, reason, code="other-kind")
    inputs = {
        "examples": settings.training_examples,
        "model": model_input(settings.model),
        "teacher": model_input(settings.teacher),
        "dev": settings.dev,
    }
    contract = read_contract(resolve(settings.model)).changed(**contract_changes(settings)).to_dict()
    used = {name: value for name, value in contract.items() if name in settings.declared() and settings.applies(name)}
    session = Session(settings, inputs, used)
    if session.up_to_date:
        return settings.output
    examples = open_examples(settings.training_examples)
    check_teacher(settings, examples)
    teacher = open_encoder(settings.teacher, device=settings.device, dtype=settings.dtype)
    session.seed()  # initializes the heads
    changes = {**contract_changes(settings), "binary": False}
    if settings.queries_only:  # so that the vectors can equal the teacher's
        changes |= {"dim": teacher.dim, "projection_norm": False, "normalize": False}
    student = load_start(settings.model, settings.device, settings, any_dim=settings.queries_only, **changes)
    objective = losses.query_distillation if settings.queries_only else _joint(settings, student, teacher.dim)

    def save(folder: Path) -> dict[str, Any]:
        student.save(folder / PAIR_SIDES[0] if settings.queries_only else folder)
        if settings.queries_only:
            composite.write_pair(folder, resolve(settings.teacher), artifacts.hard_link)
        return {"examples": len(examples), "dim": student.dim}

    def prepare(work: Path) -> Job[Any]:
        sources = BatchSources(
            teacher=FrozenEncoder(teacher, examples, work),
            teacher_scores=stored_scores if settings.is_taught else None,
            queries_only=settings.queries_only,
        )
        learner = DenseLearner(student, objective, session.precision, settings.chunk_size, sources)

        encoder = Pair(student, teacher) if settings.queries_only else student
        steps = session.steps(len(examples))
        validation = dev_validator(settings, encoder, steps, fixed=settings.queries_only)
        return Job(
            learner, learner.batches(partial(examples.batches, settings)), steps, save, validation, HARDER_NEGATIVES
        )

    state = session.train(prepare)
    session.note(state, f"{student.dim} dimensions from {teacher.dim}", example=len(examples))
    return settings.output


def _joint(settings: DistillLite, student: TransformerEncoder, dim: int) -> losses.Objective:
    """Add heads with the teacher's `dim` dimensions to the student; return the joint loss."""
    student.add_distillation_heads(dim)
    temperature = settings.temperature or losses.usual_temperature(student.contract.normalize)
    relevance = taught_loss(settings, "nll", temperature)
    return losses.with_distillation(relevance, student.dim, settings.kd_weight)
