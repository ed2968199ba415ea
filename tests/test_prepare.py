"""`prepare`: ids survive every format, policies are applied, errors name the line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Notices, Refusal, raises, refusal
from tiny_collection import (
    AWKWARD_IDS,
    corpus_of,
    counts_of,
    write_lines,
)

from hybrid_cli import artifacts
from hybrid_cli.collections import collection, writer
from hybrid_cli.collections.options import OnDangling, OnDuplicate
from hybrid_cli.collections.source import Document, Location, Source
from hybrid_cli.errors import InputError
from hybrid_cli.settings import PrepareBeir, PrepareDpr, PrepareMsmarco, PrepareTrec
from hybrid_cli.settings.data import Prepare
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.storage import Kind


def write_beir(folder: Path, docids: list[str], judged: list[str] | None = None) -> Path:
    """Write a BEIR folder in which document ID is relevant for query `about ID`."""
    judged = docids if judged is None else judged
    write_lines(folder / "corpus.jsonl", *({"_id": d, "title": "", "text": f"a text {d}"} for d in docids))
    write_lines(folder / "queries.jsonl", *({"_id": f"about {d}", "text": d} for d in judged))
    write_lines(folder / "qrels/test.tsv", "query-id\tcorpus-id\tscore", *(f"about {d}\t{d}\t1" for d in judged))
    return folder


# ---------------------------------------------------------------------------------------------------------- all formats


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
        settings = PrepareTrec(corpus, topics={"test": topics}, qrels={"test": qrels}, output=output)
    made = prepare(settings)
    assert [row[0] for row in corpus_of(made)] == ids
    assert collection.read_qrels(collection.qrels_path(made))["docid"].to_list() == ids


def test_equal_sources_have_equal_fingerprints(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", AWKWARD_IDS)
    one, two = (prepare(PrepareBeir(folder, output=tmp_path / name)) for name in ("one", "two"))
    assert artifacts.read_manifest(one).fingerprint == artifacts.read_manifest(two).fingerprint
    for file in one.glob("*.parquet"):
        assert file.read_bytes() == (two / file.name).read_bytes()


def test_every_file_has_the_manifest_of_its_kind(tiny: Path) -> None:
    kinds = {path.name: artifacts.read_manifest(path).kind for path in tiny.glob("*.parquet")}
    assert kinds == {
        "corpus.parquet": Kind.CORPUS,
        "queries.train.parquet": Kind.QUERIES, "queries.test.parquet": Kind.QUERIES,
        "qrels.train.parquet": Kind.QRELS, "qrels.test.parquet": Kind.QRELS,
    }  # fmt: skip


def test_an_unchanged_source_is_not_read_again_and_a_changed_source_is_refused(
    tmp_path: Path, notices: Notices
) -> None:
    folder = write_beir(tmp_path / "beir", ["d1"])
    prepare(PrepareBeir(folder, output=tmp_path / "made"))
    prepare(PrepareBeir(folder, output=tmp_path / "made"))
    assert notices.says("up-to-date")
    write_beir(folder, ["d1", "d2"])
    with raises("output-differs", inputs=["corpus", "qrels test", "queries"]):
        prepare(PrepareBeir(folder, output=tmp_path / "made"))
    prepare(PrepareBeir(folder, output=tmp_path / "made", overwrite=True))
    assert len(corpus_of(tmp_path / "made")) == 2


def test_a_large_corpus_is_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BATCH_ROWS", 3)
    monkeypatch.setattr(writer, "BATCHES_PER_PART", 2)
    docids = [f"d{number}" for number in range(14)]
    made = prepare(PrepareBeir(write_beir(tmp_path / "beir", docids), output=tmp_path / "made"))
    assert [path.name for path in sorted((made / "corpus").iterdir())] == [f"part-{n:05}.parquet" for n in range(3)]
    assert [row[0] for row in corpus_of(made)] == docids
    assert collection.document_count(made) == 14


def test_an_error_leaves_no_files(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", ["d1"], judged=["d2"])
    with pytest.raises(InputError):
        prepare(PrepareBeir(folder, output=tmp_path / "made"))
    assert [path.name for path in tmp_path.iterdir()] == ["beir"]


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


# ------------------------------------------------------------------------------------------------------------ problems


@pytest.mark.parametrize(("policy", "kept"), [("first", ["one", "two"]), ("last", ["two", "three"])])
def test_the_first_or_the_last_duplicate_is_kept(tmp_path: Path, policy: OnDuplicate, kept: list[str]) -> None:
    folder = write_beir(tmp_path / "beir", [], judged=["a"])
    rows = [("a", "one"), ("b", "two"), ("a", "three")]
    write_lines(folder / "corpus.jsonl", *({"_id": docid, "text": text} for docid, text in rows))
    made = prepare(PrepareBeir(folder, output=tmp_path / "made", on_duplicate=policy))
    assert [row[2] for row in corpus_of(made)] == kept
    assert counts_of(made)["problems"]["duplicate documents"] == {"count": 1, "examples": ["a"]}


def test_the_duplicate_policy_applies_to_queries_and_judgments(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", ["a"])
    write_lines(folder / "queries.jsonl", *({"_id": "about a", "text": text} for text in ("one", "two")))
    with raises("duplicate-id", path="queries.jsonl", line=2, id="about a", count=1):
        prepare(PrepareBeir(folder, output=tmp_path / "made"))
    write_lines(folder / "qrels/test.tsv", "about a\ta\t1", "about a\ta\t2")
    made = prepare(PrepareBeir(folder, output=tmp_path / "made", on_duplicate="last"))
    assert collection.read_queries(made / "queries.test.parquet")["text"].to_list() == ["two"]
    assert collection.read_qrels(made / "qrels.test.parquet")["relevance"].to_list() == [2]


@pytest.mark.parametrize(("policy", "judged"), [("drop", ["a"]), ("keep", ["a", "x"])])
def test_judgments_of_unknown_documents_are_dropped_or_kept(
    tmp_path: Path, policy: OnDangling, judged: list[str]
) -> None:
    folder = write_beir(tmp_path / "beir", ["a"], judged=["a", "x"])
    made = prepare(PrepareBeir(folder, output=tmp_path / "made", on_dangling=policy))
    assert collection.read_qrels(made / "qrels.test.parquet")["docid"].to_list() == judged
    assert collection.read_queries(made / "queries.test.parquet")["text"].to_list() == ["a", "x"]


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
        (PrepareDpr(passages, output=made, questions={"test": none}), refusal("no-queries", path="none.tsv")),
        (PrepareMsmarco(plain, output=made, queries={"dev": none}), refusal("no-queries", path="none.tsv")),
        (
            PrepareTrec(folder / "corpus.jsonl", output=made, topics={"dev": none}),
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


# ----------------------------------------------------------------------------------------------------------------- beir


def test_each_beir_qrels_file_is_a_split_and_other_queries_are_unjudged(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", ["a", "b"], judged=["a", "b", "c"])
    write_lines(folder / "qrels/test.tsv", "query-id\tcorpus-id\tscore", "about a\ta\t2")
    write_lines(folder / "qrels/test_part.tsv", "query-id\tcorpus-id\tscore", "about a\ta\t2")
    write_lines(folder / "qrels/train.tsv", "query-id\tcorpus-id\tscore", "about b\tb\t1")
    made = prepare(PrepareBeir(folder, output=tmp_path / "made"))
    found = {split: collection.read_queries(made / f"queries.{split}.parquet")["text"].to_list() for split in
             ("test", "test_part", "train", "unjudged")}  # fmt: skip
    assert found == {"test": ["a"], "test_part": ["a"], "train": ["b"], "unjudged": ["c"]}
    assert collection.splits(made) == ["test", "test_part", "train"]


def test_other_files_among_the_beir_qrels_are_no_splits(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", ["a", "b"])
    for name in ("test.tsv.bak", "test.tsv~", ".hidden.tsv", "._test.tsv", "dev.tsv.gz.part"):
        (folder / "qrels" / name).write_text("not judgments")
    (folder / "qrels" / "test.tsv.gz").write_bytes(b"an older copy of the plain file")
    assert collection.splits(prepare(PrepareBeir(folder, output=tmp_path / "made"))) == ["test"]


@pytest.mark.parametrize("split", ["..", ".", ".hidden", "-test", "te st", "a/b", "a\0", "", "\u0639" * 60])
def test_a_name_unsuitable_for_files_is_no_split(tmp_path: Path, split: str) -> None:
    folder = write_beir(tmp_path / "beir", ["a", "b"])
    qrels = {split: folder / "qrels/test.tsv"}
    with raises("invalid-name", split=split):
        prepare(PrepareTrec(folder / "corpus.jsonl", qrels=qrels, output=tmp_path / "made"))
    assert not (tmp_path / "made").exists()


def test_gzipped_beir_files_are_read_and_damaged_ones_refused(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", ["a", "b"])
    plain = folder / "corpus.jsonl"
    whole = gzip.compress(plain.read_bytes())
    (folder / "corpus.jsonl.gz").write_bytes(whole)
    plain.unlink()
    assert len(corpus_of(prepare(PrepareBeir(folder, output=tmp_path / "made")))) == 2
    (folder / "corpus.jsonl.gz").write_bytes(whole[:-12])
    with raises("damaged-compression"):
        prepare(PrepareBeir(folder, output=tmp_path / "again"))


# -------------------------------------------------------------------------------------------------------------- command
