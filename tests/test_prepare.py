"""Bringing collections in: ids survive every form, policies are kept, what is wrong is said with its place."""

from __future__ import annotations

import gzip
import json
import sys
from importlib.metadata import version
from pathlib import Path

import polars as pl
import pytest
from tiny_collection import TINY_DOCUMENTS, TINY_JUDGEMENTS, write_tiny_source
from typer.testing import CliRunner

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind
from hybrid_cli.cli import app
from hybrid_cli.collections import beir, collection, dpr, intake, irds, msmarco, python_docs, trec
from hybrid_cli.collections.lines import array_records
from hybrid_cli.collections.source import Source
from hybrid_cli.errors import InputError
from hybrid_cli.stages.prepare import prepare

AWKWARD_IDS = ["007", "NA", "null", "1e5", "órgãos", "moon landing", "7", "nan", "True", "日本"]


def write_lines(path: Path, *rows: object) -> Path:
    """Text as it stands, anything else as JSON; one row a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(text + "\n" for text in texts), "utf-8")
    return path


def write_beir(folder: Path, docids: list[str], judged: list[str] | None = None) -> Path:
    """A BEIR folder in which query `about ID` is answered by document ID."""
    judged = docids if judged is None else judged
    write_lines(folder / "corpus.jsonl", *({"_id": d, "title": "", "text": f"a text {d}"} for d in docids))
    write_lines(folder / "queries.jsonl", *({"_id": f"about {d}", "text": d} for d in judged))
    write_lines(folder / "qrels/test.tsv", "query-id\tcorpus-id\tscore", *(f"about {d}\t{d}\t1" for d in judged))
    return folder


def corpus_of(path: Path) -> list[tuple[str, str, str]]:
    return [tuple(row.values()) for batch in collection.documents(path) for row in batch.to_pylist()]


def counts_of(path: Path) -> dict:
    return artifacts.read_manifest(path, Kind.COLLECTION).counts


# --------------------------------------------------------------------------------------------------------- all forms


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
    monkeypatch.setattr(intake, "_BATCH_ROWS", 3)
    monkeypatch.setattr(intake, "_BATCHES_PER_PART", 2)
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
            yield intake.Document(f"d{number}", "", "text", trec.Place("here", number))

    alive: list[int] = []
    seen_at_first_batch: list[int] = []
    source = Source("made", documents)
    manifest = artifacts.Manifest(Kind.COLLECTION, "test", {}, {})
    work = intake.Intake(source, tmp_path, manifest, advance=lambda count: seen_at_first_batch.append(len(alive)))
    assert work.write()["documents"] == 20_000
    assert seen_at_first_batch[0] == intake._BATCH_ROWS


# ----------------------------------------------------------------------------------------------- what is wrong or odd


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


# -------------------------------------------------------------------------------------------------------------- beir


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


# ----------------------------------------------------------------------------------------------------------- msmarco


def test_triples_become_judgements_of_their_positives(tmp_path: Path):
    corpus = write_lines(tmp_path / "collection.tsv", "0\tzero", "1\tone", "2\ttwo")
    queries = write_lines(tmp_path / "queries.tsv", "q1\tfirst", "q2\tsecond")
    triples = write_lines(tmp_path / "triples.tsv", "q1\t1\t0", "q1\t1\t2", "q2\t2\t0")
    source = msmarco.source(corpus, queries={"train": queries}, triples={"train": triples})
    made = prepare(source, output=tmp_path / "made")
    assert collection.read_qrels(made / "qrels.train.parquet").rows() == [("q1", "1", 1), ("q2", "2", 1)]
    assert counts_of(made)["triples"] == {"train": 3}


def test_msmarco_documents_have_titles(tmp_path: Path):
    corpus = write_lines(tmp_path / "msmarco-docs.tsv", "D1\thttp://x\tA title\tIts body")
    made = prepare(msmarco.source(corpus, queries={}), output=tmp_path / "made")
    assert corpus_of(made) == [("D1", "A title", "Its body")]


def test_an_unusual_line_separator_does_not_end_a_line(tmp_path: Path):
    corpus = write_lines(tmp_path / "collection.tsv", "1\tone\u2028still one\x85and still", "2\ttwo")
    made = prepare(msmarco.source(corpus, queries={}), output=tmp_path / "made")
    assert corpus_of(made) == [("1", "", "one\u2028still one\x85and still"), ("2", "", "two")]


# --------------------------------------------------------------------------------------------------------------- dpr


def dpr_corpus(tmp_path: Path) -> Path:
    return write_lines(
        tmp_path / "psgs_w100.tsv",
        "id\ttext\ttitle",
        '1\t"The ""Titanic"" sank in 1912."\tTitanic',
        "2\tPlain\tA title",
    )


def test_dpr_passages_lose_their_quotes_and_keep_their_titles(tmp_path: Path):
    made = prepare(dpr.source(dpr_corpus(tmp_path)), output=tmp_path / "made")
    assert corpus_of(made) == [("1", "Titanic", 'The "Titanic" sank in 1912.'), ("2", "A title", "Plain")]


SINK = {"question": "when did it sink", "answers": ["1912", "April '12"]}
SAID = {"question": 'who said "x"', "answer": ["me"]}


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("qa.csv", ["when did it sink\t['1912', \"April '12\"]", 'who said "x"\t["me"]']),
        ("qa.jsonl", [SINK, SAID]),
        ("qa.json", [[SINK, SAID]]),
    ],
)
def test_all_forms_of_dpr_questions_say_the_same(tmp_path: Path, name: str, rows: list):
    questions = write_lines(tmp_path / name, *rows)
    made = prepare(dpr.source(dpr_corpus(tmp_path), questions={"test": questions}), output=tmp_path / "made")
    assert collection.read_queries(made / "queries.test.parquet").rows() == [
        ("0", "when did it sink", ["1912", "April '12"]),
        ("1", 'who said "x"', ["me"]),
    ]


def test_dpr_training_data_give_questions_answers_and_judgements(tmp_path: Path):
    records = [
        {"question": "a", "answers": ["x"], "positive_ctxs": [{"passage_id": "2"}], "negative_ctxs": []},
        {"question": "b", "answers": ["y"], "positive_ctxs": [{"psg_id": 1}, {"psg_id": "1"}]},
        {"question": "c", "answers": ["z"], "positive_ctxs": []},
    ]  # fmt: skip
    (tmp_path / "train.json").write_text(json.dumps(records, indent=4))
    source = dpr.source(dpr_corpus(tmp_path), training={"train": tmp_path / "train.json"})
    made = prepare(source, output=tmp_path / "made")
    assert collection.read_qrels(made / "qrels.train.parquet").rows() == [("0", "2", 1), ("1", "1", 1)]
    assert collection.read_queries(made / "queries.train.parquet")["answers"].to_list() == [["x"], ["y"], ["z"]]
    assert counts_of(made)["questions_without_positive"] == {"train": 1}


def test_answers_that_are_no_list_are_refused_not_run(tmp_path: Path):
    questions = write_lines(tmp_path / "qa.csv", "a question\t__import__('os').getcwd()")
    with pytest.raises(InputError, match=r"qa\.csv, line 1: .* is no list of answers"):
        prepare(dpr.source(dpr_corpus(tmp_path), questions={"test": questions}), output=tmp_path / "made")


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_an_array_is_read_piecewise_whatever_the_pieces(tmp_path: Path, chunk: int):
    records = [{"a": "x" * size, "b": [{"c": "}] ,"}]} for size in (0, 1, 50)]
    (tmp_path / "a.json").write_text(json.dumps(records, indent=1))
    assert [record for _, record in array_records(tmp_path / "a.json", chunk)] == records


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"a": 1}, {"a":', "record 2: is not whole JSON"),
        ('[{"a": 1}', "record 2: is not whole JSON"),
        ('{"a": 1}', "is not a JSON array"),
        ('[{"a": 1}, 5]', "record 2: is no JSON object"),
        ("", "is not a JSON array"),
    ],
)
def test_a_broken_array_is_said_with_its_record(tmp_path: Path, text: str, message: str):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError, match=message):
        list(array_records(tmp_path / "a.json"))


# -------------------------------------------------------------------------------------------------------------- trec

SGML = """<DOC>
<DOCNO> FT911-1 </DOCNO>
<HEADLINE>
FT  14 MAY 91 / Tea &amp; coffee
</HEADLINE>
<TEXT>
The price of <F P=102>tea</F>
rose.
</TEXT>
</DOC>
<doc><docno>LA-2</docno><p>No known tag here</p></doc>
"""
TOPICS = """<top>
<num> Number: 301
<title> International Organized Crime

