"""A text file with a query per line is a file of queries everywhere; other forms are refused with what was read."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import raises
from tiny_collection import write_lines

from hybrid_cli.collections import collection
from hybrid_cli.commands import PrepareFiles
from hybrid_cli.runs import read_run
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.stages.search import search


def rows_of(path: Path) -> list[tuple[str, str]]:
    return collection.read_queries(path).select("qid", "text").rows()


@pytest.mark.parametrize(
    ("content", "queries"),
    [
        ("salt in the sea\n\n  two tides \n", [("1", "salt in the sea"), ("3", "two tides")]),
        ("\ufeffsalt water\r\nmoon light\r\n", [("1", "salt water"), ("2", "moon light")]),
        ("2024 elections in France", [("1", "2024 elections in France")]),
        ("salt, pepper\n5 tides", [("1", "salt, pepper"), ("2", "5 tides")]),
        ("q1\tsalt\nq2\ttwo tides\n", [("q1", "salt"), ("q2", "two tides")]),
    ],
)
def test_lines_are_queries_with_their_numbers_as_ids(
    tmp_path: Path, content: str, queries: list[tuple[str, str]]
) -> None:
    (tmp_path / "q.txt").write_bytes(content.encode())
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
