"""`update` of an index: the new index equals one that is built at once, and a kill loses nothing."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import polars as pl
import pytest
from command import Refusal, hybrid, ran, refusal, refused
from hypothesis import given
from hypothesis import strategies as some
from small_postings import count

from hybrid_cli import artifacts, storage
from hybrid_cli.artifacts import Manifest
from hybrid_cli.artifacts.indexes import docids_of
from hybrid_cli.collections import collection
from hybrid_cli.collections.collection import docids
from hybrid_cli.indexes.shards import vector_blocks
from hybrid_cli.runs import read_run
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.update import update
from hybrid_cli.storage import Kind

WORDS = some.lists(some.lists(some.sampled_from("abcdef"), max_size=6), max_size=8)


@given(base=WORDS, added=WORDS, data=some.data())
def test_extended_postings_equal_new_ones(base: list[list[str]], added: list[list[str]], data: some.DataObject) -> None:
    kept = np.array([data.draw(some.booleans()) for _ in base], bool)
    found = count(base).extended(kept, count(added))
    whole = count([words for words, keep in zip(base, kept, strict=True) if keep] + added)
    assert found.terms.equals(whole.terms)
    for name in ("indptr", "rows", "tfs", "lengths"):
        mine, other = getattr(found, name), getattr(whole, name)
        assert mine.dtype == other.dtype
        assert np.array_equal(mine, other)


def write_corpus(path: Path, rows: pl.DataFrame) -> Path:
    storage.write_parquet(path, [rows.to_arrow()], storage.SCHEMAS[Kind.CORPUS], Manifest(Kind.CORPUS, "test", {}, {}))
    return path


@pytest.fixture(scope="module")
def parts(tiny: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection in two parts, one with a document that replaces another; and the collection after the changes."""
    folder = tmp_path_factory.mktemp("parts")
    shutil.copytree(tiny_bert, folder / "model")
    shutil.copytree(tiny, folder / "collection")
    rows = collection.scan(tiny).drop("corpus_row").collect()
    first, rest = rows.head(7), rows.tail(5)
    newer = first.slice(2, 1).with_columns(text=pl.lit("a newer text about json strings and loops"))
    gone = first["docid"][4]
    write_corpus(folder / "first.parquet", first)
    write_corpus(folder / "added.parquet", pl.concat([rest, newer]))
    after = first.filter(~pl.col("docid").is_in([gone, newer["docid"][0]]))
    write_corpus(folder / "after.parquet", pl.concat([after, rest, newer]))
    shutil.copytree(tiny, folder / "after")
    shutil.copy(folder / "after.parquet", folder / "after" / "corpus.parquet")
    (folder / "gone.txt").write_text(f"{gone}\n")
    return folder


INDEX = {
    "bm25": ["index-bm25", "--k1", "1.5", "--threads", "1"],
    "flat": ["encode", "--model", "model", "--dtype", "fp32", "--shard-size", "3", "--threads", "1"],
}


def build(name: str, corpus: str, output: str) -> None:
    command, *options = INDEX[name]
    ran(command, corpus, *options, "--output", output)


@pytest.fixture
def here(parts: Path, workdir: Path) -> Path:
    for path in parts.iterdir():
        (workdir / path.name).symlink_to(path)
    return workdir


@pytest.fixture(scope="module")
def indexed(parts: Path) -> Path:
    listed: dict[str, list[str]] = {
        "unknown": ["nowhere"],
        "all": docids(parts / "first.parquet").to_list(),
        "empty": [],
    }
    for name, ids in listed.items():
        (parts / f"{name}.txt").write_text("".join(f"{docid}\n" for docid in ids))
    index_bm25(parts / "first.parquet", output=parts / "bm25", threads=1)
    update(parts / "bm25", add=parts / "added.parquet", output=parts / "bm25-2", threads=1)
    return parts


@pytest.fixture
def lexical(indexed: Path, here: Path) -> Path:
    return here


def contents(folder: str) -> dict[str, bytes]:
    """All files of a lexical index but Lucene's, or of a dense index but its shards, which have other sizes."""
    files = {str(path.relative_to(folder)): path for path in Path(folder).rglob("*") if path.is_file()}
    ignored = ("manifest.json", "lucene/", "vectors/")
    return {name: path.read_bytes() for name, path in files.items() if not name.startswith(ignored)}


def searched(index: str, *options: str) -> pl.DataFrame:
    run = "run.parquet"
    ran("search", "collection", "--split", "test", "--index", index, *options, "--output", run, "--overwrite")
    return read_run(Path(run))


def changed(name: str, added: str = "2", result: str = "3") -> None:
    """Add documents to an index, two of which replace others, then remove one."""
    options = ["--threads", "1"]
    ran("update", name, "--add", "added.parquet", "--output", f"{name}-{added}", *options)
    ran("update", f"{name}-{added}", "--remove", "gone.txt", "--output", f"{name}-{result}", *options)


