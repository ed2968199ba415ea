"""The readers of foreign forms: what each makes of small files written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_collection import (
    corpus_of,
    counts_of,
    write_lines,
)

from hybrid_cli.collections import collection
from hybrid_cli.collections.readers import dpr, irds, msmarco, trec
from hybrid_cli.collections.readers.lines import array_records
from hybrid_cli.errors import InputError
from hybrid_cli.stages.prepare import prepare

# -------------------------------------------------------------------------------------------------------------- msmarco


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


# ------------------------------------------------------------------------------------------------------------------ dpr


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


# ----------------------------------------------------------------------------------------------------------------- trec

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


# ----------------------------------------------------------------------------------------------------------------- irds


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
