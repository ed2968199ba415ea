"""A retriever and an engine: the fusion as the engine gets it, the loss of its formula, the hits of a served export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import console, runs
from hybrid_cli.artifacts.indexes import docids_of
from hybrid_cli.artifacts.lineage import passage_length
from hybrid_cli.artifacts.opening import open_bm25, open_dense, open_hybrid, query_encoder
from hybrid_cli.artifacts.retrievers import RetrieverFiles, open_retriever, open_sides
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import SearchOptions
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.evaluation.complementarity import overlap
from hybrid_cli.evaluation.measures import evaluate_run, mean_of, without_query
from hybrid_cli.evaluation.options import Significance
from hybrid_cli.evaluation.significance import bootstrap
from hybrid_cli.exports.documents import Served
from hybrid_cli.exports.engine import ENGINES, Engine, Field, Formula, Fusion, OpenCollection, Translation
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.fusion.options import HITS
from hybrid_cli.passages import MAX, NO_GROUPS
from hybrid_cli.retrieval.composed import Grouped
from hybrid_cli.retrieval.retriever import Retriever
from hybrid_cli.runs.groups import by_document, judgments_of_documents
from hybrid_cli.storage import Kind

MEASURE, TOP = "nDCG@10", 10
_MEASURED, _RESAMPLES, _CONFIDENCE = 100, 10_000, 0.95  # hits by which a formula is measured
_ASKED, _TIED = 1000, 1e-5  # hits in which ties are looked up; relative difference of single-precision sums


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


def judgments_for(files: RetrieverFiles, path: Path) -> pl.DataFrame:
    """Return judgments (qid, docid, relevance) in the unit of the hits of a retriever: documents, or passages."""
    qrels = collections.read_qrels(path)
    passages = files.stored.group != NO_GROUPS and passage_length(path) is not None
    return judgments_of_documents(qrels) if passages else qrels


def _search(files: RetrieverFiles, queries: pl.DataFrame, hits: int) -> pl.DataFrame:
    """Return the run of a retriever without its reranker."""
    plain = replace(files, stored=replace(files.stored, reranker=None))
    return open_retriever(plain).search(queries, hits).select(runs.SCHEMA.names())


# ----------------------------------------------------------------------------------------------------------------- loss


Loss = Mapping[str, Any]  # see `measure_loss`


def loss_in_words(loss: Loss, engine: str) -> str:
    """Return a loss in one line; see `measure_loss`."""
    low, high = loss["interval"]
    return (
        f"{loss['measure']} of {loss['queries']:,} judged queries: hybrid {loss['hybrid']:.4f}, formula of {engine} "
        f"{loss['engine']:.4f}, difference {loss['difference']:+.4f} [{low:+.4f}, {high:+.4f}]; "
        f"{TOP * loss['overlap']:.2f} of the top {TOP} documents in common"
    )


def measure_loss(
    files: RetrieverFiles, formula: Formula, queries: pl.DataFrame, qrels: pl.DataFrame, remove_query: bool = False
) -> Loss:
    """Compare the fusion of a retriever, without its reranker, with the formula of an engine.

    Args:
        files: the retriever.
        formula: formula of the engine.
        queries: qid, text.
        qrels: qid, docid, relevance; of documents if the retriever has a rule for passages.
        remove_query: hits whose docid is the qid do not count.

    Returns:
        `measure`; `queries`, number of judged ones; means of `hybrid` and of the `engine`; their `difference`, with its
        95% bootstrap `interval`; and `overlap`, the mean fraction of common documents in the top ten.
    """
    asked = queries.join(qrels, on="qid", how="semi", maintain_order="left")
    hybrid = _search(files, asked, _MEASURED)
    engine = pl.concat([runs.empty(), *simulate(files, formula, asked, _MEASURED)])
    if remove_query:
        hybrid, engine = without_query(hybrid), without_query(engine)
    ours, theirs = (evaluate_run(run, qrels, [MEASURE])["value"].to_numpy() for run in (hybrid, engine))
    low, high = bootstrap((theirs - ours)[:, None], _RESAMPLES, _CONFIDENCE, Significance.seed)
    return {
        "measure": MEASURE,
        "queries": len(ours),
        "hybrid": float(ours.mean()),
        "engine": float(theirs.mean()),
        "difference": float((theirs - ours).mean()),
        "interval": (float(low[0]), float(high[0])),
        "overlap": float(overlap(hybrid, engine, TOP)["value"].to_numpy().mean()),
    }


def simulate(files: RetrieverFiles, formula: Formula, queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
    """Yield the run that the formula of an engine gives for some queries at a time.

    Args:
        files: the retriever.
        formula: formula of the engine.
        queries: qid, text.
        hits: documents per query.
    """
    grouped, exact = files.stored.group != NO_GROUPS, formula.depth is None
    docids = [docids_of(index) for index in files.indexes]
    if exact and all(ids.equals(docids[0]) for ids in docids[1:]):
        index = open_hybrid(files.indexes, formula.weights)
        found = (Grouped(index, MAX) if grouped else index).runs(queries, hits)
        yield from (run.select(runs.SCHEMA.names()) for run in found)
        return
    depth = formula.depth or len(docids[0])
    every = exact or formula.complete  # all scores are known
    recipe = FusionRecipe("sum", formula.weights, "exact" if every else "zero")
    retriever = Retriever(open_sides(files.indexes, SearchOptions(group=NO_GROUPS)), recipe, depth)
    for some in retriever.some(queries, hits):
        table = retriever.candidates(retriever.prepare(some), every).table(every)
        table = table.with_columns(docid=retriever.documents.ids.gather(table["docid"]))
        for run in formula.run([table], some["qid"], depth if grouped else hits):
            yield by_document(run, MAX, hits).select(runs.SCHEMA.names()) if grouped else run


# --------------------------------------------------------------------------------------------------------- live engines


def engine_at(text: str) -> tuple[Engine, str]:
    """Return engine and address of `NAME:ADDRESS`.

    Raises:
        InputError: an unknown name, or no address.
    """
    name, _, address = text.partition(":")
    known = [engine for engine in ENGINES if engine != "parquet"]
    if name not in known or not address:
        reason = f"needs NAME:ADDRESS with one of {', '.join(known)}"
        raise option_error("engine", text, reason, code="unknown-choice", choices=known)
    return ENGINES[name](), address


def compare(files: RetrieverFiles, text: str, queries: pl.DataFrame, qrels: pl.DataFrame | None) -> dict[str, Any]:
    """Ask a retriever, without its reranker, and an engine the same queries.

    Args:
        files: the retriever.
        text: engine and address; see `engine_at`.
        queries: qid, text.
        qrels: qid, docid, relevance; None without judgments.

    Returns:
        `engine`, as `text`; `documents`, number of documents in both; `queries`, number of queries; `same`, that of
        queries with the same ten documents, ties aside, and `same_order`, those of them with the same order; `overlap`,
        mean fraction of common documents in the top ten; `measured`, mean nDCG@10 of the retriever and of the engine,
        None without judgments; `differences`, what the engine computes differently, in sentences; `differing`, the
        queries with other documents, as qid and the documents that only `hybrid` or `engine` returns.

    Raises:
        InputError: the engine cannot be reached, has other documents, or lacks a feature.
        HybridError: its client is not installed.
    """
    engine, address = engine_at(text)
    served, translation = _translated(files, engine)
    with closing(engine.connect(address)) as live:
        if (count := live.count()) != (expected := len(served.lexical.docids)):
            problem = f"--engine {text}: has {count:,} documents, the retriever has {expected:,}; load its export again"
            raise InputError(problem, code="other-corpus", option="engine", value=count, expected=expected)
        theirs = _asked(live, translation, served, queries)
    ours = _search(files, queries, _ASKED)
    if files.stored.group != NO_GROUPS:
        theirs = by_document(theirs, MAX).select(runs.SCHEMA.names())
    theirs = theirs.filter(pl.col("rank") <= TOP)
    same, differing = [], []
    for qid in queries["qid"]:
        one, other = ours.filter(qid=qid), theirs.filter(qid=qid)
        same.append(_same(one, other))
        if not same[-1][0]:
            first, second = one["docid"].head(TOP).to_list(), other["docid"].to_list()
            only = {"hybrid": [d for d in first if d not in second], "engine": [d for d in second if d not in first]}
            differing.append({"qid": qid, **only})
    shares = overlap(ours, theirs, TOP)["value"]
    measured = None
    if qrels is not None:
        measured = [mean_of(evaluate_run(run, qrels, [MEASURE]), MEASURE) for run in (ours, theirs)]
    return {
        "engine": text,
        "documents": expected,
        "queries": len(queries),
        "same": sum(documents for documents, _ in same),
        "same_order": sum(map(all, same)),
        "overlap": float(shares.sum()) / len(shares) if len(shares) else 1.0,
        "measured": measured,
        "differences": translation.differences,
        "differing": differing,
    }


def _translated(files: RetrieverFiles, engine: Engine) -> tuple[Served, Translation]:
    """Return the indexes of a retriever, and its fusion in the words of an engine."""
    lexical, dense = files.of_kind(Kind.LEXICAL_INDEX), vectors_of(files)
    if len(lexical) != 1 or any(len(shards) > 1 for shards in files.manifests):
        reason = f"takes one index of BM25 and dense ones, without shards; {files.folder} has others"
        raise option_error("engine", engine.name, reason, code="other-kind", path=files.folder)
    served = Served(open_bm25(lexical[0]), (), (), Path(), {key: open_dense(index) for key, index in dense.items()})
    served.check()
    engine.check(served)
    translation = engine.translate(fusion_of(files, dense, served, engine.lexical))
    assert translation is not None  # only of formats
    return served, translation


def _asked(live: OpenCollection, translation: Translation, served: Served, queries: pl.DataFrame) -> pl.DataFrame:
    """Return the run of an engine, in its order of the hits."""
    encoders = {name: query_encoder(index) for name, index in served.dense.items()}
    table, hits = served.queries(queries, encoders), list[dict[str, Any]]()
    with console.progress("inspect", len(table), "queries") as advance:
        for query in served.with_terms(table):
            for rank, (docid, score) in enumerate(live.search(translation.request(query)), 1):
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
