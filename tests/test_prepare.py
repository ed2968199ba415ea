"""Bringing collections in: ids survive every form, policies are kept, what is wrong is said with its place."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
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
from hybrid_cli.cli import app
from hybrid_cli.collections import collection, writer
from hybrid_cli.collections.readers import beir, dpr, msmarco, trec
from hybrid_cli.collections.source import Source
from hybrid_cli.errors import InputError
from hybrid_cli.stages.prepare import prepare


def write_beir(folder: Path, docids: list[str], judged: list[str] | None = None) -> Path:
    """A BEIR folder in which query `about ID` is answered by document ID."""
    judged = docids if judged is None else judged
    write_lines(folder / "corpus.jsonl", *({"_id": d, "title": "", "text": f"a text {d}"} for d in docids))
    write_lines(folder / "queries.jsonl", *({"_id": f"about {d}", "text": d} for d in judged))
    write_lines(folder / "qrels/test.tsv", "query-id\tcorpus-id\tscore", *(f"about {d}\t{d}\t1" for d in judged))
    return folder


# ------------------------------------------------------------------------------------------------------------ all forms


@pytest.mark.parametrize("form", ["beir", "msmarco", "dpr", "trec-jsonl", "trec-sgml"])
def test_awkward_ids_survive_every_form(tmp_path: Path, form: str):
    ids = AWKWARD_IDS
    qrels = write_lines(tmp_path / "qrels.tsv", *(f"q{d}\t0\t{d}\t1" for d in ids))
    topics = write_lines(tmp_path / "topics.tsv", *(f"q{d}\ta query" for d in ids))
    if form == "beir":
        source = beir.source(write_beir(tmp_path / "beir", ids))
    elif form == "msmarco":
        corpus = write_lines(tmp_path / "collection.tsv", *(f"{d}\ta text" for d in ids))
        source = msmarco.source(corpus, queries={"test": topics}, qrels={"test": qrels})
    elif form == "dpr":
        corpus = write_lines(tmp_path / "psgs.tsv", "id\ttext\ttitle", *(f'{d}\t"a ""text"""\ta title' for d in ids))
        record = {"question": "a", "answers": ["b"], "positive_ctxs": [{"passage_id": d} for d in ids]}
        (tmp_path / "train.json").write_text(json.dumps([record], indent=4))
        source = dpr.source(corpus, training={"test": tmp_path / "train.json"})
    else:
        records = [{"id": d, "contents": "a text"} for d in ids]
        blocks = [f"<DOC>\n<DOCNO> {d} </DOCNO>\n<TEXT>a text</TEXT>\n</DOC>" for d in ids]
        corpus = write_lines(
            tmp_path / ("docs.jsonl" if "json" in form else "docs.sgml"), *(records if "json" in form else blocks)
        )
        source = trec.source(corpus, topics={"test": topics}, qrels={"test": qrels})
    made = prepare(source, output=tmp_path / "collection")
    assert [row[0] for row in corpus_of(made)] == ids
    assert collection.read_qrels(collection.qrels_path(made))["docid"].to_list() == ids


def test_the_same_source_gives_the_same_fingerprints(tmp_path: Path):
    folder = write_beir(tmp_path / "beir", AWKWARD_IDS)
    one, two = (prepare(beir.source(folder), output=tmp_path / name) for name in ("one", "two"))
    assert artifacts.read_manifest(one).fingerprint == artifacts.read_manifest(two).fingerprint
    for file in one.glob("*.parquet"):
        assert file.read_bytes() == (two / file.name).read_bytes()


def test_every_file_says_what_it_is(tiny: Path):
    kinds = {path.name: artifacts.read_manifest(path).kind for path in tiny.glob("*.parquet")}
    assert kinds == {
        "corpus.parquet": Kind.CORPUS,
        "queries.train.parquet": Kind.QUERIES, "queries.test.parquet": Kind.QUERIES,
        "qrels.train.parquet": Kind.QRELS, "qrels.test.parquet": Kind.QRELS,
    }  # fmt: skip


