"""Paired tests, corrections, and bootstrap intervals, compared with scipy where it has them."""

from __future__ import annotations

import warnings

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hybrid_cli.evaluation import significance
from hybrid_cli.evaluation.significance import (
    bonferroni,
    bootstrap,
    compare,
    correct_p_values,
    holm,
    intervals,
    paired_t,
    sign_flip,
)


def scores(seed: int, queries: int = 40, runs: int = 3) -> np.ndarray:
    """[queries, runs], each run better than the one before."""
    rng = np.random.default_rng(seed)
    return rng.random((queries, runs)) + np.arange(runs) * 0.15


def frame(matrix: np.ndarray, names: list[str], measure: str = "AP") -> pl.DataFrame:
    qids = [f"q{row}" for row in range(len(matrix))]
    return pl.concat(
        pl.DataFrame({"run": [name] * len(qids), "measure": [measure] * len(qids), "qid": qids, "value": matrix[:, at]})
        for at, name in enumerate(names)
    )


def test_paired_t_equals_scipys_ttest_rel() -> None:
    a, b, c = scores(1).T
    expected = [stats.ttest_rel(b, a).pvalue, stats.ttest_rel(c, a).pvalue]
    np.testing.assert_allclose(paired_t(np.column_stack([b - a, c - a])), expected, rtol=1e-12)


def test_sign_flip_approximates_scipys_exact_permutation_test() -> None:
    a, b, c = scores(2, queries=12).T
    for other in (b, c):
        exact = stats.permutation_test(
            (other, a), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples", vectorized=True
        ).pvalue  # all 2**12
        p = sign_flip((other - a)[:, None], permutations=10_000)[0]
        assert p == pytest.approx(exact, abs=5 * np.sqrt(exact * (1 - exact) / 10_000) + 1e-4)


def test_sign_flip_counts_the_observed_signs_as_one_permutation() -> None:
    strong = np.full((60, 1), 0.5)
    assert sign_flip(strong, permutations=999)[0] == (0 + 1) / (999 + 1)
    assert sign_flip(np.zeros((60, 1)), permutations=999)[0] == 1


def test_sign_flip_is_robust_to_rounding_of_ties() -> None:
    # One query differs: each flip gives plus or minus the same mean, so all are as extreme.
    differences = np.zeros((50, 1))
    differences[7] = 0.1
    assert sign_flip(differences, 500)[0] == 1


def test_equal_runs_and_single_queries() -> None:
    assert paired_t(np.zeros((10, 1)))[0] == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert paired_t(np.full((300, 1), 0.25) - 1e-17)[0] == 0
    assert np.isnan(paired_t(np.ones((1, 1)))[0])


def test_holm_golden() -> None:
    p = np.array([0.01, 0.04, 0.03, 0.005])
    # sorted: .005*4, .01*3, .03*2, max(.04*1, .06)
    assert holm(p).tolist() == [0.01 * 3, 0.03 * 2, 0.03 * 2, 0.005 * 4]
    assert holm(np.array([0.6, 0.5])).tolist() == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_between_raw_p_and_bonferroni_in_the_same_order(raw: list[float]) -> None:
    p = np.array(raw)
    adjusted = holm(p)
    assert (adjusted >= p).all()
    assert (adjusted <= bonferroni(p) + 1e-15).all()
    assert (np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0).all()


def test_untested_comparisons_do_not_count_in_the_family() -> None:
    p = correct_p_values(np.array([0.01, np.nan]), "bonferroni")
    assert p[0] == 0.01
    assert np.isnan(p[1])


