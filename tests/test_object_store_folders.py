"""URLs of folders: those that are no artifact are refused from their listing, before a download."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command import hybrid
from object_stores import Bucket, contents, with_index
from tiny_collection import corpus_of

from hybrid_cli.artifacts import store

pytest_plugins = ("object_stores",)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URLs of all objects that are downloaded."""
    read, blocks = list[str](), store.blocks

    def noted(url: str) -> Iterator[bytes]:
        read.append(url)
        return blocks(url)

    monkeypatch.setattr(store, "blocks", noted)
    return read


@pytest.fixture
def stored(bucket: Bucket, local: Path) -> Bucket:
    """A bucket with a collection and an index."""
    with_index(bucket, local)
    for name, content in contents(local / "out/bm25").items():
        bucket.put(f"out/bm25/{name}", content)
    return bucket


@pytest.mark.parametrize("folder", ["", "/out"])
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "search --query salt --index {0}",
            "{0}: has no manifest.json and no files of a model; name an artifact in it",
        ),
        ("encode docs.tsv --model {0} --output out/dense", "{0}: has no manifest.json and no files of a model"),
        ("search --queries q.tsv --index {1}/out/bm25 --output {0}", "{0}: is a folder that hybrid did not write"),
        ("index-bm25 docs.tsv --output {0}", "{0}: is a folder that hybrid did not write; remove it, or name another"),
    ],
)
def test_a_folder_that_is_no_artifact_is_refused_without_a_download(
    stored: Bucket, read: list[str], folder: str, command: str, message: str
) -> None:
    done = hybrid(*command.format(f"{stored}{folder}", stored).split())
    assert (done.code, done.err.count("\n")) == (2, 1), done
    assert message.format(f"{stored}{folder}") in done.err
    assert read == []


def test_folders_of_artifacts_are_read_where_a_command_takes_them(stored: Bucket, read: list[str]) -> None:
    for command in ("verify {0}/out", "inspect {0}/out", "verify {0}"):
        assert hybrid(*command.format(stored).split()).code == 0
    assert f"{stored}/out/bm25/manifest.json" in read
    for name in ("queries.test.parquet", "corpus.parquet"):
        stored.put(f"files/{name}", stored.get(f"data/{name}"))
    words = ("--split", "test", "--index", f"{stored}/out/bm25", "--output", f"{stored}/out/again.parquet")
    assert hybrid("search", f"{stored}/files", *words).code == 0


def test_a_folder_of_text_files_is_read(bucket: Bucket, tmp_path: Path) -> None:
    for name in ("tides.md", "more/salt.txt"):
        bucket.put(f"docs/{name}", f"# {name}\n\nA text.".encode())
    for _ in range(2):
        done = hybrid("prepare", "files", f"{bucket}/docs", "--output", tmp_path / "data")
        assert done.code == 0, done.err
    assert corpus_of(tmp_path / "data") == [
        ("more/salt.txt", "more/salt.txt", "A text."),
        ("tides.md", "tides.md", "A text."),
    ]
    assert f"{bucket}/docs: 2 documents" in done.err
    assert "is up to date" in done.err
