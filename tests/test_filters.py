"""Metadata of documents, and filters of a search: exactly the hits of a search of everything, filtered afterwards."""

import asyncio
import datetime
import decimal
import io
import json
import math
import random
import re
import shutil
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import polars as pl
import pyarrow as pa
import pytest
from command import hybrid, raises, ran, refused
from pyarrow import parquet
from served import Served

from hybrid_cli import fuse, open_index, open_retriever
from hybrid_cli.artifacts import read_manifest
from hybrid_cli.collections.source import Document, Location, documents_of, read_file
from hybrid_cli.commands.data import PrepareFiles
from hybrid_cli.errors import InputError
from hybrid_cli.retrieval import filters
from hybrid_cli.retrieval.filters import MOST_CHARACTERS, Metadata, columns_of
from hybrid_cli.server import answers
from hybrid_cli.server.live import Live
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.fuse import fuse as fuse_runs
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.stages.search import search, search_query
from hybrid_cli.stages.update import update


def corpus_of(path: Path) -> pl.DataFrame:
    return pl.read_parquet(path / "corpus.parquet")


def test_columns_of_tables_have_the_type_of_all_their_values(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(
        "docid\ttext\tyear\tlang\tok\tshare\tzip\n"
        "1\tone two three\t2020\tde\ttrue\t1.5\t007\n2\tfour\t\t\tFALSE\t2\t12\n"
    )
    done = hybrid(
        "prepare", "files", tmp_path / "a.tsv", "--metadata", "all", "--split-passages", 2, "-o", tmp_path / "a"
    )
    types = {"year": "int64", "lang": "string", "ok": "boolean", "share": "float64", "zip": "string"}
    assert done.says("columns", metadata=types, ignored=[])
    assert read_manifest(tmp_path / "a").counts["metadata"] == types
    assert corpus_of(tmp_path / "a").drop("title", "text").rows() == [
        ("1#0", 2020, "de", True, 1.5, "007"),
        ("1#1", 2020, "de", True, 1.5, "007"),
        ("2#0", None, None, False, 2.0, "12"),
    ]


def test_columns_of_json_lines_keep_numbers_and_texts_apart(tmp_path: Path) -> None:
    file, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    file.write_text(
        '{"docid":"1","text":"x","year":2020,"share":1,"tags":[{}],"code":"7"}\n'
        '{"docid":"2","text":"y","share":1.5,"ok":true,"none":null,"a b":1}\n'
    )
    done = hybrid("prepare", "files", file, "--metadata", "all", "-o", tmp_path / "a")
    assert done.says("columns-left-out", columns=["a b", "tags"])
    assert corpus_of(tmp_path / "a").drop("title", "text").rows(named=True) == [
        {"docid": "1", "year": 2020, "share": 1.0, "code": "7", "ok": None, "none": None},
        {"docid": "2", "year": None, "share": 1.5, "code": None, "ok": True, "none": None},
    ]
    with raises("other-type", path=file, line=1, column="tags"):
        prepare(PrepareFiles([file], metadata=["tags"], output=tmp_path / "no"))
    with raises("no-such-column", column="nothing"):
        prepare(PrepareFiles([file], metadata=["nothing"], output=tmp_path / "no"))
    other.write_text('{"docid":"3","text":"z","year":"2020"}\n')
    with raises("other-type", path=other, line=1, column="year"):
        prepare(PrepareFiles([file, other], metadata=["year"], output=tmp_path / "no"))


def test_columns_of_parquet_keep_their_types_and_dates_become_texts(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "url": [1, 2],
            "text": ["a", "b"],
            "day": [datetime.date(2020, 1, 2), None],
            "at": [datetime.datetime(2020, 1, 2, 3, 4, 5), None],
            "share": [1.0, float("nan")],
            "level": pl.Series([1, 2], dtype=pl.UInt8),
            "kind": pl.Series(["x", "y"], dtype=pl.Categorical),
            "list": [[1], [2]],
        }
    )
    frame.write_parquet(tmp_path / "a.parquet")
    settings = PrepareFiles(
        [tmp_path / "a.parquet"], document_columns={"id": "url"}, metadata="all", sample=1, output=tmp_path / "a"
    )
    rows = corpus_of(prepare(settings)).drop("title", "text").rows()
    all_rows = [("1", "2020-01-02", "2020-01-02T03:04:05.000000", 1.0, 1, "x"), ("2", None, None, None, 2, "y")]
    assert len(rows) == 1
    assert rows[0] in all_rows


