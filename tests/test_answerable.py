"""`evaluate --study answerable`: risk at coverage, and false hits of queries without an answer."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from command import hybrid, raises, refused
from sklearn.metrics import roc_auc_score

from hybrid_cli import runs
from hybrid_cli.commands import PreparePythonDocs
from hybrid_cli.reporting.studies import area_under_roc, false_hits, risk_at_coverage
from hybrid_cli.reporting.tables import Result
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.evaluate import evaluate
from hybrid_cli.stages.export import export
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.stages.search import search


def test_the_risk_is_that_of_the_most_confident_queries() -> None:
    assert risk_at_coverage(np.array([0.1, 0.9, 0.5]), np.array([0.0, 1.0, 0.0])).tolist() == pytest.approx(
        [0, 1 / 2, 2 / 3]
    )
    assert risk_at_coverage(np.array([0.5, 0.9, 0.5]), np.array([0.0, 1.0, 1.0])).tolist() == pytest.approx(
        [0, 1 / 4, 1 / 3]
    )


def test_the_area_under_the_roc_is_that_of_scikit_learn() -> None:
    random = np.random.default_rng(1)
    confidence, having = random.integers(0, 20, 300).astype(float), random.random(300) < 0.7
    assert area_under_roc(confidence, having) == pytest.approx(roc_auc_score(having, confidence))
    without_hits = np.where(confidence < 3, -math.inf, confidence)
    assert area_under_roc(without_hits, having) == pytest.approx(roc_auc_score(having, np.maximum(confidence, 2)))
    assert area_under_roc(confidence, np.ones(300, bool)) is None


def test_false_hits_are_those_above_the_threshold_that_keeps_most_answers() -> None:
    having, lacking = np.arange(100.0), np.array([-math.inf, 4.0, 5.0, 80.0])
    confidence, known = np.concatenate([having, lacking]), np.arange(104) < 100
    assert false_hits(confidence, known, 0.95) == 3 / 4  # the threshold is 4
    assert false_hits(confidence, known, 0.2) == 1 / 4
    assert false_hits(np.where(known, -math.inf, confidence), known, 0.95) == 3 / 4  # nothing to keep but empty lists
    assert false_hits(having, np.ones(100, bool), 0.95) is None


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs of eight queries, of which q5 to q8 have no answer; one run is cut, and lacks q4, q7 and q8."""
    monkeypatch.chdir(tmp_path)
    rows = [
        ("q1", "a", 9),
        ("q2", "a", 8),
        ("q3", "x", 7),
        ("q4", "a", 3),
        ("q5", "x", 6),
        ("q6", "x", 5),
        ("q7", "x", 1),
    ]
    whole = "".join(f"{qid} Q0 {docid} 1 {score} t\n{qid} Q0 b 2 0 t\n" for qid, docid, score in rows)
    Path("whole.trec").write_text(whole)
    Path("cut.trec").write_text("".join(line + "\n" for line in whole.splitlines() if line[:2] not in ("q4", "q7")))
    judged = [(f"q{number}", "a", int(number < 5)) for number in range(1, 7)]
    Path("qrels.tsv").write_text("".join(f"{qid}\t0\t{docid}\t{grade}\n" for qid, docid, grade in judged))
    Path("queries.tsv").write_text("".join(f"q{number}\ttext {number}\n" for number in range(1, 9)))
    return tmp_path


def test_figures_by_hand(here: Path) -> None:
    found = evaluate(
        ["whole.trec", "cut.trec"], qrels=Path("qrels.tsv"), queries=Path("queries.tsv"), study="answerable"
    )
    assert isinstance(found, Result)
    assert [found.content[name] for name in ("answerable", "unanswerable", "unjudged")] == [4, 4, 2]
    whole, cut = (SimpleNamespace(**run) for run in found.content["runs"])
    assert (whole.confidence, whole.answered, whole.false_hits) == ("score", 1, 3 / 4)
    assert [*whole.risks.values()] == pytest.approx(
        [0, 2 / 4, 3 / 6, None, None, None]
    )  # q1 q2 | x3 x5 | x6 q4 | x7: 8 queries
    assert whole.risk_area == pytest.approx(np.mean([0, 0, 1 / 3, 2 / 4, 3 / 5, 3 / 6, 4 / 7]))
    scores = {"q1": 9, "q2": 8, "q3": 7, "q4": 3, "q5": 6, "q6": 5, "q7": 1, "q8": 0}
    expected = roc_auc_score([qid <= "q4" for qid in scores], list(scores.values()))
    assert whole.area_under_roc == pytest.approx(expected)
    assert whole.false_hits_at_kept == 2 / 4  # hits from 3, the lowest of four answers
    assert (cut.answered, cut.false_hits, cut.false_hits_at_kept) == (3 / 4, 2 / 4, 2 / 4)
    assert [*cut.risks.values()] == pytest.approx([0, 2 / 4, None, None, None, None])


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown", "latex"])
def test_every_format_has_the_figures(here: Path, form: str) -> None:
    words = ["evaluate", "--qrels", "qrels.tsv", "whole.trec", "cut.trec", "--study", "answerable", "--format", form]
    done = hybrid(*words, "--queries", "queries.tsv")
    assert done.code == 0, done.err
    if form == "json":
        content = json.loads(done.out)
        assert (content["answerable"], content["unanswerable"]) == (4, 4)
        assert content["runs"][0]["risks"]["50"] == 0.5
    else:
        assert "whole" in done.out
        assert "875" in done.out  # AUROC


