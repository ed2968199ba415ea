"""The papers' tables next to our figures: cells, rows without a run, evidence, and repeated calls."""

from __future__ import annotations

import csv
import shutil
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hybrid_cli import runs, storage
from hybrid_cli.collections import collection
from hybrid_cli.evaluation.complementarity import rbo
from hybrid_cli.evaluation.measures import evaluate_run

sys.path.insert(0, str(Path(__file__).parents[1] / "studies"))

import tables


@pytest.fixture(scope="module")
def out(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs with the runs of BM25 and of an encoder in two seeds, of which the second is BM25's run."""
    folder = tmp_path_factory.mktemp("tables")
    for name in ("collection", "model", "bm25", "dense"):
        (folder / name).symlink_to(made / name)
    for name, source in (("bm25", "bm25"), ("roc/seed-1/dense", "dense"), ("roc/seed-2/dense", "bm25"),
                         ("lite/seed-1/dpr", "dense"), ("robustness/bm25", "bm25"),
                         ("robustness/bm25@shuffle", "dense")):  # fmt: skip
        suffix = "" if name.startswith("robustness") else ".test"
        target = folder / f"{name}{suffix}.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made / f"{source}.parquet", target)
    return folder


def value(run: Path, data: Path, measure: str) -> np.ndarray:
    qrels = collection.read_qrels(data / "qrels.test.parquet")
    found = evaluate_run(runs.read_run(run), qrels, [measure]).filter(measure=measure)
    return found.sort("qid")["value"].to_numpy()


def test_cells_are_means_over_queries_and_seeds_with_their_runs(made: Path, out: Path) -> None:
    where = tables.Collection(made / "collection", out, "test")
    text = tables.page(where, with_costs=False)
    bm25, dense = (value(made / f"{name}.parquet", where.data, "MAP") for name in ("bm25", "dense"))
    with (out / "tables" / "cells.csv").open() as opened:
        rows = list(csv.DictReader(opened))
    roc = [row for row in rows if row["table"].startswith("RoC") and row["column"] == "MAP"]
    assert {row["row"]: float(row["mean"]) for row in roc} == {
        "BM25": pytest.approx(bm25.mean()),
        "DPR": pytest.approx(((bm25 + dense) / 2).mean()),
    }
    seeds = [row["run"] for row in roc if row["row"] == "DPR"]
    assert seeds == [str(out / f"roc/seed-{seed}/dense.test.parquet") for seed in (1, 2)]
    assert {row["fingerprint"] for row in roc if row["row"] == "BM25"} == {
        storage.fingerprint(out / "bm25.test.parquet")
    }
    assert "| BM25 | " in text
    assert "| .191 | .864 | .506 | .377 |" in text
    assert "BM25+RM3; DeepCT; DeepCT+RM3" in text


def test_roc_is_the_share_of_the_dense_successes_that_the_lexical_run_misses(made: Path, out: Path) -> None:
    where = tables.Collection(made / "collection", out, "test")
    (table,) = (each for each in tables.TABLES if tables.ROC in each.columns)
    (share,) = (cell for cell in tables.cells(where, table, "roc") if cell.column == tables.ROC)
    dense, lexical = (value(made / f"{name}.parquet", where.data, "Success@10") for name in ("dense", "bm25"))
    both = (dense + lexical) / 2
    assert share.mean == pytest.approx((both * (1 - lexical)).sum() / both.sum())


def test_drops_are_means_over_the_attacks(made: Path, out: Path) -> None:
    where = tables.Collection(made / "collection", out, "test")
    original, drop = tables.robustness(where)
    bm25, dense = (value(made / f"{name}.parquet", where.data, "Success@100") for name in ("bm25", "dense"))
    assert original.mean == pytest.approx(bm25.mean())
    assert drop.mean == pytest.approx(bm25.mean() - dense.mean())


def test_a_repeated_call_measures_nothing_and_a_changed_run_is_measured_again(made: Path, out: Path) -> None:
    where = tables.Collection(made / "collection", out, "test")
    tables.page(where, with_costs=False)
    file = out / "tables" / "table-0.parquet"
    content, old = file.read_bytes(), pl.read_parquet(file)
    tables.page(where, with_costs=False)
    assert file.read_bytes() == content
    try:
        shutil.copyfile(made / "dense.parquet", out / "bm25.test.parquet")
        tables.page(where, with_costs=False)
        assert not pl.read_parquet(file).equals(old)
    finally:
        shutil.copyfile(made / "bm25.parquet", out / "bm25.test.parquet")


def test_overlap_with_bm25_is_that_of_evaluate(made: Path, out: Path) -> None:
    where = tables.Collection(made / "collection", out, "test")
    (table,) = (each for each in tables.TABLES if tables.RBO in each.columns)
    (folder,) = {row.run.split("seed-")[0] for row in table.rows}
    (out / folder / "seed-1").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(made / "dense.parquet", out / folder / "seed-1" / "dense.test.parquet")
    (found,) = tables.cells(where, table, "overlap")
    judged = collection.read_qrels(where.data / "qrels.test.parquet")["qid"].unique()
    every = rbo(runs.read_run(made / "dense.parquet"), runs.read_run(made / "bm25.parquet"))
    assert found.mean == pytest.approx(every.filter(pl.col("qid").is_in(judged.implode()))["value"].mean())
