"""Evidence that holds at every look: false decisions, bounds, and what `judge` and `fuse --tune` print."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from hybrid_cli.evaluation.sequential import Evidence, log_capital

DECIDES = math.log(40)
DIFFERENCES = some.lists(some.floats(-1, 1), min_size=2, max_size=40).map(np.array)


def first_decision(differences: np.ndarray) -> int | None:
    """Return the first look at which the capital for either sign decides."""
    for look in range(1, len(differences) + 1):
        if max(log_capital(differences[:look]), log_capital(-differences[:look])) >= DECIDES:
            return look
    return None


@pytest.fixture(scope="module")
def sizes() -> np.ndarray:
    """Sizes of the differences of a hybrid and BM25: many ties, and a long tail."""
    random = np.random.default_rng(1)
    return np.clip(np.where(random.random(150) < 0.4, 0, random.gamma(1.0, 0.2, 150)), 0, 1)


def test_looks_at_equal_systems_rarely_decide(sizes: np.ndarray) -> None:
    """1,000 repetitions with 150 looks each: at most 5% false decisions."""
    random = np.random.default_rng(2)
    draws = sizes[random.integers(0, len(sizes), (1000, 150))] * random.choice([-1, 1], (1000, 150))
    assert np.mean([first_decision(each) is not None for each in draws]) < 0.05


def test_a_true_difference_is_decided(sizes: np.ndarray) -> None:
    random = np.random.default_rng(3)
    draws = sizes[random.integers(0, len(sizes), (100, 150))] * random.choice([-1, 1], (100, 150), p=[0.2, 0.8])
    looks = [first_decision(each) for each in draws]
    assert np.mean([look is not None for look in looks]) > 0.7


@given(DIFFERENCES)
def test_the_interval_contains_the_mean_and_its_sign_decides(differences: np.ndarray) -> None:
    evidence = Evidence.of("bm25", differences)
    assert evidence.low <= differences.mean() + 1e-6
    assert evidence.high >= differences.mean() - 1e-6
    assert (evidence.outcome == "better") == (log_capital(differences) >= DECIDES)
    assert (evidence.outcome == "worse") == (log_capital(-differences) >= DECIDES)
    other = Evidence.of("bm25", -differences)
    assert (other.low, other.high) == pytest.approx((-evidence.high, -evidence.low), abs=1e-6)
    assert Evidence.stored(evidence.content()) == evidence


def test_the_capital_is_the_mean_of_constant_bets() -> None:
    """By hand, for two differences and a mean of 0."""
    bets = np.geomspace(0.03, 0.9, 10)
    expected = np.mean((1 + 0.5 * bets) * (1 - 0.25 * bets))
    assert log_capital(np.array([0.5, -0.25])) == pytest.approx(math.log(expected))


def test_further_queries_decide_when_differences_stay_as_they_are() -> None:
    differences = np.tile([0.3, 0.0, -0.1, 0.2], 5)
    evidence = Evidence.of("bm25", differences)
    assert evidence.more is not None
    assert first_decision(np.tile(differences, 6)) == pytest.approx(20 + evidence.more, abs=4)


@pytest.mark.parametrize("differences", [[], [0.4], [0.0, 0.0]])
def test_too_little_is_no_evidence(differences: list[float]) -> None:
    evidence = Evidence.of("bm25", np.array(differences))
    assert (evidence.probability, evidence.outcome) == (None, "undecided")
