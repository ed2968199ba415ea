"""prepare files: columns, splits and rows of tables; folders of texts; HTML pages without boilerplate."""

import gzip
import time
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from browsing import chromium
from command import Notices, Refusal, hybrid, raises, ran, refusal, refused
from tiny_collection import AWKWARD_IDS, corpus_of, write_lines

from hybrid_cli.collections import collection
from hybrid_cli.collections.readers.html_pages import Page, decode_page, read_page
from hybrid_cli.commands import PrepareFiles
from hybrid_cli.stages.prepare import prepare


def queries_of(path: Path, split: str) -> list[tuple[str, str]]:
    return collection.read_queries(path / f"queries.{split}.parquet").select("qid", "text").rows()


def qrels_of(path: Path, split: str) -> list[tuple[str, str, int]]:
    return collection.read_qrels(path / f"qrels.{split}.parquet").rows()


def documents_of(path: Path, tmp_path: Path, **options: object) -> list[tuple[str, str, str]]:
    return corpus_of(prepare(PrepareFiles([path], output=tmp_path / "made", **options)))  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", ["tsv", "csv", "parquet", "jsonl", "tsv.gz"])
def test_ids_and_texts_survive_every_format(tmp_path: Path, suffix: str) -> None:
    frame = pl.DataFrame({"docid": AWKWARD_IDS, "title": "a, title", "body": 'some "quoted" text'})
    path = tmp_path / f"docs.{suffix}"
    if suffix == "csv":
        frame.write_csv(path)
    elif suffix == "parquet":
        frame.write_parquet(path)
    elif suffix == "jsonl":
        frame.write_ndjson(path)
    else:
        text = frame.write_csv(separator="\t", quote_style="never").encode()
        path.write_bytes(gzip.compress(text) if suffix == "tsv.gz" else text)
    assert documents_of(path, tmp_path) == [(docid, "a, title", 'some "quoted" text') for docid in AWKWARD_IDS]


def test_columns_are_found_by_name_and_printed(tmp_path: Path) -> None:
    docs = write_lines(tmp_path / "docs.csv", "url,Doc-ID,Text", "http://a,1,one", "http://b,2,two")
    done = ran("prepare", "files", docs, "--output", tmp_path / "made")
    assert done.says("columns", path=docs, columns={"id": "Doc-ID", "text": "Text"}, ignored=["url"])
    assert corpus_of(tmp_path / "made") == [("1", "", "one"), ("2", "", "two")]


@pytest.mark.parametrize(
    ("name", "rows", "options", "expected"),
    [
        ("a.csv", ["url,text,words", "a,not this,this"],
         {"document_columns": {"id": "url", "text": "words", "title": "text"}}, [("a", "not this", "this")]),
        ("a.tsv", ["x\tone\t1", "y\ttwo\t2"],
         {"document_columns": {"id": "3", "text": "2"}}, [("1", "", "one"), ("2", "", "two")]),
        ("a.csv", ["a;b", "c;d"],
         {"document_columns": {"id": "1", "text": "1"}}, [("a;b", "", "a;b"), ("c;d", "", "c;d")]),
        ("a.tsv", ["text\tone", "2\ttwo"], {"header": False}, [("text", "", "one"), ("2", "", "two")]),
        ("a.tsv", ["id\ttext", '1\t"one"'], {}, [("1", "", '"one"')]),
        ("a.tsv", ["id\ttext", '1\t"one"'], {"quoted": True}, [("1", "", "one")]),
    ],
)  # fmt: skip # a file per line
def test_columns_header_and_quotes_are_declared(
    tmp_path: Path, name: str, rows: list[str], options: dict[str, Any], expected: list[tuple[str, str, str]]
) -> None:
    assert documents_of(write_lines(tmp_path / name, *rows), tmp_path, **options) == expected


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (["product_id,product_description", "p1,red shoes for running"], "undecided-header"),
        (["key,stuff", "k1,red shoes"], "undecided-header"),
        (["question_id,answer", "q1,red shoes"], "undecided-header"),
        (["key,stuff"], "undecided-header"),
        (["Produkt,Beschreibung (kurz)", "p1,rote Schuhe", "p2,blaue Schuhe"], "undecided-header"),
        (["商品,説明", "p1,赤い靴"], "undecided-header"),
        (["key,stuff", "1,red shoes", "2,blue shoes"], "no-such-column"),  # a header, above numbers
        (["key,price", "a,7", "b,8.5"], "no-such-column"),
        (["p0,shoes", "p1,red shoes"], None),
        (["shoes,These shoes are red and for running.", "boots,red boots"], None),
        (["a,red shoes", "b,blue shoes"], None),
        (["7,shoes", "8,red shoes"], None),
    ],
)
def test_a_first_row_is_a_header_or_data_or_asked_for(
    rows: list[str], code: str | None, tmp_path: Path, workdir: Path
) -> None:
    path = write_lines(tmp_path / "docs.csv", *rows)
    data = [(docid, "", text) for docid, text in (row.split(",") for row in rows)]
    if code is None:
        assert documents_of(path, tmp_path) == data
        return
    fields: dict[str, Any] = {"option": "header", "line": 1} if code == "undecided-header" else {}
    refused("prepare", "files", path, "--output", workdir / "made", problem=code, path=path, **fields)
    assert documents_of(path, tmp_path, header=False) == data
    first, second = rows[0].split(",")
    if rows[1:]:
        columns = {"id": first, "text": second}
        assert documents_of(path, tmp_path / "named", header=True, document_columns=columns) == data[1:]


