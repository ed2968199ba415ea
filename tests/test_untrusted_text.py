"""Ids, titles, texts, queries and names of files that try to control the terminal, in every command that prints."""

import ast
import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import hybrid
from hypothesis import given
from hypothesis import strategies as st
from processes import run
from terminal import Terminal
from tiny_collection import write_lines

from hybrid_cli import console
from hybrid_cli.commands import PrepareBeir
from hybrid_cli.reporting.tables import Table, csv_text, latex, latex_table, markdown, markdown_table
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.stages.search import search

FORBIDDEN = [
    chr(code)
    for start, end in ((0, 0x20), (0x7F, 0xA0), (0x200E, 0x2010), (0x2028, 0x202F), (0x2066, 0x2070), (0x61C, 0x61D))
    for code in range(start, end)
    if chr(code) not in "\t\n"
]
ATTACKS = [
    "\x1b[2J\x1b[41;95mred",
    "\x1b]0;title\x07",
    "\x1b]52;c;aGVsbG8=\x1b\\",
    "\x1b]8;;http://example.org\x1b\\link\x1b]8;;\x1b\\",
    "\x9b2J\x9d0;title\x9c",
    "\u202egnp.exe\u202c",
    "\u2066a\u2069\u2028b\u2029c",
    "a\rb\x08\x7fc\x85d",
]
READABLE = {
    "arabic": "مرحبا بالعالم، هذا نص عربي",
    "hebrew": "שלום עולם, זה טקסט בעברית",
    "thai": "สวัสดีชาวโลก น้ำทะเล",
    "emoji": "family \U0001f468\u200d\U0001f469\u200d\U0001f467 flag \U0001f3f4 heart ❤\ufe0f",
    "combining": "cafe\u0301 na\u0308ive नमस्ते",
    "persian": "می\u200cخواهم",  # noqa: RUF001
}
# What hybrid itself sends to a terminal: styles, an erased line, cursor up, a hidden cursor, the second screen, home.
_OWN = re.compile(r"\x1b\[(?!41;95m)(?:\d*(;\d+)*m|2K|1A|\?25[lh]|\?1049[lh]|H|2J\x1b\[H|H\x1b\[2J)|\r(?=\x1b\[)")
_UNSAFE = re.compile(f"[{re.escape(''.join(FORBIDDEN))}\ud800-\udfff]")


def unsafe_in(text: str) -> list[str]:
    return [repr(found) for found in _UNSAFE.findall(_OWN.sub("", text.replace("\r\n", "\n")))]


@pytest.mark.parametrize("character", FORBIDDEN)
def test_each_unsafe_character_is_escaped_or_removed(character: str) -> None:
    invisible = character in "\u200e\u200f\u061c"
    assert console.plain(f"a{character}b") == ("ab" if invisible else f"a\\u{ord(character):04x}b")
    assert json.loads(console.json_text({"a": character})) == {"a": character}


@pytest.mark.parametrize("script", READABLE)
def test_text_of_every_script_is_printed_as_it_is(script: str) -> None:
    assert console.plain(READABLE[script]) == READABLE[script]
    assert json.loads(console.json_text(READABLE[script])) == READABLE[script]


@given(st.text(st.one_of(st.characters(), st.sampled_from(FORBIDDEN))))
def test_printed_text_is_safe_and_json_keeps_its_value(text: str) -> None:
    for printed in (console.plain(text), console.one_line(text), console.shorten(text), console.escape(text)):
        assert not unsafe_in(printed)
        assert console.plain(printed) == printed
    assert "\n" not in console.one_line(text)
    value = {text: [text]}
    written = console.json_text(value)
    assert not unsafe_in(written)
    assert console.plain(written) == written
    assert json.loads(written) == value


_PIECES = st.sampled_from(["a", "|", "[b]", ":100:", "\n", *FORBIDDEN])


@given(st.lists(st.lists(st.lists(_PIECES).map("".join), min_size=2, max_size=2), max_size=4))
def test_every_function_of_the_console_prints_safe_text(rows: list[list[str]]) -> None:
    text = " ".join(cell for row in rows for cell in row)
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", out)
        patch.setattr("sys.stderr", err)
        patch.setattr(console, "WORTH_A_LINE_SECONDS", -1)
        patch.setattr(console, "MUCH", 0)
        console.warn(text, code="x")
        for printing in (console.note, console.error, console.trace, console.result, console.result_json):
            printing(text)
        console.table([text, "b"], rows, title=text)
        console.stdout().print(text, style="bold")
        console.stdout().print(console.styled(text))
        console.forecast(1, text)
        with console.progress(text, 1, text, lambda: text) as advance:
            advance(1)
    assert not unsafe_in(out.getvalue())
    assert not unsafe_in(err.getvalue())


