"""Tuning of fusion weights: grids, scores, ties and held-out folds."""

from __future__ import annotations

import math
import re

import numpy as np
import polars as pl
import pytest
from fused_rankings import fused_run, recipe, run_of

from hybrid_cli import runs
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.measures import evaluate_positions, evaluate_run
from hybrid_cli.fusion import tuning
from hybrid_cli.fusion.lists import Lists
from hybrid_cli.settings.retrieval import WeightTuning


def test_the_linear_grid_covers_the_simplex() -> None:
    for lists_, parts in ((2, 20), (3, 10), (3, 20), (4, 10)):
        grid = tuning.linear_grid(lists_, 1 / parts)
        expected = {w for w in np.ndindex(*[parts + 1] * lists_) if sum(w) == parts}
        assert {tuple(round(x * parts) for x in weights) for weights in grid} == expected
        assert len(grid) == math.comb(parts + lists_ - 1, lists_ - 1)
        assert all(math.fsum(weights) == pytest.approx(1) for weights in grid)


def tuned(
    tables: list[pl.DataFrame],
    qrels: pl.DataFrame,
    settings: WeightTuning,
    measure: str = "MRR@10",
    method: str = "minmax",
) -> tuning.Tuned:
    side_by_side = Lists.of(tables)
    return tuning.tune(
        side_by_side.blocks(),
        side_by_side.qids,
        qrels,
        recipe(method, lists=len(tables), missing="min"),
        1000,
        lambda judged: evaluate_positions(judged, [measure])["value"].to_numpy(),
        settings,
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


def test_weights_may_name_the_runs_in_any_order() -> None:
    names = ["bm25", "dense"]
    assert tuning.chosen_weights("dense=0.7,bm25=.3", recipe("minmax"), names).weights == (0.3, 0.7)
    odd = ["k1=0.9", "x"]
    assert tuning.chosen_weights("k1=0.9=2,x=1", recipe("minmax"), odd).weights == (2.0, 1.0)
    for text, words in {
        "bm25=0.3,dens=0.7": "--weights dens=0.7: no such run; did you mean dense? The runs are bm25, dense",
        "bm25=1": "--weights bm25=1: has no weight for dense",
        "bm25=1,bm25=2,dense=1": "bm25 is given twice",
        "bm25=one,dense=1": "needs numbers such as 0.5,1 or bm25=0.5",
        "bm25=nan,dense=1": "needs numbers >= 0",
        "bm25=1e999,dense=1": "needs numbers >= 0",
    }.items():
        with pytest.raises(InputError, match=re.escape(words)):
            tuning.chosen_weights(text, recipe("minmax"), names)
