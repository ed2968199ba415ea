"""RM3 pseudo-relevance feedback: expand queries with terms of their first hits, as Anserini does (RM3)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli.errors import InputError
from hybrid_cli.lexical.impacts import Postings
from hybrid_cli.runs.index import Hits

_WORD = re.compile(r"[a-z0-9]{2,20}")
COMMON = 0.1
_LEAST_NORM = 0.001


@dataclass(frozen=True)
class Rm3:
    """Parameters of RM3.

    Attributes:
        fb_terms: feedback terms.
        fb_docs: feedback documents.
        original_query_weight: weight of the original query, 0 to 1.
    """

    fb_terms: int
    fb_docs: int
    original_query_weight: float

    def __post_init__(self) -> None:
        if min(self.fb_terms, self.fb_docs) < 1 or not 0 <= self.original_query_weight <= 1:
            raise InputError("RM3: needs fb_terms and fb_docs >= 1, fb_weight from 0 to 1", code="out-of-range")


def expands(term: str, df: int, documents: int) -> bool:
    """Test whether a term may expand a query: 2 to 20 characters of a-z and 0-9, in at most 10% of the documents."""
    return _WORD.fullmatch(term) is not None and df / documents <= COMMON


def relevance_model(feedback: Iterable[tuple[Sequence[tuple[str, float]], float]], fb_terms: int) -> dict[str, float]:
    """Return the term weights of feedback documents, which sum to 1 (RM3).

    Args:
        feedback: for each document, the terms that may expand a query with their frequencies, in the order of
            `_largest`, and the score.
        fb_terms: limits the terms of each document and of the model.
    """
    model: dict[str, float] = {}
    for frequencies, score in feedback:
        kept = frequencies[:fb_terms]
        norm = sum(frequency for _, frequency in kept)
        if norm > _LEAST_NORM:
            for term, frequency in kept:
                model[term] = model.get(term, 0.0) + frequency / norm * score
    return _unit(dict(_largest(model)[:fb_terms]))


def interpolate(query: Mapping[str, float], relevance: Mapping[str, float], share: float) -> dict[str, float]:
    """Return the term weights of the expanded query.

    Args:
        query: frequency of each analyzed term in the query.
        relevance: weights of the relevance model.
        share: weight of the original query.
    """
    original = _unit(query)
    return {
        term: share * original.get(term, 0.0) + (1 - share) * relevance.get(term, 0.0)
        for term in sorted({*original, *relevance})
    }


class Feedback:
    """Documents of a corpus by row, with the terms that may expand a query."""

    def __init__(self, postings: Postings):
        from scipy.sparse import csc_matrix

        self.terms = postings.terms
        shape = (len(postings.lengths), len(postings.terms))
        self.documents: Any = csc_matrix((postings.tfs, postings.rows, postings.indptr), shape=shape).tocsr()
        pairs = zip(postings.terms, postings.df.tolist(), strict=True)
        self.expanding = np.array([expands(term, df, postings.counted) for term, df in pairs], bool)

    def frequencies(self, row: int) -> list[tuple[str, float]]:
        """Return the terms of a document that may expand a query, with their frequencies, the largest first."""
        own = slice(self.documents.indptr[row], self.documents.indptr[row + 1])
        ids, tfs = self.documents.indices[own], self.documents.data[own]
        may = self.expanding[ids]
        return _largest(dict(zip(self.terms.gather(ids[may]), tfs[may].tolist(), strict=True)))


class FirstHits:
    """The first hits of queries, from which the queries are expanded with any parameters of RM3.

    Args:
        feedback: documents of the corpus.
        weighted: query, term, boost; including terms that are not in the corpus.
        hits: the hits of each query.
    """

    def __init__(self, feedback: Feedback, weighted: pl.DataFrame, hits: Hits):
        counts, rows, scores = hits.counts, hits.rows, hits.scores
        self._queries: list[dict[str, float]] = [{} for _ in counts]
        for query, term, boost in weighted.select("query", "term", "boost").iter_rows():
            self._queries[query][term] = boost
        known = {row: feedback.frequencies(row) for row in dict.fromkeys(rows.tolist())}
        ends, listed, values = np.cumsum(counts).tolist(), rows.tolist(), scores.tolist()
        spans = zip(ends, counts.tolist(), strict=True)
        self._hits = [[(known[listed[at]], values[at]) for at in range(end - count, end)] for end, count in spans]

    def models(self, fb_docs: int, fb_terms: int) -> list[dict[str, float]]:
        """Return the relevance model of each query; `fb_docs` must not exceed the number of hits asked for."""
        return [relevance_model(hits[:fb_docs], fb_terms) for hits in self._hits]

    def interpolated(self, models: Sequence[Mapping[str, float]], share: float) -> pl.DataFrame:
        """Return query, term and boost of the queries, expanded with relevance models."""
        expanded = [
            (number, term, weight)
            for number, (query, model) in enumerate(zip(self._queries, models, strict=True))
            for term, weight in interpolate(query, model, share).items()
        ]
        schema = {"query": pl.Int64, "term": pl.String, "boost": pl.Float64}
        return pl.DataFrame(expanded, schema=schema, orient="row")

    def expanded(self, settings: Rm3) -> pl.DataFrame:
        """Return query, term and boost of the expanded queries."""
        return self.interpolated(self.models(settings.fb_docs, settings.fb_terms), settings.original_query_weight)


def _largest(weights: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return terms and weights, the largest first; ties are broken alphabetically."""
    return sorted(weights.items(), key=lambda item: (-item[1], item[0]))


def _unit(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {term: weight / total for term, weight in weights.items()} if total else {}
