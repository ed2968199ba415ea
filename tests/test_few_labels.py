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
FAMILY, DRAWS = "weighted-sum", 200
UNTUNED = {FAMILY: WEIGHTS.index(0.7), "minmax": WEIGHTS.index(0.5)}


def tables(dense: str, family: str = FAMILY) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of a collection, and nDCG@10 of every weight of the fusion on its queries."""
    measured = pl.read_parquet(VALUES).filter(split="test", dense=dense, family=family, measure="nDCG@10")
    for (name,), rows in measured.group_by("collection", maintain_order=True):
        yield str(name), np.array(rows["values"].to_list(), dtype=np.float64).T


def trials(values: np.ndarray, name: str, family: str = FAMILY) -> Trials:
    """Return the values of some judged queries, with the curves of the other collections."""
    choices = [Choice(family, (1 - weight, weight)) for weight in WEIGHTS]
    row = UNTUNED[family]
    return Trials(choices, values, row, prior_of(family, WEIGHTS, WEIGHTS[row], "nDCG@10", leave_out=[name]))


def gain(name: str, values: np.ndarray, judged: int, family: str = FAMILY) -> float:
    """Return the mean gain over the default on the queries that were not judged."""
    rng, gains, untuned = np.random.default_rng([42, judged]), [], UNTUNED[family]
    for _ in range(DRAWS):
        order = rng.permutation(values.shape[1])
        row = trials(values[:, order[:judged]], name, family).plateau().chosen
        rest = values[:, order[judged:]].mean(1)
        gains.append(rest[row] - rest[untuned])
    return float(np.mean(gains))


LEAST = {FAMILY: {5: 0.0, 10: 0.001, 20: 0.0025, 50: 0.005}, "minmax": {5: 0.0, 10: 0.005, 20: 0.01, 50: 0.015}}


@pytest.mark.parametrize(("family", "judged"), [(family, judged) for family in LEAST for judged in LEAST[family]])
def test_judged_queries_gain_on_average_and_lose_little_anywhere(family: str, judged: int) -> None:
    values = {name: table for name, table in tables("minilm", family) if table.shape[1] >= 2 * judged}
    gains = [gain(name, table, judged, family) for name, table in values.items()]
    assert len(gains) == (7 if judged <= 20 else 6)
    assert np.mean(gains) >= LEAST[family][judged]
    assert min(gains) >= -0.005


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
        rng = np.random.default_rng(1)
        for _ in range(100):
            order = rng.permutation(values.shape[1])
            tables_of = [trials(values[:, order[:count]], name) for count in (20, 40)]
            first, second = (table.plateau().chosen for table in tables_of)
            after, rest = tables_of[0].gains(), values[:, order[40:]].mean(1)
            assert after is not None
            below.append(rest[second] - rest[first] <= after.worth(20, first))
    assert np.mean(below) >= 0.9