<desc> Description:
Identify organizations that participate
in it.

<narr> Narrative:
A relevant document names one.
</top>

<top>
<num> Number: 007
<title> Topic: tea &amp; coffee
</top>
"""
COVID = """<topics task="COVIDSearch" batch="2">
  <topic number="1">
    <query>coronavirus origin</query>
    <question>what is the origin of COVID-19</question>
  </topic>
</topics>
"""


def test_sgml_gives_title_and_text_without_tags(tmp_path: Path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "ft911_1").write_text(SGML)
    made = prepare(trec.source(tmp_path / "docs", topics={}, qrels={}), output=tmp_path / "made")
    assert corpus_of(made) == [
        ("FT911-1", "FT 14 MAY 91 / Tea & coffee", "The price of tea rose."),
        ("LA-2", "", "No known tag here"),
    ]


def test_sgml_that_ends_in_the_middle_is_refused(tmp_path: Path):
    (tmp_path / "docs").write_text(SGML + "<DOC>\n<DOCNO>x</DOCNO>")
    with pytest.raises(InputError, match=r"docs, line 12: this <DOC> has no </DOC>"):
        list(trec.sgml_documents(tmp_path / "docs"))


def test_older_disks_are_read_in_latin_1(tmp_path: Path):
    (tmp_path / "docs").write_bytes("<DOC><DOCNO>1</DOCNO><TEXT>café</TEXT></DOC>".encode("latin-1"))
    with pytest.raises(InputError, match="is not utf-8"):
        list(trec.sgml_documents(tmp_path / "docs"))
    assert [document.text for document in trec.sgml_documents(tmp_path / "docs", "latin-1")] == ["café"]


@pytest.mark.parametrize(
    ("fields", "text", "expected"),
    [
        (["title"], TOPICS, [("301", "International Organized Crime"), ("007", "tea & coffee")]),
        (["title", "desc"], TOPICS, [
            ("301", "International Organized Crime Identify organizations that participate in it."),
            ("007", "tea & coffee"),
        ]),
        (["title"], COVID, [("1", "coronavirus origin")]),
        (["desc"], COVID, [("1", "what is the origin of COVID-19")]),
    ],
)  # fmt: skip
def test_topics_give_the_fields_asked_for(tmp_path: Path, fields: list[str], text: str, expected: list):
    (tmp_path / "topics.txt").write_text(text)
    corpus = write_lines(tmp_path / "docs.jsonl", {"id": "1", "text": "a"})
    source = trec.source(corpus, topics={"test": tmp_path / "topics.txt"}, qrels={}, topic_fields=fields)
    assert [(query.qid, query.text) for query in source.queries()] == expected


# ------------------------------------------------------------------------------------------------------- python docs

MODULE = '''
"""A module."""
def plain(x):
    """Return the plain value of the argument.

    One two three four five six seven eight nine ten eleven.
    """
def copied(x):
    """Return the plain value of the argument.

    One two three four five six seven eight nine ten eleven.
    """
def other(x):
    """Return the plain
    value of the argument.

    Another text of words: three four five six seven eight nine ten eleven.
    """
def signed(x):
    """signed(x, out=None) -> array

    Sign the argument with a key.

    One two three four five six seven eight nine ten eleven.
    """
def _private(x):
    """Return the private value of the argument.

    One two three four five six seven eight nine ten eleven.
    """
def short(x):
    """Too short.

    One two three four five six seven eight nine ten eleven.
    """
def bare(x):
    """Return something without saying more."""
class Thing:
    """Hold a thing of some kind.

    One two three four five six seven eight nine ten eleven.
    """
    if True:
        def method(self):
            """Do something to the thing.

            One two three four five six seven eight nine ten eleven.
            """
raise RuntimeError("this module must not be run")
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An importable package that fails when it is imported."""
    root = tmp_path / "sources" / "documented_package"
    write_lines(root / "__init__.py", "raise RuntimeError")
    write_lines(root / "_inner.py", MODULE)
    write_lines(root / "tests" / "test_inner.py", MODULE)
    write_lines(root / "broken.py", "def (:")
    monkeypatch.syspath_prepend(root.parent)
    return root.name


