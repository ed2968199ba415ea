"""Complementarity of two runs: RoC, RBO, buckets of queries."""

from collections.abc import Mapping, Sequence
from math import isnan

import polars as pl
import pytest
import pytrec_eval
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
from hybrid_cli.evaluation.complementarity import Sets, changes, first_relevant, most_changed, overlap, rbo, sets, tally

RUN = {"qid": pl.String, "docid": pl.String, "rank": pl.Int32, "score": pl.Float32}
QRELS = {"qid": pl.String, "docid": pl.String, "relevance": pl.Int32}


def as_run(lists: Mapping[str, Sequence[str]]) -> pl.DataFrame:
    rows = [(qid, docid, rank, 1.0 / rank) for qid, docids in lists.items() for rank, docid in enumerate(docids, 1)]
    return pl.DataFrame(rows, schema=RUN, orient="row")


def as_qrels(judgments: dict[str, dict[str, int]]) -> pl.DataFrame:
    rows = [(qid, docid, grade) for qid, grades in judgments.items() for docid, grade in grades.items()]
    return pl.DataFrame(rows, schema=QRELS, orient="row")


def as_ranks(ranks: dict[str, int | None]) -> pl.DataFrame:
    return pl.DataFrame(list(ranks.items()), schema={"qid": pl.String, "rank": pl.Int32}, orient="row")


def only(frame: pl.DataFrame) -> float:
    return float(frame["value"].item())


def test_every_query_with_a_relevant_document_has_a_row_in_qrels_order() -> None:
    qrels = as_qrels({"q3": {"c": 1}, "q1": {"a": 0, "b": 2, "d": 1}, "q2": {"a": 0}, "q4": {"x": 1}})
    run = as_run({"q1": "abd", "q4": "abc", "q9": "a"})
    assert first_relevant(run, qrels).rows() == [("q3", None), ("q1", 2), ("q4", None)]
    assert first_relevant(run, qrels, level=2).rows() == [("q1", 2)]
    assert dict(first_relevant(run, qrels).schema) == {"qid": pl.String, "rank": pl.Int32}
    reversed_rows = as_run({"q1": "abc", "q2": "cab"}).reverse()  # the rank column gives the order
    assert first_relevant(reversed_rows, as_qrels({"q1": {"c": 1}, "q2": {"c": 1}})).rows() == [("q1", 3), ("q2", 1)]


documents = st.permutations("abcdefgh").flatmap(lambda docids: st.integers(0, 8).map(lambda length: docids[:length]))
runs = st.dictionaries(st.sampled_from(["q1", "q2", "q3", "q4"]), documents)
judgments = st.dictionaries(
    st.sampled_from(["q1", "q2", "q3", "q4", "q5"]),
    st.dictionaries(st.sampled_from("abcdefghxy"), st.integers(0, 2), min_size=1),
    min_size=1,
)


@given(runs, judgments, st.sampled_from([1, 2]))
def test_the_rank_is_that_of_pytrec_eval(
    lists: dict[str, list[str]], judged: dict[str, dict[str, int]], level: int
) -> None:
    found: dict[str, int | None] = dict(first_relevant(as_run(lists), as_qrels(judged), level).rows())
    assert set(found) == {qid for qid, grades in judged.items() if max(grades.values()) >= level}
    evaluator = pytrec_eval.RelevanceEvaluator(judged, {"recip_rank"}, relevance_level=level)
    scored = {qid: {docid: -float(at) for at, docid in enumerate(docids)} for qid, docids in lists.items()}
    theirs = evaluator.evaluate(scored)
    for qid, rank in found.items():
        assert theirs.get(qid, {}).get("recip_rank", 0.0) == (1 / rank if rank else 0.0)


def test_the_published_example() -> None:
    """D = {1..5}, S = {4, 5, 6} of 8 queries: RoC .6, two queries in neither set (RoC, section 3.1)."""
    dense = as_ranks({str(q): 1 if q <= 5 else None for q in range(1, 9)})
    sparse = as_ranks({str(q): 1 if 4 <= q <= 6 else 20 for q in range(1, 9)})
    found = sets(dense, sparse, 10)
    assert found == Sets(10, queries=8, dense=5, sparse=3, dense_only=3, sparse_only=1, both=2, fail=2)
    assert found.roc == 3 / 5
    assert found.mirror == 1 / 3
    assert found.oracle == 6 / 8


def test_the_cutoff_is_inclusive_and_the_ratio_of_an_empty_set_is_nan() -> None:
    dense, sparse = as_ranks({"1": 10, "2": 11}), as_ranks({"2": 1, "1": None})
    assert (sets(dense, sparse, 10).dense_only, sets(dense, sparse, 10).sparse_only) == (1, 1)
    assert (sets(dense, sparse, 11).dense, sets(dense, sparse, 11).both) == (2, 1)
    nothing, something = as_ranks({"1": None}), as_ranks({"1": 3})
    assert isnan(sets(nothing, something, 10).roc)
    assert isnan(sets(something, nothing, 10).mirror)
    assert (sets(nothing, something, 10).mirror, sets(nothing, nothing, 10).oracle) == (1, 0)
    assert isnan(sets(nothing.clear(), nothing.clear(), 10).oracle)


ranks = st.one_of(st.none(), st.integers(1, 30))
pairs = st.lists(st.tuples(ranks, ranks), min_size=1, max_size=40)


