"""`train-sparse`: train a learned sparse encoder on mined examples."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from hybrid_cli import console
from hybrid_cli.artifacts.examples import open_examples
from hybrid_cli.artifacts.indexes import model_input
from hybrid_cli.commands import TrainSparse
from hybrid_cli.encoders.contract import Contract, TextForm
from hybrid_cli.encoders.models import resolve
from hybrid_cli.encoders.sparse import SparseEncoder, read_sparse_contract
from hybrid_cli.session import Session, check_teacher, dev_validator, taught, taught_loss, teacher_input
from hybrid_cli.stages import stage
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.dense import BatchSources, DenseLearner, prepare_start
from hybrid_cli.training.loop import HARDER_NEGATIVES, Job
from hybrid_cli.training.roc import MatchMasking
from hybrid_cli.training.sparse import RecallLearner, TermRecall, sparse_objective


@stage(TrainSparse)
def train_sparse(settings: TrainSparse) -> Path:
    """Train a learned sparse encoder.

    Returns:
        Folder of the encoder.

    Raises:
        InputError: examples or model are unusable or incompatible.
    """
    changes = {
        declaration.name: value
        for declaration in fields(TextForm)
        if (value := getattr(settings, declaration.name)) is not None
    }
    contract = read_sparse_contract(resolve(settings.model), settings.architecture).changed(**changes)
    inputs = {"examples": settings.training_examples, "model": model_input(settings.model), "dev": settings.dev}
    inputs |= teacher_input(settings)
    session = Session(settings, inputs, contract.to_dict())
    if session.up_to_date:
        return settings.output
    examples = open_examples(settings.training_examples)
    check_teacher(settings, examples)
    session.seed()  # initializes new heads
    encoder = SparseEncoder.load(
        settings.model, device=settings.device, architecture=settings.architecture, fresh=True, **changes
    )
    if encoder.fresh:
        console.note(f"{settings.model}: new {', '.join(encoder.fresh)}", code="new-head", path=settings.model)
    prepare_start(encoder.network.backbone, settings, settings.model)
    if encoder.fresh and settings.architecture == "splade":
        first = next(examples.batches(settings))
        encoder.start_sparse([*chain(*(group.titles for group in first))], [*chain(*(group.texts for group in first))])
    state = session.train(lambda work: _job(settings, session, encoder, examples, work))
    session.note(state, example=len(examples))
    return settings.output


def _job(settings: TrainSparse, session: Session, encoder: SparseEncoder, examples: Examples, work: Path) -> Job[Any]:
    def save(folder: Path) -> dict[str, Any]:
        encoder.save(folder)
        return {"examples": len(examples), "new_parts": encoder.fresh}

    if settings.architecture == "deepct":
        passages = TermRecall(examples, settings)
        recall = RecallLearner(encoder, session.precision, settings.chunk_size)
        return Job(recall, passages.batches, session.steps(len(passages)), save)
    steps = session.steps(len(examples))
    sampled, teacher_scores = taught(settings, session, examples, examples, work)
    relevance = taught_loss(settings, settings.loss, settings.temperature)
    objective = sparse_objective(relevance, settings, steps, encoder.dim, settings.architecture == "sparterm")
    form = Contract(query_prefix=encoder.contract.query_prefix, doc_prefix=encoder.contract.doc_prefix)
    tokenizer, matches = encoder.document_tower.tokenizer, settings.mask_matches
    masking = MatchMasking(tokenizer, form, matches) if matches else None
    sources = BatchSources(masking=masking, teacher_scores=teacher_scores)
    learner = DenseLearner(encoder, objective, session.precision, settings.chunk_size, sources)
    validation = dev_validator(settings, session, encoder, examples, whole=False)
    return Job(learner, learner.batches(partial(sampled.batches, settings)), steps, save, validation, HARDER_NEGATIVES)
