"""Tuning with few judged queries, on measured values of seven collections, each left out of the prior (studies)."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hybrid_cli.fusion.prior import prior_of
from hybrid_cli.fusion.selection import Choice, Trials
from hybrid_cli.fusion.tuning import WEIGHTS

VALUES = Path(__file__).parents[1] / "studies/measured/few-labels.parquet"
FAMILY, UNTUNED, DRAWS = "weighted-sum", WEIGHTS.index(0.7), 200
CHOICES = [Choice(FAMILY, (1 - weight, weight)) for weight in WEIGHTS]


def tables(dense: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of a collection, and nDCG@10 of every weight of the exact sum on its queries."""
    measured = pl.read_parquet(VALUES).filter(split="test", dense=dense, family=FAMILY, measure="nDCG@10")
    for (name,), rows in measured.group_by("collection", maintain_order=True):
        yield str(name), np.array(rows["values"].to_list(), dtype=np.float64).T


def gain(name: str, values: np.ndarray, judged: int) -> float:
    """Return the mean gain over the default on the queries that were not judged."""
    prior = prior_of(FAMILY, WEIGHTS, WEIGHTS[UNTUNED], "nDCG@10", leave_out=[name])
    rng, gains = np.random.default_rng([42, judged]), []
    for _ in range(DRAWS):
        order = rng.permutation(values.shape[1])
        row = Trials(CHOICES, values[:, order[:judged]], UNTUNED, prior).plateau().chosen
        rest = values[:, order[judged:]].mean(1)
        gains.append(rest[row] - rest[UNTUNED])
    return float(np.mean(gains))


@pytest.mark.parametrize(("judged", "least"), [(5, 0.0), (10, 0.001), (20, 0.0025), (50, 0.005)])
def test_judged_queries_gain_on_average_and_lose_little_anywhere(judged: int, least: float) -> None:
    gains = {name: gain(name, values, judged) for name, values in tables("minilm") if values.shape[1] >= 2 * judged}
    assert len(gains) == (7 if judged <= 20 else 6)
    assert np.mean(list(gains.values())) >= least
    assert min(gains.values()) >= -0.005


@pytest.mark.parametrize("judged", [10, 20])
def test_the_prior_serves_other_encoders(judged: int) -> None:
    """A larger encoder and trained ones, with the curves of untrained MiniLM on other collections."""
    gains = [gain(name, values, judged) for dense in ("mpnet", "nll") for name, values in tables(dense)]
    assert len(gains) >= 5
    assert np.mean(gains) >= 0
    assert min(gains) >= -0.005


def test_what_more_queries_may_add_holds_for_nearly_all_draws() -> None:
    """The stated most that as many queries more may add, next to what they add."""
    below = []
    for name, values in tables("minilm"):
        prior = prior_of(FAMILY, WEIGHTS, WEIGHTS[UNTUNED], "nDCG@10", leave_out=[name])
        rng = np.random.default_rng(1)
        for _ in range(100):
            order = rng.permutation(values.shape[1])
            tables_of = [Trials(CHOICES, values[:, order[:count]], UNTUNED, prior) for count in (20, 40)]
            first, second = (table.plateau().chosen for table in tables_of)
            after, rest = tables_of[0].gains(), values[:, order[40:]].mean(1)
            assert after is not None
            below.append(rest[second] - rest[first] <= after.worth(20, first))
    assert np.mean(below) >= 0.9
