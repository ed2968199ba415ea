"""prepare: ids survive every format, policies are applied, errors name the line; samples and passages."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from command import Notices, Refusal, raises, refusal
from hypothesis import given
from hypothesis import strategies as st
from tiny_collection import AWKWARD_IDS, TINY_DOCUMENTS, corpus_of, counts_of, write_lines, write_tiny_source

from hybrid_cli import artifacts
from hybrid_cli.collections import collection, writer
from hybrid_cli.collections.options import OnDangling, OnDuplicate
from hybrid_cli.collections.source import Document, Location, Source, passages
from hybrid_cli.commands import PrepareBeir, PrepareDpr, PrepareMsmarco, PrepareTrec
from hybrid_cli.commands.data import Prepare
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.storage import Kind


def write_beir(folder: Path, docids: list[str], judged: list[str] | None = None) -> Path:
    judged = docids if judged is None else judged
    write_lines(folder / "corpus.jsonl", *({"_id": d, "title": "", "text": f"a text {d}"} for d in docids))
    write_lines(folder / "queries.jsonl", *({"_id": f"about {d}", "text": d} for d in judged))
    write_lines(folder / "qrels/test.tsv", "query-id\tcorpus-id\tscore", *(f"about {d}\t{d}\t1" for d in judged))
    return folder


@pytest.mark.parametrize("format_", ["beir", "msmarco", "dpr", "trec-jsonl", "trec-sgml"])
def test_unusual_ids_survive_every_format(tmp_path: Path, format_: str) -> None:
    ids, output = AWKWARD_IDS, tmp_path / "collection"
    qrels = write_lines(tmp_path / "qrels.tsv", *(f"q{d}\t0\t{d}\t1" for d in ids))
    topics = write_lines(tmp_path / "topics.tsv", *(f"q{d}\ta query" for d in ids))
    if format_ == "beir":
        settings: Prepare = PrepareBeir(write_beir(tmp_path / "beir", ids), output=output)
    elif format_ == "msmarco":
        corpus = write_lines(tmp_path / "collection.tsv", *(f"{d}\ta text" for d in ids))
        settings = PrepareMsmarco(corpus, queries={"test": topics}, qrels={"test": qrels}, output=output)
    elif format_ == "dpr":
        corpus = write_lines(tmp_path / "psgs.tsv", "id\ttext\ttitle", *(f'{d}\t"a ""text"""\ta title' for d in ids))
        record = {"question": "a", "answers": ["b"], "positive_ctxs": [{"passage_id": d} for d in ids]}
        (tmp_path / "train.json").write_text(json.dumps([record], indent=4))
        settings = PrepareDpr(corpus, training={"test": tmp_path / "train.json"}, output=output)
    else:
        records = [{"id": d, "contents": "a text"} for d in ids]
        blocks = [f"<DOC>\n<DOCNO> {d} </DOCNO>\n<TEXT>a text</TEXT>\n</DOC>" for d in ids]
        corpus = write_lines(
            tmp_path / ("docs.jsonl" if "json" in format_ else "docs.sgml"), *(records if "json" in format_ else blocks)
        )
        settings = PrepareTrec(corpus, queries={"test": topics}, qrels={"test": qrels}, output=output)
    made = prepare(settings)
    assert [row[0] for row in corpus_of(made)] == ids
    assert collection.read_qrels(collection.qrels_path(made))["docid"].to_list() == ids