def test_a_first_row_of_underscores_is_read_in_linear_time(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "docs.csv", "_" * 40 + "1,salt", "_2,sea")
    began = time.process_time()
    assert len(documents_of(path, tmp_path)) == 2
    assert time.process_time() - began < 0.6


def test_ids_in_parquet_are_whole_numbers_or_texts(tmp_path: Path) -> None:
    path = tmp_path / "docs.parquet"
    pl.DataFrame({"id": [7, 12], "text": ["a", "b"], "title": [None, "t"]}).write_parquet(path)
    assert documents_of(path, tmp_path) == [("7", "", "a"), ("12", "t", "b")]
    for ids, problem in ((["1", None], refusal("missing-value", row=2)), ([1.0, 2.0], refusal("not-a-text", row=1))):
        pl.DataFrame({"id": ids, "text": ["a", "b"]}).write_parquet(path)
        with raises(problem, column="id"):
            prepare(PrepareFiles([path], output=tmp_path / "other"))


def test_further_files_are_documents_unless_they_follow_another_option(tmp_path: Path) -> None:
    """The shell makes `--queries queries.*.tsv` one value of the option and further documents."""
    docs, *files = [write_lines(tmp_path / f"queries.{number}.tsv", f"{number}\tone") for number in range(3)]
    assert [row[0] for row in corpus_of(prepare(PrepareFiles([docs, *files], output=tmp_path / "all")))] == [*"012"]
    done = hybrid("prepare", "files", docs, "--queries", *files, "--output", tmp_path / "made")
    assert (done.code, done.fields["option"], (tmp_path / "made").exists()) == (2, "queries", False)


def test_a_quoted_field_may_contain_line_ends_and_empty_lines(tmp_path: Path) -> None:
    docs = write_lines(tmp_path / "docs.csv", "id,text", '1,"one\n\nstill ""one"""', "2,two")
    assert documents_of(docs, tmp_path) == [("1", "", 'one\n\nstill "one"'), ("2", "", "two")]


def test_columns_of_json_lines_are_those_of_all_lines(tmp_path: Path) -> None:
    """Known by their usual name, or named; only a column that every line has is chosen for ids and texts."""
    first, second = '{"id": "1", "abstract": "one"}', '{"id": "2", "title": "Two", "abstract": "two", "docid": "d2"}'
    docs = write_lines(tmp_path / "docs.jsonl", first, second.replace("}", ', "text": "2", "words": "w"}'))
    done = hybrid("prepare", "files", docs, "--output", tmp_path / "made")
    assert done.says("columns", path=docs, columns={"id": "id", "title": "title", "text": "abstract"})
    assert corpus_of(tmp_path / "made") == [("1", "", "one"), ("2", "Two", "two")]
    named = PrepareFiles([docs], document_columns={"title": "words", "more": "title"}, output=tmp_path / "named")
    assert corpus_of(prepare(named)) == [("1", "", "one"), ("2", "w", "two")]
    queries = write_lines(tmp_path / "q.jsonl", '{"id": "a", "text": "x"}', '{"id": "b", "text": "y", "answer": "z"}')
    made = prepare(PrepareFiles([docs], queries=[str(queries)], output=tmp_path / "asked"))
    assert collection.read_queries(made / "queries.test.parquet")["answers"].to_list() == [None, ["z"]]


