"""RM3: expand a query by the terms of its first hits, as Anserini does it (methods 1.7)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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


def _largest(weights: Mapping[str, float], number: int) -> dict[str, float]:
    """The heaviest terms; equal ones in the order of their letters."""
    return dict(sorted(weights.items(), key=lambda item: (-item[1], item[0]))[:number])


def _unit(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {term: weight / total for term, weight in weights.items()} if total else {}