@pytest.mark.parametrize(
    ("name", "first", "second", "stored"),
    [
        ("a.jsonl", "1e999", "2.5", [None, 2.5]),
        ("a.jsonl", "NaN", "-Infinity", [None, None]),
        ("a.csv", "1e999", "2.5", [None, 2.5]),
        ("a.jsonl", f"{2**63 - 1}", f"{-(2**63)}", [2**63 - 1, -(2**63)]),
        ("a.csv", "1" * 5000, "2", [None, 2.0]),
    ],
)
def test_numbers_that_are_not_finite_are_missing(
    tmp_path: Path, name: str, first: str, second: str, stored: list[float | None]
) -> None:
    row = '{{"id": "{0}", "text": "x", "size": {1}}}\n' if name == "a.jsonl" else "{0},x,{1}\n"
    rows = "".join(row.format(*each) for each in (("a", first), ("b", second)))
    (tmp_path / name).write_text(rows if name == "a.jsonl" else f"id,text,size\n{rows}")
    made = prepare(PrepareFiles([tmp_path / name], metadata=["size"], output=tmp_path / "made"))
    assert corpus_of(made)["size"].to_list() == stored


def test_values_that_no_column_can_have_are_refused_and_left_out_of_all(tmp_path: Path) -> None:
    table = pa.table({"id": ["a"], "text": ["x"], "hash": pa.array([2**63], pa.uint64()), "raw": [b"\xff"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text(f'{{"id": "a", "text": "x", "hash": {"1" * 5000}}}')
    for file, name in (("a.parquet", "hash"), ("a.parquet", "raw"), ("b.jsonl", "hash")):
        with raises("other-type", column=name, path=file):
            prepare(PrepareFiles([tmp_path / file], metadata=[name], output=tmp_path / "made"))
    everything = prepare(PrepareFiles([tmp_path / "a.parquet"], metadata="all", output=tmp_path / "made"))
    assert corpus_of(everything).columns == ["docid", "title", "text"]


def test_texts_of_a_table_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    surrogate, ends = pa.py_buffer(b"\xed\xa0\x80"), pa.array([0, 3], pa.int32()).buffers()[1]
    text = pa.Array.from_buffers(pa.string(), 1, [None, ends, surrogate])
    parquet.write_table(pa.table({"id": ["a"], "text": text}), tmp_path / "a.parquet")
    with raises("not-utf-8", path="a.parquet"):
        prepare(PrepareFiles([tmp_path / "a.parquet"], output=tmp_path / "made"))


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (pa.array([math.inf, -math.inf]), {"min": None, "max": None}),
        (pa.array([math.nan, 1.0]), {"min": 1.0, "max": 1.0}),
        (pa.array([decimal.Decimal("0.25"), decimal.Decimal("0.5")]), {"min": 0.25, "max": 0.5}),
        (pa.array([0.25, 0.5], pa.float16()), {"min": 0.25, "max": 0.5}),
        (pa.array([2**64 - 1, 0], pa.uint64()), {"min": 0, "max": 2**64 - 1}),
    ],
)
def test_a_corpus_of_another_program_is_served_with_any_numbers(
    tmp_path: Path, column: pa.Array, shown: dict[str, Any]
) -> None:
    table = pa.table({"docid": ["a", "b"], "title": ["", ""], "text": ["x", "x"], "size": column})
    parquet.write_table(table, tmp_path / "corpus.parquet")
    live = Live.open(index_bm25(tmp_path / "corpus.parquet", output=tmp_path / "bm25", lucene=False))
    information = answers.information(live)
    assert information["metadata"] == [{"name": "size", "type": "number", **shown}]
    json.dumps([information, answers.document(live, "a"), answers.document(live, "b")], allow_nan=False)
    assert len(live.search(answers.table_of(["x"]), 2, live.main, "size IS NOT NULL")) == 2


@pytest.mark.parametrize("name", ["title", "docid", "a-b", "body"])
def test_names_that_a_filter_cannot_have_are_refused(name: str, workdir: Path) -> None:
    (workdir / "a.tsv").write_text("docid\ttext\tlong\ta-b\n1\tx\ty\tz\n")
    code = "repeated-value" if name == "body" else "invalid-name"
    columns = ["--document-columns", "body=long", "--metadata", name]
    refused("prepare", "files", workdir / "a.tsv", *columns, "-o", workdir / "a", problem=code, option="metadata")


def test_metadata_comes_back_from_a_cluster() -> None:
    rows = [Document(str(n), "", "text", Location("a.tsv", n), ("field", n, None, n > 1)) for n in (1, 2)]
    assert list(documents_of(read_file(lambda: iter(rows)))) == rows


SCHEMA = {"year": pl.Int64(), "lang": pl.String(), "share": pl.Float64(), "open": pl.Boolean()}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("year >=", "filter-syntax"),
        ("", "filter-syntax"),
        ("year = 1; drop", "filter-syntax"),
        ("year = 1) AS kept FROM documents; SELECT (1", "filter-syntax"),
        ("year = 1) AS kept, (year = 2", "filter-syntax"),
        ("count/**/(year) > 1", "filter-syntax"),
        ('"max"(year) > 1', "filter-syntax"),
        ("repeat(lang, 1000000) = 'x'", "filter-syntax"),
        ("lang[1] = 'd'", "filter-syntax"),
        ("lang = '\ud800'", "filter-syntax"),
        ("interval '1 foo' IS NULL", "other-type"),
        ("sum(year) > year", "filter-syntax"),
        ("row_number() OVER (ORDER BY year) > 1", "filter-syntax"),
        ("year IN (SELECT 1)", "filter-syntax"),
        ("yeer = 2020", "no-such-column"),
        ("other.year = 2020", "no-such-column"),
        ('lang = "de"', "no-such-column"),
        ("year = 'x'", "other-type"),
        ("lang > 3", "other-type"),
        ("year IN ('x')", "other-type"),
        ("year + 1", "other-type"),
        ("NULL", "other-type"),
    ],
)
def test_what_is_no_condition_over_the_columns_is_refused(text: str, code: str) -> None:
    with raises(code, option="filter"):
        columns_of(text, SCHEMA)