@pytest.mark.parametrize(
    ("name", "rows", "problem"),
    [
        ("docs.csv", ["id,text", "1,one", "2,two,three"], refusal("other-width", line=3, found=3, expected=2)),
        ("docs.csv", ["id,text", '1,"one', "2,two"], refusal("not-csv", line=2)),
        ("docs.csv", ["id,text", ",one"], refusal("missing-value", line=2, column="id")),
        ("docs.csv", ["id,id,text", "1,1,one"], refusal("repeated-column", column="id")),
        ("docs.csv", ["id,words", "1,one"], refusal("no-such-column", field="text")),
        ("docs.csv", ["id;title;text", "1;A;a, b"], refusal("other-separator", path="docs.csv")),
        ("docs.csv", [], "no-rows"),
        ("docs.jsonl", ['{"id": "1", "text": "a"}', '{"id": "2"}'], refusal("missing-value", line=2, column="text")),
    ],
)
def test_wrong_rows_name_their_line(tmp_path: Path, name: str, rows: list[str], problem: str | Refusal) -> None:
    with raises(problem):
        documents_of(write_lines(tmp_path / name, *rows), tmp_path)


def test_a_folder_of_text_files_has_a_document_for_each(tmp_path: Path, notices: Notices) -> None:
    files = {
        "b.md": "\ufeff\r\n# Salt\r\n\r\nIt is in the sea.\r\n",
        "a/tides.rst": "Two tides\n=========\n\nA day has two.\n",
        "a/moon landing.TXT": "First people\non the moon.",
        "empty.txt": "",
        "a/.hidden.md": "no",
        ".git/x.md": "no",
        "figure.png": "no",
    }
    for name, text in files.items():
        (tmp_path / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / name).write_bytes(text.encode())
    data = prepare(PrepareFiles([tmp_path / "docs"], output=tmp_path / "data"))
    assert corpus_of(data) == [
        ("a/moon landing.TXT", "", "First people\non the moon."),
        ("a/tides.rst", "Two tides", "A day has two."),
        ("b.md", "Salt", "It is in the sea."),
        ("empty.txt", "", ""),
    ]
    assert notices.says("text-files", path="docs", count=4, left_out={".png": 1})
    (tmp_path / "docs" / "b.md").write_text("# Salt\n\nIt is in soup.\n")
    with raises("output-differs"):
        prepare(PrepareFiles([tmp_path / "docs"], output=tmp_path / "data"))


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["a.png"], refusal("no-text-files", path="docs")),
        (["manifest.json", "a.md"], refusal("is-an-artifact", path="docs")),
        (["latin.txt"], refusal("not-utf-8", path="latin.txt")),
    ],
)
def test_a_folder_without_documents_is_refused(tmp_path: Path, names: list[str], problem: str | Refusal) -> None:
    (tmp_path / "docs").mkdir()
    for name in names:
        (tmp_path / "docs" / name).write_bytes("caf\xe9".encode("latin-1" if name == "latin.txt" else "utf-8"))
    with raises(problem):
        prepare(PrepareFiles([tmp_path / "docs"], output=tmp_path / "data"))


def write_docs(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "docs.tsv", *(f"{docid}\ttext {docid}" for docid in "abc"))


def test_one_file_of_queries_and_one_of_judgments_are_the_split_test(tmp_path: Path) -> None:
    queries = write_lines(tmp_path / "queries.csv", "qid,query", '1,"one, two"', "2,three")
    qrels = write_lines(tmp_path / "qrels.txt", "1 0 a 2", "1 0 b 0")
    made = prepare(
        PrepareFiles([write_docs(tmp_path)], queries=[str(queries)], qrels=[str(qrels)], output=tmp_path / "made")
    )
    assert queries_of(made, "test") == [("1", "one, two")]
    assert queries_of(made, "unjudged") == [("2", "three")]
    assert qrels_of(made, "test") == [("1", "a", 2), ("1", "b", 0)]


def test_file_names_name_splits_of_judgments(tmp_path: Path) -> None:
    queries = write_lines(tmp_path / "queries.tsv", "1\tone", "2\ttwo", "3\tthree")
    train = write_lines(tmp_path / "qrels.train.csv", "query-id,corpus-id,score", "1,a,1", "3,a,1")
    dev = write_lines(tmp_path / "qrels-dev.tsv", "2\tb\t1", "3\tc\t1")
    made = prepare(
        PrepareFiles(
            [write_docs(tmp_path)], queries=[str(queries)], qrels=[str(train), str(dev)], output=tmp_path / "made"
        )
    )
    assert queries_of(made, "train") == [("1", "one"), ("3", "three")]
    assert queries_of(made, "dev") == [("2", "two"), ("3", "three")]
    assert qrels_of(made, "dev") == [("2", "b", 1), ("3", "c", 1)]


