"""Readers of foreign formats, on small files."""

import json
from pathlib import Path

import polars as pl
import pytest
from command import Refusal, raises, refusal
from tiny_collection import corpus_of, counts_of, write_lines

from hybrid_cli.collections import collection
from hybrid_cli.collections.readers import irds
from hybrid_cli.commands import PrepareDpr, PrepareIrds, PrepareMsmarco, PrepareTevatron, PrepareTrec
from hybrid_cli.errors import InputError
from hybrid_cli.inputs.rows import InputFile
from hybrid_cli.stages.prepare import prepare


def test_triples_become_judgments_of_their_positives(tmp_path: Path) -> None:
    corpus = write_lines(tmp_path / "collection.tsv", "0\tzero", "1\tone", "2\ttwo")
    queries = write_lines(tmp_path / "queries.tsv", "q1\tfirst", "q2\tsecond")
    triples = write_lines(tmp_path / "triples.tsv", "q1\t1\t0", "q1\t1\t2", "q2\t2\t0")
    made = prepare(
        PrepareMsmarco(corpus, queries={"train": queries}, training={"train": triples}, output=tmp_path / "made")
    )
    assert collection.read_qrels(made / "qrels.train.parquet").rows() == [("q1", "1", 1), ("q2", "2", 1)]
    assert counts_of(made)["triples"] == {"train": 3}


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (["D1\tA title\tIts body"], refusal("other-width", line=1, found=3)),
        (["2\tplain", "1\thello\tworld"], refusal("other-width", line=2, found=3, expected=2)),
        (["1\tu\tt\tbody", "2\tplain"], refusal("other-width", line=2, found=2, expected=4)),
        (["pid\tpassage", "1\tone"], refusal("has-header", line=1)),
    ],
)
def test_msmarco_texts_are_read_whole_or_refused(tmp_path: Path, rows: list[str], problem: str | Refusal) -> None:
    corpus = write_lines(tmp_path / "collection.tsv", *rows)
    with raises(problem):
        prepare(PrepareMsmarco(corpus, output=tmp_path / "made"))


@pytest.mark.parametrize(
    ("row", "document"),
    [
        ("1\tone\u2028still one\x85and still", ("1", "", "one\u2028still one\x85and still")),
        ("D1\thttp://x\tA title\tIts body", ("D1", "A title", "Its body")),
    ],
)
def test_documents_of_msmarco_are_lines_with_titles(tmp_path: Path, row: str, document: tuple[str, str, str]) -> None:
    corpus = write_lines(tmp_path / "collection.tsv", row)
    assert corpus_of(prepare(PrepareMsmarco(corpus, output=tmp_path / "made"))) == [document]


def write_passages(tmp_path: Path) -> Path:
    return write_lines(
        tmp_path / "psgs_w100.tsv",
        "id\ttext\ttitle",
        '1\t"The ""Titanic"" sank in 1912."\tTitanic',
        "2\tPlain\tA title",
    )


def test_dpr_passages_are_unquoted_and_have_titles(tmp_path: Path) -> None:
    made = prepare(PrepareDpr(write_passages(tmp_path), output=tmp_path / "made"))
    assert corpus_of(made) == [("1", "Titanic", 'The "Titanic" sank in 1912.'), ("2", "A title", "Plain")]


SINK = {"question": "when did it sink", "answers": ["1912", "April '12"]}
QUOTED = {"question": 'who said "x"', "answer": ["me"]}


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("qa.csv", ["when did it sink\t['1912', \"April '12\"]", 'who said "x"\t["me"]']),
        ("qa.jsonl", [SINK, QUOTED]),
        ("qa.json", [[SINK, QUOTED]]),
    ],
)
def test_all_formats_of_dpr_questions_are_equal(tmp_path: Path, name: str, rows: list[object]) -> None:
    questions = write_lines(tmp_path / name, *rows)
    made = prepare(PrepareDpr(write_passages(tmp_path), queries={"test": questions}, output=tmp_path / "made"))
    assert collection.read_queries(made / "queries.test.parquet").rows() == [
        ("0", "when did it sink", ["1912", "April '12"]),
        ("1", 'who said "x"', ["me"]),
    ]


def test_answers_that_are_not_a_list_are_refused_and_never_evaluated(tmp_path: Path) -> None:
    questions = write_lines(tmp_path / "qa.csv", "a question\t__import__('os').getcwd()")
    with raises("not-answers", path="qa.csv", line=1):
        prepare(PrepareDpr(write_passages(tmp_path), queries={"test": questions}, output=tmp_path / "made"))


