"""Lucene's index and search, through Anserini's classes.

Lucene sorts hits by score, then docid; Jackson (part of Anserini's jar) serializes them to one string. One Java call
per query, instead of several per hit, is faster than Anserini's batch search, and scores are not rounded.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import polars as pl

from hybrid_cli import console
from hybrid_cli.errors import HybridError, option_error
from hybrid_cli.lexical import jvm
from hybrid_cli.lexical.analysis import FIELD, Analyzer, LazyAnalyzer
from hybrid_cli.lexical.feedback import Rm3
from hybrid_cli.lexical.impacts import decode_length
from hybrid_cli.lexical.index import read_parameters
from hybrid_cli.lexical.options import ENGLISH, IDENTIFIERS
from hybrid_cli.memory import cpu_count
from hybrid_cli.runs.index import Allowed, Documents, Hits, Index
from hybrid_cli.storage import layout
from hybrid_cli.threads import ThreadPool

_HIT = re.compile(r'"score":([^,]+),"doc":(\d+)[^[]*\[[^{]*\{"bytes":"([^"]*)","offset":(\d+),"length":(\d+)')
Hit = tuple[str, str, str, str, str]  # score, document number, docid in base64-encoded bytes, its offset and length
LOCK = "write.lock"
_ID = "id"  # Anserini's field of the docid
_NO_MORE = 2**31 - 1
_MOST_CLAUSES = 1 << 20
_LARGEST_BUFFER = 2048
_AT_ONCE = 1 << 20  # bytes of text in one call into Java


@dataclass(frozen=True)
class Statistics:
    """Lucene's counts: documents, documents with at least one token, tokens."""

    documents: int
    counted: int
    tokens: int