def test_equal_sources_have_equal_fingerprints(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", AWKWARD_IDS)
    one, two = (prepare(PrepareBeir(folder, output=tmp_path / name)) for name in ("one", "two"))
    assert artifacts.read_manifest(one).fingerprint == artifacts.read_manifest(two).fingerprint
    for file in one.glob("*.parquet"):
        assert file.read_bytes() == (two / file.name).read_bytes()


def test_an_unchanged_source_is_not_read_again_and_a_changed_one_refused(tmp_path: Path, notices: Notices) -> None:
    folder = write_beir(tmp_path / "beir", ["d1"])
    prepare(PrepareBeir(folder, output=tmp_path / "made"))
    prepare(PrepareBeir(folder, output=tmp_path / "made"))
    assert notices.says("up-to-date")
    write_beir(folder, ["d1", "d2"])
    with raises("output-differs", inputs=["corpus", "qrels test", "queries"]):
        prepare(PrepareBeir(folder, output=tmp_path / "made"))
    prepare(PrepareBeir(folder, output=tmp_path / "made", overwrite=True))
    plain = folder / "corpus.jsonl"
    whole = gzip.compress(plain.read_bytes())
    plain.with_name("corpus.jsonl.gz").write_bytes(whole)
    plain.unlink()
    assert corpus_of(prepare(PrepareBeir(folder, output=tmp_path / "gz"))) == corpus_of(tmp_path / "made")
    assert len(corpus_of(tmp_path / "made")) == 2
    plain.with_name("corpus.jsonl.gz").write_bytes(whole[:-12])
    with raises("damaged-compression"):
        prepare(PrepareBeir(folder, output=tmp_path / "cut"))


def test_a_large_corpus_is_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BATCH_ROWS", 3)
    monkeypatch.setattr(writer, "BATCHES_PER_PART", 2)
    docids = [f"d{number}" for number in range(14)]
    made = prepare(PrepareBeir(write_beir(tmp_path / "beir", docids), output=tmp_path / "made"))
    assert [path.name for path in sorted((made / "corpus").iterdir())] == [f"part-{n:05}.parquet" for n in range(3)]
    assert [row[0] for row in corpus_of(made)] == docids
    assert collection.document_count(made) == 14


def test_documents_are_streamed(tmp_path: Path) -> None:
    """At most one batch of documents is in memory."""

    def documents() -> Iterator[Document]:
        for number in range(20_000):
            alive.append(number)
            yield Document(f"d{number}", "", "text", Location("here", number))

    alive: list[int] = []
    seen_at_first_batch: list[int] = []
    source = Source("made", documents)
    manifest = artifacts.Manifest(Kind.COLLECTION, "test", {}, {})
    made = writer.CollectionWriter(
        source, tmp_path, manifest, advance=lambda count: seen_at_first_batch.append(len(alive))
    )
    assert made.write()["documents"] == 20_000
    assert seen_at_first_batch[0] == writer.BATCH_ROWS


@pytest.mark.parametrize(("policy", "kept"), [("first", ["one", "two"]), ("last", ["two", "three"])])
def test_the_first_or_the_last_duplicate_is_kept(tmp_path: Path, policy: OnDuplicate, kept: list[str]) -> None:
    folder = write_beir(tmp_path / "beir", [], judged=["a"])
    rows = [("a", "one"), ("b", "two"), ("a", "three")]
    write_lines(folder / "corpus.jsonl", *({"_id": docid, "text": text} for docid, text in rows))
    made = prepare(PrepareBeir(folder, output=tmp_path / "made", on_duplicate=policy))
    assert [row[2] for row in corpus_of(made)] == kept
    assert counts_of(made)["problems"]["duplicate documents"] == {"count": 1, "examples": ["a"]}
    with raises("duplicate-id", path="corpus.jsonl", line=3, id="a", count=1):
        prepare(PrepareBeir(folder, output=tmp_path / "default"))


def test_the_duplicate_policy_applies_to_queries_and_judgments(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", ["a"])
    write_lines(folder / "queries.jsonl", *({"_id": "about a", "text": text} for text in ("one", "two")))
    with raises("duplicate-id", path="queries.jsonl", line=2, id="about a", count=1):
        prepare(PrepareBeir(folder, output=tmp_path / "made"))
    write_lines(folder / "qrels/test.tsv", "about a\ta\t1", *["about a\ta\t2"] * 2)  # equal ones are no duplicates
    made = prepare(PrepareBeir(folder, output=tmp_path / "made", on_duplicate="last"))
    assert counts_of(made)["problems"]["duplicate judgments"]["count"] == 1
    assert collection.read_queries(made / "queries.test.parquet")["text"].to_list() == ["two"]
    assert collection.read_qrels(made / "qrels.test.parquet")["relevance"].to_list() == [2]


@pytest.mark.parametrize(("policy", "judged"), [("drop", ["a"]), ("keep", ["a", "x"])])
def test_unknown_documents_are_dropped_or_kept(tmp_path: Path, policy: OnDangling, judged: list[str]) -> None:
    folder = write_beir(tmp_path / "beir", ["a"], judged=["a", "x"])
    with raises("dangling-judgments", path="test.tsv", line=3, id="x", count=1):
        prepare(PrepareBeir(folder, output=tmp_path / "made"))
    made = prepare(PrepareBeir(folder, output=tmp_path / "made", on_dangling=policy))
    assert collection.read_qrels(made / "qrels.test.parquet")["docid"].to_list() == judged
    assert collection.read_queries(made / "queries.test.parquet")["text"].to_list() == ["a", "x"]
    write_lines(folder / "qrels/test.tsv", "about a\ta\t1", "unknown\ta\t1")
    with raises("dangling-judgments", id="unknown", count=1):
        prepare(PrepareBeir(folder, output=tmp_path / "made", overwrite=True))


def test_empty_and_long_texts_are_kept_and_counted(tmp_path: Path, notices: Notices) -> None:
    folder = write_beir(tmp_path / "beir", [], judged=["a"])
    texts = {"a": "text", "b": "", "c": " \n ", "d": "word " * 512, "e": "word " * 513}
    rows = [{"_id": docid, "text": text} for docid, text in texts.items()]
    write_lines(folder / "corpus.jsonl", *rows, {"_id": "f", "title": "a title", "text": ""})
    made = prepare(PrepareBeir(folder, output=tmp_path / "made"))
    assert len(corpus_of(made)) == 6
    assert counts_of(made)["problems"] == {
        "empty documents": {"count": 2, "examples": ["b", "c"]},
        "documents of over 512 words": {"count": 1, "examples": ["e"]},
    }
    assert notices.says("problem", problem="empty documents", count=2, examples=["b", "c"])


def test_files_without_queries_or_judgments_are_refused(tmp_path: Path) -> None:
    passages = write_lines(tmp_path / "psgs.tsv", "id\ttext\ttitle", "1\ta text\ta title")
    plain = write_lines(tmp_path / "collection.tsv", "1\ta text")
    folder = write_beir(tmp_path / "beir", ["a"])
    write_lines(folder / "qrels/dev.tsv", "query-id\tcorpus-id\tscore")
    none, made = write_lines(tmp_path / "none.tsv"), tmp_path / "made"
    training = write_lines(tmp_path / "t.json", "[]")
    for settings, problem in (
        (PrepareDpr(passages, output=made, training={"train": training}), refusal("no-queries", path="t.json")),
        (PrepareDpr(passages, output=made, queries={"test": none}), refusal("no-queries", path="none.tsv")),
        (PrepareMsmarco(plain, output=made, queries={"dev": none}), refusal("no-queries", path="none.tsv")),
        (
            PrepareTrec(folder / "corpus.jsonl", output=made, queries={"dev": none}),
            refusal("no-queries", path="none.tsv"),
        ),
        (PrepareBeir(folder, output=made), refusal("no-judgments", path="qrels/dev.tsv")),
    ):
        with raises(problem):
            prepare(settings)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"_id": "b", "text": "cut o', refusal("not-json", line=2)),
        ('{"text": "no id"}', refusal("no-such-field", line=2, column="_id")),
        ('{"_id": "", "text": "x"}', refusal("missing-value", line=2, column="id")),
        ('{"_id": "b", "text": 7.5e3, "title": []}', refusal("not-a-text", line=2, column="title")),
    ],
)
def test_an_invalid_line_is_reported_with_file_and_number(tmp_path: Path, line: str, problem: str | Refusal) -> None:
    folder = write_beir(tmp_path / "beir", ["a"])
    write_lines(folder / "corpus.jsonl", {"_id": "a", "text": "x"}, line)
    with raises(problem, path="corpus.jsonl"):
        prepare(PrepareBeir(folder, output=tmp_path / "made"))
    assert [path.name for path in tmp_path.iterdir()] == ["beir"]