def test_docstrings_become_documents_and_their_first_paragraphs_queries(tmp_path: Path, package: str):
    made = prepare(python_docs.source([package]), output=tmp_path / "made")
    prefix = f"{package}._inner"
    names = [row[0].removeprefix(prefix + ".") for row in corpus_of(made)]
    assert names == ["Thing", "Thing.method", "copied", "other", "signed"]
    assert all(docid == title for docid, title, _ in corpus_of(made))
    assert corpus_of(made)[0][2] == "One two three four five six seven eight nine ten eleven."
    queries, qrels = (
        pl.concat([read(path) for path in sorted(made.glob(pattern))])
        for read, pattern in ((collection.read_queries, "queries.*"), (collection.read_qrels, "qrels.*"))
    )
    assert set(queries["text"]) == {
        "Hold a thing of some kind.", "Do something to the thing.", "Return the plain value of the argument.",
        "Sign the argument with a key.",
    }  # fmt: skip
    shared = qrels.filter(pl.col("qid") == f"q:{prefix}.copied")["docid"].to_list()
    assert shared == [f"{prefix}.copied", f"{prefix}.other"]
    assert not set(queries["qid"]) & set(names)


def test_what_was_left_out_is_recorded(tmp_path: Path, package: str):
    counts = counts_of(prepare(python_docs.source([package]), output=tmp_path / "made"))
    assert counts["left_out"] == {"first paragraph too short": 1, "nothing after the first paragraph": 1}
    assert counts["copies_merged"]["count"] == 1
    assert counts["queries_with_several_documents"] == 1


