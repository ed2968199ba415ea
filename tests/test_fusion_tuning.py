"""Tuning of fusion weights: grids, scores, ties and held-out folds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from fused_rankings import fused_run, recipe, run_of

from hybrid_cli import runs
from hybrid_cli.evaluation.measures import evaluate_positions, evaluate_run
from hybrid_cli.fusion import tuning
from hybrid_cli.fusion.lists import Lists
from hybrid_cli.fusion.selection import Choice, Trials, Values, select
from hybrid_cli.settings import Fuse
from hybrid_cli.stages.fuse import families_to_try


def test_the_linear_grid_covers_the_simplex() -> None:
    for lists_, parts in ((2, 20), (3, 10), (3, 20), (4, 10)):
        grid = tuning.linear_grid(lists_, 1 / parts)
        expected = {w for w in np.ndindex(*[parts + 1] * lists_) if sum(w) == parts}
        assert {tuple(round(x * parts) for x in weights) for weights in grid} == expected
        assert len(grid) == math.comb(parts + lists_ - 1, lists_ - 1)
        assert all(math.fsum(weights) == pytest.approx(1) for weights in grid)


def tabulated(
    tables: list[pl.DataFrame], qrels: pl.DataFrame, measure: str = "MRR@10", method: str = "minmax", **how: Any
) -> tuple[list[Choice], Values]:
    side_by_side = Lists.of(tables)
    family = tuning.MethodGrid(recipe(method, lists=len(tables), missing="min"), **{"grid": "linear", **how})
    return tuning.tabulate(
        family,
        side_by_side.blocks,
        side_by_side.qids,
        qrels,
        1000,
        lambda judged: evaluate_positions(judged, [measure])["value"].to_numpy(),
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
    choices, values = tabulated(tables, qrels, measure, step=0.25)
    assert values.shape == (5, 41)
    for choice, row in zip(choices, values, strict=True):
        run = fused_run(tables, recipe("minmax", *choice.weights, missing="min"))
        assert evaluate_run(run, qrels, [measure])["value"].to_numpy() == pytest.approx(row, abs=1e-12)


def test_the_better_run_gets_the_larger_weight_and_the_held_out_score_is_not_higher() -> None:
    table = Trials(*tabulated(*noisy_runs(queries=150, noise=(0.4, 0.15))))
    selected = select(table, folds=5, seed=42)
    chosen = table.choices[selected.row]
    assert chosen.weights[1] > chosen.weights[0]
    assert selected.held_out is not None
    assert selected.held_out.mean() <= table.values.mean(1).max() + 1e-12
    assert selected.row in selected.plateau.rows


def test_a_log_grid_grows_at_its_end_points_and_contains_the_single_runs() -> None:
    first = run_of({"r": 5.0, "a": 1.0}, {"r": 2.0, "a": 1.0})
    second = run_of({"a": 90000.0, "r": 1.0}, {"a": 800.0, "r": 2.0})
    qrels = pl.DataFrame({"qid": ["1", "2"], "docid": ["r", "r"], "relevance": pl.Series([1, 1], dtype=pl.Int32)})
    choices, values = tabulated([first, second], qrels, method="sum", grid="log")
    weights = [choice.weights for choice in choices]
    assert weights[0] == (1, 0)
    assert weights[-1] == (0, 1)
    assert weights[1:-1] == sorted(weights[1:-1], reverse=True)
    assert (100_000.0, 1.0) in weights
    best = [weight for weight, mean in zip(weights, values.mean(1), strict=True) if mean == 1]
    assert min(best[1:]) == (50_000.0, 1.0)  # 5w + 1 > w + 90,000
    assert len(tuning.log_grid(2, -3, 3)) == 19


def test_the_scaled_grid_is_the_linear_one_in_units_of_the_standard_deviations() -> None:
    assert tuning.scaled_grid([4.0, 0.1], 0.25) == {
        (0, 1): (0, 1),
        (0.0083333, 1): (0.25, 0.75),
        (0.025, 1): (0.5, 0.5),
        (0.075, 1): (0.75, 0.25),
        (1, 0): (1, 0),
    }
    tables, qrels = noisy_runs()
    choices, _ = tabulated(tables, qrels, method="sum", grid="scaled", step=0.25)
    first, second = (table.group_by("qid").agg(pl.col("score").std(ddof=0))["score"].to_numpy() for table in tables)
    (half,) = (choice.weights for choice in choices if choice.shares == (0.5, 0.5))
    assert half[0] == pytest.approx(second.mean() / first.mean(), rel=0.2)  # without the values of missing documents
    assert [choice.shares[0] for choice in choices] == [1, 0.75, 0.5, 0.25, 0]
    deviations = [1.0, 2.0, 5.0]
    three = tuning.scaled_grid(deviations, 0.1)
    assert len(three) == 66
    assert len(tuning.scaled_grid([4.0, 0.1], 0.001)) == 1001
    for weights, shares in three.items():
        spread = np.multiply(weights, deviations)
        assert spread / spread.sum() == pytest.approx(shares, abs=0.01)


@pytest.mark.parametrize("scale", [1e-3, 40.0])
def test_the_scale_of_a_runs_scores_does_not_change_the_tuned_sum(scale: float) -> None:
    """The middle of a plateau of the log grid depends on how many of its weights give the ranking of one run."""
    tables, qrels = noisy_runs(queries=30, noise=(0.4, 0.2))
    other = [tables[0].with_columns(pl.col("score") * scale), tables[1]]
    found = [Trials(*tabulated(each, qrels, method="sum", grid="scaled")) for each in (tables, other)]
    first, second = (select(table, folds=5, seed=42) for table in found)
    assert found[0].choices[first.row].shares == found[1].choices[second.row].shares
    assert found[0].values == pytest.approx(found[1].values)


@pytest.mark.parametrize(
    ("options", "methods"),
    [
        ({}, ["minmax", "zscore", "rrf 60", "rrf 10"]),
        ({"index": ["a", "b"]}, ["minmax", "zscore", "rrf 60", "rrf 10", "weighted-sum"]),
        ({"method": "zmuv"}, ["zscore"]),
        ({"methods": ["rrf", "min-max"], "rrf_k": 20}, ["rrf 20", "minmax"]),
    ],
)
def test_the_methods_that_tuning_tries(options: dict[str, Any], methods: list[str]) -> None:
    families = families_to_try(Fuse(["a", "b"], output=Path("w.json"), tune=True, **options), 2)
    names = [
        each.recipe.method + (f" {each.recipe.rrf_k:g}" if each.recipe.method == "rrf" else "") for each in families
    ]
    assert names == methods
    assert {each.grid for each in families if each.recipe.method != "weighted-sum"} <= {"linear"}
    assert all(each.grid == "scaled" for each in families if each.recipe.method == "weighted-sum")