@given(pairs, st.integers(1, 30))
def test_exchanging_the_runs_exchanges_the_counts(found: list[tuple[int | None, int | None]], cutoff: int) -> None:
    dense, sparse = (as_ranks({str(n): pair[side] for n, pair in enumerate(found)}) for side in (0, 1))
    ours, swapped = sets(dense, sparse, cutoff), sets(sparse, dense, cutoff)
    assert ours.dense_only + ours.both + ours.sparse_only + ours.fail == ours.queries == len(found)
    assert ours.dense == ours.dense_only + ours.both
    assert ours.sparse == ours.sparse_only + ours.both
    assert (swapped.dense, swapped.dense_only, swapped.both) == (ours.sparse, ours.sparse_only, ours.both)
    assert swapped.mirror == ours.roc or isnan(ours.roc)
    assert swapped.oracle == ours.oracle
    if ours.dense:
        assert ours.roc + ours.both / ours.dense == pytest.approx(1)


def test_golden_values_of_rbo() -> None:
    ten, other = as_run({"q": "abcdefghij"}), as_run({"q": "bacdefghxy"})
    assert only(rbo(ten, other)) == pytest.approx(0.817733, abs=5e-7)
    assert only(rbo(ten, ten)) == pytest.approx(1)
    hundred = as_run({"q": [str(n) for n in range(150)]})
    assert only(rbo(hundred, hundred)) == pytest.approx(1)
    assert only(rbo(ten, as_run({"q": "klmno"}))) == 0


def by_definition(a: list[str], b: list[str], p: float) -> float:
    short, long = sorted((a, b), key=len)
    s, n = len(short), len(long)
    if not s:
        return 0.0
    x = [0] + [len(set(short[:d]) & set(long[:d])) for d in range(1, n + 1)]
    seen = sum(x[d] / d * p**d for d in range(1, n + 1))
    taken_on = sum(x[s] * (d - s) / (s * d) * p**d for d in range(s + 1, n + 1))
    return (1 - p) / p * (seen + taken_on) + ((x[n] - x[s]) / n + x[s] / s) * p**n


@given(documents, documents, st.sampled_from([0.5, 0.9, 0.98]), st.sampled_from([3, 8, 100]))
def test_rbo_is_the_published_formula_and_symmetric(a: list[str], b: list[str], p: float, depth: int) -> None:
    one, two = as_run({"q": a, "other": "a"}), as_run({"q": b, "other": "a"})
    found = dict(rbo(one, two, p, depth).rows()).get("q", 0.0)
    assert found == pytest.approx(by_definition(a[:depth], b[:depth], p), abs=1e-12)
    assert found == pytest.approx(dict(rbo(two, one, p, depth).rows()).get("q", 0.0), abs=1e-12)
    assert -1e-12 <= found <= 1 + 1e-12


@given(documents, documents, st.integers(1, 9))
def test_overlap_is_the_fraction_of_common_hits_at_the_cutoff(a: list[str], b: list[str], cutoff: int) -> None:
    found = dict(overlap(as_run({"q": a}), as_run({"q": b}), cutoff).rows())
    longer = max(len(a[:cutoff]), len(b[:cutoff]))
    assert found == ({"q": len(set(a[:cutoff]) & set(b[:cutoff])) / longer} if longer else {})


def test_a_query_missing_from_one_run_has_overlap_0() -> None:
    one, two = as_run({"q1": "ab", "q2": "ab"}), as_run({"q3": "ab", "q2": "bc"})
    assert overlap(one, two, 10).rows() == [("q1", 0), ("q2", 0.5), ("q3", 0)]
    assert rbo(one, two).filter(pl.col("qid") != "q2").rows() == [("q1", 0), ("q3", 0)]


VALUES = pl.DataFrame(
    [
        (run, "MRR@10", f"q{n}", value)
        for run, row in {"a": (1, 0, 0.5, 0, 0.2), "b": (0, 1, 0.25, 0, 0.2), "fused": (0.5, 1, 1, 0, 0.1)}.items()
        for n, value in enumerate(row)
    ],
    schema={"run": pl.String, "measure": pl.String, "qid": pl.String, "value": pl.Float64},
    orient="row",
)


def test_wins_ties_and_losses_against_each_and_against_the_better() -> None:
    assert tally(changes(VALUES, "fused", ["a"], "MRR@10")) == (2, 1, 2)
    assert tally(changes(VALUES, "fused", ["b"], "MRR@10")) == (2, 2, 1)
    assert tally(changes(VALUES, "fused", ["a", "b"], "MRR@10")) == (1, 2, 2)


def test_the_most_changed_queries_are_those_furthest_from_the_better_run() -> None:
    hurt, helped = most_changed(changes(VALUES, "fused", ["a", "b"], "MRR@10"), 5)
    assert hurt.rows() == [("q0", 0.5, 1.0, -0.5), ("q4", 0.1, 0.2, -0.1)]
    assert helped.rows() == [("q2", 1.0, 0.5, 0.5)]
    assert most_changed(changes(VALUES, "fused", ["a", "b"], "MRR@10"), 1)[0]["qid"].to_list() == ["q0"]


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
    expected = {"none": "0", "quarter": "(0, .25]", "half": "(.25, .5]", "most": "(.5, .75]", "nearly": "(.75, 1)"}
    expected |= {"all": "1"}
    assert bucket_of(found) == expected
    assert list(dict.fromkeys(bucket_of(found).values())) == list(found.labels)