@pytest.mark.parametrize(
    "part", ["+1", "||'x'", "::int", " IS TRUE", "=1", " AT TIME ZONE 'x'", " OR year=1", " AND NOT"]
)
@pytest.mark.parametrize("characters", [4_000, MOST_CHARACTERS, 10 * MOST_CHARACTERS])
def test_a_long_condition_is_evaluated_or_refused(part: str, characters: int) -> None:
    """4,000 to 16,000 characters of these ended the process, or took seconds."""
    text = ("year" + part * characters)[:characters].rsplit(part, 1)[0]
    with suppress(InputError):
        assert columns_of(text, SCHEMA) == ["year"]


def test_a_condition_has_a_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "SECONDS", 0.2)
    frame = pl.DataFrame({"docid": [str(number) for number in range(3_000_000)]})
    text = " OR ".join(f"docid LIKE '%{number}%9%8%'" for number in range(300))

    def read_slowly() -> Any:
        time.sleep(0.5)
        return frame.to_arrow()

    slow = Mock(wraps=frame, **{"to_arrow.side_effect": read_slowly})
    for documents in (frame, slow):  # whose limit is over before the evaluation starts
        with raises("filter-too-slow", option="filter"):
            filters.matching(text, documents)


def test_words_in_texts_are_no_functions() -> None:
    columns_of("lang = 'sum(x)' OR lang = 'it''s select' OR lower(lang) = 'x' AND NOT (year IN (1, 2))", SCHEMA)


WORDS = ["virus", "vaccine", "mask", "trial", "children", "hospital", "dose", "spread", "school", "test", "nurse"]
LANGS = ["de", "en", "fr", "zh-hant", "a_b", "10%", "it's"]
ROWS, QUERIES = 280, 7


def documents(numbers: range, seed: int = 1) -> pl.DataFrame:
    draw = random.Random(seed)
    rows = [
        {
            "docid": f"d{number}",
            "text": " ".join(draw.choices(WORDS, k=draw.randint(1, 30))),
            "year": draw.choice([None, *range(2015, 2025)]),
            "lang": draw.choice([None, *LANGS]),
            "share": draw.choice([None, 0.0, -1.5, 0.25, 3.0, 10.0]),
            "open": draw.choice([None, True, False]),
        }
        for number in numbers
    ]
    return pl.DataFrame(rows, schema={"docid": pl.String(), "text": pl.String(), **SCHEMA})


