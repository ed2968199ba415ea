"""`update`: the next generation equals one that is built at once, and a kill leaves the old state or the new one."""

import json
import random
import shutil
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import cases, hybrid, ran, refusal
from processes import run
from test_index_updates import contents

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts.indexes import docids_of
from hybrid_cli.artifacts.retrievers import RetrieverFiles, read_retriever
from hybrid_cli.collections import collection
from hybrid_cli.commands import Compose, Encode, IndexBm25, PrepareFiles, Search, Update
from hybrid_cli.indexes.shards import vector_blocks
from hybrid_cli.runs import read_run
from hybrid_cli.stages import call
from hybrid_cli.stages.inspect import inspect

WORDS = ["salt", "sea", "water", "oxygen", "blood", "iron", "copper", "bread", "stone", "river", "cloud", "glass"]
QUERIES = ["salt water", "iron and copper", "bread", "river stone bridge", "light glass cloud"]


@dataclass
class Home:
    """A folder of text files, and a retriever of them.

    Attributes:
        folder: working folder.
        model: encoder.
        draw: source of the changes.
        options: of `prepare files`.
        shards: shards of the lexical index; 1 for none.
        method: fusion method of the retriever; None for the default.
    """

    folder: Path
    model: Path
    draw: random.Random = field(default_factory=lambda: random.Random(7))
    options: dict[str, Any] = field(default_factory=dict)
    shards: int = 1
    method: str | None = "minmax"

    @property
    def docs(self) -> Path:
        return self.folder / "docs"

    def text(self) -> str:
        return " ".join(self.draw.choices(WORDS, k=self.draw.randint(1, 14))) + "\n"

    def build(self, collection: Path, name: str) -> Path:
        home = self.folder / name
        index = IndexBm25(collection, output=home / "bm25")
        call(index.changed(threads=1) if self.shards == 1 else index.changed(shards=self.shards))
        call(Encode(collection, model=str(self.model), dtype="fp32", shard_size=8, threads=1, output=home / "dense"))
        call(Compose([home / "bm25", home / "dense"], method=self.method, output=home / "retriever"))
        return home / "retriever"

    def start(self, documents: int = 12) -> Path:
        self.docs.mkdir()
        for number in range(documents):
            (self.docs / f"{number}.txt").write_text(self.text())
        queries = self.folder / "queries.tsv"
        queries.write_text("".join(f"q{number}\t{text}\n" for number, text in enumerate(QUERIES)))
        qrels = self.folder / "qrels.tsv"
        qrels.write_text("q0\t0.txt\t1\nq1\t1.txt\t2\nq1\t2.txt\t1\n")
        output = self.folder / "made" / "collection"
        call(
            PrepareFiles(
                [self.docs], queries=[f"test={queries}"], qrels=[f"test={qrels}"], output=output, **self.options
            )
        )
        return self.build(output, "made")

    def change(self) -> None:
        files = sorted(self.docs.iterdir())
        for _ in range(self.draw.randint(1, 3)):
            kind = self.draw.choice(["add", "change", "swap", "remove"])
            if kind == "add":
                (self.docs / f"{self.draw.randint(0, 10**6)}.txt").write_text(self.text())
            elif kind == "change":
                self.draw.choice(files).write_text(self.text())
            elif kind == "swap":
                one, other = self.draw.sample(files, 2)
                texts = one.read_text(), other.read_text()
                one.write_text(texts[1])
                other.write_text(texts[0])
            elif len(files) > 8:
                files.pop(self.draw.randrange(len(files))).unlink()


def hits(retriever: Path, output: Path) -> pl.DataFrame:
    queries = retriever.parent.parent / "queries.tsv"
    call(Search(queries=queries, index=retriever, hits=20, output=output, overwrite=True))
    return read_run(output)


