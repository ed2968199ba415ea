"""`report` and `evaluate` with a file of judgments find the texts through the manifests of the runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import hybrid
from tiny_collection import write_lines


@pytest.fixture
def searched(tmp_path: Path) -> Path:
    """A folder with two runs of one collection, and judgments."""
    docs = write_lines(
        tmp_path / "docs.csv", "id,text", "d1,salt of the deep sea", "d2,two tides of one day", "d3,salt"
    )
    queries = write_lines(tmp_path / "q.txt", "salt of oceans", "tides by day", "deep water")
    write_lines(tmp_path / "judgments.tsv", "1 0 d1 1", "2 0 d2 1", "3 0 d1 1")
    commands = [
        ["prepare", "files", docs, "--output", tmp_path / "data"],
        *(
            step
            for name, k1 in (("bm25", 0.9), ("other", 0.1))
            for step in (
                ["index-bm25", tmp_path / "data", "--k1", k1, "--output", tmp_path / name],
                ["search", "--queries", queries, "--index", tmp_path / name, "--output", tmp_path / f"{name}.parquet"],
            )
        ),
    ]
    for words in commands:
        done = hybrid(*words)
        assert done.code == 0, done.err
    return tmp_path


def test_a_report_shows_texts_without_their_options(searched: Path) -> None:
    both = [searched / "bm25.parquet", searched / "other.parquet"]
    page = searched / "r.html"
    words = ["report", *both, "--qrels", searched / "judgments.tsv", "--complement", "bm25", "other"]
    done = hybrid(*words, "--output", page)
    assert done.code == 0, done.err
    shown = page.read_text()
    assert "salt of oceans" in shown
    queries = searched / "q.txt"
    queries.write_text("changed since then\n")  # not those of the runs
    done = hybrid(*words, "--output", searched / "second.html")
    assert done.code == 0, done.err
    assert "salt of oceans" not in (searched / "second.html").read_text()
    assert "changed since then" not in (searched / "second.html").read_text()


def test_a_retriever_s_run_is_known_too(searched: Path) -> None:
    made = hybrid("compose", searched / "bm25", searched / "other", "--output", searched / "retriever")
    assert made.code == 0, made.err
    run = searched / "hybrid.parquet"
    done = hybrid("search", "--queries", searched / "q.txt", "--index", searched / "retriever", "--output", run)
    assert done.code == 0, done.err
    words = ["report", run, searched / "bm25.parquet", "--qrels", searched / "judgments.tsv"]
    done = hybrid(*words, "--output", searched / "r.html")
    assert done.code == 0, done.err
    assert "salt of oceans" in (searched / "r.html").read_text()
