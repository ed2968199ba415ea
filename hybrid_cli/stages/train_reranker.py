"""`train-reranker`: train a cross-encoder on mined examples."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from hybrid_cli import console
from hybrid_cli.artifacts.examples import open_examples
from hybrid_cli.artifacts.indexes import model_input
from hybrid_cli.commands import TrainReranker
from hybrid_cli.encoders.cross_encoder import CrossEncoder
from hybrid_cli.session import Session
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind
from hybrid_cli.training import parallel
from hybrid_cli.training.dense import prepare_start
from hybrid_cli.training.loop import HARDER_NEGATIVES, Job, Validator
from hybrid_cli.training.reranking import DevRanking, RerankerLearner

REMEDY = f"{HARDER_NEGATIVES}, or raise --negatives"


@stage(TrainReranker)
def train_reranker(settings: TrainReranker) -> Path:
    """Train a reranker.

    Returns:
        Folder of the reranker, which is also a `CrossEncoder` of sentence-transformers.

    Raises:
        InputError: examples or model are unusable.
    """
    inputs = {"examples": settings.training_examples, "model": model_input(settings.model), "dev": settings.dev}
    session = Session(settings, inputs, kind=Kind.RERANKER)
    if session.up_to_date:
        return settings.output
    examples = open_examples(settings.training_examples)
    session.seed()  # initializes a new head
    model = CrossEncoder.load(settings.model, device=settings.device, train=True, **settings.pair_input())
    prepare_start(model.transformer, settings, settings.model, "")
    learner = RerankerLearner(model, settings.loss, session.precision, settings.chunk_size, settings.mask_matches)

    def save(folder: Path) -> dict[str, Any]:
        model.save(folder)
        return {"examples": len(examples), "input": asdict(model.input)}

    steps, batches = session.steps(len(examples)), partial(examples.batches, settings)
    job = Job(learner, batches, steps, save, _validator(settings, model), REMEDY)
    state = session.train(lambda _: job)
    session.note(state, example=len(examples))
    return settings.output


def _validator(settings: TrainReranker, model: CrossEncoder) -> Validator | None:
    if settings.dev is None or parallel.rank():
        return None
    ranking = DevRanking(settings.dev, settings.dev_queries, model)
    queries = ranking.pairs["qid"].n_unique()
    console.note(f"validation: {console.counted(query=queries)} with {console.counted(document=len(ranking.pairs))}")
    return Validator(ranking.measure, settings.eval_steps, "dev_MRR@10" if settings.keep == "best" else None)
