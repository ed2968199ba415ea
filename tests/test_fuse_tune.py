"""`fuse --tune`: weights, methods, grids, the prior, and the file that a later fusion reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import Notices, raises, refusal
from small_artifacts import open_output
from tiny_runs import HITS, both, indexes, write_tiny_runs

from hybrid_cli import artifacts, runs
from hybrid_cli.evaluation.measures import evaluate_run
from hybrid_cli.reporting.tables import figure
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.search import search
from hybrid_cli.storage import Kind


@pytest.fixture(scope="module")
def made(tiny: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_runs(tmp_path_factory.mktemp("fuse"), tiny, tiny_bert)


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


def test_rrf_is_tuned_with_its_constant(made: Path, tiny: Path, tmp_path: Path) -> None:
    weights = fuse(
        both(made), output=tmp_path / "w.json", qrels=tiny, split="test", tune=True, methods=["wrrf"], rrf_k=3
    )
    assert json.loads(weights.read_text("utf-8"))["rrf_k"] == 3
    output = fuse(both(made), output=tmp_path / "f.parquet", weights=f"@{weights}")
    assert artifacts.read_manifest(output, Kind.RUN).options["rrf_k"] == 3


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
    again = search(tiny, split="test", index=made / "dense", hits=HITS, output=tmp_path / "again.parquet")
    assert "one of a lexical and one of a dense index" in tuned("c.json", both(made)[1], again)["no_prior"]
    assert "--missing changes the methods" in tuned("d.json", *both(made), missing="min")["no_prior"]
    assert "does not cover borda" in tuned("e.json", *both(made), methods=["borda"])["no_prior"]
    exact: dict[str, Any] = {"index": indexes(made)}
    assert tuned("f.json", *both(made), **exact)["no_prior"] is None
    exact |= {"method": "weighted-sum", "missing": "exact"}
    assert tuned("g.json", *both(made), **exact)["share_of_prior"] == pytest.approx(1 / 2)
    assert "weighted-sum with another grid than scaled" in tuned("h.json", *both(made), **exact, grid="log")["no_prior"]


def test_one_judged_query_gives_weights_without_a_held_out_score(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    qid, docid = runs.read_run(made / "bm25.parquet").select("qid", "docid").row(0)
    qrels = tmp_path / "one.tsv"
    qrels.write_text(f"{qid}\t0\t{docid}\t1\n", "utf-8")
    weights = fuse(both(made), output=tmp_path / "w.json", qrels=qrels, tune=True)
    content = json.loads(weights.read_text("utf-8"))
    assert content["held_out"] is None
    assert content["gain_interval"] is None
    assert not content["gain_distinguishable"]
    assert content["held_out_interval"] is None
    assert "None" not in capsys.readouterr().out


def test_judged_queries_without_a_hit_are_refused(made: Path, tmp_path: Path) -> None:
    qids = runs.read_run(made / "bm25.parquet")["qid"].unique(maintain_order=True).to_list()
    qrels = tmp_path / "none.tsv"
    qrels.write_text("".join(f"{qid}\t0\tno such document\t1\n" for qid in qids), "utf-8")
    with raises("measure-always-zero", path="none.tsv", option="measure", value="MRR@10"):
        fuse(both(made), output=tmp_path / "w.json", qrels=qrels, tune=True)
    assert not (tmp_path / "w.json").exists()


def test_runs_of_different_depth_are_tuned_and_fused_with_a_note(
    made: Path, tiny: Path, tmp_path: Path, notices: Notices
) -> None:
    short = search(tiny, split="test", index=made / "dense", hits=1, output=tmp_path / "dense.parquet")
    pair, lengths = [both(made)[0], short], {"bm25": 3, "dense": 1}
    fuse(pair, output=tmp_path / "w.json", qrels=tiny, split="test", tune=True)
    assert notices.says("list-lengths", hits=lengths)
    notices.clear()
    fuse(pair, output=tmp_path / "f.parquet")
    assert notices.says("list-lengths", hits=lengths)
    notices.clear()
    fuse(pair, output=tmp_path / "e.parquet", method="weighted-sum", index=indexes(made), missing="exact")
    assert not notices.says("list-lengths")


def test_a_file_of_an_earlier_version_is_refused(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    open_output(path, kind=Kind.WEIGHTS).write_json({"runs": ["bm25", "dense"], "weights": [0.3, 0.7]})
    with raises("older-format", path="old.json", field="method"):
        fuse(both(made), output=tmp_path / "f.parquet", weights=f"@{path}")


def test_more_folds_than_judged_queries_are_refused(made: Path, tiny: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"tune": True, "qrels": tiny, "split": "test", "output": tmp_path / "w.json"}
    with raises("out-of-range", option="folds", limit=5, path="qrels.test.parquet"):
        fuse(both(made), folds=1000, **options)
    fuse(both(made), folds=5, **options)


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