def test_an_unchanged_source_is_not_read_again_and_a_changed_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = write_beir(tmp_path / "beir", ["d1"])
    prepare(beir.source(folder), output=tmp_path / "made")
    prepare(beir.source(folder), output=tmp_path / "made")
    assert "is up to date" in capsys.readouterr().err
    write_beir(folder, ["d1", "d2"])
    with pytest.raises(InputError, match="input 'corpus' has changed"):
        prepare(beir.source(folder), output=tmp_path / "made")
    prepare(beir.source(folder), output=tmp_path / "made", overwrite=True)
    assert len(corpus_of(tmp_path / "made")) == 2


def test_a_large_corpus_is_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writer, "_BATCH_ROWS", 3)
    monkeypatch.setattr(writer, "_BATCHES_PER_PART", 2)
    docids = [f"d{number}" for number in range(14)]
    made = prepare(beir.source(write_beir(tmp_path / "beir", docids)), output=tmp_path / "made")
    assert [path.name for path in sorted((made / "corpus").iterdir())] == [f"part-{n:05}.parquet" for n in range(3)]
    assert [row[0] for row in corpus_of(made)] == docids
    assert collection.document_count(made) == 14


def test_a_failed_reading_leaves_nothing_behind(tmp_path: Path):
    folder = write_beir(tmp_path / "beir", ["d1"], judged=["d2"])
    with pytest.raises(InputError):
        prepare(beir.source(folder), output=tmp_path / "made")
    assert [path.name for path in tmp_path.iterdir()] == ["beir"]


def test_documents_are_streamed(tmp_path: Path):
    """However many documents there are, no more than a batch of them is alive."""

    def documents():
        for number in range(20_000):
            alive.append(number)
            yield writer.Document(f"d{number}", "", "text", trec.Place("here", number))

    alive: list[int] = []
    seen_at_first_batch: list[int] = []
    source = Source("made", documents)
    manifest = artifacts.Manifest(Kind.COLLECTION, "test", {}, {})
    work = writer.Intake(source, tmp_path, manifest, advance=lambda count: seen_at_first_batch.append(len(alive)))
    assert work.write()["documents"] == 20_000
    assert seen_at_first_batch[0] == writer._BATCH_ROWS


# ------------------------------------------------------------------------------------------------- what is wrong or odd


def test_duplicates_are_an_error_that_counts_them_and_offers_the_choices(tmp_path: Path):
    folder = write_beir(tmp_path / "beir", ["a", "b", "a", "b", "a"], judged=["a"])
    with pytest.raises(InputError) as raised:
        prepare(beir.source(folder), output=tmp_path / "made")
    assert str(raised.value) == (
        f"{folder}/corpus.jsonl, line 3: duplicate documents: 3 (a, b, a); "
        "mend them, or pass --on-duplicate first or last to keep one of each"
    )


@pytest.mark.parametrize(("policy", "kept"), [("first", ["one", "two"]), ("last", ["two", "three"])])
def test_of_duplicates_the_first_or_the_last_is_kept(tmp_path: Path, policy: str, kept: list[str]):
    folder = write_beir(tmp_path / "beir", [], judged=["a"])
    rows = [("a", "one"), ("b", "two"), ("a", "three")]
    write_lines(folder / "corpus.jsonl", *({"_id": docid, "text": text} for docid, text in rows))
    made = prepare(beir.source(folder), output=tmp_path / "made", on_duplicate=policy)
    assert [row[2] for row in corpus_of(made)] == kept
    assert counts_of(made)["found"]["duplicate documents"] == {"count": 1, "examples": ["a"]}


