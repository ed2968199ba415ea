"""Calibrated probabilities, and the queries that they leave without an answer."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import Notices, hybrid, raises, ran, refused
from sklearn.metrics import roc_auc_score

from hybrid_cli import open_index, open_retriever, runs
from hybrid_cli.artifacts.retrievers import RetrieverFiles, read_retriever
from hybrid_cli.collections.folds import random_folds
from hybrid_cli.commands import PreparePythonDocs
from hybrid_cli.reporting.studies import area_under_roc, false_hits, risk_at_coverage
from hybrid_cli.reporting.tables import figure
from hybrid_cli.retrieval.calibration import (
    FOLDS,
    Calibration,
    Fold,
    Prior,
    calibrate,
    calibration_error,
    prior_of,
    reliability,
)
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.evaluate import evaluate
from hybrid_cli.stages.export import export
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.stages.search import search

SIDES = ["bm25", "dense"]
PRIOR = prior_of(["lexical", "dense"])


def made_up(queries: int, seed: int, chance: bool = False) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return hits whose relevance follows their score, or with `chance` nothing, and the judgments."""
    drawn = np.random.default_rng(seed)
    hits, judged = [], []
    for query in range(queries):
        scores = np.sort(drawn.normal(size=(30, 2)).sum(1))[::-1]
        likely = np.full(30, 0.1) if chance else 1 / (1 + np.exp(4 - 2 * scores))
        relevant = drawn.random(30) < likely
        rows = {
            "qid": [f"q{query}"] * 30,
            "docid": [f"d{n}" for n in range(30)],
            "rank": np.arange(1, 31, dtype=np.int32),
        }
        for side in SIDES:
            noisy = scores + drawn.normal(size=30)
            ranks = (-noisy).argsort().argsort() + 1
            rows |= {f"{side}_rank": ranks.astype(np.int32), f"{side}_score": noisy}
        hits.append(pl.DataFrame(rows | {"score": scores}))
        judged.append(
            pl.DataFrame({"qid": rows["qid"], "docid": rows["docid"], "relevance": relevant.astype(np.int32)})
        )
    return pl.concat(hits), pl.concat(judged)


def learned(hits: pl.DataFrame, qrels: pl.DataFrame, prior: Prior = PRIOR) -> Calibration:
    return calibrate(hits, qrels, parts(hits), SIDES, 30, prior, 1)


def parts(hits: pl.DataFrame) -> list[Fold]:
    qids = set(hits["qid"])
    return [Fold(fold, hits) for fold in random_folds(qids, min(FOLDS, len(qids)), 1)]


def test_the_calibration_error_is_the_mean_distance_of_probability_and_share() -> None:
    likely = np.repeat([0.2, 0.8], 50)
    relevant = np.concatenate([np.arange(50) < 10, np.arange(50) < 20]).astype(float)
    bins = reliability(likely, relevant, 2)
    assert [value for each in bins for value in each] == pytest.approx([0.2, 0.2, 50, 0.8, 0.4, 50])
    assert calibration_error(bins) == pytest.approx(0.2)
    assert reliability(np.zeros(0), np.zeros(0)) == []
    assert calibration_error([]) == 0
    assert len(reliability(np.array([0.5, 0.6]), np.ones(2))) == 2


def test_probabilities_are_right_on_other_queries() -> None:
    calibration = learned(*made_up(200, 0))
    hits, qrels = made_up(200, 1)
    likely = calibration.probabilities(hits, SIDES)
    assert ((likely > 0) & (likely < 1)).all()
    first = (hits["rank"] <= 10).to_numpy()
    relevant = qrels["relevance"].to_numpy().astype(float)
    assert calibration_error(reliability(likely[first], relevant[first])) < 0.1  # a fifth of queries is assumed empty
    assert calibration.error < 0.05
    assert (calibration.queries, calibration.relevant > 0) == (200, True)


def test_a_higher_score_of_all_sides_is_more_probable() -> None:
    hits, qrels = made_up(200, 0)
    calibration = learned(hits, qrels)
    one = hits.filter(pl.col("qid") == "q0")
    better = one.with_columns(
        pl.col("score", "bm25_score", "dense_score") + pl.when(pl.col("rank") == 1).then(1).otherwise(0)
    )
    assert calibration.probabilities(better, SIDES)[0] > calibration.probabilities(one, SIDES)[0]


