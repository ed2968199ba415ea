"""What belongs to judgments and to runs is found through manifests; the suggested next commands."""

import io
import json
import shlex
from pathlib import Path

import pytest
from command import Done, hybrid, ran, refused
from tiny_collection import write_lines

from hybrid_cli.collections.readers.queries import text_id

pytestmark = pytest.mark.usefixtures("workdir")  # refused commands must not change the current folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of two splits, two indexes with runs of both splits, a retriever, and a file of judgments."""
    folder = tmp_path_factory.mktemp("judged")
    texts = ["salt of the deep sea", "two tides of one day", "salt", "a deep day", "one sea"]
    docs = write_lines(folder / "docs.csv", "id,text", *(f"d{number},{text}" for number, text in enumerate(texts)))
    words = ["prepare", "files", docs, "--output", folder / "data"]
    for split, first in (("dev", "q"), ("test", "t")):
        asked = ["salt of oceans", "tides by day", "deep water", "one sea"]
        queries = (f"{first}{number}\t{text}" for number, text in enumerate(asked))
        qrels = (f"{first}{number} 0 d{number} 1" for number in range(4))
        words += ["--queries", f"{split}={write_lines(folder / f'{split}.tsv', *queries)}"]
        words += ["--qrels", f"{split}={write_lines(folder / f'{split}.qrels', *qrels)}"]
    ran(*words)
    for name, k1 in (("bm25", 0.9), ("other", 0.1)):
        ran("index-bm25", folder / "data", "--k1", k1, "--output", folder / name)
        for split in ("dev", "test"):
            where = ["--index", folder / name, "--output", folder / f"{name}.{split}.parquet"]
            ran("search", folder / "data", "--split", split, *where)
    ran("compose", folder / "bm25", folder / "other", "--method", "rrf", "--output", folder / "retriever")
    write_lines(folder / "judgments.tsv", *(f"q{number} 0 d{number} 1" for number in range(4)))
    return folder


def means(*words: object) -> list[object]:
    done = ran("evaluate", *words, "--measure", "nDCG@10", "--format", "json")
    return [{**run, "run": ""} for run in json.loads(done.out)["runs"]]


@pytest.fixture
def both(made: Path) -> list[Path]:
    return [made / "bm25.dev.parquet", made / "other.dev.parquet"]


def test_runs_alone_are_measured_on_the_split_of_their_queries(made: Path, both: list[Path]) -> None:
    whole = means(made / "data", "--split", "dev", *both)
    assert means(*both) == whole
    assert means(made / "data", *both) == whole
    assert ran("evaluate", *both).notices.count("assumed-split", split="dev", path=str(made / "data")) == 1
    assert not ran("evaluate", made / "data", "--split", "dev", *both).says("assumed-split")
    refused("evaluate", both[0], made / "other.test.parquet", problem="other-queries")
    copy = made / "copy.trec"
    ran("export", both[0], "--format", "trec", "--output", copy, "--overwrite")
    assert hybrid("evaluate", copy, both[0]).code == 2


def test_a_retriever_is_measured_like_its_run(made: Path, tmp_path: Path) -> None:
    retriever, run = made / "retriever", tmp_path / "hybrid.parquet"
    ran("search", made / "data", "--split", "dev", "--index", retriever, "--output", run)
    whole = means(made / "data", "--split", "dev", run)
    assert means(retriever, "--split", "dev") == whole
    assert means(f"mine={retriever}", "--qrels", made / "judgments.tsv") == whole
    assert means(retriever, "--qrels", made / "judgments.tsv") == whole
    assert means(retriever, "--split", "dev") == whole
    asked = ["--qrels", made / "judgments.tsv", "--queries", made / "dev.tsv"]
    assert means(retriever, *asked) == whole
    assert ran("evaluate", retriever, "--qrels", made / "judgments.tsv").says("assumed-split", split="dev")
    assert hybrid("evaluate", retriever).is_problem("missing-option", option="split")
    page = tmp_path / "report.html"
    ran("report", retriever, made / "bm25.dev.parquet", "--qrels", made / "judgments.tsv", "--output", page)
    assert "salt of oceans" in page.read_text()


def test_a_fusion_is_tuned_on_the_split_of_its_runs(made: Path, both: list[Path], tmp_path: Path) -> None:
    tune = ["fuse", *both, "--tune", "--measure", "nDCG@10", "--output"]
    assert ran(*tune, tmp_path / "a.json").says("assumed-split", split="dev")
    ran(*tune, tmp_path / "b.json", "--qrels", made / "data", "--split", "dev")
    first, second = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert {**first, "manifest": ""} == {**second, "manifest": ""}


