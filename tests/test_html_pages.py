"""HTML pages: titles and texts without boilerplate; hostile markup ends in text, in linear time; encodings."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from command import Notices, raises
from tiny_collection import corpus_of

from hybrid_cli.collections.readers.html_pages import Page, read_page
from hybrid_cli.settings import PrepareFiles
from hybrid_cli.stages.prepare import prepare

PAGE = """<!DOCTYPE html>
<html><head><title>Salt &amp; sea</title><style>p {color: red}</style>
<script>if (a<b) document.write("<p>written</p>")</script></head>
<body><nav><ul><li>Home<li>Next</ul></nav>
<h1>Salt</h1><p>It is in
the <b>se</b>a, a &lt; b, caf&eacute;; <a href="x>y">link</a>.<p>Two<ul><li>one<li>two</ul>
<table><tr><td>a<td>b</table><!-- no > --><footer>Copyright</footer></body></html>"""


@pytest.mark.parametrize(
    ("content", "page"),
    [
        (PAGE, Page("Salt & sea", "Salt\nIt is in the sea, a < b, café; link.\nTwo\none\ntwo\na\nb")),
        ("<h1>Two <i>tides</i></h1>A day has two.", Page("Two tides", "Two tides\nA day has two.")),
        ("<p>around<main><h2>Moon</h2>far</main>", Page("", "Moon\nfar")),
        ("a < b <y and z", Page("", "a < b <y and z")),
        ("<p>one<script>never closed <p>two", Page("", "one never closed\ntwo")),
        ("<p>one<!-- never closed <p>two", Page("", "one<!-- never closed\ntwo")),
        ("</div></p><p>x</b></table>y", Page("", "x\ny")),
    ],
)
def test_texts_have_no_boilerplate(content: str, page: Page) -> None:
    assert read_page(content) == page


@pytest.mark.parametrize(
    "piece",
    [
"<div>",
"<b id={}>x<p>",
"<!--",
"<a ",
"<title>",
"<div><table><td></div></td></table>",
"<![CDATA[",
],
)  # fmt: skip
def test_hostile_pages_are_read_in_linear_time(piece: str) -> None:
    content = "<p>begin</p>" + "".join(piece.format(number) for number in range(20_000))
    began = time.process_time()
    page = read_page(content)
    assert time.process_time() - began < 5  # a parser alone needs minutes
    assert "begin" in page.text


def test_pages_are_documents(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "a").mkdir(parents=True)
    (docs / "a" / "salt.html").write_text(PAGE)
    (docs / "latin.HTM").write_bytes('<meta charset="iso-8859-1"><title>Café</title>'.encode("latin-1"))
    (docs / "utf16.html").write_bytes("<p>Größe".encode("utf-16"))
    (docs / "note.md").write_text("# Note\n\nText.")
    made = corpus_of(prepare(PrepareFiles([docs], output=tmp_path / "data")))
    assert [row[:2] for row in made] == [
        ("a/salt.html", "Salt & sea"), ("latin.HTM", "Café"), ("note.md", "Note"), ("utf16.html", ""),
    ]  # fmt: skip
    assert made[3][2] == "Größe"
    pages = [docs / "a" / "salt.html", docs / "latin.HTM"]
    assert [row[0] for row in corpus_of(prepare(PrepareFiles(pages, output=tmp_path / "two")))] == [
        "salt.html", "latin.HTM",
    ]  # fmt: skip
    with raises("option-does-not-apply", option="document_columns", path="salt.html"):
        prepare(PrepareFiles(pages, document_columns={"id": "1"}, output=tmp_path / "three"))


def test_files_in_other_encodings_are_refused_or_skipped(tmp_path: Path, notices: Notices) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "good.txt").write_text("good")
    (docs / "latin.txt").write_bytes("café".encode("latin-1"))
    (docs / "page.html").write_bytes("<p>café".encode("latin-1"))
    with raises("not-utf-8", path="latin.txt", option="on_error"):
        prepare(PrepareFiles([docs], output=tmp_path / "data"))
    made = prepare(PrepareFiles([docs], on_error="skip", output=tmp_path / "data"))
    assert corpus_of(made) == [("good.txt", "", "good")]
    assert notices.says(
        "files-skipped", path="docs", count=2, files=["latin.txt", "page.html"], first="latin.txt", reason="not-utf-8"
    )
    (docs / "good.txt").unlink()
    with raises("no-text-files", path="docs"):
        prepare(PrepareFiles([docs], on_error="skip", output=tmp_path / "none"))
    table = tmp_path / "docs.csv"
    table.write_text("id,text\n1,a\n")
    with raises("option-does-not-apply", option="on_error"):
        prepare(PrepareFiles([table], on_error="skip", output=tmp_path / "table"))
