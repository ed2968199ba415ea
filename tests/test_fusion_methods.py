"""Fusion methods: golden values, names, errors, agreement with ranx, and registration of a new method."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from command import raises
from fused_rankings import A, B, approx, fuse, fused_run, normalized, recipe, run_of

from hybrid_cli.errors import InputError
from hybrid_cli.fusion.methods import METHODS, FusionRecipe, method_name

# ------------------------------------------------------------------------------------------------------ golden values


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
def test_lists_of_two_hits_of_one_hit_and_of_equal_negative_scores(
    name: str, two: tuple[float, float], one: float, equal: Any
) -> None:
    assert normalized({"a": 4, "b": -2}, name) == approx({"a": two[0], "b": two[1]})
    assert normalized({"a": 4}, name) == approx({"a": one})
    first, second = equal if isinstance(equal, tuple) else (equal, equal)
    assert normalized({"a": -3, "b": -3}, name) == approx({"a": first, "b": second})


# ------------------------------------------------------------------------------------------------------- names, errors


def test_names_of_ranx_are_accepted() -> None:
    assert [method_name(name) for name in ("wsum", "mnz", "bordafuse", "w_bordafuse", "RRF")] == [
        "weighted-sum", "combmnz", "borda", "borda", "rrf",
    ]  # fmt: skip
    with raises("unknown-choice", option="method"):
        method_name("rff")


def test_bad_weights_and_settings_are_refused() -> None:
    for weights in ((1.0, -1.0), (0.0, 0.0), (1.0, math.nan)):
        with raises("out-of-range", option="weights"):
            recipe("minmax", *weights)
    with raises("option-does-not-apply", option="normalize"):
        recipe("rrf", normalization="minmax")


# ---------------------------------------------------------------------------------------------------------------- ranx

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


# --------------------------------------------------------------------------------------------------------- extension


# -------------------------------------------------------------------------------------------- scores without a ranking

LOW = {"x": -1.0, "y": -2.0, "z": -3.0}


@pytest.mark.parametrize(
    ("method", "options", "weights"),
    [
        ("product", {}, ()),
        ("combmnz", {"normalization": "none"}, ()),
        ("combmax", {"normalization": "none"}, (1.0, 3.0)),
        ("combmed", {"normalization": "zscore"}, (1.0, 3.0)),
    ],
)
def test_scores_that_a_rule_cannot_rank_are_refused(
    method: str, options: dict[str, Any], weights: tuple[float, ...]
) -> None:
    with pytest.raises(InputError) as caught:
        fuse(A, LOW, fusion=recipe(method, *weights, **options))
    assert (caught.value.code, caught.value.fields["id"]) == ("fusion-range", "1")


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("weighted-sum", "product")])
def test_negative_scores_keep_their_order_with_the_normalization_of_the_method(method: str) -> None:
    found = fuse(LOW, LOW, fusion=recipe(method))
    assert list(found) == ["x", "y", "z"]
    assert len(set(found.values())) == 3


@pytest.mark.parametrize("method", ["combmax", "combmin", "combmed", "combsum", "combanz", "combmnz", "isr", "sum"])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0)])
def test_a_list_of_weight_0_does_not_change_the_order_of_the_other(method: str, weights: tuple[float, float]) -> None:
    found = list(fuse(A, B, fusion=recipe(method, *weights)))
    single = ["x", "y", "z"] if weights[0] else ["y", "w", "x"]
    assert [docid for docid in found if docid in single] == single


def test_a_product_below_the_floating_point_numbers_is_refused() -> None:
    scores = {"x": 0.5, "y": 0.25}
    with pytest.raises(InputError) as caught:
        fuse(scores, scores, fusion=recipe("product", 1000.0, 1.0))
    assert (caught.value.code, caught.value.fields["id"]) == ("fusion-underflow", "1")
