"""Tests and intervals of differences, sequential evidence, rectified means, the verdict on two runs."""

import json
import math
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command import hybrid
from hypothesis import given
from hypothesis import strategies as some
from scipy import stats
from scipy.stats import norm, t

from hybrid_cli.evaluation import significance
from hybrid_cli.evaluation.prediction_powered import CorrectedMean, power_tuned_weight, rectified
from hybrid_cli.evaluation.sequential import Evidence, log_capital
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
from hybrid_cli.fusion.selection import interval
from hybrid_cli.reporting.verdict import Verdict
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.search import search


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


def test_sign_flip_is_seeded_and_does_not_depend_on_other_comparisons() -> None:
    a, b, c = scores(3).T
    both = sign_flip(np.column_stack([b - a, c - a]), 2000, seed=7)
    assert both.tolist() == sign_flip(np.column_stack([b - a, c - a]), 2000, seed=7).tolist()
    assert both[0] == sign_flip((b - a)[:, None], 2000, seed=7)[0]


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


def test_bonferroni_and_holm_golden() -> None:
    assert bonferroni(np.array([0.01, 0.04, 0.6])).tolist() == [0.01 * 3, 0.04 * 3, 1.0]
    p = np.array([0.01, 0.04, 0.03, 0.005])
    # sorted: .005*4, .01*3, .03*2, max(.04*1, .06)
    assert holm(p).tolist() == [0.01 * 3, 0.03 * 2, 0.03 * 2, 0.005 * 4]
    assert holm(np.array([0.6, 0.5])).tolist() == [1.0, 1.0]


@given(some.lists(some.floats(0, 1), min_size=1, max_size=8).map(np.array))
def test_holm_is_between_raw_p_and_bonferroni_in_the_same_order(p: np.ndarray) -> None:
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


rng = np.random.default_rng(7)
SCORES = np.column_stack([rng.random(400), rng.random(400) < 0.1, 1 / rng.integers(1, 20, 400)]).astype(float)


def columns_frame(matrix: np.ndarray, measure: str, qids: list[str]) -> pl.DataFrame:
    rows = [
        (f"run{c}", measure, qid, float(matrix[r, c])) for c in range(matrix.shape[1]) for r, qid in enumerate(qids)
    ]
    return pl.DataFrame(rows, schema=["run", "measure", "qid", "value"], orient="row")


def test_intervals_are_as_wide_as_scipys() -> None:
    low, high = bootstrap(SCORES, 4000, 0.95, seed=1)
    theirs = stats.bootstrap((SCORES,), np.mean, n_resamples=4000, method="percentile", axis=0, rng=2)
    assert high - low == pytest.approx(theirs.confidence_interval.high - theirs.confidence_interval.low, rel=0.1)
    assert (low + high) / 2 == pytest.approx(SCORES.mean(0), abs=0.1 * (high - low).max())


@given(some.lists(some.floats(0, 1), min_size=12, max_size=60), some.integers(0, 5))
def test_an_interval_contains_the_mean(values: list[float], seed: int) -> None:
    column = np.array(values)[:, None]
    (low,), (high,) = bootstrap(column, 500, 0.95, seed)
    assert column.min() - 1e-12 <= low <= column.mean() + 1e-12
    assert column.mean() - 1e-12 <= high <= column.max() + 1e-12


def test_intervals_depend_on_seed_and_confidence_and_not_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bootstrap(SCORES, 300, 0.9, seed=3)
    lower, higher = bootstrap(SCORES, 300, 0.99, seed=3)
    assert (lower < whole[0]).all()
    assert (higher > whole[1]).all()
    assert np.allclose(bootstrap(np.full((50, 1), 0.3), 100, 0.95, seed=1), 0.3)
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


def test_the_capital_is_the_mean_of_constant_bets() -> None:
    bets = np.geomspace(0.03, 0.9, 10)
    expected = np.mean((1 + 0.5 * bets) * (1 - 0.25 * bets))
    assert log_capital(np.array([0.5, -0.25])) == pytest.approx(math.log(expected))


def test_further_queries_decide_when_differences_stay_as_they_are() -> None:
    differences = np.tile([0.3, 0.0, -0.1, 0.2], 5)
    more = Evidence.of(differences).more
    assert more is not None
    assert first_decision(np.tile(differences, 6)) == pytest.approx(20 + more, abs=4)


@given(DIFFERENCES)
def test_the_interval_contains_the_mean_and_its_sign_decides(differences: np.ndarray) -> None:
    evidence = Evidence.of(differences)
    assert evidence.low <= differences.mean() + 1e-6
    assert evidence.high >= differences.mean() - 1e-6
    assert (evidence.outcome == "better") == (log_capital(differences) >= DECIDES)
    assert (evidence.outcome == "worse") == (log_capital(-differences) >= DECIDES)
    other = Evidence.of(-differences)
    assert (other.low, other.high) == pytest.approx((-evidence.high, -evidence.low), abs=1e-6)