def test_a_changed_lexical_index_equals_a_rebuilt_one(here: Path) -> None:
    build("bm25", "first.parquet", "bm25")
    before = {path: path.read_bytes() for path in Path("bm25").rglob("*") if path.is_file()}
    changed("bm25")
    build("bm25", "after.parquet", "whole")
    assert contents("bm25-3") == contents("whole")
    for options in ([], ["--rm3"], ["--engine", "lucene"], ["--engine", "lucene", "--rm3"], ["--k1", "0.5"]):
        assert searched("bm25-3", *options).equals(searched("whole", *options)), options
    assert {path: path.read_bytes() for path in Path("bm25").rglob("*") if path.is_file()} == before
    ran("inspect", "--verify", "bm25-3")
    assert hybrid("update", "bm25", "--add", "added.parquet", "--output", "bm25-2").says("up-to-date")
    hits = hybrid("search", "--index", "bm25-3", "--query", "json strings", "--format", "json")
    assert "a newer text about json strings" in hits.out
    assert not hits.err


@pytest.mark.heavy
def test_a_changed_dense_index_equals_a_rebuilt_one_of_the_same_vectors(here: Path, one_thread: None) -> None:
    build("flat", "first.parquet", "flat")
    changed("flat")
    build("flat", "after.parquet", "encoded")
    assert docids_of(Path("flat-3")).equals(docids_of(Path("encoded")))
    vectors = np.concatenate([*vector_blocks(Path("flat-3"), 4)])
    np.testing.assert_allclose(vectors, np.concatenate([*vector_blocks(Path("encoded"), 4)]), atol=1e-6)
    np.save("vectors.npy", vectors)
    command = ["encode", "after.parquet", "--from-vectors", "vectors.npy", "--model", "model", "--dtype", "fp32"]
    for kind in ("flat", "fp16", "sq8", "hnsw", "ivf", "binary"):
        options = ["--index-type", "IVF2,Flat" if kind == "ivf" else kind]
        if kind != "flat":
            ran("encode", "flat", *options, "--output", kind)
            changed(kind)
        ran(*command, *options, "--output", f"whole-{kind}")
        assert contents(f"{kind}-3")["index.faiss"] == contents(f"whole-{kind}")["index.faiss"]
        assert searched(f"{kind}-3").equals(searched(f"whole-{kind}")), kind
    ran("inspect", "--verify", "flat-3")


def test_an_index_of_an_earlier_version_keeps_its_parameters(here: Path, one_thread: None) -> None:
    """Earlier versions recorded parts of the factory string as options of their own."""
    build("flat", "first.parquet", "flat")
    graph, lists = {"ef_search": 77, "m": 32, "ef_construction": 200}, {"nprobe": 3, "nlist": 4}
    for kind, options in {"hnsw": graph, "IVF4,Flat": lists}.items():
        assert hybrid("encode", "flat", "--index-type", kind, "--output", "old", "--overwrite").code == 0
        manifest = json.loads(Path("old/manifest.json").read_text())
        manifest["options"] |= options
        del manifest["checksum"]
        Path("old/manifest.json").write_text(json.dumps(manifest))
        words = ("--output", "new", "--overwrite", "--threads", "1")
        assert hybrid("update", "old", "--add", "added.parquet", *words).code == 0
        built: Any = faiss.downcast_index(faiss.read_index("new/index.faiss"))
        assert built.hnsw.efSearch == 77 if kind == "hnsw" else built.nprobe == 3


def test_an_output_that_lacks_a_file_is_not_up_to_date(lexical: Path) -> None:
    """And a list of ids may begin with a byte order mark."""
    Path("ids.txt").write_bytes(b"\xef\xbb\xbf" + Path("gone.txt").read_bytes())
    command = ["update", "bm25", "--remove", "ids.txt", "--output", "fewer", "--threads", "1"]
    ran(*command)
    Path("fewer/docids.parquet").unlink()
    refused = hybrid(*command)
    assert refused.code == 1
    assert (refused.problem, refused.fields["path"]) == ("damaged-output", Path("fewer"))
    assert refused.is_problem("damaged-output", path="fewer")
    ran(*command, "--overwrite")
    assert hybrid(*command).says("up-to-date", stage="update", path="fewer")


def test_a_changed_index_keeps_its_encoder_also_if_that_has_moved(here: Path, one_thread: None) -> None:
    """The one that was passed is recorded, else the one of the index."""
    shutil.copytree("model", "own")
    encoded = ["encode", "first.parquet", "--model", "own", "--dtype", "fp32", "--threads", "1", "--output", "flat"]
    ran(*encoded)
    Path("own").rename("moved")
    query = ["search", "--query", "json", "--index"]
    for output, command, recorded, found in (
        ("more", ["update", "flat", "--add", "added.parquet", "--model", "moved"], "moved", True),
        ("less", ["update", "flat", "--remove", "gone.txt"], "own", False),
        ("sq8", ["encode", "flat", "--index-type", "sq8"], "own", False),
    ):
        ran(*command, "--output", output)
        assert artifacts.read_manifest(Path(output)).inputs["model"]["path"] == recorded
        searched = hybrid(*query, output)
        assert (searched.code == 0) == found
        assert found or searched.is_problem("recorded-model-missing", path=output)
    Path("moved").rename("own")
    ran(*query, "less")