def test_dpr_training_files_contain_questions_answers_and_judgments(tmp_path: Path) -> None:
    records = [
        {"question": "a", "answers": ["x"], "positive_ctxs": [{"passage_id": "2"}], "negative_ctxs": []},
        {"question": "b", "answers": ["y"], "positive_ctxs": [{"psg_id": 1}, {"psg_id": "1"}]},
        {"question": "c", "answers": ["z"], "positive_ctxs": []},
    ]
    (tmp_path / "train.json").write_text(json.dumps(records, indent=4))
    settings = PrepareDpr(
        write_passages(tmp_path), training={"train": tmp_path / "train.json"}, output=tmp_path / "made"
    )
    made = prepare(settings)
    assert collection.read_qrels(made / "qrels.train.parquet").rows() == [("0", "2", 1), ("1", "1", 1)]
    assert collection.read_queries(made / "queries.train.parquet")["answers"].to_list() == [["x"], ["y"], ["z"]]
    assert counts_of(made)["questions_without_positive"] == {"train": 1}


def test_a_dpr_sample_contains_the_hard_negatives_by_rank_before_random_passages(tmp_path: Path) -> None:
    passages = [f'{number}\t"text {number}"\ttitle' for number in range(1, 31)]
    corpus = write_lines(tmp_path / "psgs.tsv", "id\ttext\ttitle", *passages)
    records = [
        {"question": "a", "answers": ["x"], "positive_ctxs": [{"passage_id": "2"}],
         "hard_negative_ctxs": [{"passage_id": "11"}, {"passage_id": "12"}]},
        {"question": "b", "answers": ["y"], "positive_ctxs": [{"passage_id": "3"}],
         "hard_negative_ctxs": [{"passage_id": "21"}, {"passage_id": "99"}]},
    ]  # fmt: skip # a record per line
    (tmp_path / "train.json").write_text(json.dumps(records))
    training = {"train": tmp_path / "train.json"}
    for size, wanted in ((4, {"2", "3", "11", "21"}), (5, {"2", "3", "11", "21", "12"}), (6, None)):
        out = tmp_path / str(size)
        made = prepare(PrepareDpr(corpus, training=training, sample=size, sample_from="contexts", output=out))
        docids = set(pl.read_parquet(made / "corpus.parquet")["docid"])
        assert len(docids) == size
        assert docids == wanted or wanted is None
    with raises("missing-option", option="training"):
        PrepareDpr(corpus, sample=4, sample_from="contexts", output=tmp_path / "x")


def test_tevatron_files_contain_queries_passages_and_judgments(tmp_path: Path) -> None:
    rows = [
        {"query_id": "7", "query": "a", "answers": ["1912", "April"],
         "positive_passages": [{"docid": "p", "title": "t", "text": "one"}],
         "negative_passages": [{"docid": "n", "title": "", "text": "two"}]},
        {"query_id": "8", "query": "b", "positive_passages": [{"docid": "n", "title": "", "text": "two"}],
         "negative_passages": []},
    ]  # fmt: skip # a record per line
    training = write_lines(tmp_path / "train.jsonl", *map(json.dumps, rows))
    made = prepare(PrepareTevatron({"train": training}, output=tmp_path / "made"))
    assert pl.read_parquet(made / "corpus.parquet").rows() == [("p", "t", "one"), ("n", "", "two")]
    assert collection.read_qrels(made / "qrels.train.parquet").rows() == [("7", "p", 1), ("8", "n", 1)]
    queries = collection.read_queries(made / "queries.train.parquet").select("text", "answers").rows()
    assert queries == [("a", ["1912", "April"]), ("b", None)]
    corpus = write_lines(tmp_path / "corpus.jsonl", *(json.dumps({"docid": d, "text": d}) for d in ("p", "n", "q")))
    whole = prepare(PrepareTevatron({"train": training}, corpus=corpus, output=tmp_path / "whole"))
    assert pl.read_parquet(whole / "corpus.parquet")["docid"].to_list() == ["p", "n", "q"]
    changed = {**rows[1], "positive_passages": [{"docid": "p", "title": "t", "text": "other"}]}
    write_lines(tmp_path / "changed.jsonl", json.dumps(rows[0]), json.dumps(changed))
    with raises("passage-changed", path="changed.jsonl", id="p"):
        prepare(PrepareTevatron({"train": tmp_path / "changed.jsonl"}, output=tmp_path / "x"))


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_an_array_is_read_in_chunks_of_any_size(tmp_path: Path, chunk: int) -> None:
    expected = [{"a": "x" * size, "b": [{"c": "}] ,\u00e9\U0001f600"}], "n": None} for size in (0, 1, 50)]
    for text in (
        json.dumps(expected, indent=1),
        json.dumps(expected),
        "\n".join(json.dumps(each, indent=1) for each in expected),
    ):
        (tmp_path / "a.json").write_text(text)
        assert [record for _, record in InputFile.of(tmp_path / "a.json").records(chunk)] == expected
    (tmp_path / "a.json").write_text(json.dumps({str(number): each for number, each in enumerate(expected)}, indent=1))
    assert [record for _, _, record in InputFile.of(tmp_path / "a.json").named_objects(chunk)] == expected


