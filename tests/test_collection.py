"""Reading collections: documents, queries, judgments, plain queries."""

import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import Refusal, raises, refusal
from hypothesis import given
from hypothesis import strategies as st
from tiny_collection import TINY_DOCUMENTS, TINY_JUDGEMENTS, TINY_QUERIES, write_lines

from hybrid_cli import runs, storage
from hybrid_cli.collections import collection
from hybrid_cli.collections.readers.queries import text_id
from hybrid_cli.commands import PrepareFiles
from hybrid_cli.runs import read_run
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.stages.search import search
from hybrid_cli.storage import Kind


def test_a_copy_of_the_texts_has_no_name_that_a_kill_would_leave(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: list[Path] = []
    read = collection.documents

    def documents(*given: Any, **how: Any) -> Iterator[pa.RecordBatch]:
        for batch in read(*given, **how):
            names.extend(tmp_path.iterdir())
            yield batch

    monkeypatch.setattr(collection, "documents", documents)
    docids = pl.Series([docid for docid, *_ in TINY_DOCUMENTS])
    texts = collection.TextStore([collection.corpus_path(tiny)]).texts(docids)
    assert texts.rows() == TINY_DOCUMENTS
    assert names == []


def test_documents_are_in_file_order_with_their_ids(tiny: Path) -> None:
    rows = [tuple(row.values()) for batch in collection.documents(tiny, batch_rows=5) for row in batch.to_pylist()]
    assert rows == TINY_DOCUMENTS


def test_a_corpus_in_parts_is_read_in_the_order_of_the_parts(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    for number in range(3):
        table = pa.table({"docid": [f"d{number}"], "title": [None], "text": ["a text"]}, storage.SCHEMAS[Kind.CORPUS])
        pq.write_table(table, tmp_path / "corpus" / f"part-{number:05}.parquet")
    assert collection.corpus_path(tmp_path) == tmp_path / "corpus"
    for path in (tmp_path, tmp_path / "corpus"):
        docids = [docid for batch in collection.documents(path) for docid in batch["docid"].to_pylist()]
        assert docids == ["d0", "d1", "d2"]
    assert collection.texts(tmp_path, pl.Series(["d1", "d1", "unknown"])).rows() == [("d1", "", "a text")]


@pytest.mark.parametrize("read", [collection.docids, runs.read_run])
def test_damaged_pages_of_a_table_of_another_tool_are_one_line(tmp_path: Path, read: Callable[[Path], object]) -> None:
    columns = {"docid": ["a"] * 500, "qid": ["q"] * 500, "text": ["x"] * 500, "title": ["x"] * 500}
    table = pl.DataFrame(columns).with_columns(relevance=1, rank=pl.int_range(500), score=1.0)
    table.write_parquet(tmp_path / "table.parquet", compression="uncompressed")
    metadata = pq.ParquetFile(tmp_path / "table.parquet").metadata.row_group(0)
    data = bytearray((tmp_path / "table.parquet").read_bytes())
    for column in range(metadata.num_columns):
        begin = metadata.column(column).dictionary_page_offset or metadata.column(column).data_page_offset
        data[begin : begin + 8] = b"\xff" * 8
    (tmp_path / "table.parquet").write_bytes(data)
    with raises("damaged-parquet", path="table.parquet"):
        read(tmp_path / "table.parquet")


def test_reading_a_corpus_holds_a_few_row_groups(tmp_path: Path) -> None:
    """Pages that were read are freed: a corpus may be larger than the memory."""
    random.seed(0)
    schema = pa.schema([(name, pa.string()) for name in ("docid", "title", "text")])
    with pq.ParquetWriter(tmp_path / "corpus.parquet", schema) as writer:
        for group in range(40):
            texts = [random.randbytes(100).hex() for _ in range(500)]
            ids = [f"{group}-{row}" for row in range(500)]
            writer.write_table(pa.table({"docid": ids, "title": [""] * 500, "text": texts}, schema=schema))
    whole, before = (tmp_path / "corpus.parquet").stat().st_size, pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in collection.documents(tmp_path, batch_rows=500)]
    assert len(held) == 40
    assert max(held) < whole / 4


@pytest.mark.parametrize("split", ["train", "test"])
def test_queries_and_judgments_of_a_split(tiny: Path, split: str) -> None:
    queries = collection.read_queries(collection.queries_path(tiny, split))
    assert queries.rows() == [(qid, text, None) for qid, text in TINY_QUERIES[split]]
    qrels = collection.read_qrels(collection.qrels_path(tiny, split))
    assert qrels.rows() == TINY_JUDGEMENTS[split]
    assert qrels.schema == {"qid": pl.String, "docid": pl.String, "relevance": pl.Int32}


def test_an_unknown_split_is_refused_with_the_list_of_splits(tiny: Path) -> None:
    with raises("no-such-split", role="queries", split="dev"):
        collection.queries_path(tiny, "dev")
    with raises("missing-option", option="split"):
        collection.qrels_path(tiny)  # has two


def test_the_only_judged_split_is_the_default(tmp_path: Path) -> None:
    for name in ("queries.test", "queries.unjudged", "qrels.test"):
        (tmp_path / f"{name}.parquet").touch()
    assert collection.queries_path(tmp_path).name == "queries.test.parquet"
    assert collection.qrels_path(tmp_path).name == "qrels.test.parquet"


def test_a_file_has_no_splits(tiny: Path) -> None:
    file = tiny / "qrels.test.parquet"
    assert collection.qrels_path(file) == file
    with raises("option-does-not-apply", option="split", value="test"):
        collection.qrels_path(file, "test")


def test_answers_are_read_from_all_known_fields(tmp_path: Path) -> None:
    file = tmp_path / "queries.jsonl"
    file.write_text(
        '{"_id": "1", "text": "a", "answers": ["x", "y"]}\n'
        '{"_id": "2", "text": "b", "metadata": {"answers": ["z"]}}\n'
        '{"_id": "3", "text": "c", "metadata": {}}\n'
    )
    assert collection.read_queries(file)["answers"].to_list() == [["x", "y"], ["z"], None]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("q.tsv", "category\tqid\tquery\nsports\t1\ta\nnews\t2\tb, c\n"),
        ("q.csv", 'Query-ID,Question\n1,a\n2,"b, c"\n'),
        ("q.jsonl", '{"id": "7", "qid": "1", "query": "a", "text": "x"}\n{"id": "8", "qid": "2", "query": "b, c"}\n'),
        ("q.tsv", "1\ta\n2\tb, c\n"),
    ],
)
def test_columns_of_queries_are_found_as_by_prepare_files(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert collection.read_queries(tmp_path / name).rows() == [("1", "a", None), ("2", "b, c", None)]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("q.jsonl", '{"id": 1e5, "query": "a"}\n{"qid": 12345678901234567890, "question": "b"}\n',
         [("1e5", "a"), ("12345678901234567890", "b")]),
        ("q.tsv", '1\tquery\n2\t"text"\n', [("1", "query"), ("2", '"text"')]),
    ],
)  # fmt: skip # a file per line
def test_numbers_and_quotes_are_kept_as_they_are(
    tmp_path: Path, name: str, text: str, expected: list[tuple[str, str]]
) -> None:
    (tmp_path / name).write_text(text)
    assert collection.read_queries(tmp_path / name).select("qid", "text").rows() == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1\ta\n1\tb\n", refusal("duplicate-id", row=2, id="1")),
        ("no tab\n", refusal("too-few-columns", line=1)),
        ("1\ta\nno tab\n", refusal("other-width", line=2, found=1, expected=2)),
        ("qid\twords\n1\ta\n", refusal("no-such-column", field="text")),
        ("1\ta\n2\tcaf\udce9\n", refusal("not-utf-8", line=2)),
    ],
)
def test_invalid_queries_are_reported_with_their_row(tmp_path: Path, text: str, problem: str | Refusal) -> None:
    (tmp_path / "q.tsv").write_text(text, "utf-8", "surrogateescape")
    with raises(problem):
        collection.read_queries(tmp_path / "q.tsv")


