"""Groups of queries and their means."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli.evaluation.buckets import (
    EASY,
    HARD,
    Buckets,
    document_length,
    easy_hard,
    lexical_overlap,
    means,
    query_length,
    share_above_sparse,
    targets,
)


def as_ranks(ranks: dict[str, int | None]) -> pl.DataFrame:
    return pl.DataFrame(list(ranks.items()), schema={"qid": pl.String, "rank": pl.Int32}, orient="row")


def as_queries(texts: dict[str, str]) -> pl.DataFrame:
    return pl.DataFrame(list(texts.items()), schema=["qid", "text"], orient="row")


def as_texts(texts: dict[str, tuple[str, str]]) -> pl.DataFrame:
    return pl.DataFrame(
        [(docid, *text) for docid, text in texts.items()], schema=["docid", "title", "text"], orient="row"
    )


def words(texts: Sequence[str]) -> list[list[str]]:
    return [text.lower().split() for text in texts]


def bucket_of(buckets: Buckets) -> dict[str, str]:
    return dict(buckets.queries.rows())


@given(st.lists(st.one_of(st.none(), st.integers(1, 30)), min_size=1, max_size=30))
def test_easy_queries_are_half_and_never_score_lower(ranks: list[int | None]) -> None:
    first = as_ranks({f"q{n:02}": rank for n, rank in enumerate(ranks)})
    found = bucket_of(easy_hard(first, "bm25"))
    worth = {qid: 1 / rank if rank and rank <= 10 else 0.0 for qid, rank in first.rows()}
    assert list(found.values()).count(EASY) == len(ranks) // 2
    assert set(found) == set(worth)
    easy = [worth[qid] for qid, label in found.items() if label == EASY]
    assert min(easy, default=1.0) >= max(worth[qid] for qid, label in found.items() if label == HARD)


def test_ties_of_the_halves_are_ordered_by_qid() -> None:
    found = easy_hard(as_ranks({"q5": None, "q3": 11, "q1": 2, "q2": 1, "q4": 900}), "bm25")
    assert bucket_of(found) == {"q2": EASY, "q1": EASY, "q3": HARD, "q4": HARD, "q5": HARD}
    zeros = easy_hard(as_ranks({"q4": None, "q3": 20, "q2": None, "q1": 1}), "bm25")
    assert bucket_of(zeros) == {"q1": EASY, "q2": EASY, "q3": HARD, "q4": HARD}


def test_weighted_bucket_means_equal_the_overall_mean() -> None:
    rows = [(run, "MRR", f"q{n}", value) for run in ("b", "a") for n, value in enumerate((0.1, 0.5, 1.0, 0.25))]
    values = pl.DataFrame(rows, schema=["run", "measure", "qid", "value"], orient="row")
    buckets = query_length(as_queries({"q0": "w " * 9, "q1": "\u5012\u6392\u7d22\u5f15", "q2": "w w", "q3": "w " * 5}))
    found = means(values, buckets, "MRR")
    expected = [("up to 4", 2, 0.75), ("5-8", 1, 0.25), ("9-12", 1, 0.1)]
    assert found.filter(run="a").select("bucket", "queries", "mean").rows() == expected
    assert found["run"].to_list() == ["b", "a"] * 3
    assert (found["queries"] * found["mean"]).sum() == pytest.approx(values["value"].sum())


def test_above_sparse_compares_reciprocal_ranks() -> None:
    sparse = as_ranks({"q1": 1, "q2": 1, "q3": 4, "q4": None, "q5": 12, "q6": 5})
    dense = as_ranks({"q1": 2, "q2": 2, "q3": 4, "q4": 10, "q5": 11, "q6": 4})
    halves = easy_hard(sparse, "bm25")
    assert {qid for qid, label in bucket_of(halves).items() if label == HARD} == {"q4", "q5", "q6"}
    assert share_above_sparse(dense, sparse, halves) == pytest.approx(2 / 3)  # ranks beyond 10 are equal
    assert share_above_sparse(sparse, sparse, halves) == 0


def test_the_target_is_the_first_of_the_highest_grade() -> None:
    rows = [("q2", "a", 1), ("q2", "b", 2), ("q2", "c", 2), ("q1", "a", 0), ("q1", "d", 1), ("q3", "a", 0)]
    qrels = pl.DataFrame(rows, schema=["qid", "docid", "relevance"], orient="row")
    assert targets(qrels).rows() == [("q2", "b"), ("q1", "d")]
    assert targets(qrels, level=2).rows() == [("q2", "b")]
    assert targets(qrels, known=pl.Series(["a", "c", "d"])).rows() == [("q2", "c"), ("q1", "d")]  # judgments have more


def test_documents_are_grouped_by_forty_words() -> None:
    lengths = {"a": 0, "b": 39, "c": 40, "d": 79, "e": 319, "f": 320, "g": 5000}
    texts = as_texts({docid: ("title", " ".join(["word"] * length)) for docid, length in lengths.items()})
    targets = pl.DataFrame({"qid": [*lengths, "lost"], "docid": [*lengths, "nowhere"]})
    found = document_length(targets, texts)
    expected = {"a": "up to 40", "b": "up to 40", "c": "41-80", "d": "41-80", "e": "281-320"}
    assert bucket_of(found) == {**expected, "f": "over 320", "g": "over 320"}
    assert set(expected.values()) <= set(found.labels)
    assert len(found.labels) == 9


def test_queries_are_grouped_by_four_words() -> None:
    found = query_length(as_queries({"1": "", "2": "a b c d", "3": "a b  c d\ne", "4": "w " * 16, "5": "w " * 17}))
    assert bucket_of(found) == {"1": "up to 4", "2": "up to 4", "3": "5-8", "4": "13-16", "5": "over 16"}


def test_overlap_counts_distinct_terms_in_title_or_text() -> None:
    texts = as_texts({"d": ("Tides", "the moon and two tides")})
    queries = {
        "none": "salt",
        "quarter": "moon salt sea blood",
        "half": "salt moon moon",
        "most": "moon two tides salt x",
    }
    queries |= {"nearly": "the moon and two tides x", "all": "tides moon", "empty": "", "unjudged": "moon"}
    targets = pl.DataFrame({"qid": [qid for qid in queries if qid != "unjudged"], "docid": "d"})
    found = lexical_overlap(targets, as_queries(queries), texts, words)
    assert bucket_of(found) == {
        "none": "0", "quarter": "(0, .25]", "half": "(.25, .5]", "most": "(.5, .75]", "nearly": "(.75, 1)", "all": "1",
    }  # fmt: skip
    assert list(dict.fromkeys(bucket_of(found).values())) == list(found.labels)