def condition(draw: random.Random, depth: int = 3) -> str:
    if depth and draw.random() < 0.6:
        one, other = condition(draw, depth - 1), condition(draw, depth - 1)
        return draw.choice([f"({one}) AND ({other})", f"({one}) OR ({other})", f"NOT ({one})", f"{one} AND {other}"])
    column = draw.choice(list(SCHEMA))
    literals = {
        "year": [*map(str, range(2013, 2027)), "2019.5"],
        "share": ["0", "0.25", "-2", "3.0", "7.5"],
        "open": ["TRUE", "FALSE"],
        "lang": ["'" + name.replace("'", "''") + "'" for name in [*LANGS, "x"]],
    }
    some = draw.choices(literals[column], k=3)
    equal = draw.choice(["=", "!=", "<>"])
    forms = [f"{column} {equal} {some[0]}", f"{column} IS NULL", f"{column} IS NOT NULL"]
    forms += [f"{column} IN ({', '.join(some)})", f"{column} NOT IN ({some[0]}, {some[1]})"]
    if column == "open":
        forms += ["open", "NOT open"]
    else:
        forms += [f"{column} {draw.choice(['<', '<=', '>', '>='])} {some[0]}"] * 2
        forms += [f"{column} {draw.choice(['', 'NOT '])}BETWEEN {some[0]} AND {some[1]}"]
    if column == "lang":
        pattern = draw.choice(["d%", "%e%", "_e", "a_b", "%-%", "zh%t", "10%", "%", "it''s"])
        forms += [f"lang {draw.choice(['', 'NOT '])}LIKE '{pattern}'"] * 2
    return draw.choice(forms)


@dataclass
class Library:
    folder: Path
    rows: sqlite3.Connection

    def allowed(self, text: str) -> set[str]:
        return {docid for (docid,) in self.rows.execute(f"SELECT docid FROM documents WHERE {text}")}


def in_sqlite(frame: pl.DataFrame) -> sqlite3.Connection:
    rows = sqlite3.connect(":memory:")
    rows.execute("PRAGMA case_sensitive_like = ON")
    rows.execute("CREATE TABLE documents (docid TEXT, year INTEGER, lang TEXT, share REAL, open INTEGER)")
    rows.executemany("INSERT INTO documents VALUES (?, ?, ?, ?, ?)", frame.select("docid", *SCHEMA).rows())
    return rows


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Library:
    folder = tmp_path_factory.mktemp("library")
    frame = documents(range(ROWS))
    frame.write_ndjson(folder / "rows.jsonl")
    draw = random.Random(2)
    queries = [(f"q{number}", " ".join(draw.choices(WORDS, k=3))) for number in range(QUERIES)]
    pl.DataFrame(queries, schema=["qid", "text"], orient="row").write_csv(folder / "queries.tsv", separator="\t")
    prepare(PrepareFiles([folder / "rows.jsonl"], metadata=list(SCHEMA), output=folder / "data"))
    passages = PrepareFiles([folder / "rows.jsonl"], metadata=list(SCHEMA), split_passages=8, output=folder / "pieces")
    index_bm25(folder / "data", output=folder / "bm25", threads=1)
    index_bm25(folder / "data", output=folder / "shards", shards=2)
    index_bm25(prepare(passages), output=folder / "bm25-pieces", threads=1)
    encode(folder / "data", model=str(tiny_bert), output=folder / "dense")
    compose([folder / "bm25", folder / "dense"], depth=ROWS, output=folder / "retriever")
    return Library(folder, in_sqlite(frame))


def by_query(hits: pl.DataFrame) -> dict[str, list[tuple[str, float]]]:
    rows: dict[str, list[tuple[str, float]]] = {}
    for qid, docid, score in hits.select("qid", "docid", "score").iter_rows():
        rows.setdefault(qid, []).append((docid, score))
    return rows


def filtered(hits: dict[str, list[tuple[str, float]]], allowed: set[str], k: int) -> dict[str, list[tuple[str, float]]]:
    kept = {qid: [hit for hit in some if hit[0] in allowed][:k] for qid, some in hits.items()}
    return {qid: some for qid, some in kept.items() if some}