def test_the_same_policy_holds_for_queries_and_judgements(tmp_path: Path):
    folder = write_beir(tmp_path / "beir", ["a"])
    write_lines(folder / "queries.jsonl", *({"_id": "about a", "text": text} for text in ("one", "two")))
    with pytest.raises(InputError, match=r"queries.jsonl, line 2: duplicate queries: 1 \(about a\)"):
        prepare(beir.source(folder), output=tmp_path / "made")
    write_lines(folder / "qrels/test.tsv", "about a\ta\t1", "about a\ta\t2")
    made = prepare(beir.source(folder), output=tmp_path / "made", on_duplicate="last")
    assert collection.read_queries(made / "queries.test.parquet")["text"].to_list() == ["two"]
    assert collection.read_qrels(made / "qrels.test.parquet")["relevance"].to_list() == [2]


def test_a_judgement_said_twice_is_one_judgement(tmp_path: Path):
    folder = write_beir(tmp_path / "beir", ["a"])
    write_lines(folder / "qrels/test.tsv", "about a\ta\t1", "about a\ta\t1")
    made = prepare(beir.source(folder), output=tmp_path / "made")
    assert counts_of(made)["judgements"] == {"test": 1}


def test_judgements_about_unknown_documents_are_an_error_with_examples(tmp_path: Path):
    folder = write_beir(tmp_path / "beir", ["a"], judged=["a", "v", "w", "x", "y"])
    with pytest.raises(InputError, match=r"test.tsv, line 3: .* not in the corpus: 4 \(v, w, x, ...\).*--on-dangling"):
        prepare(beir.source(folder), output=tmp_path / "made")


@pytest.mark.parametrize(("policy", "judged"), [("drop", ["a"]), ("keep", ["a", "x"])])
def test_judgements_about_unknown_documents_are_dropped_or_kept(tmp_path: Path, policy: str, judged: list[str]):
    folder = write_beir(tmp_path / "beir", ["a"], judged=["a", "x"])
    made = prepare(beir.source(folder), output=tmp_path / "made", on_dangling=policy)
    assert collection.read_qrels(made / "qrels.test.parquet")["docid"].to_list() == judged
    assert collection.read_queries(made / "queries.test.parquet")["text"].to_list() == ["a", "x"]


def test_a_judgement_about_an_unknown_query_dangles_too(tmp_path: Path):
    folder = write_beir(tmp_path / "beir", ["a", "b"])
    write_lines(folder / "queries.jsonl", {"_id": "about a", "text": "a"})
    with pytest.raises(InputError, match=r"queries that are not in the split: 1 \(about b\)"):
        prepare(beir.source(folder), output=tmp_path / "made")


def test_a_split_without_any_usable_judgement_is_refused(tmp_path: Path):
    folder = write_beir(tmp_path / "beir", ["a"], judged=["x"])
    with pytest.raises(InputError, match="no judgement of split 'test' fits"):
        prepare(beir.source(folder), output=tmp_path / "made", on_dangling="drop")


def test_empty_and_long_texts_stay_and_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = write_beir(tmp_path / "beir", [], judged=["a"])
    texts = {"a": "text", "b": "", "c": " \n ", "d": "word " * 512, "e": "word " * 513}
    write_lines(folder / "corpus.jsonl", *({"_id": docid, "text": text} for docid, text in texts.items()))
    made = prepare(beir.source(folder), output=tmp_path / "made")
    assert len(corpus_of(made)) == 5
    assert counts_of(made)["found"] == {
        "empty documents": {"count": 2, "examples": ["b", "c"]},
        "documents of over 512 words": {"count": 1, "examples": ["e"]},
    }
    assert "empty documents: 2 (b, c)" in capsys.readouterr().err


def test_an_empty_corpus_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"corpus.jsonl: has no documents"):
        prepare(beir.source(write_beir(tmp_path / "beir", [])), output=tmp_path / "made")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"_id": "b", "text": "cut o', "line 2: is not whole JSON"),
        ('{"text": "no id"}', "line 2: has none of the fields _id, id"),
        ('{"_id": "", "text": "x"}', "line 2: the id is empty"),
        ('{"_id": "b"}', "line 2: has none of the fields text, contents"),
        ('{"_id": "b", "text": 7.5e3, "title": []}', "line 2: field 'title' is a list"),
    ],
)
def test_a_bad_line_is_said_with_file_and_number(tmp_path: Path, line: str, message: str):
    folder = write_beir(tmp_path / "beir", ["a"])
    write_lines(folder / "corpus.jsonl", {"_id": "a", "text": "x"}, line)
    with pytest.raises(InputError, match=r"corpus\.jsonl, " + message):
        prepare(beir.source(folder), output=tmp_path / "made")


