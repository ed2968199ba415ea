"""Limits of input files, and links that leave a folder."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from command import hybrid, refused
from tiny_collection import corpus_of, write_lines

from hybrid_cli import input_files

LONG = "word " * 300


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("limit", "problem"),
    [("line", "line-too-long"), ("columns", "too-many-columns"), ("expansion", "expands-too-much")],
)
def test_a_file_over_a_limit_is_refused_and_the_option_raises_it(
    limit: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_files, "FREE", 10)
    wide = "\t".join(["id", "text", *(f"c{number}" for number in range(40))])
    docs = write_lines(Path("docs.tsv"), wide, "\t".join(["a", LONG, *["x"] * 40]))
    if limit == "expansion":
        docs = Path("docs.tsv.gz")
        docs.write_bytes(gzip.compress(Path("docs.tsv").read_bytes()))
    low = {"line": "line=1000", "columns": "columns=20", "expansion": "expansion=1"}[limit]
    done = refused("prepare", "files", docs, "--limits", low, "--output", "out", problem=problem)
    assert done.fields["path"] == docs
    assert hybrid("prepare", "files", docs, "--output", "out").code == 0
    assert [row[0] for row in corpus_of(Path("out"))] == ["a"]


def test_a_link_that_leaves_the_folder_is_left_out_with_a_count() -> None:
    write_lines(Path("secret.txt"), "of this machine")
    write_lines(Path("docs/a.txt"), "a document")
    Path("docs/b.txt").symlink_to(Path("secret.txt").absolute())
    Path("docs/c").symlink_to(Path("/etc"))
    done = hybrid("prepare", "files", "docs", "--output", "out")
    assert done.code == 0, done.err
    assert done.says("text-files", count=1, links={"symbolic links that leave the folder": 2})
    assert [row[2] for row in corpus_of(Path("out"))] == ["a document"]


def test_a_named_file_of_a_folder_that_is_a_link_out_of_it_is_refused() -> None:
    write_lines(Path("corpus.jsonl"), {"_id": "a", "text": "of this machine"})
    write_lines(Path("beir/queries.jsonl"), {"_id": "q", "text": "a query"})
    write_lines(Path("beir/qrels/test.tsv"), "query-id\tcorpus-id\tscore", "q\ta\t1")
    Path("beir/corpus.jsonl").symlink_to(Path("corpus.jsonl").absolute())
    done = refused("prepare", "beir", "beir", "--output", "out", problem="link-leaves-folder")
    assert done.fields["path"] == Path("beir/corpus.jsonl")
