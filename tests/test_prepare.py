"""`prepare`: ids survive every format, policies are applied, errors name the line, samples keep judgments valid."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from command import hybrid
from tiny_collection import (
    AWKWARD_IDS,
    TINY_DOCUMENTS,
    TINY_JUDGEMENTS,
    corpus_of,
    counts_of,
    write_lines,
    write_tiny_source,
)
from typer.testing import CliRunner

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind
from hybrid_cli.cli.app import app
from hybrid_cli.collections import collection, writer
from hybrid_cli.collections.source import Document, Place, Source
from hybrid_cli.errors import InputError
from hybrid_cli.settings import PrepareBeir, PrepareDpr, PrepareMsmarco, PreparePythonDocs, PrepareTrec
from hybrid_cli.settings.data import OnDangling, OnDuplicate, Prepare
from hybrid_cli.stages.prepare import prepare


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_beir(tmp_path / "beir", ["d1"])
    prepare(PrepareBeir(folder, output=tmp_path / "made"))
    prepare(PrepareBeir(folder, output=tmp_path / "made"))
    assert "is up to date" in capsys.readouterr().err
    write_beir(folder, ["d1", "d2"])
    with pytest.raises(InputError, match="input 'corpus' has changed"):
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
            yield Document(f"d{number}", "", "text", Place("here", number))

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


def test_an_error_counts_the_duplicates_and_names_the_options(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", ["a", "b", "a", "b", "a"], judged=["a"])
    with pytest.raises(InputError) as raised:
        prepare(PrepareBeir(folder, output=tmp_path / "made"))
    assert str(raised.value) == (
        f"{folder}/corpus.jsonl, line 3: duplicate documents: 3 (a, b, a); "
        "fix the file, or pass --on-duplicate first or last to keep one of them"
    )


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
    with pytest.raises(InputError, match=r"queries.jsonl, line 2: duplicate queries: 1 \(about a\)"):
        prepare(PrepareBeir(folder, output=tmp_path / "made"))
    write_lines(folder / "qrels/test.tsv", "about a\ta\t1", "about a\ta\t2")
    made = prepare(PrepareBeir(folder, output=tmp_path / "made", on_duplicate="last"))
    assert collection.read_queries(made / "queries.test.parquet")["text"].to_list() == ["two"]
    assert collection.read_qrels(made / "qrels.test.parquet")["relevance"].to_list() == [2]


def test_a_repeated_judgment_counts_once(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", ["a"])
    write_lines(folder / "qrels/test.tsv", "about a\ta\t1", "about a\ta\t1")
    made = prepare(PrepareBeir(folder, output=tmp_path / "made"))
    assert counts_of(made)["judgments"] == {"test": 1}


def test_judgments_of_unknown_documents_are_an_error_with_examples(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", ["a"], judged=["a", "v", "w", "x", "y"])
    with pytest.raises(InputError, match=r"test.tsv, line 3: .* not in the corpus: 4 \(v, w, x, ...\).*--on-dangling"):
        prepare(PrepareBeir(folder, output=tmp_path / "made"))


@pytest.mark.parametrize(("policy", "judged"), [("drop", ["a"]), ("keep", ["a", "x"])])
def test_judgments_of_unknown_documents_are_dropped_or_kept(
    tmp_path: Path, policy: OnDangling, judged: list[str]
) -> None:
    folder = write_beir(tmp_path / "beir", ["a"], judged=["a", "x"])
    made = prepare(PrepareBeir(folder, output=tmp_path / "made", on_dangling=policy))
    assert collection.read_qrels(made / "qrels.test.parquet")["docid"].to_list() == judged
    assert collection.read_queries(made / "queries.test.parquet")["text"].to_list() == ["a", "x"]


def test_a_judgment_of_an_unknown_query_is_dangling(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", ["a", "b"])
    write_lines(folder / "queries.jsonl", {"_id": "about a", "text": "a"})
    with pytest.raises(InputError, match=r"queries that are not in the split: 1 \(about b\)"):
        prepare(PrepareBeir(folder, output=tmp_path / "made"))


def test_a_split_without_usable_judgments_is_refused(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", ["a"], judged=["x"])
    with pytest.raises(InputError, match="no judgment of split 'test' has a document"):
        prepare(PrepareBeir(folder, output=tmp_path / "made", on_dangling="drop"))


def test_empty_and_long_texts_are_kept_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_beir(tmp_path / "beir", [], judged=["a"])
    texts = {"a": "text", "b": "", "c": " \n ", "d": "word " * 512, "e": "word " * 513}
    write_lines(folder / "corpus.jsonl", *({"_id": docid, "text": text} for docid, text in texts.items()))
    made = prepare(PrepareBeir(folder, output=tmp_path / "made"))
    assert len(corpus_of(made)) == 5
    assert counts_of(made)["problems"] == {
        "empty documents": {"count": 2, "examples": ["b", "c"]},
        "documents of over 512 words": {"count": 1, "examples": ["e"]},
    }
    assert "empty documents: 2 (b, c)" in capsys.readouterr().err


def test_an_empty_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"corpus.jsonl: no documents"):
        prepare(PrepareBeir(write_beir(tmp_path / "beir", []), output=tmp_path / "made"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"_id": "b", "text": "cut o', "line 2: not valid JSON"),
        ('{"text": "no id"}', "line 2: no field _id or id"),
        ('{"_id": "", "text": "x"}', "line 2: empty id"),
        ('{"_id": "b"}', "line 2: no field text or contents"),
        ('{"_id": "b", "text": 7.5e3, "title": []}', "line 2: field 'title' is a list"),
    ],
)
def test_an_invalid_line_is_reported_with_file_and_number(tmp_path: Path, line: str, message: str) -> None:
    folder = write_beir(tmp_path / "beir", ["a"])
    write_lines(folder / "corpus.jsonl", {"_id": "a", "text": "x"}, line)
    with pytest.raises(InputError, match=r"corpus\.jsonl, " + message):
        prepare(PrepareBeir(folder, output=tmp_path / "made"))


def test_a_lone_surrogate_becomes_a_replacement_character(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", ["a"])
    write_lines(folder / "corpus.jsonl", r'{"_id": "a", "text": "broken \ud83d, whole \ud83d\ude00"}')
    made = prepare(PrepareBeir(folder, output=tmp_path / "made"))
    assert corpus_of(made) == [("a", "", "broken \ufffd, whole 😀")]


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
    with pytest.raises(InputError, match=r"split '.*: (needs letters|a name needs at most 100 bytes)"):
        prepare(PrepareTrec(folder / "corpus.jsonl", qrels=qrels, output=tmp_path / "made"))
    assert not (tmp_path / "made").exists()


def test_splits_are_listed_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_beir(tmp_path / "beir", ["a", "b"])
    topics = dict.fromkeys(("train", "dev", "test"), folder / "queries.jsonl")
    qrels = dict.fromkeys(("test", "train"), folder / "qrels/test.tsv")
    prepare(PrepareTrec(folder / "corpus.jsonl", topics=topics, qrels=qrels, output=tmp_path / "made"))
    assert "queries: dev 2 (0 judgments), test 2 (2 judgments), train 2 (2 judgments)" in capsys.readouterr().err


def test_gzipped_beir_files_are_read_and_damaged_ones_refused(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", ["a", "b"])
    plain = folder / "corpus.jsonl"
    whole = gzip.compress(plain.read_bytes())
    (folder / "corpus.jsonl.gz").write_bytes(whole)
    plain.unlink()
    assert len(corpus_of(prepare(PrepareBeir(folder, output=tmp_path / "made")))) == 2
    (folder / "corpus.jsonl.gz").write_bytes(whole[:-12])
    with pytest.raises(InputError, match="damaged gzip file"):
        prepare(PrepareBeir(folder, output=tmp_path / "again"))


def test_a_missing_file_of_a_beir_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no corpus\.jsonl; a BEIR folder contains"):
        prepare(PrepareBeir(tmp_path, output=tmp_path / "made"))
    with pytest.raises(InputError, match="no such folder"):
        prepare(PrepareBeir(tmp_path / "nothing", output=tmp_path / "made"))


# -------------------------------------------------------------------------------------------------------------- command


def test_the_command_and_the_stage_write_the_same_collection(tmp_path: Path, tiny: Path) -> None:
    write_tiny_source(tmp_path)
    arguments = ["prepare", "trec", f"{tmp_path}/docs.jsonl", "--output", f"{tmp_path}/made"]
    for split in TINY_JUDGEMENTS:
        arguments += ["--topics", f"{split}={tmp_path}/topics.{split}.tsv"]
        arguments += ["--qrels", f"{split}={tmp_path}/qrels.{split}.txt"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert corpus_of(tmp_path / "made") == TINY_DOCUMENTS
    assert artifacts.read_manifest(tmp_path / "made").fingerprint == artifacts.read_manifest(tiny).fingerprint


@pytest.mark.parametrize(
    ("value", "message"),
    [("a.tsv", "--queries a.tsv: needs SPLIT=FILE"), ("t=a,t=b", "split 't' is given twice")],
)
def test_a_file_without_its_split_is_refused(tmp_path: Path, value: str, message: str) -> None:
    result = CliRunner().invoke(app, ["prepare", "msmarco", "c.tsv", "--queries", value, "-o", f"{tmp_path}/made"])
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)


@pytest.mark.skipif("HYBRID_DATA" not in os.environ, reason="needs HYBRID_DATA, a folder with cacm")
def test_dangling_judgments_of_cacm_are_counted_and_can_be_kept(tmp_path: Path) -> None:
    made = prepare(PrepareBeir(Path(os.environ["HYBRID_DATA"]) / "cacm", output=tmp_path / "made", on_dangling="keep"))
    counts = counts_of(made)
    assert (counts["documents"], counts["queries"], counts["judgments"]) == (3204, {"test": 52}, {"test": 796})
    assert counts["problems"]["judgments of documents that are not in the corpus"]["count"] == 55


# --------------------------------------------------------------------------------------------------------------- sample


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


def test_queries_are_sampled_without_a_sample_of_documents(tmp_path: Path) -> None:
    settings = PrepareBeir(write_graded(tmp_path / "beir"), sample_queries={"test": 3}, output=tmp_path / "made")
    made = prepare(settings)
    assert len(docids_of(made)) == 40
    assert counts_of(made)["queries"] == {"test": 3, "train": 2}
    assert counts_of(made)["judgments"] == {"test": 9, "train": 2}


def test_a_sample_larger_than_the_corpus_is_the_corpus(tmp_path: Path) -> None:
    made = prepare(PrepareBeir(write_graded(tmp_path / "beir"), sample=1000, output=tmp_path / "made"))
    assert len(docids_of(made)) == 40
    assert counts_of(made)["judgments"] == {"test": 30, "train": 2}


def test_dangling_judgments_of_a_sample_are_reported(tmp_path: Path) -> None:
    folder = write_graded(tmp_path / "beir")
    write_lines(folder / "qrels/train.tsv", "q10\td30\t1", "q10\tmissing\t1", "unknown\td1\t1")
    with pytest.raises(InputError, match=r"not in the corpus: 1 \(missing\)"):
        prepare(PrepareBeir(folder, sample=20, output=tmp_path / "made"))
    made = prepare(PrepareBeir(folder, sample=20, on_dangling="drop", output=tmp_path / "made"))
    assert counts_of(made)["judgments"]["train"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sample", "12"], "--sample 12: the queries have 13 relevant documents; use a larger sample"),
        (["--sample", "0"], "--sample 0: needs a number >= 1"),
        (["--sample-queries", "dev=2"], "no queries of split 'dev'; splits: test, train"),
        (["--sample-queries", "test=many"], "needs a whole number"),
        (["--seed", "1"], "--seed: only with --sample, or with --sample-queries"),
    ],
)
def test_an_unusable_sample_is_refused(tmp_path: Path, options: list[str], message: str) -> None:
    folder = write_graded(tmp_path / "beir")
    done = hybrid("prepare", "beir", folder, "--output", tmp_path / "made", *options)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert message in done.err
    assert not (tmp_path / "made").exists()


def test_the_docstring_task_can_be_sampled(tmp_path: Path) -> None:
    settings = PreparePythonDocs(
        package=["rich"], only=True, sample=30, sample_queries={"test": 5}, output=tmp_path / "made"
    )
    with pytest.raises(InputError, match=r"--sample 30: the queries have \d+ relevant documents"):
        prepare(settings)
    small = {"train": 5, "dev": 5, "test": 5}
    made = prepare(settings.changed(sample_queries=small))
    assert (len(docids_of(made)), counts_of(made)["queries"]) == (30, small)