def test_runs_are_compared_with_each_baseline_once() -> None:
    matrix = scores(4)
    values = pl.concat([frame(matrix, ["bm25", "dense", "clear"], name) for name in ("AP", "MRR")])
    found = compare(values, ["bm25", "dense"], correction="bonferroni")
    pairs = [("dense", "bm25"), ("clear", "bm25"), ("clear", "dense")]
    assert found.select("measure", "run", "baseline").rows() == [
        (measure, *pair) for measure in ("AP", "MRR") for pair in pairs
    ]
    first = found.row(0, named=True)
    assert first["p_t"] == pytest.approx(stats.ttest_rel(matrix[:, 1], matrix[:, 0]).pvalue)
    assert first["p_t_corrected"] == pytest.approx(min(1, 3 * first["p_t"]))
    assert first["difference"] == pytest.approx(matrix[:, 1].mean() - matrix[:, 0].mean())
    assert first["wins"] + first["losses"] + first["ties"] == first["queries"] == len(matrix)


def test_queries_are_paired_by_their_ids_not_by_their_rows() -> None:
    values = frame(scores(5), ["a", "b"])
    shuffled = pl.concat([values.filter(run="a"), values.filter(run="b").reverse()])
    ours, theirs = (compare(v, ["a"])["p_t"][0] for v in (values, shuffled))
    assert ours == pytest.approx(theirs)


# ---------------------------------------------------------------------------------------------------------- intervals

rng = np.random.default_rng(7)
SCORES = np.column_stack([rng.random(400), rng.random(400) < 0.1, 1 / rng.integers(1, 20, 400)]).astype(float)


def columns_frame(matrix: np.ndarray, measure: str, qids: list[str]) -> pl.DataFrame:
    """Return values with one run per column."""
    rows = [
        (f"run{c}", measure, qid, float(matrix[r, c])) for c in range(matrix.shape[1]) for r, qid in enumerate(qids)
    ]
    return pl.DataFrame(rows, schema=["run", "measure", "qid", "value"], orient="row")


def test_intervals_are_as_wide_as_scipys() -> None:
    low, high = bootstrap(SCORES, 4000, 0.95, seed=1)
    theirs = stats.bootstrap((SCORES,), np.mean, n_resamples=4000, method="percentile", axis=0, rng=2)
    assert high - low == pytest.approx(theirs.confidence_interval.high - theirs.confidence_interval.low, rel=0.1)
    assert (low + high) / 2 == pytest.approx(SCORES.mean(0), abs=0.1 * (high - low).max())


@given(st.lists(st.floats(0, 1), min_size=12, max_size=60), st.integers(0, 5))
def test_an_interval_contains_the_mean(values: list[float], seed: int) -> None:
    column = np.array(values)[:, None]
    (low,), (high,) = bootstrap(column, 500, 0.95, seed)
    assert column.min() - 1e-12 <= low <= column.mean() + 1e-12
    assert column.mean() - 1e-12 <= high <= column.max() + 1e-12


def test_intervals_depend_on_the_seed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bootstrap(SCORES, 300, 0.9, seed=3)
    monkeypatch.setattr(significance, "DRAWS_AT_ONCE", 1000)
    assert np.allclose(bootstrap(SCORES, 300, 0.9, seed=3), whole, atol=1e-14)
    assert not np.allclose(bootstrap(SCORES, 300, 0.9, seed=4), whole, atol=1e-14)


def test_measures_may_have_different_queries() -> None:
    qids = [f"q{n}" for n in range(400)]
    values = pl.concat(
        [
            columns_frame(SCORES, "MRR", qids),
            columns_frame(SCORES[:100], "acc@5", qids[:100]),
            columns_frame(SCORES, "P", qids),
        ]
    )
    values = values.sort("run", maintain_order=True)
    found = intervals(values, resamples=200, confidence=0.95, seed=1)
    names = [(f"run{c}", measure) for c in range(3) for measure in ("MRR", "acc@5", "P")]
    assert found.select("run", "measure").rows() == names
    assert found.filter(measure="acc@5")["mean"].to_list() == pytest.approx(SCORES[:100].mean(0).tolist())
    columns = ["run", "low", "high"]  # the same draws for measures of the same queries
    assert found.filter(measure="MRR").select(columns).equals(found.filter(measure="P").select(columns))
    assert (found["low"] <= found["mean"]).all()
    assert (found["mean"] <= found["high"]).all()
