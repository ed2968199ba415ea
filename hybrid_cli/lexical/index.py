"""A lexical index on disk: Lucene's, and beside it the impact matrix that answers for it.

The folder holds `lucene/`, `impacts/`, `docids.parquet` and `bm25.json`, the recorded k1 and b.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.lexical import kernels
from hybrid_cli.lexical.analysis import Analyzer
from hybrid_cli.lexical.feedback import Feedback, Rm3
from hybrid_cli.lexical.impacts import Impacts, Postings

LUCENE, IMPACTS, DOCIDS, PARAMETERS = "lucene", "impacts", "docids.parquet", "bm25.json"
QUERIES_AT_ONCE = 4096
Barred: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]  # [Q+1] ends of each query's part; [B] rows
_RUN = {"qid": pl.String, "docid": pl.String, "rank": pl.Int32, "score": pl.Float32}


@dataclass(frozen=True)
class Bags:
    """Queries as the kernels read them: `terms[ends[i]:ends[i+1]]` and their boosts are those of query i."""

    ends: npt.NDArray[np.int64]
    terms: npt.NDArray[np.int32]
    boosts: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ends) - 1

    def part(self, begin: int, end: int) -> Bags:
        """Some of the queries."""
        first, last = self.ends[begin], self.ends[end]
        return Bags(self.ends[begin : end + 1] - first, self.terms[first:last], self.boosts[first:last])


class LexicalIndex:
    """BM25 of a corpus through its impact matrix: search, the score of any pair, the matrix itself."""

    def __init__(self, impacts: Impacts, docids: pl.Series, language: str = "en"):
        """Put together what `open` reads; for an index in memory."""
        self.impacts, self.docids, self.language = impacts, docids, language

    @classmethod
    def open(cls, folder: Path, k1: float | None = None, b: float | None = None) -> LexicalIndex:
        """Open the index in `folder`; where `k1` or `b` is None, as recorded there.

        Raises:
            InputError: no lexical index.
            HybridError: a damaged one.
        """
        manifest = artifacts.read_manifest(folder, Kind.LEXICAL_INDEX)
        recorded = read_parameters(folder)
        parameters = (recorded["k1"] if k1 is None else k1, recorded["b"] if b is None else b)
        return cls.load(folder, manifest.options["language"], parameters)

    @classmethod
    def load(cls, folder: Path, language: str, parameters: tuple[float, float]) -> LexicalIndex:
        """The matrix in `folder` under k1 and b, also before it is a whole artifact."""
        docids = pl.read_parquet(artifacts.validate_parquet(folder / DOCIDS))["docid"]
        return cls(Impacts.of(Postings.open(folder / IMPACTS), *parameters), docids, language)

    @property
    def k1(self) -> float:
        """How soon a term's frequency saturates."""
        return self.impacts.k1

    @property
    def b(self) -> float:
        """How much of the document's length is corrected for."""
        return self.impacts.b

    def under(self, k1: float, b: float) -> LexicalIndex:
        """The same index at another k1 and b."""
        other = LexicalIndex(Impacts.of(self.impacts.postings, k1, b), self.docids, self.language)
        shared = ("_analyzer", "_dictionary", "_feedback", "_order", "_ranked_docids")
        other.__dict__.update({name: self.__dict__[name] for name in shared if name in self.__dict__})
        return other

    def analyse(self, texts: Sequence[str]) -> list[list[str]]:
        """The tokens of each text."""
        return self._analyzer.analyse(texts)

    def bags(self, texts: Sequence[str]) -> Bags:
        """Analysed queries: the terms that the corpus knows, each once, its count as its boost."""
        return self._bags(self._counted(texts), len(texts))

    def _counted(self, texts: Sequence[str]) -> pl.DataFrame:
        """query, term, boost: how often each term stands in each text."""
        tokens, lengths = self._analyzer.tokens(texts)
        terms = pl.Series("term", pl.from_arrow(tokens), dtype=pl.String)
        frame = pl.DataFrame({"query": np.repeat(np.arange(len(texts)), lengths), "term": terms})
        return frame.group_by("query", "term").agg(boost=pl.len().cast(pl.Float64))

    def _bags(self, weighted: pl.DataFrame, queries: int) -> Bags:
        """From rows of (query, term, boost)."""
        known = weighted.join(self._dictionary, on="term").sort("query", "id")
        counts = np.bincount(known["query"].to_numpy(), minlength=queries)
        return Bags(
            np.concatenate(([0], np.cumsum(counts))),
            known["id"].to_numpy().astype(np.int32),
            known["boost"].to_numpy().astype(np.float32),
        )

    # ------------------------------------------------------------------------------------------------------- search

    def search(
        self, queries: pl.DataFrame, hits: int, threads: int | None = None, rm3: Rm3 | None = None
    ) -> pl.DataFrame:
        """Rank documents that share a term with the query, as Lucene does.

        Args:
            queries: qid, text.
            hits: documents kept for each query.
            threads: all processors if None.
            rm3: expand the queries by their first hits.

        Returns:
            a run; a query without a known term has no row.
        """
        frames = [pl.DataFrame(schema=_RUN)]
        for part in queries.iter_slices(QUERIES_AT_ONCE):
            weighted = self._counted(part["text"].to_list())
            if rm3 is not None:
                weighted = self._expanded(weighted, len(part), rm3, threads)
            bags = self._bags(weighted, len(part))
            frames.append(self.search_bags(part["qid"], bags, hits, threads))
        return pl.concat(frames)

    def search_bags(self, qids: pl.Series, bags: Bags, hits: int, threads: int | None = None) -> pl.DataFrame:
        """As `search`, for queries that are analysed already."""
        counts, docids, scores = self.hits(bags, hits, threads)
        ranks = np.arange(1, len(docids) + 1) - np.repeat(np.cumsum(counts) - counts, counts)
        qid = qids.cast(pl.String).gather(np.repeat(np.arange(len(counts)), counts))
        return pl.DataFrame({"qid": qid, "docid": docids, "rank": ranks, "score": scores}, schema=_RUN)

    def hits(
        self, bags: Bags, hits: int, threads: int | None = None, barred: Barred | None = None
    ) -> tuple[npt.NDArray[np.int32], pl.Series, npt.NDArray[np.float32]]:
        """As `search_bags`, in plain arrays: [Q] hits of each query; docids and scores, query after query, best first.

        `barred` documents are not found, and others take their places.
        """
        counts, keys = self._ranked(bags, hits, threads, barred)
        found = keys[np.arange(keys.shape[1]) < counts[:, None]]
        return counts, self._ranked_docids.gather(kernels.places_of(found)), kernels.scores_of(found)

    def _ranked(
        self, bags: Bags, hits: int, threads: int | None = None, barred: Barred | None = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint64]]:
        """How many hits each query has, and [Q, hits] keys of `kernels.search`."""
        hits = max(1, min(hits, len(self.docids)))
        counts = np.zeros(len(bags), np.int32)
        best = np.empty((len(bags), hits), np.uint64)
        workers = max(1, min(threads or processors(), len(bags)))
        ends, rows = (np.zeros(len(bags) + 1, np.int64), np.zeros(0, np.int64)) if barred is None else barred
        bounds = [len(bags) * at // (4 * workers) for at in range(4 * workers + 1)]

        def work(begin: int, end: int) -> None:
            part, barred_ends = bags.part(begin, end), ends[begin : end + 1]
            found = counts[begin:end], best[begin:end]
            kernels.search(hits, self._order, *found, barred_ends, rows, *self.kernel_arguments(part))

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, bounds[:-1], bounds[1:]))
        return counts, best

    def kernel_arguments(self, bags: Bags) -> tuple[Any, ...]:
        """Queries and postings in the order in which `kernels` takes them, from `ends` to `scale`."""
        postings = self.impacts.postings
        weights = bags.boosts * self.impacts.idf[bags.terms]
        return bags.ends, bags.terms, weights, postings.indptr, postings.rows, postings.tfs, self.impacts.scale

    # -------------------------------------------------------------------------------------------------- exact scores

    def score(self, pairs: pl.DataFrame, queries: pl.DataFrame) -> pl.Series:
        """BM25 of each pair (qid, docid): float32, equal to what `search` gives, 0 where no term matches.

        Raises:
            InputError: a docid that the index lacks, or a qid without a text.
        """
        numbers = _places(pairs["qid"], queries["qid"], "no text was given for query")
        rows = _places(pairs["docid"], self.docids, "the lexical index has no document")
        bags = self.bags(queries["text"].to_list())
        return pl.Series("score", kernels.score_pairs(numbers, rows, *self.kernel_arguments(bags)), dtype=pl.Float32)

    def query_matrix(self, texts: Sequence[str]) -> Any:
        """scipy CSR [n, V]: how often each term stands in each text; `query_matrix @ documents.T` is BM25."""
        from scipy.sparse import csr_matrix

        bags = self.bags(texts)
        return csr_matrix((bags.boosts, bags.terms, bags.ends), shape=(len(texts), len(self.impacts.idf)))

    @cached_property
    def documents(self) -> Any:
        """scipy CSC [N, V] of impacts, IDF included. RoC's split is `query_matrix * idf` and `documents / idf`."""
        from scipy.sparse import csc_matrix

        postings = self.impacts.postings
        shape = (len(postings.lengths), len(self.impacts.idf))
        return csc_matrix((self.impacts.values(), postings.rows, postings.indptr), shape=shape)

    def rows(self, docids: pl.Series) -> Any:
        """scipy CSR [n, V]: the rows of `documents` for those ids, in their order.

        Raises:
            InputError: a docid that the index lacks.
        """
        return self.documents.tocsr()[_places(docids, self.docids, "the lexical index has no document")]

    @property
    def idf(self) -> npt.NDArray[np.float32]:
        """[V] the weight of each term."""
        return self.impacts.idf

    def _expanded(self, weighted: pl.DataFrame, queries: int, rm3: Rm3, threads: int | None) -> pl.DataFrame:
        """Queries with the terms of their first documents added: rows of (query, term, boost)."""
        counts, keys = self._ranked(self._bags(weighted, queries), rm3.fb_docs, threads)
        kept = np.arange(keys.shape[1]) < counts[:, None]
        rows = np.argsort(self._order)[kernels.places_of(keys[kept])]
        return self._feedback.expand(weighted, counts, rows, kernels.scores_of(keys[kept]), rm3)

    # --------------------------------------------------------------------------------------------------- what is shared

    @cached_property
    def _feedback(self) -> Feedback:
        return Feedback(self.impacts.postings)

    @cached_property
    def _analyzer(self) -> Analyzer:
        return Analyzer(self.language)

    @cached_property
    def _dictionary(self) -> pl.DataFrame:
        terms = self.impacts.postings.terms
        return pl.DataFrame({"term": terms, "id": np.arange(len(terms), dtype=np.int32)})

    @cached_property
    def _order(self) -> npt.NDArray[np.int32]:
        """[N] the place of each row when docids are sorted as strings: how ties are settled."""
        place = np.empty(len(self.docids), np.int32)
        place[self.docids.arg_sort().to_numpy()] = np.arange(len(self.docids), dtype=np.int32)
        return place

    @cached_property
    def _ranked_docids(self) -> pl.Series:
        return self.docids.sort()