@pytest.mark.parametrize("name", ["bm25", "shards", "bm25-pieces", "dense", "retriever"])
@pytest.mark.parametrize("count", [1, QUERIES])
def test_a_filter_returns_what_is_left_of_all_hits(library: Library, name: str, count: int) -> None:
    """The law, for one query and for many; conditions are evaluated by SQLite."""
    opened = open_retriever if name == "retriever" else open_index
    index = opened(library.folder / name)
    table = pl.read_csv(library.folder / "queries.tsv", separator="\t").head(count)
    every = by_query(index.search(table, ROWS))
    draw = random.Random(f"{name} {count}")
    conditions = ["year IS NULL OR year IS NOT NULL", "year < 0", "year = 2020 AND lang = 'de' AND open"]
    sizes = []
    for text in [*conditions, *(condition(draw) for _ in range(97))]:
        allowed, k = library.allowed(text), draw.choice([1, 10, ROWS])
        assert by_query(index.search(table, k, filter=text)) == filtered(every, allowed, k), text
        sizes.append(len(allowed))
    assert {0, ROWS} < set(sizes)
    assert len(set(sizes)) > 20


def metadata(docid: str) -> dict[str, Any]:
    row = documents(range(ROWS)).row(by_predicate=pl.col("docid") == docid, named=True)
    return {name: row[name] for name in SCHEMA if row[name] is not None}


def without_nulls(struct: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in struct.items() if value is not None}


@pytest.mark.parametrize("name", ["bm25", "shards", "bm25-pieces", "retriever"])
def test_hits_have_the_metadata_of_their_documents(library: Library, name: str) -> None:
    index = (open_retriever if name == "retriever" else open_index)(library.folder / name)
    hits = index.search(" ".join(WORDS), 20)
    assert hits.schema["metadata"] == pl.Struct(SCHEMA)
    assert [without_nulls(struct) for struct in hits["metadata"]] == [metadata(docid) for docid in hits["docid"]]


def test_documents_of_frameworks_have_metadata_and_a_prompt_shows_neither_rank_nor_score(library: Library) -> None:
    pytest.importorskip("langchain_core", reason="langchain-core is not installed: pip install 'hybrid_cli[langchain]'")
    from langchain_core.prompts import format_document
    from langchain_core.prompts.prompt import PromptTemplate

    from hybrid_cli.adapters.langchain import HybridRetriever

    retriever = HybridRetriever(path=str(library.folder / "retriever"))
    found: list[Any] = retriever.invoke(" ".join(WORDS))
    assert [document.metadata for document in found] == [metadata(document.id) for document in found]
    assert all(set(document.hit) & {"rank", "score", "bm25_rank"} for document in found)
    assert format_document(found[0], PromptTemplate.from_template("{page_content}")) == found[0].page_content
    with pytest.raises(ValueError):  # noqa: PT011 (the template asks for what is no metadata)
        format_document(found[0], PromptTemplate.from_template("{page_content} {score}"))


def test_answers_of_the_server_have_metadata_and_its_tools_name_the_columns(library: Library) -> None:
    pytest.importorskip("mcp", reason="the MCP SDK is not installed: pip install 'hybrid_cli[mcp]'")
    from mcp.client import Client

    async def called(url: str) -> tuple[Any, Any]:
        async with Client(url) as client:
            tools = {tool.name: tool.description for tool in (await client.list_tools()).tools}
            return tools, await client.call_tool("search", {"query": " ".join(WORDS)})

    with Served(library.folder / "retriever") as server:
        candidates = server.get("/api/search", query=" ".join(WORDS)).json["candidates"]
        tools, answer = asyncio.run(called(f"{server.url}mcp"))
    assert [each["doc"]["metadata"] for each in candidates] == [metadata(each["docid"]) for each in candidates]
    hits = answer.structured_content["hits"]
    assert [hit["metadata"] for hit in hits] == [metadata(hit["docid"]) for hit in hits]
    for column in ("year (number)", "lang (text)", "share (number)", "open (boolean)"):
        assert column in tools["search"]


def test_values_without_a_number_of_json_do_not_end_an_answer(tmp_path: Path) -> None:
    values = {
        "whole": [2**63 - 1, None],
        "share": [float("nan"), float("inf")],
        "day": [datetime.date(2020, 1, 2), None],
        "price": [decimal.Decimal("1.50"), None],
    }
    tmp_path.joinpath("data").mkdir()
    frame = pl.DataFrame({"docid": ["a", "b"], "title": "", "text": "salt water", **values})
    frame.write_parquet(tmp_path / "data" / "corpus.parquet")
    live = Live.open(index_bm25(tmp_path / "data", output=tmp_path / "bm25"))
    ((one, other),) = answers.hits(live, ["salt"], 2, live.main, None, False)
    assert (one["doc"]["metadata"], other["doc"]["metadata"]) == (
        {"whole": 2**63 - 1, "day": "2020-01-02", "price": 1.5},
        {},
    )
    ((hit,),) = answers.hits(live, ["salt"], 2, live.main, "day > '2020' AND price < 2", False)
    assert hit["docid"] == "a"
    json.dumps([answers.information(live), one], allow_nan=False)


