"""`concat-runs`: the parts of a run form the run; a query in two runs is refused."""

from __future__ import annotations

import tempfile
from pathlib import Path

from command import Notices, hybrid
from hypothesis import given
from hypothesis import strategies as st
from small_artifacts import HITS, open_output, run_table, write_run
from tiny_collection import write_tiny_source

from hybrid_cli import artifacts, runs
from hybrid_cli.stages.concat_runs import concat_runs
from hybrid_cli.storage import Kind

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
        "duplicate-query", {"path": Path(paths[1]), "id": "q1", "other": Path(paths[0]), "count": 2}
    )  # fmt: skip
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
    assert hybrid(*words, "--output", tmp_path / "passages").code == 0
    assert hybrid("index-bm25", tmp_path / "passages", "--threads", 1, "--output", tmp_path / "bm25").code == 0
    search = ["search", tmp_path / "passages", "--split", "test", "--index", tmp_path / "bm25", "--threads", 1]
    assert hybrid(*search, "--group", "none", "--output", tmp_path / "passages.parquet").code == 0
    output = tmp_path / "documents.parquet"
    assert hybrid("concat-runs", tmp_path / "passages.parquet", "--group", "max", "--output", output).code == 0
    assert hybrid(*search, "--output", tmp_path / "grouped.parquet").code == 0
    assert runs.read_run(tmp_path / "grouped.parquet").equals(runs.read_run(output))
    done = hybrid("evaluate", tiny, "--split", "test", output, "--measure", "MRR@10", "--format", "json")
    assert (done.code, '"MRR@10"' in done.out) == (0, True)
    first = runs.read_run(output).filter(qid="001", rank=1)
    assert first["docid"].to_list() == ["007"]
