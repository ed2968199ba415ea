"""Retrievers where runs are wanted: they are searched first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hybrid_cli.runs.names import short_names
from hybrid_cli.settings import Evaluate, Report, Search, Settings

C = TypeVar("C", Evaluate, Report)


def with_searched(settings: C, folder: Path, call: Callable[[Settings], Any]) -> C:
    """Search the retrievers of a comparison for its queries; return settings with their runs among the inputs.

    Args:
        settings: settings of `evaluate` or `report`.
        folder: folder of the runs, which are named after the retrievers.
        call: calls the stage of a settings object.
    """
    if not settings.retriever:
        return settings
    collection = None if settings.qrels is not None else Path(settings.inputs[0])
    searched: list[str] = []
    for name, retriever in zip(short_names(settings.retriever), settings.retriever, strict=True):
        run = folder / f"{name.replace('/', '-')}.hits.parquet"
        if settings.queries is None:
            call(Search(collection, split=settings.split, index=retriever, output=run, overwrite=settings.overwrite))
        else:
            call(Search(queries=settings.queries, index=retriever, output=run, overwrite=settings.overwrite))
        searched.append(f"{name}={run}")
    return settings.changed(inputs=[*settings.inputs, *searched], retriever=())
