"""`train-dense`: train an encoder on mined examples."""

from __future__ import annotations

from pathlib import Path

from hybrid_cli import artifacts
from hybrid_cli.artifacts.examples import corpus_of_examples
from hybrid_cli.artifacts.indexes import model_input
from hybrid_cli.commands import TrainDense
from hybrid_cli.session import Session, dense, teacher_input
from hybrid_cli.stages import stage
from hybrid_cli.training.roc import PROJECTION_VERSION


@stage(TrainDense)
def train_dense(settings: TrainDense) -> Path:
    """Train a dense encoder.

    Returns:
        Folder of the encoder, or with `boost` of the extended ensemble (DrBoost).

    Raises:
        InputError: examples, model or index are unusable or incompatible.
    """
    dense.loss_parameters(settings)
    contract, temperature = dense.trained_contract(settings)
    resolved = {**contract.to_dict(), "temperature": temperature}
    if settings.ortho_weight:
        resolved["projection_version"] = PROJECTION_VERSION
    if settings.epochs is None and settings.max_steps is None:
        resolved["epochs"] = settings.default_epochs
    corpus = None  # that the model in training searches for negatives
    if settings.refresh_negatives is not None:
        corpus = corpus_of_examples(settings.training_examples, settings.collection)
    session = Session(settings, {**_inputs(settings), "corpus": corpus}, resolved)
    if not session.up_to_date:
        dense.fit(settings, session, corpus)
    return settings.output


def _inputs(settings: TrainDense) -> dict[str, Path | artifacts.Named | None]:
    return {
        **teacher_input(settings),
        "examples": settings.training_examples,
        "model": model_input(settings.model),
        "index": settings.index,
        "dev": settings.dev,
        "scorer": model_input(settings.scorer) if settings.names_encoder else None,
        "ensemble": model_input(settings.boost) if settings.boost else None,
    }