INVALID_JSON_IS = [('[{"a": 1}, {"a":', "not-json", 2), ('[{"a": 1}', "not-json", 2)]
INVALID_JSON_IS += [('[{"a": 1} {"a": 1}]', "not-json", 2), ('[{"a": 1}]\n[{"a": 2}]', "not-json", 1)]
INVALID_JSON_IS += [('[{"a": 1}, 5]', "not-an-object", 2), ('{"a": 1}\n5', "not-an-object", 2)]
INVALID_JSON_IS += [('{\n"a": 1}\n5', "not-an-object", 2), ('{"a": 1}\n{"a"', "not-json", 2)]
INVALID_JSON_IS += [('{"a": 1,\n"b" 2}', "not-json", 1), ('{"a": nil}', "not-json", 1)]


@pytest.mark.parametrize(("text", "code", "line"), INVALID_JSON_IS)
def test_invalid_json_is_reported_with_its_record(tmp_path: Path, text: str, code: str, line: int) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError) as caught:
        list(InputFile.of(tmp_path / "a.json").records())
    assert (caught.value.code, caught.value.fields["line"]) == (code, line)


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


def test_sgml_titles_and_texts_are_read_without_tags(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "ft911_1").write_text(SGML)
    made = prepare(PrepareTrec(tmp_path / "docs", output=tmp_path / "made"))
    assert corpus_of(made) == [
        ("FT911-1", "FT 14 MAY 91 / Tea & coffee", "The price of tea rose."),
        ("LA-2", "", "No known tag here"),
    ]
    text = "if x < y then z; and p > q holds. 1<2 <!-- no --> a<b>c</b> <?pi?>i <= n café"
    (tmp_path / "latin").write_bytes(f"<DOC><DOCNO>1</DOCNO><TEXT>{text}</TEXT></DOC>".encode("latin-1"))
    with raises("not-utf-8"):
        prepare(PrepareTrec(tmp_path / "latin", output=tmp_path / "older"))
    made = prepare(PrepareTrec(tmp_path / "latin", encoding="latin-1", output=tmp_path / "older"))
    assert corpus_of(made) == [("1", "", "if x < y then z; and p > q holds. 1<2 a c i <= n café")]


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
)  # fmt: skip # a record per line
def test_a_query_has_fields(tmp_path: Path, fields: list[str], text: str, expected: list[tuple[str, str]]) -> None:
    (tmp_path / "topics.txt").write_text(text)
    corpus = write_lines(tmp_path / "docs.jsonl", {"id": "1", "text": "a"})
    topics = {"test": tmp_path / "topics.txt"}
    made = prepare(PrepareTrec(corpus, queries=topics, topic_fields=fields, output=tmp_path / "made"))
    assert collection.read_queries(made / "queries.test.parquet").select("qid", "text").rows() == expected


def test_datasets_of_ir_datasets_become_splits(tmp_path: Path) -> None:
    ir_datasets = pytest.importorskip("ir_datasets", reason="needs the extra irds")
    datasets = {
        split: ir_datasets.create_dataset(
            docs_tsv=write_lines(tmp_path / "docs.tsv", "007\ta text", "NA\tanother"),
            queries_tsv=write_lines(tmp_path / f"{split}.tsv", f"{split}-1e5\ta query"),
            qrels_trec=write_lines(tmp_path / f"{split}.qrels", f"{split}-1e5 0 NA 2"),
        )
        for split in ("dev", "test")
    }
    source = irds.of_datasets(datasets, {})
    assert [row[:3] for row in source.documents()] == [("007", "", "a text"), ("NA", "", "another")]
    assert [row[:4] for row in source.queries()] == [(each, f"{each}-1e5", "a query", None) for each in datasets]
    assert [row[:4] for row in source.judgments()] == [(each, f"{each}-1e5", "NA", 2) for each in datasets]


def test_the_id_of_a_dataset_determines_its_split() -> None:
    assert irds.by_split(["beir/scifact/test", "dev=msmarco-passage/dev/small"]) == {
        "test": "beir/scifact/test",
        "dev": "msmarco-passage/dev/small",
    }
    assert irds.by_split(["vaswani"]) == {"test": "vaswani"}
    with raises("duplicate-split", split="dev"):
        irds.by_split(["dev=a", "b/dev"])


def test_datasets_of_different_corpora_are_not_mixed() -> None:
    pytest.importorskip("ir_datasets", reason="needs the extra irds")
    with raises("other-corpus"):
        prepare(PrepareIrds(["beir/scifact/test", "dev=beir/nfcorpus/dev"], output=Path("made")))
