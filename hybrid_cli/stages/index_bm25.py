"""`index-bm25`: build a Lucene index and an impact matrix of a corpus."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from hybrid_cli import artifacts, console, languages, storage, words
from hybrid_cli.artifacts import Output
from hybrid_cli.artifacts.indexes import write_manifests
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import IndexBm25
from hybrid_cli.errors import PACKAGES, option_error
from hybrid_cli.evaluation.measures import evaluate_run, parse_measures
from hybrid_cli.evaluation.retrieved import removes_query
from hybrid_cli.lexical import jvm
from hybrid_cli.lexical.analysis import choose_language, refuse_unknown
from hybrid_cli.lexical.build import Corpus, Setting, Tuning, build, build_shards, disk_of, memory_of, needs_java, tune
from hybrid_cli.lexical.index import LexicalIndex, read_parameters
from hybrid_cli.lexical.options import field_weight
from hybrid_cli.memory import cpu_count
from hybrid_cli.reporting.tables import figure, with_sign
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind, disk, layout

_DOCUMENTS_AT_ONCE = 8192
_SAMPLED = 512  # documents whose words are counted for the forecast
_SAMPLED = 200  # documents whose language is detected without counts of `prepare`
_HITS = 1000  # hits per query, for tuning on a measure without a cutoff
_GRID_K1 = (0.4, 0.6, 0.8, 0.9, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0)
_GRID_B = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_CORPUS_OPTIONS = ("fields", "language", "identifiers", "lucene")  # other options change only k1 and b


@stage(IndexBm25)
def index_bm25(settings: IndexBm25) -> Path:
    """Index a corpus for BM25.

    In an existing index, other values of k1 and b are stored without reading the corpus again. Without `k1`, `b` and
    `tune` its parameters stay as they are. Tuning without a gain on held-out queries changes nothing either. Without
    the extra `lucene`, and unless `lucene` is asked for, it writes the matrix alone.

    Returns:
        Folder of the index.

    Raises:
        InputError: options or inputs cannot be used, or a document id occurs twice.
        HybridError: Java is missing and needed, or Lucene's counts differ from those of the matrix.
    """
    alone = not settings.given & {"lucene", "shards"} and not jvm.is_installed()
    settings = _in_language(settings.changed(lucene=False) if alone else settings)
    output, inputs = settings.output, _inputs(settings)
    if settings.shards is not None:
        return _index_shards(settings, settings.shards, inputs)
    reuse = not settings.overwrite and _differs_in_parameters(settings, inputs)
    target = artifacts.output_of(settings.changed(overwrite=settings.overwrite or reuse), Kind.LEXICAL_INDEX, inputs)
    if target.up_to_date:
        return output
    if needs_java(settings.analysis, settings.lucene) and not reuse:
        jvm.start()
    if alone:
        text = "index-bm25: the matrix alone, whose searches have Lucene's scores; for Lucene's own index: pip install"
        console.note(f"{text} '{PACKAGES['pyserini']}'", code="no-lucene")
    with target.folder(ignore=(layout.LUCENE,)) as (work, counts):
        if reuse:
            storage.check_parts(output, layout.IMPACTS, layout.DOCIDS)
            for part in (*([layout.LUCENE] if settings.lucene else []), layout.IMPACTS, layout.DOCIDS):
                artifacts.hard_link(output / part, work / part)
        else:
            _build(settings, work)
        stored = read_parameters(output) if reuse and settings.tune else {"k1": settings.k1, "b": settings.b}
        start = stored["k1"], stored["b"]
        index = LexicalIndex.load(work, settings.analysis, start)
        index.threads = settings.threads
        tuning = _tune(index, inputs, settings) if settings.tune else None
        index = index.under(*tuning.best) if tuning and tuning.held_out_gain > 0 else index
        _record(work, (index.k1, index.b), tuning, settings.measure)
        counts.update(index.counts())
        index.compile()
    _report(settings, target, index, tuning, reuse)
    return output


def _in_language(settings: IndexBm25) -> IndexBm25:
    """Return settings with an analyzer: the given one, else that of most documents."""
    if settings.language is not None:
        refuse_unknown(settings.language)
        return settings
    counts = collections.languages_of(settings.collection)
    if not counts:  # a corpus of another program, or of an older version
        first = next(collections.documents(settings.collection, _SAMPLED), None)
        columns = [] if first is None else [first.column(name).to_pylist() for name in ("title", "text")]
        counts = {languages.of_most([*map("\n".join, zip(*columns, strict=True))]): 1}
    return settings.changed(language=choose_language(counts, settings.lucene and settings.shards is None))


def _inputs(settings: IndexBm25) -> dict[str, Path]:
    inputs = {"corpus": collections.corpus_path(settings.collection)}
    collections.check_fields(settings.collection, _names(settings))
    inputs |= {"expansion": settings.expansion} if settings.expansion else {}
    if settings.tune:
        parse_measures([settings.measure])
        whole = settings.queries and settings.qrels
        split = None if whole else collections.tuning_split(settings.collection, settings.split)
        inputs["queries"] = settings.queries or collections.queries_path(settings.collection, split)
        inputs["qrels"] = settings.qrels or collections.qrels_path(settings.collection, split)
    return inputs


def _differs_in_parameters(settings: IndexBm25, inputs: Mapping[str, Path]) -> bool:
    """Return whether the existing index differs only in k1, b or their tuning."""
    manifest = artifacts.find_manifest(settings.output) if settings.output.is_dir() else None
    if manifest is None or manifest.kind != Kind.LEXICAL_INDEX or manifest.stage != "index-bm25":
        return False
    fingerprints = {role: storage.fingerprint(path) for role, path in inputs.items()}
    recorded = {role: source["fingerprint"] for role, source in manifest.inputs.items()}
    options = settings.recorded()
    if not settings.tune and not {"k1", "b"} & settings.given:  # nothing to change was asked for
        return False
    same_corpus = all(recorded.get(role) == fingerprints.get(role) for role in ("corpus", "expansion"))
    existing = artifacts.options_of(manifest, options)
    same_build = all(existing[name] == options[name] for name in _CORPUS_OPTIONS)
    return same_corpus and same_build and (existing, recorded) != (options, fingerprints)


def _index_shards(settings: IndexBm25, shards: int, inputs: Mapping[str, Path]) -> Path:
    """Write one index per shard."""
    options = settings.recorded() | {"shards": shards}
    target = artifacts.output_of(settings, Kind.SHARDS, inputs, options)
    if target.up_to_date:
        return target.path
    total = collections.document_count(settings.collection)
    if shards > total:
        reason = f"{inputs['corpus']} has {total:,} documents; use fewer shards"
        raise option_error("shards", shards, reason, limit=total)
    collections.docids(settings.collection)  # refuses repeated ids
    corpus = partial(collections.documents, settings.collection, _DOCUMENTS_AT_ONCE, _names(settings))
    _forecast(settings, corpus, total, shards, target.partial)
    if needs_java(settings.analysis, with_lucene=False):
        jvm.start()
    sizes = [total * (number + 1) // shards - total * number // shards for number in range(shards)]
    with target.folder() as (work, counts):
        with console.progress("index-bm25", total, "documents") as advance:
            build_shards(corpus, work, settings.fields, settings.analysis, sizes, advance)
        for number in range(shards):
            _record(work / layout.shard(number), (settings.k1, settings.b))
        counts |= write_manifests(target, work, settings.analysis)
    target.note(f"{console.counted(document=total)} in {shards} shards")
    return settings.output


def _build(settings: IndexBm25, work: Path) -> None:
    names = _names(settings)
    corpus = partial(collections.expanded_documents, settings.collection, settings.expansion, _DOCUMENTS_AT_ONCE, names)
    documents = len(collections.docids(settings.collection))
    _forecast(settings, corpus, documents, 1, work)
    with console.progress("index-bm25", documents, "documents") as advance:
        threads = settings.threads or cpu_count()
        build(corpus, work, settings.fields, settings.analysis, threads, advance, with_lucene=settings.lucene)
    storage.refuse_lost_rows(work, "documents", pq.read_metadata(work / layout.DOCIDS).num_rows, documents)


def _names(settings: IndexBm25) -> list[str]:
    """Return the names of the indexed fields."""
    return [field_weight(field)[0] for field in settings.fields]


def _forecast(settings: IndexBm25, corpus: Corpus, documents: int, shards: int, folder: Path) -> None:
    """Print the memory and the disk space for an index, from some of the first documents; refuse what does not fit."""
    first = next(iter(corpus()))
    first = first.take(pa.array(range(0, len(first), 1 + len(first) // _SAMPLED)))
    texts = zip(*(first.column(field).to_pylist() for field in _names(settings)), strict=True)
    postings = documents * float(np.mean([words.distinct(" ".join(parts)) for parts in texts]))  # about one per word
    purpose = f"index-bm25: {documents:,} documents"
    console.forecast(memory_of(postings / shards), purpose, "use --shards" if shards == 1 else "use more --shards")
    console.forecast(disk_of(postings), purpose, path=folder)


def _tune(index: LexicalIndex, inputs: Mapping[str, Path], settings: IndexBm25) -> Tuning:
    queries, qrels = collections.read_judged(inputs["queries"], inputs["qrels"])
    qrels = qrels.join(queries, on="qid", how="semi", maintain_order="left")
    bags = index.bags(queries["text"].to_list())
    measure = settings.measure
    remove_query = removes_query(inputs["qrels"])
    hits = (parse_measures([measure])[0].cutoff or _HITS) + remove_query
    grid = list(product(_GRID_K1, _GRID_B))
    with console.progress("index-bm25: tune", len(grid), "settings") as advance:

        def evaluate(setting: Setting) -> pl.DataFrame:
            run = index.table(index.under(*setting).hits(bags, hits), queries["qid"])
            advance(1)
            return evaluate_run(run, qrels, [measure], remove_query=remove_query).select("qid", "value")

        return tune(evaluate, grid, (index.k1, index.b))


def _record(work: Path, parameters: Setting, tuning: Tuning | None = None, measure: str = "") -> None:
    record: dict[str, Any] = dict(zip(("k1", "b"), parameters, strict=True))
    if tuning:
        record["tuning"] = {
            "measure": measure,
            "queries": tuning.queries,
            "held_out_gain": tuning.held_out_gain,
            "gains": tuning.gains,
            "means": [{"k1": k1, "b": b, "mean": mean} for (k1, b), mean in sorted(tuning.means.items())],
        }
    disk.write_text(work / layout.PARAMETERS, json.dumps(record, indent=2) + "\n")


def _report(settings: IndexBm25, output: Output, index: LexicalIndex, tuning: Tuning | None, reused: bool) -> None:
    if tuning:
        means, gains, (k1, b), best = tuning.means, tuning.gains, tuning.baseline, tuning.best
        before, after = f"{figure(means[tuning.baseline])} with k1={k1:g} b={b:g}", figure(means[best])
        gain, first, second = (with_sign(value, 4) for value in (tuning.held_out_gain, *gains))
        text = f"index-bm25: {settings.measure} {after} with k1={best[0]:g} b={best[1]:g} ({before}) on"
        text = f"{text} {console.counted(query=tuning.queries)}; held-out gain {gain} (of halves: {first}, {second})"
        console.note(text, code="tuned", measure=settings.measure)
        if tuning.held_out_gain <= 0 and best != tuning.baseline:
            text = f"no gain on held-out queries from tuning; kept k1={k1:g} b={b:g}"
            console.warn(text, code="no-tuning-gain", k1=k1, b=b)
    counts = index.counts()
    if not counts["terms"]:
        text = f"{settings.output}: has no terms, so a search finds nothing; check --fields and the corpus"
        console.warn(text, code="no-terms", path=settings.output, option="fields")
    built = (
        f"{console.counted(document=counts['documents'])} ({counts['empty documents']:,} empty), "
        + console.counted(term=counts["terms"], token=counts["tokens"])
    )
    what = "stored only k1 and b" if reused else built
    output.note(f"{what}; k1={index.k1:g} b={index.b:g}", k1=index.k1, b=index.b, reused=reused)