def read_parameters(folder: Path) -> dict[str, Any]:
    """The recorded k1 and b of the index in `folder`, and how they were tuned."""
    try:
        found: dict[str, Any] = json.loads((folder / PARAMETERS).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise HybridError(f"{folder / PARAMETERS}: is not readable ({error}); index again") from None
    return found


def check_corpus(index: Path, corpus: Path) -> None:
    """Refuse a lexical index of another corpus."""
    made_from = artifacts.read_manifest(index, Kind.LEXICAL_INDEX).inputs
    known = {source["fingerprint"] for source in made_from.values()}
    if known and artifacts.fingerprint(corpus) not in known:
        raise InputError(
            f"{index}: was made from another corpus than {corpus}; index this one with `hybrid index-bm25`"
        )


def _places(ids: pl.Series, among: pl.Series, complaint: str) -> npt.NDArray[np.int64]:
    """Where each id stands in `among`."""
    table = pl.DataFrame({"id": among.cast(pl.String)}).with_row_index("at")
    found = pl.DataFrame({"id": ids.cast(pl.String)}).join(table, on="id", how="left", maintain_order="left")["at"]
    if found.null_count():
        first = ids.filter(found.is_null())
        raise InputError(f"{complaint} {first[0]}" + (f" (nor {len(first) - 1} more)" if len(first) > 1 else ""))
    return found.to_numpy().astype(np.int64)


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