def test_compose_tunes_on_a_file_of_judgments(made: Path, tmp_path: Path) -> None:
    tune = ["compose", made / "bm25", made / "other", "--tune", "--qrels"]
    ran(*tune, made / "data", "--split", "dev", "--output", tmp_path / "whole")
    done = ran(*tune, made / "judgments.tsv", "--output", tmp_path / "found")
    assert done.says("assumed-split", split="dev", path=str(made / "data"))
    ran(*tune, made / "judgments.tsv", "--queries", made / "dev.tsv", "--output", tmp_path / "given")
    named = ["--queries", made / "data", "--split", "dev", "--output", tmp_path / "named"]
    ran(*tune, made / "judgments.tsv", *named)
    stored = [
        json.loads((tmp_path / name / "retriever.json").read_text()) for name in ("whole", "found", "given", "named")
    ]
    assert stored[0]["tuning"] == stored[1]["tuning"] == stored[2]["tuning"] == stored[3]["tuning"]
    output = ["--output", tmp_path / "none"]
    refused(*tune, made / "judgments.tsv", "--split", "dev", *output, problem="option-does-not-apply", option="split")
    others = write_lines(tmp_path / "others.tsv", "q0 0 d1 1", "t0 0 d1 1")
    refused(*tune, others, *output, problem="queries-missing", path=str(others))


def next_command(done: Done) -> list[str]:
    assert done.code == 0, done.err
    commands = [str(notice.fields["command"]) for notice in done.notices.heard if notice.code == "next-command"]
    assert len(commands) == 1
    assert commands[0] in done.err.splitlines()
    return shlex.split(commands[0])[1:]


@pytest.fixture
def two_indexes(tmp_path: Path) -> Path:
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
        assert hybrid(*words).code == 0
    return tmp_path


def test_judging_leads_to_a_retriever(two_indexes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("2\n0\n" * 20))
    both = [two_indexes / "bm25.parquet", two_indexes / "other.parquet"]
    judged = hybrid("judge", two_indexes / "data", *both, "--split", "own", "--output", two_indexes / "judgments.tsv")
    tuning = next_command(judged)
    assert tuning[0] == "fuse"
    assert str(two_indexes / "judgments.tsv") in tuning
    composing = next_command(hybrid(*tuning))
    assert composing[:3] == ["compose", str(two_indexes / "bm25"), str(two_indexes / "other")]
    composed = hybrid(*composing)
    assert composed.code == 0, composed.err
    assert not composed.says("next-command")
    assert hybrid("search", "--index", composing[composing.index("--output") + 1], "--query", "salt").code == 0


def test_a_retriever_is_judged_and_tuned_or_measured(two_indexes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever, indexes = two_indexes / "retriever", [two_indexes / "bm25", two_indexes / "other"]
    assert hybrid("compose", *indexes, "--method", "rrf", "--output", retriever).code == 0
    words = ["judge", retriever, "--queries", two_indexes / "q.txt"]
    words += ["--output", two_indexes / "judgments.tsv"]
    monkeypatch.setattr("sys.stdin", io.StringIO("2\n"))
    first = hybrid(*words)
    assert (first.code, "salt" in first.out) == (0, True), first.err
    monkeypatch.setattr("sys.stdin", io.StringIO("2\n0\n" * 20))
    composing = next_command(hybrid(*words))
    assert composing[:3] == ["compose", *map(str, indexes)]
    composed = hybrid(*composing)
    assert (composed.code, composed.says("next-command")) == (0, False), composed.err
    tuned = json.loads((two_indexes / "retriever-tuned/retriever.json").read_text())["tuning"]
    assert tuned["queries"] == len({line.split("\t")[0] for line in (two_indexes / "judgments.tsv").open()})
    assert hybrid("compose", two_indexes / "bm25", "--output", two_indexes / "single").code == 0
    for number, hits in enumerate(([two_indexes / "single"], [two_indexes / "data", two_indexes / "bm25.parquet"])):
        monkeypatch.setattr("sys.stdin", io.StringIO("2\n0\n" * 20))
        judging = hybrid("judge", *hits, "--split", "own", "--output", two_indexes / f"{number}.tsv")
        measuring = next_command(judging)
        assert (measuring[0], hybrid(*measuring).code) == ("evaluate", 0)


def test_judging_needs_runs_or_a_retriever(two_indexes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(two_indexes)
    refused("judge", "data", "--split", "own", "--output", "j.tsv", problem="missing-option", option="runs")
    refused("judge", "bm25", "--output", "j.tsv", problem="missing-option", option="runs")
    assert hybrid("compose", "bm25", "--method", "minmax", "--output", "retriever").code == 0
    both = ["bm25.parquet", "retriever"]
    refused("judge", "data", *both, "--output", "j.tsv", problem="conflicting-options", option="runs")


def test_runs_without_indexes_are_fused(two_indexes: Path) -> None:
    qids = [text_id(line) for line in (two_indexes / "q.txt").read_text().splitlines()]
    graded = zip(qids, ("d1", "d2", "d1", "d1"), strict=False)
    write_lines(two_indexes / "judgments.tsv", *(f"{qid} 0 {docid} 1" for qid, docid in graded))
    both = [two_indexes / f"{name}.trec" for name in ("bm25", "other")]
    for path in both:
        assert hybrid("export", path.with_suffix(".parquet"), "--format", "trec", "--output", path).code == 0
    words = ("--tune", "--qrels", two_indexes / "judgments.tsv", "--output", two_indexes / "weights.json")
    fusing = next_command(hybrid("fuse", *both, *words))
    assert fusing[0] == "fuse"
    assert hybrid(*fusing).code == 0
