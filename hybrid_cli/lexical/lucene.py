"""Lucene's own index and search, through Anserini's classes.

A search asks Lucene for hits sorted by score, then docid, and lets Jackson (which Anserini carries) write them as one
string: crossing from Java once a query instead of several times a hit makes this faster than Anserini's batch
driver, and the scores come unrounded.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind
from hybrid_cli.errors import HybridError
from hybrid_cli.lexical import jvm
from hybrid_cli.lexical.analysis import FIELD, Analyzer
from hybrid_cli.lexical.feedback import Rm3
from hybrid_cli.lexical.impacts import decode_length
from hybrid_cli.lexical.index import LUCENE, read_parameters

_HIT = re.compile(r'"score":([^,]+),"doc":(\d+)[^[]*\[[^{]*\{"bytes":"([^"]*)","offset":(\d+),"length":(\d+)')
Hit = tuple[str, str, str, str, str]  # score, Lucene's document, base64 of bytes that hold the docid, offset, length
_NO_MORE = 2**31 - 1
_MOST_CLAUSES = 1 << 20
_LARGEST_BUFFER = 2048
_RUN = {"qid": pl.String, "docid": pl.String, "rank": pl.Int32, "score": pl.Float32}


@dataclass(frozen=True)
class Statistics:
    """What Lucene counts: documents, those with a token in them, tokens."""

    documents: int
    counted: int
    tokens: int


def build(source: Path, folder: Path, language: str, threads: int) -> None:
    """Index the JSON files (`id`, `contents`) in `source` with Anserini's IndexCollection, document vectors included.

    Raises:
        HybridError: Anserini stopped, or could not read a document.
    """
    settings = jvm.java_class("io.anserini.index.IndexCollection$Args")()
    settings.collectionClass = "JsonCollection"
    settings.generatorClass = "DefaultLuceneDocumentGenerator"
    settings.input = str(source.absolute())  # Java's current folder may be another
    settings.index = str(folder.absolute())
    settings.language, settings.threads = language, threads
    settings.storeDocvectors = True  # RM3 reads them
    settings.memoryBuffer = max(16, min(_LARGEST_BUFFER, jvm.largest_heap() // (3 << 20)))
    settings.quiet = True
    try:
        indexing = jvm.java_class("io.anserini.index.IndexCollection")(settings)
        indexing.run()
    except jvm.java_errors() as error:
        raise HybridError(f"{folder}: Lucene stopped: {str(error).splitlines()[0]}") from None
    failed = indexing.getCounters().errors.get()
    if failed:
        raise HybridError(f"{folder}: Lucene could not index {failed} documents; raise --java-heap, or see to the disk")


def statistics(folder: Path) -> Statistics:
    """Count what the Lucene index in `folder` holds."""
    reader = _reader(folder)
    return Statistics(reader.numDocs(), reader.getDocCount(FIELD), reader.getSumTotalTermFreq(FIELD))


def lengths(folder: Path) -> pl.DataFrame:
    """docid, length: what Lucene's one byte remembers of each document that has a token; two calls a document."""
    reader = _reader(folder)
    everything = jvm.java_class("org.apache.lucene.search.MatchAllDocsQuery")()
    searcher = jvm.java_class("org.apache.lucene.search.IndexSearcher")(reader)
    sort = jvm.java_class("io.anserini.search.SearchCollection").BREAK_SCORE_TIES_BY_DOCID
    mapper = jvm.java_class("com.fasterxml.jackson.databind.ObjectMapper")()
    hits = _HIT.findall(mapper.writeValueAsString(searcher.search(everything, max(1, reader.maxDoc()), sort, True)))
    norms = jvm.java_class("org.apache.lucene.index.MultiDocValues").getNormValues(reader, FIELD)
    found = {}
    while (row := norms.nextDoc()) < _NO_MORE:
        found[row] = decode_length(norms.longValue() & 0xFF)
    return pl.DataFrame(
        {"docid": list(_docids(hits)), "length": [found.get(int(row), 0) for _, row, *_ in hits]},
        schema={"docid": pl.String, "length": pl.Int64},
    )


def _reader(folder: Path) -> Any:
    try:
        return jvm.java_class("io.anserini.index.IndexReaderUtils").getReader(str(folder.absolute()))
    except jvm.java_errors() as error:
        raise HybridError(f"{folder}: is not a Lucene index ({str(error).splitlines()[0]}); index again") from None