@pytest.mark.parametrize(
    ("indexes", "problem"),
    [
        ("flat,bm25-2", refusal("other-corpus", path="bm25-2", other="flat", more=5, fewer=0)),
        ("bm25-2,flat", refusal("other-corpus", path="flat", other="bm25-2", more=0, fewer=5)),
        ("flat,bm25-gone", refusal("other-corpus", path="bm25-gone", other="flat", more=0, fewer=1)),
        ("flat,bm25-newer", refusal("other-corpus", path="flat", other="bm25-newer", corpus="newer.parquet", count=1)),
        ("bm25-newer,flat", refusal("other-corpus", path="flat", other="bm25-newer", corpus="newer.parquet", count=1)),
    ],
)
def test_a_changed_index_is_not_searched_with_another(lexical: Path, indexes: str, problem: Refusal) -> None:
    build("flat", "first.parquet", "flat")
    write_corpus(Path("newer.parquet"), collection.scan(Path("added.parquet")).drop("corpus_row").collect().tail(1))
    for command in (
        ["update", "bm25", "--remove", "gone.txt", "--output", "bm25-gone"],
        ["update", "bm25", "--add", "newer.parquet", "--output", "bm25-newer"],
    ):
        done = ran(*command, "--threads", "1")
    done = hybrid("search", "--index", indexes, "--query", "json strings")
    assert (done.code, done.is_problem(problem)) == (2, True), done


def test_an_earlier_corpus_that_was_replaced_or_moved_stays_recorded_as_lost(workdir: Path) -> None:

    def batch(name: str, number: int) -> None:
        Path("docs.csv").write_text(f"id,text\nn{number},walrus {number}\n")
        ran("prepare", "files", "docs.csv", "--output", name, "--overwrite")

    for number, name in enumerate(("first", "new"), 1):
        batch(name, number)
    ran("index-bm25", "first", "--output", "i0", "--threads", "1")
    assert not hybrid("update", "i0", "--add", "new", "--output", "i1", "--threads", "1").warnings
    recorded = artifacts.read_manifest("i1").inputs
    batch("new", 3)
    Path("first").rename("moved")
    Path("gone.txt").write_text("n1\n")
    lost = {
        "paths": [Path("first/corpus.parquet"), Path("new/corpus.parquet")],
        "missing": [Path("first/corpus.parquet")],
    }
    for output, words in {"more": ["--add", "new"], "less": ["--remove", "gone.txt"]}.items():
        assert hybrid("update", "i1", *words, "--output", output, "--threads", "1").says("corpus-changed", **lost)
        inputs = artifacts.read_manifest(output).inputs
        assert [inputs[f"texts {number}"] for number in (1, 2)] == [recorded[f"texts {number}"] for number in (1, 2)]
    assert artifacts.read_manifest("more").inputs["texts 3"]["fingerprint"] == storage.fingerprint(
        Path("new/corpus.parquet")
    )
    verified = json.loads(hybrid("inspect", "--verify", "more", "--format", "json").out)
    states = {each["role"]: each["state"] for one in verified if one["path"] == "more" for each in one["inputs"]}
    assert (states["texts 1"], states["texts 2"]) == ("missing", "changed")
    done = hybrid("search", "--index", "more", "--query", "walrus")
    assert done.notices.count("corpus-changed", **lost) == 1
    assert "walrus 3" in done.out
    exported = hybrid("export", "more", "--format", "opensearch", "--output", "exported")
    assert exported.is_problem("other-corpus", path="corpus.parquet")
    batch("new", 2)
    Path("moved").rename("first")
    assert not hybrid("search", "--index", "i1", "--query", "walrus").warnings


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("update collection --add added.parquet", refusal("other-kind", path="collection")),
        ("update bm25 --remove unknown.txt", refusal("unknown-id", path="unknown.txt", id="nowhere")),
        ("update bm25 --remove all.txt", refusal("no-documents", path="bm25")),
        ("update bm25 --remove empty.txt", refusal("no-ids", path="empty.txt")),
        ("update bm25 --remove missing.txt", refusal("no-such-file", path="missing.txt")),
    ],
)
def test_unusable_changes_are_refused(lexical: Path, words: str, message: str | Refusal) -> None:
    refused(*words.split(), "--output", "out", problem=message)


def test_a_failed_merge_of_lucene_is_an_error_in_one_line(indexed: Path, tmp_path: Path) -> None:
    """Lucene merges in threads of its own by default, and only prints their errors."""
    copy = shutil.copytree(indexed / "bm25" / "lucene", tmp_path / "lucene")
    removed = docids(indexed / "first.parquet").to_list()[:3]
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from hybrid_cli.errors import HybridError\n"
        "from hybrid_cli.lexical import jvm, lucene\n"
        "jvm.java_class('java.lang.String')\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try:\n"
        "    lucene.update(Path(sys.argv[1]), sys.argv[2:], None)\n"
        "except HybridError as error:\n"
        "    print(error.code)\n"
    )
    words = [sys.executable, "-c", code, str(copy), *removed]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "lucene-failed"
    assert "Exception in thread" not in done.stderr
