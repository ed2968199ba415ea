"""Training of a dense encoder on mined examples, by `train-dense`, `distill-lite` and in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts.examples import open_examples
from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import DistillLite, TrainDense
from hybrid_cli.encoders import composite
from hybrid_cli.encoders.composite import Combination, Pair
from hybrid_cli.encoders.contract import COMBINATION, Contract, Encoder, kind_of, read_contract
from hybrid_cli.encoders.models import resolve
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import option_error, path_error
from hybrid_cli.inputs.json_values import read_object
from hybrid_cli.runs.index import Index
from hybrid_cli.session import (
    Session,
    check_teacher,
    contract_changes,
    dev_validator,
    start_contract,
    taught,
    taught_loss,
)
from hybrid_cli.settings.signature import values_of
from hybrid_cli.storage import Kind, disk, layout
from hybrid_cli.training import losses, teachers
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.dense import (
    Batch,
    BatchSources,
    DenseLearner,
    Fusion,
    RefreshedNegatives,
    StudentNegatives,
    load_start,
    relevant,
)
from hybrid_cli.training.loop import HARDER_NEGATIVES, Job
from hybrid_cli.training.options import BM25, LOSSES, OF_PLUGINS, SCORED, mining_depth
from hybrid_cli.training.roc import Bm25Vectors, MatchMasking, SignProjection, VectorsOfOthers

PROJECTION_SEED = 0
DYNAMIC_POOL = 8192  # documents encoded at every checkpoint for --dynamic-negatives


def trained_contract(settings: TrainDense) -> tuple[Contract, float]:
    """Return the contract of the encoder to train, and the temperature of its loss."""
    changes = contract_changes(settings)
    changes = _as_last_learner(settings.boost, changes) if settings.boost else changes
    contract = start_contract(settings, {**changes, "binary": settings.loss == "bpr"})
    return contract, settings.temperature or losses.usual_temperature(contract.normalize, settings.loss)


def fit(settings: TrainDense, session: Session, corpus: Path | None = None) -> Encoder:
    """Train a dense encoder.

    Args:
        settings: options of `train-dense`.
        session: the training.
        corpus: corpus that the model in training searches for negatives.

    Returns:
        The encoder, or with `boost` the extended ensemble (DrBoost).
    """
    parameters, (contract, temperature) = loss_parameters(settings), trained_contract(settings)
    examples = _examples(settings, session)
    docids = examples.docids() if corpus is None else collections.docids(corpus)
    session.seed()  # initializes markers and projection
    encoder = load_start(settings.model, settings.device, settings, **asdict(contract))
    projection = SignProjection(encoder.dim, PROJECTION_SEED)
    vectors = None
    if settings.index is not None:
        vectors = Bm25Vectors(session.input("index", open_bm25), projection, docids)
    _check_projection(settings, vectors)
    ensemble = session.encoder("boost") if settings.boost else None
    steps = session.steps(len(examples))
    weight = teachers.ScorerWeight(settings.scorer_weight, settings.scorer_schedule, steps) if settings.scored else None
    values = settings.parameters() | parameters | {"temperature": temperature, "unit": contract.normalize}
    objective = losses.objective(settings.loss, **values)
    objective = losses.with_prefixes(objective, settings.matryoshka_dims, encoder.dim, contract.normalize)
    trained = Combination(composite.CombinationRecipe(), [ensemble, encoder]) if ensemble else encoder

    def prepare(work: Path) -> Job[Any]:
        known = _texts(settings, examples, corpus, work)
        scorer, scored = _scorer(settings, session, vectors, known, work), settings.loss in SCORED
        sampled, teacher_scores = taught(settings, session, examples, known, work)
        sources = BatchSources(
            lexical=_lexical(settings, vectors, examples, docids),
            masking=MatchMasking(encoder.document_tower.tokenizer, encoder.contract, settings.mask_matches)
            if settings.mask_matches
            else None,
            scorer=scorer if scored else None,
            weight=weight if scored else None,
            teacher_scores=teacher_scores,
        )
        by_sum = settings.dynamic_ranking == "sum"
        fusion = Fusion(temperature, scorer, weight) if by_sum and scorer and weight else None
        learner = DenseLearner(encoder, objective, session.precision, settings.chunk_size, sources)

        def save(folder: Path) -> dict[str, Any]:
            _save(settings, encoder, vectors, folder)
            return {"examples": len(examples)} | _learned_weight(settings, weight)

        known_projection = vectors.projection if vectors else None
        validation = dev_validator(settings, session, trained, examples, settings.index, projection=known_projection)
        batches = _batches(settings, sampled, known, learner, fusion, work)
        return Job(learner, batches, steps, save, validation, _remedy(settings))

    state = session.train(prepare)
    session.note(state, example=len(examples))
    return trained


def _as_last_learner(ensemble: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the contract of the last learner of an ensemble; options must agree with it."""
    folder = resolve(ensemble)
    while kind_of(folder) == COMBINATION:
        folder = composite.parts(folder)[1]
    learner = asdict(read_contract(folder))
    for name, value in changes.items():
        if learner[name] != value:
            reason = f"the learners of {ensemble} have {learner[name]}, and learners of an ensemble are alike; omit it"
            raise option_error(name, value, reason, code="conflicting-options", expected=learner[name])
    return learner


