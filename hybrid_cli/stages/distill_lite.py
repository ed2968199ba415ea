"""`distill-lite`: a teacher's vectors to a small student (LITE), or to one query encoder for an ensemble (DrBoost)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Kind
from hybrid_cli.config import Distillation, Optimization
from hybrid_cli.encoders import pair
from hybrid_cli.encoders.contract import Contract
from hybrid_cli.encoders.encoder import Encoder, open_encoder
from hybrid_cli.encoders.models import model_input, pick_device, pick_dtype, resolve
from hybrid_cli.encoders.pair import Pair
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.training import checkpoint, losses, parallel
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.dense import DenseLearner
from hybrid_cli.training.loop import fit, steps_of
from hybrid_cli.training.teachers import FrozenEncoder
from hybrid_cli.training.validation import DevPool

CONTRACT_OPTIONS = tuple(field.name for field in fields(Contract) if field.name not in ("prefix", "dim"))


def distill_lite(
    examples: Path,
    output: Path,
    *,
    teacher: str,
    queries_only: bool = False,
    model: str = "minilm",
    how: Distillation = Distillation(),  # noqa: B008 - frozen
    plan: Optimization = Optimization(),  # noqa: B008 - frozen
    contract: Mapping[str, Any] | None = None,
    dev: Path | None = None,
    dev_queries: int = 200,
    device: str = "auto",
    threads: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Train a student with two heads (LITE, methods 6): the small one to retrieve, the large one to match the teacher.

    The large head, one on each tower, is dropped at the end. Every text of the examples gets its teacher's vector once.

    Args:
        examples: what `mine-negatives` wrote.
        output: folder of the student; a killed training goes on from its last checkpoint.
        teacher: any encoder, such as an ensemble.
        queries_only: train a query encoder alone, with as many dimensions as the teacher, whose documents it is to
            find: the output is a pair, and searches the teacher's indexes (DrBoost, methods 5.3).
        model: where the student starts: `minilm`, a folder, or a Hugging Face id.
        contract: fields of the student's contract to set.
        dev: training examples of a dev split; the best weights on their pool are kept.

    Raises:
        InputError: examples or models are not usable, or do not fit together.
    """
    if threads:
        torch.set_num_threads(threads)
    precision = pick_dtype(plan.precision, pick_device(device))
    changes = {name: value for name, value in (contract or {}).items() if value is not None}
    inputs = {"examples": examples, "model": model_input(model), "teacher": model_input(teacher)} | (
        {"dev": dev} if dev else {}
    )
    options = {
        **asdict(how), **asdict(plan), **changes, "precision": str(precision).removeprefix("torch."),
        "queries_only": queries_only, "dev_queries": dev_queries,
    }  # fmt: skip
    claim = artifacts.open_output(
        output, Kind.ENCODER, "distill-lite", inputs=inputs, options=options, overwrite=overwrite
    )
    if claim.up_to_date:
        return output
    training, validation = Examples(examples), Examples(dev) if dev else None
    known = open_encoder(teacher, device=device, dtype=plan.precision)
    torch.manual_seed(plan.seed)  # the heads start from it
    changes |= {"dim": how.dim, "binary": False} if not queries_only else _of_queries(known.dim)
    student = TransformerEncoder.load(model, device=device, **changes)
    objective: losses.Objective = partial(losses.query_distillation, reduction=how.kd_reduction)
    if not queries_only:
        _add_large_heads(student, known.dim)
        objective = _joint(how, student)
    with parallel.folder(claim) as (work, counts):
        frozen = FrozenEncoder(known, training, work)
        state = fit(
            DenseLearner(student, objective, precision, plan.chunk_size, teacher=frozen, queries_only=queries_only),
            partial(training.batches, plan),
            plan,
            steps_of(plan, len(training)),
            work,
            validate=_validate(Pair(student, known) if queries_only else student, validation, dev_queries),
            criterion="dev_MRR@10",
        )
        student.save(work / pair.SIDES[0] if queries_only else work)
        if queries_only:
            pair.write(work, resolve(teacher))
        checkpoint.write_curve(work, state, "distill-lite")
        counts.update(examples=len(training), dim=student.dim, steps=state.step, best_step=state.best_step)
    console.note(
        f"distill-lite: {output}: {student.dim} dimensions of {known.dim}, {len(training):,} examples, "
        f"{state.step:,} steps, kept step {state.best_step:,}"
    )
    return output


def _of_queries(dim: int) -> dict[str, Any]:
    """What lets the vectors of a query encoder be anything that the teacher's are."""
    return {"dim": dim, "projection_norm": False, "normalize": False, "binary": False}


def _add_large_heads(student: TransformerEncoder, dim: int) -> None:
    """A linear map from what a tower has pooled to the teacher's dimensions, on each tower."""
    for tower in dict.fromkeys((student.query_tower, student.document_tower)):
        tower.large = nn.Linear(tower.backbone.config.hidden_size, dim, bias=False, device=student.device)


def _joint(how: Distillation, student: TransformerEncoder) -> losses.Objective:
    temperature = how.temperature or losses.usual_temperature(student.contract.normalize)
    likelihood = partial(losses.nll, temperature=temperature, in_batch=how.in_batch)
    return losses.distilled(likelihood, student.dim, how.kd_weight, how.kd_reduction)


def _validate(encoder: Encoder, dev: Examples | None, most: int) -> Any:
    if dev is None:
        return None
    return partial(DevPool.of(dev.dev_rows(most)).measure, encoder, [0.0])
