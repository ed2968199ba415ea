"""`distill-lite`: distill a teacher into a small student (LITE), or into a query encoder of an ensemble (DrBoost)."""

from __future__ import annotations

from pathlib import Path

from hybrid_cli.artifacts.indexes import model_input
from hybrid_cli.commands import DistillLite
from hybrid_cli.encoders.contract import read_contract
from hybrid_cli.encoders.cross_encoder import is_reranker
from hybrid_cli.encoders.models import resolve
from hybrid_cli.errors import option_error
from hybrid_cli.session import Session, contract_changes, dense
from hybrid_cli.stages import stage


@stage(DistillLite)
def distill_lite(settings: DistillLite) -> Path:
    """Train a student with two heads: the small one retrieves, the large one matches the teacher (LITE, section 4).

    The large head, one per tower, is dropped at the end. With `queries_only`, train only a query encoder, in the vector
    space of the teacher's documents.

    Returns:
        Folder of the student, or of the pair of query encoder and teacher.

    Raises:
        InputError: examples or models are unusable or incompatible.
    """
    if is_reranker(resolve(settings.teacher)):
        reason = "is a reranker, which has no vectors; use train-dense --dim N --distill kl --teacher RERANKER"
        raise option_error("teacher", settings.teacher, reason, code="other-kind")
    inputs = {
        "examples": settings.training_examples,
        "model": model_input(settings.model),
        "teacher": model_input(settings.teacher),
        "dev": settings.dev,
    }
    contract = read_contract(resolve(settings.model)).changed(**contract_changes(settings)).to_dict()
    used = {name: value for name, value in contract.items() if name in settings.declared() and settings.applies(name)}
    session = Session(settings, inputs, used)
    if not session.up_to_date:
        dense.distill(settings, session)
    return settings.output
