"""The verdict on a system: better, worse or undecided, as Student's interval says; none where figures mislead."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import hybrid
from scipy import stats

from hybrid_cli.reporting.verdict import Verdict
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.search import search


def values(mean: float, queries: int = 50, seed: int = 0) -> np.ndarray:
    return np.clip(np.random.default_rng(seed).normal(mean, 0.1, queries), 0, 1)


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
    assert (made.needed is not None and made.needed > 50) is (outcome == "undecided")
    one = Verdict.of("nDCG@10", ("bm25", np.zeros(1)), ("hybrid", np.ones(1)))
    assert (one.outcome, one.interval, one.needed) == ("undecided", None, None)


def test_evaluate_ends_with_the_verdict_unless_the_run_was_tuned_on_the_queries(
    tiny: Path, tiny_bert: Path, tmp_path: Path
) -> None:
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
    alone = hybrid("evaluate", tiny, bm25, "--split", "test", "--format", "json")
    assert json.loads(alone.out)["verdict"] is None