def check(home: Home, retriever: Path, number: int) -> None:
    files = RetrieverFiles.read(retriever)
    bm25, dense = files.indexes
    made = bm25.parent / f"collection.{files.stored.generation}"
    plain = home.build(made, f"plain-{number}")
    if home.shards == 1:
        assert contents(str(bm25)) == contents(str(plain.parent / "bm25"))
    assert docids_of(dense).equals(docids_of(plain.parent / "dense"))
    vectors = np.concatenate([*vector_blocks(dense, 64)])
    expected = np.concatenate([*vector_blocks(plain.parent / "dense", 64)])
    np.testing.assert_allclose(vectors, expected, atol=1e-5)  # batches of other sizes
    assert (dense / "index.faiss").read_bytes()[-vectors.nbytes :] == vectors.tobytes()
    mine, other = hits(retriever, home.folder / "mine.parquet"), hits(plain, home.folder / "other.parquet")
    assert mine.drop("score").equals(other.drop("score"))
    np.testing.assert_allclose(mine["score"], other["score"], atol=1e-5)
    fresh = home.folder / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    call(PrepareFiles([home.docs], output=fresh, **home.options))
    rows = collection.scan(made).drop("corpus_row").sort("docid").collect()
    assert rows.equals(collection.scan(fresh).drop("corpus_row").sort("docid").collect())


@pytest.mark.heavy
@pytest.mark.parametrize("kind", cases(["plain", "sharded", "passages", "sharded passages"], "passages"))
def test_ten_updates_equal_a_new_build(kind: str, tiny_bert: Path, tmp_path: Path) -> None:
    home = Home(
        tmp_path,
        tiny_bert,
        options={"split_passages": 5, "passage_stride": 4} if "passages" in kind else {},
        shards=2 if "sharded" in kind else 1,
    )
    retriever = home.start()
    for number in range(10):
        home.change()
        call(Update(retriever, [home.docs], allow_shrink=True, threads=1, prune=True))
        if number % 5 == 4:
            check(home, retriever, number)
    assert {path.name for path in (tmp_path / "made").iterdir()} == {
        "retriever",
        *(f"{name}.{read_retriever(retriever).generation}" for name in ("collection", "bm25", "dense")),
    }


