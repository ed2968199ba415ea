"""`train-lambda`: train an encoder that imitates the ranking of a lexical teacher."""

from __future__ import annotations

from pathlib import Path

from hybrid_cli import artifacts
from hybrid_cli.artifacts.belonging import belongs_together
from hybrid_cli.artifacts.indexes import model_input
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import TrainLambda
from hybrid_cli.errors import InputError
from hybrid_cli.lexical.options import weighted_fields
from hybrid_cli.session import Session, imitation
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind


@stage(TrainLambda)
def train_lambda(settings: TrainLambda) -> Path:
    """Train an encoder to imitate the ranking of a lexical teacher (SPAR, section 4.1).

    Returns:
        Folder of the encoder.

    Raises:
        InputError: the inputs are unusable or incompatible.
    """
    if settings.encoder == "static":
        session = Session(settings, _inputs(settings))
        if not session.up_to_date:
            imitation.fit_static(settings, session, _fields(settings))
        return settings.output
    inputs = {**_inputs(settings), "model": model_input(settings.model)}
    inputs |= {"base": model_input(settings.base)} if settings.base else {}
    session = Session(settings, inputs, imitation.trained_contract(settings).to_dict())
    if not session.up_to_date:
        imitation.fit_transformer(settings, session)
    return settings.output


def _fields(settings: TrainLambda) -> tuple[str, ...]:
    """Return the fields of the index, of which an encoder reads title and text."""
    assert settings.index is not None
    indexes = {settings.index: [artifacts.read_manifest(settings.index)]}
    belongs_together(indexes=indexes, corpus=collections.corpus_path(settings.collection))
    fields = weighted_fields(artifacts.read_manifest(settings.index, Kind.LEXICAL_INDEX).options["fields"])
    if others := [name for name in fields if name not in ("title", "text")]:
        problem = f"{settings.index}: has the field '{others[0]}', but encoders read only title and text; index those"
        raise InputError(problem, code="other-fields", path=settings.index, field=others[0])
    return fields


def _inputs(settings: TrainLambda) -> dict[str, Path | artifacts.Named | None]:
    dev = collections.queries_path(settings.collection, settings.dev) if settings.dev is not None else None
    corpus = collections.corpus_path(settings.collection)
    return {"corpus": corpus, "index": settings.index, "labels": settings.labels, "dev": dev}
