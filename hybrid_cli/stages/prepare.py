"""`prepare`: import a source as a collection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import Any

from hybrid_cli import artifacts, console, languages
from hybrid_cli.collections.pseudo_queries import with_pseudo_queries
from hybrid_cli.collections.source import (
    QUERY_ROLES,
    Source,
    draw_sample,
    on_cluster,
    split_into_passages,
    without_empty_files,
)
from hybrid_cli.collections.writer import LONG_DOCUMENTS, CollectionWriter, clear
from hybrid_cli.commands.data import READERS, Prepare, PrepareDocumentFiles, PrepareRows
from hybrid_cli.errors import InputError
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind, disk

_NAMES = 12  # of fields or tags in a note; the manifest has all


@stage(Prepare)
def prepare(settings: Prepare) -> Path:
    """Import a collection: `prepare(PrepareBeir("scifact", output="data/scifact"))`.

    Args:
        settings: settings of one source, such as `PrepareBeir`; the reader has the name of its command.

    Returns:
        Path of the collection.

    Raises:
        InputError: the source cannot be read, or its rows contradict each other.
    """
    local = _source(settings)
    read = on_cluster(local, settings) if isinstance(settings, PrepareDocumentFiles) else local
    source = split_into_passages(
        with_pseudo_queries(draw_sample(without_empty_files(read), settings), settings), settings
    )
    options = {**source.options, **settings.recorded(**source.known)}
    output = artifacts.output_of(settings, Kind.COLLECTION, source.files, options)
    if output.up_to_date:
        return output.path
    policies: dict[str, Any] = {}
    if isinstance(settings, PrepareRows):
        policies = {"on_duplicate": settings.on_duplicate, "on_dangling": settings.on_dangling}
    with output.folder() as (work, counts):
        clear(work)
        try:
            with console.progress("prepare", unit="documents") as advance:
                writer = CollectionWriter(source, work, output.manifest, **policies, advance=advance)
                counts.update(writer.write())
        except BaseException:  # remove an incomplete collection, which is large and cannot be resumed
            disk.remove(work)
            raise
    _note(settings, source, counts, [f"{name}: {problem}" for name, problem in writer.problems.items()])
    return output.path


def _source(settings: Prepare) -> Source:
    """Return the source of a command; `prepare python-docs` is read by `readers/python_docs.py`.

    The paths among the options of a reader of a plugin are its files, unless it names them itself.
    """
    if settings.reader is not None:
        READERS.entry(settings.command.removeprefix("prepare "))  # its use is recorded
        values = {name: getattr(settings, name) for name in signature(settings.reader).parameters}
        source = settings.reader(**values)
        if not isinstance(source, Source):
            problem = f"{settings.command}: its reader returned {type(source).__name__}; a Source is needed"
            raise InputError(problem, code="not-a-source")
        files = {name: value for name, value in values.items() if isinstance(value, Path)}
        return source if source.files else replace(source, files=files)
    name = settings.command.split()[1].replace("-", "_")
    source = import_module(f"hybrid_cli.collections.readers.{name}").source(settings)
    assert isinstance(source, Source)
    return source


def _note(settings: Prepare, source: Source, counts: dict[str, Any], problems: list[str]) -> None:
    queries, judgments = counts["queries"], counts["judgments"]
    splits = [
        f"{split} {number:,} ({console.counted(judgment=judgments.get(split, 0))})" for split, number in queries.items()
    ]
    count = console.counted(document=counts["documents"])
    text = f"{settings.command}: {count}; queries: {', '.join(splits) or 'none'} -> {settings.output}"
    console.note(text, code="written", path=settings.output, documents=counts["documents"], queries=queries)
    if made := counts.get("pseudo_queries"):
        left_out = "; ".join(f"{reason}: {number:,}" for reason, number in made["left_out"].items())
        text = f"  pseudo-queries: taken out of {console.counted(document=made['documents_changed'])}"
        text += f"; documents without one: {left_out}" if left_out else ""
        console.note(text, code="pseudo-queries", documents=made["documents_changed"], left_out=made["left_out"])
        if any(role.split()[0] in QUERY_ROLES for role in source.files):
            text = "  the queries of the source are left out; prepare it without --pseudo-queries to use them"
            console.note(text, code="queries-left-out", option="pseudo_queries")
    _note_languages(counts["languages"])
    for line, (name, facts) in zip(problems, counts["problems"].items(), strict=True):
        console.note(f"  {line}", code="problem", problem=name, **facts)
    for line in _left_out(counts.get("other_content", {})):
        console.note(f"  {line}", code="other-content")
    if LONG_DOCUMENTS in counts["problems"] and settings.split_passages is None:
        text = "  most encoders cut long documents; --split-passages N divides them into passages of N words"
        console.note(text, code="long-documents", option="split_passages")


def _note_languages(counts: dict[str, dict[str, int]]) -> None:
    """Print the languages of documents and queries, unless all are English; warn where they differ."""
    if any(languages.others(own, than=languages.ENGLISH) >= languages.NOTED for own in counts.values()):
        named = (f"{what} {languages.listed(own)}" for what, own in counts.items() if own)
        console.note(f"  languages: {', '.join(named)}", code="languages", **counts)
    most = {what: languages.majority(own) for what, own in counts.items() if own}
    if len(set(most.values())) > 1:
        text = (
            f"most documents have the language {most['documents']}, most queries {most['queries']}: BM25 finds little"
        )
        console.warn(f"{text}; use a multilingual encoder", code="query-language", **most)


def _left_out(counts: dict[str, dict[str, dict[str, int]]]) -> Iterator[str]:
    """Yield a line for each kind of content that is in neither title, text nor query."""
    kinds = {"words": "words of other fields", "tags": "tags removed", "entities": "unknown entities, kept as written"}
    for what, by_kind in counts.items():
        for kind, numbers in by_kind.items():
            most = ", ".join(f"{name} {number:,}" for name, number in islice(numbers.items(), _NAMES))
            more = len(numbers) - _NAMES
            yield f"{what}, {kinds[kind]}: {most}" + (f", and {more:,} more names" if more > 0 else "")
