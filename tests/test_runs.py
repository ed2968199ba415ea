"""Runs: order, ranks, names, and lookup of ids."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from command import raises

from hybrid_cli import runs


def _hits(*rows: tuple[str, str, float]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"qid": pl.String, "docid": pl.String, "score": pl.Float32}, orient="row")


def test_ranks_and_depth_are_per_query() -> None:
    hits = _hits(("q2", "a", 1.0), ("q2", "b", 3.0), ("q2", "c", 2.0), ("q1", "a", 5.0))
    assert runs.ranked(hits, 2).rows() == [("q2", "b", 1, 3.0), ("q2", "c", 2, 2.0), ("q1", "a", 1, 5.0)]
    pieces = _hits(("q", "a", 1.0), ("r", "a", 1.0), ("q", "b", 2.0))
    assert runs.ranked(pieces).rows() == [("q", "b", 1, 2.0), ("q", "a", 2, 1.0), ("r", "a", 1, 1.0)]


def test_equal_scores_are_ordered_by_docid_as_a_string() -> None:
    hits = _hits(("q", "9", 1.0), ("q", "é", 1.0), ("q", "10", 1.0), ("q", "B", 1.0), ("q", "a", 1.0))
    assert runs.ranked(hits)["docid"].to_list() == ["10", "9", "B", "a", "é"]


def test_runs_are_named_by_stems_and_by_folders_if_stems_are_equal(tmp_path: Path) -> None:
    assert list(runs.name_runs(["out/bm25.parquet", "out/dense.parquet"])) == ["bm25", "dense"]
    assert list(runs.name_runs(["x/out/bm25.parquet", "y/out/bm25.parquet"])) == ["x/out/bm25", "y/out/bm25"]
    assert runs.name_runs(["BM25 tuned=out/a.parquet"]) == {"BM25 tuned": Path("out/a.parquet")}
    odd = tmp_path / "k1=0.9.parquet"
    odd.touch()
    assert runs.name_runs([odd]) == {"k1=0.9": odd}
    with raises("duplicate-name", name="a"):
        runs.name_runs(["a=x.parquet", "a=y.parquet"])
    with raises("repeated-input", path="x.parquet"):
        runs.name_runs(["x.parquet", "x.parquet"])


def test_positions_find_ids_or_name_the_unknown_ones() -> None:
    known = pl.Series(["a", "b", "c", "b"])
    assert runs.positions(pl.Series(["c", "b", "c"]), known, "no document").tolist() == [2, 1, 2]
    assert not len(runs.positions(pl.Series([], dtype=pl.String), known, "no document"))
    with raises("unknown-id", id="x"):
        runs.positions(pl.Series(["x", "a", "y", "x"]), known, "no document")
