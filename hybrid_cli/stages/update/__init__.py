"""`update`: bring a retriever or an index up to date with its documents."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import polars as pl

from hybrid_cli import artifacts, console, storage
from hybrid_cli.artifacts import Recorded
from hybrid_cli.artifacts.indexes import ids_of, index_manifest, kind_in_words
from hybrid_cli.artifacts.retrievers import RetrieverFiles, generation, is_retriever, named_indexes, of_auto
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Update
from hybrid_cli.commands.retrieval import RETRIEVER, SINGLE_INDEX
from hybrid_cli.errors import option_error, path_error
from hybrid_cli.inputs.files import text_lines
from hybrid_cli.runs.groups import documents_of
from hybrid_cli.stages import call, stage
from hybrid_cli.stages.update.generations import (
    CurrentDocuments,
    Difference,
    changes_of,
    next_generation,
    present_documents,
    prune,
    write_generation,
)
from hybrid_cli.stages.update.indexes import Change, kinds_of_change, write_change
from hybrid_cli.storage import Kind


@stage(Update)
def update(settings: Update) -> Path:
    """Write the next generation of a retriever, or a new index, with the present documents.

    Returns:
        Path of the retriever, or of the new index.

    Raises:
        InputError: no retriever or index, an unknown id, the encoder of the index is missing or has changed; a
            retriever's collection is not what its indexes were built from, its documents cannot be read as before, or
            over half of them are gone.
        HybridError: another process updates the retriever, Java is missing, or a vector is not finite.
    """
    folder = of_auto(settings.index)
    if not is_retriever(folder):
        return _update_index(settings)
    settings.check_facts(f"{folder} is a retriever", index_kind=RETRIEVER)
    home = folder.resolve()
    artifacts.lock_growing(home.with_name(f"{home.name}.update"))
    files = RetrieverFiles.read(folder)
    current = CurrentDocuments.of(files)
    inputs: dict[str, artifacts.Input] = {f"documents {n}": path for n, path in enumerate(settings.documents, 1)}
    known = documents_of(current.docids) if current.splits else current.docids
    removed = _removed(settings, known, folder, inputs)
    inputs |= {"added": settings.add} if settings.add is not None else {}
    sources = settings.documents or ([settings.add] if settings.add is not None else [])
    scratch = home.with_name(f".{home.name}.update.partial")
    with present_documents(sources, current, call, scratch) as present:
        changes = changes_of(current, present, None if settings.documents else set(removed))
        counts = changes.counts
        what = ", ".join(f"{number:,} {name}" for name, number in counts.items())
        what = what if any(counts.values()) else "no changes"
        _report(settings, folder, what, changes.before, changes.after, **counts)
        if settings.documents and not settings.allow_shrink:
            changes.refuse_shrink(settings.documents[0])
        if settings.dry_run:
            return folder
        if any(counts.values()):
            files = _written(settings, files, current, present, changes, inputs)
    if settings.prune:
        pruned = prune(files)
        names = ", ".join(map(str, pruned)) or "no earlier generations"
        console.note(f"update: removed {names}", code="pruned")
    return folder


def _update_index(settings: Update) -> Path:
    """Write an index with the documents of another index, those that are added, and without those that are removed."""
    index, manifest = settings.index, index_manifest(settings.index, sharded=True)
    settings.check_facts(kind_in_words(index, manifest), index_kind=kinds_of_change(manifest) | {SINGLE_INDEX})
    if settings.output is None:
        raise option_error("output", None, f"needed for {index}: the path of the new index", code="missing-option")
    known, inputs = ids_of(index), dict[str, artifacts.Input]()
    removed = _removed(settings, known, index, inputs)
    added = None if settings.add is None else collections.corpus_path(settings.add)
    if added is not None:
        replaced = known.filter(known.is_in(collections.docids(added).implode()))
        removed = pl.concat([removed, replaced]).unique(maintain_order=True)
    change = Change(index, manifest, removed, settings.output, added, overwrite=settings.overwrite)
    if settings.dry_run:
        what = f"{len(removed):,} removed or replaced, {change.total:,} added"
        _report(settings, index, what, len(known), len(known) - len(removed) + change.total)
        return settings.output
    return write_change(settings, change, inputs)


def _removed(settings: Update, known: pl.Series, of: Path, inputs: dict[str, artifacts.Input]) -> pl.Series:
    """Return the ids in the file of `--remove`, each once; the file is added to the inputs.

    Raises:
        InputError: no ids, or one that is unknown.
    """
    if settings.remove is None:
        return pl.Series("docid", [], pl.String)
    path, fingerprint = settings.remove, storage.fingerprint(settings.remove)
    ids = pl.Series("docid", text_lines(path), pl.String).unique(maintain_order=True)
    ids = ids.filter(ids != "")
    if len(unknown := ids.filter(~ids.is_in(known.implode()))):
        problem = f"{console.counted(id=len(unknown))} not in {of} ('{unknown[0]}', ...); remove their lines"
        raise path_error(path, problem, code="unknown-id", index=of, id=unknown[0], count=len(unknown))
    if not len(ids):
        raise path_error(path, "contains no ids; write one per line", code="no-ids")
    if storage.fingerprint(path) != fingerprint:
        raise storage.replaced_error(path)
    inputs["ids"] = Recorded(path, "file", fingerprint)
    return ids


def _report(settings: Update, path: Path, what: str, before: int, after: int, **counts: int) -> None:
    text = f"update: {path}: {what}; {before:,} -> {console.counted(document=after)}"
    text += " (dry run: nothing is written)" if settings.dry_run else ""
    console.note(text, code="documents-changed", path=path, before=before, after=after, **counts)


def _written(
    settings: Update,
    files: RetrieverFiles,
    current: CurrentDocuments,
    present: Path | None,
    changes: Difference,
    inputs: Mapping[str, artifacts.Input],
) -> RetrieverFiles:
    """Write the next generation of the collection and every index, then the retriever; return the new one."""
    now, number = files.stored.generation, next_generation(current, files, inputs)
    with artifacts.keeping_equal_outputs():
        corpus, first = write_generation(current, present, changes, generation(current.collection, now, number), inputs)
        indexes = []
        for index in files.indexes:
            output = generation(index, now, number)
            removed = pl.Series(sorted(changes.gone), dtype=pl.String)
            change = Change(index, index_manifest(index, sharded=True), removed, output, corpus, first, overwrite=True)
            indexes.append(write_change(settings, change, {}))
        _switch(settings, files, current, indexes, number, changes)
    return RetrieverFiles.read(files.folder)


def _switch(
    settings: Update,
    files: RetrieverFiles,
    current: CurrentDocuments,
    indexes: list[Path],
    number: int,
    changes: Difference,
) -> None:
    """Replace the retriever by one of the new indexes; weights, scales and evidence are kept."""
    made = artifacts.read_manifest(files.folder, Kind.RETRIEVER)
    inputs: dict[str, artifacts.Input] = {f"index {n}": index for n, index in enumerate(indexes, 1)}
    recorded = {role: artifacts.recorded_input(made, role) for role in made.inputs if role not in inputs}
    output = artifacts.open_output(
        files.folder,
        Kind.RETRIEVER,
        settings.command,
        inputs=inputs | {role: source for role, source in recorded.items() if source is not None},
        options=made.options | {"generation": number},
        overwrite=True,
    )
    before = files.stored.changed or {}
    changed = {name: before.get(name, 0) + count for name, count in changes.counts.items()}
    named = named_indexes(indexes, output.target)
    history = [former for former in files.stored.history if (files.folder.resolve() / former["path"]).is_dir()]
    history += named_indexes([current.collection, *files.indexes], output.target)
    stored = replace(files.stored, indexes=named, generation=number, changed=changed, history=history)
    if not output.up_to_date:
        with output.folder() as (work, counts):
            stored.write(work)
            counts |= made.counts
    output.note(f"generation {number}; {', '.join(map(os.path.relpath, indexes))}", indexes=indexes)
