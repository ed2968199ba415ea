"""`fuse --tune`: weights, methods, grids, the prior, and the file that a later fusion reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import Notices, raises, refusal

from hybrid_cli import artifacts, runs
from hybrid_cli.evaluation.measures import evaluate_run
from hybrid_cli.reporting.tables import figure
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.search import search
from hybrid_cli.storage import Kind


@pytest.fixture(scope="module")
def made(tiny_runs: Path) -> Path:
    return tiny_runs


def both(made: Path) -> list[Path]:
    return [made / "bm25.parquet", made / "dense.parquet"]


def indexes(made: Path) -> list[Path]:
    return [made / "bm25", made / "dense"]


def mean_reciprocal_rank(run: Path, qrels: Path) -> float:
    return float(evaluate_run(runs.read_run(run), pl.read_parquet(qrels), ["MRR@10"])["value"].to_numpy().mean())


def test_tuned_weights_are_read_by_a_later_fusion(
    made: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], notices: Notices
) -> None:
    weights = fuse(
        both(made), output=tmp_path / "w.json", qrels=tiny, split="test", tune=True, method="zscore", step=0.25
    )
    content = json.loads(weights.read_text("utf-8"))
    assert artifacts.read_manifest(weights, Kind.WEIGHTS).counts == {"queries": 5, "trials": 5}
    assert content["runs"] == ["bm25", "dense"]
    assert (content["method"], content["missing"], content["queries"]) == ("zscore", "min", 5)
    assert list(content["weights"]) in content["plateau"]
    printed = capsys.readouterr().out
    assert all(figure(content[name]) in printed for name in ("score", "held_out"))
    output = fuse(both(made), output=tmp_path / "f.parquet", weights=f"@{weights}")
    assert mean_reciprocal_rank(output, tiny / "qrels.test.parquet") == pytest.approx(content["score"])
    recorded = artifacts.read_manifest(output, Kind.RUN).options
    assert (recorded["method"], recorded["missing"], recorded["weights"]) == ("zscore", "min", content["weights"])
    assert notices.says("tuned-on-queries", path="w.json", count=5, queries=6)
    settings: dict[str, Any] = {"runs": both(made), "output": tmp_path / "g.parquet", "weights": f"@{weights}"}
    for bad, message in (
        ({"method": "minmax"}, refusal("tuned-with-other-option", option="method")),
        ({"missing": "zero"}, refusal("tuned-with-other-option", option="missing")),
        ({"runs": [*both(made), weights.with_name("x=") / "y"]}, refusal("tuned-for-others", path="w.json")),
    ):
        with raises(message):
            fuse(**{**settings, **bad})
    with raises("other-order"):
        fuse(both(made)[::-1], output=tmp_path / "g.parquet", weights=f"@{weights}")


def test_tuning_chooses_method_and_weights_together(made: Path, tiny: Path, tmp_path: Path) -> None:
    weights = fuse(
        both(made), output=tmp_path / "w.json", qrels=tiny, split="test", tune=True, index=indexes(made), step=0.25
    )
    content = json.loads(weights.read_text("utf-8"))
    tried = {trial["method"] for trial in content["trials"]}
    assert tried == {"minmax", "zscore", "rrf k=60", "rrf k=10", "weighted-sum"}
    assert content["best"]["score"] == max(trial["score"] for trial in content["trials"])
    exact: dict[str, Any] = {"index": indexes(made)} if content["missing"] == "exact" else {}
    output = fuse(both(made), output=tmp_path / "f.parquet", weights=f"@{weights}", **exact)
    assert mean_reciprocal_rank(output, tiny / "qrels.test.parquet") == pytest.approx(content["score"])


@pytest.mark.heavy
@pytest.mark.slow
def test_the_prior_is_used_for_a_lexical_and_a_dense_run_only(made: Path, tiny: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"qrels": tiny, "split": "test", "tune": True}

    def tuned(name: str, *of: Path, **more: Any) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(
            fuse(list(of), output=tmp_path / name, **options, **more).read_text("utf-8")
        )
        return content

    shrunk = tuned("a.json", *both(made), prior_queries=15)
    assert (shrunk["prior_queries"], shrunk["no_prior"]) == (15, None)
    assert shrunk["share_of_prior"] == pytest.approx(15 / 20)
    assert tuned("b.json", *both(made), prior_queries=0)["no_prior"] == "--prior-queries is 0"
    moved = [Path(shutil.copy(path, tmp_path)) for path in both(made)]  # without their indexes
    assert tuned("moved.json", *moved)["no_prior"] is None
    again = search(tiny, split="test", index=made / "dense", hits=4, output=tmp_path / "again.parquet")
    assert "one of a lexical and one of a dense index" in tuned("c.json", both(made)[1], again)["no_prior"]
    assert "--missing changes the methods" in tuned("d.json", *both(made), missing="min")["no_prior"]
    assert "does not cover borda" in tuned("e.json", *both(made), methods=["borda"])["no_prior"]
    exact: dict[str, Any] = {"index": indexes(made)}
    assert tuned("f.json", *both(made), **exact)["no_prior"] is None
    exact |= {"method": "weighted-sum", "missing": "exact"}
    assert tuned("g.json", *both(made), **exact)["share_of_prior"] == pytest.approx(1 / 2)
    assert "weighted-sum with another grid than scaled" in tuned("h.json", *both(made), **exact, grid="log")["no_prior"]


@pytest.mark.parametrize(
    ("grid", "weights"),
    [
        ("clear", {(tenth / 10, 1.0) for tenth in range(1, 10)}),
        ("roc", {(1.0, tenth / 10) for tenth in range(21)}),
        ("spar", {(1.0, weight) for tenth in range(1, 11) for weight in (tenth / 10, 10 / tenth)}),
    ],
)
def test_a_published_grid_tries_its_weights_only(
    made: Path, tiny: Path, tmp_path: Path, grid: Any, weights: set[tuple[float, float]]
) -> None:
    settings: dict[str, Any] = {"method": "weighted-sum", "missing": "min", "qrels": tiny, "split": "test"}
    path = fuse(both(made), output=tmp_path / "w.json", tune=True, grid=grid, **settings)
    trials = {tuple(trial["weights"]) for trial in json.loads(path.read_text("utf-8"))["trials"]}
    assert sorted(trials) == [pytest.approx(pair) for pair in sorted(weights)]
    assert len(trials) == {"clear": 9, "roc": 21, "spar": 19}[grid]
    third = shutil.copy(both(made)[0], tmp_path / "third.parquet")
    with raises("number-of-values", option="grid", value=3):
        fuse([*both(made), third], output=tmp_path / "w3.json", tune=True, grid=grid, **settings)


def test_tuning_with_exact_scores(made: Path, tiny: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"method": "weighted-sum", "index": indexes(made), "qrels": tiny, "split": "test"}
    weights = fuse(both(made), output=tmp_path / "w.json", tune=True, grid="log", **settings)
    output = fuse(both(made), output=tmp_path / "f.parquet", weights=f"@{weights}", **settings)
    score = mean_reciprocal_rank(output, tiny / "qrels.test.parquet")
    assert score == pytest.approx(json.loads(weights.read_text("utf-8"))["score"])