def test_byte_order_mark_and_dos_line_ends_are_removed(tmp_path: Path) -> None:
    (tmp_path / "q.tsv").write_bytes(b"\xef\xbb\xbf1\ta\r\n\r\n2\tb\r\n")
    assert collection.read_queries(tmp_path / "q.tsv").rows() == [("1", "a", None), ("2", "b", None)]


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        ("txt", "query-id\tcorpus-id\tscore\n1\ta b\t2\n007\tNA\t0\n"),
        ("txt", "1\t0\ta b\t2\n007\t0\tNA\t0\n"),
        ("txt", "1\ta b\t2\n007 Q0 NA 0\n"),
        ("txt", "1\ta b\t2\n1\ta b\t2\n007 NA 0\n"),
        ("txt", "relevance\tqid\titer\tdocno\n2\t1\t0\ta b\n0\t007\t0\tNA\n"),
        ("tsv", "query_id\tdocid\trelevance\tsplit\n1\ta b\t2\ttest\n007\tNA\t0\ttest\n"),
        ("csv", 'docid,qid,relevance\n"a b",1,2\nNA,007,0\n'),
        ("csv", "1,a b,2\n007,NA,0\n"),
        ("jsonl", '{"docid": "a b", "qid": 1, "rel": 2}\n{"qid": "007", "docid": "NA", "rel": 0}\n'),
    ],
)
def test_all_text_formats_of_judgments_are_equal(tmp_path: Path, suffix: str, text: str) -> None:
    (tmp_path / f"qrels.{suffix}").write_text(text)
    assert collection.read_qrels(tmp_path / f"qrels.{suffix}").rows() == [("1", "a b", 2), ("007", "NA", 0)]


