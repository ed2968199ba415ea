"""Shards: the hits and scores of one index; changes; incomplete and mixed sets are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import Refusal, hybrid, ran, refusal, refused
from test_index_updates import parts
from test_index_updates import searched as searched_parts

from hybrid_cli import artifacts, open_index, storage
from hybrid_cli.artifacts import Manifest, opening
from hybrid_cli.artifacts.indexes import ids_of, shards_of
from hybrid_cli.artifacts.lineage import system_of
from hybrid_cli.artifacts.opening import open_dense
from hybrid_cli.collections import collection
from hybrid_cli.collections.collection import docids
from hybrid_cli.indexes.dense import DenseIndex
from hybrid_cli.runs import read_run
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.storage import Kind


@pytest.fixture(scope="module")
def indexed(tiny: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    shutil.copytree(tiny, folder / "tiny")
    shutil.copytree(tiny_bert, folder / "bert")
    index_bm25(folder / "tiny", output=folder / "bm25", k1=1.2, threads=1)
    index_bm25(folder / "tiny", output=folder / "shards", k1=1.2, shards=3)
    index_bm25(folder / "tiny", output=folder / "others", k1=1.2, b=0.9, shards=3)
    rows, manifest = collection.scan(tiny).drop("corpus_row").collect(), Manifest(Kind.CORPUS, "test", {}, {})
    for name, part in (("0", rows.head(5)), ("1", rows.slice(5, 4)), ("2", rows.tail(3)), ("all", rows)):
        corpus = folder / f"corpus-{name}.parquet"
        storage.write_parquet(corpus, [part.to_arrow()], storage.SCHEMAS[Kind.CORPUS], manifest)
        encode(corpus, model=str(folder / "bert"), dtype="fp32", output=folder / f"dense-{name}", threads=1)
    encode(folder / "dense-0", index_type="sq8", output=folder / "codes-0")
    encode(folder / "corpus-1.parquet", model=str(folder / "bert"), query_prefix="q: ", output=folder / "prefix-1")
    return folder


@pytest.fixture
def here(indexed: Path, workdir: Path) -> Path:
    for path in indexed.iterdir():
        (workdir / path.name).symlink_to(path)
    return workdir


def searched(index: str, *options: str) -> pl.DataFrame:
    words = ["search", "--index", index, "--output", "run.parquet", "--overwrite", *options]
    words += [] if "--queries" in options else ["tiny", "--split", "test"]
    ran(*words)
    return read_run(Path("run.parquet"))


@pytest.mark.parametrize("options", [[], ["--hits", "2"], ["--k1", "0.4", "--b", "0.8"]])
def test_lexical_shards_have_the_run_of_one_index(here: Path, options: list[str]) -> None:
    whole = searched("bm25", *options)
    assert len(whole) > 5
    assert searched("shards", *options).equals(whole)
    assert system_of(Path("run.parquet")).kind == Kind.LEXICAL_INDEX
    assert searched("shards/*", *options).equals(whole)
    assert searched("shard?", *options).equals(whole)
    single = searched("shards/shard-00001", *options)
    both = single.join(whole, on=["qid", "docid"], suffix="_whole")
    assert len(both)
    assert both["score"].equals(both["score_whole"].rename("score"))


def test_a_shard_that_vanishes_after_the_check_is_missed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in "012":
        shutil.copytree(f"dense-{part}", f"part-{part}")

    def removing(path: Path, *options: Any) -> DenseIndex:
        shutil.rmtree("part-1", ignore_errors=True)
        return open_dense(path, *options)

    monkeypatch.setattr(opening, "open_dense", removing)
    monkeypatch.setattr(opening, "shards_of", None)  # the list of the check counts
    done = hybrid("search", "tiny", "--split", "test", "--index", "part-*", "--output", "run.parquet")
    assert (done.code, done.is_problem("no-such-file", path="part-1")) == (2, True), done
    assert not Path("run.parquet").exists()


def test_dense_shards_have_the_hits_of_one_index(here: Path, one_thread: None) -> None:
    for part in ("0", "1", "2"):
        shutil.copytree(f"dense-{part}", f"part-{part}")
    mine, whole = searched("part-*", "--hits", "5"), searched("dense-all", "--hits", "5")
    assert mine.drop("score").equals(whole.drop("score"))
    np.testing.assert_allclose(mine["score"], whole["score"], atol=1e-5)  # documents are encoded in other batches
    assert (
        hybrid("encode", "tiny", "--split", "test", "--model", "bert", "--dtype", "fp32", "--output", "queries").code
        == 0
    )
    assert searched("part-*", "--queries", "queries", "--hits", "5").drop("score").equals(mine.drop("score"))


def test_shards_are_artifacts_that_verify_and_inspect_read(here: Path) -> None:
    shutil.copytree("shards", "copied")
    for command in (
        ["inspect", "--verify", "copied"],
        ["inspect", "--verify", "copied/shard-00002"],
        ["inspect", "copied"],
        ["inspect", "shards"],
    ):
        ran(*command)
    assert hybrid("index-bm25", "tiny", "--k1", "1.2", "--shards", "3", "--output", "shards").says("up-to-date")
    ran("search", "--index", "shards", "--query", "json", "--format", "json")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--index missing-*", refusal("no-such-file", path="missing-*")),
        ("--index damaged", refusal("missing-shard", path="damaged")),
        ("--index mixed-*", refusal("other-statistics", path="mixed-2")),
        ("--index twice-*", refusal("repeated-input", path="twice-*")),
        ("--index bm25*", refusal("other-statistics", path="bm25")),
        ("--index dense-*", refusal("duplicate-id", path="dense-all", id="007")),
        ("--index type-*", refusal("other-index-type", path="type-1")),
        ("--index encoder-*", refusal("other-encoder", path="encoder-1")),
        ("--index kind-*", refusal("other-kind", path="kind-1")),
    ],
)
def test_shards_that_do_not_fit_are_refused(here: Path, words: str, message: str | Refusal) -> None:
    for target, sources in {
        "damaged": {"": "shards"},
        "mixed": {"-0": "shards/shard-00000", "-1": "shards/shard-00001", "-2": "others/shard-00002"},
        "type": {"-0": "dense-1", "-1": "codes-0"},
        "encoder": {"-0": "dense-0", "-1": "prefix-1"},
        "kind": {"-0": "dense-0", "-1": "bm25"},
        "twice": {f"-{at}": f"shards/shard-0000{number}" for at, number in enumerate((0, 1, 2, 2))},
    }.items():
        for suffix, source in sources.items():
            shutil.copytree(source, f"{target}{suffix}")
    shutil.rmtree("damaged/shard-00001")
    refused("search", "tiny", "--split", "test", *words.split(), "--output", "out.parquet", problem=message)


def test_other_commands_refuse_shards_in_one_line(here: Path) -> None:
    searched("shards")
    shutil.copy("run.parquet", "copy.parquet")
    for command, message in {
        "fuse a=run.parquet b=copy.parquet --missing exact --index shards,bm25": refusal("other-kind", path="shards"),
        "fuse a=run.parquet b=copy.parquet --missing exact --index bm25,bm25": refusal(
            "no-exact-scores", path="run.parquet"
        ),
        "update shards/shard-00000 --add tiny": refusal("other-kind", path="shard-00000"),
        "mine-negatives tiny --split train --index shards": refusal("other-kind", path="shards"),
    }.items():
        refused(*command.split(), "--output", "out.parquet", problem=message)


def test_completed_shards_survive_an_interruption(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr("hybrid_cli.lexical.build.save_array", interrupt)
        with pytest.raises(KeyboardInterrupt):
            index_bm25(Path("tiny"), output=tmp_path / "again", k1=1.2, shards=3)
    monkeypatch.setattr("hybrid_cli.lexical.build.PostingsBuilder.finish", None)
    again = index_bm25(Path("tiny"), output=tmp_path / "again", k1=1.2, shards=3)
    assert storage.fingerprint(again) == storage.fingerprint(Path("shards"))


def test_shards_of_parts_of_a_corpus_are_searched_next_to_an_index_of_the_whole(here: Path) -> None:
    """With the titles of all parts; an index of fewer documents is refused."""
    for words in (["--index", "dense-[0-2],bm25"], ["--index", "bm25,dense-[0-2]"], ["--index", "dense-[0-2]"]):
        found = ran("search", *words, "--query", "salt moon pulls oceans json", "--hits", "12", "--format", "json")
        rows = [json.loads(line) for line in found.out.splitlines()]
        hits = rows[0].get("hits", rows)
        assert len(hits) == 12
        assert all(hit["title"] is not None for hit in hits)
    assert len(open_index("dense-[0-2]").search("salt", k=12).filter(pl.col("title").is_not_null())) == 12
    refused("search", "--index", "dense-[01],bm25", "--query", "salt", problem="other-corpus", more=3, fewer=0)


__all__ = ["parts"]


@pytest.fixture
def changed_parts(parts: Path, workdir: Path) -> Path:
    for path in parts.iterdir():
        (workdir / path.name).symlink_to(path)
    index_bm25(Path("first.parquet"), output=Path("shards"), k1=1.2, shards=3)
    return workdir


def changed(*words: str) -> None:
    ran(*words)
    ran("inspect", "--verify", words[-1])


def shared(index: str, other: str) -> list[bool]:
    """Return whether each shard has the postings file of another index on the disk."""
    inodes = {path.stat().st_ino for path in Path(other).glob("shard-*/impacts/lows.npy")}
    return [(shard / "impacts/lows.npy").stat().st_ino in inodes for shard in shards_of(Path(index))]


@pytest.mark.parametrize("options", [[], ["--hits", "2"], ["--k1", "0.4", "--b", "0.8"]])
def test_changed_shards_have_the_run_of_one_index(changed_parts: Path, options: list[str]) -> None:
    before = {path: path.read_bytes() for path in Path("shards").rglob("*") if path.is_file()}
    changed("update", "shards", "--add", "added.parquet", "--output", "shards-2")
    assert shared("shards-2", "shards") == [True, False, True, False]  # one has a replaced document, one is new
    changed("update", "shards-2", "--remove", "gone.txt", "--output", "shards-3")
    assert shared("shards-3", "shards-2") == [True, True, False, True]
    index_bm25(Path("after.parquet"), output=Path("whole"), k1=1.2, threads=1)
    whole = searched_parts("whole", *options)
    assert len(whole) > 5
    assert searched_parts("shards-3", *options).equals(whole)
    assert ids_of(Path("shards-3")).equals(docids(Path("after.parquet")))
    assert {path: path.read_bytes() for path in Path("shards").rglob("*") if path.is_file()} == before
    hits = hybrid("search", "--index", "shards-3", "--query", "json strings", "--format", "json")
    assert "a newer text about json strings" in hits.out
    manifest = artifacts.read_manifest(Path("shards-3"))
    assert (manifest.kind, manifest.counts["documents"], manifest.counts["shards"]) == (Kind.SHARDS, 11, 4)
    assert hybrid("update", "shards", "--add", "added.parquet", "--output", "shards-2").says("up-to-date")


def test_a_shard_without_documents_is_left_out(changed_parts: Path) -> None:
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


def test_a_shard_that_is_missing_or_damaged_is_named(changed_parts: Path) -> None:
    shutil.copytree("shards", "damaged")
    Path("damaged/shard-00000/bm25.json").write_text('{"k1": 0.2, "b": 0.4}')
    Path("first.txt").write_text("".join(f"{docid}\n" for docid in ids_of(Path("shards/shard-00000"))))
    for words in (
        ("update", "damaged", "--add", "added.parquet"),
        ("update", "damaged", "--add", "first.parquet"),  # no document of an old shard is left
    ):
        refused(*words, "--output", "out", problem="damaged", path="bm25.json", code=1)
    done = hybrid("update", "damaged", "--remove", "first.txt", "--output", "without")
    assert done.code == 0, "the damaged shard is left out"
    shutil.copytree("shards", "missing")
    shutil.rmtree("missing/shard-00001")
    Path("lost.txt").write_text(f"{ids_of(Path('shards/shard-00001'))[0]}\n")
    for words in (("update", "missing", "--remove", "lost.txt"), ("update", "missing", "--add", "added.parquet")):
        refused(*words, "--output", "out", problem="missing-shard", path="missing")