def _examples(settings: TrainDense, session: Session) -> Examples:
    """Return the examples, which have the scores that the training needs.

    Warns about examples that hold no errors of the ensemble that a learner is added to.
    """
    examples = session.input("training_examples", open_examples)
    check_teacher(settings, examples)
    if settings.scored and settings.scorer == BM25 and not settings.uses_bm25:
        examples.check_lexical()
    known = settings.boost is not None and "training_examples" not in session.given
    mined = artifacts.read_manifest(settings.training_examples, Kind.EXAMPLES).inputs.values() if known else ()
    if known and not any(source["kind"] in (Kind.RUN, Kind.DENSE_INDEX) for source in mined):
        problem = f"{settings.training_examples}: not mined with a run of {settings.boost} (--sources run:FILE)"
        console.warn(problem, code="boost-not-mined", path=settings.training_examples)
    return examples


def _texts(settings: TrainDense, examples: Examples, corpus: Path | None, work: Path) -> teachers.Texts:
    """Return the texts whose documents may be in a batch: with dynamic negatives, mapped tables."""
    if not settings.dynamic_negatives:
        return examples
    if corpus is None:
        return teachers.MappedTexts(examples, teachers.mapped_texts(work, examples.documents()))
    tables = (pl.DataFrame(pl.from_arrow(part)) for part in collections.documents(corpus))
    texts = teachers.MappedTexts(examples, teachers.mapped_texts(work, tables))
    texts.check(corpus)
    return texts


def _scorer(
    settings: TrainDense, session: Session, vectors: Bm25Vectors | None, texts: teachers.Texts, work: Path
) -> teachers.Scorer | None:
    """Return the frozen scorer; None means the lexical scores of the examples."""
    if isinstance(index := session.given.get("scorer"), Index):
        return teachers.IndexScorer(index)
    if settings.names_encoder:
        return teachers.FrozenEncoder(session.encoder("scorer"), texts, work)
    return vectors if settings.uses_bm25 else None


def _batches(
    settings: TrainDense,
    examples: Examples,
    known: teachers.Texts,
    learner: DenseLearner[TransformerEncoder],
    fusion: Fusion | None,
    work: Path,
) -> Callable[[int], Iterator[Batch]]:
    """Return the batches from the n-th on, with the model's own negatives if there are any."""
    groups = partial(examples.batches, settings)
    if not isinstance(known, teachers.MappedTexts):
        return learner.batches(groups)
    count, texts = settings.dynamic_negatives, known.texts
    pool = count, DYNAMIC_POOL, relevant(texts, examples.positives()), fusion
    negatives = StudentNegatives(learner.model, texts, settings, learner.precision, *pool)
    if settings.refresh_negatives is not None:
        negatives = RefreshedNegatives(
            **vars(negatives),
            every=settings.refresh_negatives,
            queries=pl.concat(examples.queries())["text"].to_list(),
            folder=work / layout.REFRESHED,
            depth=mining_depth(len(texts), count),
            spare=examples.most_positives,
        )
    return learner.batches(groups, negatives)


def loss_parameters(settings: TrainDense) -> dict[str, Any]:
    """Return the parameters of the loss that `--loss-option` sets; others are options of their own."""
    function = LOSSES[settings.loss]
    vectors, *names = signature(function).parameters
    options = {name for name in names if name in settings.declared() and settings.applies(name)}
    taken = {vectors, "temperature", "unit", "fused", *options}
    return values_of(function, settings.loss_options, "--loss-option", taken)


def _lexical(
    settings: TrainDense, vectors: Bm25Vectors | None, examples: Examples, docids: pl.Series
) -> Bm25Vectors | VectorsOfOthers | None:
    """Return the vectors for the orthogonality, and for a loss of a plugin."""
    if vectors is None or not (settings.ortho_weight or settings.loss == OF_PLUGINS):
        return None
    if not settings.ortho_control:
        return vectors
    queries = pl.concat([table["text"] for table in examples.queries()])
    return VectorsOfOthers(vectors, queries, docids, settings.seed)


