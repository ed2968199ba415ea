"""Retrievers where runs are wanted: they are searched first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import option_error
from hybrid_cli.opening.stored_retriever import RetrieverFiles, is_retriever
from hybrid_cli.runs.names import short_names
from hybrid_cli.settings import Evaluate, MineNegatives, Report, Search, Settings
from hybrid_cli.storage import Kind

C = TypeVar("C", Evaluate, Report)
Call = Callable[[Settings], Any]  # calls the stage of a settings object

_BEYOND = 50  # hits beyond the depth of mined negatives, some of which are relevant and filtered


def with_searched(settings: C, folder: Path, call: Call) -> C:
    """Search the retrievers of a comparison for its queries; return settings with their runs among the inputs.

    Args:
        settings: settings of `evaluate` or `report`.
        folder: folder of the runs, which are named after the retrievers.
        call: calls the stage of a settings object.
    """
    if not settings.retriever:
        return settings
    queries = settings.queries or collections.queries_path(Path(settings.inputs[0]), settings.split)
    searched: list[str] = []
    for name, retriever in zip(short_names(settings.retriever), settings.retriever, strict=True):
        run = folder / f"{name.replace('/', '-')}.hits.parquet"
        call(Search(queries=queries, index=retriever, output=run, overwrite=settings.overwrite))
        searched.append(f"{name}={run}")
    return settings.changed(inputs=[*settings.inputs, *searched], retriever=())


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
    call(Search(queries=queries, index=retriever, hits=hits, output=run, overwrite=settings.overwrite))
    lexical = RetrieverFiles.read(retriever).of_kind(Kind.LEXICAL_INDEX)[:1]
    return settings.changed(sources=(f"run:{run}",), index=lexical)
