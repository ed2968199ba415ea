"""Tables, durations, sizes, progress and notes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command import hybrid, refused
from small_artifacts import write_folder

from hybrid_cli import console
from hybrid_cli.console import Notice
from hybrid_cli.reporting.snippets import snippet


def test_square_brackets_in_a_cell_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    console.table(["name", "command"], [["extra", "pip install 'hybrid_cli[bench]'"]])
    assert "'hybrid_cli[bench]'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "words"), [(4.21, "4.2s"), (96, "1m 36s"), (59.94, "59.9s"), (3600, "1h 00m"), (7500, "2h 05m")]
)
def test_durations_have_at_most_two_units(seconds: float, words: str) -> None:
    assert console.duration(seconds) == words


def test_progress_of_a_resumed_step_counts_the_work_of_this_call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "WORTH_A_LINE_SECONDS", -1)
    monkeypatch.setattr(console, "HEARTBEAT_SECONDS", -1)
    with console.progress("train", 10, "steps", done=6) as advance:
        advance(2)
        advance(2)
    first, last = capsys.readouterr().err.splitlines()
    assert (first[:16], first[-5:], last[:16]) == ("train: 2 steps i", ", 80%", "train: 4 steps i")


def test_progress_of_a_short_step_is_not_printed_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress("count", 3, "items") as advance:
        for _ in range(3):
            advance(1)
    assert capsys.readouterr().err == ""


def test_messages_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    console.note("read \x1b[2Ja\x07.jsonl\nand more")
    console.warn("\x1b]0;title\x07b.jsonl", code="x")
    assert capsys.readouterr().err == (
        "read \\u001b[2Ja\\u0007.jsonl\nand more\nwarning: \\u001b]0;title\\u0007b.jsonl\n"
    )


def test_quiet_silences_notes_but_not_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    console.set_quiet(True)
    try:
        console.note("a note")
        console.warn("look at this", code="x")
    finally:
        console.set_quiet(False)
    assert capsys.readouterr().err == "warning: look at this\n"


def test_notices_are_heard_with_their_codes_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    console.set_quiet(True)
    try:
        with console.heard() as outer:
            console.note("first", code="started", count=1)
            with console.heard() as inner:
                console.warn("second", code="truncated-documents", path=Path("a"))
    finally:
        console.set_quiet(False)
    console.note("third")
    assert outer == [Notice("note", "first", "started", {"count": 1}), *inner]
    assert inner == [Notice("warning", "second", "truncated-documents", {"path": Path("a")})]
    assert capsys.readouterr().err == "warning: second\nthird\n"


def test_the_last_unit_has_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("hybrid_cli.console.time.monotonic", lambda: now[0])
    with console.progress("train", 10, "steps") as advance:
        for seconds, steps in ((31.0, 9), (62.0, 1)):
            now[0] = seconds
            advance(steps)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["train: 9 steps in 31.0s (0.3/s), 90%", "train: 10 steps in 1m 02s (0.2/s)"]


def test_details_are_printed_and_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = hybrid("inspect", "absent", "--log-file", "run.log")
    assert plain.code == 2
    assert "paths = " not in plain.err
    verbose = hybrid("inspect", "absent", "-v", "--log-file", "run.log")
    assert "inspect: paths = ['absent']" in verbose.err
    assert "inspect: form = text (default)" in verbose.err
    lines = (tmp_path / "run.log").read_text("utf-8").splitlines()
    assert sum("detail inspect: form = text (default)" in line for line in lines) == 2
    errors = [line.split(" error ", 1)[1] for line in lines if " error " in line]
    assert errors == [plain.err.removeprefix("hybrid: ").strip()] * 2
    done = hybrid("doctor", "-v")
    assert re.search(r"^done in [0-9.]+s, peak memory [0-9.]+ .B$", done.err, re.MULTILINE)


def test_a_log_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "no" / "run.log"
    done = hybrid("doctor", "--log-file", log)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.is_problem("not-writable", option="log_file", path=log)
    assert hybrid("doctor", "-q", "-v").is_problem("conflicting-options", option="quiet")


def test_messages_are_appended_to_logs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("note.txt").write_text("mine\n")
    Path("settings.yaml").write_text("log-file: [a, b]\n")
    refused("doctor", "--log-file", "note.txt", problem="foreign-file", option="log_file", path="note.txt")
    write_folder(Path("index"))
    refused("doctor", "--log-file", "index/run.log", problem="inside-artifact", path="index/run.log", artifact="index")
    refused("doctor", "--log-file", "", problem="missing-value", option="log_file")
    refused("doctor", "--config", "settings.yaml", problem="missing-value", option="log_file")
    command = ("fuse", "a.run", "b.run", "--overwrite", "--output", "./out.parquet", "--log-file", "out.parquet")
    refused(*command, problem="replaces-input", option="log_file", path="out.parquet")


def test_a_snippet_starts_near_the_words_of_the_query() -> None:
    text = "Salt. " + "Nothing of interest is here. " * 20 + "Sea water holds salt. " + "The end. " * 20
    shown = snippet(text, "salt in sea water", 100)
    assert "Sea water holds salt." in shown
    assert shown.startswith("... ")
    assert shown.endswith(" ...")
    assert len(shown) <= 110
    assert snippet("short\n text", "absent") == "short text"
    assert snippet("x" * 500, "absent", 100) == "x" * 100 + " ..."
