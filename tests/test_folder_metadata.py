"""Metadata of the text files of a folder: place, date, front matter, a table next to it; lists of texts."""

import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import hybrid, raises
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli import BM25, open_index, save
from hybrid_cli.collections import collection
from hybrid_cli.commands.data import PrepareFiles
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare

USERS = """---
title: Users
tags: [admin, accounts]
version: 3
draft: false
nested: {a: 1}
2 words: no
---
How to add users and reset a password."""
FILES = {
    "guides/admin/users.md": USERS,
    "guides/policy.md": "---\r\ntags: accounts\r\nversion: 2.5\r\n---\r\n# Policy\r\nTwelve letters in a password.",
    "notes.txt": "Plain text about a password.",
    "page.html": "<title>Page</title><p>A password on a page.</p>",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return tmp_path / "files"


def rows_of(made: Path) -> dict[str, dict[str, Any]]:
    frame = pl.read_parquet(collection.corpus_path(made))
    return {row.pop("docid"): row for row in frame.drop("title", "text").to_dicts()}


def test_a_file_has_place_date_and_front_matter(folder: Path, tmp_path: Path) -> None:
    made = prepare(PrepareFiles([folder], metadata=["all"], output=tmp_path / "made"))
    rows = rows_of(made)
    users, policy, notes = rows["guides/admin/users.md"], rows["guides/policy.md"], rows["notes.txt"]
    assert users == {
        "folder": "guides/admin",
        "modified": "2023-11-14T22:13:20",
        "tags": ["admin", "accounts"],
        "version": 3.0,
        "draft": False,
    }
    assert (policy["tags"], policy["version"], policy["draft"]) == (["accounts"], 2.5, None)
    assert (notes["folder"], notes["tags"]) == ("", None)
    assert rows["page.html"]["modified"] == users["modified"]
    made = prepare(PrepareFiles([folder], metadata=["folder"], split_passages=3, output=tmp_path / "passages"))
    assert rows_of(made)["guides/admin/users.md#1"] == {"folder": "guides/admin"}


def test_a_table_next_to_the_folder_describes_its_files(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "owners.csv"
    table.write_text(
        "path,owner,year,draft\n./guides/admin/users.md,ann,2021,true\nnotes.txt,bob,2019,\ngone.txt,eve,1,\n"
    )
    made = prepare(PrepareFiles([folder], metadata_file=table, output=tmp_path / "made"))
    rows = rows_of(made)
    assert [rows[name]["year"] for name in ("guides/admin/users.md", "notes.txt", "page.html")] == [2021, 2019, None]
    assert rows["guides/admin/users.md"]["draft"] is True
    index_bm25(made, lucene=False, output=tmp_path / "bm25")
    index = open_index(tmp_path / "bm25")
    for condition, wanted in (
        ("contains(tags, 'accounts')", {"guides/admin/users.md", "guides/policy.md"}),
        ("contains(tags, 'accounts') AND year > 2000", {"guides/admin/users.md"}),
        ("NOT contains(tags, 'admin')", {"guides/policy.md"}),
        ("folder LIKE 'guides%' AND modified >= '2023-01-01'", {"guides/admin/users.md", "guides/policy.md"}),
        ("owner IN ('bob', 'eve')", {"notes.txt"}),
    ):
        assert set(index.search("password", filter=condition)["docid"]) == wanted
    with raises("other-type"):
        index.search("password", filter="tags = 'accounts'")


def test_unusable_tables_are_refused(folder: Path, tmp_path: Path) -> None:
    for content, code in (
        ("owner,year\nann,1\n", "no-such-column"),
        ("path,owner\nother.md,ann\n", "no-such-document"),
        ("path,owner\nnotes.txt,ann\n./notes.txt,bob\n", "duplicate-id"),
        ("", "no-rows"),
    ):
        (tmp_path / "table.csv").write_text(content)
        words = ["prepare", "files", folder, "--metadata-file", tmp_path / "table.csv", "--output", tmp_path / "made"]
        done = hybrid(*words)
        assert done.is_problem(code), (content, done.err, done.fields)
    for more, code in (
        (["--metadata", "owner"], "no-such-column"),
        (["--document-columns", "id=x"], "option-does-not-apply"),
    ):
        assert hybrid("prepare", "files", folder, *more, "--output", tmp_path / "made").is_problem(code)
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "text": "b"}\n')
    words = ["prepare", "files", tmp_path / "rows.jsonl", "--metadata-file", tmp_path / "table.csv"]
    assert hybrid(*words, "--output", tmp_path / "made").is_problem("option-does-not-apply")


LISTS = st.lists(st.one_of(st.none(), st.lists(st.sampled_from("xyz"), max_size=3)), min_size=1, max_size=6)


@given(LISTS)
def test_a_list_is_kept_in_every_form(tags: list[list[str] | None]) -> None:
    documents = [{"docid": str(n), "text": "water", "tags": each} for n, each in enumerate([*tags, ["x"]])]
    hits = BM25().index(documents).search("water", filter="contains(tags, 'x')")
    assert set(hits["docid"]) == {row["docid"] for row in documents if "x" in (row["tags"] or [])}


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_lists_of_rows_are_metadata(tmp_path: Path, form: str) -> None:
    rows = [{"id": "a", "text": "salt", "tags": ["x", "y"]}, {"id": "b", "text": "salt", "tags": []}]
    file = tmp_path / f"rows.{form}"
    if form == "parquet":
        pl.DataFrame(rows).write_parquet(file)
    else:
        file.write_text("\n".join(map(json.dumps, rows)))
    made = prepare(PrepareFiles([file], metadata=["tags"], output=tmp_path / "made"))
    assert rows_of(made) == {"a": {"tags": ["x", "y"]}, "b": {"tags": []}}
    saved = save(BM25().index([{"docid": "a", "text": "salt", "tags": ["x"]}]), tmp_path / "saved")
    assert open_index(saved).search("salt", filter="contains(tags, 'x')")["metadata"].to_list() == [{"tags": ["x"]}]
    index_bm25(made, lucene=False, output=tmp_path / "bm25")
    assert hybrid("export", tmp_path / "bm25", "--format", "opensearch", "--output", tmp_path / "export").code == 0
    assert (
        json.loads((tmp_path / "export/index.json").read_text())["mappings"]["properties"]["tags"]["type"] == "keyword"
    )
    from hybrid_cli.server.live import Live

    (facet,) = Live.open(tmp_path / "bm25").facets
    assert (facet["type"], {each["value"] for each in facet["values"]}) == ("list", {"x", "y"})


def test_office_documents_are_counted_and_the_extra_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybrid_cli.collections.readers.folders.find_spec", lambda name: None)
    (folder / "slides.pptx").write_bytes(b"PK")
    done = hybrid("prepare", "files", folder, "--output", tmp_path / "made")
    assert done.says("text-files", count=4, left_out={".pptx": 1})
    assert "office" in done.err


@pytest.mark.exhaustive
def test_office_documents_are_read(tmp_path: Path) -> None:
    pytest.importorskip("markitdown", reason="not installed: pip install 'hybrid_cli[office]'")
    pptx, openpyxl = pytest.importorskip("pptx"), pytest.importorskip("openpyxl")
    folder = tmp_path / "office"
    folder.mkdir()
    slides = pptx.Presentation()
    slides.slides.add_slide(slides.slide_layouts[0]).shapes.title.text = "Password policy"
    slides.save(folder / "slides.pptx")
    book = openpyxl.Workbook()
    book.active.append(["owner", "ann"])
    book.save(folder / "book.xlsx")
    made = prepare(PrepareFiles([folder], output=tmp_path / "made"))
    texts = {row["docid"]: row for row in pl.read_parquet(collection.corpus_path(made)).to_dicts()}
    assert texts["slides.pptx"]["title"] == "Password policy"
    assert "ann" in texts["book.xlsx"]["text"]
    for name, content in (("bad.pdf", b"%PDF-1.4 nothing"), ("bad.docx", b"PK nothing"), ("bad.xlsx", b"text")):
        (folder / name).write_bytes(content)
        done = hybrid("prepare", "files", folder, "--output", tmp_path / "again")
        assert done.is_problem("not-a-document", path=folder / name), (done.err, done.fields)
        (folder / name).unlink()
