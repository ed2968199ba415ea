"""Cross-validation without training: split, search, tune on dev, fuse test, concatenate, evaluate once."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from command import hybrid

from hybrid_cli import artifacts, runs
from hybrid_cli.reporting.summary import Summary
from hybrid_cli.stages.evaluate import evaluate
from hybrid_cli.storage import Kind

FOLDS = (1, 2)
INDEXES = ("bm25", "dense")
NAMES = (*INDEXES, "fused")


def run(*arguments: object) -> str:
    done = hybrid(*arguments)
    assert done.code == 0, done.err
    return done.out


def values(source: Path, split: str, *named: str) -> pl.DataFrame:
    found = evaluate([source, *named], split=split, measures=["MAP", "nDCG@20", "P@30"])
    assert isinstance(found, Summary)
    return found.values.sort("run", "measure", "qid")


@pytest.fixture(scope="module")
def made(tiny: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the folds, the runs of each fold, and the concatenated runs."""
    out = tmp_path_factory.mktemp("folds")
    run("split", tiny, "--split", "test", "--folds", len(FOLDS), "--output", out / "folds")
    run("index-bm25", tiny, "--output", out / "bm25", "--threads", 1)
    run("encode", tiny, "--model", tiny_bert, "--dtype", "fp32", "--output", out / "dense")
    exact = ["--method", "weighted-sum", "--missing", "exact", "--index", f"{out / 'bm25'},{out / 'dense'}"]
    for fold in FOLDS:
        for name in (f"dev-{fold}", f"test-{fold}"):
            for index in INDEXES:
                run("search", out / "folds", "--split", name, "--index", out / index, "--hits", 4,
                    "--output", out / f"{index}.{name}.parquet")  # fmt: skip
        weights = out / f"weights-{fold}.json"
        dev, test = ([out / f"{index}.{name}-{fold}.parquet" for index in INDEXES] for name in ("dev", "test"))
        run("fuse", *dev, *exact, "--tune", "--folds", 2, "--grid", "log", "--measure", "MAP", "--qrels", out / "folds",
            "--split", f"dev-{fold}", "--output", weights)  # fmt: skip
        run("fuse", *test, *exact, "--weights", f"@{weights}", "--output", out / f"fused.test-{fold}.parquet")
    for name in NAMES:
        run(
            "concat-runs", *(out / f"{name}.test-{fold}.parquet" for fold in FOLDS), "--output", out / f"{name}.parquet"
        )
    return out


def test_the_concatenated_run_is_the_run_over_all_queries(made: Path) -> None:
    for index in INDEXES:
        whole = made / f"{index}.all.parquet"
        run("search", made / "folds", "--split", "all", "--index", made / index, "--hits", 4, "--output", whole)
        joined = runs.read_run(made / f"{index}.parquet")
        assert joined.drop("score").sort("qid", "rank").equals(runs.read_run(whole).drop("score").sort("qid", "rank"))


def test_one_evaluation_has_the_values_of_every_fold(made: Path, tiny: Path) -> None:
    whole = values(made / "folds", "all", *(f"{name}={made / name}.parquet" for name in NAMES))
    folds = [
        values(made / "folds", f"test-{fold}", *(f"{name}={made / name}.test-{fold}.parquet" for name in NAMES))
        for fold in FOLDS
    ]
    assert len(whole) == 3 * 3 * 5
    assert whole.equals(pl.concat(folds).sort("run", "measure", "qid"))
    assert whole.equals(values(tiny, "test", *(f"{name}={made / name}.parquet" for name in NAMES)))


def test_weights_come_from_the_dev_queries_of_their_fold(made: Path) -> None:
    for fold in FOLDS:
        sources = artifacts.read_manifest(made / f"weights-{fold}.json", Kind.WEIGHTS).inputs
        assert Path(sources["qrels"]["path"]).name == f"qrels.dev-{fold}.parquet"
        fused = artifacts.read_manifest(made / f"fused.test-{fold}.parquet", Kind.RUN)
        assert Path(fused.inputs["weights"]["path"]).name == f"weights-{fold}.json"
