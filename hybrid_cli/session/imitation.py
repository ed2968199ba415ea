"""Training of an encoder that imitates a lexical teacher, by `train-lambda` and in memory."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts.examples import open_labels
from hybrid_cli.artifacts.opening import open_bm25, open_lexical
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import TrainLambda
from hybrid_cli.encoders import composite
from hybrid_cli.encoders.composite import Combination, CombinationRecipe
from hybrid_cli.encoders.contract import Contract, Encoder
from hybrid_cli.encoders.models import open_encoder
from hybrid_cli.encoders.static import StaticEncoder
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import option_error
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.session import Session, contract_changes, start_contract
from hybrid_cli.storage import Kind
from hybrid_cli.training import losses, parallel, static
from hybrid_cli.training.dense import BatchSources, DenseLearner, StudentNegatives, load_start
from hybrid_cli.training.labels import LabeledQueries, SurrogatePool
from hybrid_cli.training.loop import Job, Validator
from hybrid_cli.training.teachers import PostingsScorer, Scorer, mapped_impacts

DEV_DEPTH = 50
SUM = CombinationRecipe("sum")  # of a base and the transformer
_BYTES = 32  # per value: two tables with gradients and two moments of the optimizer
REMEDY = "write labels with a lower --depth, whose last hits are harder negatives, or raise --batch-size"


def trained_contract(settings: TrainLambda) -> Contract:
    """Return the contract of the transformer to train."""
    fixed = {"normalize": False} if settings.base is not None else {}
    return start_contract(settings, {**contract_changes(settings), **fixed})


def fit_transformer(settings: TrainLambda, session: Session) -> Encoder:
    """Train a transformer on teacher labels (SPAR, section 4.1).

    Returns:
        The encoder, or its sum with the `base`.
    """
    contract, labels = trained_contract(settings), session.input("labels", open_labels)
    teacher = _teacher(settings, session)
    index = session.input("index", open_lexical) if settings.index else None
    base = session.input("base", open_encoder) if settings.base is not None else None
    session.seed()  # initializes a projection
    fields = asdict(contract if base is None else contract.changed(dim=base.dim))
    encoder = load_start(settings.model, settings.device, settings, **fields)
    whole = encoder if base is None else Combination(SUM, (base, encoder))
    if base is not None:
        encoder.start_at_zero()
    counts: dict[str, int] = {}

    def prepare(work: Path) -> Job[Any]:
        queries = LabeledQueries(labels, settings.collection, settings, work)
        counts.update(queries=len(queries), dropped=queries.dropped)
        sources = BatchSources(scorer=teacher, base=base)
        learner = DenseLearner(encoder, _objective(settings, encoder), session.precision, settings.chunk_size, sources)
        negatives = None
        if count := settings.dynamic_negatives:
            negatives = StudentNegatives(encoder, queries.texts, settings, learner.precision, count)
        batches, steps = learner.batches(queries.batches, negatives), session.steps(len(queries))
        return Job(learner, batches, steps, save, _validator(settings, index, whole), REMEDY)

    def save(folder: Path) -> dict[str, Any]:
        if settings.base is None:
            encoder.save(folder)
        else:
            composite.add_part(folder, settings.base, encoder, SUM, artifacts.hard_link)
        return counts

    state = session.train(prepare)
    session.note(state, f"{console.counted(query=counts['queries'])} ({counts['dropped']:,} with too few hits dropped)")
    return whole


def _teacher(settings: TrainLambda, session: Session) -> Scorer | None:
    """Return BM25, if it made the labels, as the teacher of all documents of a batch; None for scores in the labels."""
    if settings.loss != "listwise" or settings.index is None:
        return None
    if "labels" in session.given:
        return PostingsScorer(session.input("index", open_lexical))
    made = artifacts.read_manifest(settings.labels, Kind.LABELS).inputs.get("index") if settings.labels else None
    if made is not None and made["kind"] in (Kind.LEXICAL_INDEX, Kind.SHARDS):
        return PostingsScorer(open_lexical(settings.index))
    if settings.dynamic_negatives:
        reason = f"{settings.labels} are of a run or a retriever, which scores no further documents; omit it"
        raise option_error("dynamic_negatives", settings.dynamic_negatives, reason, code="conflicting-options")
    return None


def fit_static(settings: TrainLambda, session: Session, fields: tuple[str, ...]) -> Encoder:
    """Train a static encoder on the lexical index.

    Args:
        settings: options of `train-lambda`.
        session: the training.
        fields: fields of the index, with their weights.
    """
    assert settings.dim is not None
    index = session.input("index", open_bm25)
    rows = min(settings.vocab_size, len(index.idf)) + settings.hash_buckets
    tables = f"train-lambda: tables of {rows:,} terms and {settings.dim:,} dimensions"
    console.forecast(_BYTES * rows * settings.dim, tables, "use a smaller --vocab-size or --dim")
    encoder = StaticEncoder.over(index, fields, settings.dim, settings.vocab_size, settings.hash_buckets)
    texts = None
    if settings.labels:
        texts = pl.concat([table["text"] for table in session.input("labels", open_labels).tables()])

    def prepare(work: Path) -> Job[Any]:
        source = static.BagsOfTerms(index, encoder, settings, texts, mapped_impacts(index, work))
        with console.progress("compute singular vectors", unit="tables"):
            static.initialize(encoder, source, len(index.docids), settings.seed)
        learner = static.StaticLearner(encoder, settings.temperature, settings.matryoshka_dims)
        return Job(learner, source.batches, settings.max_steps or 0, save, _validator(settings, index, encoder))

    def save(folder: Path) -> dict[str, Any]:
        encoder.save(folder)
        return {"terms": len(encoder.terms), "dim": encoder.dim}

    state = session.train(prepare, "cpu")
    session.note(state, f"static, {console.counted(term=len(encoder.terms))}, {encoder.dim} dimensions")
    return encoder


def _objective(settings: TrainLambda, encoder: TransformerEncoder) -> losses.Objective:
    temperature = losses.usual_temperature(encoder.contract.normalize)
    objective: losses.Objective = partial(losses.nll, temperature=temperature)
    if settings.loss == "listwise":
        objective = partial(losses.listwise, temperature=settings.temperature, own_temperature=temperature)
    return losses.with_prefixes(objective, settings.matryoshka_dims, encoder.dim, encoder.contract.normalize)


def _validator(settings: TrainLambda, index: LexicalIndex | None, encoder: Encoder) -> Validator | None:
    if settings.dev is None or index is None or parallel.rank():
        return None
    queries = collections.read_queries(collections.queries_path(settings.collection, settings.dev))
    queries = queries.select("qid", "text").head(settings.dev_queries)
    pool = SurrogatePool.of(
        queries,
        index.search(queries, DEV_DEPTH),
        partial(collections.texts, settings.collection),
        score=index.scorer(queries),
        negatives=settings.negatives,
    )
    criterion = "dev_MRR" if settings.keep == "best" else None
    return Validator(partial(pool.measure, encoder), settings.eval_steps, criterion)