def test_each_beir_qrels_file_is_a_split_and_other_queries_are_unjudged(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", ["a", "b"], judged=["a", "b", "c"])
    write_lines(folder / "qrels/test.tsv", "query-id\tcorpus-id\tscore", "about a\ta\t2")
    write_lines(folder / "qrels/test_part.tsv", "query-id\tcorpus-id\tscore", "about a\ta\t2")
    write_lines(folder / "qrels/train.tsv", "query-id\tcorpus-id\tscore", "about b\tb\t1")
    for name in ("test.tsv.bak", "test.tsv~", ".hidden.tsv", "._test.tsv", "dev.tsv.gz.part", "test.tsv.gz"):
        (folder / "qrels" / name).write_text("not judgments")
    made = prepare(PrepareBeir(folder, output=tmp_path / "made"))
    splits = ("test", "test_part", "train", "unjudged")
    found = {name: collection.read_queries(made / f"queries.{name}.parquet")["text"].to_list() for name in splits}
    assert found == {"test": ["a"], "test_part": ["a"], "train": ["b"], "unjudged": ["c"]}
    assert collection.splits(made) == ["test", "test_part", "train"]


@pytest.mark.parametrize("split", ["..", ".", ".hidden", "-test", "te st", "a/b", "a\0", "", "\u0639" * 60])
def test_a_name_unsuitable_for_files_is_no_split(tmp_path: Path, split: str) -> None:
    folder = write_beir(tmp_path / "beir", ["a"])
    with raises("invalid-name", split=split):
        qrels = {split: folder / "qrels/test.tsv"}
        prepare(PrepareTrec(folder / "corpus.jsonl", qrels=qrels, output=tmp_path / "made"))
    assert [path.name for path in tmp_path.iterdir()] == ["beir"]


def write_graded(folder: Path, documents: int = 40) -> Path:
    """Write a BEIR folder with two relevant documents and one of grade 0 for each of ten queries in `test`."""
    write_lines(folder / "corpus.jsonl", *({"_id": f"d{n}", "text": f"text {n}"} for n in range(documents)))
    write_lines(folder / "queries.jsonl", *({"_id": f"q{n}", "text": f"query {n}"} for n in range(12)))
    rows = [
        (f"q{n}", f"d{(n + shift) % documents}", grade) for n in range(10) for shift, grade in ((0, 1), (1, 2), (20, 0))
    ]
    write_lines(folder / "qrels/test.tsv", *(f"{qid}\t{docid}\t{grade}" for qid, docid, grade in rows))
    write_lines(folder / "qrels/train.tsv", "q10\td30\t1", "q11\td31\t1")
    return folder


def docids_of(path: Path) -> list[str]:
    return [row[0] for row in corpus_of(path)]


@pytest.mark.parametrize("seed", [42, 1, 2])
def test_a_sample_has_its_size_and_all_relevant_documents(tmp_path: Path, seed: int) -> None:
    folder = write_graded(tmp_path / "beir")
    made = prepare(PrepareBeir(folder, sample=20, seed=seed, output=tmp_path / "made"))
    kept = docids_of(made)
    relevant = {f"d{n}" for n in (*range(11), 30, 31)}
    assert len(kept) == 20
    assert relevant < set(kept)
    assert kept == sorted(kept, key=lambda docid: int(docid[1:]))  # in the order of the corpus
    whole = prepare(PrepareBeir(folder, output=tmp_path / "whole"))
    for split in ("test", "train"):
        assert (made / f"queries.{split}.parquet").stat().st_size > 0
        qrels = collection.read_qrels(whole / f"qrels.{split}.parquet")
        sampled = collection.read_qrels(made / f"qrels.{split}.parquet")
        assert sampled.equals(qrels.filter(pl.col("docid").is_in(kept)))
    assert counts_of(made)["sampled_from"] == {"documents": 40, "queries": {"test": 10, "train": 2}}
    options = artifacts.read_manifest(made).options
    assert (options["sample"], options["seed"]) == (20, seed)
    assert "seed" not in artifacts.read_manifest(whole).options


def test_a_sample_depends_on_the_seed_only(tmp_path: Path) -> None:
    folder = write_graded(tmp_path / "beir")
    samples = {
        name: docids_of(prepare(PrepareBeir(folder, sample=20, seed=seed, output=tmp_path / name)))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    }
    assert samples["a"] == samples["b"] != samples["c"]
    lines = (folder / "corpus.jsonl").read_text("utf-8").splitlines()
    write_lines(folder / "corpus.jsonl", *reversed(lines))
    reverse = docids_of(prepare(PrepareBeir(folder, sample=20, seed=1, output=tmp_path / "reverse")))
    assert reverse == samples["a"][::-1]
    larger = docids_of(prepare(PrepareBeir(folder, sample=30, seed=1, output=tmp_path / "larger")))
    assert set(reverse) < set(larger)
    assert len(docids_of(prepare(PrepareBeir(folder, sample=1000, output=tmp_path / "whole")))) == 40


def test_queries_are_sampled_per_split_with_their_relevant_documents(tmp_path: Path) -> None:
    folder = write_graded(tmp_path / "beir")
    made = prepare(PrepareBeir(folder, sample=8, sample_queries={"test": 2}, output=tmp_path / "made"))
    queries = {
        split: set(collection.read_queries(made / f"queries.{split}.parquet")["qid"]) for split in ("test", "train")
    }
    assert len(queries["test"]) == 2
    assert queries["train"] == {"q10", "q11"}
    qrels = collection.read_qrels(made / "qrels.test.parquet")
    assert set(qrels["qid"]) == queries["test"]
    relevant = qrels.filter(pl.col("relevance") >= 1)
    assert relevant.group_by("qid").len()["len"].to_list() == [2, 2]
    assert set(qrels["docid"]) <= set(docids_of(made))
    assert len(docids_of(made)) == 8
    made = prepare(PrepareBeir(folder, sample_queries={"test": 3}, output=tmp_path / "queries"))
    assert (counts_of(made)["documents"], counts_of(made)["judgments"]) == (40, {"test": 9, "train": 2})
    with raises("out-of-range", option="sample"):
        prepare(PrepareBeir(folder, sample=12, output=tmp_path / "too-few"))  # 13 are relevant
    write_lines(folder / "qrels/train.tsv", "q10\td30\t1", "q10\tmissing\t1", "unknown\td1\t1")
    with raises("dangling-judgments", path="train.tsv", line=2):
        prepare(PrepareBeir(folder, sample=20, output=tmp_path / "dangling"))
    made = prepare(PrepareBeir(folder, sample=20, on_dangling="drop", output=tmp_path / "dangling"))
    assert counts_of(made)["judgments"]["train"] == 1


@given(st.text(alphabet="ab \n", max_size=40), st.integers(1, 5), st.integers(1, 5))
def test_passages_contain_every_word_in_order(text: str, size: int, stride: int) -> None:
    found = passages(text, size, min(stride, size))
    words = text.split()
    assert all(part in text for part in found)
    assert [len(part.split()) for part in found[:-1]] == [size] * (len(found) - 1)
    places = list(range(0, len(words), min(stride, size)))[: len(found)]
    assert [part.split() for part in found] == ([words[start : start + size] for start in places] if words else [[]])
    assert not words or places[-1] + size >= len(words)


def test_passages_have_the_title_and_the_judgments_of_their_document(tmp_path: Path) -> None:
    write_tiny_source(tmp_path)
    settings = PrepareTrec(
        tmp_path / "docs.jsonl",
        queries={"test": tmp_path / "topics.test.tsv"},
        qrels={"test": tmp_path / "qrels.test.txt"},
        split_passages=10,
        output=tmp_path / "out",
    )
    rows = corpus_of(prepare(settings))
    own = [row for row in rows if row[0].startswith("007#")]
    assert [row[0] for row in own] == ["007#0", "007#1", "007#2", "007#3"]
    assert {row[1] for row in own} == {"Tides"}
    assert " ".join(row[2] for row in own) == next(text for docid, _, text in TINY_DOCUMENTS if docid == "007")
    assert ("void#0", "A page without words", "") in rows
    judged = pl.read_parquet(tmp_path / "out" / "qrels.test.parquet").filter(qid="001")
    assert judged.filter(relevance=2)["docid"].to_list() == [row[0] for row in own]
    manifest = artifacts.read_manifest(tmp_path / "out")
    assert manifest.counts["whole_documents"] == len(TINY_DOCUMENTS)
    assert (manifest.options["split_passages"], manifest.options["passage_stride"]) == (10, 10)
