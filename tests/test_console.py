"""What a person sees is what was meant."""

from __future__ import annotations

import pytest

from hybrid_cli import console


def test_brackets_in_a_cell_are_printed_not_obeyed(capsys):
    console.table(["what", "to do"], [["extra", "pip install 'hybrid_cli[bench]'"]])
    assert "'hybrid_cli[bench]'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "words"), [(4.21, "4.2s"), (96, "1m 36s"), (59.94, "59.9s"), (3600, "1h 00m"), (7500, "2h 05m")]
)
def test_durations_are_said_as_people_say_them(seconds, words):
    assert console.duration(seconds) == words


def test_progress_is_silent_where_it_is_short_and_no_terminal(capsys):
    with console.progress("count", 3, "items") as advance:
        for _ in range(3):
            advance(1)
    assert capsys.readouterr().err == ""


def test_quiet_silences_notes_but_not_warnings(capsys):
    console.set_quiet(True)
    try:
        console.note("a note")
        console.warn("look at this")
    finally:
        console.set_quiet(False)
    assert capsys.readouterr().err == "warning: look at this\n"


def test_a_slow_step_does_not_run_at_nothing_a_second(capsys, monkeypatch):
    clock = iter([0.0, 0.0, 30.0, 30.0, 30.0, 30.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    with console.progress("train", 10, "steps") as advance:
        advance(10)
    assert capsys.readouterr().err == "train: 10 steps in 30.0s (0.3/s)\n"
