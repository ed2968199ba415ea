"""`train-dense`: train an encoder on mined examples."""

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
from hybrid_cli.artifacts.examples import corpus_of_examples, open_examples
from hybrid_cli.artifacts.indexes import model_input
from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import TrainDense
from hybrid_cli.encoders import composite
from hybrid_cli.encoders.composite import Combination
from hybrid_cli.encoders.contract import COMBINATION, kind_of, read_contract
from hybrid_cli.encoders.models import open_encoder, resolve
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import option_error, path_error
from hybrid_cli.inputs.json_values import read_object
from hybrid_cli.session import (
    Session,
    check_teacher,
    contract_changes,
    dev_validator,
    start_contract,
    taught,
    teacher_input,
)
from hybrid_cli.settings.signature import values_of
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind, disk, layout
from hybrid_cli.training import losses
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
from hybrid_cli.training.roc import PROJECTION_VERSION, Bm25Vectors, MatchMasking, SignProjection, VectorsOfOthers
from hybrid_cli.training.teachers import FrozenEncoder, MappedTexts, Scorer, ScorerWeight, Texts, mapped_texts

PROJECTION_SEED = 0
DYNAMIC_POOL = 8192  # documents encoded at every checkpoint for --dynamic-negatives


@stage(TrainDense)
def train_dense(settings: TrainDense) -> Path:
    """Train a dense encoder.

    Returns:
        Folder of the encoder, or with `boost` of the extended ensemble (DrBoost).

    Raises:
        InputError: examples, model or index are unusable or incompatible.
    """
    parameters = _loss_parameters(settings)
    changes = contract_changes(settings)
    changes = _as_last_learner(settings.boost, changes) if settings.boost else changes
    contract = start_contract(settings, {**changes, "binary": settings.loss == "bpr"})
    temperature = settings.temperature or losses.usual_temperature(contract.normalize, settings.loss)
    resolved = {**contract.to_dict(), "temperature": temperature}
    if settings.ortho_weight:
        resolved["projection_version"] = PROJECTION_VERSION
    if settings.epochs is None and settings.max_steps is None:
        resolved["epochs"] = settings.default_epochs
    corpus = None  # that the model in training searches for negatives
    if settings.refresh_negatives is not None:
        corpus = corpus_of_examples(settings.training_examples, settings.collection)
    session = Session(settings, {**_inputs(settings), "corpus": corpus}, resolved)
    if session.up_to_date:
        return settings.output
    examples = _examples(settings)
    docids = examples.docids() if corpus is None else collections.docids(corpus)
    session.seed()  # initializes markers and projection
    encoder = load_start(settings.model, settings.device, settings, **asdict(contract))
    projection = SignProjection(encoder.dim, PROJECTION_SEED)
    vectors = Bm25Vectors(open_bm25(settings.index), projection, docids) if settings.index is not None else None
    _check_projection(settings, vectors)
    ensemble = open_encoder(settings.boost, device=settings.device, dtype=settings.dtype) if settings.boost else None
    steps = session.steps(len(examples))
    weight = ScorerWeight(settings.scorer_weight, settings.scorer_schedule, steps) if settings.scored else None
    values = settings.parameters() | parameters | {"temperature": temperature, "unit": contract.normalize}
    objective = losses.objective(settings.loss, **values)
    objective = losses.with_prefixes(objective, settings.matryoshka_dims, encoder.dim, contract.normalize)

    def prepare(work: Path) -> Job[Any]:
        known = _texts(settings, examples, corpus, work)
        scorer, scored = _scorer(settings, vectors, known, work), settings.loss in SCORED
        sampled, teacher_scores = taught(settings, examples, known, work)
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
        trained = Combination(composite.CombinationRecipe(), [ensemble, encoder]) if ensemble else encoder

        def save(folder: Path) -> dict[str, Any]:
            _save(settings, encoder, vectors, folder)
            return {"examples": len(examples)} | _learned_weight(settings, weight)

        known_projection = vectors.projection if vectors else None
        validation = dev_validator(settings, trained, steps, settings.index, projection=known_projection)
        batches = _batches(settings, sampled, known, learner, fusion, work)
        return Job(learner, batches, steps, save, validation, _remedy(settings))

    state = session.train(prepare)
    session.note(state, example=len(examples))
    return settings.output


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


def _inputs(settings: TrainDense) -> dict[str, Path | artifacts.Named | None]:
    return {
        **teacher_input(settings),
        "examples": settings.training_examples,
        "model": model_input(settings.model),
        "index": settings.index,
        "dev": settings.dev,
        "scorer": model_input(settings.scorer) if _names_encoder(settings) else None,
        "ensemble": model_input(settings.boost) if settings.boost else None,
    }


def _examples(settings: TrainDense) -> Examples:
    """Return the examples, which have the scores that the training needs.

    Warns about examples that hold no errors of the ensemble that a learner is added to.
    """
    examples = open_examples(settings.training_examples)
    check_teacher(settings, examples)
    if settings.scored and settings.scorer == BM25 and not settings.uses_bm25:
        examples.check_lexical()
    mined = artifacts.read_manifest(settings.training_examples, Kind.EXAMPLES).inputs.values()
    if settings.boost and not any(source["kind"] in (Kind.RUN, Kind.DENSE_INDEX) for source in mined):
        problem = f"{settings.training_examples}: not mined with a run of {settings.boost} (--sources run:FILE)"
        console.warn(problem, code="boost-not-mined", path=settings.training_examples)
    return examples


def _names_encoder(settings: TrainDense) -> bool:
    """Test whether the training reads the scores of a frozen encoder."""
    return settings.scored and settings.scorer != BM25


def _texts(settings: TrainDense, examples: Examples, corpus: Path | None, work: Path) -> Texts:
    """Return the texts whose documents may be in a batch: with dynamic negatives, mapped tables."""
    if not settings.dynamic_negatives:
        return examples
    if corpus is None:
        return MappedTexts(examples, mapped_texts(work, examples.documents()))
    tables = (pl.DataFrame(pl.from_arrow(part)) for part in collections.documents(corpus))
    texts = MappedTexts(examples, mapped_texts(work, tables))
    texts.check(corpus)
    return texts


def _scorer(settings: TrainDense, vectors: Bm25Vectors | None, texts: Texts, work: Path) -> Scorer | None:
    """Return the frozen scorer; None means the lexical scores of the examples."""
    if _names_encoder(settings):
        encoder = open_encoder(settings.scorer, device=settings.device, dtype=settings.dtype)
        return FrozenEncoder(encoder, texts, work)
    return vectors if settings.uses_bm25 else None


def _batches(
    settings: TrainDense,
    examples: Examples,
    known: Texts,
    learner: DenseLearner[TransformerEncoder],
    fusion: Fusion | None,
    work: Path,
) -> Callable[[int], Iterator[Batch]]:
    """Return the batches from the n-th on, with the model's own negatives if there are any."""
    groups = partial(examples.batches, settings)
    if not isinstance(known, MappedTexts):
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


def _loss_parameters(settings: TrainDense) -> dict[str, Any]:
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


def _learned_weight(settings: TrainDense, weight: ScorerWeight | None) -> dict[str, Any]:
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
