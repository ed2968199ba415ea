"""Selection of a fusion: the plateau, its middle, single runs, held-out scores, the prior, and the power."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.fusion.selection import Choice, Trials, interval, queries_to_tell, select, worth_of_more
from hybrid_cli.fusion.weights import Tuned

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


def test_a_gap_ends_the_plateau_of_two_runs() -> None:
    values = np.repeat([[0.5], [0.1], [0.5], [0.5], [0.5]], 6, axis=1)
    table = Trials([Choice("minmax", (1 - w, w)) for w in (0.0, 0.25, 0.5, 0.75, 1.0)], values)
    assert table.plateau().rows == [2, 3, 4]
    assert table.plateau().chosen == 3


def test_the_middle_of_a_plateau_generalizes_better_than_its_best_choice() -> None:
    population = hill(4000, width=0.3, noise=0.4)
    means = population.mean(1)
    rng = np.random.default_rng(1)
    middle, argmax = [], []
    for _ in range(100):
        table = Trials(choices(), population[:, rng.choice(4000, 20, replace=False)])
        found = table.plateau()
        middle.append(means[found.chosen])
        argmax.append(means[found.best])
    assert np.mean(middle) > np.mean(argmax)


def test_the_method_is_chosen_with_the_weights() -> None:
    good, bad = hill(200), hill(200) - 0.1
    table = Trials([*choices("zscore"), *choices("minmax")], np.concatenate([bad, good]))
    selected = select(table, folds=5, seed=1)
    assert table.choices[selected.row].method == "minmax"
    assert {table.choices[row].method for row in selected.plateau.rows} == {"minmax"}
    assert Choice("rrf", (1, 1), 10.0).family != Choice("rrf", (1, 1), 60.0).family


def test_the_untuned_choice_is_kept_unless_held_out_values_are_higher() -> None:
    """Noise that every fold fits anew is no reason for other weights."""
    noise = np.random.default_rng(3).normal(0, 0.2, (len(GRID), 12))
    table = Trials(choices(), np.clip(0.5 + noise, 0, 1))
    selected = select(table, folds=5, seed=1)
    assert selected.held_out is not None
    assert selected.keeps_untuned == (table.values[GRID.index(0.5)].mean() >= selected.held_out.mean())
    clear = select(Trials(choices(), hill(200, top=0.9)), folds=5, seed=1)
    assert not clear.keeps_untuned
    worse = select(Trials(choices(), hill(200, top=0.5, width=3.0)), folds=5, seed=1)
    assert (worse.keeps_untuned, worse.row) == (True, GRID.index(0.5))
    exact = [Choice("weighted-sum", (1.0, weight), shares=(1 - weight, weight)) for weight in (0.5, 0.7, 0.8)]
    both = Trials([*choices(), *exact], np.full((len(GRID) + 3, 4), 0.5))
    assert both.untuned(dense=1) == len(GRID) + 1
    assert both.untuned() == both.untuned(dense=0) == GRID.index(0.5)


def test_a_prior_moves_the_choice_of_few_queries_and_not_of_many() -> None:
    prior = 0.5 - 0.5 * (np.array(GRID) - 0.2) ** 2
    few, many = hill(4, top=0.9, noise=0.01), hill(1000, top=0.9, noise=0.01)
    alone = Trials(choices(), few)
    shrunk = Trials(choices(), few, prior, 40)
    assert shrunk.choices[shrunk.plateau().best].weights[1] < alone.choices[alone.plateau().best].weights[1]
    assert shrunk.share_of_prior == pytest.approx(40 / 44)
    assert Trials(choices(), many, prior, 5).plateau() == Trials(choices(), many).plateau()


def test_one_query_cannot_distinguish_weights_without_a_prior() -> None:
    table = Trials(choices(), hill(1))
    assert table.plateau().rows == list(range(11))
    assert table.choices[table.plateau().chosen].weights == (0.5, 0.5)
    selected = select(table, folds=5, seed=1)
    assert selected.held_out is None
    prior = 0.5 - 0.5 * (np.array(GRID) - 0.2) ** 2
    shrunk = Trials(choices(), np.full((11, 1), 0.5), prior, 5)
    assert shrunk.choices[shrunk.plateau().chosen].weights == (0.8, 0.2)


def test_held_out_scores_never_see_their_query() -> None:
    """The only query that prefers the first weights is always scored with the weights of the other queries."""
    values = np.array([[1.0, 0, 0, 0, 0], [0, 1, 1, 1, 1], [0, 1, 1, 1, 1]])
    table = Trials([Choice("minmax", (1 - w, w)) for w in (0.0, 0.5, 1.0)], values)
    held_out = table.held_out(5, seed=1)
    assert held_out is not None
    assert held_out[0] == 0


def test_three_runs_choose_the_center_of_the_plateau() -> None:
    weights = [(a / 4, b / 4, (4 - a - b) / 4) for a in range(5) for b in range(5 - a)]
    means = np.array([0.5 if min(w) > 0 else 0.1 for w in weights])
    table = Trials([Choice("minmax", w) for w in weights], np.repeat(means[:, None], 6, axis=1))
    assert sorted(table.choices[table.plateau().chosen].weights) == [0.25, 0.25, 0.5]
    assert len(table.plateau().rows) == 3


def test_more_queries_are_needed_for_a_smaller_difference() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.3, 400)
    noise -= noise.mean()
    wide, narrow = queries_to_tell(noise + 0.1), queries_to_tell(noise + 0.01)
    assert wide == pytest.approx((2.8 * noise.std(ddof=1) / 0.1) ** 2, rel=0.05)
    assert narrow is not None
    assert narrow == pytest.approx((2.8 * noise.std(ddof=1) / 0.01) ** 2, rel=0.02)
    few = queries_to_tell(np.array([0.1, 0.2, 0.3]))  # an effect of 2 standard deviations
    assert few is not None
    powers = [1 - stats.nct.cdf(stats.t.ppf(0.975, n - 1), n - 1, 2 * math.sqrt(n)) for n in (few - 1, few)]
    assert powers[0] < 0.8 <= powers[1]
    assert queries_to_tell(np.zeros(5)) is None
    assert queries_to_tell(np.array([0.3])) is None


def test_the_interval_of_a_mean_is_that_of_students_t() -> None:
    found = interval(np.array([0.3, 0.7, 0.5, 0.5]))
    assert found == pytest.approx((0.5 - 3.182446 * 0.0816497, 0.5 + 3.182446 * 0.0816497), abs=1e-5)
    assert interval(np.array([0.0, 1.0]), least=0.0) == (0.0, 1.0), "no mean of a measure is outside of this range"
    assert interval(np.array([0.0, 1.0])) == (-1.0, 1.0)
    assert interval(np.array([1.0])) is None


def test_additional_queries_are_worth_less_if_there_are_many() -> None:
    few, many = (worth_of_more(Trials(choices(), hill(n, noise=0.5)), 10, 5, 1) for n in (12, 600))
    assert few is not None
    assert many is not None
    assert 0 <= many < few
    assert worth_of_more(Trials(choices(), hill(5)), 10, 5, 1) is None


def tuned(values: np.ndarray, alone: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the result of tuning for values of the choices [choices, queries] and of the runs alone [queries]."""
    table = Trials(choices(), values)
    selected = select(table, 5, 1)
    recipe = FusionRecipe("minmax", table.choices[selected.row].weights, "zero")
    qids = [str(number) for number in range(table.queries)]
    return {**Tuned(table, selected, recipe, alone, qids, "nDCG@10", 5, 1).content(), "no_prior": "-"}


def test_a_gain_of_rounding_errors_is_not_distinguishable_from_none() -> None:
    """The means of equal values differ by 5e-17, for every query."""
    found = tuned(np.full((len(GRID), 8), 0.1 + 0.2), {"a": np.full(8, 0.3), "b": np.zeros(8)})
    low, high = found["gain_interval"]
    assert low * high > 0  # 0 is outside
    assert not found["gain_distinguishable"]
