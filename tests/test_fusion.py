"""Fusion methods: golden values, edge cases, invariants, and agreement with ranx."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli import runs
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.measures import evaluate_positions, evaluate_run
from hybrid_cli.fusion import lists, methods, tuning
from hybrid_cli.fusion.lists import Lists
from hybrid_cli.fusion.methods import METHODS, Recipe, method_name
from hybrid_cli.settings.retrieval import Missing, Normalization, WeightTuning

Ranking = Mapping[str, float]
A: Ranking = {"x": 10, "y": 8, "z": 5}
B: Ranking = {"y": 3, "w": 2.5, "x": 1}
SCORES = st.floats(-100, 100, width=32)
RANKINGS = st.dictionaries(st.sampled_from("abcdefghij"), SCORES, min_size=1)


def run_of(*queries: Ranking, names: Sequence[str] = "123456789") -> pl.DataFrame:
    """Return a run with one query per ranking."""
    rows = [(qid, docid, score) for qid, hits in zip(names, queries, strict=False) for docid, score in hits.items()]
    return runs.ranked(pl.DataFrame(rows, {"qid": pl.String, "docid": pl.String, "score": pl.Float32}, orient="row"))


def recipe(method: str, *weights: float, lists: int = 2, **settings: Any) -> Recipe:
    name = method_name(method)
    missing = settings.pop("missing", METHODS[name].missing)
    return Recipe(name, weights or (1.0,) * lists, missing, **settings)


def fused_run(tables: list[pl.DataFrame], how: Recipe, hits: int = 1000, depth: int | None = None) -> pl.DataFrame:
    side_by_side = Lists.of(tables, depth)
    return pl.concat(lists.fuse(side_by_side.blocks(), side_by_side.qids, how, hits))


def fuse(*rankings: Ranking, how: Recipe) -> dict[str, float]:
    """Return documents and scores of one query, best first."""
    fused = fused_run([run_of(ranking) for ranking in rankings], how)
    assert fused["rank"].to_list() == list(range(1, len(fused) + 1))
    return dict(fused.select("docid", "score").iter_rows())


def normalized(ranking: Ranking, name: str) -> dict[str, float]:
    """Return the scores of one list after a normalization."""
    block = next(Lists.of([run_of(ranking)]).blocks())
    values = lists.values(block, Recipe("sum", (1.0,), "ignore", normalization=name))  # type: ignore[arg-type]
    return dict(values.select("docid", "value_0").iter_rows())


def approx(expected: Mapping[str, float]) -> Any:
    return pytest.approx(dict(expected), rel=1e-6, abs=1e-7)


# ------------------------------------------------------------------------------------------------------ golden values


def test_every_normalization_has_a_transform() -> None:
    assert set(get_args(Normalization)) <= set(methods.TRANSFORMS)


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
    # four candidates, three hits: an absent document has the mean of the one point left, (4 - 3 + 1) / 2
    "borda": {"y": (3 + 4) / 4, "x": (4 + 2) / 4, "w": (1 + 3) / 4, "z": (2 + 1) / 4},
    "isr": {"y": 2 * (1 / 4 + 1), "x": 2 * (1 + 1 / 9), "w": 1 / 4, "z": 1 / 9},
    "rbc": {"y": 0.2 * (0.8 + 1), "x": 0.2 * (1 + 0.64), "w": 0.2 * 0.8, "z": 0.2 * 0.64},
}


@pytest.mark.parametrize("method", GOLDEN)
def test_each_method_gives_its_golden_values_in_order(method: str) -> None:
    found = fuse(A, B, how=recipe(method))
    assert found == pytest.approx(GOLDEN[method], abs=2e-6)
    assert list(found) == list(GOLDEN[method])


def test_missing_documents_follow_the_rule() -> None:
    assert fuse(A, B, how=recipe("sum", missing="min")) == approx({"x": 11, "y": 11, "w": 5 + 2.5, "z": 5 + 1})
    assert fuse(A, B, how=recipe("sum", missing="drop")) == approx({"x": 11, "y": 11})
    assert fuse(A, B, how=recipe("product", missing="ignore")) == approx({"y": 24, "x": 10, "z": 5, "w": 2.5})
    below = {"y": 3, "w": -2.5}  # 0 would lift x and z above w, which this list did return
    assert fuse(A, below, how=recipe("sum", 0, 1)) == approx({"y": 3, "w": -2.5, "x": -2.5, "z": -2.5})
    assert fuse(A, below, how=recipe("sum", 0, 1, missing="ignore")) == approx({"y": 3, "x": 0, "z": 0, "w": -2.5})


def test_weights_count_in_every_method() -> None:
    for method in METHODS:
        changed = fuse(A, B, how=recipe(method, 0.2, 3, missing=METHODS[method].missing.replace("exact", "zero")))
        equal = fuse(A, B, how=recipe(method, 1, 1, missing=METHODS[method].missing.replace("exact", "zero")))
        assert changed != approx(equal), method
    assert fuse(A, B, how=recipe("rrf", 2, 0.5))["y"] == pytest.approx(2 / 62 + 0.5 / 61)
    assert fuse(A, B, how=recipe("rrf", 1, 1, rrf_k=10))["w"] == pytest.approx(1 / 12)


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
def test_a_list_of_two_of_one_and_of_equal_negative_hits(
    name: str, two: tuple[float, float], one: float, equal: Any
) -> None:
    assert normalized({"a": 4, "b": -2}, name) == approx({"a": two[0], "b": two[1]})
    assert normalized({"a": 4}, name) == approx({"a": one})
    first, second = equal if isinstance(equal, tuple) else (equal, equal)
    assert normalized({"a": -3, "b": -3}, name) == approx({"a": first, "b": second})


def test_a_list_of_zeros_does_not_divide_by_zero() -> None:
    for name in get_args(Normalization):
        assert all(math.isfinite(value) for value in normalized({"a": 0, "b": 0}, name).values())


# ------------------------------------------------------------------------------------------------------- edge cases


def test_queries_of_a_single_run_are_fused() -> None:
    first, second = run_of(A, {"q": 1}, names="ab"), run_of(B, {"r": 2}, names="ac")
    for method in METHODS:
        how = recipe(method, missing=METHODS[method].missing.replace("exact", "min"))
        fused = fused_run([first, second], how)
        assert fused["qid"].unique(maintain_order=True).to_list() == ["a", "b", "c"], method
        assert fused.filter(qid="b")["docid"].to_list() == ["q"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("missing", ["min", "zero", "ignore", "drop"])
def test_a_query_with_hits_in_one_list_keeps_their_order(method: str, missing: Missing) -> None:
    fused = fused_run(
        [run_of({"c": 3, "b": 2, "a": 1}, names="a"), run_of(B, names="b")], recipe(method, missing=missing)
    )
    assert fused.filter(qid="a")["docid"].to_list() == ["c", "b", "a"]


def test_a_single_hit_scores_more_than_none() -> None:
    assert fuse({"a": 7}, {"b": 3, "c": 2}, how=recipe("minmax"))["a"] == 0.5


def test_negative_scores_stay_bounded() -> None:
    assert fuse({"a": -1, "b": -4}, {"b": -2, "c": -8}, how=recipe("sum", normalization="max")) == approx(
        {"a": -1 / 4 - 8 / 8, "b": -4 / 4 - 2 / 8, "c": -4 / 4 - 8 / 8}
    )


@given(first=RANKINGS, second=RANKINGS, method=st.sampled_from(["minmax", "sum", "zscore", "dbsf", "borda", "rrf"]))
def test_a_missing_document_never_outranks_a_returned_one(first: Ranking, second: Ranking, method: str) -> None:
    found = fuse(first, second, how=recipe(method, 1, 0))
    worst = min(found[docid] for docid in first)
    assert all(found[docid] <= worst for docid in second.keys() - first.keys())


def test_the_linear_grid_covers_the_simplex() -> None:
    for lists_, parts in ((2, 20), (3, 10), (3, 20), (4, 10)):
        grid = tuning.linear_grid(lists_, 1 / parts)
        wanted = {w for w in np.ndindex(*[parts + 1] * lists_) if sum(w) == parts}
        assert {tuple(round(x * parts) for x in weights) for weights in grid} == wanted
        assert len(grid) == math.comb(parts + lists_ - 1, lists_ - 1)
        assert all(math.fsum(weights) == pytest.approx(1) for weights in grid)


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
    assert list(fuse(odd, {"10": 1.0, "9": 1.0}, how=recipe("combsum"))) == sorted([*odd, "10", "9"])


# ---------------------------------------------------------------------------------------------------------- invariants


@given(first=RANKINGS, second=RANKINGS)
def test_weights_1_0_give_the_first_list_then_the_rest(first: Ranking, second: Ranking) -> None:
    order = run_of(first)["docid"].to_list()
    assert list(fuse(first, second, how=recipe("rrf", 1, 0)))[: len(order)] == order
    found = fuse(first, second, how=recipe("minmax", 1, 0))
    assert [found[docid] for docid in order] == sorted((found[docid] for docid in order), reverse=True)


@given(ranking=RANKINGS, method=st.sampled_from([name for name in METHODS if name != "product"]))
def test_a_run_fused_with_itself_keeps_its_order(ranking: Ranking, method: str) -> None:
    assert list(fuse(ranking, ranking, how=recipe(method))) == pytest.approx(run_of(ranking)["docid"].to_list())


@given(rankings=st.lists(RANKINGS, min_size=2, max_size=4), weights=st.lists(st.floats(0.1, 9), min_size=4, max_size=4))
def test_minmax_stays_between_0_and_1(rankings: list[Ranking], weights: list[float]) -> None:
    found = fuse(*rankings, how=recipe("minmax", *weights[: len(rankings)]))
    assert all(0 <= value <= 1 + 1e-6 for value in found.values())


@given(first=RANKINGS, second=RANKINGS, method=st.sampled_from(list(METHODS)), seed=st.integers(0, 99))
def test_neither_the_order_of_queries_nor_that_of_runs_matters(
    first: Ranking, second: Ranking, method: str, seed: int
) -> None:
    how = recipe(method, missing=METHODS[method].missing.replace("exact", "zero"))
    together = fused_run([run_of(first, second, names="ab"), run_of(second, first, names="ab")], how)
    apart = fused_run([run_of(second, first, names="ba"), run_of(first, second, names="ba")], how)
    key = ["qid", "docid"]
    assert together.sort(key)["score"].to_list() == pytest.approx(apart.sort(key)["score"].to_list(), abs=1e-5)
    swapped = fused_run([run_of(second, first, names="ab"), run_of(first, second, names="ab")], how)
    assert together.sort(key)["score"].to_list() == pytest.approx(swapped.sort(key)["score"].to_list(), abs=1e-5)


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

    how = recipe(method, missing="exact")
    blocks = lists.complete(side_by_side.blocks(), side_by_side.qids, [scorer(0), scorer(1)])
    found = pl.concat(lists.fuse(blocks, side_by_side.qids, how, 1000))
    candidates = first.keys() | second.keys()
    whole = [run_of({docid: scores[docid] for docid in candidates}) for scores in truth]
    wanted = fused_run(whole, how)
    assert found["docid"].to_list() == wanted["docid"].to_list()
    assert found["score"].to_list() == pytest.approx(wanted["score"].to_list(), abs=1e-5)


def hash_of(docid: str, number: int) -> int:
    return (ord(docid) * 7919 + number * 104729) % 23 - 5


# -------------------------------------------------------------------------------------------------------------- tuning


def tuned(
    tables: list[pl.DataFrame], qrels: pl.DataFrame, how: WeightTuning, measure: str = "MRR@10", method: str = "minmax"
) -> tuning.Tuned:
    side_by_side = Lists.of(tables)
    return tuning.tune(
        side_by_side.blocks(),
        side_by_side.qids,
        qrels,
        recipe(method, lists=len(tables), missing="min"),
        1000,
        lambda judged: evaluate_positions(judged, [measure])["value"].to_numpy(),
        how,
    )


def noisy_runs(
    queries: int = 40, seed: int = 3, noise: tuple[float, ...] = (0.3, 0.1)
) -> tuple[list[pl.DataFrame], pl.DataFrame]:
    """Return runs with noisy relevance scores and qrels; no run returns some of the relevant documents."""
    rng = np.random.default_rng(seed)
    tables, grades = [], {f"q{q}": {f"d{d}": int(rng.random() < 0.1) for d in range(30)} for q in range(queries)}
    for sigma in noise:
        rows = [
            (qid, docid, float(grade + rng.normal(0, sigma * 3)))
            for qid, judged in grades.items()
            for docid, grade in judged.items()
            if rng.random() < 0.7
        ]
        frame = pl.DataFrame(rows, {"qid": pl.String, "docid": pl.String, "score": pl.Float32}, orient="row")
        tables.append(runs.ranked(frame))
    rows = [(qid, docid, grade) for qid, judged in grades.items() for docid, grade in judged.items()]
    rows.append(("unanswered", "d1", 1))
    schema = {"qid": pl.String, "docid": pl.String, "relevance": pl.Int32}
    return tables, pl.DataFrame(rows, schema, orient="row")


@pytest.mark.parametrize("measure", ["MRR@10", "nDCG@10", "R@5", "MAP"])
def test_tuning_scores_equal_the_evaluation_of_the_fused_run(measure: str) -> None:
    tables, qrels = noisy_runs()
    found = tuned(tables, qrels, WeightTuning(step=0.25), measure)
    for weights, score in found.trials:
        run = fused_run(tables, recipe("minmax", *weights, missing="min"))
        assert evaluate_run(run, qrels, [measure])["value"].mean() == pytest.approx(score, abs=1e-12)
    assert found.score == max(score for _, score in found.trials)
    assert len(found.trials) == 5


def test_the_better_run_gets_the_larger_weight_and_the_held_out_score_is_not_higher() -> None:
    tables, qrels = noisy_runs(queries=150, noise=(0.4, 0.15))
    found = tuned(tables, qrels, WeightTuning())
    assert found.weights[1] > found.weights[0]
    assert found.held_out is not None
    assert found.held_out <= found.score + 1e-12
    assert all(low <= weight <= high for weight, (low, high) in zip(found.weights, found.flat, strict=True))


def test_a_log_grid_grows_at_its_end_points() -> None:
    first = run_of({"r": 5.0, "a": 1.0}, {"r": 2.0, "a": 1.0})
    second = run_of({"a": 90000.0, "r": 1.0}, {"a": 800.0, "r": 2.0})
    qrels = pl.DataFrame({"qid": ["1", "2"], "docid": ["r", "r"], "relevance": pl.Series([1, 1], dtype=pl.Int32)})
    found = tuned([first, second], qrels, WeightTuning(grid="log"), method="sum")
    assert found.weights == (50_000.0, 1.0)  # 5w + 1 > w + 90,000
    assert found.score == 1
    assert len(tuning.log_grid(2, -3, 3)) == 19


def test_ties_choose_the_weights_closest_to_equal_then_the_smaller() -> None:
    tried = [(0.0, 1.0), (0.25, 0.75), (0.75, 0.25), (1.0, 0.0)]
    assert tuning.best(tried, np.ones((4, 3))) == (0.25, 0.75)
    assert tuning.best(tried, np.array([[0.0, 0], [0, 0], [0, 0], [0, 1]])) == (1.0, 0.0)


def test_held_out_scores_use_weights_of_the_other_folds() -> None:
    tried = [(0.4, 0.6), (0.6, 0.4)]
    table = np.array([[1.0, 0, 0, 0], [0, 1, 1, 1]])  # without the first query, the first weights never win
    assert tuning.held_out(tried, table, WeightTuning(folds=4)) == pytest.approx(3 / 4)
    assert tuning.held_out(tried, table[:, :1], WeightTuning()) is None


@pytest.mark.parametrize(("runs_", "step"), [(2, 0.3), (2, 0), (2, -1), (6, 0.05)])
def test_a_bad_step_is_refused(runs_: int, step: float) -> None:
    with pytest.raises(InputError, match="step"):
        tuning.linear_grid(runs_, step)


# ------------------------------------------------------------------------------------------------------- names, errors


def test_names_of_ranx_are_accepted() -> None:
    assert [method_name(name) for name in ("wsum", "mnz", "bordafuse", "w_bordafuse", "RRF")] == [
        "weighted-sum", "combmnz", "borda", "borda", "rrf",
    ]  # fmt: skip
    with pytest.raises(InputError, match="did you mean rrf"):
        method_name("rff")


def test_bad_weights_and_settings_are_refused() -> None:
    for weights in ((1.0, -1.0), (0.0, 0.0), (1.0, math.nan)):
        with pytest.raises(InputError, match="--weights"):
            recipe("minmax", *weights)
    with pytest.raises(InputError, match="--normalize"):
        recipe("rrf", normalization="minmax")


# ---------------------------------------------------------------------------------------------------------------- ranx

CASES: list[tuple[str, str | None, dict[str, Any] | None, Recipe]] = [
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
    for wanted, (method, norm, _, how) in zip(recorded["fused"], CASES, strict=True):
        fused = fused_run(tables, how)
        found = {qid: dict(hits.select("docid", "score").iter_rows()) for (qid,), hits in fused.group_by("qid")}
        for qid, scores in wanted.items():
            assert found[qid] == pytest.approx(scores, rel=1e-5, abs=1e-6), (method, norm)


# --------------------------------------------------------------------------------------------------------- extension


def test_a_new_method_is_one_entry_of_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line, the stage and its manifest accept the method without another change."""
    from command import hybrid

    from hybrid_cli import artifacts
    from hybrid_cli.stages.fuse import fuse as fuse_stage

    def first_list(values: Sequence[pl.Expr], weights: Sequence[float], present: Sequence[pl.Expr]) -> pl.Expr:
        return values[0]

    monkeypatch.setitem(METHODS, "toy", methods.Method("minmax", first_list, "zero"))
    paths = []
    for name, ranking in (("a", A), ("b", B)):
        lines = run_of(ranking).select("qid", pl.lit("Q0"), "docid", "rank", "score", pl.lit("x").alias("tag"))
        lines.write_csv(tmp_path / f"{name}.trec", include_header=False, separator=" ")
        paths.append(tmp_path / f"{name}.trec")
    output = fuse_stage(paths, output=tmp_path / "toy.parquet", method="toy")
    assert dict(runs.read_run(output).select("docid", "score").iter_rows()) == approx(
        {"x": 1, "y": 3 / 5, "z": 0, "w": 0}
    )
    assert artifacts.read_manifest(output).options["method"] == "toy"
    assert hybrid("fuse", *paths, "--output", tmp_path / "typed.parquet", "--method", "toy").code == 0
    assert "toy" in hybrid("fuse", "--help").out