def test_judgments_by_chance_teach_nothing_about_left_out_queries() -> None:
    """If left-out queries leaked into the fit, their hits would be sorted by relevance."""
    calibration = learned(*made_up(100, 3, chance=True))
    lowest, highest = calibration.bins[0], calibration.bins[-1]
    assert highest[1] - lowest[1] < 0.1
    assert calibration.error < 0.06


def test_the_judgments_of_a_fold_do_not_change_its_own_probabilities() -> None:
    hits, qrels = made_up(40, 4)
    folds = parts(hits)
    other = qrels.with_columns(
        relevance=pl.when(pl.col("qid").is_in(list(folds[0].qids))).then(1 - pl.col("relevance")).otherwise("relevance")
    )
    alone = [fold for fold in folds if fold is not folds[0]]
    rest = qrels.filter(~pl.col("qid").is_in(list(folds[0].qids)))
    same = [calibrate(hits, judged, alone, SIDES, 30, PRIOR, 1).coefficients for judged in (qrels, other)]
    assert same[0] == pytest.approx(same[1])
    assert same[0] != pytest.approx(calibrate(hits, qrels, folds, SIDES, 30, PRIOR, 1).coefficients)
    assert len(rest) < len(qrels)


def test_few_queries_stay_near_the_prior() -> None:
    few, many = (learned(*made_up(number, 5)).coefficients for number in (5, 300))
    distance = [np.abs(np.array(coefficients) - PRIOR.means).sum() for coefficients in (few, many)]
    assert distance[0] < distance[1]
    left_out = prior_of(["lexical", "dense"], ["scifact"])
    assert not np.allclose(left_out.means, PRIOR.means)
    swapped = prior_of(["dense", "lexical"])
    assert (swapped.means[4:6] == PRIOR.means[6:8]).all()
    assert not prior_of(["dense"]).means.any()


def test_bad_judgments_are_refused() -> None:
    hits, qrels = made_up(10, 0)
    with raises("no-relevant-hits", value=10):
        learned(hits, qrels.with_columns(relevance=pl.lit(0, pl.Int32)))
    with raises("too-few-queries", value=3, limit=5):
        learned(*made_up(3, 0))
    with raises("too-few-queries", value=0):
        learned(hits, qrels.with_columns(qid=pl.lit("other")))


@pytest.fixture(scope="module")
def docs(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibration")
    few = {"train": 1, "dev": 60, "test": 40}
    prepare(PreparePythonDocs(package=["rich"], sample=250, sample_queries=few, output=folder / "rich"))
    index_bm25(folder / "rich", output=folder / "bm25")
    encode(folder / "rich", model=str(tiny_bert), output=folder / "dense")
    compose(sides(folder), calibrate=True, qrels=folder / "rich", split="dev", output=folder / "calibrated")
    return folder


def sides(folder: Path) -> list[Path]:
    return [folder / "bm25", folder / "dense"]


def test_a_retriever_stores_what_it_learned(docs: Path) -> None:
    stored = read_retriever(docs / "calibrated").calibration
    assert stored is not None
    assert stored["error"] < 0.06
    assert stored["queries"] == pl.read_parquet(docs / "rich/qrels.dev.parquet")["qid"].n_unique()
    assert figure(stored["error"]) in ran("inspect", docs / "calibrated").out
    untuned = compose(sides(docs), output=docs / "plain")
    assert read_retriever(untuned).calibration is None
    query = "print text in a table"
    plain, likely = (open_retriever(path).search(query, 20) for path in (untuned, docs / "calibrated"))
    assert likely.drop("probability").equals(plain)
    assert likely["probability"].is_between(0, 1).all()


def test_the_probability_of_a_hit_does_not_depend_on_the_number_of_hits_or_queries(docs: Path) -> None:
    queries = pl.read_parquet(docs / "rich/queries.test.parquet").select("qid", "text")
    retriever = open_retriever(docs / "calibrated")
    many = retriever.search(queries, 30)
    few = pl.concat(retriever.search(queries[row], 3) for row in range(len(queries)))
    np.testing.assert_allclose(many.filter(pl.col("rank") <= 3)["probability"], few["probability"], atol=0.01)
    relevant = many.join(pl.read_parquet(docs / "rich/qrels.test.parquet"), on=["qid", "docid"], how="left")
    first = relevant.filter(pl.col("rank") <= 10)
    grades = (first["relevance"].fill_null(0) > 0).to_numpy().astype(float)
    assert calibration_error(reliability(first["probability"].to_numpy(), grades)) < 0.1


def test_hits_below_the_least_probability_are_dropped(docs: Path, tmp_path: Path) -> None:
    retriever = open_retriever(docs / "calibrated")
    queries = pl.read_parquet(docs / "rich/queries.test.parquet").select("qid", "text")
    whole = retriever.search(queries, 30)
    least = float(whole["probability"].quantile(0.98) or 0)
    kept = whole.filter(pl.col("probability") >= least)
    expected = kept.select("qid", "docid", rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32).over("qid"))
    found = retriever.search(queries, 30, min_probability=least)
    assert found.select("qid", "docid", "rank").equals(expected)
    assert found["qid"].n_unique() < len(queries), "some queries have no hit"
    assert open_retriever(docs / "calibrated", min_probability=least).search(queries, 30).equals(found)
    options: dict[str, Any] = {"split": "test", "hits": 30, "min_probability": least}
    run = search(docs / "rich", index=docs / "calibrated", output=tmp_path / "run.parquet", **options)
    assert runs.read_run(run).select("qid", "docid", "rank").equals(expected)
    written = runs.with_probability(run, runs.read_run(run).select("qid", "docid"))
    np.testing.assert_allclose(written["probability"], kept["probability"])
    assert retriever.search(queries, 30, min_probability=0).drop("rank").equals(whole.drop("rank"))


