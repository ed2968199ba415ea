"""Tuning of fusion weights: grids, held-out folds, the plateau of the best choices, the prior."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import raises
from fused_rankings import fused_run, recipe, run_of

from hybrid_cli import runs
from hybrid_cli.commands import Fuse
from hybrid_cli.evaluation.measures import evaluate_positions, evaluate_run
from hybrid_cli.fusion import tuning
from hybrid_cli.fusion.lists import Lists
from hybrid_cli.fusion.prior import FILE, MEASURES, prior_of, shrunk
from hybrid_cli.fusion.selection import Choice, Gains, Trials, Values, interval, row_of, select
from hybrid_cli.fusion.tuning import WEIGHTS
from hybrid_cli.fusion.weights import chosen_weights
from hybrid_cli.reporting.verdict import Verdict
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
    choices, (values,) = tuning.tabulate(
        family,
        list(side_by_side.blocks()),
        side_by_side.qids,
        [qrels],
        1000,
        lambda judged: evaluate_positions(judged, [measure])["value"].to_numpy(),
    )
    return choices, values


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
    selected = select([table], folds=5, seed=42)
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
    tables, qrels = noisy_runs(queries=30, noise=(0.4, 0.2))
    other = [tables[0].with_columns(pl.col("score") * scale), tables[1]]
    found = [Trials(*tabulated(each, qrels, method="sum", grid="scaled")) for each in (tables, other)]
    first, second = (table.choices[select([table], folds=5, seed=42).row] for table in found)
    assert first.shares == second.shares
    assert found[0].values == pytest.approx(found[1].values)


def test_weights_may_name_the_runs_in_any_order() -> None:
    fusion = recipe("minmax")
    assert chosen_weights("dense=0.7,bm25=.3", fusion, ["bm25", "dense"]).weights == (0.3, 0.7)
    assert chosen_weights("k1=0.9=2,x=1", fusion, ["k1=0.9", "x"]).weights == (2.0, 1.0)
    for text, code in {
        "bm25=0.3,dens=0.7": "unknown-choice", "bm25=1": "missing-value", "bm25=1,bm25=2,dense=1": "repeated-value",
        "bm25=one,dense=1": "not-a-number", "bm25=nan,dense=1": "out-of-range", "bm25=1e999,dense=1": "out-of-range",
    }.items():  # fmt: skip # several texts per line
        with raises(code, option="weights"):
            chosen_weights(text, fusion, ["bm25", "dense"])


@pytest.mark.parametrize(
    ("options", "methods"),
    [
        ({}, ["minmax"]),
        ({"index": ["a", "b"]}, ["weighted-sum"]),
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


GRID = [round(step / 10, 1) for step in range(11)]


def choices(method: str = "minmax") -> list[Choice]:
    return [Choice(method, (round(1 - weight, 1), weight)) for weight in GRID]


def hill(queries: int, top: float = 0.6, width: float = 1.0, noise: float = 0.1, seed: int = 0) -> np.ndarray:
    """Return values whose mean is highest at the weight `top`, with noise that varies little between weights."""
    rng = np.random.default_rng(seed)
    mean = 0.6 - width * (np.array(GRID) - top) ** 2
    steps = rng.normal(0, noise, (len(GRID), queries)).cumsum(0) / 3
    return np.asarray(np.clip(mean[:, None] + rng.normal(0, 0.2, queries) + steps, 0, 1))


def test_the_plateau_has_all_choices_within_one_standard_error() -> None:
    values = np.array([[0.0, 0, 0, 0], [0.5, 0.5, 0.4, 0.6], [1, 0.2, 0.4, 0.6], [0.2, 0.2, 0.3, 0.1]])
    table = Trials([Choice("minmax", (1 - w, w)) for w in (0.0, 0.3, 0.6, 1.0)], values)
    gap, error = table.gaps(2)
    assert gap == pytest.approx([0.55, 0.05, 0, 0.35])
    for row in range(4):
        assert error[row] == pytest.approx((values[2] - values[row]).std(ddof=1) / 2)
    found = table.plateau()
    assert (found.best, found.rows) == (2, [1, 2])
    assert found.chosen == 2  # of two middle choices, the one with the higher mean
    gap = np.repeat([[0.5], [0.1], [0.5], [0.5], [0.5]], 6, axis=1)
    ended = Trials([Choice("minmax", (1 - w, w)) for w in (0.0, 0.25, 0.5, 0.75, 1.0)], gap).plateau()
    assert (ended.rows, ended.chosen) == ([2, 3, 4], 3)
    three = [(a / 4, b / 4, (4 - a - b) / 4) for a in range(5) for b in range(5 - a)]
    means = np.array([[0.5 if min(weights) > 0 else 0.1] for weights in three])
    table = Trials([Choice("minmax", weights) for weights in three], np.repeat(means, 6, axis=1))
    assert len(table.plateau().rows) == 3
    assert sorted(table.choices[table.plateau().chosen].weights) == [0.25, 0.25, 0.5]  # the center


def test_the_middle_of_a_plateau_generalizes_better_than_its_best_choice() -> None:
    population, rng, found = hill(4000, width=0.3, noise=0.4), np.random.default_rng(1), []
    for _ in range(100):
        plateau = Trials(choices(), population[:, rng.choice(4000, 20, replace=False)]).plateau()
        found.append(population.mean(1)[[plateau.chosen, plateau.best]])
    middle, argmax = np.mean(found, axis=0)
    assert middle > argmax
    best = Trials(choices(), hill(300, top=1.0))  # the second run alone is an ordinary choice
    assert best.choices[select([best], folds=5, seed=1).row].weights[1] >= 0.9


def test_another_method_than_the_first_must_be_better_on_held_out_queries() -> None:
    first, noise = hill(200), np.random.default_rng(0).normal(0, 0.1, 200)
    for shift, chosen in ((-0.1, "zscore"), (0.001, "zscore"), (0.1, "minmax")):
        tables = [Trials(choices("zscore"), first), Trials(choices(), first + shift + noise)]
        selected = select(tables, folds=5, seed=1)
        assert selected.table.choices[selected.row].method == chosen
        assert {selected.table.choices[row].method for row in selected.plateau.rows} == {chosen}
    few = [Trials(table.choices, table.values[:, :9]) for table in tables]
    assert select(few, folds=5, seed=1).table.choices[0].method == "zscore"
    assert Choice("rrf", (1, 1), 10.0).family != Choice("rrf", (1, 1), 60.0).family


def test_the_untuned_choice_is_kept_unless_held_out_values_are_higher() -> None:
    """Noise that every fold fits anew is no reason for other weights."""
    equal = GRID.index(0.5)
    noise = np.random.default_rng(3).normal(0, 0.2, (len(GRID), 12))
    table = Trials(choices(), np.clip(0.5 + noise, 0, 1), equal)
    selected = select([table], folds=5, seed=1)
    assert selected.held_out is not None
    assert selected.keeps_untuned == (table.values[equal].mean() >= selected.held_out.mean())
    clear = select([Trials(choices(), hill(200, top=0.9), equal)], folds=5, seed=1)
    assert not clear.keeps_untuned
    worse = select([Trials(choices(), hill(200, top=0.5, width=3.0), equal)], folds=5, seed=1)
    assert (worse.keeps_untuned, worse.row) == (True, equal)
    few = select([Trials(choices(), hill(9, top=0.9, noise=0.001), equal)], folds=5, seed=1)
    assert (few.keeps_untuned, few.row) == (True, equal)
    exact = [Choice("weighted-sum", (1.0, weight), shares=(1 - weight, weight)) for weight in (0.5, 0.7, 0.8)]
    assert [row_of(exact, shares) for shares in ((0.3, 0.7), (0.7, 0.3), (1 / 3,) * 3, ())] == [1, None, None, None]


def prior(spread: float = 0.01, noise: float = 0.1) -> Gains:
    """Return gains that are expected to be highest at the weight .3, next to the untuned .5."""
    distance = np.array(GRID) - 0.5
    near = np.exp(-(((distance[:, None] - distance) / 0.3) ** 2) / 2)
    covariance = spread * near * np.abs(np.multiply.outer(distance, distance))
    return Gains(-0.04 * distance - 0.1 * distance**2, covariance, noise * np.diag(np.abs(distance)))


def test_few_queries_shrink_towards_the_prior_and_many_do_not() -> None:
    equal, values = GRID.index(0.5), hill(1000, top=0.8, noise=0.01)

    def chosen(queries: int, gains: Gains) -> float:
        table = Trials(choices(), values[:, :queries], equal, gains)
        return table.choices[table.plateau().chosen].weights[1]

    assert chosen(9, prior()) == 0.5  # fewer than ten say nothing
    assert chosen(10, prior(spread=1e-9)) == chosen(1000, prior(spread=1e-9)) == 0.3
    few, many = (chosen(queries, prior(spread=0.1, noise=100)) for queries in (10, 1000))
    assert 0.3 <= few <= 0.5 < 0.7 <= many
    assert chosen(1000, prior(spread=1)) == pytest.approx(0.8, abs=0.11)


def test_the_posterior_is_that_of_normal_regression() -> None:
    """A new observation of a normal vector, by the textbook formula with matrix inverses."""
    before = replace(prior(), noise=prior().noise + 1e-4 * np.eye(len(GRID)))
    gains = hill(30, top=0.8) - 0.5
    after = before.given(gains, np.ones(30))
    noise = (np.cov(gains) * 29 + 50 * before.noise) / 79
    precision = np.linalg.inv(before.covariance + 1e-9 * np.eye(len(GRID)))
    covariance = np.linalg.inv(precision + np.linalg.inv(noise / 30))
    mean = covariance @ (precision @ before.mean + np.linalg.inv(noise / 30) @ gains.mean(1))
    assert after.mean == pytest.approx(mean, abs=1e-4)
    assert after.covariance == pytest.approx(covariance, abs=1e-5)
    twice = before.given(gains[:, :15], np.full(15, 2.0))
    assert twice.mean == pytest.approx(before.given(np.repeat(gains[:, :15], 2, axis=1), np.ones(30)).mean)


def test_a_finer_grid_learns_the_same_gains() -> None:
    """Between the shares of the stored curves, all is interpolated, and noise there must not count as evidence."""
    fine, rng = np.arange(101) / 100, np.random.default_rng(1)
    values = np.clip(0.5 - 0.3 * (np.array(WEIGHTS)[:, None] - 0.6) ** 2 + rng.normal(0, 0.1, (21, 20)), 0, 1)
    between = np.stack([np.interp(fine, WEIGHTS, of_query) for of_query in values.T], axis=1)
    noisy = between + np.where(np.arange(101) % 5, 0.05, 0)[:, None] * rng.normal(0, 1, (101, 20))

    def gains(shares: Sequence[float], of_shares: np.ndarray) -> Gains:
        found = shrunk([Choice("minmax", (1 - w, w)) for w in shares], of_shares, (0.5, 0.5), 1, "nDCG@10").gains()
        assert found is not None
        return found

    coarse = gains(WEIGHTS, values)
    for table in (between, noisy):
        found = gains(list(fine), table)
        assert found.mean[::5] == pytest.approx(coarse.mean)
        assert found.mean == pytest.approx(np.interp(fine, WEIGHTS, coarse.mean), abs=1e-3)
        assert found.worth(20, 50) == pytest.approx(coarse.worth(20, 10), rel=0.05)


def test_folds_of_few_queries_are_tuned_as_all_of_them() -> None:
    """Ten judged queries choose a weight, so its held-out values are those of weights that eight of them choose."""
    table = Trials(choices(), hill(10, top=1.0, width=3.0, noise=0.01), GRID.index(0.5), prior(spread=1))
    selected = select([table], folds=5, seed=1)
    assert selected.held_out is not None
    assert not selected.keeps_untuned
    assert selected.held_out.mean() > table.values[GRID.index(0.5)].mean()


def test_the_noise_of_the_prior_shrinks_with_that_of_corrected_values() -> None:
    people = hill(40, top=0.8)
    flatter = people.mean(1, keepdims=True) + (people - people.mean(1, keepdims=True)) / 2
    assert prior().of_values(people, flatter).noise == pytest.approx(prior().noise / 4)
    assert prior().of_values(flatter, people).noise == pytest.approx(prior().noise)  # never grows
    assert prior().of_values(np.full((11, 5), 0.5), np.full((11, 5), 0.5)).noise == pytest.approx(prior().noise)


def test_what_more_queries_may_add_falls_with_the_queries_judged() -> None:
    before, gains = prior(spread=0.1, noise=1), hill(500, top=0.8) - 0.5
    after = [before.given(gains[:, :queries], np.ones(queries)) for queries in (20, 100, 500)]
    added = [each.worth(20, int(each.mean.argmax())) for each in after]
    assert before.worth(20, 3) > added[0] > added[1] >= added[2] >= 0
    assert before.worth(5, 3) < before.worth(20, 3) < before.worth(10**6, 3)


def test_one_query_cannot_distinguish_weights_without_a_prior() -> None:
    table = Trials(choices(), hill(1))
    assert table.plateau().rows == list(range(11))
    assert table.choices[table.plateau().chosen].weights == (0.5, 0.5)
    selected = select([table], folds=5, seed=1)
    assert selected.held_out is None


def test_held_out_scores_never_see_their_query() -> None:
    """The only query that prefers the first weights is always scored with the weights of the other queries."""
    values = np.array([[1.0, 0, 0, 0, 0], [0, 1, 1, 1, 1], [0, 1, 1, 1, 1]])
    table = Trials([Choice("minmax", (1 - w, w)) for w in (0.0, 0.5, 1.0)], values)
    held_out = table.held_out(5, seed=1)
    assert held_out is not None
    assert held_out[0] == 0


def test_a_gain_of_rounding_errors_is_no_gain() -> None:
    """The means of equal values differ by 5e-17, for every query; one query has no interval."""
    for single, hybrid, outcome in ((0.3, 0.1 + 0.2, "undecided"), (0.6, 0.4, "worse"), (0.4, 0.6, "better")):
        verdict = Verdict.of("nDCG@10", ("a", np.full(8, single)), ("b", np.full(8, hybrid)))
        assert verdict.interval is not None
        assert verdict.outcome == outcome
    one = Verdict.of("nDCG@10", ("a", np.zeros(1)), ("b", np.ones(1)))
    assert (one.interval, one.outcome) == (None, "undecided")


def test_the_interval_of_a_mean_is_that_of_students_t() -> None:
    half = 3.182446 * 0.0816497
    assert interval(np.array([0.3, 0.7, 0.5, 0.5])) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-5)
    assert interval(np.array([0.0, 1.0])) == (-1.0, 1.0)
    assert interval(np.array([1.0])) is None


def test_the_stored_curves_are_complete_and_have_a_provenance() -> None:
    stored = json.loads(FILE.read_text("utf-8"))
    assert {"made_by", "version", "systems", "encoder"} <= stored.keys()
    assert stored["shares"] == list(WEIGHTS)
    for each in stored["collections"]:
        assert each["queries"] > 0
        assert set(each["curves"]) == set(each["noise"]) == set(MEASURES)
        for curves in each["curves"].values():
            assert set(curves) == set(stored["families"])
            assert {len(curve) for curve in curves.values()} == {len(stored["shares"])}
            ends = np.array([(curve[0], curve[-1]) for curve in curves.values()])
            assert np.ptp(ends, axis=0) == pytest.approx(0, abs=1e-4)  # each run alone, whatever the method


def test_the_prior_is_that_of_the_collections_which_are_not_left_out() -> None:
    """Mean and covariance of the gains, recomputed here from the file."""
    stored = json.loads(FILE.read_text("utf-8"))["collections"]
    names, base = [each["name"] for each in stored], WEIGHTS.index(0.7)
    distance = np.array(WEIGHTS) - 0.7
    for name in names:
        found = prior_of("weighted-sum", WEIGHTS, 0.7, "nDCG@10", leave_out=[name])
        assert found is not None
        curves = np.array([each["curves"]["nDCG@10"]["weighted-sum"] for each in stored if each["name"] != name])
        gains = curves - curves[:, [base]]
        assert found.mean == pytest.approx(gains.mean(0))
        more = found.covariance - np.cov(gains.T)
        assert np.diag(more) == pytest.approx(0.001 * distance**2)
        assert np.linalg.eigvalsh(found.noise).min() > -1e-6
        assert found.noise[base] == pytest.approx(0)
    assert prior_of("weighted-sum", WEIGHTS, 0.7, "nDCG@10", leave_out=names[1:]) is None
    assert prior_of("zscore", WEIGHTS, 0.7, "nDCG@10") is None
    recall, ndcg, mrr = (prior_of("minmax", WEIGHTS, 0.5, measure) for measure in ("R@100", "nDCG@10", "MRR@10"))
    assert recall is not None
    assert ndcg is not None
    assert mrr is not None
    assert recall.mean == pytest.approx(ndcg.mean)  # other measures have those of nDCG
    assert recall.mean != pytest.approx(mrr.mean)


def test_values_are_interpolated_at_the_share_of_the_dense_run_in_either_order() -> None:
    grid = [Choice("weighted-sum", (1 - share, 0.01 * share), shares=(1 - share, share)) for share in (0.6, 0.7, 0.725)]
    swapped = [Choice("weighted-sum", choice.weights[::-1], shares=choice.shares[::-1]) for choice in grid]
    values = np.zeros((3, 12))
    first = shrunk(grid, values, (0.3, 0.7), 1, "nDCG@10").prior
    second = shrunk(swapped, values, (0.7, 0.3), 0, "nDCG@10").prior
    whole = prior_of("weighted-sum", WEIGHTS, 0.7, "nDCG@10")
    assert first is not None
    assert second is not None
    assert whole is not None
    assert first.mean == pytest.approx(second.mean)
    assert first.mean == pytest.approx([whole.mean[12], 0, (whole.mean[14] + whole.mean[15]) / 2])
    assert shrunk(grid, values, (0.5, 0.5), 1, "nDCG@10").prior is None  # the untuned choice is not in the grid
    assert shrunk(grid, values, (0.3, 0.7), None, "nDCG@10").prior is None
