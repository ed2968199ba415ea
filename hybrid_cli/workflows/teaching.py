"""The teacher of a training on mined examples: scores in the examples, or of a reranker or an encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybrid_cli import artifacts, storage
from hybrid_cli.artifacts.indexes import model_input
from hybrid_cli.artifacts.opening import open_dense, query_encoder
from hybrid_cli.encoders.cross_encoder import is_reranker, load_reranker
from hybrid_cli.encoders.models import open_encoder, resolve
from hybrid_cli.settings import DistillLite, TrainDense, TrainSparse
from hybrid_cli.storage import SCHEMAS, Kind, Record, layout
from hybrid_cli.training import parallel
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.scoring import SHARD_PAIRS, ScoredExamples
from hybrid_cli.training.teachers import FrozenEncoder, TeacherScores, Texts, stored_scores


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
    settings: TrainDense | TrainSparse, examples: Examples, known: Texts, work: Path
) -> tuple[Examples, TeacherScores | None]:
    """Return the examples to train on, and the scores of the teacher, if there is one.

    Args:
        settings: settings of the training.
        examples: training examples.
        known: all texts that may be in a batch.
        work: folder of the unfinished artifact, where scores or vectors are stored for resuming.
    """
    if not settings.is_taught:
        return examples, None
    if settings.teacher is None:
        return examples, stored_scores
    how: Any = {"device": settings.device, "dtype": settings.dtype}
    index = open_dense(Path(settings.teacher)) if _is_index(settings.teacher) else None
    if index is not None or not is_reranker(resolve(settings.teacher)):
        encoder = (
            open_encoder(settings.teacher, **how) if index is None else query_encoder(index, device=settings.device)
        )
        vectors = FrozenEncoder(encoder, known, work, "teacher-", index)
        in_batch = settings.distill == "kl" and settings.in_batch
        return examples, vectors.batch_scores if in_batch else vectors.own_scores
    teacher, file = settings.teacher, work / layout.SCORED
    for first in parallel.first_alone():
        if first and not file.exists():
            job = ScoredExamples(examples, work / layout.SCORES, lambda: load_reranker(teacher, **how), SHARD_PAIRS)
            job.score()
            with storage.replacing(file) as scratch:
                record = Record(Kind.EXAMPLES, settings.command)
                storage.write_parquet(scratch, job.tables(), SCHEMAS[Kind.EXAMPLES], record)
    return Examples(file, examples.remove_query), stored_scores