def test_half_a_surrogate_pair_becomes_a_replacement_character(tmp_path: Path):
    folder = write_beir(tmp_path / "beir", ["a"])
    write_lines(folder / "corpus.jsonl", r'{"_id": "a", "text": "broken \ud83d, whole \ud83d\ude00"}')
    made = prepare(beir.source(folder), output=tmp_path / "made")
    assert corpus_of(made) == [("a", "", "broken \ufffd, whole 😀")]


# ----------------------------------------------------------------------------------------------------------------- beir


def test_each_file_of_beir_judgements_is_a_split_and_the_rest_is_unjudged(tmp_path: Path):
    folder = write_beir(tmp_path / "beir", ["a", "b"], judged=["a", "b", "c"])
    write_lines(folder / "qrels/test.tsv", "query-id\tcorpus-id\tscore", "about a\ta\t2")
    write_lines(folder / "qrels/test_part.tsv", "query-id\tcorpus-id\tscore", "about a\ta\t2")
    write_lines(folder / "qrels/train.tsv", "query-id\tcorpus-id\tscore", "about b\tb\t1")
    made = prepare(beir.source(folder), output=tmp_path / "made")
    found = {split: collection.read_queries(made / f"queries.{split}.parquet")["text"].to_list() for split in
             ("test", "test_part", "train", "unjudged")}  # fmt: skip
    assert found == {"test": ["a"], "test_part": ["a"], "train": ["b"], "unjudged": ["c"]}
    assert collection.splits(made) == ["test", "test_part", "train"]


def test_gzipped_beir_files_are_read_and_broken_ones_refused(tmp_path: Path):
    folder = write_beir(tmp_path / "beir", ["a", "b"])
    plain = folder / "corpus.jsonl"
    whole = gzip.compress(plain.read_bytes())
    (folder / "corpus.jsonl.gz").write_bytes(whole)
    plain.unlink()
    assert len(corpus_of(prepare(beir.source(folder), output=tmp_path / "made"))) == 2
    (folder / "corpus.jsonl.gz").write_bytes(whole[:-12])
    with pytest.raises(InputError, match="not a whole gzip file"):
        prepare(beir.source(folder), output=tmp_path / "again")


def test_what_a_beir_folder_lacks_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"has no corpus\.jsonl; a BEIR folder holds"):
        beir.source(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        beir.source(tmp_path / "nothing")


# -------------------------------------------------------------------------------------------------------------- command


def test_the_command_makes_what_the_stage_makes(tmp_path: Path, tiny: Path):
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
    [("a.tsv", "needs SPLIT=FILE, such as test=a.tsv"), ("t=a,t=b", "split 't' stands there twice")],
)
def test_a_file_without_its_split_is_refused(tmp_path: Path, value: str, message: str):
    result = CliRunner().invoke(app, ["prepare", "msmarco", "c.tsv", "--queries", value, "-o", f"{tmp_path}/made"])
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)


@pytest.mark.skipif("HYBRID_DATA" not in os.environ, reason="HYBRID_DATA names no folder with cacm")
def test_judgements_of_cacm_about_documents_it_lacks_are_told_and_can_be_kept(tmp_path: Path):
    made = prepare(beir.source(Path(os.environ["HYBRID_DATA"]) / "cacm"), output=tmp_path / "made", on_dangling="keep")
    counts = counts_of(made)
    assert (counts["documents"], counts["queries"], counts["judgements"]) == (3204, {"test": 52}, {"test": 796})
    assert counts["found"]["judgements about documents that are not in the corpus"]["count"] == 55