def test_hits_show_the_values_that_a_filter_finds(tmp_path: Path) -> None:
    at = datetime.datetime(2020, 1, 2, 3, 4, 5, 6)
    zoned = pl.Series([at]).dt.replace_time_zone("Europe/Berlin")
    values = {"at": at, "zoned": zoned, "hour": datetime.time(0, 0, 0, 1), "day": at.date(), "more": "x"}
    excluded = {
        "lasts": datetime.timedelta(1),
        "list": [[1]],
        "struct": [{"a": 1}],
        "kind": pl.Series(["x"], dtype=pl.Enum(["x"])),
    }
    frame = pl.DataFrame({"docid": ["a"], "title": "", "text": "salt", **values, "^m.*$": "y", **excluded})
    frame.write_parquet(tmp_path / "corpus.parquet")
    live = Live.open(index_bm25(tmp_path / "corpus.parquet", output=tmp_path / "bm25", lucene=False))
    shown = answers.document(live, "a")["metadata"]
    assert shown == {
        "at": "2020-01-02T03:04:05.000006",
        "zoned": "2020-01-02T03:04:05.000006+01:00",
        "hour": "00:00:00.000001",
        "day": "2020-01-02",
        "more": "x",
        "^m.*$": "y",
    }
    for name, value in shown.items():
        assert len(live.search(answers.table_of(["salt"]), 1, live.main, f"\"{name}\" = '{value}'")) == 1
    ran("search", "--index", tmp_path / "bm25", "--query", "salt")


def test_a_list_method_fuses_the_filtered_lists(library: Library, tmp_path: Path) -> None:
    names = ["bm25", "dense"]
    folders = [library.folder / name for name in names]
    fused = compose(folders, method="minmax", weights=[0.4, 0.6], depth=ROWS, output=tmp_path / "minmax")
    table = pl.read_csv(library.folder / "queries.tsv", separator="\t")
    for text in ("year >= 2020", "lang = 'de' AND NOT open", "year < 0"):
        hits = [open_index(path).search(table, ROWS, filter=text) for path in folders]
        lists = {name: run.select("qid", "docid", "rank", "score") for name, run in zip(names, hits, strict=True)}
        wanted = fuse(lists, method="minmax", weights=[0.4, 0.6])
        returned = open_retriever(fused).search(table, 10, filter=text)
        assert by_query(returned) == by_query(wanted.filter(pl.col("rank") <= 10))


def test_a_reranker_rescores_the_first_filtered_hits(library: Library, reranker: Path, tmp_path: Path) -> None:
    folders = [library.folder / name for name in ("bm25", "dense")]
    table, text = pl.read_csv(library.folder / "queries.tsv", separator="\t").head(2), "year >= 2020"
    for depth in (ROWS, 5):
        made = compose(
            folders, depth=ROWS, reranker=str(reranker), rerank_depth=depth, output=tmp_path / f"reranked-{depth}"
        )
        hits = by_query(open_retriever(made).search(table, ROWS, filter=text))
        if depth == ROWS:
            every = by_query(open_retriever(made).search(table, ROWS))
            wanted = filtered(every, library.allowed(text), ROWS)
            assert {qid: [docid for docid, _ in some] for qid, some in hits.items()} == {
                qid: [docid for docid, _ in some] for qid, some in wanted.items()
            }
            continue
        plain = by_query(open_retriever(library.folder / "retriever").search(table, ROWS, filter=text))
        for qid, some in hits.items():
            assert {docid for docid, _ in some[:depth]} == {docid for docid, _ in plain[qid][:depth]}
            assert [docid for docid, _ in some[depth:]] == [docid for docid, _ in plain[qid][depth:]]


