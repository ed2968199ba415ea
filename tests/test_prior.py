"""The prior of `fuse --tune`: the stored curves, interpolation, leaving collections out, and the runs it is for."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hybrid_cli.fusion.prior import FILE, MEASURES, Prior, read_prior
from hybrid_cli.fusion.selection import Choice


def test_the_stored_curves_are_complete_and_have_a_provenance() -> None:
    stored = json.loads(FILE.read_text("utf-8"))
    assert {"made_by", "version", "systems"} <= stored.keys()
    assert stored["shares"][0] == 0
    assert stored["shares"][-1] == 1
    for each in stored["collections"]:
        assert each["queries"] > 0
        assert set(each["curves"]) == set(MEASURES)
        for curves in each["curves"].values():
            assert set(curves) == {"minmax", "zscore", "rrf k=60", "rrf k=10", "weighted-sum"}
            assert {len(curve) for curve in curves.values()} == {len(stored["shares"])}
            ends = np.array([(curve[0], curve[-1]) for curve in curves.values()])
            assert np.ptp(ends, axis=0) == pytest.approx(0, abs=1e-4)  # each run alone, whatever the method


def test_a_left_out_collection_does_not_change_the_prior() -> None:
    """The mean without a collection is that of the others, recomputed here from the file."""
    stored = json.loads(FILE.read_text("utf-8"))["collections"]
    names = [each["name"] for each in stored]
    for name in names:
        prior = read_prior("nDCG@10", leave_out=[name])
        assert prior is not None
        assert name not in prior.collections
        others = [each["curves"]["nDCG@10"]["minmax"] for each in stored if each["name"] != name]
        assert prior.curves["minmax"] == pytest.approx(np.mean(others, axis=0))
        assert not np.allclose(prior.curves["minmax"], np.mean([*others, others[0]], axis=0)) or len(others) == 1
    assert read_prior("nDCG@10", leave_out=names) is None


def test_other_measures_use_that_of_ndcg() -> None:
    prior, other = read_prior("R@100"), read_prior("MRR@10")
    assert prior is not None
    assert other is not None
    assert (prior.measure, other.measure) == ("nDCG@10", "MRR@10")


def test_values_are_interpolated_at_the_weight_of_the_dense_run_in_either_order() -> None:
    prior = Prior(np.array([0.0, 0.5, 1.0]), {"minmax": np.array([0.1, 0.5, 0.3])}, "nDCG@10", ["x"])
    choices = [Choice("minmax", (0.75, 0.25)), Choice("minmax", (1.0, 3.0))]
    assert prior.values(choices, dense=1) == pytest.approx([0.3, 0.4])
    assert prior.values(choices, dense=0) == pytest.approx([0.4, 0.3])
    assert prior.values([*choices, Choice("weighted-sum", (1.0, 1.0))], dense=1) is None


def test_sums_of_raw_scores_have_values_at_their_shares_only() -> None:
    """A weight next to a cosine says nothing without the scales; the same shares have the same value at any scale."""
    prior = Prior(np.array([0.0, 0.5, 1.0]), {"weighted-sum": np.array([0.1, 0.5, 0.3])}, "nDCG@10", ["x"])
    scaled = [Choice("weighted-sum", (scale, 1.0), shares=(0.25, 0.75)) for scale in (0.016, 1.6)]
    assert prior.values(scaled, dense=1) == pytest.approx([0.4, 0.4])
    assert prior.uncovered(scaled) == []
    unscaled = [*scaled, Choice("weighted-sum", (0.01, 1.0))]
    assert prior.uncovered(unscaled) == ["weighted-sum with another grid than scaled"]
    assert prior.values(unscaled, dense=1) is None
