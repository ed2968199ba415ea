"""Which runs are worth their bytes."""

from __future__ import annotations

from hybrid_cli.evaluation.report.memory import front


def test_the_front_holds_what_no_other_run_beats_with_as_few_bytes():
    sizes = {"bm25": 10, "codes": 2, "flat": 64, "worse": 12, "hybrid": 74, "twin": 2, "as-good-larger": 70}
    means = {"bm25": 0.5, "codes": 0.4, "flat": 0.6, "worse": 0.45, "hybrid": 0.7, "twin": 0.4, "as-good-larger": 0.6}
    assert front(sizes, means) == {"bm25", "codes", "twin", "flat", "hybrid"}


def test_one_run_alone_is_the_front():
    assert front({"bm25": 10}, {"bm25": 0.0}) == {"bm25"}
