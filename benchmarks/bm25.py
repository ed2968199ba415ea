"""Speed of BM25: search compared with Pyserini, Anserini, bm25s and PISA; indexing compared with Anserini.

All tools search the same index with the same 2,000 queries at 1,000 hits, in turn, in one process; medians over rounds.
The time of hybrid starts with the texts of the queries and ends with the run as a table. bm25s receives analyzed
queries, and so does hybrid where it is compared with bm25s. PISA and hybrid are compared on one thread, with analyzed
queries and documents.

    python benchmarks/bm25.py [--collection FOLDER | --beir FOLDER | --documents N] [--pisa-alone] [--queries 2000]
        [--hits 1000] [--repeat 3] [--threads N]
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENAI_API_KEY", "none")  # pyserini.search.lucene does not import without one

import pisa
import polars as pl
from memory import write_collection
from ratios import Row, in_turns, ratios

from hybrid_cli import console
from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import PrepareBeir, PreparePythonDocs
from hybrid_cli.lexical import build, jvm
from hybrid_cli.lexical import index as lexical
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.lexical.lucene import LuceneIndex
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.storage import layout

K1, B = 0.9, 0.4
PISA_HITS = (10, 1000)
LARGE = 1_000_000  # documents from which search takes longer than building the table of hits: other goals


def processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} processors, Java {jvm.find_java().version}"


def make_queries(collection: Path, number: int) -> pl.DataFrame:
    splits = [collections.queries_path(collection, split) for split in collections.splits(collection)]
    return pl.concat([collections.read_queries(file) for file in splits]).select("qid", "text").head(number)


def search_tasks(
    index: Path, opened: LexicalIndex, queries: pl.DataFrame, hits: int, threads: int, scratch: Path
) -> dict[str, Callable[[], Any]]:
    import bm25s
    from pyserini.search.lucene import LuceneSearcher

    logging.getLogger("bm25s").setLevel(logging.WARNING)
    texts, qids = queries["text"].to_list(), queries["qid"].to_list()
    bags, tokens = opened.bags(texts), opened.analyze(texts)
    searcher = LuceneSearcher(str(index / layout.LUCENE))
    searcher.set_bm25(K1, B)
    # One string per term: millions of documents would otherwise hold a copy for each posting.
    terms: dict[str, str] = {}
    corpus = [
        [[terms.setdefault(term, term) for term in document] for document in opened.analyze(batch)]
        for batch in contents(opened, scratch)
    ]
    retriever = bm25s.BM25(method="lucene", k1=K1, b=B, backend="numba")
    retriever.index([document for batch in corpus for document in batch], show_progress=False)
    known = [[token for token in query if token in retriever.vocab_dict] or [""] for query in tokens]
    topics = scratch / "topics.tsv"
    topics.write_text("".join(f"{n}\t{' '.join(text.split())}\n" for n, text in enumerate(texts)), "utf-8")
    driver = ["-index", str(index / layout.LUCENE), "-topics", str(topics), "-topicReader", "TsvInt", "-output"]
    driver += [str(scratch / "run.txt"), "-bm25", "-bm25.k1", str(K1), "-bm25.b", str(B), "-hits", str(hits)]

    def anserini(n_threads: int) -> None:
        words = [*driver, "-threads", str(n_threads), "-quiet"]
        jvm.java_class("io.anserini.search.SearchCollection").main(words)

    def batch_search() -> dict[str, list[tuple[str, float]]]:
        found = searcher.batch_search(texts, qids, hits, threads)
        return {qid: [(hit.docid, hit.score) for hit in found[qid]] for qid in qids}

    def retrieve(n_threads: int) -> Any:
        return retriever.retrieve(known, k=hits, show_progress=False, backend_selection="numba", n_threads=n_threads)

    def with_threads(index: LexicalIndex, n_threads: int) -> LexicalIndex:
        index.threads = n_threads
        return index

    one, several = (with_threads(copy(opened), number) for number in (1, threads))
    engine = LuceneIndex(index, opened.docids, threads=threads)
    return {
        f"hybrid, {threads} threads": lambda: several.search(queries, hits),
        "hybrid, 1 thread": lambda: one.search(queries, hits),
        f"hybrid, {threads} threads, analyzed": lambda: several.table(several.hits(bags, hits), queries["qid"]),
        "hybrid, 1 thread, analyzed": lambda: one.table(one.hits(bags, hits), queries["qid"]),
        "hybrid, 1 thread, analyzed, arrays": lambda: opened.keys(bags, hits, 1),
        "bm25s (numba), 1 thread, analyzed": lambda: retrieve(1),
        f"bm25s (numba), {threads} threads, analyzed": lambda: retrieve(threads),
        "hybrid --engine lucene": lambda: engine.search(queries, hits),
        "Pyserini batch_search": batch_search,
        f"Anserini SearchCollection, {threads} threads": lambda: anserini(threads),
        "Anserini SearchCollection, 1 thread": lambda: anserini(1),
    }


def contents(opened: LexicalIndex, scratch: Path) -> list[list[str]]:
    batches = collections.documents(scratch / "collection")
    return [build.contents(batch, ("title", "text"))["contents"].to_list() for batch in batches]


def compare_search(index: Path, scratch: Path, options: argparse.Namespace) -> list[Row]:
    queries = make_queries(scratch / "collection", options.queries)
    opened = open_bm25(index, K1, B)
    start = time.perf_counter()
    opened.search(queries.head(1), 10)
    print(f"first query of the process: {time.perf_counter() - start:.2f} s")
    tasks = search_tasks(index, opened, queries, options.hits, options.threads, scratch)
    times, results = in_turns(tasks, options.repeat)
    ours = f"hybrid, {options.threads} threads"
    print(f"\nsearch: {len(queries):,} queries, {options.hits:,} hits, {len(opened.docids):,} documents")
    for name, seconds in times.items():
        ratio = statistics.median(ratios(seconds, times[ours]))
        rate = len(queries) / statistics.median(seconds)
        print(f"  {name:42} {rate:9,.0f} queries/s   hybrid is {ratio:6.1f} times as fast")
    mine = results[ours]
    theirs = [(qid, *hit) for qid, hits in results["Pyserini batch_search"].items() for hit in hits]
    run = pl.DataFrame(theirs, schema=["qid", "docid", "score"], orient="row")
    same = run.select("qid", "docid").equals(mine.select("qid", "docid"))
    print(f"  the run of Pyserini has the same documents in the same order: {same} ({len(mine):,} hits)")
    print(f"  the run of --engine lucene is equal to the last bit: {mine.equals(results['hybrid --engine lucene'])}")
    large = len(opened.docids) >= LARGE
    pairs = [
        (ours, "Pyserini batch_search", "" if large else "30"),
        (ours, f"Anserini SearchCollection, {options.threads} threads", "3"),
        ("hybrid, 1 thread", "Anserini SearchCollection, 1 thread", "3"),
        (ours, "hybrid, 1 thread", "1.7" if large else ""),
        (f"{ours}, analyzed", f"bm25s (numba), {options.threads} threads, analyzed", "1"),
        ("hybrid, 1 thread, analyzed", "bm25s (numba), 1 thread, analyzed", "1"),
    ]
    task = f"BM25 search, {len(opened.docids):,} documents, {len(queries):,} queries, {options.hits:,} hits; "
    return [Row(task + a, b, ratios(times[b], times[a]), goal, "bm25.py") for a, b, goal in pairs]


def compare_pisa(opened: LexicalIndex, scratch: Path, options: argparse.Namespace) -> list[Row]:
    """Compare tables of hits on one thread with PISA, where it is installed."""
    if not pisa.installed():
        print("PISA: not installed (pip install pyterrier-pisa)")
        return []
    queries, rows = make_queries(scratch / "collection", options.queries), []
    texts, qids = queries["text"].to_list(), queries["qid"]
    bags, tokens = opened.bags(texts), opened.analyze(texts)
    opened.threads = 1
    pisa.write_index(opened.impacts.postings, opened.docids, scratch / "pisa")
    for hits in PISA_HITS:
        tasks: dict[str, Callable[[], Any]] = {
            "hybrid": lambda k=hits: opened.table(opened.hits(bags, k), qids),  # type: ignore[misc]
            "PISA": pisa.search_task(scratch / "pisa", qids.to_list(), tokens, hits, K1, B),
        }
        times, _ = in_turns(tasks, 3 * options.repeat)
        task = f"BM25 search, {len(opened.docids):,} documents, {len(queries):,} queries, {hits:,} hits; "
        task += "hybrid, 1 thread, analyzed"
        peer = "PISA, block-max MaxScore, 1 thread, analyzed"
        rows.append(Row(task, peer, ratios(times["PISA"], times["hybrid"]), "1", "bm25.py"))
        print(rows[-1])
    return rows


def index_collection(source: Path, folder: Path, threads: int) -> None:
    """Index JSON files with Anserini alone, with document vectors as in `hybrid index-bm25`."""
    shutil.rmtree(folder, ignore_errors=True)
    arguments = jvm.java_class("io.anserini.index.IndexCollection$Args")()
    arguments.collectionClass, arguments.generatorClass = "JsonCollection", "DefaultLuceneDocumentGenerator"
    arguments.input, arguments.index, arguments.threads = str(source), str(folder), threads
    arguments.storeDocvectors, arguments.quiet = True, True
    jvm.java_class("io.anserini.index.IndexCollection")(arguments).run()


def compare_indexing(scratch: Path, options: argparse.Namespace) -> list[Row]:
    """Compare the time of indexing with Anserini's and, where it is installed, PISA's."""
    collection, source = scratch / "collection", scratch / "json"
    source.mkdir()
    for part, batch in enumerate(collections.documents(collection)):
        frame = build.contents(batch, ("title", "text")).rename({"docid": "id"})
        for number, piece in enumerate(frame.iter_slices(-(-len(frame) // options.threads))):
            piece.write_ndjson(source / f"part-{part:05d}-{number}.jsonl")

    def hybrid(threads: int, with_lucene: bool) -> None:
        index_bm25(
            collection, output=scratch / f"bm25-{threads}-{with_lucene}", threads=threads, lucene=with_lucene,
            overwrite=True,
        )  # fmt: skip

    both, matrix = "index-bm25", "index-bm25 --no-lucene, 1 thread"
    tasks: dict[str, Callable[[], Any]] = {
        "IndexCollection": partial(index_collection, source, scratch / "alone", options.threads),
        both: partial(hybrid, options.threads, True),
        matrix: partial(hybrid, 1, False),
        "index-bm25 --no-lucene, 2 threads": partial(hybrid, 2, False),
    }
    if pisa.installed():
        tasks["PISA"] = partial(pisa.index_texts, collection, scratch / "pisa-texts")
    times, _ = in_turns(tasks, options.index_repeat or options.repeat)
    (scratch / "bm25").symlink_to(scratch / f"bm25-{options.threads}-True")
    documents = collections.document_count(collection)
    print(f"\nindexing: {documents:,} documents, document vectors stored, {options.threads} threads")
    for name, seconds in times.items():
        ratio = statistics.median(ratios(seconds, times["IndexCollection"]))
        rate = documents / statistics.median(seconds)
        print(f"  {name:42} {rate:9,.0f} documents/s   {ratio:.2f} times IndexCollection's time")
    task = f"index-bm25, {documents:,} documents"
    rows = [Row(task, "IndexCollection alone", ratios(times["IndexCollection"], times[both]), "1", "bm25.py")]
    if "PISA" in times:
        rows.append(Row(f"{task}, --no-lucene", "PISA, 1 thread", ratios(times["PISA"], times[matrix]), "1", "bm25.py"))
    threaded = ratios(times[matrix], times["index-bm25 --no-lucene, 2 threads"])
    return [*rows, Row(f"{task}, --no-lucene, 2 threads", "1 thread", threaded, "1.8", "bm25.py")]


def main(words: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collection", type=Path, help="default: the docstrings of installed packages")
    parser.add_argument("--documents", type=int, help="random text with Zipfian words, as in memory.py, in its place")
    parser.add_argument("--beir", type=Path, help="a folder in BEIR's layout, in its place")
    parser.add_argument("--pisa-alone", action="store_true", help="compare with PISA only")
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--hits", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--index-repeat", type=int, help="rounds of indexing; default: --repeat")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(words)
    console.set_quiet(True)
    lexical.FEW_POSTINGS = lexical.MANY_POSTINGS = 0  # compiled loops from the first query on
    print(processor())
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        if options.collection:
            (scratch / "collection").symlink_to(options.collection.resolve())
        elif options.beir:
            prepare(PrepareBeir(options.beir, output=scratch / "collection"))
        elif options.documents:
            write_collection(scratch / "collection", options.documents)
        else:
            prepare(PreparePythonDocs(output=scratch / "collection"))
        jvm.start()
        if options.pisa_alone:
            index_bm25(scratch / "collection", output=scratch / "bm25", threads=options.threads, lucene=False)
            return compare_pisa(open_bm25(scratch / "bm25", K1, B), scratch, options)
        rows = compare_indexing(scratch, options) + compare_search(scratch / "bm25", scratch, options)
        return rows + compare_pisa(open_bm25(scratch / "bm25", K1, B), scratch, options)


if __name__ == "__main__":
    main()