def test_missing_scores_of_filtered_runs_are_exact(library: Library, tmp_path: Path) -> None:
    folders, text = [library.folder / name for name in ("bm25", "dense")], "lang IN ('de', 'en')"
    asked: dict[str, Any] = {"queries": library.folder / "queries.tsv", "filter": text, "hits": 8}
    runs = [search(index=path, output=tmp_path / f"{path.name}.parquet", **asked) for path in folders]
    how: dict[str, Any] = {"method": "weighted-sum", "weights": [0.1, 1.0], "missing": "exact"}
    fused = by_query(pl.read_parquet(fuse_runs(runs, index=folders, output=tmp_path / "fused.parquet", **how)))
    retriever = compose(folders, depth=8, output=tmp_path / "exact", **how)
    table = pl.read_csv(library.folder / "queries.tsv", separator="\t")
    wanted = by_query(open_retriever(retriever).search(table, ROWS, filter=text))
    assert {docid for some in fused.values() for docid, _ in some} <= library.allowed(text)
    for qid, some in wanted.items():
        assert [docid for docid, _ in fused[qid]] == [docid for docid, _ in some]
        assert [score for _, score in fused[qid]] == pytest.approx([score for _, score in some], rel=1e-5)


def test_passages_have_the_metadata_of_their_documents_in_a_retriever(library: Library, tmp_path: Path) -> None:
    table = pl.read_csv(library.folder / "queries.tsv", separator="\t")
    for group in ("max", "sum2"):
        index = open_index(library.folder / "bm25-pieces", group=group)
        every = by_query(index.search(table, ROWS))
        hits = index.search(table, ROWS, filter="open")
        assert by_query(hits) == filtered(every, library.allowed("open"), ROWS)
        assert index.search(table, 5, filter="year < 0").is_empty()


@pytest.mark.parametrize("kind", ["sq8", "hnsw", "ivf", "pq", "opq", "binary", "hnsw-binary"])
def test_approximate_indexes_leak_nothing_and_find_most(library: Library, kind: str, tmp_path: Path) -> None:
    made = encode(library.folder / "dense", index_type=kind, output=tmp_path / kind)
    table = pl.read_csv(library.folder / "queries.tsv", separator="\t")
    index, flat = open_index(made), open_index(library.folder / "dense")
    for text in ("year >= 2020", "year = 2020 AND open", "year < 0", "year IS NULL OR year > 0"):
        allowed = library.allowed(text)
        exact = by_query(flat.search(table, 10, filter=text))
        for queries in (table, table.head(1)):
            hits = by_query(index.search(queries, 10, filter=text))
            for qid, some in hits.items():
                found, wanted = {docid for docid, _ in some}, {docid for docid, _ in exact[qid]}
                assert found <= allowed
                assert len(found) == min(10, len(allowed))
                if len(allowed) < ROWS / 10 and "binary" not in kind:
                    assert found == wanted
            common = sum(len({d for d, _ in some} & {d for d, _ in exact[qid]}) for qid, some in hits.items())
            least = {"sq8": 0.8, "hnsw": 0.8, "ivf": 0.4}.get(kind, 0.1)
            assert common >= least * sum(len(exact[qid]) for qid in hits)


def run_of(library: Library, output: Path, **options: Any) -> pl.DataFrame:
    run = search(queries=library.folder / "queries.tsv", output=output, **options)
    return pl.read_parquet(run)


def test_runs_are_filtered_whatever_the_search(library: Library, tmp_path: Path) -> None:
    folder, text = library.folder, "year >= 2020 AND lang IN ('de', 'en')"
    allowed = library.allowed(text)
    hybrid_indexes = [folder / "dense", folder / "bm25"]
    how: dict[str, Any] = {"queries": folder / "queries.tsv"}
    vectors = encode(model=str(read_manifest(folder / "dense").input_path("model")), output=tmp_path / "vectors", **how)
    calls: dict[str, dict[str, Any]] = {
        "exact": {"index": hybrid_indexes, "exact": True, "weights": [1, 0.5]},
        "rm3": {"index": folder / "bm25", "rm3": True},
        "pattern": {"index": Path(f"{folder}/shards/shard-*")},
        "retriever": {"index": folder / "retriever"},
    }
    for name, options in calls.items():
        every = by_query(run_of(library, tmp_path / f"{name}.parquet", hits=ROWS, **options))
        hits = run_of(library, tmp_path / f"{name}-filtered.parquet", hits=9, filter=text, **options)
        assert by_query(hits) == filtered(every, allowed, 9), name
        assert read_manifest(tmp_path / f"{name}-filtered.parquet").options["filter"] == text
        assert "filter" not in read_manifest(tmp_path / f"{name}.parquet").options
        assert run_of(library, tmp_path / f"{name}-none.parquet", filter="year < 0", **options).is_empty()
    run = search(queries=vectors, index=folder / "dense", hits=9, filter=text, output=tmp_path / "stored.parquet")
    by_text = run_of(library, tmp_path / "texts.parquet", index=folder / "dense", hits=9, filter=text)
    assert pl.read_parquet(run).equals(by_text)