def test_options_name_splits(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "a.tsv", "1\tone")
    two = write_lines(tmp_path / "test.tsv", "1\tanother one")
    qrels = write_lines(tmp_path / "b.tsv", "1 0 a 1")
    made = prepare(
        PrepareFiles(
            [write_docs(tmp_path)], queries=[f"x={one}", f"y={two}"], qrels=[f"y={qrels}"], output=tmp_path / "made"
        )
    )
    assert queries_of(made, "x") == [("1", "one")]
    assert queries_of(made, "y") == [("1", "another one")]
    assert qrels_of(made, "y") == [("1", "a", 1)]
    docs = [write_docs(tmp_path)]
    for part, queries, judged in (("3", f"dev={one}", str(qrels)), ("4", str(one), f"dev={qrels}")):  # one split: both
        made = prepare(PrepareFiles(docs, queries=[queries], qrels=[judged], output=tmp_path / part))
        assert (queries_of(made, "dev"), qrels_of(made, "dev")) == ([("1", "one")], [("1", "a", 1)])


def test_unnamed_judgments_of_several_splits_are_refused_with_the_option(tmp_path: Path) -> None:
    queries = write_lines(tmp_path / "q.tsv", "1\tone")
    qrels = str(write_lines(tmp_path / "j.tsv", "1 0 a 1"))
    given = [f"dev={queries}", f"train={queries}"]
    with raises("no-such-split", path="j.tsv", split="test"):
        prepare(PrepareFiles([write_docs(tmp_path)], queries=given, qrels=[qrels], output=tmp_path / "made"))
    both = [qrels, f"test={qrels}"]
    with raises("duplicate-split", option="qrels", split="test"):
        prepare(PrepareFiles([write_docs(tmp_path)], queries=[str(queries)], qrels=both, output=tmp_path / "made"))


def test_answers_are_lists_or_texts(tmp_path: Path) -> None:
    queries = write_lines(
        tmp_path / "queries.csv", "id,question,answers", """1,when,"['1912', 'April 1912']\"""", "2,who,Hamlet", "3,x,"
    )
    made = prepare(PrepareFiles([write_docs(tmp_path)], queries=[str(queries)], output=tmp_path / "made"))
    found = collection.read_queries(made / "queries.test.parquet")["answers"].to_list()
    assert found == [["1912", "April 1912"], ["Hamlet"], None]


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
        ("<p>around<main><h2>Moon</h2>far</main>", Page("Moon", "Moon\nfar")),
        (
            "<h1 hidden>no</h1><nav><h2>Menu</h2></nav><h3> </h3><h4>Moon <b>and</b> sea</h4>",
            Page("Moon and sea", "Moon and sea"),
        ),
        ("<svg><title>icon</title></svg><h2>Moon</h2>", Page("Moon", "Moon")),
        ("</div></p><p>x</b></table>y", Page("", "x\ny")),
    ],
)
def test_texts_have_no_boilerplate(content: str, page: Page) -> None:
    assert read_page(content) == page