@pytest.mark.parametrize("differences", [[], [0.4], [0.0, 0.0]])
def test_too_little_is_no_evidence(differences: list[float]) -> None:
    evidence = Evidence.of(np.array(differences))
    assert (evidence.probability, evidence.outcome) == (None, "undecided")


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
def test_rectified_are_ppi_python(sizes: tuple[int, int, float], expected: tuple[float, float, float, float]) -> None:
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


def test_a_machine_of_one_value_or_of_no_other_queries_changes_nothing() -> None:
    people, own, _ = sample(30, 1, 0)
    constant = [(np.full(30, value), np.full(200, value)) for value in (0.0, 0.5)]
    for machine, others in (*constant, (own, np.array([]))):
        made = CorrectedMean.of(people, machine, others)
        assert (made.mean, made.low, made.high) == (made.by_people, made.people_low, made.people_high)
        assert made.weight == 0
    runs = np.random.default_rng(5).random((3, 30))
    for machine, others in ((np.tile(runs[:1], (3, 1)), np.zeros((3, 90))), (runs, np.zeros((3, 0)))):
        same, weight = rectified(runs, machine, others)
        assert weight == 0
        assert (same == runs).all()


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


def values(mean: float, queries: int = 50, seed: int = 0) -> np.ndarray:
    return np.clip(np.random.default_rng(seed).normal(mean, 0.1, queries), 0, 1)


def test_values_without_a_bound_decide_nothing_and_rounding_errors_are_no_values_beyond_it() -> None:
    wide = Verdict.of("X", ("a", np.zeros(9)), ("b", np.full(9, 3.0)), every_look=True)
    assert (wide.outcome, wide.interval, wide.more) == ("undecided", (-3.0, 3.0), None)
    assert json.loads(json.dumps(wide.content(), allow_nan=False))["interval"] == [-3.0, 3.0]
    assert Evidence.of(np.full(60, 1 + 1e-15)).outcome == "better"
    low, high = interval(np.array([3.0, 4.0, 5.0])) or (0.0, 0.0)
    assert low < 4 < high


@pytest.mark.parametrize(("mean", "outcome"), [(0.7, "better"), (0.3, "worse"), (0.5, "undecided")])
def test_the_outcome_is_that_of_a_paired_t_test(mean: float, outcome: str) -> None:
    before, after = values(0.5), values(mean, seed=1)
    made = Verdict.of("nDCG@10", ("bm25", before), ("hybrid", after))
    assert made.outcome == outcome
    assert (stats.ttest_rel(after, before).pvalue < 0.05) == (outcome != "undecided")
    assert (made.wins, made.losses) == (int((after > before).sum()), int((after < before).sum()))
    ends = stats.ttest_rel(after, before).confidence_interval(0.95)
    assert made.interval == pytest.approx((ends.low, ends.high))
    assert Verdict.stored(json.loads(json.dumps(made.content()))) == made
    assert (made.more is not None) is (outcome == "undecided")
    one = Verdict.of("nDCG@10", ("bm25", np.zeros(1)), ("hybrid", np.ones(1)))
    assert (one.outcome, one.interval) == ("undecided", None)


def test_evaluate_ends_with_a_verdict_unless_the_run_was_tuned(tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    sides = [index_bm25(tiny, output=tmp_path / "bm25"), encode(tiny, model=str(tiny_bert), output=tmp_path / "dense")]
    plain = compose(sides, output=tmp_path / "plain")
    tuned = compose(sides, tune=True, qrels=tiny, split="test", output=tmp_path / "tuned")
    evidence = json.loads((tuned / "retriever.json").read_text())["tuning"]
    assert evidence["verdict"]["baseline"] == "bm25"
    bm25 = search(tiny, split="test", index=sides[0], output=tmp_path / "bm25.parquet")
    words = ["evaluate", tiny, bm25, "--split", "test", "--format", "json", "--measure", "nDCG@10"]
    stored = json.loads(hybrid(*words, plain).out)
    assert stored["verdict"]["run"] == "plain"
    assert stored["verdict"]["after"] == pytest.approx(stored["runs"][1]["means"]["nDCG@10"])
    done = hybrid(*words, tuned)
    assert (json.loads(done.out)["verdict"] is None) == ("queries-reused" in done.warnings)
    assert ("queries-reused" in done.warnings) != evidence["keeps_untuned"]
    assert json.loads(hybrid("evaluate", tiny, bm25, "--split", "test", "--format", "json").out)["verdict"] is None
