"""fuse and concat-runs: exact scores, tuning, priors, parts of runs."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
from command import Done, Notices, hybrid, raises, ran, refusal
from hypothesis import given
from hypothesis import strategies as st
from small_artifacts import HITS, open_output, run_table, write_run
from sparse_models import write_checkpoint
from tiny_collection import TINY_DOCUMENTS, write_tiny_source

from hybrid_cli import artifacts, runs
from hybrid_cli.artifacts import opening
from hybrid_cli.artifacts.exact import exact_source
from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.evaluation.measures import evaluate_run
from hybrid_cli.reporting.tables import figure
from hybrid_cli.stages.concat_runs import concat_runs
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.search import search
from hybrid_cli.storage import Kind


def both(tiny_runs: Path) -> list[Path]:
    return [tiny_runs / "bm25.parquet", tiny_runs / "dense.parquet"]


def indexes(tiny_runs: Path) -> list[Path]:
    return [tiny_runs / "bm25", tiny_runs / "dense"]


def trec_file(path: Path, *rows: tuple[str, str, int, float]) -> Path:
    lines = [f"{qid} Q0 {docid} {rank} {score} tag\n" for qid, docid, rank, score in rows]
    path.write_text("".join(lines), "utf-8")
    return path


@pytest.mark.slow
def test_exact_scores_follow_the_formula(tiny_runs: Path, tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    output = fuse(
        both(tiny_runs), output=tmp_path / "f.parquet", method="weighted-sum", weights="0.5,1", index=indexes(tiny_runs)
    )
    found = runs.read_run(output)
    queries = pl.read_parquet(tiny / "queries.test.parquet")
    encoder = TransformerEncoder.load(tiny_bert)
    vectors = dict(zip(queries["qid"], encoder.encode_queries(queries["text"].to_list()), strict=True))
    texts = {docid: (title, text) for docid, title, text in TINY_DOCUMENTS}
    pairs = pl.concat([runs.read_run(path).select("qid", "docid") for path in both(tiny_runs)]).unique()
    lexical = open_bm25(tiny_runs / "bm25").score(pairs, queries)
    titles, bodies = zip(*(texts[docid] for docid in pairs["docid"]), strict=True)
    passages = encoder.encode_documents(titles, bodies)
    dense = [float(vectors[qid] @ passage) for qid, passage in zip(pairs["qid"], passages, strict=True)]
    expected = dict(zip(pairs.iter_rows(), (0.5 * lexical + pl.Series(dense)).to_list(), strict=True))
    assert len(found) == len(expected) > len(runs.read_run(both(tiny_runs)[0]))
    assert {(qid, docid): score for qid, docid, _, score in found.iter_rows()} == pytest.approx(expected, abs=1e-4)


def test_options_are_recorded_and_an_equal_output_is_kept(tiny_runs: Path, tmp_path: Path, notices: Notices) -> None:
    output = fuse(both(tiny_runs), output=tmp_path / "f.parquet", hits=3)
    manifest = artifacts.read_manifest(output, Kind.RUN)
    options = {
        "method": "minmax",
        "missing": "zero",
        "normalize": None,
        "depth": 1000,
        "weights": [1.0, 1.0],
        "hits": 3,
    }
    assert manifest.options == options
    assert [manifest.input_path(role) for role in ("run 1", "run 2")] == both(tiny_runs)
    assert notices.says("written", path="f.parquet", queries=6)
    assert runs.read_run(output)["rank"].max() == 3
    fuse(both(tiny_runs), output=output, hits=3)
    assert notices.says("up-to-date")
    with raises("output-differs", path="f.parquet"):
        fuse(both(tiny_runs), output=output, hits=4)


def test_scores_beyond_32_bits_and_one_run_under_two_names_are_refused(tmp_path: Path) -> None:
    large = trec_file(tmp_path / "large.trec", ("q", "a", 1, 3e38))
    other = trec_file(tmp_path / "other.trec", ("q", "a", 1, 3e38))
    for options, message in (
        ({"runs": [large, other]}, refusal("score-not-finite")),
        ({"runs": [large, other], "weights": "1e308,1e308"}, refusal("out-of-range", option="weights")),
        ({"runs": [large, f"again={large}"]}, refusal("repeated-input", path="large.trec")),
    ):
        with raises(message):
            fuse(output=tmp_path / "f.parquet", method="combsum", normalize="none", **options)
        assert not (tmp_path / "f.parquet").exists()


def test_foreign_runs_with_odd_ids_and_several_lists(tmp_path: Path) -> None:
    first = trec_file(tmp_path / "a.trec", ("007", "NA", 1, 3.0), ("007", "1e5", 2, 2.0))
    second = trec_file(tmp_path / "b.trec", ("007", "null", 1, 3.0), ("7", "NA", 1, 2.0))
    third = trec_file(tmp_path / "c.trec", ("007", "1e5", 1, 0.5))
    found = runs.read_run(fuse([first, second, third], output=tmp_path / "f.parquet", method="rrf"))
    assert found.select("qid", "docid").rows() == [("007", "1e5"), ("007", "NA"), ("007", "null"), ("7", "NA")]


def test_exact_scores_need_the_index_of_each_run(tiny_runs: Path, tmp_path: Path) -> None:
    for names, code in ((["bm25"], "number-of-values"), (["dense", "bm25"], "other-index")):
        with raises(code):
            fuse(
                both(tiny_runs),
                method="weighted-sum",
                index=[tiny_runs / each for each in names],
                output=tmp_path / "f.parquet",
            )
    assert not list(tmp_path.iterdir())


def test_exact_scores_refuse_queries_that_have_changed(made: Path, tiny: Path, tmp_path: Path) -> None:
    queries = tmp_path / "queries.tsv"
    queries.write_text("001\twhat does the moon do to the oceans\n")
    run = search(None, queries=queries, index=made / "bm25", hits=1, output=tmp_path / "one.parquet")
    other = search(None, queries=queries, index=made / "dense", hits=1, output=tmp_path / "two.parquet")
    queries.write_text("001\tanother text\n")
    settings: dict[str, Any] = {"output": tmp_path / "f.parquet", "method": "weighted-sum", "index": indexes(made)}
    with raises("input-changed"):
        fuse([run, other], **settings)
    assert len(runs.read_run(fuse([run, other], **settings, queries=tiny, split="test")))


def test_exact_scores_of_a_foreign_run_need_its_queries(made: Path, tiny: Path, tmp_path: Path) -> None:
    foreign = trec_file(tmp_path / "x.trec", ("001", "007", 1, 1.0), ("003", "lungs", 1, 1.0))
    settings: dict[str, Any] = {"output": tmp_path / "f.parquet", "method": "weighted-sum", "index": indexes(made)}
    with raises("queries-missing"):
        fuse([both(made)[0], foreign], **settings)
    assert len(runs.read_run(fuse([both(made)[0], foreign], **settings, queries=tiny, split="test")))


def test_the_encoder_is_opened_once_for_all_blocks(tiny_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opener = Mock(wraps=opening.query_encoder)
    monkeypatch.setattr(opening, "query_encoder", opener)
    run = runs.read_run(tiny_runs / "dense.parquet")
    scorer = exact_source(tiny_runs / "dense.parquet", tiny_runs / "dense").scorer(run["qid"])
    for part in (run.head(2), run.tail(2)):
        np.testing.assert_allclose(scorer(part.select("qid", "docid")), part["score"], atol=1e-5)
    assert opener.call_count == 1


def mean_reciprocal_rank(run: Path, qrels: Path) -> float:
    return float(evaluate_run(runs.read_run(run), pl.read_parquet(qrels), ["MRR@10"])["value"].to_numpy().mean())


def test_tuned_weights_are_read_by_a_later_fusion(
    tiny_runs: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], notices: Notices
) -> None:
    weights = fuse(
        both(tiny_runs), output=tmp_path / "w.json", qrels=tiny, split="test", tune=True, method="zscore", step=0.25
    )
    content = json.loads(weights.read_text("utf-8"))
    assert artifacts.read_manifest(weights, Kind.WEIGHTS).counts == {"queries": 5, "trials": 5}
    assert content["runs"] == ["bm25", "dense"]
    assert (content["method"], content["missing"], content["queries"]) == ("zscore", "min", 5)
    assert content["shares"] in content["plateau"]
    printed = capsys.readouterr().out
    assert all(figure(content[name]) in printed for name in ("score", "held_out"))
    output = fuse(both(tiny_runs), output=tmp_path / "f.parquet", weights=f"@{weights}")
    assert mean_reciprocal_rank(output, tiny / "qrels.test.parquet") == pytest.approx(content["score"])
    recorded = artifacts.read_manifest(output, Kind.RUN).options
    assert (recorded["method"], recorded["missing"], recorded["weights"]) == ("zscore", "min", content["weights"])
    assert notices.says("tuned-on-queries", path="w.json", count=5, queries=6)
    settings: dict[str, Any] = {"runs": both(tiny_runs), "output": tmp_path / "g.parquet", "weights": f"@{weights}"}
    for bad, message in (
        ({"method": "minmax"}, refusal("tuned-with-other-option", option="method")),
        ({"missing": "zero"}, refusal("tuned-with-other-option", option="missing")),
        ({"runs": [*both(tiny_runs), weights.with_name("x=") / "y"]}, refusal("tuned-for-others", path="w.json")),
    ):
        with raises(message):
            fuse(**{**settings, **bad})
    with raises("other-order"):
        fuse(both(tiny_runs)[::-1], output=tmp_path / "g.parquet", weights=f"@{weights}")


def test_further_methods_are_tried_next_to_the_first(tiny_runs: Path, tiny: Path, tmp_path: Path) -> None:
    """Five queries choose no method."""
    tuning: dict[str, Any] = {"qrels": tiny, "split": "test", "tune": True, "step": 0.25, "index": indexes(tiny_runs)}
    weights = fuse(both(tiny_runs), output=tmp_path / "w.json", methods=["zscore", "rrf", "weighted-sum"], **tuning)
    content = json.loads(weights.read_text("utf-8"))
    assert {trial["method"] for trial in content["trials"]} == {"zscore", "rrf k=60", "weighted-sum"}
    assert content["method"] == "zscore"
    output = fuse(both(tiny_runs), output=tmp_path / "f.parquet", weights=f"@{weights}")
    assert mean_reciprocal_rank(output, tiny / "qrels.test.parquet") == pytest.approx(content["score"])


@pytest.mark.parametrize(
    ("grid", "weights"),
    [
        ("clear", {(tenth / 10, 1.0) for tenth in range(1, 10)}),
        ("roc", {(1.0, tenth / 10) for tenth in range(21)}),
        ("spar", {(1.0, weight) for tenth in range(1, 11) for weight in (tenth / 10, 10 / tenth)}),
    ],
)
def test_a_published_grid(
    tiny_runs: Path, tiny: Path, tmp_path: Path, grid: Any, weights: set[tuple[float, float]]
) -> None:
    settings: dict[str, Any] = {"method": "weighted-sum", "missing": "min", "qrels": tiny, "split": "test"}
    path = fuse(both(tiny_runs), output=tmp_path / "w.json", tune=True, grid=grid, **settings)
    trials = {tuple(trial["weights"]) for trial in json.loads(path.read_text("utf-8"))["trials"]}
    assert sorted(trials) == [pytest.approx(pair) for pair in sorted(weights)]
    assert len(trials) == {"clear": 9, "roc": 21, "spar": 19}[grid]
    third = shutil.copy(both(tiny_runs)[0], tmp_path / "third.parquet")
    with raises("number-of-values", option="grid", value=3):
        fuse([*both(tiny_runs), third], output=tmp_path / "w3.json", tune=True, grid=grid, **settings)


@pytest.fixture
def three_runs(workdir: Path) -> None:
    """Judgments, a run that finds them all, one of other documents, and one of 20 hits."""
    late, qids = [*(f"w{number}" for number in range(15)), "right"], [f"q{number}" for number in range(12)]
    for name, docids in {"good": ["right", "wrong"], "foreign": ["RIGHT", "WRONG"], "late": late}.items():
        hits = [(qid, docid, rank, 50.0 - rank) for qid in qids for rank, docid in enumerate(docids, 1)]
        trec_file(Path(f"{name}.trec"), *hits)
    Path("qrels.tsv").write_text("".join(f"{qid}\t0\tright\t1\n" for qid in qids))


def tune(*runs: str, **options: Any) -> tuple[dict[str, Any], Done]:
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    done = ran("fuse", *runs, "--tune", "--qrels", "qrels.tsv", *words, "--output", "w.json", "--overwrite")
    return json.loads(Path("w.json").read_text()), done


@pytest.mark.usefixtures("three_runs")
def test_runs_are_tuned_and_compared_at_the_depth_of_the_fusion() -> None:
    content, done = tune("good.trec", "foreign.trec")
    assert {"no-judged-hit", "no-common-document"} <= set(done.warnings)
    assert content["alone"] == {"good": 1.0, "foreign": 0.0}
    trials = {tuple(each["weights"]): each["score"] for each in content["trials"] if each["method"] == "minmax"}
    assert content["untuned"]["score"] == trials[0.5, 0.5]
    assert tune("good.trec", "late.trec", method="rrf")[0]["untuned"] is None
    for options, value in (({}, 1.0), ({"depth": 10}, 0.0), ({"hits": 10}, 0.0)):
        content, done = tune("good.trec", "late.trec", measure="R@20", **options)
        assert content["alone"] == {"good": 1.0, "late": value}
        assert options or not {"no-judged-hit", "no-common-document"} & set(done.warnings)


def test_distances_are_refused_and_weak_fusions_are_warned_about(tmp_path: Path, notices: Notices) -> None:
    good = trec_file(tmp_path / "good.trec", ("q", "right", 1, 90.0), ("q", "wrong", 2, 10.0))
    bad = trec_file(tmp_path / "bad.trec", ("q", "wrong", 1, 0.9), ("q", "other", 2, 0.8))
    distances = trec_file(tmp_path / "l2.trec", ("q", "a", 1, 0.1), ("q", "b", 2, 0.9))
    with raises("scores-rise", path="l2.trec", run="l2"):
        fuse([good, distances], output=tmp_path / "f.parquet")
    (tmp_path / "qrels.txt").write_text("q 0 right 1\n")
    for weights in ([0.1, 1], [1, 0.1]):  # a tie is not an improvement
        notices.clear()
        fuse([good, bad], output=tmp_path / f"{weights}.parquet", weights=weights, qrels=tmp_path / "qrels.txt")
        assert notices.says("fusion-not-better", run="good")
    fuse([good, bad], output=tmp_path / "a.parquet", method="sum")
    assert notices.says("unequal-spread", run="good", other="bad")
    notices.clear()
    fuse([good, bad], output=tmp_path / "b.parquet", method="sum", weights=[0.01, 1])
    one = trec_file(tmp_path / "one.trec", ("q", "right", 1, 3.5))
    fuse([good, one], output=tmp_path / "c.parquet", method="sum")
    assert not notices.warnings, "no deviation to compare with"


def test_constants_and_exact_scores_are_those_of_the_tuned_weights(tiny_runs: Path, tiny: Path, tmp_path: Path) -> None:
    judged: dict[str, Any] = {"qrels": tiny, "split": "test", "tune": True}
    weights = fuse(both(tiny_runs), output=tmp_path / "rrf.json", methods=["wrrf"], rrf_k=3, **judged)
    output = fuse(both(tiny_runs), output=tmp_path / "rrf.parquet", weights=f"@{weights}")
    assert json.loads(weights.read_text("utf-8"))["rrf_k"] == 3
    assert artifacts.read_manifest(output, Kind.RUN).options["rrf_k"] == 3
    exact: dict[str, Any] = {"method": "weighted-sum", "index": indexes(tiny_runs)}
    weights = fuse(both(tiny_runs), output=tmp_path / "exact.json", grid="log", **exact, **judged)
    output = fuse(both(tiny_runs), output=tmp_path / "exact.parquet", weights=f"@{weights}", **exact)
    score = mean_reciprocal_rank(output, tiny / "qrels.test.parquet")
    assert score == pytest.approx(json.loads(weights.read_text("utf-8"))["score"])


def test_runs_of_different_depth_are_noted(tiny_runs: Path, tiny: Path, tmp_path: Path, notices: Notices) -> None:
    short = search(tiny, split="test", index=tiny_runs / "dense", hits=1, output=tmp_path / "dense.parquet")
    cases: dict[str, dict[str, Any]] = {
        "w.json": {"qrels": tiny, "split": "test", "tune": True},
        "f.parquet": {},
        "e.parquet": {"method": "weighted-sum", "index": indexes(tiny_runs), "missing": "exact"},
    }
    for name, options in cases.items():
        notices.clear()
        fuse([both(tiny_runs)[0], short], output=tmp_path / name, **options)
        assert notices.says("list-lengths", hits={"bm25": 3, "dense": 1}) is ("missing" not in options)


def test_the_untuned_fusion_is_tried_with_every_step(tiny_runs: Path, tiny: Path, tmp_path: Path) -> None:
    """Five queries change nothing, though the grid has other weights."""
    three = [*both(tiny_runs), Path(shutil.copy(both(tiny_runs)[0], tmp_path / "third.parquet"))]
    cases: list[tuple[list[Path], dict[str, Any], list[float]]] = [(three, {}, [1 / 3] * 3)]
    cases += [(both(tiny_runs), {"index": indexes(tiny_runs), "step": 0.25}, [0.3, 0.7])]
    cases += [(both(tiny_runs), {"step": 0.2}, [0.5, 0.5])]
    for number, (pair, options, shares) in enumerate(cases):
        path = fuse(pair, output=tmp_path / f"{number}.json", qrels=tiny, split="test", tune=True, **options)
        content = json.loads(path.read_text("utf-8"))
        assert content["keeps_untuned"]
        assert content["shares"] == pytest.approx(shares, abs=1e-6)


def test_scales_of_raw_scores_are_not_those_of_normalized_ones(tiny_runs: Path, tiny: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"index": indexes(tiny_runs), "missing": "exact", "grid": "scaled", "measure": "P@10"}
    for method, scaled in (("minmax", False), ("weighted-sum", True)):
        output = tmp_path / f"{method}.json"
        fuse(both(tiny_runs), output=output, qrels=tiny, split="test", tune=True, method=method, **how)
        content = json.loads(output.read_text("utf-8"))
        assert (content["scales"] is not None) is scaled
        assert content["more_may_add"] is None  # the curves are of other measures


def test_the_prior_is_used_for_bm25_and_a_dense_run_only(tiny_runs: Path, tiny: Path, tmp_path: Path) -> None:
    again = search(tiny, split="test", index=tiny_runs / "dense", hits=3, output=tmp_path / "again.parquet")
    exact: dict[str, Any] = {"index": indexes(tiny_runs), "method": "weighted-sum", "missing": "exact"}
    copies = [Path(shutil.copy(path, tmp_path)) for path in both(tiny_runs)]
    model = str(write_checkpoint(tmp_path / "model", "deepct"))
    sparse = encode(tiny, model=model, architecture="deepct", output=tmp_path / "sparse")
    learned = search(tiny, split="test", index=sparse, hits=4, output=tmp_path / "learned.parquet")
    cases: list[tuple[list[Path], dict[str, Any], bool]] = [(both(tiny_runs), {}, True), (both(tiny_runs), exact, True)]
    cases += [(copies, {}, True), ([both(tiny_runs)[1], again], {}, False)]
    cases += [([learned, both(tiny_runs)[1]], {}, False)]
    cases += [(both(tiny_runs), options, False) for options in ({"missing": "min"}, {"methods": ["borda"]})]
    cases += [(both(tiny_runs), {**exact, "grid": "log"}, False)]
    for number, (pair, options, used) in enumerate(cases):
        output = tmp_path / f"{number}.json"
        fuse(pair, output=output, qrels=tiny, split="test", tune=True, **options)
        content = json.loads(output.read_text("utf-8"))
        assert (content["no_prior"] is None) is (content["more_may_add"] is not None) is used


ROWS = [
    (f"q{query}", f"d{rank}", rank, float(10 - rank // 2)) for query in range(6) for rank in range(1, 5)
]  # with ties


@given(st.lists(st.integers(0, 2), min_size=6, max_size=6).filter(lambda homes: len(set(homes)) > 1))
def test_the_concatenated_parts_of_a_run_are_the_run(homes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = runs.read_run(write_run(folder / "whole.parquet", ROWS))
        parts = [[row for row in ROWS if homes[int(row[0][1])] == part] for part in range(3)]
        paths = [write_run(folder / f"{n}.parquet", rows) for n, rows in enumerate(parts) if rows]
        found = runs.read_run(concat_runs(paths, output=folder / "all.parquet"))
    assert found.sort("qid", "rank").equals(whole)


def test_a_trec_run_can_be_concatenated_and_ranks_and_scores_are_unchanged(tmp_path: Path) -> None:
    rows = [("q9", "b", 1, 1.0), ("q9", "a", 2, 1.0), ("q9", "c", 3, 5.0)]
    odd, trec = write_run(tmp_path / "odd.parquet", rows), tmp_path / "run.trec"
    trec.write_text("q8 Q0 a 1 2.5 tag\n", "utf-8")
    whole = concat_runs([trec, odd, write_run(tmp_path / "run.parquet")], output=tmp_path / "all.parquet")
    assert runs.read_run(whole).rows() == [("q8", "a", 1, 2.5), *rows, *HITS]


def test_a_run_without_hits_adds_nothing(tmp_path: Path) -> None:
    open_output(tmp_path / "empty.parquet").write([run_table().slice(0, 0)])
    output = concat_runs(
        [tmp_path / "empty.parquet", write_run(tmp_path / "run.parquet")], output=tmp_path / "all.parquet"
    )
    assert runs.read_run(output).rows() == HITS


def test_the_manifest_counts_queries_and_names_the_runs(tmp_path: Path, notices: Notices) -> None:
    paths = [write_run(tmp_path / "a.parquet"), write_run(tmp_path / "b.parquet", [("q3", "a", 1, 1.0)])]
    manifest = artifacts.read_manifest(concat_runs(paths, output=tmp_path / "all.parquet"), Kind.RUN)
    assert manifest.counts == {"rows": 4, "queries": 3}
    assert [manifest.input_path(role) for role in manifest.inputs] == paths
    assert notices.says("written", path="all.parquet", queries=3, hits=4, runs=2)
    concat_runs(paths, output=tmp_path / "all.parquet")
    assert notices.says("up-to-date")


def test_a_query_in_two_runs_is_refused_with_both_files(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / "a.parquet"), write_run(tmp_path / "b.parquet")]
    done = hybrid("concat-runs", *paths, "--output", tmp_path / "all.parquet")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert (done.problem, done.fields) == (
        "duplicate-query",
        {"path": Path(paths[1]), "id": "q1", "other": Path(paths[0]), "count": 2},
    )
    assert not (tmp_path / "all.parquet").exists()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(-3, 3)), min_size=1, max_size=12))
def test_a_document_has_the_score_of_its_best_passage(hits: list[tuple[int, int, int]]) -> None:
    best: dict[tuple[str, str], float] = {}
    passages: dict[str, dict[str, float]] = {}
    for number, (query, document, score) in enumerate(hits):
        qid, docid = f"q{query}", f"d#{document}"  # ids may contain the separator
        passages.setdefault(qid, {})[f"{docid}#{number}"] = float(score)
        best[qid, docid] = max(score, best.get((qid, docid), -9.0))
    rows = [
        (qid, docid, rank, score)
        for qid in sorted(passages)
        for rank, (docid, score) in enumerate(sorted(passages[qid].items(), key=lambda hit: (-hit[1], hit[0])), 1)
    ]
    with tempfile.TemporaryDirectory() as name:
        run = write_run(Path(name) / "run.parquet", rows)
        found = runs.read_run(concat_runs([run], group="max", output=Path(name) / "out.parquet"))
    assert {(qid, docid): score for qid, docid, _, score in found.rows()} == best
    for _, part in found.group_by("qid"):
        assert part["rank"].to_list() == list(range(1, len(part) + 1))
        assert part["score"].is_sorted(descending=True)


def test_documents_are_split_searched_as_passages_and_measured_as_documents(tiny: Path, tmp_path: Path) -> None:
    write_tiny_source(tmp_path)
    source = [tmp_path / "docs.jsonl", "--topics", f"test={tmp_path / 'topics.test.tsv'}"]
    judged = ["--qrels", f"test={tmp_path / 'qrels.test.txt'}"]
    words = ["prepare", "trec", *source, *judged, "--split-passages", 12, "--passage-stride", 6]
    ran(*words, "--output", tmp_path / "passages")
    ran("index-bm25", tmp_path / "passages", "--threads", 1, "--output", tmp_path / "bm25")
    search = ["search", tmp_path / "passages", "--split", "test", "--index", tmp_path / "bm25", "--threads", 1]
    ran(*search, "--group", "none", "--output", tmp_path / "passages.parquet")
    output = tmp_path / "documents.parquet"
    ran("concat-runs", tmp_path / "passages.parquet", "--group", "max", "--output", output)
    ran(*search, "--output", tmp_path / "grouped.parquet")
    assert runs.read_run(tmp_path / "grouped.parquet").equals(runs.read_run(output))
    done = hybrid("evaluate", tiny, "--split", "test", output, "--measure", "MRR@10", "--format", "json")
    assert set(json.loads(done.out)["runs"][0]["means"]) == {"MRR@10"}
    first = runs.read_run(output).filter(qid="001", rank=1)
    assert first["docid"].to_list() == ["007"]
