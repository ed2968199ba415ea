"""Paired tests: scipy is the authority, Holm's and Bonferroni's corrections are written out."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.significance import bonferroni, compare, corrected, holm, paired_t, sign_flip


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


def test_sign_flip_equals_scipys_exact_permutation_test_up_to_sampling() -> None:
    a, b, c = scores(2, queries=12).T
    for other in (b, c):
        exact = stats.permutation_test(
            (other, a), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples", vectorized=True
        ).pvalue  # all 2**12
        p = sign_flip((other - a)[:, None], permutations=10_000)[0]
        assert p == pytest.approx(exact, abs=5 * np.sqrt(exact * (1 - exact) / 10_000) + 1e-4)


def test_sign_flip_counts_the_observed_order_as_one_permutation() -> None:
    strong = np.full((60, 1), 0.5)
    assert sign_flip(strong, permutations=999)[0] == (0 + 1) / (999 + 1)
    assert sign_flip(np.zeros((60, 1)), permutations=999)[0] == 1


def test_sign_flip_is_seeded_and_a_comparison_does_not_depend_on_its_neighbours() -> None:
    a, b, c = scores(3).T
    both = sign_flip(np.column_stack([b - a, c - a]), 2000, seed=7)
    assert both.tolist() == sign_flip(np.column_stack([b - a, c - a]), 2000, seed=7).tolist()
    assert both[0] == sign_flip((b - a)[:, None], 2000, seed=7)[0]


def test_sign_flip_sees_ties_of_the_mean_whatever_the_order_of_summation() -> None:
    # One query differs: each flip gives plus or minus the same mean, so all are as extreme.
    differences = np.zeros((50, 1))
    differences[7] = 0.1
    assert sign_flip(differences, 500)[0] == 1


def test_equal_runs_do_not_differ_and_one_query_cannot_be_tested() -> None:
    assert paired_t(np.zeros((10, 1)))[0] == 1
    assert np.isnan(paired_t(np.ones((1, 1)))[0])


def test_holm_golden() -> None:
    p = np.array([0.01, 0.04, 0.03, 0.005])
    # sorted: .005*4, .01*3, .03*2, max(.04*1, .06)
    assert holm(p).tolist() == [0.01 * 3, 0.03 * 2, 0.03 * 2, 0.005 * 4]
    assert holm(np.array([0.6, 0.5])).tolist() == [1.0, 1.0]


def test_bonferroni_golden() -> None:
    assert bonferroni(np.array([0.01, 0.04, 0.6])).tolist() == [0.01 * 3, 0.04 * 3, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_lies_between_the_raw_p_and_bonferroni_and_keeps_their_order(raw: list[float]) -> None:
    p = np.array(raw)
    adjusted = holm(p)
    assert (adjusted >= p).all()
    assert (adjusted <= bonferroni(p) + 1e-15).all()
    assert (np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0).all()


def test_what_could_not_be_tested_is_none_of_the_family() -> None:
    p = corrected(np.array([0.01, np.nan]), "bonferroni")
    assert p[0] == 0.01
    assert np.isnan(p[1])
    with pytest.raises(InputError, match="holm, bonferroni, none"):
        corrected(np.array([0.5]), "fdr")  # type: ignore[arg-type]


def test_each_run_meets_each_baseline_once_and_the_family_is_one_measure() -> None:
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


def test_one_run_is_compared_with_nothing() -> None:
    found = compare(frame(scores(6, runs=1), ["a"]), ["a"])
    assert len(found) == 0
    assert "p_t_corrected" in found.columns