def test_all_functions_of_the_console_are_known() -> None:
    """A new one needs a place in the tests above."""
    body = ast.parse(Path(console.__file__).read_text("utf-8")).body
    known = """plain escape one_line shorten json_text styled note warn heard error trace detail log forecast
        progress result result_json stdout table quiet set_quiet set_verbose log_to counted duration size
        read_line ask asks"""
    assert {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"} == {*known.split()}


def test_brackets_and_colons_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    console.table(["[red]name", ":heart:"], [["doc:100:3", "[/]"]], title="[bold]")
    console.stdout().print("wiki:100:3 [b]")
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("[red]name", ":heart:", "doc:100:3", "[/]", "[bold]", "wiki:100:3 [b]"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection whose ids, titles, texts and queries contain every attack; its index, and two runs of such names."""
    folder = tmp_path_factory.mktemp("hostile")
    texts = [*ATTACKS, *FORBIDDEN, *READABLE.values()]
    ids = [f"d{number}{text}".replace("\r", "").replace("\0", "") for number, text in enumerate(texts)]
    documents = [
        {"_id": docid, "title": f"title {text}", "text": f"salt water {text} of the sea {text}"}
        for docid, text in zip(ids, texts, strict=True)
    ]
    queries = [
        {"_id": f"q{number}{text}", "text": f"salt {text} water"}
        for number, text in enumerate([*ATTACKS[:-1], *READABLE.values()])
    ]
    source, collection = folder / "source", folder / "collection"
    write_lines(source / "corpus.jsonl", *documents)
    write_lines(source / "queries.jsonl", *queries)
    judged = [f"{query['_id']}\t{docid}\t1" for query, docid in zip(queries, ids, strict=False)]
    write_lines(source / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore", *judged)
    prepare(PrepareBeir(source, output=collection))
    index = index_bm25(collection, output=folder / f"index{ATTACKS[5]}")
    run = search(collection, split="test", index=index, hits=20, output=folder / f"@run{ATTACKS[0]}.parquet")
    frame = pl.read_parquet(run, glob=False).filter(pl.col("rank") > 1).with_columns(pl.col("rank") - 1)
    frame.write_parquet(folder / f"+other|run{ATTACKS[4]}.parquet")
    return folder


def printing() -> dict[str, list[object]]:
    """Return commands that print ids, titles, texts, names of files and values, in the folder of `hostile`."""
    (index,), (first, second) = Path().glob("index*"), sorted(Path().glob("*run*.parquet"))
    Path("key.yaml").write_text(f"{json.dumps(''.join(ATTACKS))}: 1\n")
    Path("cut.jsonl").write_text(f'{{"id": {json.dumps("".join(ATTACKS))}, "text"\n')
    Path("score.run").write_text(f"q{ATTACKS[5]} Q0 d{ATTACKS[0]} 1 x{ATTACKS[4]} t\n", "utf-8")
    judged = ["--split", "test", "-m", "MRR@10"]
    return {
        "search": ["search", "--index", index, "--query", f"salt {' '.join(ATTACKS)} water", "-k", 200],
        "evaluate": ["evaluate", "collection", first, second, *judged, "--complement", first, second],
        "markdown": ["evaluate", "collection", first, second, *judged, "--format", "markdown"],
        "inspect": ["inspect", "collection/corpus.parquet"],
        "interactive": ["search", "--index", index, "--interactive", "-k", 200],
        "judge": ["judge", "collection", first, second, "--split", "test", "--output", "mine.tsv"],
        "missing": ["inspect", f"no{ATTACKS[1]}\nfile"],
        "config": ["fuse", first, second, "--output", "new.parquet", "--config", "key.yaml"],
        "value": ["search", "--index", index, "--query", "a", "--hits", f"1{ATTACKS[0]}"],
        "documents": ["prepare", "files", "cut.jsonl", "--output", "new"],
        "run": ["evaluate", "collection", "score.run", *judged],
    }


TYPED = {  # in the commands that ask: texts to wait for, and keys
    "interactive": [(b"query> ", b"salt\n"), (READABLE["hebrew"].encode(), b""), (b"query> ", b"\x04")],
    "judge": [*((b"queries judged", b"s") for _ in range(19)), (b"queries judged", b"q")],
}
PIPED, REFUSED = ("markdown", "inspect"), ("missing", "config", "value", "documents", "run")


@pytest.mark.parametrize("name", [*TYPED, "search", "evaluate", *PIPED, *REFUSED])
def test_output_to_a_terminal_is_safe(name: str, hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hostile)
    code = 2 if name in REFUSED else 0
    if name not in (*PIPED, *REFUSED[2:]):
        session = Terminal(*printing()[name])
        waited: list[bytes] = []
        for text, keys in TYPED.get(name, []):
            waited.append(text)
            session.wait_for_texts(waited.count(text), text)
            session.press(keys)
        assert not unsafe_in(session.end())
        assert session.code == code
    lines = "1\n" * 30 if name == "judge" else f"salt\nwater{ATTACKS[4]}{ATTACKS[0]}{ATTACKS[5]}\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    done = hybrid(*printing()[name], "--verbose", "--log-file", "run.log", *(["--debug"] if code else []))
    assert (done.code, "a bug in hybrid" in done.err) == (code, False)
    assert not unsafe_in(done.out + done.err + Path("run.log").read_text("utf-8"))


def test_warnings_and_logs_of_libraries_are_safe() -> None:
    code = (
        "import logging, sys, warnings; from hybrid_cli.cli import streams; streams.prepare(); "
        "warnings.warn(sys.argv[1]); logging.getLogger('library').error('%s', sys.argv[1])"
    )
    done = run(code, "".join(ATTACKS))
    assert (done.returncode, unsafe_in(done.stderr)) == (0, [])
    assert done.stderr.count("red\\u009b") + done.stderr.count("\\u001b]0;title") == 2, done.stderr


def test_cells_that_spreadsheets_take_for_formulas_are_text() -> None:
    formulas = ["=1+2", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1"]
    numbers = ["-0.5", "+3", "1e-3", "-1E+10", ".5", "-.5", "3.", "-inf", "nan"]
    pairs = zip(formulas, numbers, strict=False)
    rows: list[dict[str, Any]] = [{"run": text, "mean": -0.5, "=head": number} for text, number in pairs]
    rows += [{"run": 'plain, "quoted" \u202e', "mean": None, "=head": numbers[-1]}]
    head, *cells = csv.reader(io.StringIO(csv_text(rows)))
    assert head == ["run", "mean", "'=head"]
    assert [row[0] for row in cells[:-1]] == [f"'{console.escape(text)}" for text in formulas]
    assert [row[2] for row in cells] == [*numbers[: len(formulas)], numbers[-1]]
    assert cells[-1][:2] == ['plain, "quoted" \\u202e', ""]
    assert {row[1] for row in cells[:-1]} == {"-0.5"}


@given(st.text(), st.floats(allow_nan=False))
def test_every_value_is_in_one_cell_of_the_csv(text: str, number: float) -> None:
    ((_, _), (first, second)) = csv.reader(io.StringIO(csv_text([{"a": text, "b": number}]), newline=""))
    assert float(second) == number
    assert first.removeprefix("'") == console.escape(text).removeprefix("'")
    assert first[:1] not in ("=", "@", "\t", "\r")


def test_markdown_and_latex_tables_keep_their_columns() -> None:
    name = "a|b `c` [d](http://e) <f> *g* _h_ x_y 100% & $1 #2 {3} ~4 ^5 \\6\nseven"
    table = markdown_table(Table(["run", name], [[name, "1.0"]], bold={(0, 1)})).splitlines()
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in table] == [3, 3, 3]
    assert table[2].endswith(" | **1.0** |")
    assert markdown("x_y -.5 p < 0.05 (a)") == "x_y -.5 p < 0.05 (a)"
    assert markdown(name) == (r"a\|b \`c\` \[d\](http://e) \<f> \*g\* \_h\_ x_y 100% \& \$1 #2 {3} \~4 ^5 \\6 seven")
    assert latex(name) == (
        r"a\textbar{}b \textasciigrave{}c\textasciigrave{} {[}d{]}(http://e) $<$f$>$ *g* \_h\_ x\_y 100\% \& \$1 "
        r"\#2 \{3\} \textasciitilde{}4 \textasciicircum{}5 \textbackslash{}6 seven"
    )
    body = latex_table(Table(["run", "m"], [["[x]", "1"], ["*y", "2"]]))
    assert "\n{[}x{]} & 1" in body
    assert "\n{*}y & 2" in body
