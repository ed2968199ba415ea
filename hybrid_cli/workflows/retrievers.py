"""Retrievers where runs are wanted: they are searched first."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Manifest, lineage
from hybrid_cli.artifacts.indexes import corpora_of, group_of, manifests_of
from hybrid_cli.artifacts.judged import collection_of, missing_split, queries_of_judgments
from hybrid_cli.artifacts.retrievers import RetrieverFiles, is_retriever, reranker_path, retriever_at
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Compose, Evaluate, Judge, MineNegatives, Report, Search
from hybrid_cli.commands.analysis import Comparison, GateInputs
from hybrid_cli.commands.common import NameOrPath
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.passages import NO_GROUPS
from hybrid_cli.runs.files import name_and_path, short_names
from hybrid_cli.settings import Settings
from hybrid_cli.storage import Kind

C = TypeVar("C", Evaluate, GateInputs, Report)
Call = Callable[[Settings], Any]  # calls the stage of a settings object

_INDEXES = (Kind.LEXICAL_INDEX, Kind.DENSE_INDEX, Kind.SHARDS)
_BEYOND = 50  # hits beyond the depth of mined negatives, some of which are relevant and filtered


def with_searched(settings: C, folder: Path, call: Call) -> C:
    """Search the retrievers and indexes of a comparison for its queries; return settings with their runs as inputs.

    Args:
        settings: settings of `evaluate`, `gate` or `report`.
        folder: folder of the runs, which are named after the retrievers.
        call: calls the stage of a settings object.
    """
    settings = _with_judgments(settings)
    given = [(text, name_and_path(str(text))) for text in settings.inputs]
    retrievers = {path: searchable_at(path) for _, (_, path) in given}
    searched = [path for path, retriever in retrievers.items() if retriever is not None]
    names = dict(zip(searched, short_names(searched), strict=True))
    inputs: list[NameOrPath] = []
    for text, (name, path) in given:
        if (retriever := retrievers[path]) is None:
            inputs.append(text)
            continue
        name = name or names[path]
        run = folder / f"{name.replace('/', '-')}.hits.parquet"
        queries = _queries(settings, retriever)
        call(Search(queries=queries, index=retriever, output=run, overwrite=settings.overwrite))
        inputs.append(f"{name}={run}")
    known = settings.qrels is not None and bool(searched)  # the runs record the queries
    return settings.changed(inputs=inputs, **({"queries": None} if known else {}))


def searchable_at(path: Path) -> Path | None:
    """Return a retriever, that of the folder of `auto`, or an index; None for any other path."""
    if (retriever := retriever_at(path)) is not None:
        return retriever
    made = artifacts.find_manifest(path) if path.is_dir() else None
    return path if made is not None and made.kind in _INDEXES else None


def _with_judgments(settings: C) -> C:
    """Return settings with the collection or the split that was left out; see `opening.judged`.

    Raises:
        InputError: runs or retrievers alone, which record no collection.
    """
    paths = [name_and_path(str(text))[1] for text in settings.inputs]
    if settings.qrels is not None or not paths:
        return settings
    known_kinds = [_is_run(path) or searchable_at(path) is not None for path in paths]
    alone = known_kinds[0] and not any(
        path.is_dir() for path, known in zip(paths, known_kinds, strict=True) if not known
    )
    runs = [path for path in paths if _is_run(path)]
    known = missing_split(settings.command, None if alone else paths[0], settings.split, runs)
    if not alone:
        return settings if known is None else settings.changed(split=known.name)
    if known is not None:
        return settings.changed(inputs=[known.collection, *settings.inputs], split=known.name)
    searched = searchable_at(paths[0])
    collection = None if searched is None else collection_of(corpora_of(_manifests(searched)))
    if collection is None:
        problem = f"{paths[0]}: the collection of its queries is not recorded, or has changed; pass it, or --qrels"
        raise InputError(problem, code="missing-option", option="qrels", path=paths[0])
    console.note(
        f"{settings.command}: judgments of {collection}, which the indexes of {paths[0]} are of",
        code="assumed-collection",
        path=collection,
    )
    return settings.changed(inputs=[collection, *settings.inputs])


def _is_run(path: Path) -> bool:
    """Test whether a path is a run that hybrid wrote."""
    made = artifacts.find_manifest(path) if path.is_file() else None
    return made is not None and made.kind == Kind.RUN


def _manifests(searched: Path) -> Sequence[Sequence[Manifest]]:
    """Return the manifests of the indexes of a retriever, or of an index."""
    return RetrieverFiles.read(searched).manifests if is_retriever(searched) else manifests_of([searched])


def _queries(settings: Comparison, retriever: Path) -> Path:
    """Return the queries that a system is searched for: of `--queries`, the collection, the runs or the indexes."""
    if settings.queries is not None:
        return settings.queries
    judged = settings.qrels or Path(settings.inputs[0])
    if judged.is_dir():
        return collections.queries_path(judged, settings.split)
    runs = (path for text in settings.inputs if _is_run(path := name_and_path(str(text))[1]))
    if (queries := next(filter(None, map(lineage.texts_of, runs)), None)) is not None:
        return queries
    return queries_of_judgments(settings.command, judged, corpora_of(_manifests(retriever)))


def searched_sides(
    settings: Judge, files: RetrieverFiles, queries: Path, call: Call
) -> tuple[dict[str, Path], list[Path]]:
    """Search a retriever and each of its indexes; return the runs of the indexes by name, and those of the fusion.

    Runs are written next to the judgments, so that the next session finds them; runs of other queries are replaced.

    Args:
        settings: settings of `judge`.
        files: the retriever.
        queries: file of the queries.
        call: calls the stage of a settings object.
    """
    searched = [*files.indexes, *([files.folder] if len(files.indexes) > 1 else [])]
    output = settings.output
    names = dict(zip(short_names([*files.first_indexes, files.folder]), searched, strict=False))
    runs = {name: output.with_name(f"{output.stem}.{name.replace('/', '-')}.hits.parquet") for name in names}
    with artifacts.keeping_equal_outputs():
        for name, index in names.items():
            call(Search(queries=queries, index=index, group=files.stored.group, output=runs[name], overwrite=True))
    sides = list(runs)[: len(files.indexes)]
    return {name: runs[name] for name in sides}, [path for name, path in runs.items() if name not in sides]


def tuning(files: RetrieverFiles, qrels: Path, queries: Path, measure: str) -> Compose:
    """Return the settings that compose the indexes of a retriever again, tuned on judgments.

    Args:
        files: the retriever; the tuned one is `NAME-tuned` next to it.
        qrels: file of judgments.
        queries: file of the queries.
        measure: measure that chooses the fusion.
    """
    stored, folder = files.stored, Path(os.path.normpath(files.folder))
    output = folder.with_name(f"{folder.name}-tuned")
    settings = Compose(files.indexes, tune=True, qrels=qrels, queries=queries, measure=measure, output=output)
    if stored.depth != settings.depth:
        settings = settings.changed(depth=stored.depth)
    if stored.group != group_of(None, files.manifests):
        settings = settings.changed(group=stored.group)
    if stored.reranker is not None:
        model = reranker_path(folder, stored.reranker)
        settings = settings.changed(reranker=model, rerank_depth=stored.reranker["depth"])
    return settings


def with_ranking(settings: MineNegatives, call: Call) -> MineNegatives:
    """Search the retriever in `--index`; return settings with its run as the source, and its lexical index.

    The run is written next to the examples, so that an equal call finds it.

    Raises:
        InputError: other sources, or several collections.
    """
    retrievers = [path for path in settings.indexes if is_retriever(path)]
    if not retrievers:
        return settings
    if len(settings.collections) > 1 or "sources" in settings.given:
        option = "sources" if "sources" in settings.given else "collection"
        reason = f"{retrievers[0]} is a retriever, whose hits are the source for one collection"
        raise option_error(option, None, reason, code="conflicting-options")
    retriever, collection = retrievers[0], settings.collections[0]
    run = settings.output.with_name(f"{settings.output.stem}.hits.parquet")
    documents = collections.document_count(collection)
    hits = min((settings.with_depth(documents).depth or 0) + _BEYOND, documents)
    queries = settings.queries or collections.queries_path(collection, settings.split)
    call(Search(queries=queries, index=retriever, hits=hits, group=NO_GROUPS, output=run, overwrite=settings.overwrite))
    lexical = RetrieverFiles.read(retriever).of_kind(Kind.LEXICAL_INDEX)[:1]
    return settings.changed(sources=(f"run:{run}",), index=lexical)
