"""Fused lists: edge cases and invariants of joining, ranking and exact scores."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from fused_rankings import APART, RANKINGS, B, Ranking, approx, fuse, fused_run, recipe, run_of
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli.errors import InputError
from hybrid_cli.fusion import lists
from hybrid_cli.fusion.lists import Lists
from hybrid_cli.fusion.methods import METHODS
from hybrid_cli.fusion.options import Missing

# ------------------------------------------------------------------------------------------------------- edge cases


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("missing", ["min", "zero", "ignore", "drop"])
def test_a_query_with_hits_in_one_list_keeps_their_order(method: str, missing: Missing) -> None:
    fused = fused_run(
        [run_of({"c": 3, "b": 2, "a": 1}, names="a"), run_of(B, names="b")], recipe(method, missing=missing)
    )
    assert fused.filter(qid="a")["docid"].to_list() == ["c", "b", "a"]


def test_negative_scores_stay_bounded() -> None:
    assert fuse({"a": -1, "b": -4}, {"b": -2, "c": -8}, fusion=recipe("sum", normalization="max")) == approx(
        {"a": -1 / 4 - 8 / 8, "b": -4 / 4 - 2 / 8, "c": -4 / 4 - 8 / 8}
    )


@given(first=RANKINGS, second=RANKINGS, method=st.sampled_from(["minmax", "sum", "zscore", "dbsf", "borda", "rrf"]))
def test_a_missing_document_never_outranks_a_returned_one(first: Ranking, second: Ranking, method: str) -> None:
    found = fuse(first, second, fusion=recipe(method, 1, 0))
    worst = min(found[docid] for docid in first)
    assert all(found[docid] <= worst for docid in second.keys() - first.keys())


def test_input_depth_and_output_depth_are_independent() -> None:
    first, second = run_of({"a": 3, "b": 2, "c": 1}), run_of({"c": 3, "b": 2, "a": 1})
    assert fused_run([first, second], recipe("rrf"), depth=1)["docid"].to_list() == ["a", "c"]
    assert fused_run([first, second], recipe("minmax"), depth=2).rows()[0][1:] == ("a", 1, 0.5)
    deep = fused_run([first, second], recipe("rrf"))
    assert fused_run([first, second], recipe("rrf"), hits=2).equals(deep.head(2))


def test_ranks_may_start_at_any_number() -> None:
    run = pl.DataFrame({"qid": ["q"] * 3, "docid": ["b", "a", "c"], "rank": [0, 1, 2], "score": [1.0, 1.0, 0.5]})
    assert fused_run([run, run_of({"a": 1}, names="q")], recipe("rrf")).rows()[:2] == [
        ("q", "a", 1, pytest.approx(1 / 62 + 1 / 61)),
        ("q", "b", 2, pytest.approx(1 / 61)),
    ]


def test_ids_are_unchanged_and_ties_are_ordered_by_docid() -> None:
    odd = {"007": 1.0, "NA": 1.0, "null": 1.0, "1e5": 1.0, "é ü": 1.0}
    assert list(fuse(odd, {"10": 1.0, "9": 1.0}, fusion=recipe("combsum"))) == sorted([*odd, "10", "9"])


# ---------------------------------------------------------------------------------------------------------- invariants


@given(first=RANKINGS, second=RANKINGS)
def test_weights_1_0_give_the_first_list_then_the_rest(first: Ranking, second: Ranking) -> None:
    order = run_of(first)["docid"].to_list()
    assert list(fuse(first, second, fusion=recipe("rrf", 1, 0)))[: len(order)] == order
    found = fuse(first, second, fusion=recipe("minmax", 1, 0))
    assert [found[docid] for docid in order] == sorted((found[docid] for docid in order), reverse=True)


@given(ranking=APART, method=st.sampled_from([name for name in METHODS if name != "product"]))
def test_a_run_fused_with_itself_keeps_its_order(ranking: Ranking, method: str) -> None:
    assert list(fuse(ranking, ranking, fusion=recipe(method))) == pytest.approx(run_of(ranking)["docid"].to_list())


@given(first=RANKINGS, second=RANKINGS, method=st.sampled_from(list(METHODS)), seed=st.integers(0, 99))
def test_neither_the_order_of_queries_nor_that_of_runs_matters(
    first: Ranking, second: Ranking, method: str, seed: int
) -> None:
    fusion = recipe(method, missing=METHODS[method].missing.replace("exact", "zero"))

    def scores(names: str, one: Ranking, other: Ranking) -> list[float] | None:
        """Return the scores in the order of the ids; None if the method cannot rank them."""
        try:
            found = fused_run([run_of(one, other, names=names), run_of(other, one, names=names)], fusion)
        except InputError as error:
            if error.code != "fusion-range":
                raise
            return None
        return found.sort("qid", "docid")["score"].to_list()

    together = scores("ab", first, second)
    assert together is not None or method == "product"
    for same in (scores("ba", second, first), scores("ab", second, first)):
        assert same == (together and pytest.approx(together, abs=1e-5))


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    tables = [
        run_of(
            *(
                {f"d{d}": float(s) for d, s in zip(rng.permutation(30)[:20], rng.random(20), strict=True)}
                for _ in "12345"
            )
        )
        for _ in range(3)
    ]
    whole = {method: fused_run(tables, recipe(method, lists=3, missing="min")) for method in METHODS}
    monkeypatch.setattr(lists, "BLOCK_HITS", 1)
    assert all(fused_run(tables, recipe(method, lists=3, missing="min")).equals(whole[method]) for method in METHODS)


@given(first=RANKINGS, second=RANKINGS, method=st.sampled_from(list(METHODS)))
def test_exact_scores_equal_complete_lists(first: Ranking, second: Ranking, method: str) -> None:
    truth = [{docid: float(hash_of(docid, number)) for docid in "abcdefghij"} for number in range(2)]
    cut = [{docid: truth[number][docid] for docid in ranking} for number, ranking in enumerate((first, second))]
    side_by_side = Lists.of([run_of(ranking) for ranking in cut])

    def scorer(number: int) -> lists.Scorer:
        return lambda pairs: pl.Series([truth[number][docid] for docid in pairs["docid"]])

    fusion = recipe(method, missing="exact")
    blocks = lists.complete(side_by_side.blocks(), side_by_side.qids, [scorer(0), scorer(1)])
    found = pl.concat(lists.fuse(blocks, side_by_side.qids, fusion, 1000))
    candidates = first.keys() | second.keys()
    whole = [run_of({docid: scores[docid] for docid in candidates}) for scores in truth]
    expected = fused_run(whole, fusion)
    assert found["docid"].to_list() == expected["docid"].to_list()
    assert found["score"].to_list() == pytest.approx(expected["score"].to_list(), abs=1e-5)


def hash_of(docid: str, number: int) -> int:
    return (ord(docid) * 7919 + number * 104729) % 23 - 5
