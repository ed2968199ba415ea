"""Prediction-powered means: ppi-python's figures, limits, coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm, t

from hybrid_cli.evaluation.prediction_powered import CorrectedMean, power_tuned_weight, rectified
from hybrid_cli.fusion.selection import interval

# size of both groups, bias of the machine; mean, weight and ends of the normal 95% interval of ppi-python 0.2.3
PUBLISHED = [
    ((30, 300, 0.1), (0.5726498374432418, 0.7506194532171646, 0.4973121339034112, 0.6479875409830724)),
    ((25, 40, 0.4), (0.5953741442806482, 0.596874146874422, 0.5114253719679114, 0.679322916593385)),
    ((40, 500, 0.0), (0.528715522493487, 0.9119102894986565, 0.46436131173841894, 0.593069733248555)),
]
Sample = tuple[np.ndarray, np.ndarray, np.ndarray]


def sample(count: int, others: int, bias: float) -> Sample:
    """Return values by people and by a machine that is too kind by `bias`, and those of other queries."""
    number = np.arange(count + others)
    quality = (np.sin(number * 1.7) + 1) / 2
    people = np.round(np.clip(quality + 0.3 * np.sin(number * number * 0.9), 0, 1), 3)
    machine = np.round(np.clip(0.6 * quality + bias + 0.2 * np.sin(number * number * 1.3), 0, 1), 3)
    return people[:count], machine[:count], machine[count:]


@pytest.mark.parametrize(("sizes", "expected"), PUBLISHED)
def test_mean_and_weight_are_those_of_ppi_python(
    sizes: tuple[int, int, float], expected: tuple[float, float, float, float]
) -> None:
    people, machine, others = sample(*sizes)
    made = CorrectedMean.of(people, machine, others)
    assert (made.mean, made.weight) == pytest.approx(expected[:2])
    assert made.by_machine == pytest.approx(np.concatenate([machine, others]).mean())
    normal = (expected[3] - expected[2]) / 2 / norm.ppf(0.975)
    variances = (people - made.weight * machine).var() / len(people), made.weight**2 * others.var() / len(others)
    assert normal == pytest.approx(math.sqrt(sum(variances)))
    assert expected[3] - expected[2] < made.high - made.low < 1.2 * (expected[3] - expected[2])


def test_the_interval_by_hand() -> None:
    people, machine, others = np.array([0.0, 1, 1, 0, 1]), np.array([0.0, 1, 1, 0, 0]), np.array([1.0, 0, 1, 1])
    weight = power_tuned_weight(people, machine, others)
    assert weight == pytest.approx(0.16 / ((1 + 5 / 4) * (5 / 9 * 4 / 9 * 9 / 8)))
    made = CorrectedMean.of(people, machine, others, 0.9)
    assert made.mean == pytest.approx(0.6 + weight * (0.75 - 0.4))
    residuals = people - weight * machine
    own, rest = residuals.var(ddof=2) / 5, weight**2 * others.var(ddof=1) / 4
    freedom = (own + rest) ** 2 / (own**2 / 3 + rest**2 / 3)
    half = t.ppf(0.95, freedom) * math.sqrt(own + rest)
    third = ((residuals - residuals.mean()) ** 3).mean() / (4 * 3)
    third += weight**3 * ((others - 0.75) ** 3).mean() / 4**2
    shift = third / (own + rest) * (2 * t.ppf(0.95, freedom) ** 2 + 1) / 6
    assert shift < 0
    assert (made.low, made.high) == pytest.approx((made.mean - half + shift, made.mean + half))
    half = t.ppf(0.95, 4) * people.std(ddof=1) / math.sqrt(5)
    assert (made.people_low, made.people_high) == pytest.approx((0.6 - half, 0.6 + half))


@pytest.mark.parametrize("machine", [0.0, 0.5])
def test_a_machine_that_gives_all_queries_one_value_changes_nothing(machine: float) -> None:
    people = sample(30, 1, 0)[0]
    made = CorrectedMean.of(people, np.full(30, machine), np.full(200, machine))
    assert (made.mean, made.low, made.high) == (made.by_people, made.people_low, made.people_high)
    assert made.weight == 0


def test_a_machine_that_is_wrong_in_the_same_way_everywhere_is_corrected() -> None:
    people, machine, others = sample(200, 800, 0)
    biased = CorrectedMean.of(people, machine + 0.25, others + 0.25)
    right = CorrectedMean.of(people, machine, others)
    assert (biased.mean, biased.low, biased.high) == pytest.approx((right.mean, right.low, right.high))
    assert biased.by_machine == pytest.approx(right.by_machine + 0.25)


def test_intervals_cover_the_true_mean_and_are_narrower_than_those_of_people() -> None:
    random = np.random.default_rng(1)
    covered, ratios = [], []
    for _ in range(1000):
        quality = random.random(330)
        people = (random.random(330) < quality).astype(float)
        machine = np.clip(quality + random.normal(0.2, 0.1, 330), 0, 1)
        people = np.clip(quality + 0.2 * (people - 0.5), 0, 1)
        made = CorrectedMean.of(people[:30], machine[:30], machine[30:])
        covered.append(made.low <= 0.5 <= made.high)
        ratios.append((made.high - made.low) / (made.people_high - made.people_low))
    assert np.mean(covered) > 0.93
    assert np.mean(ratios) < 0.75


@pytest.mark.parametrize("others", [7, 30, 95])
def test_rectified_means_are_prediction_powered_with_one_weight_of_the_differences(others: int) -> None:
    random = np.random.default_rng(3)
    people, machine, rest = random.random((4, 30)), random.random((4, 30)), random.random((4, others))
    machine = (people + machine) / 2
    made, weight = rectified(people, machine, rest)
    assert made.mean(axis=1) == pytest.approx(people.mean(1) + weight * (rest.mean(1) - machine.mean(1)))
    h, m, o = (values - values.mean(axis=0) for values in (people, machine, rest))
    common = sum(np.cov(h[row], m[row], ddof=0)[0, 1] for row in range(4))
    spread = sum(np.concatenate([m[row], o[row]]).var(ddof=1) for row in range(4))
    assert weight == pytest.approx(common / ((1 + 30 / others) * spread))


def test_rectified_differences_have_the_standard_error_of_the_estimate() -> None:
    random, covered, widths = np.random.default_rng(4), [], []
    for _ in range(1000):
        people = np.clip(random.normal([[0.5], [0.55]], 0.25, (2, 230)), 0, 1)
        machine = np.clip(people + random.normal(0.1, 0.1, (2, 230)), 0, 1)
        made, _ = rectified(people[:, :30], machine[:, :30], machine[:, 30:])
        low, high = interval(made[1] - made[0]) or (0.0, 0.0)
        alone = interval(people[1, :30] - people[0, :30]) or (0.0, 0.0)
        covered.append(low <= 0.0475 <= high)  # of the clipped normal distributions
        widths.append((high - low) / (alone[1] - alone[0]))
    assert np.mean(covered) > 0.93
    assert np.mean(widths) < 0.65


def test_a_machine_without_differences_or_other_queries_rectifies_nothing() -> None:
    people = np.random.default_rng(5).random((3, 30))
    for machine, others in ((np.tile(people[:1], (3, 1)), np.zeros((3, 90))), (people, np.zeros((3, 0)))):
        made, weight = rectified(people, machine, others)
        assert weight == 0
        assert (made == people).all()
