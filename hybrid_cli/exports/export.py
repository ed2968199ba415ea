"""Indexes, and the fusion of a retriever, written for a search engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hybrid_cli import artifacts, console
from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import InputError
from hybrid_cli.exports.documents import Served
from hybrid_cli.exports.engine import Field, Fusion
from hybrid_cli.exports.engines import ENGINES
from hybrid_cli.lexical.options import weighted_fields
from hybrid_cli.opening.dense import open_dense
from hybrid_cli.opening.exact import query_encoder
from hybrid_cli.opening.lexical import open_bm25
from hybrid_cli.opening.provenance import corpora_of, existing_paths, refuse_other_corpora, warn_lost
from hybrid_cli.opening.stored_retriever import RetrieverFiles
from hybrid_cli.settings import Export
from hybrid_cli.storage import Kind, disk, layout


def export_indexes(
    lexical: Path, dense: Mapping[str, Path], files: RetrieverFiles | None, scratch: Path, settings: Export
) -> str:
    """Write the documents of a lexical index for a search engine, and the fusion of a retriever in its words.

    Args:
        lexical: a lexical index.
        dense: field name -> dense index.
        files: the retriever of the indexes; None for indexes alone.
        scratch: folder to write.
        settings: settings of the command.

    Returns:
        Counts of what was written.
    """
    engine, served = ENGINES[settings.form], _served(lexical, dense, scratch, settings)
    served.check()
    engine.check(served)
    translation = None if files is None else engine.translate(fusion_of(files, dense, served, engine.lexical))
    scratch.mkdir(exist_ok=True)
    with console.progress("export", len(served.lexical.docids), "documents") as advance:
        counts = {"document": engine.write(served, scratch, advance)}
    if settings.split is not None:
        assert settings.collection is not None
        read = collections.read_queries(collections.queries_path(settings.collection, settings.split))
        encoders = {name: query_encoder(index, settings.model) for name, index in served.dense.items()}
        queries = served.queries(read, encoders)
        engine.write_queries(served, queries, scratch, translation.request if translation else None)
        counts["query"] = len(queries)
    for name, text in (translation.files if translation else {}).items():
        disk.write_text(scratch / name, text)
    disk.remove(served.work)
    return console.counted(**counts)


def _served(lexical: Path, dense: Mapping[str, Path], scratch: Path, settings: Export) -> Served:
    """Open indexes and the corpora of their documents."""
    manifest = artifacts.read_manifest(lexical, Kind.LEXICAL_INDEX)
    recorded = corpora_of([[manifest]])
    corpora = [settings.collection] if settings.collection else existing_paths(recorded)
    if not corpora:
        raise InputError(
            f"{lexical}: its corpus is no longer at the recorded path; pass it with --collection",
            code="corpus-missing", path=lexical, option="collection",
        )  # fmt: skip
    if not settings.collection:
        warn_lost(recorded, "its texts may be of other documents; pass the collection with --collection")
    opened = {name: open_dense(index) for name, index in dense.items()}
    refuse_other_corpora({index: [artifacts.read_manifest(index)] for index in (lexical, *dense.values())})
    work, fields = scratch / layout.DOCUMENT_IMPACTS, weighted_fields(manifest.options["fields"])
    return Served(open_bm25(lexical), fields, corpora, work, opened)


def fusion_of(files: RetrieverFiles, dense: Mapping[str, Path], served: Served, lexical: str) -> Fusion:
    """Return the fusion of a retriever, with the names of the written fields.

    Args:
        files: the retriever.
        dense: field name -> dense index.
        served: the documents.
        lexical: name of the field of BM25.
    """
    stored, names = files.stored, {index: name for name, index in dense.items()}
    fields = tuple(
        Field(names.get(index, lexical), weight, served.dims.get(names.get(index, "")))
        for index, weight in zip(files.indexes, stored.weights, strict=True)
    )
    return Fusion(stored.recipe, fields, stored.depth, stored.group)