def test_a_name_of_a_column_is_an_id_in_a_file_without_header(tmp_path: Path) -> None:
    (tmp_path / "qrels.tsv").write_text("qid\t0\tpid\t1\nscore\t0\tNA\t0\n")
    assert collection.read_qrels(tmp_path / "qrels.tsv").rows() == [("qid", "pid", 1), ("score", "NA", 0)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1 0 a 1\n1 0 b\n1 0 a 2\n", refusal("grade-not-a-number", line=2, value="b")),
        ("question\tdocid\tscore\n1\ta\t1\n", refusal("no-such-column", field="qid")),
        ("q1 0 d1 1.5\nq1 0 d2 1\n", refusal("grade-not-a-number", line=1, value="1.5")),
        ("1 0 a 1\n1 b\n", refusal("other-width", line=2, found=2)),
        ("1 0 a 1\n1 0 b 1\n1 0 a 2\n", refusal("duplicate-id", row=3, id="1 a")),
    ],
)
def test_invalid_judgments_are_reported_with_their_row(tmp_path: Path, text: str, problem: str | Refusal) -> None:
    (tmp_path / "qrels.txt").write_text(text)
    with raises(problem):
        collection.read_qrels(tmp_path / "qrels.txt")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), min_size=1, unique=True))
def test_any_printable_id_survives_tab_separation(tmp_path_factory: pytest.TempPathFactory, ids: list[str]) -> None:
    ids = [name for name in ids if not name.isspace()]
    file = tmp_path_factory.mktemp("ids") / "q.tsv"
    file.write_text("".join(f"{qid}\ttext\n" for qid in ids), "utf-8")
    if ids and not ids[0].startswith("\ufeff"):
        assert collection.read_queries(file)["qid"].to_list() == ids


def rows_of(path: Path) -> list[tuple[str, str]]:
    return collection.read_queries(path).select("qid", "text").rows()


@pytest.mark.parametrize(
    ("content", "queries"),
    [
        ("salt in the sea\n\n  two tides \ntwo  tides", [("074888cc7655", "salt in the sea"), ("", "two tides")]),
        ("\ufeffsalt water\r\nmoon light\r\n", [("374f007a3300", "salt water"), ("", "moon light")]),
        ("2024 elections in France", [("", "2024 elections in France")]),
        ("salt, pepper\n5 tides", [("8f3ec0f5de6c", "salt, pepper"), ("", "5 tides")]),
        ("q1\tsalt\nq2\ttwo tides\n", [("q1", "salt"), ("q2", "two tides")]),
    ],
)
def test_lines_are_queries_with_ids_of_their_texts(
    tmp_path: Path, content: str, queries: list[tuple[str, str]]
) -> None:
    """Numbers of lines gave the judgments of a query to another, after a line was inserted."""
    (tmp_path / "q.txt").write_bytes(content.encode())
    queries = [(qid or text_id(text), text) for qid, text in queries]
    assert rows_of(tmp_path / "q.txt") == queries
    docs = write_lines(tmp_path / "docs.csv", "id,text", "d1,salt")
    data = prepare(PrepareFiles([docs], queries=[f"own={tmp_path / 'q.txt'}"], output=tmp_path / "data"))
    assert rows_of(data / "queries.own.parquet") == queries
    index = index_bm25(data, output=tmp_path / "bm25", threads=1)
    hits = read_run(search(queries=tmp_path / "q.txt", index=index, output=tmp_path / "run.parquet"))
    assert set(hits["qid"]) == {qid for qid, text in queries if "salt" in text}


def test_pairs_of_id_and_word_stay_columns_of_prepare(tmp_path: Path) -> None:
    docs = write_lines(tmp_path / "docs.csv", "id,text", "d1,salt")
    for name, lines in (("pairs", ("q1 salt", "q2 tides")), ("header", ("qid text", "a salt", "b tides"))):
        queries = write_lines(tmp_path / f"{name}.txt", *lines)
        data = prepare(PrepareFiles([docs], queries=[f"own={queries}"], output=tmp_path / name))
        assert [text for _, text in rows_of(data / "queries.own.parquet")] == ["salt", "tides"]


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("topics.txt", "<top>\n<num> 301\n<title> crime\n</top>\n", "other-form"),
        ("spaces.txt", "301 international crime\n302 polio\n", "other-form"),
        ("qrels.txt", "1 0 d1 1\n1 0 d2 0\n", "other-form"),
        ("ids.txt", "1\n2\n", "other-form"),
        ("one.tsv", "salt in the sea\n", "too-few-columns"),
        ("wide.tsv", "a\tb\tc\n", "no-such-column"),
        ("header.txt", "query\nsalt\n", "too-few-columns"),
        ("wide.csv", f"a,b,{'c' * 500}\n", "no-such-column"),
        ("texts.json", '["salt", "sea"]\n', "not-an-object"),
        ("texts.jsonl", '"salt"\n"sea"\n', "not-an-object"),
        ("map.json", '{"q1": "salt"}\n', "no-such-field"),
    ],
)
def test_other_forms_are_refused_with_the_first_line(tmp_path: Path, name: str, content: str, code: str) -> None:
    (tmp_path / name).write_text(content)
    with raises(code, path=name) as caught:
        rows_of(tmp_path / name)
    assert content.split()[0][:20].strip('[]{",:') in str(caught.value), "a word of the first line"
