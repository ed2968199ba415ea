"""Fusion: golden values, agreement with ranx, and the invariants of joining, ranking and exact scores."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import raises
from fused_rankings import APART, RANKINGS, A, B, Ranking, approx, fuse, fused_run, normalized, recipe, run_of
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli.errors import InputError
from hybrid_cli.fusion import lists
from hybrid_cli.fusion.lists import Lists
from hybrid_cli.fusion.methods import METHODS, FusionRecipe, method_name
from hybrid_cli.fusion.options import Missing

GOLDEN: dict[str, dict[str, float]] = {
    "minmax": {"y": (3 / 5 + 1) / 2, "x": (1 + 0) / 2, "w": (0 + 1.5 / 2) / 2, "z": 0},
    "sum": {"x": 10 + 1, "y": 8 + 3, "z": 5, "w": 2.5},
    "product": {"y": 8 * 3, "x": 10 * 1, "w": 0, "z": 0},
    "rrf": {"y": 1 / 62 + 1 / 61, "x": 1 / 61 + 1 / 63, "w": 1 / 62, "z": 1 / 63},
    "combmnz": {"y": 2 * (0.6 + 1), "x": 2 * (1 + 0), "w": 0.75, "z": 0},
    "combanz": {"y": (0.6 + 1) / 2, "w": 0.75, "x": (1 + 0) / 2, "z": 0},
    "combmax": {"x": 1, "y": 1, "w": 0.75, "z": 0},
    "combmin": {"w": 0.75, "y": 0.6, "x": 0, "z": 0},
    "combmed": {"y": 0.8, "w": 0.75, "x": 0.5, "z": 0},
    "zscore": {
        "y": 0.162221 + 0.980581,
        "x": 1.135550 - 1.372813,
        "w": -1.297771 + 0.392232,
        "z": -1.297771 - 1.372813,
    },
    "dbsf": {"y": 0.522076 + 0.633440, "x": 0.654529 + 0.313184, "w": 0.553376, "z": 0.323396},
    # four candidates, three hits: one point, (4 - 3 + 1) / 2, remains for the missing document
    "borda": {"y": (3 + 4) / 4, "x": (4 + 2) / 4, "w": (1 + 3) / 4, "z": (2 + 1) / 4},
    "isr": {"y": 2 * (1 / 4 + 1), "x": 2 * (1 + 1 / 9), "w": 1 / 4, "z": 1 / 9},
    "rbc": {"y": 0.2 * (0.8 + 1), "x": 0.2 * (1 + 0.64), "w": 0.2 * 0.8, "z": 0.2 * 0.64},
    # medians 8 and 2.5, deviations 2.054805 and 0.849837; a missing document is neutral
    "log-odds": {
        "y": 1 / (1 + math.exp(-(0 + 0.588348) / math.sqrt(2))),
        "w": 0.5,
        "x": 1 / (1 + math.exp(-(0.973329 - 1.765045) / math.sqrt(2))),
        "z": 1 / (1 + math.exp(1.459993 / math.sqrt(2))),
    },
}


@pytest.mark.parametrize("method", GOLDEN)
def test_each_method_gives_its_golden_values_in_order(method: str) -> None:
    found = fuse(A, B, fusion=recipe(method))
    assert found == pytest.approx(GOLDEN[method], abs=2e-6)
    assert list(found) == list(GOLDEN[method])


def test_missing_documents_follow_the_rule() -> None:
    assert fuse(A, B, fusion=recipe("sum", missing="min")) == approx({"x": 11, "y": 11, "w": 5 + 2.5, "z": 5 + 1})
    assert fuse(A, B, fusion=recipe("sum", missing="drop")) == approx({"x": 11, "y": 11})
    assert fuse(A, B, fusion=recipe("product", missing="ignore")) == approx({"y": 24, "x": 10, "z": 5, "w": 2.5})
    below = {"y": 3, "w": -2.5}  # with 0, x and z would be above w, a hit of this list
    assert fuse(A, below, fusion=recipe("sum", 0, 1)) == approx({"y": 3, "w": -2.5, "x": -2.5, "z": -2.5})
    assert fuse(A, below, fusion=recipe("sum", 0, 1, missing="ignore")) == approx({"y": 3, "x": 0, "z": 0, "w": -2.5})


def test_weights_affect_every_method() -> None:
    for method in METHODS:
        changed = fuse(A, B, fusion=recipe(method, 0.2, 3, missing=METHODS[method].missing.replace("exact", "zero")))
        equal = fuse(A, B, fusion=recipe(method, 1, 1, missing=METHODS[method].missing.replace("exact", "zero")))
        assert changed != approx(equal), method
    assert fuse(A, B, fusion=recipe("rrf", 2, 0.5))["y"] == pytest.approx(2 / 62 + 0.5 / 61)
    assert fuse(A, B, fusion=recipe("rrf", 1, 1, rrf_k=10))["w"] == pytest.approx(1 / 12)


@pytest.mark.parametrize(
    ("name", "two", "one", "equal"),
    [
        ("none", (4, -2), 4, -3),
        ("minmax", (1, 0), 1, 1),
        ("max", (1, -0.5), 1, -1),
        ("sum", (1, 0), 1, 0.5),
        ("l2", (4 / 20**0.5, -2 / 20**0.5), 1, -1 / 2**0.5),
        ("zscore", (1, -1), 0, 0),
        ("rank", (1, 0.5), 1, (1, 0.5)),
        ("borda", (1, 0.5), 1, (1, 0.5)),
        ("dbsf", (0.5 + 3 / 6 / 18**0.5, 0.5 - 3 / 6 / 18**0.5), 0.5, 0.5),
    ],
)
def test_lists_of_two_hits_and_of_one_hit(name: str, two: tuple[float, float], one: float, equal: Any) -> None:
    assert normalized({"a": 4, "b": -2}, name) == approx({"a": two[0], "b": two[1]})
    assert normalized({"a": 4}, name) == approx({"a": one})
    assert all(math.isfinite(value) for value in normalized({"a": 0, "b": 0}, name).values())
    first, second = equal if isinstance(equal, tuple) else (equal, equal)
    assert normalized({"a": -3, "b": -3}, name) == approx({"a": first, "b": second})


def test_names_of_ranx_are_accepted() -> None:
    expected = ["weighted-sum", "combmnz", "borda", "borda", "rrf"]
    assert [method_name(name) for name in ("wsum", "mnz", "bordafuse", "w_bordafuse", "RRF")] == expected
    with raises("unknown-choice", option="method"):
        method_name("rff")


def test_bad_weights_and_settings_are_refused() -> None:
    for weights in ((1.0, -1.0), (0.0, 0.0), (1.0, math.nan)):
        with raises("out-of-range", option="weights"):
            recipe("minmax", *weights)
    with raises("option-does-not-apply", option="normalize"):
        recipe("rrf", normalization="minmax")
    with raises("out-of-range", option="rrf_k"):
        recipe("rrf", rrf_k=-1.0)


CASES: list[tuple[str, str | None, dict[str, Any] | None, FusionRecipe]] = [
    ("wsum", "min-max", {"weights": [0.3, 0.7]}, recipe("minmax", 0.3, 0.7)),
    ("sum", None, None, recipe("sum", missing="ignore")),
    ("mnz", "min-max", None, recipe("combmnz")),
    ("anz", "min-max", None, recipe("combanz")),
    ("max", "min-max", None, recipe("combmax")),
    ("min", "min-max", None, recipe("combmin")),
    ("med", "min-max", None, recipe("combmed")),
    ("sum", "max", None, recipe("sum", normalization="max")),
    ("sum", "sum", None, recipe("sum", normalization="sum")),
    ("sum", "rank", None, recipe("sum", normalization="rank")),
    ("sum", "borda", None, recipe("borda")),
    ("sum", "zmuv", None, recipe("zscore", missing="ignore")),
    ("rrf", None, {"k": 60}, recipe("rrf")),
    ("isr", None, None, recipe("isr")),
    ("rbc", None, {"phi": 0.8}, recipe("rbc")),
]


def test_scores_equal_those_of_ranx() -> None:
    recorded = json.loads((Path(__file__).parent / "data" / "ranx_fusion.json").read_text("utf-8"))
    tables = [run_of(*run.values(), names=list(run)) for run in recorded["runs"]]
    for expected, (method, norm, _, fusion) in zip(recorded["fused"], CASES, strict=True):
        fused = fused_run(tables, fusion)
        found = {qid: dict(hits.select("docid", "score").iter_rows()) for (qid,), hits in fused.group_by("qid")}
        for qid, scores in expected.items():
            assert found[qid] == pytest.approx(scores, rel=1e-5, abs=1e-6), (method, norm)


LOW = {"x": -1.0, "y": -2.0, "z": -3.0}
LONG = {f"d{rank:05}": 1.0 / rank for rank in range(1, 3400)}  # the last value of rbc is 0


@pytest.mark.parametrize(
    ("fusion", "second", "problem"),
    [
        (recipe("product"), LOW, "fusion-range"),
        (recipe("product", 1.0, 1000.0), {"x": 0.5, "y": 0.25}, "fusion-underflow"),
        (recipe("combmnz", normalization="none"), LOW, "fusion-range"),
        (recipe("combmax", 1.0, 3.0, normalization="none"), LOW, "fusion-range"),
        (recipe("combmed", 1.0, 3.0, normalization="zscore"), LOW, "fusion-range"),
        (recipe("rbc"), LONG, "fusion-range"),
    ],
)
def test_unrankable_scores(fusion: FusionRecipe, second: Ranking, problem: str) -> None:
    with raises(problem, id="1"):
        fuse(A, second, fusion=fusion)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("weighted-sum", "product")])
def test_negative_scores_keep_their_order_with_the_normalization_of_the_method(method: str) -> None:
    found = fuse(LOW, LOW, fusion=recipe(method))
    assert list(found) == ["x", "y", "z"]
    assert len(set(found.values())) == 3


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


@given(first=RANKINGS, second=RANKINGS)
def test_weights_1_0_give_the_first_list_then_the_rest(first: Ranking, second: Ranking) -> None:
    """Rules that ignore missing documents keep the order of the list, with other documents between."""
    for method in ("combmax", "combmin", "combmed", "combsum", "combanz", "combmnz", "isr", "sum"):
        for weights, single in (((1.0, 0.0), "xyz"), ((0.0, 1.0), "ywx")):
            found = fuse(A, B, fusion=recipe(method, *weights))
            assert "".join(docid for docid in found if docid in single) == single, method
    order = run_of(first)["docid"].to_list()
    assert list(fuse(first, second, fusion=recipe("rrf", 1, 0)))[: len(order)] == order
    found = fuse(first, second, fusion=recipe("minmax", 1, 0))
    assert [found[docid] for docid in order] == sorted((found[docid] for docid in order), reverse=True)
    assert all(0 <= score <= 1 + 1e-6 for score in fuse(first, second, fusion=recipe("minmax", 0.3, 9)).values())


@given(ranking=APART, method=st.sampled_from([name for name in METHODS if name != "product"]))
def test_a_run_fused_with_itself_keeps_its_order(ranking: Ranking, method: str) -> None:
    assert list(fuse(ranking, ranking, fusion=recipe(method))) == pytest.approx(run_of(ranking)["docid"].to_list())


@given(first=RANKINGS, second=RANKINGS, method=st.sampled_from(list(METHODS)), seed=st.integers(0, 99))
def test_no_order_of_queries_or_runs_matters(first: Ranking, second: Ranking, method: str, seed: int) -> None:
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
    found = pl.concat(lists.fuse_blocks(blocks, side_by_side.qids, fusion, 1000))
    candidates = first.keys() | second.keys()
    whole = [run_of({docid: scores[docid] for docid in candidates}) for scores in truth]
    expected = fused_run(whole, fusion)
    assert found["docid"].to_list() == expected["docid"].to_list()
    assert found["score"].to_list() == pytest.approx(expected["score"].to_list(), abs=1e-5)


def hash_of(docid: str, number: int) -> int:
    return (ord(docid) * 7919 + number * 104729) % 23 - 5
