"""Bootstrap intervals: they hold the mean, repeat for a seed, share their draws, and are as wide as scipy's."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hybrid_cli.evaluation import intervals as module
from hybrid_cli.evaluation.intervals import bootstrap, intervals

rng = np.random.default_rng(7)
SCORES = np.column_stack([rng.random(400), rng.random(400) < 0.1, 1 / rng.integers(1, 20, 400)]).astype(float)


def frame(matrix: np.ndarray, measure: str, qids: list[str]) -> pl.DataFrame:
    """One run a column."""
    rows = [
        (f"run{c}", measure, qid, float(matrix[r, c])) for c in range(matrix.shape[1]) for r, qid in enumerate(qids)
    ]
    return pl.DataFrame(rows, schema=["run", "measure", "qid", "value"], orient="row")


def test_an_interval_is_about_as_wide_as_scipys() -> None:
    low, high = bootstrap(SCORES, 4000, 0.95, seed=1)
    theirs = stats.bootstrap((SCORES,), np.mean, n_resamples=4000, method="percentile", axis=0, rng=2)
    assert high - low == pytest.approx(theirs.confidence_interval.high - theirs.confidence_interval.low, rel=0.1)
    assert (low + high) / 2 == pytest.approx(SCORES.mean(0), abs=0.1 * (high - low).max())


@given(st.lists(st.floats(0, 1), min_size=12, max_size=60), st.integers(0, 5))
def test_it_holds_the_mean_and_stays_within_the_values(values, seed) -> None:
    column = np.array(values)[:, None]
    (low,), (high,) = bootstrap(column, 500, 0.95, seed)
    assert column.min() - 1e-12 <= low <= column.mean() + 1e-12
    assert column.mean() - 1e-12 <= high <= column.max() + 1e-12


def test_it_repeats_for_a_seed_however_the_draws_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bootstrap(SCORES, 300, 0.9, seed=3)
    monkeypatch.setattr(module, "_COUNTS_AT_ONCE", 1000)
    assert np.allclose(bootstrap(SCORES, 300, 0.9, seed=3), whole, atol=1e-14)
    assert not np.allclose(bootstrap(SCORES, 300, 0.9, seed=4), whole, atol=1e-14)


def test_more_confidence_is_wider_and_equal_values_have_no_width() -> None:
    (low, high), (lower, higher) = (bootstrap(SCORES, 1000, confidence, seed=3) for confidence in (0.8, 0.99))
    assert (lower < low).all()
    assert (higher > high).all()
    assert np.allclose(bootstrap(np.full((50, 1), 0.3), 100, 0.95, seed=1), 0.3)


def test_every_run_and_measure_has_a_row_also_where_measures_go_over_other_queries() -> None:
    qids = [f"q{n}" for n in range(400)]
    values = pl.concat([frame(SCORES, "MRR", qids), frame(SCORES[:100], "acc@5", qids[:100]), frame(SCORES, "P", qids)])
    values = values.sort("run", maintain_order=True)
    found = intervals(values, resamples=200, confidence=0.95, seed=1)
    names = [(f"run{c}", measure) for c in range(3) for measure in ("MRR", "acc@5", "P")]
    assert found.select("run", "measure").rows() == names
    assert found.filter(measure="acc@5")["mean"].to_list() == pytest.approx(SCORES[:100].mean(0).tolist())
    columns = ["run", "low", "high"]  # the same draws for measures of the same queries
    assert found.filter(measure="MRR").select(columns).equals(found.filter(measure="P").select(columns))
    assert (found["low"] <= found["mean"]).all()
    assert (found["mean"] <= found["high"]).all()
