"""Single keys of a terminal, without waiting for Enter."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from hybrid_cli import console, interrupts

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

    def resume(*_: object) -> None:
        tty.setcbreak(terminal, termios.TCSADRAIN)
        redraw()

    before = {number: signal.signal(number, resume) for number in _REDRAW}
    try:
        with interrupts.waiting() as wait:
            tty.setcbreak(terminal, termios.TCSADRAIN)
            yield lambda: _key(terminal, wait)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, saved)
        for number, handler in before.items():
            signal.signal(number, handler)


def _key(terminal: int, wait: Callable[[int], None]) -> str:
    while True:
        wait(terminal)
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
