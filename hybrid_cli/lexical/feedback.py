"""RM3: expand a query by the terms of its first hits, as Anserini does it (methods 1.7)."""

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
    """Terms and documents of the feedback, and the share of the original query."""

    fb_terms: int = 10
    fb_docs: int = 10
    original_query_weight: float = 0.5


def expands(term: str, df: int, documents: int) -> bool:
    """Whether a term may enter a query: 2 to 20 of a-z and 0-9, in at most a tenth of the documents."""
    return _WORD.fullmatch(term) is not None and df / documents <= COMMON


def expanded(
    query: Mapping[str, float], feedback: Iterable[tuple[Mapping[str, float], float]], settings: Rm3
) -> dict[str, float]:
    """The weights of the expanded query.

    Args:
        query: how often each analysed term stands in the query.
        feedback: (frequency of each term that may expand, BM25 score) of the first documents.
        settings: how many terms are kept, of each document and in all, and the share of the original query.
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
    """The documents of a corpus by row, with the terms that may expand a query."""

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
        """Expanded queries.

        Args:
            weighted: query, term, boost: the terms of each query, those that the corpus lacks too.
            counts: [Q] how many feedback documents each query has.
            rows, scores: [sum of counts] those documents and their BM25 scores.
            settings: of RM3.
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
    """The heaviest terms; equal ones in the order of their letters."""
    return dict(sorted(weights.items(), key=lambda item: (-item[1], item[0]))[:number])


def _unit(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {term: weight / total for term, weight in weights.items()} if total else {}
