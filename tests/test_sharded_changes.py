"""`update` of sharded indexes: the run of one index, files of unchanged shards shared, nothing lost."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import polars as pl
import pytest
from command import hybrid
from processes import run
from test_index_updates import parts, searched

from hybrid_cli import artifacts
from hybrid_cli.artifacts.indexes import ids_of, shards_of
from hybrid_cli.collections.collection import docids
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.storage import Kind

__all__ = ["parts"]


@pytest.fixture
def here(parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path in parts.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    index_bm25(Path("first.parquet"), output=Path("shards"), k1=1.2, shards=3)
    return tmp_path


def changed(*words: str) -> None:
    done = hybrid(*words)
    assert done.code == 0, done.err
    assert hybrid("inspect", "--verify", words[-1]).code == 0


def shared(index: str, other: str) -> list[bool]:
    """Return whether each shard has the postings file of another index on the disk."""
    inodes = {path.stat().st_ino for path in Path(other).glob("shard-*/impacts/lows.npy")}
    return [(shard / "impacts/lows.npy").stat().st_ino in inodes for shard in shards_of(Path(index))]


@pytest.mark.parametrize("options", [[], ["--hits", "2"], ["--k1", "0.4", "--b", "0.8"]])
def test_changed_shards_have_the_run_of_one_index(here: Path, options: list[str]) -> None:
    before = {path: path.read_bytes() for path in Path("shards").rglob("*") if path.is_file()}
    changed("update", "shards", "--add", "added.parquet", "--output", "shards-2")
    assert shared("shards-2", "shards") == [True, False, True, False]  # one has a replaced document, one is new
    changed("update", "shards-2", "--remove", "gone.txt", "--output", "shards-3")
    assert shared("shards-3", "shards-2") == [True, True, False, True]
    index_bm25(Path("after.parquet"), output=Path("whole"), k1=1.2, threads=1)
    whole = searched("whole", *options)
    assert len(whole) > 5
    assert searched("shards-3", *options).equals(whole)
    assert ids_of(Path("shards-3")).equals(docids(Path("after.parquet")))
    assert {path: path.read_bytes() for path in Path("shards").rglob("*") if path.is_file()} == before
    hits = hybrid("search", "--index", "shards-3", "--query", "json strings", "--format", "json")
    assert "a newer text about json strings" in hits.out
    manifest = artifacts.read_manifest(Path("shards-3"))
    assert (manifest.kind, manifest.counts["documents"], manifest.counts["shards"]) == (Kind.SHARDS, 11, 4)
    assert hybrid("update", "shards", "--add", "added.parquet", "--output", "shards-2").says("up-to-date")


def test_a_shard_without_documents_is_left_out(here: Path) -> None:
    first, rest = ids_of(Path("shards/shard-00000")), docids(Path("first.parquet"))
    Path("first.txt").write_text("".join(f"{docid}\n" for docid in first))
    changed("update", "shards", "--remove", "first.txt", "--output", "fewer")
    assert shared("fewer", "shards") == [True, True]
    kept = pl.read_parquet("first.parquet").filter(~pl.col("docid").is_in(first.implode()))
    assert ids_of(Path("fewer")).equals(kept["docid"])
    assert len(kept) + len(first) == len(rest)
    Path("rest.txt").write_text("".join(f"{docid}\n" for docid in rest))
    done = hybrid("update", "shards", "--remove", "rest.txt", "--output", "none")
    assert done.is_problem("no-documents", path="shards"), done
    changed("update", "shards", "--add", "after.parquet", "--output", "replaced")
    assert len(shards_of(Path("replaced"))) == 2  # of seven old documents, one stays


def test_a_shard_that_is_missing_or_damaged_is_named(here: Path) -> None:
    shutil.copytree("shards", "damaged")
    Path("damaged/shard-00000/bm25.json").write_text('{"k1": 0.2, "b": 0.4}')
    Path("first.txt").write_text("".join(f"{docid}\n" for docid in ids_of(Path("shards/shard-00000"))))
    for words in (
        ("update", "damaged", "--add", "added.parquet"),
        ("update", "damaged", "--add", "first.parquet"),  # no document of an old shard is left
    ):
        done = hybrid(*words, "--output", "out")
        assert (done.code, done.err.count("\n")) == (1, 1), done.err
        assert done.is_problem("damaged", path="bm25.json")
    done = hybrid("update", "damaged", "--remove", "first.txt", "--output", "without")
    assert done.code == 0, "the damaged shard is left out"
    shutil.copytree("shards", "missing")
    shutil.rmtree("missing/shard-00001")
    Path("lost.txt").write_text(f"{ids_of(Path('shards/shard-00001'))[0]}\n")
    for words in (("update", "missing", "--remove", "lost.txt"), ("update", "missing", "--add", "added.parquet")):
        done = hybrid(*words, "--output", "out")
        assert done.code == 2
        assert done.is_problem("missing-shard", path="missing")


KILLED = """
import os, signal
from hybrid_cli.stages.update import indexes
from hybrid_cli.cli import main
def die(*_, **options): os.kill(os.getpid(), signal.SIGKILL)
{} = die
main()
"""


@pytest.mark.heavy
@pytest.mark.parametrize("place", ["indexes.build_shards", "indexes.write_manifests"])
def test_a_killed_change_loses_nothing_and_can_be_repeated(here: Path, place: str) -> None:
    command = ("update", "shards", "--add", "added.parquet", "--output", "shards-2")
    ended = run(KILLED.format(place), *command)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not Path("shards-2").exists()
    kept = {path.stat().st_ino for path in Path().glob(".shards-2.partial/shard-*/impacts/lows.npy")}
    assert len(kept) == (3 if place.endswith("build_shards") else 4)
    changed(*command)
    assert {path.stat().st_ino for path in Path("shards-2").glob("shard-*/impacts/lows.npy")} >= kept
    changed("update", "shards", "--add", "added.parquet", "--output", "again")
    assert searched("shards-2").equals(searched("again"))