def _check_projection(settings: TrainDense, vectors: Bm25Vectors | None) -> None:
    """Refuse a start model that was trained orthogonal to another projection."""
    file = resolve(settings.model) / layout.LEXICAL_PROJECTION
    if vectors is None or not settings.ortho_weight or not file.is_file():
        return
    trained, wanted = read_object(file), asdict(vectors.projection)
    if trained != wanted:
        problem = "was trained orthogonal to another projection of BM25; pass the --index that it was trained with"
        raise path_error(file.parent, problem, code="other-projection")


def _save(settings: TrainDense, encoder: TransformerEncoder, vectors: Bm25Vectors | None, folder: Path) -> None:
    """Write the encoder, or the ensemble extended by it."""
    if settings.boost:
        composite.add_part(folder, settings.boost, encoder, composite.CombinationRecipe(), artifacts.hard_link)
    else:
        encoder.save(folder)
    if vectors is not None and settings.ortho_weight:
        disk.write_text(folder / layout.LEXICAL_PROJECTION, json.dumps(asdict(vectors.projection)) + "\n")


def _learned_weight(settings: TrainDense, weight: teachers.ScorerWeight | None) -> dict[str, Any]:
    """Return the learned weight of the scorer, for the manifest."""
    if weight is None or weight.logarithm is None:
        return {}
    learned = weight(0, 0).item()
    console.note(f"train-dense: learned weight of {settings.scorer} in the sum: {learned:.3g}")
    return {"scorer_weight": learned}


def _remedy(settings: TrainDense) -> str:
    """Return the advice for a training with hardly any loss."""
    dynamic = "" if settings.dynamic_negatives else ", pass --dynamic-negatives 1"
    raised = "--xi" if settings.applies("xi") else "--batch-size"
    return f"{HARDER_NEGATIVES}{dynamic}, or raise {raised} or --temperature"


# ------------------------------------------------------------------------------------------------------- distill-lite


def distill(settings: DistillLite, session: Session) -> Encoder:
    """Train a student with two heads, or only a query encoder in the vector space of the teacher's documents.

    Returns:
        The student, or the pair of query encoder and teacher.
    """
    examples = session.input("training_examples", open_examples)
    check_teacher(settings, examples)
    teacher = session.encoder("teacher")
    session.seed()  # initializes the heads
    changes = {**contract_changes(settings), "binary": False}
    if settings.queries_only:  # so that the vectors can equal the teacher's
        changes |= {"dim": teacher.dim, "projection_norm": False, "normalize": False}
    student = load_start(settings.model, settings.device, settings, any_dim=settings.queries_only, **changes)
    objective = losses.query_distillation if settings.queries_only else _joint(settings, student, teacher.dim)
    encoder = Pair(student, teacher) if settings.queries_only else student

    def save(folder: Path) -> dict[str, Any]:
        student.save(folder / layout.PAIR_SIDES[0] if settings.queries_only else folder)
        if settings.queries_only:
            composite.write_pair(folder, resolve(settings.teacher), artifacts.hard_link)
        return {"examples": len(examples), "dim": student.dim}

    def prepare(work: Path) -> Job[Any]:
        sources = BatchSources(
            teacher=teachers.FrozenEncoder(teacher, examples, work),
            teacher_scores=teachers.stored_scores if settings.is_taught else None,
            queries_only=settings.queries_only,
        )
        learner = DenseLearner(student, objective, session.precision, settings.chunk_size, sources)
        steps = session.steps(len(examples))
        validation = dev_validator(settings, session, encoder, examples, fixed=settings.queries_only)
        return Job(
            learner, learner.batches(partial(examples.batches, settings)), steps, save, validation, HARDER_NEGATIVES
        )

    state = session.train(prepare)
    session.note(state, f"{student.dim} dimensions from {teacher.dim}", example=len(examples))
    return encoder


def _joint(settings: DistillLite, student: TransformerEncoder, dim: int) -> losses.Objective:
    """Add heads with the teacher's `dim` dimensions to the student; return the joint loss."""
    student.add_distillation_heads(dim)
    temperature = settings.temperature or losses.usual_temperature(student.contract.normalize)
    relevance = taught_loss(settings, "nll", temperature)
    return losses.with_distillation(relevance, student.dim, settings.kd_weight)
