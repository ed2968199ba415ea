"""`judge` and `fuse --tune` end with the next command, which runs as it is printed."""

import io
import json
import shlex
from pathlib import Path

import pytest
from command import Done, hybrid, refused
from tiny_collection import write_lines


def next_command(done: Done) -> list[str]:
    assert done.code == 0, done.err
    commands = [str(notice.fields["command"]) for notice in done.notices.heard if notice.code == "next-command"]
    assert len(commands) == 1
    assert commands[0] in done.err.splitlines()
    return shlex.split(commands[0])[1:]


@pytest.fixture
def searched(tmp_path: Path) -> Path:
    docs = write_lines(
        tmp_path / "docs.csv", "id,text", "d1,salt of the deep sea", "d2,two tides of one day", "d3,salt"
    )
    queries = write_lines(tmp_path / "q.txt", "salt of oceans", "tides by day", "deep water", "one sea")
    data = tmp_path / "data"
    commands: list[list[object]] = [["prepare", "files", docs, "--queries", f"own={queries}", "--output", data]]
    for name, k1 in (("bm25", 0.9), ("other", 0.1)):
        index, run = tmp_path / name, tmp_path / f"{name}.parquet"
        commands += [
            ["index-bm25", data, "--k1", k1, "--output", index],
            ["search", data, "--split", "own", "--index", index, "--output", run],
        ]
    for words in commands:
        done = hybrid(*words)
        assert done.code == 0, done.err
    return tmp_path


def test_judging_leads_to_a_retriever(searched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("2\n0\n" * 20))
    both = [searched / "bm25.parquet", searched / "other.parquet"]
    judged = hybrid("judge", searched / "data", *both, "--split", "own", "--output", searched / "judgments.tsv")
    tuning = next_command(judged)
    assert tuning[0] == "fuse"
    assert str(searched / "judgments.tsv") in tuning
    composing = next_command(hybrid(*tuning))
    assert composing[:3] == ["compose", str(searched / "bm25"), str(searched / "other")]
    composed = hybrid(*composing)
    assert composed.code == 0, composed.err
    assert not composed.says("next-command")
    found = hybrid("search", "--index", composing[composing.index("--output") + 1], "--query", "salt")
    assert found.code == 0, found.err


def test_a_retriever_is_judged_and_tuned_or_measured(searched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever, indexes = searched / "retriever", [searched / "bm25", searched / "other"]
    assert hybrid("compose", *indexes, "--method", "rrf", "--output", retriever).code == 0
    words = ["judge", retriever, "--queries", searched / "q.txt"]
    words += ["--output", searched / "judgments.tsv"]
    monkeypatch.setattr("sys.stdin", io.StringIO("2\n"))
    first = hybrid(*words)
    assert (first.code, "salt" in first.out) == (0, True), first.err
    monkeypatch.setattr("sys.stdin", io.StringIO("2\n0\n" * 20))
    composing = next_command(hybrid(*words))
    assert composing[:3] == ["compose", *map(str, indexes)]
    composed = hybrid(*composing)
    assert (composed.code, composed.says("next-command")) == (0, False), composed.err
    tuned = json.loads((searched / "retriever-tuned/retriever.json").read_text())["tuning"]
    assert tuned["queries"] == len({line.split("\t")[0] for line in (searched / "judgments.tsv").open()})
    assert hybrid("compose", searched / "bm25", "--output", searched / "single").code == 0
    for number, hits in enumerate(([searched / "single"], [searched / "data", searched / "bm25.parquet"])):
        monkeypatch.setattr("sys.stdin", io.StringIO("2\n0\n" * 20))
        judging = hybrid("judge", *hits, "--split", "own", "--output", searched / f"{number}.tsv")
        measuring = next_command(judging)
        assert (measuring[0], hybrid(*measuring).code) == ("evaluate", 0)


def test_judging_needs_runs_or_a_retriever(searched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(searched)
    refused("judge", "data", "--split", "own", "--output", "j.tsv", problem="missing-option", option="runs")
    refused("judge", "bm25", "--output", "j.tsv", problem="missing-option", option="runs")
    ran = hybrid("compose", "bm25", "--method", "minmax", "--output", "retriever")
    assert ran.code == 0, ran.err
    both = ["bm25.parquet", "retriever"]
    refused("judge", "data", *both, "--output", "j.tsv", problem="conflicting-options", option="runs")


def test_runs_without_indexes_are_fused(searched: Path) -> None:
    write_lines(searched / "judgments.tsv", "1 0 d1 1", "2 0 d2 1", "3 0 d1 1", "4 0 d1 1")
    both = [searched / f"{name}.trec" for name in ("bm25", "other")]
    for path in both:
        exported = hybrid("export", path.with_suffix(".parquet"), "--format", "trec", "--output", path)
        assert exported.code == 0, exported.err
    words = ["fuse", *both, "--tune", "--qrels", searched / "judgments.tsv", "--output", searched / "weights.json"]
    fusing = next_command(hybrid(*words))
    assert fusing[0] == "fuse"
    fused = hybrid(*fusing)
    assert fused.code == 0, fused.err
