"""`train-lambda`: train an encoder that imitates the ranking of a lexical teacher."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch

from hybrid_cli import artifacts, console, memory
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections import collection as collections
from hybrid_cli.encoders.contract import read_contract
from hybrid_cli.encoders.models import model_input, resolve
from hybrid_cli.encoders.static import StaticEncoder
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.indexes.documents import check_corpus
from hybrid_cli.indexes.lexical import open_lexical
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.settings import TrainLambda, stage
from hybrid_cli.training import losses, static
from hybrid_cli.training.batches import Group
from hybrid_cli.training.dense import BatchSources, DenseLearner
from hybrid_cli.training.labels import Labels
from hybrid_cli.training.lambda_data import LabeledQueries
from hybrid_cli.training.loop import State, Validator
from hybrid_cli.training.session import Job, Session, contract_changes, load_start
from hybrid_cli.training.student import StudentNegatives
from hybrid_cli.training.teachers import Bm25Scorer
from hybrid_cli.training.validation import SurrogatePool

DEV_DEPTH = 50
REMEDY = "write labels with a lower --depth, whose last hits are harder negatives, or raise --batch-size"


_BYTES = 32  # per value: two tables with gradients and two moments of the optimizer


@stage(TrainLambda)
def train_lambda(settings: TrainLambda) -> Path:
    """Train an encoder to imitate the ranking of a lexical teacher (SPAR, section 4.1).

    Returns:
        Folder of the encoder.

    Raises:
        InputError: the inputs are unusable or incompatible.
    """
    return _train_static(settings) if settings.encoder == "static" else _train_transformer(settings)


def _train_transformer(settings: TrainLambda) -> Path:
    assert settings.labels is not None
    contract = read_contract(resolve(settings.model)).changed(**contract_changes(settings))
    session = Session(settings, {**_inputs(settings), "model": model_input(settings.model)}, contract.to_dict())
    if session.up_to_date:
        return settings.output
    queries = LabeledQueries(settings.labels, settings.collection, settings)
    index = open_lexical(settings.index) if settings.index else None
    torch.manual_seed(settings.seed)  # initializes a projection
    encoder = load_start(settings, **asdict(contract))
    teacher = Bm25Scorer(index) if index is not None and settings.loss == "listwise" else None
    learner = DenseLearner(
        encoder, _objective(settings, encoder), session.precision, settings.chunk_size, BatchSources(scorer=teacher)
    )
    validator = _validator(settings, index, encoder)

    def save(folder: Path) -> dict[str, Any]:
        encoder.save(folder)
        return {"queries": len(queries), "dropped": queries.dropped}

    batches = _batches(settings, queries, learner)
    steps = session.steps(len(queries))
    state = session.train(lambda _: Job(learner, batches, steps, save, validator, REMEDY), processes=True)
    _note(settings, state, f"{len(queries):,} queries ({queries.dropped:,} with too few hits dropped)")
    return settings.output


def _train_static(settings: TrainLambda) -> Path:
    assert settings.index is not None
    assert settings.dim is not None
    session = Session(settings, _inputs(settings))
    if session.up_to_date:
        return settings.output
    index = LexicalIndex.open(settings.index)
    check_corpus(settings.index, collections.corpus_path(settings.collection))
    fields = artifacts.read_manifest(settings.index, Kind.LEXICAL_INDEX).options["fields"]
    rows = min(settings.vocab_size, len(index.idf)) + settings.hash_buckets
    memory.require(_BYTES * rows * settings.dim, f"the tables of {rows:,} terms and {settings.dim:,} dimensions")
    encoder = StaticEncoder.over(index, fields, settings.dim, settings.vocab_size, settings.hash_buckets)
    texts = pl.concat([table["text"] for table in Labels(settings.labels).tables()]) if settings.labels else None
    source = static.BagsOfTerms(index, encoder, settings, texts)
    with console.progress("compute singular vectors", unit="tables"):
        static.initialize(encoder, source, len(index.docids), settings.seed)
    learner = static.StaticLearner(encoder, settings.temperature, settings.matryoshka_dims)
    validator = _validator(settings, index, encoder)

    def save(folder: Path) -> dict[str, Any]:
        encoder.save(folder)
        return {"terms": len(encoder.terms), "dim": encoder.dim}

    state = session.train(lambda _: Job(learner, source.batches, settings.max_steps or 0, save, validator))
    _note(settings, state, f"static, {len(encoder.terms):,} terms, {encoder.dim} dimensions")
    return settings.output


def _inputs(settings: TrainLambda) -> dict[str, Path | None]:
    dev = collections.queries_path(settings.collection, settings.dev) if settings.dev is not None else None
    corpus = collections.corpus_path(settings.collection)
    return {"corpus": corpus, "index": settings.index, "labels": settings.labels, "dev": dev}


def _objective(settings: TrainLambda, encoder: TransformerEncoder) -> losses.Objective:
    temperature = losses.usual_temperature(encoder.contract.normalize)
    objective: losses.Objective = partial(losses.nll, temperature=temperature)
    if settings.loss == "listwise":
        objective = partial(losses.listwise, temperature=settings.temperature, own_temperature=temperature)
    return losses.with_prefixes(objective, settings.matryoshka_dims, encoder.dim, encoder.contract.normalize)


def _batches(
    settings: TrainLambda, queries: LabeledQueries, learner: DenseLearner[TransformerEncoder]
) -> Callable[[int], Iterator[list[Group]]]:
    """Return the batches from a step on, with the student's own negatives if requested."""
    if not settings.student_negatives:
        return queries.batches
    negatives = StudentNegatives(learner.model, queries.texts, settings, learner.precision, settings.student_negatives)
    return lambda done: negatives.added(queries.batches(done), done)


def _validator(
    settings: TrainLambda, index: LexicalIndex | None, encoder: TransformerEncoder | StaticEncoder
) -> Validator | None:
    if settings.dev is None or index is None:
        return None
    queries = collections.read_queries(collections.queries_path(settings.collection, settings.dev))
    queries = queries.select("qid", "text").head(settings.dev_queries)
    pool = SurrogatePool.of(
        queries,
        index.search(queries, DEV_DEPTH),
        partial(collections.texts, settings.collection),
        score=lambda pairs: index.score(pairs, queries),
        negatives=settings.negatives,
    )
    criterion = "dev_MRR" if settings.keep == "best" else None
    return Validator(partial(pool.measure, encoder), settings.eval_steps, criterion)


def _note(settings: TrainLambda, state: State, data: str) -> None:
    console.note(f"train-lambda: {settings.output}: {data}, {state.step:,} steps, kept step {state.best_step:,}")
