"""The range of a measure over the orders of equal scores."""

from __future__ import annotations

from math import log2
from pathlib import Path

import polars as pl
import pytest
from command import hybrid

from hybrid_cli.evaluation.measures import ranges
from hybrid_cli.evaluation.retrieved import retrieved
from hybrid_cli.runs import Run

# Query a: x scores 9, four documents score 5, v scores 1. Query b: no equal scores, but the score of a's last hit.
HITS = [
    ("a", "x", 9),
    ("a", "t1", 5),
    ("a", "good", 5),
    ("a", "fair", 5),
    ("a", "t2", 5),
    ("a", "v", 1),
    ("b", "v", 1),
    ("b", "w", 0),
]
JUDGED = [("a", "good", 2), ("a", "fair", 1), ("a", "t1", 0), ("b", "w", 1), ("c", "z", 1)]


@pytest.fixture
def run() -> pl.DataFrame:
    table = pl.DataFrame(HITS, schema=["qid", "docid", "score"], orient="row")
    rank = pl.int_range(1, pl.len() + 1, dtype=pl.Int32).over("qid")
    return table.select("qid", "docid", rank.alias("rank"), pl.col("score").cast(pl.Float32))


@pytest.fixture
def qrels() -> pl.DataFrame:
    return pl.DataFrame(JUDGED, schema=["qid", "docid", "relevance"], orient="row")


def test_the_range_is_that_of_the_best_and_the_worst_order(run: pl.DataFrame, qrels: pl.DataFrame) -> None:
    found = ranges(retrieved(Run.of(run), qrels, 0).judged, qrels, ["MRR@10", "nDCG@3", "R@10"])
    ideal = 2 + 1 / log2(3)
    assert found["MRR@10"] == pytest.approx(((1 / 4 + 1 / 2) / 3, (1 / 2 + 1 / 2) / 3))
    best = (2 / log2(3) + 1 / log2(4)) / ideal  # good second, fair third
    assert found["nDCG@3"] == pytest.approx((1 / log2(3) / 3, (best + 1 / log2(3)) / 3))  # at worst fourth and fifth
    assert found["R@10"] == pytest.approx((2 / 3, 2 / 3))


def test_without_a_judged_document_of_equal_score_there_is_no_range(run: pl.DataFrame) -> None:
    qrels = pl.DataFrame([("a", "x", 1), ("b", "w", 1)], schema=["qid", "docid", "relevance"], orient="row")
    assert ranges(retrieved(Run.of(run), qrels, 0).judged, qrels, ["nDCG@10"]) == {}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: pl.DataFrame) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [f"{qid} Q0 {docid} {rank} {score} x\n" for qid, docid, rank, score in run.iter_rows()]
    Path("tied.trec").write_text("".join(lines))
    order = [f"{qid} Q0 {docid} {rank} {1 / rank} x\n" for qid, docid, rank, _ in run.iter_rows()]
    Path("plain.trec").write_text("".join(order))
    Path("qrels.tsv").write_text("".join(f"{qid}\t0\t{docid}\t{grade}\n" for qid, docid, grade in JUDGED))
    return tmp_path


def test_evaluate_and_fuse_print_ranges_wider_than_002(here: Path) -> None:
    ties = {"run": "tied", "ranges": {"MRR@10": (pytest.approx(1 / 4), pytest.approx(1 / 3))}}
    done = hybrid("evaluate", "--qrels", "qrels.tsv", "tied.trec", "plain.trec", "-m", "MRR@10", "-m", "R@10")
    assert done.code == 0, done.err
    assert done.notices.count("ties") == done.notices.count("ties", **ties) == 1
    assert "MRR@10 0.2500 to 0.3333" in " ".join(done.err.split())
    words = ["fuse", "tied.trec", "plain.trec", "--output", "f.parquet", "--qrels", "qrels.tsv", "--measure", "MRR@10"]
    done = hybrid(*words)
    assert done.code == 0, done.err
    assert done.says("ties", **ties)
    assert not done.says("ties", run="plain")
    words = ["fuse", "tied.trec", "plain.trec", "--tune", "--output", "w.json", "--qrels", "qrels.tsv"]
    done = hybrid(*words)
    assert done.code == 0, done.err
    assert done.says("ties", **ties)