def test_all_queries_with_an_answer_have_risks_but_no_false_hits(here: Path) -> None:
    Path("few.tsv").write_text("q1 0 a 1\nq2 0 a 1\nq3 0 a 1\n")
    Path("few.trec").write_text("q1 Q0 a 1 3 t\nq2 Q0 x 1 2 t\nq3 Q0 a 1 1 t\n")
    found = evaluate(["few.trec"], qrels=Path("few.tsv"), study="answerable")
    assert isinstance(found, Result)
    (run,) = (SimpleNamespace(**run) for run in found.content["runs"])
    assert (run.area_under_roc, run.false_hits, run.false_hits_at_kept) == (None, None, None)
    assert run.risks["100"] == pytest.approx(1 / 3)
    assert hybrid("evaluate", "--qrels", "few.tsv", "few.trec", "--study", "answerable").code == 0


def test_judgments_without_an_answer_and_other_studies_are_refused(here: Path) -> None:
    Path("zero.tsv").write_text("q1 0 a 0\n")
    with raises("nothing-relevant", path="zero.tsv"):
        evaluate(["whole.trec"], qrels=Path("zero.tsv"), study="answerable")
    words = ["evaluate", "--qrels", "qrels.tsv", "whole.trec", "--study", "answerable"]
    refused(*words, "--machine", "qrels.tsv", problem="option-does-not-apply")


@pytest.mark.parametrize("study", [("--study", "answerable"), ("--machine", "qrels.tsv")])
@pytest.mark.parametrize(
    "option",
    [("--baseline", "whole"), ("--test", "t"), ("--correction", "none"), ("--seed", "2"), ("--overlap-with", "cut")],
)
def test_options_of_comparisons_are_refused(here: Path, study: tuple[str, ...], option: tuple[str, ...]) -> None:
    words = ["evaluate", "--qrels", "qrels.tsv", "whole.trec", "cut.trec"]
    refused(*words, *study, *option, problem="option-does-not-apply")


def test_runs_of_a_calibrated_retriever_have_probabilities_that_other_commands_ignore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few = {"train": 1, "dev": 40, "test": 30}
    data = prepare(PreparePythonDocs(package=["rich"], sample=150, sample_queries=few, output=Path("data")))
    bm25 = index_bm25(data, output=Path("bm25"))
    retriever = compose([bm25], calibrate=True, qrels=data, split="dev", output=Path("made"))
    run = search(data, split="test", index=retriever, hits=20, output=Path("run.parquet"))
    plain = search(data, split="test", index=bm25, hits=20, output=Path("plain.parquet"))
    assert pl.read_parquet(run).columns == ["qid", "docid", "rank", "score", "probability"]
    assert runs.read_run(run).columns == ["qid", "docid", "rank", "score"]
    found = evaluate([data, run, plain], split="test", study="answerable")
    assert isinstance(found, Result)
    assert [first["confidence"] for first in found.content["runs"]] == ["probability", "score"]
    fused = fuse([run, plain], output=Path("fused.parquet"))
    assert pl.read_parquet(fused).columns == ["qid", "docid", "rank", "score"]
    export(run, form="trec", output=Path("run.trec"))
    for words in (["inspect", "--verify", run], ["inspect", run], ["evaluate", data, "--split", "test", run, fused]):
        assert hybrid(*words).code == 0
    searched = hybrid("evaluate", data, "--split", "test", retriever, "--study", "answerable", "--format", "json")
    assert json.loads(searched.out)["runs"][0]["confidence"] == "probability"
