"""Keys and lines of standard input; signals end the wait for one, and a stage in one line."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import HYBRID, Started

from hybrid_cli import console, interrupts
from hybrid_cli.cli import streams
from hybrid_cli.reporting import judging


def read_key() -> None:
    with judging.keys(lambda: None) as key:
        key()


def read_prepared_line() -> None:
    streams.prepare()
    console.read_line()


@pytest.mark.parametrize(
    ("read", "opened"),
    [
        (read_key, os.openpty),
        (console.read_line, os.openpty),
        (read_prepared_line, os.openpty),
        (read_prepared_line, lambda: os.pipe()[::-1]),
    ],
)
def test_a_signal_that_does_not_interrupt_the_system_call_ends_the_wait(
    read: Callable[[], object], opened: Callable[[], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it arrives just before the system call, or is handled by another thread."""
    sending, receiving = opened()
    ended = threading.Event()
    pressed = []

    def receive() -> None:
        time.sleep(0.3)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        if not ended.wait(10):
            pressed.append(os.write(sending, b"q\n"))

    def wait() -> None:
        with interrupts.raise_on_signals():
            thread.start()
            read()

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", os.fdopen(receiving))
        thread = threading.Thread(target=receive)
        with pytest.raises(interrupts.Ended):
            wait()
        ended.set()
        thread.join()
    assert not pressed, "only a key ended the wait"
    os.close(sending)


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGTERM, interrupts.Ended), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_within_a_finalizer_ends_the_command(
    number: signal.Signals, raised: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    """Python discards the exception there, and prints it."""

    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(number)

    def finalize() -> None:
        with interrupts.raise_on_signals():
            Finalized()
            for _ in range(1000):
                time.sleep(0.01)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
    with pytest.raises(raised):
        finalize()
    signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("prepared", [True, False])
def test_lines_of_a_pipe_are_read_in_order(prepared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    receiving, sending = os.pipe()
    with monkeypatch.context() as patch, os.fdopen(receiving) as stream:
        patch.setattr(sys, "stdin", stream)
        if prepared:
            streams.prepare()
        os.write(sending, "först\nsecond\n\n".encode())
        assert [console.read_line() for _ in range(3)] == ["först\n", "second\n", "\n"]
        os.write(sending, b"a line without an end")
        os.close(sending)
        assert [console.read_line(), console.read_line()] == ["a line without an end", ""]


def test_lines_of_a_terminal_are_read_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, other = os.openpty()
    with monkeypatch.context() as patch, os.fdopen(other) as stream:
        patch.setattr(sys, "stdin", stream)
        os.write(terminal, b"first\nsecond\npart\x04 of three\n\x04")
        assert [console.read_line() for _ in range(4)] == ["first\n", "second\n", "part of three\n", ""]
    os.close(terminal)


def test_lines_of_a_file_and_of_another_thread_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines").write_text("one\ntwo\n")
    lines = []
    with monkeypatch.context() as patch, (tmp_path / "lines").open() as stream:
        patch.setattr(sys, "stdin", stream)
        streams.prepare()
        lines.append(console.read_line())
        thread = threading.Thread(target=lambda: lines.append(console.read_line()))
        thread.start()
        thread.join()
    assert lines == ["one\n", "two\n"]


INTERRUPTED = "hybrid: interrupted; run the same command again to resume\n"
TERMINATED = "hybrid: terminated; run the same command again to resume\n"
SIGNALS = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED, signal.SIGHUP: TERMINATED}


@pytest.mark.heavy
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("prepare msmarco corpus.tsv --output out", "corpus"),
        ("index-bm25 collection --output out --threads 1", ".lucene.partial"),  # while Java runs
    ],
)
def test_a_signal_is_one_line_and_leaves_no_output(
    here: Path, command: str, place: str, number: signal.Signals
) -> None:
    Path("corpus.tsv").write_text("".join(f"{row}\tpassage number {row}\n" for row in range(300_000)))
    process = Started(HYBRID, *command.split())
    deadline = time.monotonic() + 120
    while not Path(".out.partial", place).exists():
        assert process.poll() is None, process.wait().stderr
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(number)
    assert process.wait()[::2] == (128 + number, SIGNALS[number])
    assert not Path("out").exists()
    assert command.startswith("index") or not [path for path in Path().iterdir() if path.name.startswith(".")]
