"""`hybrid index-bm25`: a Lucene index through Anserini, and beside it the exact impact matrix."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections import collection as collections
from hybrid_cli.config import Bm25, LexicalIndexing, Retrieval
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.measures import evaluate_run, parse_measures
from hybrid_cli.lexical import jvm
from hybrid_cli.lexical.build import build
from hybrid_cli.lexical.index import DOCIDS, IMPACTS, LUCENE, PARAMETERS, LexicalIndex
from hybrid_cli.lexical.tuning import Setting, Tuning, tune

STAGE = "index-bm25"
DOCUMENTS_AT_ONCE = 8192
_FREE = ("k1", "b", "tune")
_BASELINE = (Bm25.k1, Bm25.b)


def index_bm25(
    collection: Path,
    *,
    output: Path,
    k1: float | None = None,
    b: float | None = None,
    fields: Sequence[str] = LexicalIndexing.fields,
    language: str = LexicalIndexing.language,
    tune_measure: str | None = None,
    split: str | None = None,
    queries: Path | None = None,
    qrels: Path | None = None,
    threads: int | None = None,
    java_heap: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Index the corpus of `collection` into the folder `output`.

    Another k1 and b for an index that is there already are only recorded: the corpus is not read again.

    Args:
        k1, b: recorded as the index's own; Anserini's 0.9 and 0.4 if None.
        fields: which of title and text are indexed, joined by a line end.
        language: `en`, or the code of another analyzer of Anserini.
        tune_measure: if given, k1 and b are chosen by it on the queries and qrels of `split` (dev), or of the files.
        threads: all processors if None.
        java_heap: the largest heap of Java, such as `4g`.

    Raises:
        InputError: unusable options or inputs; a document id twice.
        HybridError: no Java, or Lucene counted otherwise than the matrix.
    """  # fmt: skip
    _check(k1, b, fields, tune_measure, (split, queries, qrels))
    inputs = {"corpus": collections.corpus_path(collection)}
    if tune_measure:
        split = split or (None if queries and qrels else LexicalIndexing.tune_split)
        inputs["queries"] = queries or collections.queries_path(collection, split)
        inputs["qrels"] = qrels or collections.qrels_path(collection, split)
    parameters = (Bm25.k1 if k1 is None else k1, Bm25.b if b is None else b)
    if not tune_measure:
        k1, b = parameters
    options = {"fields": list(fields), "language": language, "k1": k1, "b": b, "tune": tune_measure}
    recorded_only = not overwrite and _differs_in_parameters(output, inputs, options)
    claim = artifacts.open_output(
        output, Kind.LEXICAL_INDEX, STAGE, inputs=inputs, options=options, overwrite=overwrite or recorded_only
    )
    if claim.up_to_date:
        return output
    if tune_measure or not recorded_only:
        jvm.start(java_heap)
    threads = threads or _processors()
    with claim.folder(ignore=(LUCENE,)) as (work, counts):
        if recorded_only:
            for part in (LUCENE, IMPACTS, DOCIDS):
                artifacts.hard_link(output / part, work / part)
        else:
            _build(collection, work, fields, language, threads)
        index = LexicalIndex.load(work, language, parameters)
        tuning = _tune(index, inputs, tune_measure, threads) if tune_measure else None
        index = index.under(*tuning.best) if tuning else index
        _record(work, index, tuning, tune_measure)
        counts.update(_counts(index))
    _tell(output, index, tuning, tune_measure, recorded_only)
    return output


def _check(
    k1: float | None, b: float | None, fields: Sequence[str], measure: str | None, where: Sequence[object]
) -> None:
    if measure and (k1 is not None or b is not None):
        raise InputError("--tune chooses k1 and b; leave --k1 and --b out")
    if not measure and any(where):
        raise InputError("--split, --queries and --qrels say where --tune looks; add --tune, or leave them out")
    if measure:
        parse_measures([measure])
    if k1 is not None and not 0 <= k1 < float("inf"):
        raise InputError(f"--k1 {k1}: is a number from 0 up")
    if b is not None and not 0 <= b <= 1:
        raise InputError(f"--b {b}: is a number from 0 to 1")
    if not fields or set(fields) - {"title", "text"} or len(set(fields)) < len(fields):
        raise InputError(f"--fields {','.join(fields)}: is title,text or one of the two")


