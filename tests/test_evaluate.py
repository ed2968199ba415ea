"""The command `evaluate`: values, means, counts, notes, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import Notices, raises, refusal
from evaluated import RUNS, evaluate, write_run
from tiny_collection import write_lines
from typer.testing import CliRunner

from hybrid_cli import storage
from hybrid_cli.cli.app import app
from hybrid_cli.reporting.evaluate import text as in_format
from hybrid_cli.settings import PrepareBeir
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.stages.search import search
from hybrid_cli.storage import Kind


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [write_run(tmp_path / f"{name}.parquet", hits) for name, hits in RUNS.items()]


def test_means_are_over_all_judged_queries(tiny: Path, paths: list[Path]) -> None:
    summary = evaluate([tiny, *paths], split="test", measures=["MRR@10", "R@2"])
    # 001: second; 002: first; 003: first; 004, 005 missing; 006 not judged
    assert summary.means["bm25", "MRR@10"] == pytest.approx((1 / 2 + 1 + 1 + 0 + 0) / 5)
    assert summary.means["bm25", "R@2"] == pytest.approx((1 + 1 + 1 / 2 + 0 + 0) / 5)
    expected = {"judged": 5, "answered": 3, "missing": 2, "unjudged": 1, "Judged@10": (1 + 2 + 1) / 10 / 5}
    assert summary.counts["bm25"] == pytest.approx(expected)
    assert summary.settings["nothing_relevant"] == 0


def test_qrels_may_be_a_file_and_a_run_a_trec_file(tiny: Path, tmp_path: Path, paths: list[Path]) -> None:
    trec = tmp_path / "clear.trec"
    lines = (f"{q} Q0 {d} {r} {9 - r} x\n" for q, ds in RUNS["clear"].items() for r, d in enumerate(ds, 1))
    trec.write_text("".join(line for line in lines if "moon" not in line), "utf-8")
    qrels = tiny / "qrels.test.parquet"
    by_option = evaluate([paths[2], f"foreign={trec}"], qrels=qrels, measures=["ndcg_cut_10"])
    by_place = evaluate([qrels, paths[2], f"foreign={trec}"], measures=["ndcg_cut_10"])
    assert by_option.values.equals(by_place.values)
    assert by_option.means["clear", "ndcg_cut_10"] == by_option.means["foreign", "ndcg_cut_10"]


def test_the_values_are_an_artifact_that_is_reused(
    tiny: Path, paths: list[Path], tmp_path: Path, notices: Notices
) -> None:
    output = tmp_path / "measurements.parquet"
    first = evaluate([tiny, *paths], split="test", output=output)
    storage.check_table(output, Kind.MEASUREMENTS)
    stored = pl.read_parquet(output)
    assert stored.filter(run="bm25", measure="MRR@10", qid="001")["value"].item() == 1 / 2
    assert len(stored) == 3 * 4 * 5
    again = evaluate([tiny, *paths], split="test", output=output)
    assert notices.says("up-to-date")
    assert again.values.equals(first.values)
    assert in_format(again, "json") == in_format(first, "json")  # also in the order of runs and counts
    with raises("output-differs"):
        evaluate([tiny, *paths], split="test", measures=["MAP"], output=output)


def test_remove_query_removes_hits_with_the_id_of_their_query(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run.parquet", {"1": ["1", "2"], "2": ["3"]})
    qrels = tmp_path / "qrels.tsv"
    qrels.write_text("1\t2\t1\n2\t3\t1\n", "utf-8")
    kept = evaluate([run], qrels=qrels, measures=["MRR@10"])
    removed = evaluate([run], qrels=qrels, measures=["MRR@10"], remove_query=True)
    assert kept.means["run", "MRR@10"] == (1 / 2 + 1) / 2
    assert removed.means["run", "MRR@10"] == 1
    assert removed.counts["run"]["removed"] == 1
    assert "removed" not in kept.counts["run"]


@pytest.mark.parametrize(("text", "expected"), [("Two high  tides a day.", 1.0), ("another text", 0.5)])
def test_queries_that_are_documents_are_removed_from_their_lists(tmp_path: Path, text: str, expected: float) -> None:
    write_lines(
        tmp_path / "corpus.jsonl",
        {"_id": "1", "title": "Tides", "text": "Two high tides a day."},
        {"_id": "2", "title": "", "text": "The moon pulls the oceans."},
    )
    write_lines(tmp_path / "queries.jsonl", {"_id": "1", "text": text})
    write_lines(tmp_path / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore", "1\t2\t1")
    data = prepare(PrepareBeir(tmp_path, output=tmp_path / "data"))
    run = write_run(tmp_path / "run.parquet", {"1": ["1", "2"]})
    assert evaluate([data, run], measures=["MRR@10"]).means["run", "MRR@10"] == expected
    assert evaluate([data, run], measures=["MRR@10"], remove_query=False).means["run", "MRR@10"] == 0.5
    assert evaluate([data, run], measures=["MRR@10"], remove_query=True).means["run", "MRR@10"] == 1


def test_runs_and_files_of_another_collection_are_refused_or_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run.parquet", {"1": ["a"], "9": ["b"]})
    qrels, earlier, queries, corpus = (
        tmp_path / name for name in ("qrels.tsv", "earlier.tsv", "q.parquet", "c.parquet")
    )

    def warnings(judgments: str, **options: Any) -> list[str]:
        qrels.write_text(judgments, "utf-8")
        evaluate([run], qrels=qrels, measures=["MRR@10"], **options)
        return [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]

    with raises("other-queries", id="1"):
        warnings("3\ta\t1\n4\ta\t1\n")
    assert warnings("1\ta\t1\n3\ta\t1\n") == []
    few = "warning: run: has hits for only 1 of 3 judged queries; the others score 0"
    assert warnings("1\ta\t1\n3\ta\t1\n4\ta\t1\n") == [few]
    none = "warning: run: none of its hits has a judgment; check that run and qrels are of one collection"
    assert warnings("1\tz\t1\n") == [none]
    earlier.write_text("1\tx\t1\n")
    (removed,) = warnings("1\ta\t1\n", residual_qrels=earlier)
    assert "removed nothing, since it has no document of the runs or judgments; check that it is of this" in removed
    pl.DataFrame({"qid": ["1"], "text": ["?"], "answers": [["Nile"]]}).write_parquet(queries)
    pl.DataFrame({"docid": ["x"], "title": [""], "text": ["the Nile"]}).write_parquet(corpus)
    other = write_run(tmp_path / "other.parquet", {"1": ["b"]})
    with raises("other-corpus", path="c.parquet", id="a"):
        warnings("1\ta\t1\n", complement=(str(run), str(other)), queries=queries, corpus=corpus)
    with raises("other-corpus", path="c.parquet"):
        evaluate([queries, run], queries=queries, corpus=corpus, measures=["acc@1"])


def test_documents_judged_earlier_leave_runs_and_judgments(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run.parquet", {"1": ["a", "b", "c"], "2": ["d", "e"], "3": ["f"]})
    qrels, earlier = tmp_path / "qrels.tsv", tmp_path / "earlier.tsv"
    qrels.write_text("1\ta\t1\n1\tb\t0\n1\tc\t1\n2\te\t1\n3\tf\t1\n", "utf-8")
    earlier.write_text("1\ta\t1\n1\tb\t0\n2\td\t0\n3\tf\t0\n", "utf-8")
    found = evaluate([run], qrels=qrels, measures=["MRR@10", "R@1", "Rprec"], residual_qrels=earlier)
    values = found.values.filter(measure="MRR@10").select("qid", "value").rows()
    assert sorted(values) == [("1", 1.0), ("2", 1.0)]
    assert [found.means["run", name] for name in ("R@1", "Rprec")] == [1, 1]
    assert found.counts["run"]["removed"] == 4
    with raises("other-queries"):
        evaluate([run], qrels=qrels, measures=["MRR@10"], residual_qrels=qrels)
    others = refusal("other-queries", option="residual_qrels")
    for content, message in {"": refusal("no-judgments", path="earlier.tsv"), "4\ta\t1\n": others}.items():
        earlier.write_text(content)
        with raises(message):
            evaluate([run], qrels=qrels, measures=["MRR@10"], residual_qrels=earlier)


def test_accuracy_needs_answers_and_texts_but_no_qrels(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run.parquet", {"1": ["a", "b"], "2": ["a"], "3": ["a"]})
    queries, corpus = tmp_path / "queries.parquet", tmp_path / "corpus.parquet"
    pl.DataFrame({"qid": ["1", "2", "3"], "text": ["?"] * 3, "answers": [["Nile"], ["Amazon"], []]}).write_parquet(
        queries
    )
    pl.DataFrame({"docid": ["a", "b"], "title": ["The Nile", ""], "text": ["no river", "on the nile."]}).write_parquet(
        corpus
    )
    summary = evaluate([queries, run], queries=queries, corpus=corpus, measures=["acc@1", "acc@2"])
    assert summary.means == {("run", "acc@1"): 0, ("run", "acc@2"): 1 / 2}
    assert summary.counts["run"] == {"judged": 2, "answered": 2, "missing": 0, "unjudged": 1}
    with raises("missing-option", option="queries"):
        evaluate([queries, run], measures=["acc@1"])


def test_overlap_with_adds_a_measure(tiny: Path, paths: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "values.parquet"
    settings = {"split": "test", "measures": ["MRR@10", "R@2"], "overlap_with": "bm25"}
    summary = evaluate([tiny, *paths], output=output, **settings)
    assert summary.measures == ["MRR@10", "R@2", "RBO"]
    assert summary.means["bm25", "RBO"] == pytest.approx(3 / 5)  # bm25 has no hits for 004 and 005; 006 is not judged
    # 001 and 003: one list has only the second document of the other: .1/.9 * .5 * .81 + .5 * .81
    values = summary.values.filter(run="clear", measure="RBO").select("qid", "value").rows()
    assert [qid for qid, _ in values] == ["001", "002", "003", "004", "005"]
    assert [value for _, value in values] == pytest.approx([0.45, 1, 0.45, 0, 0])
    low, high = summary.ends["clear", "RBO"]
    assert low < summary.means["clear", "RBO"] < high
    assert pl.read_parquet(output).equals(summary.values)
    assert "RBO: " in in_format(summary, "markdown")
    assert json.loads(in_format(summary, "json"))["overlap_with"] == "bm25"
    by_path = evaluate([tiny, *paths[1:]], **{**settings, "overlap_with": str(paths[0])})
    assert by_path.runs == ["dense", "clear"]
    assert by_path.means["clear", "RBO"] == summary.means["clear", "RBO"]
    compared = evaluate([tiny, *paths], **settings, complement=("dense", "bm25"))
    assert compared.means["clear", "RBO"] == summary.means["clear", "RBO"]


def test_files_of_another_kind_and_unknown_names_are_refused(tiny: Path, paths: list[Path], tmp_path: Path) -> None:
    with raises("other-kind", path="corpus.parquet", expected="run"):
        evaluate([tiny, tiny / "corpus.parquet"], split="test")
    with raises("missing-option", option="qrels", path=paths[0]):
        evaluate(paths)
    with raises("missing-option"):
        evaluate([tiny], split="test")
    with raises("no-such-file", path="nothing.parquet"):
        evaluate([tiny, tmp_path / "nothing.parquet"], split="test")
    with raises("unknown-choice", option="baseline", value="bm52"):
        evaluate([tiny, *paths], split="test", baseline=["bm52"])
    with raises("other-queries", id="001"):
        evaluate([tiny, paths[0]], split="train")
    with raises("unknown-choice", option="test", value="wilcoxon"):
        evaluate([tiny, *paths], split="test", test="wilcoxon")


def test_a_list_of_all_documents_is_not_called_short(tmp_path: Path, notices: Notices) -> None:
    pl.DataFrame({"qid": ["1"], "text": ["salt"]}).write_parquet(tmp_path / "queries.test.parquet")
    pl.DataFrame({"qid": ["1"], "docid": ["a"], "relevance": [1]}).write_parquet(tmp_path / "qrels.test.parquet")
    pl.DataFrame({"docid": ["a", "b"], "title": ["", ""], "text": ["salt", "salt water"]}).write_parquet(
        tmp_path / "corpus.parquet"
    )
    index = index_bm25(tmp_path, output=tmp_path / "bm25", threads=1)
    for hits, short in ((1, True), (10, False)):
        run = search(tmp_path, split="test", index=index, hits=hits, output=tmp_path / f"{hits}.parquet")
        evaluate([tmp_path, run], split="test", measures=["R@100"])
        assert notices.says("short-lists", run=str(hits), measures=["R@100"]) is short


def test_the_command_prints_the_result(tiny: Path, paths: list[Path]) -> None:
    arguments = ["evaluate", str(tiny), "--split", "test", *map(str, paths), "--measures", "MRR@10,nDCG@10"]
    result = CliRunner().invoke(
        app, [*arguments, "--format", "json", "--baseline", "bm25,dense", "--test", "permutation"]
    )
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["baselines"] == ["bm25", "dense"]
    assert content["runs"][2]["means"]["MRR@10"] == 1.0
    table = CliRunner().invoke(app, arguments)
    assert "1.0000" in table.stdout
    assert "Judged@10" in table.stdout
