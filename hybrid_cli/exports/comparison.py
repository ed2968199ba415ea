"""The same queries in a retriever and in an engine into which its export was loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import console, runs
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.evaluation.complementarity import overlap
from hybrid_cli.evaluation.measures import evaluate_run
from hybrid_cli.exports.documents import Served
from hybrid_cli.exports.engine import Engine, Translation
from hybrid_cli.exports.engines import ENGINES
from hybrid_cli.exports.export import fusion_of, vectors_of
from hybrid_cli.exports.live import Live
from hybrid_cli.opening.dense import open_dense
from hybrid_cli.opening.exact import query_encoder
from hybrid_cli.opening.lexical import open_bm25
from hybrid_cli.opening.searcher import RetrieverSearcher
from hybrid_cli.opening.stored_retriever import RetrieverFiles
from hybrid_cli.passages import MAX, NO_GROUPS
from hybrid_cli.reporting.engine import MEASURE, TOP, Agreement, Difference
from hybrid_cli.runs.groups import by_document
from hybrid_cli.storage import Kind

_HITS, _TIED = 1000, 1e-5  # hits in which ties are looked up; relative difference of single-precision sums


def engine_at(text: str) -> tuple[str, Engine, str]:
    """Return name, engine and address of `NAME:ADDRESS`.

    Raises:
        InputError: an unknown name, or no address.
    """
    name, _, address = text.partition(":")
    known = [each for each in ENGINES if each != "parquet"]
    if name not in known or not address:
        reason = f"needs NAME:ADDRESS with one of {', '.join(known)}"
        raise option_error("engine", text, reason, code="unknown-choice", choices=known)
    return name, ENGINES[name], address


def compare(files: RetrieverFiles, text: str, queries: pl.DataFrame, qrels: pl.DataFrame | None) -> Agreement:
    """Ask a retriever, without its reranker, and an engine the same queries.

    Args:
        files: the retriever.
        text: engine and address; see `engine_at`.
        queries: qid, text.
        qrels: qid, docid, relevance; None without judgments.

    Raises:
        InputError: the engine cannot be reached, has other documents, or lacks a feature.
        HybridError: its client is not installed.
    """
    name, engine, address = engine_at(text)
    served, translation = _translated(files, name, engine)
    plain = replace(files, stored=replace(files.stored, reranker=None))
    with closing(engine.connect(address)) as live:
        if (count := live.count()) != (expected := len(served.lexical.docids)):
            problem = f"--engine {text}: has {count:,} documents, the retriever has {expected:,}; load its export again"
            raise InputError(problem, code="other-corpus", option="engine", value=count, expected=expected)
        theirs = _asked(live, translation, served, queries)
    ours = pl.concat([runs.empty(), *RetrieverSearcher.open(plain).search(queries, _HITS)], how="diagonal")
    if files.stored.group != NO_GROUPS:
        theirs = by_document(theirs, MAX).select(runs.SCHEMA.names())
    theirs = theirs.filter(pl.col("rank") <= TOP)
    same = {qid: _same(ours.filter(qid=qid), theirs.filter(qid=qid)) for qid in queries["qid"]}
    measured = None if qrels is None else (_mean(ours, qrels), _mean(theirs, qrels))
    shares = overlap(ours, theirs, TOP)["value"]
    return Agreement(
        text, expected, len(queries), sum(documents for documents, _ in same.values()),
        sum(documents and order for documents, order in same.values()),
        float(shares.sum()) / len(shares) if len(shares) else 1.0, measured, translation.differences,
        [_difference(qid, ours, theirs) for qid, (documents, _) in same.items() if not documents],
    )  # fmt: skip


def _translated(files: RetrieverFiles, name: str, engine: Engine) -> tuple[Served, Translation]:
    """Return the indexes of a retriever, and its fusion in the words of an engine."""
    lexical, dense = files.of_kind(Kind.LEXICAL_INDEX), vectors_of(files)
    if len(lexical) != 1 or any(len(shards) > 1 for shards in files.manifests):
        reason = f"takes one index of BM25 and dense ones, without shards; {files.folder} has others"
        raise option_error("engine", name, reason, code="other-kind", path=files.folder)
    served = Served(open_bm25(lexical[0]), (), (), Path(), {key: open_dense(index) for key, index in dense.items()})
    served.check()
    engine.check(served)
    translation = engine.translate(fusion_of(files, dense, served, engine.lexical))
    assert translation is not None  # only of formats
    return served, translation


def _asked(live: Live, translation: Translation, served: Served, queries: pl.DataFrame) -> pl.DataFrame:
    """Return the run of an engine, in its order of the hits."""
    encoders = {name: query_encoder(index) for name, index in served.dense.items()}
    terms, hits = served.terms, list[dict[str, Any]]()
    table = served.queries(queries, encoders)
    with console.progress("verify", len(table), "queries") as advance:
        for query in table.iter_rows(named=True):
            weights = dict(zip(terms.gather(query["indices"]), query["values"], strict=True))
            for rank, (docid, score) in enumerate(live.search(translation.request({**query, "terms": weights})), 1):
                hits.append({"qid": query["qid"], "docid": docid, "rank": rank, "score": score})
            advance(1)
    return pl.DataFrame(hits, runs.empty().schema)


def _same(ours: pl.DataFrame, theirs: pl.DataFrame) -> tuple[bool, bool]:
    """Return whether hits of one query are the same documents, and in the same order; tied ones count as the same.

    Args:
        ours: hits beyond the top ten too.
        theirs: the top ten of the engine.
    """
    scores: Mapping[str, float] = dict(ours.select("docid", "score").iter_rows())
    top = ours["score"].head(TOP).to_numpy()
    if len(theirs) != len(top):
        return False, False
    if not len(top):
        return True, True
    found = np.array([scores.get(docid, -np.inf) for docid in theirs["docid"]])
    tolerance = _TIED * max(1.0, float(np.abs(top).max()))
    documents = bool((found >= top[-1] - tolerance).all())
    return documents, documents and bool((np.diff(found) <= tolerance).all())


def _difference(qid: str, ours: pl.DataFrame, theirs: pl.DataFrame) -> Difference:
    first, second = ([*run.filter(qid=qid)["docid"].head(TOP)] for run in (ours, theirs))
    return Difference(qid, _without(first, second), _without(second, first))


def _without(docids: Sequence[str], others: Sequence[str]) -> list[str]:
    return [docid for docid in docids if docid not in others]


def _mean(run: pl.DataFrame, qrels: pl.DataFrame) -> float:
    return float(evaluate_run(run, qrels, [MEASURE])["value"].to_numpy().mean())
