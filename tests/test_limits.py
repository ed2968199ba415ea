"""Bounds on the time and memory that a file of anyone may take: lines, columns, expansion, patterns; `--limits`."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from command import hybrid, raises, ran, refused

from hybrid_cli.errors import InputError
from hybrid_cli.evaluation import accuracy
from hybrid_cli.inputs import files as input_files

LONG, MANY = "word " * 1000, 50
WIDE = [f"c{number}" for number in range(MANY)]
LINES: dict[str, tuple[str, str]] = {  # file -> content with a long line, and command that reads it
    "a.tsv": (f"d1\tshort\nd2\t{LONG}\n", "prepare files {} --output c"),
    "b.tsv": (f"d1\t{LONG}", "prepare files {} --output c"),
    "a.csv": (f'id,text\nd1,"{LONG[:2000]}\n{LONG[2000:]}"\n', "prepare files {} --output c"),
    "a.jsonl": (json.dumps({"id": "d1", "text": LONG}) + "\n", "prepare files {} --output c"),
    "a.json": (json.dumps([{"id": "d1", "text": LONG * 1000}]), "prepare files {} --output c"),
    "b.json": (json.dumps({"id": "d1", "text": LONG * 1000}, indent=1), "prepare files {} --output c"),
    "a.trec": (f"<DOC>\n<DOCNO>d1</DOCNO>\n<TEXT>\n{LONG}\n</TEXT>\n</DOC>\n", "prepare trec {} --output c"),
    "a.run": (f"q1 Q0 d1 1 1.0 {'x' * 5_000_000}\n", "evaluate --qrels good.tsv {}"),
    "a.qrels": (f"q1 0 {'x' * 4000} 1\n", "evaluate --qrels {} good.run"),
}
COLUMNS: dict[str, str] = {
    "wide.tsv": "\t".join(["id", "text", *WIDE]) + "\n" + "\t".join(["x"] * (MANY + 2)) + "\n",
    "wide.csv": ",".join(["id", "text", *WIDE]) + "\n" + ",".join(["x"] * (MANY + 2)) + "\n",
    "wide.jsonl": json.dumps({"id": "1", "text": "x"} | dict.fromkeys(WIDE, "x")) + "\n",
    "wide.json": json.dumps([{"id": "1", "text": "x"} | dict.fromkeys(WIDE, "x")]),
}
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: bytes(pa.compress(data, codec="zstd", asbytes=True)),
}


@pytest.fixture(autouse=True)
def here(workdir: Path) -> Path:
    Path("good.run").write_text("q1 Q0 d1 1 1.0 t\n")
    Path("good.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    return workdir


@pytest.mark.parametrize("name", LINES)
def test_a_line_over_the_limit_is_refused_and_one_below_is_read(name: str) -> None:
    content, command = LINES[name]
    Path(name).write_text(content)
    words = command.format(name).split()
    done = hybrid(*words, "--limits", "line=3000")
    assert (done.code, done.problem, str(done.fields["path"])) == (2, "line-too-long", name)
    assert done.fields["limit"] == 3000
    assert hybrid(*words, "--limits", "line=9000000").problem != "line-too-long"
    assert Path("c").exists() == command.startswith("prepare")


def test_an_array_larger_than_a_line_may_be_is_read_in_pieces() -> None:
    rows = [{"id": f"d{number}", "text": "word"} for number in range(500)]
    Path("a.json").write_text(json.dumps(rows))
    Path("b.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    Path("c.json").write_text("".join(f"{json.dumps(row, indent=1)}\n" for row in rows))
    for name in ("a.json", "b.json", "c.json"):
        done = ran("prepare", "files", name, "--limits", "line=3000", "--output", f"of-{name}")
        assert done.says("written", path=f"of-{name}", documents=500)
        ran("inspect", name)


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_over_the_limit_are_refused(name: str) -> None:
    Path(name).write_text(COLUMNS[name])
    words = ["prepare", "files", name, "--output", "c"]
    done = refused(*words, "--limits", "columns=20", problem="too-many-columns")
    assert (str(done.fields["path"]), done.fields["limit"]) == (name, 20)
    ran(*words, "--limits", "columns=100")


@pytest.mark.parametrize("form", PACKED)
def test_a_content_much_larger_than_its_file_is_refused_early(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "FREE", 1 << 16)
    content = b"d1\tword\n" * (1 << 18)
    Path("a.tsv.packed").write_bytes(PACKED[form](content))
    done = refused("prepare", "files", "a.tsv.packed", "--output", "c", problem="expands-too-much")
    assert done.fields["limit"] == 100
    with input_files.change_limits({"expansion": 1 << 20}), input_files.open_binary(Path("a.tsv.packed")) as file:
        assert file.read() == content


def test_a_bomb_before_other_data_is_refused_before_the_other_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "FREE", 1 << 16)
    zeros, noise = gzip.compress(b"d1\tword\n" * (1 << 18)), gzip.compress(bytes(range(256)) * 4096, 0)
    Path("a.gz").write_bytes(zeros + noise)
    with raises("expands-too-much"), input_files.open_binary(Path("a.gz")) as file:
        file.read()
    Path("b.gz").write_bytes(noise + gzip.compress(b"word\n" * 20_000))
    with input_files.open_binary(Path("b.gz")) as file:
        assert len(file.read()) == (1 << 20) + 100_000


SLOW = ["(a|a)*(a|aa)+$b", "(a+)+$b", "(?:a?){3000}a{3000}b"]


@pytest.fixture
def judged() -> list[str]:
    """Arguments of `evaluate` with a collection whose answers are a slow pattern."""
    Path("source/qrels").mkdir(parents=True)
    Path("source/corpus.jsonl").write_text(json.dumps({"_id": "d1", "text": "a" * 4000}) + "\n")
    Path("source/queries.jsonl").write_text(json.dumps({"_id": "q1", "text": "x", "answers": [SLOW[0]]}) + "\n")
    Path("source/qrels/test.tsv").write_text(Path("good.tsv").read_text())
    ran("prepare", "beir", "source", "--output", "c")
    return ["evaluate", "c", "--split", "test", "good.run", "-m", "acc@1", "--answer-match"]


def test_a_slow_pattern_of_an_answer_ends_the_evaluation(judged: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "MATCH_SECONDS", 0.1)
    done = refused(*judged, "regex", problem="pattern-too-slow")
    assert (done.fields["value"], done.fields["limit"]) == (SLOW[0], 0.1)
    ran(*judged, "string")


@pytest.mark.parametrize("pattern", SLOW)
def test_every_slow_pattern_is_stopped(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "MATCH_SECONDS", 0.1)
    matches = accuracy.matcher([pattern], "regex")
    with raises("pattern-too-slow"):
        matches("a" * 4000)


@pytest.mark.parametrize(
    ("pattern", "problem"), [("ab" * 200_000, "pattern-too-long"), ("(" * 4000 + "a" + ")" * 4000, "pattern-too-deep")]
)
def test_patterns_that_cannot_be_compiled_in_time_are_refused(pattern: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        accuracy.matcher([pattern], "regex")
    assert (caught.value.code, caught.value.fields["value"]) == (problem, pattern)
    assert len(str(caught.value)) < 300


def test_ordinary_patterns_are_matched_as_before() -> None:
    matches = accuracy.matcher(["15\\d\\d", "(invalid", "  "], "regex")
    assert matches("in 1593")
    assert not matches("(invalid")
    frame = pl.DataFrame({"docid": ["d"], "text": ["Malmö"]})
    assert accuracy.matcher(["malmö"], "regex")(accuracy.passages(frame, "regex")["d"])
