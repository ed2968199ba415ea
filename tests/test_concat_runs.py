"""`concat-runs`: the parts of a run form the run; a query in two runs is refused."""

from __future__ import annotations

import tempfile
from pathlib import Path

import polars as pl
import pytest
from command import hybrid
from hypothesis import given
from hypothesis import strategies as st
from small_artifacts import HITS, open_output, run_table, write_run

from hybrid_cli import artifacts, runs
from hybrid_cli.artifacts import Kind
from hybrid_cli.errors import InputError
from hybrid_cli.stages.concat_runs import concat_runs

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


def test_ranks_and_scores_are_unchanged(tmp_path: Path) -> None:
    odd = write_run(tmp_path / "odd.parquet", [("q9", "b", 1, 1.0), ("q9", "a", 2, 1.0), ("q9", "c", 3, 5.0)])
    found = runs.read_run(concat_runs([odd, write_run(tmp_path / "run.parquet")], output=tmp_path / "all.parquet"))
    assert found.rows() == [*runs.read_run(odd).rows(), *HITS]


def test_a_run_without_hits_adds_nothing(tmp_path: Path) -> None:
    open_output(tmp_path / "empty.parquet").write([run_table().slice(0, 0)])
    output = concat_runs(
        [tmp_path / "empty.parquet", write_run(tmp_path / "run.parquet")], output=tmp_path / "all.parquet"
    )
    assert runs.read_run(output).rows() == HITS


def test_a_trec_run_can_be_concatenated(tmp_path: Path) -> None:
    trec = tmp_path / "run.trec"
    trec.write_text("q9 Q0 a 1 2.5 tag\n", "utf-8")
    found = runs.read_run(concat_runs([trec, write_run(tmp_path / "run.parquet")], output=tmp_path / "all.parquet"))
    assert found.rows()[0] == ("q9", "a", 1, 2.5)


def test_the_manifest_counts_queries_and_names_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [write_run(tmp_path / "a.parquet"), write_run(tmp_path / "b.parquet", [("q3", "a", 1, 1.0)])]
    manifest = artifacts.read_manifest(concat_runs(paths, output=tmp_path / "all.parquet"), Kind.RUN)
    assert manifest.counts == {"rows": 4, "queries": 3}
    assert [manifest.input_path(role) for role in manifest.inputs] == paths
    assert "3 queries, 4 hits of 2 runs" in capsys.readouterr().err
    concat_runs(paths, output=tmp_path / "all.parquet")
    assert "up to date" in capsys.readouterr().err


def test_a_query_in_two_runs_is_refused_with_both_files(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / "a.parquet"), write_run(tmp_path / "b.parquet")]
    done = hybrid("concat-runs", *paths, "--output", tmp_path / "all.parquet")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"{paths[1]}: query q1 is also in {paths[0]} (2 such queries)" in done.err
    assert not (tmp_path / "all.parquet").exists()


def test_a_single_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs two or more runs"):
        concat_runs([write_run(tmp_path / "a.parquet")], output=tmp_path / "all.parquet")


def test_other_files_are_refused(tmp_path: Path, tiny: Path) -> None:
    queries = tiny / "queries.test.parquet"
    with pytest.raises(InputError, match="a run file is needed here"):
        concat_runs([write_run(tmp_path / "a.parquet"), queries], output=tmp_path / "all.parquet")
    pl.DataFrame({"qid": ["q"]}).write_parquet(tmp_path / "b.parquet")
    with pytest.raises(InputError, match="has no column 'docid'"):
        concat_runs([write_run(tmp_path / "c.parquet"), tmp_path / "b.parquet"], output=tmp_path / "all.parquet")