@pytest.fixture(scope="module")
def first(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("first")
    home = Home(folder, shutil.copytree(tiny_bert, folder / "model"), method=None)
    home.start()
    return home


@pytest.fixture
def home(first: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A copy of a retriever of twelve documents; the working folder."""
    shutil.copytree(first.folder, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return Home(Path(), Path("model"), method=None)


def test_counts_scales_and_the_old_generation(home: Home) -> None:
    """Weights and scales are kept, names of columns too, and the old state stays readable."""
    before, old = read_retriever(Path("made/retriever")), RetrieverFiles.read(Path("made/retriever"))
    (home.docs / "new.txt").write_text("a walrus")
    (home.docs / "0.txt").write_text("another text of salt")
    (home.docs / "1.txt").unlink()
    changes = {"added": 1, "replaced": 1, "removed": 1, "before": 12, "after": 12}
    dry = hybrid("update", "made", "docs", "--dry-run")
    assert (dry.code, dry.says("documents-changed", **changes)) == (0, True)
    assert read_retriever(Path("made/retriever")) == before
    assert len(list(Path("made").iterdir())) == 4
    assert ran("update", "made", "docs").says("documents-changed", **changes)
    after = read_retriever(Path("made/retriever"))
    assert (after.generation, after.changed) == (2, {"added": 1, "replaced": 1, "removed": 1})
    assert (after.weights, after.scales, after.shares) == (before.weights, before.scales, before.shares)
    shown = hybrid("search", "--index", "made/retriever", "--query", "walrus", "--format", "json")
    assert "a walrus" in shown.out
    assert hybrid("search", "--index", "made", "--query", "walrus", "--format", "json").out == shown.out
    assert [path.name for path in old.indexes] == ["bm25", "dense"]
    assert all(path.exists() for path in old.indexes)
    from hybrid_cli import open_retriever

    assert {"bm25_rank", "dense_score"} <= set(open_retriever("made").search("salt").columns)
    ran("evaluate", "made", "--split", "test")
    ran("inspect", "made/retriever")
    assert inspect(["made/retriever"])["retriever"]["changed"] == after.changed
    ran("inspect", "--verify", "made")
    assert hybrid("update", "made", "docs").says("documents-changed", added=0, replaced=0, removed=0)
    assert read_retriever(Path("made/retriever")).generation == 2
    ran("index-bm25", "made/collection.2", "--no-lucene", "--output", "made/bm25.7")
    Path("made/dense.8").symlink_to(Path("made/dense").absolute())
    assert hybrid("update", "made", "docs", "--prune").says("pruned")
    assert sorted(path.name for path in Path("made").iterdir()) == [
        *("bm25.2", "bm25.7", "collection.2", "dense.2", "dense.8", "retriever")
    ]


@pytest.mark.parametrize("passages", [False, True])
def test_changes_alone_equal_all_present_documents(passages: bool, tiny_bert: Path, workdir: Path) -> None:
    home = Home(Path(), tiny_bert, options={"split_passages": 4} if passages else {})
    home.start()
    shutil.copytree("made", "other")
    Path("more").mkdir()
    for name, text in (("0.txt", "another text of salt and of the sea"), ("new.txt", "a walrus")):
        (home.docs / name).write_text(text)
        (Path("more") / name).write_text(text)
    (home.docs / "1.txt").unlink()
    Path("gone.txt").write_text("1.txt\n")
    counts = {"added": 1, "replaced": 1, "removed": 1}
    assert hybrid("update", "made", "docs", "--threads", 1).says("documents-changed", **counts)
    words = ("update", "other", "--add", "more", "--remove", "gone.txt", "--threads", 1)
    assert hybrid(*words, "--dry-run").says("documents-changed", **counts)
    assert hybrid(*words).says("documents-changed", **counts)
    assert hits(Path("made/retriever").absolute(), Path("run.parquet").absolute()).equals(
        hits(Path("other/retriever").absolute(), Path("other.parquet").absolute())
    )
    assert contents("other/bm25.2") == contents("made/bm25.2")
    assert hybrid("update", "other", "--remove", "gone.txt").is_problem("unknown-id", id="1.txt")


def test_judgments_follow_the_passages(tiny_bert: Path, workdir: Path) -> None:
    home = Home(Path(), tiny_bert, options={"split_passages": 4})
    home.start()
    (home.docs / "0.txt").write_text("one two three four five six seven eight nine")
    (home.docs / "1.txt").unlink()
    ran("update", "made", "docs")
    qrels = collection.read_qrels(Path("made/collection.2/qrels.test.parquet"))
    judged = qrels.group_by("qid", maintain_order=True).agg("docid", "relevance")
    assert judged["docid"].to_list()[0] == ["0.txt#0", "0.txt#1", "0.txt#2"]
    assert qrels.filter(pl.col("docid") == "1.txt")["relevance"].to_list() == [2]
    (home.docs / "1.txt").write_text("is back")
    ran("update", "made", "docs")
    qrels = collection.read_qrels(Path("made/collection.3/qrels.test.parquet"))
    assert qrels.filter(pl.col("docid") == "1.txt#0")["relevance"].to_list() == [2]


def test_a_retriever_that_shares_an_index_keeps_it(home: Home) -> None:
    ran("compose", "made/bm25", "made/dense", "--method", "rrf", "--output", "made/other")
    (home.docs / "new.txt").write_text("a walrus")
    ran("update", "made/retriever", "docs", "--prune")
    assert {path.name for path in Path("made").iterdir()} >= {"bm25", "dense", "collection", "bm25.2"}
    (home.docs / "newer.txt").write_text("a seal")
    ran("update", "made/other", "docs")
    assert read_retriever(Path("made/other")).generation == 3
    assert read_retriever(Path("made/retriever")).generation == 2
    ran("update", "made/retriever", "docs", "--prune")
    assert {path.name for path in Path("made").iterdir() if path.name.startswith("bm25")} == {"bm25.3", "bm25.4"}


def test_a_collection_in_place_of_files(home: Home) -> None:
    (home.docs / "new.txt").write_text("a walrus")
    call(PrepareFiles([Path("docs")], output=Path("present")))
    assert hybrid("update", "made", "present").says("documents-changed", added=1, replaced=0, removed=0)


def test_metadata_and_columns_are_read_as_before(home: Home) -> None:
    def write(years: list[int], body: str = "body") -> None:
        rows = [json.dumps({"url": f"u{n}", body: f"salt {n}", "year": year}) for n, year in enumerate(years)]
        Path("docs.jsonl").write_text("\n".join(rows) + "\n")

    write([2001, 2002, 2003])
    columns = {"id": "url", "text": "body"}
    call(
        PrepareFiles([Path("docs.jsonl")], document_columns=columns, metadata=["year"], output=Path("years/collection"))
    )
    home.build(Path("years/collection"), "years")
    write([2001, 2022, 2003, 2024])
    assert hybrid("update", "years", "docs.jsonl").says("documents-changed", added=1, replaced=1, removed=0)
    query = ["search", "--index", "years/retriever", "--query", "salt", "--format", "json", "--filter"]
    hits = json.loads(hybrid(*query, "year > 2010").out)["hits"]
    assert {hit["docid"] for hit in hits} == {"u1", "u3"}
    Path("docs.jsonl").write_text('{"url": "u0", "body": "salt", "year": "unknown"}\n')
    assert hybrid("update", "years", "docs.jsonl", "--allow-shrink").problem == "other-columns"


def rows_with(path: Path, years: list[object], **more: object) -> None:
    rows = [{"id": f"u{n}", "text": f"salt {n}", "year": year, **more} for n, year in enumerate(years)]
    kept = [{name: value for name, value in row.items() if value != "absent"} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))


@pytest.mark.parametrize("metadata", [["year"], ["all"]])
@pytest.mark.parametrize(
    ("years", "more", "kind", "replaced"),
    [
        ([2001, 2002.5, 2003], {}, "float64", 1),
        ([None, None, None], {}, "int64", 3),
        (["absent", "absent", "absent"], {}, "int64", 3),
        ([2001, 2002, "unknown"], {}, None, 0),
        (["a", "b", "c"], {}, None, 0),
        ([2001, 2002, 2003], {"lang": "de"}, "int64", 3),
        ([2001, 2002, 2003], {"lang": None}, "int64", 0),
    ],
)
def test_columns_of_metadata_change_or_the_file_and_the_column_are_named(
    metadata: list[str], years: list[object], more: dict[str, Any], kind: str | None, replaced: int, home: Home
) -> None:
    docs = Path("docs.jsonl")
    rows_with(docs, [2001, 2002, 2003])
    call(PrepareFiles([docs], metadata=metadata, output=Path("years/collection")))
    home.build(Path("years/collection"), "years")
    rows_with(docs, years, **more)
    done = hybrid("update", "years", docs)
    if kind is None:
        assert done.problem in ("other-columns", "other-type")
        assert (done.fields["path"], done.fields["column"]) == (docs, "year")
        assert "partial" not in done.err
        return
    replaced = 0 if metadata == ["year"] and more else replaced
    assert done.says("documents-changed", added=0, replaced=replaced, removed=0)
    made = Path("years/collection.2" if replaced else "years/collection")
    types = artifacts.read_manifest(made).counts["metadata"]
    assert types["year"] == kind
    stored = pl.read_parquet(made / "corpus.parquet").sort("docid")
    assert stored["year"].to_list() == [None if year == "absent" else year for year in years]
    assert set(stored.columns) == {"docid", "title", "text", *types}
    if kind == "float64":
        query = ["--query", "salt", "--filter", "year > 2002", "--format", "json"]
        found = json.loads(ran("search", "--index", "years/retriever", *query).out)["hits"]
        assert {hit["docid"] for hit in found} == {"u1", "u2"}
    rows_with(docs, [2001, 2002, 2003, 2004])  # and back
    assert hybrid("update", "years", "--add", docs).says("documents-changed", added=1)


def test_a_rollback_returns_to_the_generation_before(home: Home) -> None:
    retriever, run_file = Path("made/retriever").absolute(), Path("run.parquet").absolute()
    states = [(read_retriever(retriever), hits(retriever, run_file))]
    bytes_before = contents("made/bm25"), contents("made/dense")
    for text in ("a walrus", "a seal"):
        (home.docs / "new.txt").write_text(text)
        ran("update", "made", "docs", "--threads", 1)
        states.append((read_retriever(retriever), hits(retriever, run_file)))
    assert hybrid("update", "made", "--rollback", "--dry-run").says("rolled-back", generation=2)
    assert read_retriever(retriever) == states[2][0]
    for number in (1, 0):
        assert ran("update", "made", "--rollback").says("rolled-back", generation=number + 1)
        stored, (former, run) = read_retriever(retriever), states[number]
        assert replace(stored, history=()) == replace(former, history=())
        assert hits(retriever, run_file).equals(run)
    assert (contents("made/bm25"), contents("made/dense")) == bytes_before
    assert hybrid("update", "made", "--rollback").problem == "no-earlier-generation"
    ran("update", "made", "docs", "--threads", 1)
    assert hits(retriever, run_file).equals(states[2][1])
    assert read_retriever(retriever).generation == 4
    assert ran("update", "made", "--rollback").says("rolled-back", generation=1)
    assert hybrid("update", "made/bm25", "--rollback").problem == "option-does-not-apply"
    ran("update", "made", "docs", "--prune", "--threads", 1)
    number = read_retriever(retriever).generation
    assert {path.name for path in Path("made").iterdir()} == {
        "retriever",
        *(f"{name}.{number}" for name in ("bm25", "dense", "collection")),
    }
    assert hybrid("update", "made", "--rollback").problem == "no-earlier-generation"


def test_the_ids_of_a_retriever_or_an_index_are_listed_as_others_name_them(home: Home) -> None:
    ids = sorted(path.name for path in home.docs.iterdir())
    for of in ("made", "made/bm25", "made/dense"):
        assert sorted(ran("update", of, "--list").out.splitlines()) == ids
    call(PrepareFiles([home.docs], split_passages=4, output=Path("split/collection")))
    home.build(Path("split/collection"), "split")
    listed = ran("update", "split", "--list").out
    assert sorted(listed.splitlines()) == ids
    Path("ids.txt").write_text("".join(listed.splitlines(keepends=True)[:2]))
    assert ran("update", "split", "--remove", "ids.txt").says("documents-changed", removed=2)
    for words in (["docs", "--list"], ["--list", "--rollback"], ["--list", "--prune"], ["--rollback", "docs"]):
        assert hybrid("update", "made", *words).problem == "missing-option"


def test_an_appended_index_is_updated_too(home: Home) -> None:
    Path("more").mkdir()
    Path("more/new.txt").write_text("a walrus")
    Path("more/2.txt").write_text("another text of salt")
    call(PrepareFiles([Path("more")], output=Path("added")))
    for name in ("bm25", "dense"):
        ran("update", f"made/{name}", "--add", "added", "--output", f"made/more-{name}", "--threads", "1")
    ran("compose", "made/more-bm25", "made/more-dense", "--method", "rrf", "--output", "made/more")
    assert hybrid("update", "made/more", "docs").says("documents-changed", added=0, replaced=1, removed=1)
    index = RetrieverFiles.read(Path("made/more")).indexes[0]
    call(IndexBm25(Path("made/collection.2"), threads=1, output=Path("plain")))
    assert contents(str(index)) == contents("plain")


def test_a_document_that_was_deleted_from_the_indexes_is_added_again(home: Home) -> None:
    Path("gone.txt").write_text("1.txt\n")
    for name in ("bm25", "dense"):
        ran("update", f"made/{name}", "--remove", "gone.txt", "--output", f"made/less-{name}")
    ran("compose", "made/less-bm25", "made/less-dense", "--method", "rrf", "--output", "made/less")
    assert hybrid("update", "made/less", "docs").says("documents-changed", added=1, replaced=0, removed=0, before=11)
    files = RetrieverFiles.read(Path("made/less"))
    assert len(docids_of(files.indexes[1])) == collection.document_count(Path("made/collection.2")) == 12


@pytest.mark.parametrize(
    ("prepared", "command", "expected"),
    [
        ("half", "made docs", refusal("many-deletions", option="allow_shrink", count=7)),
        ("", "docs docs", refusal("no-manifest", path="docs")),
        ("", "made/bm25 --add made/collection", refusal("missing-option", option="output")),
        ("ids", "made --remove ids.txt", refusal("unknown-id", path="ids.txt", id="nowhere")),
        ("lost", "made docs", refusal("corpus-changed", corpus="corpus.parquet")),
        ("edited", "made docs", refusal("corpus-changed")),
        ("columns", "made docs.jsonl", refusal("other-columns")),
        ("passages", "made split", refusal("other-passages")),
        ("sample", "sampled docs", refusal("partial-collection", option="sample")),
        ("empty", "made docs", refusal("no-text-files")),
    ],
)
def test_what_cannot_be_updated_is_refused(prepared: str, command: str, expected: object, home: Home) -> None:
    if prepared in ("half", "empty"):
        for file in sorted(home.docs.iterdir())[: 7 if prepared == "half" else None]:
            file.unlink()
    if prepared == "ids":
        Path("ids.txt").write_text("1.txt\nnowhere\n")
    if prepared == "lost":
        Path("made/collection/corpus.parquet").unlink()
    if prepared == "edited":
        (home.docs / "new.txt").write_text("a walrus")
        call(PrepareFiles([Path("docs")], output=Path("made/collection"), overwrite=True))
    if prepared == "columns":
        Path("docs.jsonl").write_text('{"id": "0", "text": "a", "author": "b"}\n')
        columns = {"author": "author"}
        call(PrepareFiles([Path("docs.jsonl")], document_columns=columns, output=Path("made/authors")))
        command = "made made/authors"
    if prepared == "passages":
        call(PrepareFiles([Path("docs")], split_passages=3, output=Path("split")))
    if prepared == "sample":
        call(PrepareFiles([Path("docs")], sample=9, output=Path("sampled/collection")))
        home.build(Path("sampled/collection"), "sampled")
    before = {path: path.stat().st_mtime_ns for path in Path("made").rglob("*")}
    done = hybrid("update", *command.split())
    assert done.is_problem(expected), (done.problem, done.fields, done.err)  # type: ignore[arg-type]
    assert {path: path.stat().st_mtime_ns for path in Path("made").rglob("*")} == before


def test_half_of_the_documents_can_be_deleted_on_request(home: Home) -> None:
    for file in sorted(home.docs.iterdir())[:7]:
        file.unlink()
    assert hybrid("update", "made", "docs", "--allow-shrink").says("documents-changed", removed=7, after=5)


def test_two_updates_at_once(home: Home) -> None:
    (home.docs / "new.txt").write_text("a walrus")
    with console.heard(), artifacts.output.stage_scope():
        artifacts.lock_growing(Path("made/retriever.update"))
        done = hybrid("update", "made", "docs")
    assert done.problem == "locked"
    ran("update", "made", "docs")


KILLED = """
import os, signal
from hybrid_cli.artifacts import output
from hybrid_cli.cli import main
publish = output.Output._publish
def killed(self, complete):
    if self.target.name == {name!r} and {before}:
        os.kill(os.getpid(), signal.SIGKILL)
    publish(self, complete)
    if self.target.name == {name!r}:
        os.kill(os.getpid(), signal.SIGKILL)
output.Output._publish = killed
main()
"""


@pytest.mark.heavy
def test_a_killed_update_leaves_the_old_state_or_the_new_one(home: Home) -> None:
    (home.docs / "new.txt").write_text("a walrus")
    (home.docs / "1.txt").unlink()
    retriever, run_file = Path("made/retriever").absolute(), Path("run.parquet").absolute()
    old = hits(retriever, run_file)
    moments = [("collection.2", True), ("bm25.2", True), ("bm25.2", False), ("dense.2", False), ("retriever", True)]
    for name, before in moments:
        done = run(KILLED.format(name=name, before=before), "update", "made", "docs", "--threads", "1")
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert read_retriever(retriever).generation == 1
        assert hits(retriever, run_file).equals(old)
    done = run(KILLED.format(name="retriever", before=False), "update", "made", "docs", "--threads", "1")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert read_retriever(retriever).generation == 2
    assert hybrid("update", "made", "docs", "--threads", "1").says("documents-changed", added=0, removed=0)
    ran("inspect", "--verify", "made")
    assert {path.name for path in Path("made").glob(".*")} <= {".retriever.partial.lock"}