def test_packages_are_never_imported(tmp_path: Path, package: str):
    prepare(python_docs.source([package]), output=tmp_path / "made")
    assert package not in sys.modules


def test_a_changed_package_is_another_collection(tmp_path: Path, package: str):
    prepare(python_docs.source([package]), output=tmp_path / "made")
    write_lines(tmp_path / "sources" / package / "_inner.py", MODULE.replace("key", "pen"))
    with pytest.raises(InputError, match="was made differently: packages="):
        prepare(python_docs.source([package]), output=tmp_path / "made")


def test_an_unknown_package_is_refused():
    with pytest.raises(InputError, match=r"package no_such_package: is not installed"):
        python_docs.source(["no_such_package"])


def test_two_readings_of_an_installed_package_are_equal(tmp_path: Path):
    made = [prepare(python_docs.source(["rich"]), output=tmp_path / name) for name in ("one", "two")]
    one, two = (artifacts.read_manifest(path) for path in made)
    assert one.fingerprint == two.fingerprint
    assert one.counts["documents"] > 100
    assert one.options["packages"] == {"rich": version("rich")}


def test_the_split_is_seventy_ten_twenty_and_depends_on_the_seed():
    splits = [python_docs.split_of(f"q{number}", 42) for number in range(10_000)]
    for split, share in (("train", 0.7), ("dev", 0.1), ("test", 0.2)):
        assert splits.count(split) / len(splits) == pytest.approx(share, abs=0.02)
    assert splits != [python_docs.split_of(f"q{number}", 43) for number in range(10_000)]


# ------------------------------------------------------------------------------------------------------------ command


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


# -------------------------------------------------------------------------------------------------------------- irds


def test_datasets_of_ir_datasets_become_splits(tmp_path: Path):
    ir_datasets = pytest.importorskip("ir_datasets", reason="needs the extra irds")
    datasets = {
        split: ir_datasets.create_dataset(
            docs_tsv=write_lines(tmp_path / "docs.tsv", "007\ta text", "NA\tanother"),
            queries_tsv=write_lines(tmp_path / f"{split}.tsv", f"{split}-1e5\ta query"),
            qrels_trec=write_lines(tmp_path / f"{split}.qrels", f"{split}-1e5 0 NA 2"),
        )
        for split in ("dev", "test")
    }
    made = prepare(irds.of_datasets(datasets, {}), output=tmp_path / "made")
    assert corpus_of(made) == [("007", "", "a text"), ("NA", "", "another")]
    for split in datasets:
        assert collection.read_queries(made / f"queries.{split}.parquet").rows() == [(f"{split}-1e5", "a query", None)]
        assert collection.read_qrels(made / f"qrels.{split}.parquet").rows() == [(f"{split}-1e5", "NA", 2)]


def test_an_id_names_its_split():
    assert irds.by_split(["beir/scifact/test", "dev=msmarco-passage/dev/small"]) == {
        "test": "beir/scifact/test",
        "dev": "msmarco-passage/dev/small",
    }
    assert irds.by_split(["vaswani"]) == {"test": "vaswani"}
    with pytest.raises(InputError, match="split 'dev' stands there twice"):
        irds.by_split(["dev=a", "b/dev"])


def test_an_unknown_id_and_two_corpora_are_refused():
    pytest.importorskip("ir_datasets", reason="needs the extra irds")
    with pytest.raises(InputError, match="ir_datasets has no such id"):
        irds.source({"test": "no/such/id"})
    with pytest.raises(InputError, match=r"belong to several corpora \(beir/nfcorpus, beir/scifact\)"):
        irds.source({"test": "beir/scifact/test", "dev": "beir/nfcorpus/dev"})
