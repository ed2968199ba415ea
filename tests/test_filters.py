"""Metadata of documents, and filters of a search: exactly the hits of a search of everything, filtered afterwards."""

from __future__ import annotations

import datetime
from pathlib import Path

import polars as pl
import pytest
from command import hybrid, raises, refused

from hybrid_cli.artifacts import read_manifest
from hybrid_cli.collections.distributed import documents_of, read_file
from hybrid_cli.collections.source import Document, Location
from hybrid_cli.settings.data import PrepareFiles
from hybrid_cli.stages.prepare import prepare


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
        '{"docid":"1","text":"x","year":2020,"share":1,"tags":["a"],"code":"7"}\n'
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


@pytest.mark.parametrize("name", ["title", "docid", "a-b", "body"])
def test_names_that_a_filter_cannot_have_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("docid\ttext\tlong\ta-b\n1\tx\ty\tz\n")
    code = "repeated-value" if name == "body" else "invalid-name"
    columns = ["--document-columns", "body=long", "--metadata", name]
    refused("prepare", "files", tmp_path / "a.tsv", *columns, "-o", tmp_path / "a", problem=code, option="metadata")


def test_text_files_have_no_metadata(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a text")
    refused(
        "prepare", "files", tmp_path / "texts", "--metadata", "all", "-o", tmp_path / "a",
        problem="option-does-not-apply", option="metadata",
    )  # fmt: skip


def test_metadata_comes_back_from_a_cluster() -> None:
    rows = [Document(str(n), "", "text", Location("a.tsv", n), ("field", n, None, n > 1)) for n in (1, 2)]
    assert list(documents_of(read_file(lambda: iter(rows)))) == rows
