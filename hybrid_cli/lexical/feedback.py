"""RM3 pseudo-relevance feedback: expand queries with terms of their first hits, as Anserini does (RM3)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli.lexical.impacts import Postings

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


def expands(term: str, df: int, documents: int) -> bool:
    """Test whether a term may expand a query: 2 to 20 characters of a-z and 0-9, in at most 10% of the documents."""
    return _WORD.fullmatch(term) is not None and df / documents <= COMMON


def expanded(
    query: Mapping[str, float], feedback: Iterable[tuple[Mapping[str, float], float]], settings: Rm3
) -> dict[str, float]:
    """Return the term weights of the expanded query (RM3).

    Args:
        query: frequency of each analyzed term in the query.
        feedback: for each feedback document, the frequencies of terms that may expand a query, and the BM25 score.
        settings: parameters; `fb_terms` limits the terms of each document and of the expansion.
    """
    model: dict[str, float] = {}
    for frequencies, score in feedback:
        kept = _largest(frequencies, settings.fb_terms)
        norm = sum(kept.values())
        if norm > _LEAST_NORM:
            for term, frequency in kept.items():
                model[term] = model.get(term, 0.0) + frequency / norm * score
    relevance, original = _unit(_largest(model, settings.fb_terms)), _unit(query)
    share = settings.original_query_weight
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

    def expand(
        self,
        weighted: pl.DataFrame,
        counts: npt.NDArray[np.int32],
        rows: npt.NDArray[np.int64],
        scores: npt.NDArray[np.float32],
        settings: Rm3,
    ) -> pl.DataFrame:
        """Expand queries.

        Args:
            weighted: query, term, boost; including terms that are not in the corpus.
            counts: [Q] number of feedback documents of each query.
            rows, scores: [sum of counts] rows and BM25 scores of the feedback documents.
            settings: parameters of RM3.

        Returns:
            query, term, boost of the expanded queries.
        """  # fmt: skip
        queries: list[dict[str, float]] = [{} for _ in counts]
        for query, term, boost in weighted.select("query", "term", "boost").iter_rows():
            queries[query][term] = boost
        ends, found = np.cumsum(counts), []
        for number, (query, end) in enumerate(zip(queries, ends, strict=True)):
            own = slice(end - counts[number], end)
            feedback = zip(map(self._frequencies, rows[own]), scores[own].tolist(), strict=True)
            found += [(number, term, weight) for term, weight in expanded(query, feedback, settings).items()]
        schema = {"query": pl.Int64, "term": pl.String, "boost": pl.Float64}
        return pl.DataFrame(found, schema=schema, orient="row")

    def _frequencies(self, row: int) -> dict[str, float]:
        own = slice(self.documents.indptr[row], self.documents.indptr[row + 1])
        ids, tfs = self.documents.indices[own], self.documents.data[own]
        may = self.expanding[ids]
        return dict(zip(self.terms.gather(ids[may]), tfs[may].tolist(), strict=True))


def _largest(weights: Mapping[str, float], number: int) -> dict[str, float]:
    """Return the terms with the largest weights; ties are broken alphabetically."""
    return dict(sorted(weights.items(), key=lambda item: (-item[1], item[0]))[:number])


def _unit(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {term: weight / total for term, weight in weights.items()} if total else {}