def _differs_in_parameters(output: Path, inputs: Mapping[str, Path], options: Mapping[str, Any]) -> bool:
    """Whether `output` is an index of this corpus, made in this way, but for k1, b and how they were chosen."""
    found = artifacts.find_manifest(output) if output.is_dir() else None
    if found is None or found.kind != Kind.LEXICAL_INDEX or found.stage != STAGE:
        return False
    same_corpus = found.inputs["corpus"]["fingerprint"] == artifacts.fingerprint(inputs["corpus"])
    others = {name: value for name, value in options.items() if name not in _FREE}
    same_rest = {name: value for name, value in found.options.items() if name not in _FREE} == others
    tuned_on = {role: artifacts.fingerprint(path) for role, path in inputs.items()}
    tuned_on_then = {role: source["fingerprint"] for role, source in found.inputs.items()}
    return same_corpus and same_rest and (found.options, tuned_on_then) != (dict(options), tuned_on)


def _build(collection: Path, work: Path, fields: Sequence[str], language: str, threads: int) -> None:
    corpus = partial(collections.documents, collection, DOCUMENTS_AT_ONCE)
    with console.progress(STAGE, len(collections.docids(collection)), "documents") as advance:
        build(corpus, work, fields, language, threads, advance)


def _tune(index: LexicalIndex, inputs: Mapping[str, Path], measure: str, threads: int) -> Tuning:
    questions, qrels = collections.read_queries(inputs["queries"]), collections.read_qrels(inputs["qrels"])
    questions = questions.join(qrels, on="qid", how="semi", maintain_order="left")
    if not len(questions):
        raise InputError(f"{inputs['qrels']}: judges none of the queries in {inputs['queries']}")
    qrels = qrels.join(questions, on="qid", how="semi", maintain_order="left")
    bags = index.bags(questions["text"].to_list())
    hits = parse_measures([measure])[0].cutoff or Retrieval.hits
    grid = list(product(LexicalIndexing.tune_k1, LexicalIndexing.tune_b))
    with console.progress(f"{STAGE}: tune", len(grid), "settings") as advance:

        def evaluate(setting: Setting) -> pl.DataFrame:
            run = index.under(*setting).search_bags(questions["qid"], bags, hits, threads)
            advance(1)
            return evaluate_run(run, qrels, [measure]).select("qid", "value")

        return tune(evaluate, grid, _BASELINE)


def _record(work: Path, index: LexicalIndex, tuning: Tuning | None, measure: str | None) -> None:
    found: dict[str, Any] = {"k1": index.k1, "b": index.b}
    if tuning:
        found["tuning"] = {
            "measure": measure,
            "queries": tuning.queries,
            "held_out_gain": tuning.held_out_gain,
            "gains": tuning.gains,
            "means": [{"k1": k1, "b": b, "mean": mean} for (k1, b), mean in sorted(tuning.means.items())],
        }
    (work / PARAMETERS).unlink(missing_ok=True)
    (work / PARAMETERS).write_text(json.dumps(found, indent=2) + "\n", "utf-8")


def _counts(index: LexicalIndex) -> dict[str, Any]:
    postings = index.impacts.postings
    return {
        "documents": len(index.docids),
        "empty documents": len(index.docids) - postings.counted,
        "terms": len(postings.terms),
        "tokens": postings.tokens,
        "postings": len(postings.rows),
        "k1": index.k1,
        "b": index.b,
    }


def _tell(output: Path, index: LexicalIndex, tuning: Tuning | None, measure: str | None, recorded_only: bool) -> None:
    counts = _counts(index)
    if tuning:
        means, gains = tuning.means, tuning.gains
        console.note(
            f"{STAGE}: {measure} {means[tuning.best]:.4f} with k1={index.k1:g} b={index.b:g} on {tuning.queries:,} "
            f"queries ({means[_BASELINE]:.4f} with {Bm25.k1:g} and {Bm25.b:g}); held-out gain "
            f"{tuning.held_out_gain:+.4f} (halves {gains[0]:+.4f}, {gains[1]:+.4f})"
        )
        if tuning.held_out_gain <= 0 and tuning.best != _BASELINE:
            console.warn(f"tuning gains nothing on held-out queries; --k1 {Bm25.k1:g} --b {Bm25.b:g} is as good")
    what = "only k1 and b were recorded anew" if recorded_only else (
        f"{counts['documents']:,} documents ({counts['empty documents']:,} empty), {counts['terms']:,} terms, "
        f"{counts['tokens']:,} tokens"
    )  # fmt: skip
    console.note(f"{STAGE}: {what}; k1={index.k1:g} b={index.b:g} -> {output}")


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