def test_a_query_without_an_answer_has_no_hits(docs: Path) -> None:
    words = ["search", "--index", docs / "calibrated", "--query", "zebra soup"]
    unsure = hybrid(*words, "--min-probability", "1", "--format", "json")
    assert json.loads(unsure.out) == {"query": "zebra soup", "answerable": False, "hits": []}
    ran(*words, "--min-probability", "1")
    sure = json.loads(hybrid(*words, "--min-probability", "0", "--format", "json").out)
    assert sure["answerable"] is True
    assert all(0 < hit["probability"] < 1 for hit in sure["hits"])
    assert "answerable" not in json.loads(hybrid(*words, "--format", "json").out)
    nothing = open_retriever(docs / "calibrated").search(["zebra soup", "table"], min_probability=1.0)
    assert len(nothing) == 0
    assert {"qid", "docid", "probability"} <= set(nothing.columns)


def test_a_run_in_which_all_hits_are_improbable_is_empty(docs: Path, workdir: Path) -> None:
    words = ["search", docs / "rich", "--split", "test", "--index", docs / "calibrated", "--min-probability", "1"]
    assert hybrid(*words, "--output", "none.parquet").says("written", hits=0)
    assert runs.read_run(Path("none.parquet")).is_empty()
    studied = hybrid(
        "evaluate", docs / "rich", "--split", "test", "none.parquet", "--study", "answerable", "--format", "json"
    )
    (found,) = json.loads(studied.out)["runs"]
    assert (found["answered"], found["risk_area"], set(found["risks"].values())) == (0, None, {None})
    refused("evaluate", docs / "rich", "--split", "test", "none.parquet", problem="other-queries")


def test_probabilities_of_a_retriever_without_calibration_are_refused(docs: Path, workdir: Path) -> None:
    plain = compose(sides(docs), method="rrf", output=workdir / "plain")
    words = ["--min-probability", "0.5"]
    refused("search", "--index", plain, "--query", "table", *words, problem="not-calibrated")
    where = ("--split", "test", "--index", plain, "--output", "run.parquet")
    refused("search", docs / "rich", *where, *words, problem="not-calibrated")
    with raises("not-calibrated"):
        open_index(docs / "bm25").search("table", min_probability=0.5)