SHOWN = {  # page -> its words in a browser with scripts
    "a<b>b</b><i> c</i><wbr>d<my-tag>e</my-tag><img>f<span>g</span>": "ab cdefg",
    "a<p>b<p>c<div>d</div>e<br>f<hr>g<ul><li>h<li>i</ul>j": "a b c d e f g h i j",
    "<table><tr><td>a<td>b<tr><th>c</table><dl><dt>d<dd>e</dl>": "a b c d e",
    "a<button>b</button>c<svg><text>d</text></svg>e<select><option>f</select>g": "aceg",
    "a  b\n\tc&nbsp;d&#160;e<pre>f\n  g</pre>": "a b c d e f g",
    "<p hidden>a<p>b<span hidden>c<span>d</span>e</span>f<div HIDDEN=''>g<div>h</div></div>i": "bf i",
    "<p style='color:red; Display : None'>a<div>b</div><i style=display:none>c</i>d": "b d",
    "a<b style='visibility:hidden'>b</b>c": "ac",
    "<li>a<li hidden>b<li>c<table><tr hidden><td>d<tr><td>e</table>": "a c e",
    "<dialog>a</dialog><dialog open>b</dialog>": "b",
    "<p class='hidden none'>a<input type=hidden value=b><i title=' hidden '>c</i><i aria-hidden=true>d</i>": "acd",
    "<script>a</script>b<style>c</style>d<template>e</template>f<noscript>g<p>h</noscript>i<!-- j -->k": "bdfik",
    "<ruby>a<rp>(</rp><rt>b</rt><rp>)</rp></ruby><datalist><option>c</datalist>": "ab",
    "a<iframe>b</iframe><video>c</video>d": "ad",
    "a<b data-x='<i>' title=\"c > d\">e</b><img hidden>f": "aef",
    "a < b <y and z": "a < b",
    "<p>one<script>never closed <p>two": "one",
    "<p>one<!-- never closed <p>two": "one",
    "<p>a</p><!--><p>b</p><!---><p>c</p><!-- > d --!><p>e</p><!----!>f<!----><p>g": "a b c e f g",
    "a<i " + "x='y' " * 150 + "hidden>b</i>c": "ac",
    "a&lt;b&gt; &amp;copy; &eacute;&#x80;&notit; &unknown;": "a<b> &copy; é€¬it; &unknown;",
}


@pytest.mark.parametrize("content", SHOWN)
def test_the_words_of_a_page_are_those_that_a_browser_shows(content: str) -> None:
    assert read_page(content).text.split() == SHOWN[content].split()


DECLARED = {  # bytes of a page -> their text in a browser
    "<p>café €".encode("cp1252"): "café €",
    "<p>café".encode(): "café",
    "<meta charset=ISO-8859-1><p>café €".encode("cp1252"): "café €",
    "<meta charset='latin1'><p>€".encode("cp1252"): "€",
    "<!-- <meta charset=koi8-r> --><meta http-equiv=Content-Type content='text/html; charset=iso-8859-9'><p>ış".encode(
        "cp1254"
    ): "ış",
    "<meta charset=utf-16><p>é".encode(): "é",
    "<meta charset=koi8-r><p>é".encode("utf-8-sig"): "é",
    "<meta charset=utf-8><p>é".encode("utf-16"): "é",
    "<meta charset=gb2312><p>搜狐鎔".encode("gb18030"): "搜狐鎔",
    "<meta charset=shift_jis><p>①表".encode("cp932"): "①表",
    "<meta charset=euc-kr><p>똠방".encode("cp949"): "똠방",
    "<meta charset=big5><p>正體".encode("big5"): "正體",
    "<meta charset=windows-31j><p>①表".encode("cp932"): "①表",
    "<meta charset=x-sjis><p>①表".encode("cp932"): "①表",
    "<meta charset=big5-hkscs><p>正體".encode("big5"): "正體",
    "<meta charset=ks_c_5601-1987><p>똠방".encode("cp949"): "똠방",
    "<meta charset=iso-8859-8-i><p>שלום".encode("iso-8859-8"): "שלום",
    "<meta charset=gb_2312-80><p>搜狐鎔".encode("gb18030"): "搜狐鎔",
    "<meta charset=Macintosh><p>é".encode("mac_roman"): "é",
    "<!--><meta charset=koi8-r><p>привет-->".encode("koi8-r"): "привет-->",
    "<meta charset=tis-620><p>ไทย…".encode("cp874"): "ไทย…",
    "<meta charset=windows-1251><p>привет".encode("cp1251"): "привет",
    b"<meta charset=utf-8><p>caf\xe9s": "caf�s",
    "<meta charset=utf-7><p>é".encode("cp1252"): "é",
}


@pytest.mark.parametrize("content", DECLARED)
def test_a_page_is_decoded_as_by_a_browser(content: bytes) -> None:
    assert read_page(decode_page(content)).text == DECLARED[content]


