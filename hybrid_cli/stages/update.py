"""`update`: bring a retriever up to date with its documents."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import polars as pl

from hybrid_cli import artifacts, console
from hybrid_cli.errors import path_error
from hybrid_cli.opening.sharded import index_manifest
from hybrid_cli.opening.stored_retriever import RetrieverFiles, generation, named_indexes, retriever_at
from hybrid_cli.settings import Update
from hybrid_cli.stages import call, stage
from hybrid_cli.storage import Kind
from hybrid_cli.workflows.generations import (
    CurrentDocuments,
    Difference,
    difference,
    next_generation,
    present_documents,
    prune,
    rows_of,
    write_generation,
)
from hybrid_cli.workflows.updates import Change, write_change, write_sharded_change


@stage(Update)
def update(settings: Update) -> Path:
    """Write new generations of the collection and the indexes of a retriever, and switch the retriever to them.

    Returns:
        Path of the retriever.

    Raises:
        InputError: no retriever, its collection is not what its indexes were built from, the documents cannot be read
            as before, or over half of them are gone.
        HybridError: another process updates the retriever, or Java is missing.
    """
    folder = retriever_at(settings.retriever)
    if folder is None:
        problem = "is no retriever, and contains none; pass one that `compose` or `auto` wrote"
        raise path_error(settings.retriever, problem, code="other-kind", expected=Kind.RETRIEVER)
    home = folder.resolve()
    artifacts.lock_growing(home.with_name(f"{home.name}.update"))
    files = RetrieverFiles.read(folder)
    current = CurrentDocuments.of(files)
    with present_documents(settings, current, call) as present:
        changes = difference(current.rows(), rows_of(present), bool(current.splits))
        _report(settings, folder, changes)
        if not settings.allow_shrink:
            changes.refuse_shrink(settings.documents[0])
        if settings.dry_run:
            return folder
        if any(changes.counts.values()):
            files = _written(settings, files, current, present, changes)
    if settings.prune:
        removed = prune(files)
        names = ", ".join(map(str, removed)) or "no earlier generations"
        console.note(f"update: removed {names}", code="pruned", paths=removed)
    return folder


def _report(settings: Update, folder: Path, changes: Difference) -> None:
    counts = changes.counts
    what = ", ".join(f"{number:,} {name}" for name, number in counts.items()) if any(counts.values()) else "no changes"
    console.note(
        f"update: {folder}: {what}; {changes.before:,} -> {console.counted(document=changes.after)}"
        + (" (dry run: nothing is written)" if settings.dry_run else ""),
        code="documents-changed", path=folder, before=changes.before, after=changes.after, **counts,
    )  # fmt: skip


def _written(
    settings: Update, files: RetrieverFiles, current: CurrentDocuments, present: Path, changes: Difference
) -> RetrieverFiles:
    """Write the next generation of the collection and every index, then the retriever; return the new one."""
    now, number = files.stored.generation, next_generation(current, files, settings.documents)
    with artifacts.keeping_equal_outputs():
        collection = generation(current.collection, now, number)
        corpus, first = write_generation(settings, current, present, changes, collection)
        indexes = []
        for index in files.indexes:
            output = generation(index, now, number)
            removed = pl.Series(sorted(changes.gone), dtype=pl.String)
            change = Change(index, index_manifest(index, sharded=True), removed, output, corpus, first, overwrite=True)
            write = write_sharded_change if change.manifest.kind == Kind.SHARDS else write_change
            indexes.append(write(settings, change, {}))
        _switch(settings, files, indexes, number, changes)
    return RetrieverFiles.read(files.folder)


def _switch(settings: Update, files: RetrieverFiles, indexes: list[Path], number: int, changes: Difference) -> None:
    """Replace the retriever by one of the new indexes; weights, scales and evidence are kept."""
    made = artifacts.read_manifest(files.folder, Kind.RETRIEVER)
    inputs: dict[str, artifacts.Input] = {f"index {n}": index for n, index in enumerate(indexes, 1)}
    recorded = {role: artifacts.recorded_input(made, role) for role in made.inputs if role not in inputs}
    output = artifacts.open_output(
        files.folder, Kind.RETRIEVER, settings.command,
        inputs=inputs | {role: source for role, source in recorded.items() if source is not None},
        options=made.options | {"generation": number}, overwrite=True,
    )  # fmt: skip
    before = files.stored.changed or {}
    changed = {name: before.get(name, 0) + count for name, count in changes.counts.items()}
    named = named_indexes(indexes, output.target)
    stored = replace(files.stored, indexes=named, generation=number, changed=changed)
    if not output.up_to_date:
        with output.folder() as (work, counts):
            stored.write(work)
            counts |= made.counts
    console.note(
        f"update: {files.folder}: generation {number}; {', '.join(map(os.path.relpath, indexes))}",
        code="written", path=files.folder, generation=number, indexes=indexes,
    )  # fmt: skip