def test_the_command_filters_its_hits(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    retriever, query = library.folder / "retriever", ["--query", "virus vaccine", "--format", "json"]
    done = hybrid("search", "--index", retriever, *query, "--filter", "year = 2020 AND open")
    hits = json.loads(done.out)["hits"]
    assert {hit["docid"] for hit in hits} == library.allowed("year = 2020 AND open")
    assert [hit["metadata"] for hit in hits] == [metadata(hit["docid"]) for hit in hits]
    ran("search", "--index", retriever, *query, "--filter", "year < 0")
    ran("search", "--index", retriever, "--query", "virus", "--filter", "year < 0")
    monkeypatch.setattr("sys.stdin", io.StringIO("virus vaccine\nmask\n"))
    asked = hybrid("search", "--index", retriever, "--interactive", "--filter", "year = 2020 AND open", "-k", ROWS)
    found = re.findall(r"\b(d\d+)  \[", asked.out)
    assert (asked.code, set(found)) == (0, library.allowed("year = 2020 AND open"))
    query = ["--query", "virus"]
    refused("search", "--index", retriever, *query, "--filter", "yeer = 1", problem="no-such-column", column="yeer")
    refused("search", "--index", retriever, *query, "--filter", "year =", problem="filter-syntax")


def test_a_filter_needs_the_documents_of_the_index(library: Library, tmp_path: Path) -> None:
    data, index = tmp_path / "data", tmp_path / "bm25"
    shutil.copytree(library.folder / "data", data)
    index_bm25(data, output=index, threads=1)
    data.rename(tmp_path / "moved")
    with raises("corpus-changed", missing=True):
        search_query(index=index, query="virus", filter="open")
    hits = search_query(tmp_path / "moved", index=index, query="virus", filter="open")
    assert set(hits["docid"]) <= library.allowed("open")
    with raises("corpus-changed"):
        search_query(library.folder / "pieces", index=index, query="virus", filter="open")


def test_a_later_corpus_replaces_the_metadata_of_an_earlier_one(library: Library, tmp_path: Path) -> None:
    new = documents(range(200, 300), seed=9).drop("share").with_columns(open=pl.lit(True))
    new.write_ndjson(tmp_path / "new.jsonl")
    prepare(PrepareFiles([tmp_path / "new.jsonl"], metadata="all", output=tmp_path / "new"))
    index = update(library.folder / "bm25", add=tmp_path / "new", output=tmp_path / "bm25")
    rows = pl.concat([documents(range(200)), new], how="diagonal")
    later, opened = Library(tmp_path, in_sqlite(rows)), open_index(index)
    every = by_query(opened.search(" ".join(WORDS), 500))
    own = dict(later.rows.execute("SELECT docid, year FROM documents").fetchall())
    shown = opened.search(" ".join(WORDS), 500)
    assert shown["metadata"].struct["year"].to_list() == [own[docid] for docid in shown["docid"]]
    for text in ("open", "share IS NULL", "NOT open AND year >= 2020"):
        hits = opened.search(" ".join(WORDS), 500, filter=text)
        assert by_query(hits) == filtered(every, later.allowed(text), 500)


def test_whole_numbers_of_one_corpus_and_fractions_of_another_are_compared_as_they_are(tmp_path: Path) -> None:
    corpora = [tmp_path / "whole.parquet", tmp_path / "fractions.parquet"]
    for path, docid, price in zip(corpora, "ab", (2, 2.5), strict=True):
        pl.DataFrame({"docid": [docid], "title": [""], "text": ["x"], "price": [price]}).write_parquet(path)
    for some in (corpora, corpora[::-1]):
        allowed = Metadata(some).allowed("price > 2")
        assert allowed.docids.filter(pl.Series(allowed.kept)).to_list() == ["b"]