class Writer:
    """A new Lucene index with the settings of Anserini's IndexCollection, with document vectors."""

    def __init__(self, folder: Path, threads: int, language: str | None = None):
        """Create the index.

        Args:
            folder: folder of the index.
            threads: CPU threads.
            language: language of the analyzer; None splits texts at spaces.

        Raises:
            HybridError: Lucene failed.
        """
        settings = jvm.java_class("io.anserini.index.IndexCollection$Args")()
        settings.generatorClass = "DefaultLuceneDocumentGenerator"
        settings.index = str(folder.absolute())  # the JVM may have another working directory
        settings.language, settings.pretokenized, settings.threads = (
            language or ENGLISH,
            not language,
            threads,
        )
        settings.storeDocvectors = True  # required by RM3
        settings.memoryBuffer = max(16, min(_LARGEST_BUFFER, jvm.max_heap() // (3 << 20)))
        settings.quiet = True
        self._folder, self._added = folder, 0
        try:
            self._indexer = jvm.java_class("io.anserini.index.SimpleIndexer")(settings)
        except jvm.java_errors() as error:
            raise _failed(folder, str(error).splitlines()[0]) from None

    def add(self, documents: pl.DataFrame) -> None:
        """Add documents (id, contents); empty ones are left out.

        Raises:
            HybridError: Lucene could not index a document.
        """
        documents = documents.filter(pl.col("contents").str.strip_chars() != "")
        sizes = documents["contents"].str.len_bytes().cum_sum()
        for piece in documents.with_columns(piece=sizes // _AT_ONCE).partition_by("piece", include_key=False):
            rows = piece.select(pl.struct("id", "contents").struct.json_encode()).to_series().to_list()
            try:
                added = self._indexer.addRawDocuments(rows, pass_by_reference=False)
            except jvm.java_errors() as error:
                raise _failed(self._folder, str(error).splitlines()[0]) from None
            if added != len(rows):
                missing = console.counted(document=len(rows) - added)
                raise _failed(
                    self._folder,
                    f"{missing} not indexed; raise Java's heap (JAVA_TOOL_OPTIONS=-Xmx4g), or check the disk",
                )

    def close(self) -> None:
        """Complete the index.

        Raises:
            HybridError: no complete index was written.
        """
        self._indexer.close()
        _check_written(self._folder)


def _failed(folder: Path, reason: str) -> HybridError:
    return HybridError(f"{folder}: Lucene failed: {reason}", code="lucene-failed", path=folder)


def update(folder: Path, removed: Iterable[str], added: Path | None) -> None:
    """Remove documents from the Lucene index in `folder`, and add those of another index.

    Lucene's statistics include removed documents until their segments are rewritten, so all of these are. Lucene
    replaces files and never changes one, so hard links of its files keep their content.

    Args:
        folder: folder of the Lucene index.
        removed: docids.
        added: folder of the other index.

    Raises:
        HybridError: Lucene failed.
    """
    find = jvm.java_class

    def directory(path: Path) -> Any:
        java_path = find("java.nio.file.Paths").get(str(path.absolute()))
        return find("org.apache.lucene.store.FSDirectory").open(java_path)

    policy = find("org.apache.lucene.index.TieredMergePolicy")()
    policy.setForceMergeDeletesPctAllowed(0.0)
    config = find("org.apache.lucene.index.IndexWriterConfig")()
    config.setMergePolicy(policy)
    config.setMergeScheduler(find("org.apache.lucene.index.SerialMergeScheduler")())  # other threads only print errors
    try:
        writer = find("org.apache.lucene.index.IndexWriter")(directory(folder), config)
        for docid in removed:
            term = find("org.apache.lucene.index.Term")(_ID, docid)
            writer.deleteDocuments(find("org.apache.lucene.search.TermQuery")(term))
        writer.forceMergeDeletes()
        if added is not None:
            writer.addIndexes(directory(added))
        writer.close()
    except jvm.java_errors() as error:
        raise _failed(folder, str(error).splitlines()[0]) from None
    _check_written(folder)


def _check_written(folder: Path) -> None:
    """Refuse an index that a failed write left incomplete: Anserini ends without an error then."""
    try:
        _reader(folder).close()
    except HybridError as error:
        raise _failed(folder, "no complete index was written; check the disk") from error


def statistics(folder: Path) -> Statistics:
    """Return the counts of the Lucene index in `folder`."""
    reader = _reader(folder)
    return Statistics(reader.numDocs(), reader.getDocCount(FIELD), reader.getSumTotalTermFreq(FIELD))


def lengths(folder: Path) -> pl.DataFrame:
    """Return docid and length, rounded as in Lucene's length byte, of the documents with at least one token."""
    reader = _reader(folder)
    everything = jvm.java_class("org.apache.lucene.search.MatchAllDocsQuery")()
    searcher = jvm.java_class("org.apache.lucene.search.IndexSearcher")(reader)
    sort = jvm.java_class("io.anserini.search.SearchCollection").BREAK_SCORE_TIES_BY_DOCID
    mapper = jvm.java_class("com.fasterxml.jackson.databind.ObjectMapper")()
    hits = _HIT.findall(mapper.writeValueAsString(searcher.search(everything, max(1, reader.maxDoc()), sort, True)))
    norms = jvm.java_class("org.apache.lucene.index.MultiDocValues").getNormValues(reader, FIELD)
    by_id = {}
    while (row := norms.nextDoc()) < _NO_MORE:
        by_id[row] = decode_length(norms.longValue() & 0xFF)
    return pl.DataFrame(
        {"docid": list(_docids(hits)), "length": [by_id.get(int(row), 0) for _, row, *_ in hits]},
        schema={"docid": pl.String, "length": pl.Int64},
    )


def _reader(folder: Path) -> Any:
    try:
        return jvm.java_class("io.anserini.index.IndexReaderUtils").getReader(str(folder.absolute()))
    except jvm.java_errors() as error:
        problem = f"{folder}: no Lucene index ({str(error).splitlines()[0]}); repeat index-bm25 with --overwrite"
        raise HybridError(problem, code="damaged", path=folder) from None


@dataclass(frozen=True, repr=False)
class LuceneIndex(Index):
    """The Lucene index of a lexical index, with queries expanded by Anserini's RM3 if `rm3` is set.

    Attributes:
        folder: the lexical index.
        docids: [N]
        k1, b: override the stored values.
        rm3: parameters of RM3.
        threads: CPU threads; None for all cores.
        language: name of the analysis of the index.
    """

    folder: Path
    docids: pl.Series
    k1: float | None = None
    b: float | None = None
    rm3: Rm3 | None = None
    threads: int | None = None
    language: str = ENGLISH
    kind = "Lucene"

    @cached_property
    def documents(self) -> Documents:
        """See `Index`."""
        return Documents(self.docids)

    @cached_property
    def _searcher(self) -> _Searcher:
        recorded = read_parameters(self.folder)
        k1, b = (recorded[name] if given is None else given for name, given in (("k1", self.k1), ("b", self.b)))
        return _Searcher(
            self.folder / layout.LUCENE, Analyzer(self.language.partition(IDENTIFIERS)[0]), k1, b, self.rm3
        )

    def prepare(self, queries: pl.DataFrame) -> pl.Series:
        """Return the texts of queries, which Lucene analyzes."""
        return pl.Series(LazyAnalyzer(self.language).expanded(queries["text"].to_list()), dtype=pl.String)

    def hits(self, prepared: pl.Series, k: int) -> Hits:
        """See `Index`."""
        searcher = self._searcher
        with ThreadPool(self.threads or cpu_count()) as pool:
            found = list(pool.map(lambda text: searcher.hits(text, k), prepared))
        every = [hit for hits in found for hit in hits]
        rows = self.documents.rows(pl.Series(list(_docids(every)), dtype=pl.String))
        return Hits(np.array([len(hits) for hits in found]), rows, np.array([score for score, *_ in every], np.float32))

    def within(self, allowed: Allowed) -> NoReturn:
        """Refuse a filter: Lucene knows no metadata."""
        raise option_error("filter", None, "not with --engine lucene", code="option-does-not-apply")


class _Searcher:
    """Lucene's searcher with a k1 and b."""

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
        """Return the hits of a query."""
        top = self.searcher.search(self._query(text), hits, self.sort, True)
        return _HIT.findall(self.mapper.writeValueAsString(top))

    def _query(self, text: str) -> Any:
        terms = self.expander.get_feedback_terms(text) if self.expander else None  # None for a query without hits
        if terms is None:
            return self.generator.buildQuery(FIELD, self.analyzer.java, text)
        weights: dict[str, float] = json.loads(self.mapper.writeValueAsString(terms))
        with self.one_at_a_time:  # each thread has its own builder: see jvm
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
    """Return Anserini's searcher, used only to expand queries."""
    searcher = jvm.java_class("io.anserini.search.SimpleSearcher")(str(folder.absolute()), analyzer.java)
    searcher.set_bm25(k1, b)
    searcher.set_rm3(None, rm3.fb_terms, rm3.fb_docs, rm3.original_query_weight, False, True)
    return searcher


def _docids(hits: list[Hit]) -> Iterator[str]:
    for _, _, encoded, offset, length in hits:
        yield base64.b64decode(encoded)[int(offset) : int(offset) + int(length)].decode("utf-8")
