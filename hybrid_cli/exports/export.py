"""Indexes, and the fusion of a retriever, written for a search engine, with a note."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts.belonging import belongs_together
from hybrid_cli.artifacts.indexes import known_corpora
from hybrid_cli.artifacts.opening import open_bm25, open_dense, query_encoder
from hybrid_cli.artifacts.retrievers import RetrieverFiles
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Export
from hybrid_cli.errors import path_error
from hybrid_cli.evaluation.retrieved import removes_query
from hybrid_cli.exports.comparison import Loss, fusion_of, judgments_for, loss_in_words, measure_loss
from hybrid_cli.exports.documents import Served
from hybrid_cli.exports.engine import ENGINES, Engine, Fusion, Request, Translation
from hybrid_cli.lexical.options import weighted_fields
from hybrid_cli.storage import Kind, disk, layout


def export_indexes(
    lexical: Path, dense: Mapping[str, Path], files: RetrieverFiles | None, scratch: Path, settings: Export
) -> tuple[str, dict[str, Any]]:
    """Write the documents of a lexical index for a search engine, and the fusion of a retriever in its words.

    Args:
        lexical: a lexical index.
        dense: field name -> dense index.
        files: the retriever of the indexes; None for indexes alone, whose scores are added.
        scratch: folder to write.
        settings: settings of the command.

    Returns:
        Numbers of documents and queries, in words; and the fusion in the words of the engine, for `fusion.json`, empty
        for a format without an engine.

    Raises:
        InputError: the engine cannot take the documents, or has nothing near the fusion.
    """
    engine, served = ENGINES[settings.form](), _served(lexical, dense, scratch, settings)
    served.check()
    engine.check(served)
    fusion = fusion_of(files, dense, served, engine.lexical)
    translation = engine.translate(fusion)
    scratch.mkdir(exist_ok=True)
    with console.progress("export", len(served.lexical.docids), "documents") as advance:
        engine.write(served, scratch, advance)
    counts = {"document": len(served.lexical.docids)}
    request = translation.request if translation else None
    queries = _write_queries(engine, served, request, scratch, settings)
    counts |= {} if queries is None else {"query": len(queries)}
    disk.remove(served.work)
    if translation is None:
        return console.counted(**counts), {}
    loss = None if files is None or queries is None else _loss(files, translation, queries, settings)
    texts = {"query.json": json.dumps(translation.request(_placeholders(fusion)), indent=2) + "\n"}
    for name, text in {**texts, **translation.files}.items():
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        disk.write_text(scratch / name, text)
    reranked = files is not None and files.stored.reranker is not None
    disk.write_text(scratch / "README.md", _note(engine, fusion, translation, loss, reranked))
    described = {"name": engine.name, "fusion": translation.name, "differences": list(translation.differences)}
    return console.counted(**counts), {**described, "ran": engine.ran, "loss": loss}


_NOTE = """\
# Export for {engine}

Fusion: {method} (weights: {weights}; depth {depth:,}).
In {engine}: {translated}. {tested}

In the request `query.json`, names stand for the text, the terms and the vectors of a query; a line of
`queries.jsonl`, which `--split` writes, has the whole request.

## Load and ask

```sh
{load}
{ask}
```

## Differences

{differences}

## Loss

{loss}.
"""


def _note(engine: Engine, fusion: Fusion, translation: Translation, loss: Loss | None, reranked: bool) -> str:
    """Return the note of an export.

    Args:
        engine: the engine.
        fusion: fusion of the retriever.
        translation: the fusion in the words of the engine.
        loss: measured loss; None without judged queries.
        reranked: the retriever has a reranker.
    """
    differences = [f"- {line}" for line in translation.differences] or ["None."]
    if reranked:
        differences.append("- The reranker is not part of the export: rerank the hits where you ask the engine.")
    unmeasured = "Not measured: export again with `--collection` and a judged `--split`"
    tested = "The tests of hybrid run such an export in the engine." if engine.ran else "Not run against a server."
    return _NOTE.format(
        engine=engine.name,
        method=fusion.recipe.method,
        weights=", ".join(f"{each.name} {each.weight:g}" for each in fusion.fields),
        depth=fusion.depth,
        translated=translation.name,
        tested=tested,
        load=translation.load,
        ask=translation.ask,
        differences="\n".join(differences),
        loss=unmeasured if loss is None else loss_in_words(loss, engine.name),
    )


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
    qrels = judgments_for(files, path)
    return measure_loss(files, translation.formula, queries, qrels, removes_query(settings.collection, settings.split))


def _placeholders(fusion: Fusion) -> dict[str, Any]:
    """Return a query of names in place of its text, terms and vectors."""
    vectors = {each.name: f"VECTOR OF {each.dim} NUMBERS" for each in fusion.dense}
    terms = {"terms": {"TERM": 1.0}, "indices": ["ID OF A TERM"], "values": [1.0]}
    return {"qid": "QID", "text": "TEXT OF THE QUERY", **terms, **vectors}


def _served(lexical: Path, dense: Mapping[str, Path], scratch: Path, settings: Export) -> Served:
    """Open indexes and the corpora of their documents."""
    manifest = artifacts.read_manifest(lexical, Kind.LEXICAL_INDEX)
    lost = "its texts may be of other documents; pass the collection with --collection"
    corpora = [settings.collection] if settings.collection else known_corpora([[manifest]], lost)
    if not corpora:
        problem = "its corpus is no longer at the recorded path; pass it with --collection"
        raise path_error(lexical, problem, code="corpus-missing", option="collection")
    opened = {name: open_dense(index) for name, index in dense.items()}
    belongs_together(indexes={index: [artifacts.read_manifest(index)] for index in (lexical, *dense.values())})
    work, fields = scratch / layout.DOCUMENT_IMPACTS, weighted_fields(manifest.options["fields"])
    return Served(open_bm25(lexical), fields, corpora, work, opened)
