"""Times of single BM25 queries on one thread: hybrid, Tantivy and Lucene; the same analyzed queries and documents.

    python benchmarks/engines.py [--beir FOLDER | --documents 2000000] [--queries 1000] [--rounds 5]

Each engine has its index in one segment, and gets terms. The time of a query is the least of the rounds; median and
99th percentile are over the queries. Lucene searches with block-max scores after a warm-up, and the time of a call to
Java is subtracted, so that no crossing counts; Tantivy returns no hit to Python, and has fixed k1 and b (1.2 and .75).
The time of hybrid includes its calls of NumPy. PISA, which takes many queries at once, is in bm25.py.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bm25 import K1, B, make_queries
from memory import write_collection

from hybrid_cli import console
from hybrid_cli.commands import PrepareBeir, PreparePythonDocs
from hybrid_cli.lexical import index as lexical
from hybrid_cli.lexical import jvm
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.retrieval.in_memory import BM25
from hybrid_cli.stages.prepare import prepare

DEPTHS = (10, 100, 1000)
Searches = Callable[[int], list[Callable[[], Any]]]  # depth -> a call for each query


def of_hybrid(index: LexicalIndex, queries: Sequence[str]) -> Searches:
    bags = index.bags(queries)
    alone = [bags.part(place, place + 1) for place in range(len(queries))]
    return lambda depth: [partial(index.keys, bag, depth, 1) for bag in alone]


def documents_of(index: LexicalIndex) -> list[list[str]]:
    """Return the terms of each document, as often as they occur."""
    postings, terms = index.impacts.postings, index.impacts.postings.terms.to_list()
    documents: list[list[str]] = [[] for _ in index.docids]
    rows, tfs = postings.rows.tolist(), postings.tfs.tolist()
    for term, (begin, end) in enumerate(zip(postings.indptr[:-1].tolist(), postings.indptr[1:].tolist(), strict=True)):
        for at in range(begin, end):
            documents[rows[at]] += [terms[term]] * tfs[at]
    return documents


def of_tantivy(documents: list[list[str]], queries: Sequence[Sequence[str]], folder: Path) -> Searches:
    import tantivy

    folder.mkdir()
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", tokenizer_name="whitespace", index_option="freq")
    schema = builder.build()
    index = tantivy.Index(schema, path=str(folder))
    writer = index.writer(2_000_000_000, 1)
    for words in documents:
        writer.add_document(tantivy.Document(text=" ".join(words)))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher, should = index.searcher(), tantivy.Occur.Should
    print(f"Tantivy: {searcher.num_segments} segments")
    wanted = [
        tantivy.Query.boolean_query([(should, tantivy.Query.term_query(schema, "text", word)) for word in words])
        for words in queries
    ]
    return lambda depth: [partial(searcher.search, query, depth, count=False) for query in wanted]


def of_lucene(documents: list[list[str]], queries: Sequence[Sequence[str]], folder: Path) -> Searches:
    def java(name: str) -> Any:
        return jvm.java_class(f"org.apache.lucene.{name}")

    directory = java("store.MMapDirectory")(jvm.java_class("java.nio.file.Paths").get(str(folder)))
    similarity = java("search.similarities.BM25Similarity")(K1, B)
    config = java("index.IndexWriterConfig")(java("analysis.core.WhitespaceAnalyzer")())
    config.setSimilarity(similarity)
    writer = java("index.IndexWriter")(directory, config)
    document = java("document.Document")()
    field = java("document.TextField")("text", "", java("document.Field$Store").NO)
    document.add(field)
    for words in documents:
        field.setStringValue(" ".join(words))
        writer.addDocument(document)
    writer.forceMerge(1)
    writer.close()
    reader = java("index.DirectoryReader").open(directory)
    searcher = java("search.IndexSearcher")(jvm.cast("org.apache.lucene.index.IndexReader", reader))
    searcher.setSimilarity(similarity)
    should, wanted = java("search.BooleanClause$Occur").SHOULD, []
    for tokens in queries:
        query = java("search.BooleanQuery$Builder")()
        for word in tokens:
            query.add(java("search.TermQuery")(java("index.Term")("text", word)), should)
        wanted.append(query.build())
    return lambda depth: [partial(searcher.search, query, depth) for query in wanted]


def timed(searches: list[Callable[[], Any]], rounds: int) -> np.ndarray:
    """Return the least time of each query, in microseconds."""
    times = np.full(len(searches), np.inf)
    for _ in range(rounds):
        for place, search in enumerate(searches):
            start = time.perf_counter_ns()
            search()
            times[place] = min(times[place], (time.perf_counter_ns() - start) / 1e3)
    return times


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beir", type=Path, help="a folder in BEIR's layout")
    parser.add_argument("--documents", type=int, help="random text with Zipfian words, as in memory.py")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engines", default="hybrid,tantivy,lucene")
    options = parser.parse_args(words)
    console.set_quiet(True)
    lexical.FEW_POSTINGS = lexical.MANY_POSTINGS = 0  # compiled loops from the first query on
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        if options.beir:
            prepare(PrepareBeir(options.beir, output=scratch / "collection"))
        elif options.documents:
            write_collection(scratch / "collection", options.documents)
        else:
            prepare(PreparePythonDocs(output=scratch / "collection"))
        from hybrid_cli import open_collection

        index = BM25(k1=K1, b=B).index(open_collection(scratch / "collection"))
        queries = make_queries(scratch / "collection", options.queries)
        texts = queries["text"].to_list()
        tokens = [sorted(set(words)) for words in index.analyze(texts)]
        index.search(texts[:64], 10)  # compiles
        print(f"{len(index.docids):,} documents, {len(texts):,} queries; microseconds per query: median, p99, mean")
        chosen = options.engines.split(",")
        documents = documents_of(index) if {"tantivy", "lucene"} & {*chosen} else []
        engines: dict[str, Searches] = {}
        if "hybrid" in chosen:
            engines["hybrid"] = of_hybrid(index, texts)
        if "tantivy" in chosen:
            engines["Tantivy"] = of_tantivy(documents, tokens, scratch / "tantivy")
        call = 0.0
        if "lucene" in chosen:
            jvm.start()
            engines["Lucene"] = of_lucene(documents, tokens, scratch / "lucene")
            clock = jvm.java_class("java.lang.System").nanoTime
            call = float(np.median(timed([clock] * 1000, 20)))
            print(f"Lucene: a call to Java takes {call:.1f} us, subtracted")
        for depth in DEPTHS:
            for engine, searches in engines.items():
                calls = searches(depth)
                timed(calls, 20 if engine == "Lucene" else 1)  # warm-up: the compiler of Java needs thousands of calls
                times = timed(calls, options.rounds) - (call if engine == "Lucene" else 0)
                figures = np.median(times), np.percentile(times, 99), times.mean()
                print(f"{depth:5} hits  {engine:8}", *(f"{figure:8.0f}" for figure in figures))


if __name__ == "__main__":
    main()