@pytest.mark.parametrize("fusion", [{"tune": True}, {"method": "minmax"}, {"method": "rrf", "missing": "zero"}, None])
def test_every_fusion_and_one_index_are_calibrated(docs: Path, tmp_path: Path, fusion: dict[str, Any] | None) -> None:
    """Tuned weights are chosen without the fold whose hits are fitted; lists without a document have no score of it."""
    indexes, options = sides(docs)[: 1 if fusion is None else 2], fusion or {}
    retriever = compose(indexes, calibrate=True, qrels=docs / "rich", split="dev", output=tmp_path / "new", **options)
    stored = read_retriever(retriever)
    assert stored.calibration is not None
    assert stored.calibration["error"] < 0.08
    assert (stored.tuning is not None) == ("tune" in options)
    assert len(open_retriever(retriever).search("table", 5)["probability"].drop_nulls()) == 5


def test_an_update_makes_probabilities_stale(docs: Path, notices: Notices) -> None:
    files = RetrieverFiles.read(docs / "calibrated")
    assert files.calibration is not None
    assert not notices.count("stale-calibration")
    updated = replace(files, stored=replace(files.stored, changed={"added": 5, "replaced": 0, "removed": 1}))
    assert updated.calibration == files.calibration
    assert notices.says("stale-calibration", path=docs / "calibrated", added=5)
    assert notices.count("stale-calibration") == 1


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
def here(workdir: Path) -> Path:
    """Two runs of eight queries, of which q5 to q8 have no answer; one run is cut, and lacks q4, q7 and q8."""
    rows = zip("1234567", "aaxaxxx", (9, 8, 7, 3, 6, 5, 1), strict=True)
    whole = "".join(f"q{number} Q0 {docid} 1 {score} t\nq{number} Q0 b 2 0 t\n" for number, docid, score in rows)
    Path("whole.trec").write_text(whole)
    Path("cut.trec").write_text("".join(line + "\n" for line in whole.splitlines() if line[:2] not in ("q4", "q7")))
    judged = [(f"q{number}", "a", int(number < 5)) for number in range(1, 7)]
    Path("qrels.tsv").write_text("".join(f"{qid}\t0\t{docid}\t{grade}\n" for qid, docid, grade in judged))
    Path("queries.tsv").write_text("".join(f"q{number}\ttext {number}\n" for number in range(1, 9)))
    return workdir


def test_figures_by_hand(here: Path) -> None:
    found = evaluate(
        ["whole.trec", "cut.trec"], qrels=Path("qrels.tsv"), queries=Path("queries.tsv"), study="answerable"
    )
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
    done = ran(*words, "--queries", "queries.tsv")
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
    (run,) = (SimpleNamespace(**run) for run in found.content["runs"])
    assert (run.area_under_roc, run.false_hits, run.false_hits_at_kept) == (None, None, None)
    assert run.risks["100"] == pytest.approx(1 / 3)
    ran("evaluate", "--qrels", "few.tsv", "few.trec", "--study", "answerable")


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


def test_runs_of_a_calibrated_retriever_have_probabilities_that_other_commands_ignore(workdir: Path) -> None:
    few = {"train": 1, "dev": 40, "test": 30}
    data = prepare(PreparePythonDocs(package=["rich"], sample=150, sample_queries=few, output=Path("data")))
    bm25 = index_bm25(data, output=Path("bm25"))
    retriever = compose([bm25], calibrate=True, qrels=data, split="dev", output=Path("made"))
    run = search(data, split="test", index=retriever, hits=20, output=Path("run.parquet"))
    plain = search(data, split="test", index=bm25, hits=20, output=Path("plain.parquet"))
    assert pl.read_parquet(run).columns == ["qid", "docid", "rank", "score", "probability"]
    assert runs.read_run(run).columns == ["qid", "docid", "rank", "score"]
    found = evaluate([data, run, plain], split="test", study="answerable")
    assert [first["confidence"] for first in found.content["runs"]] == ["probability", "score"]
    fused = fuse([run, plain], output=Path("fused.parquet"))
    assert pl.read_parquet(fused).columns == ["qid", "docid", "rank", "score"]
    export(run, form="trec", output=Path("run.trec"))
    for words in (["inspect", "--verify", run], ["inspect", run], ["evaluate", data, "--split", "test", run, fused]):
        ran(*words)
    searched = hybrid("evaluate", data, "--split", "test", retriever, "--study", "answerable", "--format", "json")
    assert json.loads(searched.out)["runs"][0]["confidence"] == "probability"
