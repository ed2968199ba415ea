"""Verdicts on claims, from measured values."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "methods"))

from verdicts import Claim, measurements, verdict, with_roc

QUERIES = 400


def measured(rows: dict[str, tuple[float, float]], seeds: int = 3) -> pl.DataFrame:
    """Return values of rows that have the given mean, and the given shift from one seed to the next."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.05, QUERIES)
    frames = []
    for row, (mean, shift) in rows.items():
        for seed in range(1, seeds + 1):
            values = mean + noise + rng.normal(0, 0.01, QUERIES) + shift * (seed - (seeds + 1) / 2)
            frames.append(
                pl.DataFrame({"qid": [f"q{n}" for n in range(QUERIES)], "value": values}).with_columns(
                    run=pl.lit(f"{row}-{seed}"), measure=pl.lit("MRR@10")
                )
            )
    return pl.concat(frames)


@pytest.mark.parametrize(
    ("better", "gain", "word"),
    [
        pytest.param((0.55, 0.0), 0.0, "holds", id="clear gain"),
        pytest.param((0.45, 0.0), 0.0, "does not hold", id="clear loss"),
        pytest.param((0.5, 0.0), 0.0, "undecided", id="no difference"),
        pytest.param((0.55, 0.05), 0.0, "undecided", id="gain within two deviations over the seeds"),
        pytest.param((0.51, 0.0), 0.02, "does not hold", id="gain below the claimed one"),
    ],
)
def test_a_verdict_needs_the_interval_and_the_seeds(better: tuple[float, float], gain: float, word: str) -> None:
    values = measured({"a": better, "b": (0.5, 0.0)})
    found = verdict(values, Claim("x", "a", "b", gain=gain))
    assert found is not None
    assert (found.word, found.seeds) == (word, 3)
    assert found.low < found.better - found.worse < found.high


def test_one_seed_decides_nothing() -> None:
    values = measured({"a": (0.45, 0.0), "b": (0.5, 0.0)}, seeds=1)
    for better, worse in (("a", "b"), ("b", "a")):
        found = verdict(values, Claim("x", better, worse))
        assert found is not None
        assert (found.word, found.seeds) == ("undecided", 1)


def test_a_claim_can_be_about_a_share() -> None:
    values = measured({"a": (0.475, 0.0), "b": (0.5, 0.0)})
    words = {}
    for share in (0.9, 1.0):
        found = verdict(values, Claim("x", "a", "b", share=share))
        assert found is not None
        words[share] = found.word
    assert words == {0.9: "holds", 1.0: "does not hold"}


def test_only_seeds_of_both_rows_are_compared() -> None:
    values = pl.concat([measured({"a": (0.55, 0.0)}, seeds=2), measured({"b": (0.5, 0.0)}, seeds=3)])
    found = verdict(values, Claim("x", "a", "b"))
    assert found is not None
    assert found.seeds == 2


def test_a_row_that_was_not_measured_gives_no_verdict() -> None:
    assert verdict(measured({"a": (0.5, 0.0)}), Claim("x", "a", "missing")) is None


def test_roc_is_the_fraction_of_answered_queries_that_bm25_does_not_answer() -> None:
    rng = np.random.default_rng(1)
    answered = {"bm25": rng.random(QUERIES) < 0.6, "a-1": rng.random(QUERIES) < 0.5, "b-1": rng.random(QUERIES) < 0.7}
    values = pl.concat(
        [
            pl.DataFrame({"qid": [f"q{n}" for n in range(QUERIES)], "value": found.astype(float)}).with_columns(
                run=pl.lit(run), measure=pl.lit("Success@10")
            )
            for run, found in answered.items()
        ]
    )
    found = verdict(with_roc(values), Claim("x", "a", "b", "RoC@10"))
    assert found is not None
    expected = [(answered[run] & ~answered["bm25"]).sum() / answered[run].sum() for run in ("a-1", "b-1")]
    assert [found.better, found.worse] == pytest.approx(expected)
    bootstrap = []
    for _ in range(2000):
        rows = rng.integers(0, QUERIES, QUERIES)
        ratios = [(answered[run] & ~answered["bm25"])[rows].sum() / answered[run][rows].sum() for run in ("a-1", "b-1")]
        bootstrap.append(ratios[0] - ratios[1])
    assert [found.low, found.high] == pytest.approx(np.quantile(bootstrap, [0.025, 0.975]).tolist(), abs=0.01)


def test_files_of_seeds_are_joined(tmp_path: Path) -> None:
    both = measured({"a": (0.55, 0.0), "b": (0.5, 0.0)}, seeds=2)
    for seed, name in ((1, "x"), (2, "x-seed-2")):
        own = both.filter(pl.col("run").str.ends_with(f"-{seed}"))
        shared = own.filter(pl.col("run").str.starts_with("a")).with_columns(run=pl.lit("bm25"))
        pl.concat([own, shared]).write_parquet(tmp_path / f"{name}.parquet")
    found = measurements(tmp_path, "x")
    assert found is not None
    assert sorted(found["run"].unique()) == ["a-1", "a-2", "b-1", "b-2", "bm25"]
    assert len(found) == 5 * QUERIES
    assert measurements(tmp_path, "y") is None


def test_a_run_in_two_files_is_refused(tmp_path: Path) -> None:
    values = measured({"a": (0.55, 0.0)}, seeds=1)
    for name in ("x", "x-seed-1"):
        values.write_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(ValueError, match=r"several files x.*a-1"):
        measurements(tmp_path, "x")
