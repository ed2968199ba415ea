"""`update`: bring a retriever or an index up to date with its documents."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import artifacts, console, storage
from hybrid_cli.artifacts import Recorded
from hybrid_cli.artifacts.indexes import check_models, corpora_of, group_of, ids_of, index_manifest, kind_in_words
from hybrid_cli.artifacts.judged import collection_of
from hybrid_cli.artifacts.retrievers import (
    RetrieverFiles,
    generation,
    index_paths,
    is_retriever,
    named_indexes,
    of_auto,
)
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Update
from hybrid_cli.commands.retrieval import RETRIEVER, SINGLE_INDEX
from hybrid_cli.errors import option_error, path_error
from hybrid_cli.inputs.files import text_lines
from hybrid_cli.passages import NO_GROUPS
from hybrid_cli.runs.groups import documents_of
from hybrid_cli.stages import call, stage
from hybrid_cli.stages.update.encoder import change_encoder, fusion_of
from hybrid_cli.stages.update.generations import (
    CurrentDocuments,
    Difference,
    changes_of,
    earlier_generation,
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
    if (folder := _retriever(settings)) is None:
        return _update_index(settings)
    home = folder.resolve()
    artifacts.lock_growing(home.with_name(f"{home.name}.update"))
    files = RetrieverFiles.read(folder)
    if settings.rollback:
        return _roll_back(settings, files)
    current = CurrentDocuments.of(files)
    if settings.model is not None:
        return _with_encoder(settings, files, current)
    inputs: dict[str, artifacts.Input] = {f"documents {n}": path for n, path in enumerate(settings.documents, 1)}
    known = documents_of(current.docids) if current.splits else current.docids
    removed = _removed(settings, known, folder, inputs)
    inputs |= {"added": settings.add} if settings.add is not None else {}
    sources = settings.documents or ([settings.add] if settings.add is not None else [])
    scratch = home.with_name(f".{home.name}.update.partial")
    with present_documents(sources, current, call, scratch) as present:
        current = current.with_metadata_of(present, sources)
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


@stage(Update)
def list_ids(settings: Update) -> Iterator[str]:
    """Return an iterator of the ids of the documents of a retriever or an index."""
    if (folder := _retriever(settings)) is None:
        return iter(ids_of(settings.index))
    files = RetrieverFiles.read(folder)
    ids = ids_of(files.indexes[0])
    passages = group_of(None, files.manifests) != NO_GROUPS
    return iter(documents_of(ids).unique(maintain_order=True) if passages else ids)


def _retriever(settings: Update) -> Path | None:
    """Return the folder of the retriever, None for an index; refuse options of the other."""
    if is_retriever(folder := of_auto(settings.index)):
        settings.check_facts(f"{folder} is a retriever", index_kind=RETRIEVER)
        return folder
    manifest = index_manifest(settings.index, sharded=True)
    settings.check_facts(kind_in_words(settings.index, manifest), index_kind=kinds_of_change(manifest) | {SINGLE_INDEX})
    return None


def _update_index(settings: Update) -> Path:
    """Write an index with the documents of another index, those that are added, and without those that are removed."""
    index, manifest = settings.index, index_manifest(settings.index, sharded=True)
    if settings.add is None and settings.remove is None:
        raise option_error("model", settings.model, f"{index} is an index; name a retriever", code="other-kind")
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
    if changes.new:
        check_models(files.manifests)
    now, number = files.stored.generation, next_generation(current, files, inputs)
    with artifacts.keeping_equal_outputs():
        corpus, first = write_generation(current, present, changes, generation(current.collection, now, number), inputs)
        indexes = []
        for index in files.indexes:
            output = generation(index, now, number)
            removed = pl.Series(sorted(changes.gone), dtype=pl.String)
            change = Change(index, index_manifest(index, sharded=True), removed, output, corpus, first, overwrite=True)
            indexes.append(write_change(settings, change, {}))
        before = files.stored.changed or {}
        changed = {name: before.get(name, 0) + count for name, count in changes.counts.items()}
        history = _history(files, current.collection)
        _switch(settings, files, indexes, generation=number, changed=changed, history=history)
    return RetrieverFiles.read(files.folder)


def _with_encoder(settings: Update, files: RetrieverFiles, current: CurrentDocuments) -> Path:
    """Switch a retriever to an index of another encoder; see `encoder.change_encoder`."""
    if settings.dry_run:
        documents = console.counted(document=len(current.docids))
        text = f"update: {files.folder}: {settings.model} would encode {documents} (dry run: nothing is written)"
        console.note(text, code="documents-changed", path=files.folder)
        return files.folder
    with artifacts.keeping_equal_outputs():
        indexes, state = change_encoder(settings, files, current.collection)
        _switch(settings, files, indexes, changed=None, history=_history(files, current.collection), **state)
    return files.folder


def _history(files: RetrieverFiles, collection: Path) -> list[dict[str, Any]]:
    """Return the history of the next generation: former ones that are there, and the present one."""
    stored, home = files.stored, files.folder.resolve()
    state = {"generation": stored.generation, "changed": stored.changed, "fusion": fusion_of(stored)}
    history = [dict(former) for former in stored.history if (home / former["path"]).is_dir()]
    return history + [former | state for former in named_indexes([collection, *files.indexes], home)]


def _roll_back(settings: Update, files: RetrieverFiles) -> Path:
    """Switch a retriever to its generation before the present one, whose files stay until --prune.

    Raises:
        InputError: no earlier generation, or one whose indexes have changed.
    """
    former, stored = earlier_generation(files), files.stored
    number, changed = former[0]["generation"], former[0]["changed"]
    _, *indexes = index_paths(files.folder, replace(stored, indexes=former))
    text = f"update: {files.folder}: generation {stored.generation} -> {number}"
    text += " (dry run: nothing is written)" if settings.dry_run else ""
    console.note(text, code="rolled-back", path=files.folder, generation=number)
    if not settings.dry_run:
        collection = collection_of(corpora_of(files.manifests))
        present = [path for path in (collection, *files.indexes) if path is not None]
        history = [entry for entry in stored.history if entry.get("generation") != number]
        history += named_indexes(present, files.folder)
        with artifacts.keeping_equal_outputs():
            state = {"generation": number, "changed": changed, "history": history}
            _switch(settings, files, indexes, **state, **former[0].get("fusion", {}))
    return files.folder


def _switch(settings: Update, files: RetrieverFiles, indexes: list[Path], **state: Any) -> None:
    """Replace the retriever by one of other indexes; weights, scales and evidence are kept, unless they are given.

    Args:
        settings: settings of the command.
        files: the retriever.
        indexes: its new indexes.
        state: `generation`, `changed` and `history` of the new retriever, and maybe its fusion.
    """
    number = state["generation"]
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
    stored = replace(files.stored, indexes=named_indexes(indexes, output.target), **state)
    if not output.up_to_date:
        with output.folder() as (work, counts):
            stored.write(work)
            counts |= made.counts
    output.note(f"generation {number}; {', '.join(map(os.path.relpath, indexes))}", indexes=indexes)
