"""The curve of recall is trec_eval's R@k at every depth."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from hybrid_cli.evaluation.measures import evaluate_run, in_order, judged_hits, mean_of, recall_by_depth

DEPTHS = (1, 2, 5, 10, 40)


@pytest.mark.parametrize("level", [1, 2])
def test_the_curve_is_recall_at_every_depth(level: int) -> None:
    rng = np.random.default_rng(level)
    rows = [(f"q{q}", f"d{d}", r) for q in range(20) for r, d in enumerate(rng.permutation(60)[:30], 1)]
    run = pl.DataFrame(rows[:-90], schema=["qid", "docid", "rank"], orient="row")  # three queries are missing
    pairs = {(f"q{rng.integers(20)}", f"d{rng.integers(60)}") for _ in range(120)}
    judged = [(q, d, int(rng.integers(0, 3))) for q, d in sorted(pairs)]
    qrels = pl.DataFrame(judged, schema={"qid": pl.String, "docid": pl.String, "relevance": pl.Int32}, orient="row")
    curve = recall_by_depth(judged_hits(in_order(run), qrels), DEPTHS, level)
    values = evaluate_run(run, qrels, [f"R@{depth}" for depth in DEPTHS], level)
    assert curve["depth"].to_list() == list(DEPTHS)
    assert curve["recall"].to_list() == pytest.approx([mean_of(values, f"R@{depth}") for depth in DEPTHS])


def test_a_run_without_relevant_documents_has_recall_0() -> None:
    judged = pl.DataFrame(
        {"qid": ["q"], "relevance": [1], "position": [None]},
        schema={"qid": pl.String, "relevance": pl.Int32, "position": pl.Int32},
    )
    assert recall_by_depth(judged, DEPTHS)["recall"].to_list() == [0.0] * len(DEPTHS)