def search(
    folder: Path,
    queries: pl.DataFrame,
    hits: int,
    threads: int | None = None,
    k1: float | None = None,
    b: float | None = None,
    rm3: Rm3 | None = None,
) -> pl.DataFrame:
    """Search the lexical index in `folder` with Lucene; with `rm3`, by the queries that Anserini's RM3 expands.

    Args:
        queries: qid, text.
        k1, b: as recorded in the index where None.

    Returns:
        a run; a query that matches nothing has no row.
    """  # fmt: skip
    recorded = read_parameters(folder)
    searcher = _Searcher(
        folder / LUCENE,
        Analyzer(artifacts.read_manifest(folder, Kind.LEXICAL_INDEX).options["language"]),
        recorded["k1"] if k1 is None else k1,
        recorded["b"] if b is None else b,
        rm3,
    )
    with ThreadPoolExecutor(threads) as pool:
        found = pool.map(lambda text: searcher.hits(text, hits), queries["text"])
        frames = [_frame(qid, own) for qid, own in zip(queries["qid"], found, strict=True)]
    return pl.concat([pl.DataFrame(schema=_RUN), *frames])


class _Searcher:
    """Lucene's searcher under a k1 and b."""

    def __init__(self, folder: Path, analyzer: Analyzer, k1: float, b: float, rm3: Rm3 | None):
        find = jvm.java_class
        searching = find("org.apache.lucene.search.IndexSearcher")
        searching.setMaxClauseCount(_MOST_CLAUSES)
        self.searcher = searching(_reader(folder))
        self.searcher.setSimilarity(find("org.apache.lucene.search.similarities.BM25Similarity")(k1, b))
        self.sort = find("io.anserini.search.SearchCollection").BREAK_SCORE_TIES_BY_DOCID
        self.generator = find("io.anserini.search.query.BagOfWordsQueryGenerator")()
        self.mapper = find("com.fasterxml.jackson.databind.ObjectMapper")()
        self.analyzer = analyzer
        self.expander = _expander(folder, analyzer, k1, b, rm3) if rm3 else None
        self.one_at_a_time = threading.Lock()

    def hits(self, text: str, hits: int) -> list[Hit]:
        """The hits of a query."""
        found = self.searcher.search(self._query(text), hits, self.sort, True)
        return _HIT.findall(self.mapper.writeValueAsString(found))

    def _query(self, text: str) -> Any:
        terms = self.expander.get_feedback_terms(text) if self.expander else None  # None without a hit
        if terms is None:
            return self.generator.buildQuery(FIELD, self.analyzer.java, text)
        weights: dict[str, float] = json.loads(self.mapper.writeValueAsString(terms))
        with self.one_at_a_time:  # a builder is an object of this thread: see jvm
            return self._weighted(weights)

    def _weighted(self, weights: Mapping[str, float]) -> Any:
        find = jvm.java_class
        should = find("org.apache.lucene.search.BooleanClause$Occur").SHOULD
        query = find("org.apache.lucene.search.BooleanQuery$Builder")()
        for name, weight in weights.items():
            term = find("org.apache.lucene.search.TermQuery")(find("org.apache.lucene.index.Term")(FIELD, name))
            query.add(find("org.apache.lucene.search.BoostQuery")(term, weight), should)
        return query.build()


def _expander(folder: Path, analyzer: Analyzer, k1: float, b: float, rm3: Rm3) -> Any:
    """Anserini's searcher, of which only the expanded query is used."""
    searcher = jvm.java_class("io.anserini.search.SimpleSearcher")(str(folder.absolute()), analyzer.java)
    searcher.set_bm25(k1, b)
    searcher.set_rm3(None, rm3.fb_terms, rm3.fb_docs, rm3.original_query_weight, False, True)
    return searcher


def _frame(qid: str, hits: list[Hit]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "qid": pl.Series([qid], dtype=pl.String).extend_constant(qid, max(0, len(hits) - 1)).head(len(hits)),
            "docid": list(_docids(hits)),
            "rank": np.arange(1, len(hits) + 1, dtype=np.int32),
            "score": np.array([score for score, *_ in hits], np.float32),
        },
        schema=_RUN,
    )


def _docids(hits: list[Hit]) -> Iterator[str]:
    for _, _, encoded, offset, length in hits:
        yield base64.b64decode(encoded)[int(offset) : int(offset) + int(length)].decode("utf-8")
