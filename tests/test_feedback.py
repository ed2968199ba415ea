"""RM3: weights of the expanded query, computed by hand (RM3, in the form of Anserini)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from hybrid_cli.lexical.feedback import Rm3, expands, interpolate, relevance_model

RM3 = Rm3(fb_terms=10, fb_docs=10, original_query_weight=0.5)


def expanded(
    query: Mapping[str, float], documents: Sequence[tuple[Mapping[str, float], float]], settings: Rm3
) -> dict[str, float]:
    ordered = [(sorted(terms.items(), key=lambda item: (-item[1], item[0])), score) for terms, score in documents]
    return interpolate(query, relevance_model(ordered, settings.fb_terms), settings.original_query_weight)


def test_the_expanded_query_is_the_mean_of_the_query_and_its_feedback_documents() -> None:
    documents = [({"a": 3.0, "b": 1.0}, 2.0), ({"b": 1.0}, 1.0)]
    a, b = 3 / 4 * 2, 1 / 4 * 2 + 1
    assert expanded({"q": 1.0, "a": 1.0}, documents, RM3) == pytest.approx(
        {"q": 0.5 / 2, "a": 0.5 / 2 + 0.5 * a / (a + b), "b": 0.5 * b / (a + b)}
    )


def test_a_document_adds_only_its_most_frequent_terms() -> None:
    documents = [({"c": 1.0, "b": 1.0, "a": 2.0}, 1.0)]
    assert set(expanded({"q": 1.0}, documents, Rm3(2, 10, 0.5))) == {"q", "a", "b"}


def test_a_weight_of_one_keeps_the_query() -> None:
    assert expanded({"q": 2.0}, [({"a": 1.0}, 1.0)], Rm3(10, 10, 1.0)) == {"a": 0.0, "q": 1.0}


def test_a_query_without_feedback_documents_is_not_expanded() -> None:
    assert expanded({"q": 2.0, "p": 2.0}, [], RM3) == {"p": 0.25, "q": 0.25}


@pytest.mark.parametrize(
    ("term", "df", "may"),
    [("ab", 10, True), ("a", 1, False), ("a" * 21, 1, False), ("don't", 1, False), ("é2", 1, False), ("ab", 11, False)],
)
def test_only_short_plain_and_uncommon_terms_expand_a_query(term: str, df: int, may: bool) -> None:
    assert expands(term, df, 100) is may
