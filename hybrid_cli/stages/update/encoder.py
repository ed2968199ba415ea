"""Another encoder for a retriever: its index next to the present one, tuned and compared before the switch."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Manifest, Recorded
from hybrid_cli.artifacts.indexes import corpora_of
from hybrid_cli.artifacts.judged import queries_of_judgments
from hybrid_cli.artifacts.retrievers import RetrieverFiles, StoredRetriever, generation
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Compose, Encode, Evaluate, Search, Update
from hybrid_cli.errors import option_error
from hybrid_cli.fusion.options import MEASURE
from hybrid_cli.inputs.json_values import make_typed, read_object
from hybrid_cli.reporting.summary import Summary
from hybrid_cli.reporting.verdict import Verdict
from hybrid_cli.stages import call
from hybrid_cli.storage import Kind, disk, layout

# What a change of the encoder changes in a retriever besides an index; `update --rollback` returns to it.
FUSION = ("method", "weights", "missing", "normalize", "rrf_k", "options", "shares", "scales", "scaled_by", "tuning")
_SCRATCH = ".{}.encoder.partial"


def change_encoder(settings: Update, files: RetrieverFiles, collection: Path) -> tuple[list[Path], dict[str, Any]]:
    """Encode the documents with another encoder, tune the fusion on the judgments of the present one, and compare.

    Args:
        settings: the command, with the model.
        files: the retriever.
        collection: its documents.

    Returns:
        The indexes of the next generation, and fields of its retriever: `generation` and the fusion.

    Raises:
        InputError: the retriever has no dense index, or several.
    """
    dense = files.of_kind(Kind.DENSE_INDEX)
    if len(dense) != 1:
        problem = f"{files.folder} has {console.counted(**{'dense index': len(dense)})}; a model replaces that of one"
        raise option_error("model", settings.model, problem, code="number-of-values", path=files.folder)
    number, output = next(
        (number, path)
        for number in count(files.stored.generation + 1)
        for path in [generation(dense[0], files.stored.generation, number)]
        if not path.exists() or _model(artifacts.find_manifest(path)) == settings.model
    )
    made = artifacts.read_manifest(dense[0])
    kept = {name: made.options[name] for name in ("index_type",) if made.options.get(name) not in (None, "flat")}
    how = {name: getattr(settings, name) for name in ("device", "threads") if name in settings.given}
    call(Encode(collection, model=settings.model or "", output=output, **kept, **how))
    indexes = [output if index == dense[0] else index for index in files.indexes]
    scratch = files.folder.resolve().with_name(_SCRATCH.format(files.folder.resolve().name))
    try:
        judged = _judgments(files, collection)
        tuned: dict[str, Any] = {"tune": True, "qrels": judged} if judged is not None else {}
        call(Compose(indexes, output=scratch, overwrite=True, depth=files.stored.depth, **tuned))
        stored = make_typed(StoredRetriever, read_object(scratch / layout.RETRIEVER), scratch / layout.RETRIEVER)
        if judged is None:
            console.note(
                "update: no judgments, so the fusion is the default, and nothing was compared", code="no-judgments"
            )
        else:
            _compare(files, scratch, judged)
    finally:
        disk.remove(scratch)
    return indexes, {"generation": number, **{name: getattr(stored, name) for name in FUSION}}


def fusion_of(stored: StoredRetriever) -> dict[str, Any]:
    """Return the fusion of a retriever as its history keeps it."""
    return {name: value for name, value in asdict(stored).items() if name in FUSION}


def _model(made: Manifest | None) -> str | None:
    return None if made is None else made.options.get("model") or made.input_label("model")


def _judgments(files: RetrieverFiles, collection: Path) -> Path | None:
    """Return the judgments that the fusion was tuned on, else those of the only judged split of the collection."""
    known = artifacts.recorded_input(artifacts.read_manifest(files.folder, Kind.RETRIEVER), "qrels")
    path = known.path if isinstance(known, Recorded) else known
    if isinstance(path, Path) and path.exists():
        return path
    judged = [name for name in collections.splits(collection) if collections.is_judged(collection, name)]
    return collections.qrels_path(collection, judged[0]) if len(judged) == 1 else None


def _compare(files: RetrieverFiles, scratch: Path, judged: Path) -> None:
    """Print the difference of the retrievers on the judged queries, on which both may be tuned."""
    queries = queries_of_judgments("update", judged, corpora_of(files.manifests))
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: Path(folder) / f"{name}.parquet" for name in ("before", "after")}
        for run, index in zip(runs.values(), (files.folder, scratch), strict=True):
            call(Search(queries=queries, index=index, output=run, hits=100))
        measured = Evaluate([f"{name}={run}" for name, run in runs.items()], qrels=judged, measure=[MEASURE])
        summary: Summary = call(measured)
    values = {name: summary.values.filter(run=name)["value"].to_numpy() for name in runs}
    verdict = Verdict.of(MEASURE, ("before", values["before"]), ("after", values["after"]))
    console.result(f"{verdict.sentence()} The fusion of both may be tuned on these queries.")
