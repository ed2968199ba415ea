"""Single keys of a terminal, without waiting for Enter."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from hybrid_cli import console

END = ""  # end of the input
_ESCAPE, _END_KEYS = 0x1B, b"\x04"
_SEQUENCE_SECONDS = 0.05
_REDRAW = tuple(getattr(signal, name) for name in ("SIGCONT", "SIGWINCH") if hasattr(signal, name))


def is_interactive() -> bool:
    """Return whether keys can be read one by one, and the screen can be drawn."""
    with suppress(ImportError):
        import termios  # noqa: F401

        return console.asks() and sys.stdout.isatty()
    return False


@contextmanager
def keys(redraw: Callable[[], None]) -> Iterator[Callable[[], str]]:
    """Yield a function that waits for a key and returns its ASCII character; `END` at the end of the input.

    Function keys and letters outside of ASCII are ignored. The terminal is restored at the end.

    Args:
        redraw: called when the window changes its size, and when the stopped process continues.
    """
    import termios
    import tty

    terminal = sys.stdin.fileno()
    saved = termios.tcgetattr(terminal)

    def again(*_: object) -> None:
        tty.setcbreak(terminal, termios.TCSADRAIN)
        redraw()

    before = {number: signal.signal(number, again) for number in _REDRAW}
    try:
        with _signals() as arrived:
            tty.setcbreak(terminal, termios.TCSADRAIN)
            yield lambda: _key(terminal, arrived)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, saved)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signals() -> Iterator[int]:
    """Yield a pipe with one byte per signal: one that arrives just before `select` would not end it otherwise."""
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)


def _key(terminal: int, signals: int) -> str:
    while True:
        ready = select.select([terminal, signals], [], [])[0]  # `read` would go on after a library's handler of SIGINT
        if signals in ready:
            os.read(signals, 64)
        if terminal not in ready:
            continue
        try:
            byte = os.read(terminal, 1)
        except OSError:  # the terminal was closed
            return END
        if not byte or byte in _END_KEYS:
            return END
        if byte[0] == _ESCAPE:
            _skip_sequence(terminal)
        elif byte[0] < 0x80:
            return byte.decode()


def _skip_sequence(terminal: int) -> None:
    """Read the rest of an escape sequence: Delete sends `ESC [ 3 ~`, which contains a grade."""

    def following() -> bytes:
        return os.read(terminal, 1) if select.select([terminal], [], [], _SEQUENCE_SECONDS)[0] else b""

    if (byte := following()) == b"O":
        following()
    elif byte == b"[":
        while (byte := following()) and not 0x40 <= byte[0] <= 0x7E:
            pass
