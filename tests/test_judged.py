"""Judgments without a collection, and runs without judgments: what belongs to them is found through manifests."""

import json
from pathlib import Path

import pytest
from command import hybrid, ran, refused
from tiny_collection import write_lines

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
    done = ran("evaluate", *both)
    assert done.notices.count("assumed-split", split="dev", path=str(made / "data")) == 1
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
