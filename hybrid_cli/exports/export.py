"""Indexes, and the fusion of a retriever, written for a search engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts.lineage import passage_length
from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.retrieved import removes_query
from hybrid_cli.exports.documents import Served
from hybrid_cli.exports.engine import Engine, Field, Fusion, Request, Translation
from hybrid_cli.exports.engines import ENGINES
from hybrid_cli.exports.loss import Loss, measure_loss
from hybrid_cli.exports.note import NOTE, note
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.fusion.options import HITS
from hybrid_cli.lexical.options import weighted_fields
from hybrid_cli.opening.dense import open_dense
from hybrid_cli.opening.exact import query_encoder
from hybrid_cli.opening.lexical import open_bm25
from hybrid_cli.opening.provenance import corpora_of, existing_paths, refuse_other_corpora, warn_lost
from hybrid_cli.opening.stored_retriever import RetrieverFiles
from hybrid_cli.passages import NO_GROUPS
from hybrid_cli.runs.groups import judgments_of_documents
from hybrid_cli.settings import Export
from hybrid_cli.storage import Kind, disk, layout


@dataclass(frozen=True)
class Written:
    """What was written for an engine.

    Attributes:
        counts: numbers of documents and queries, in words.
        engine: the fusion in the words of the engine, for `fusion.json`; empty for a format without an engine.
        loss: measured loss; None without judged queries.
    """

    counts: str
    engine: Mapping[str, Any]
    loss: Loss | None = None


def export_indexes(
    lexical: Path, dense: Mapping[str, Path], files: RetrieverFiles | None, scratch: Path, settings: Export
) -> Written:
    """Write the documents of a lexical index for a search engine, and the fusion of a retriever in its words.

    Args:
        lexical: a lexical index.
        dense: field name -> dense index.
        files: the retriever of the indexes; None for indexes alone, whose scores are added.
        scratch: folder to write.
        settings: settings of the command.

    Raises:
        InputError: the engine cannot take the documents, or has nothing near the fusion.
    """
    engine, served = ENGINES[settings.form], _served(lexical, dense, scratch, settings)
    served.check()
    engine.check(served)
    fusion = fusion_of(files, dense, served, engine.lexical)
    translation = engine.translate(fusion)
    scratch.mkdir(exist_ok=True)
    with console.progress("export", len(served.lexical.docids), "documents") as advance:
        counts = {"document": engine.write(served, scratch, advance)}
    request = translation.request if translation else None
    queries = _write_queries(engine, served, request, scratch, settings)
    counts |= {} if queries is None else {"query": len(queries)}
    disk.remove(served.work)
    if translation is None:
        return Written(console.counted(**counts), {})
    loss = None if files is None or queries is None else _loss(files, translation, queries, settings)
    texts = {"query.json": json.dumps(translation.request(_placeholders(fusion)), indent=2) + "\n"}
    for name, text in {**texts, **translation.files}.items():
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        disk.write_text(scratch / name, text)
    names = sorted(path.relative_to(scratch).as_posix() for path in scratch.rglob("*") if path.is_file())
    reranked = files is not None and files.stored.reranker is not None
    disk.write_text(scratch / NOTE, note(settings.form, fusion, translation, names, loss, engine.ran, reranked))
    described: dict[str, Any] = {
        "name": settings.form,
        "fusion": translation.name,
        "differences": list(translation.differences),
    }
    described |= {"ran": engine.ran, "loss": None if loss is None else asdict(loss)}
    return Written(console.counted(**counts), described, loss)


def _write_queries(
    engine: Engine, served: Served, request: Request | None, scratch: Path, settings: Export
) -> pl.DataFrame | None:
    """Write the queries of a split with their requests; return them (qid, text), or None without a split."""
    if settings.split is None:
        return None
    assert settings.collection is not None
    read = collections.read_queries(collections.queries_path(settings.collection, settings.split))
    encoders = {name: query_encoder(index, settings.model) for name, index in served.dense.items()}
    engine.write_queries(served, served.queries(read, encoders), scratch, request)
    return read


def _loss(files: RetrieverFiles, translation: Translation, queries: pl.DataFrame, settings: Export) -> Loss | None:
    """Return the measured loss; None if the queries have no judgments."""
    assert settings.collection is not None
    assert settings.split is not None
    if settings.qrels is None and not collections.is_judged(settings.collection, settings.split):
        return None
    path = settings.qrels or collections.qrels_path(settings.collection, settings.split)
    qrels = collections.read_qrels(path)
    if files.stored.group != NO_GROUPS and passage_length(path) is not None:
        qrels = judgments_of_documents(qrels)
    return measure_loss(files, translation.formula, queries, qrels, removes_query(settings.collection, settings.split))


def _placeholders(fusion: Fusion) -> dict[str, Any]:
    """Return a query of names in place of its text, terms and vectors."""
    vectors = {each.name: f"VECTOR OF {each.dim} NUMBERS" for each in fusion.dense}
    terms = {"terms": {"TERM": 1.0}, "indices": ["ID OF A TERM"], "values": [1.0]}
    return {"qid": "QID", "text": "TEXT OF THE QUERY", **terms, **vectors}


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


def vectors_of(files: RetrieverFiles) -> dict[str, Path]:
    """Return field name -> dense index of a retriever."""
    dense = files.of_kind(Kind.DENSE_INDEX)
    return {f"vector_{number}" if len(dense) > 1 else "vector": index for number, index in enumerate(dense, 1)}


def fusion_of(files: RetrieverFiles | None, dense: Mapping[str, Path], served: Served, lexical: str) -> Fusion:
    """Return the fusion of a retriever, or the sum of all scores, with the names of the written fields.

    Args:
        files: the retriever; None for indexes alone.
        dense: field name -> dense index.
        served: the documents.
        lexical: name of the field of BM25.
    """

    def field(name: str, weight: float) -> Field:
        if name not in served.dense:
            return Field(name, weight)
        return Field(name, weight, served.dims[name], served.exact(name), served.unit(name))

    index = served.lexical
    facts: dict[str, Any] = {"k1": index.k1, "documents": len(index.docids), "language": index.language}
    if files is None:
        fields = tuple(field(name, 1.0) for name in (lexical, *dense))
        return Fusion(FusionRecipe("weighted-sum", (1.0,) * len(fields), "exact"), fields, HITS, **facts)
    stored, names = files.stored, {index: name for name, index in dense.items()}
    fields = tuple(
        field(names.get(index, lexical), weight) for index, weight in zip(files.indexes, stored.weights, strict=True)
    )
    return Fusion(stored.recipe, fields, stored.depth, group=stored.group, shares=stored.shares, **facts)