@pytest.mark.heavy
def test_the_words_of_pages_are_right() -> None:
    """The tables above, in Chromium, which takes a page without a declaration for UTF-8 only in a file."""
    shown = {content.encode(): text for content, text in SHOWN.items()} | DECLARED
    wrong: list[tuple[bytes, list[str]]] = []
    boilerplate = "button, select, textarea, svg, video"
    script = f"document.querySelectorAll('{boilerplate}').forEach(e => e.remove()); document.body.innerText"

    def answer(content: bytes, route: Any) -> None:
        utf8 = content.decode("utf-8", "ignore").encode() == content and b"charset" not in content
        kind = "text/html; charset=utf-8" if utf8 else "text/html"
        policy = {"content-security-policy": "script-src 'none'"}
        route.fulfill(body=content, headers={"content-type": kind, **policy})

    with chromium() as browser:
        page = browser.new_page()
        for content in shown:
            page.unroute_all()
            page.route("**/*", partial(answer, content))
            page.goto("http://page.test/")
            read = page.evaluate(script).split()
            wrong += [] if read == shown[content].split() else [(content, read)]
    assert not wrong


@pytest.mark.parametrize(
    ("text", "title", "left"),
    [
        ('---\ntitle: "Salt: a story"\ntags: [a]\n---\n\n# Heading\n\nText.', "Salt: a story", "# Heading\n\nText."),
        ("---\ndate: 2020-01-01\n---\n# Heading\n\nText.", "Heading", "Text."),
        ("---\ntitle: >-\n  Salt\n  of the sea\n---\nText.", "Salt of the sea", "Text."),
        ("---\ntitle: a: b\n---\nText.", "", "Text."),
        ('---\ntitle: "\\ud800x"\n---\nText.', "\ufffdx", "Text."),
        ("---\ntitle: |\n  Salt\n  sea\n---\nText.", "Salt sea", "Text."),
        ("---\ntitle: ~\n---\n# Heading\n\nText.", "Heading", "Text."),
        ('---\n"title": A\n---\nText.', "A", "Text."),
        ("---\ntitle: [a\n...\nText.", "", "Text."),
        ("---\ntitle: never closed\n\nText.", "", "---\ntitle: never closed\n\nText."),
        ("---\nA text between lines.\n\n---\nText.", "", "---\nA text between lines.\n\n---\nText."),
        ("Before.\n\n```sh\n# no heading\n```\n\n## The *second*\n\nText.", "The *second*", None),
        ("Before.\n\nSalt\n====\n\nText.", "Salt", None),
    ],
)
def test_markdown_has_the_title_of_its_front_matter_or_its_first_heading(
    text: str, title: str, left: str | None, tmp_path: Path
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text(text)
    assert documents_of(tmp_path / "docs", tmp_path) == [("a.md", title, text if left is None else left)]


@pytest.mark.parametrize(
    "piece",
    [
        "<div>",
        "<b hidden>",
        "<a '<b\">",
        "<a \"<a' ",
        "<b id={}>x<p>",
        "<!--",
        "<a ",
        "<title>",
        "<div><table><td></div></td></table>",
        "<![CDATA[",
    ],
)
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
    expected = [("a/salt.html", "Salt & sea"), ("latin.HTM", "Café"), ("note.md", "Note"), ("utf16.html", "")]
    assert [row[:2] for row in made] == expected
    assert made[3][2] == "Größe"
    pages = [docs / "a" / "salt.html", docs / "latin.HTM"]
    assert [row[0] for row in corpus_of(prepare(PrepareFiles(pages, output=tmp_path / "two")))] == [
        "salt.html",
        "latin.HTM",
    ]
    with raises("option-does-not-apply", option="document_columns", path="salt.html"):
        prepare(PrepareFiles(pages, document_columns={"id": "1"}, output=tmp_path / "three"))


def test_files_in_other_encodings_are_refused_or_skipped(tmp_path: Path, notices: Notices) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "good.txt").write_text("good")
    (docs / "latin.txt").write_bytes("café".encode("latin-1"))
    (docs / "page.md").write_bytes("café".encode("latin-1"))
    with raises("not-utf-8", path="latin.txt", option="on_error"):
        prepare(PrepareFiles([docs], output=tmp_path / "data"))
    made = prepare(PrepareFiles([docs], on_error="skip", output=tmp_path / "data"))
    assert corpus_of(made) == [("good.txt", "", "good")]
    assert notices.says(
        "files-skipped", path="docs", count=2, files=["latin.txt", "page.md"], first="latin.txt", reason="not-utf-8"
    )
    (docs / "good.txt").unlink()
    with raises("no-text-files", path="docs"):
        prepare(PrepareFiles([docs], on_error="skip", output=tmp_path / "none"))
    table = tmp_path / "docs.csv"
    table.write_text("id,text\n1,a\n")
    with raises("option-does-not-apply", option="on_error"):
        prepare(PrepareFiles([table], on_error="skip", output=tmp_path / "table"))
