"""Rerankers of retrievers: how `retriever.json` names one, and opening it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hybrid_cli import storage
from hybrid_cli.collections.text_store import TextStore
from hybrid_cli.encoders.cross_encoder import load_reranker
from hybrid_cli.encoders.models import resolve
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.opening.stored_retriever import reranker_path
from hybrid_cli.retrieval.retriever import RerankStep


def named_reranker(model: str, depth: int, folder: Path) -> dict[str, str | int]:
    """Return the reranker as a retriever in `folder` stores it.

    Raises:
        InputError: no such model, or none that ranks.
    """
    path = resolve(model)
    load_reranker(path, device="cpu")
    name = os.path.relpath(os.path.realpath(path), os.path.realpath(folder)) if Path(model).exists() else model
    return {"model": name, "fingerprint": storage.fingerprint(path), "depth": depth}


def open_reranker(folder: Path, stored: Mapping[str, str | int], corpora: Sequence[Path], device: str) -> RerankStep:
    """Open the reranker of a retriever; no name is looked up outside of this machine.

    Raises:
        InputError: the model is gone or has changed, or the corpora are not where the indexes record them.
    """
    name = reranker_path(folder, stored)
    try:
        path = resolve(name, local=True)
    except InputError as error:
        label = os.path.normpath(folder / name) if name.startswith(os.pardir) else name
        problem = f"its reranker {label} is missing; move it back, or compose again with --overwrite"
        raise path_error(folder, problem, code="recorded-model-missing", model=label) from error
    if storage.fingerprint(path) != stored["fingerprint"]:
        problem = f"its reranker {path} has changed since; compose again with --overwrite"
        raise path_error(folder, problem, code="recorded-model-changed", model=str(path))
    if not corpora:
        problem = "its reranker needs the texts, and the corpus is not where the indexes record it; move it back"
        raise path_error(folder, problem, code="corpus-missing")
    model, documents = load_reranker(path, device=device), TextStore(corpora)
    return RerankStep(int(stored["depth"]), lambda pairs: model.scores(pairs)[0], documents.texts)
