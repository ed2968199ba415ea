"""Signals that end a command: SIGTERM and SIGHUP stop it like Ctrl-C, with one line and without scratch files."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from hybrid_cli.errors import HybridError

_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

_REPEATED_AFTER = 0.01  # seconds


class Ended(KeyboardInterrupt):
    """Raised in place of a KeyboardInterrupt by another signal."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class Interrupted(HybridError):
    """A command ended by a signal; Typer would turn a KeyboardInterrupt into an exit without a message."""

    def __init__(self, cause: KeyboardInterrupt, resumes: bool = True):
        number = cause.number if isinstance(cause, Ended) else signal.SIGINT
        word = "interrupted" if number == signal.SIGINT else "terminated"
        super().__init__(f"{word}; run the same command again to resume" if resumes else word, code=word)
        self.exit_code = 128 + number


@contextmanager
def raise_on_signals() -> Iterator[list[Ended]]:
    """Raise `Ended` on SIGTERM and SIGHUP; a signal that the parent process ignores (`nohup`) stays ignored.

    Python discards an exception within a finalizer or a callback of a weak reference: then the signal is sent again.

    Yields:
        The signal that arrived, if any.
    """
    before: dict[int, Any] = {}
    arrived: list[Ended] = []

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second signal does not interrupt the removal of scratch files
        arrived.append(Ended(number))
        raise arrived[0]

    def repeat(lost: Any) -> None:
        if not isinstance(lost.exc_value, KeyboardInterrupt):
            hook(lost)
            return
        number = lost.exc_value.number if isinstance(lost.exc_value, Ended) else signal.SIGINT
        arrived.clear()
        if number in before:
            signal.signal(number, end)
        threading.Timer(_REPEATED_AFTER, os.kill, (os.getpid(), number)).start()

    with suppress(ValueError):  # not the main thread, which alone receives signals
        for number in _ENDING:
            if signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, end)
    hook, sys.unraisablehook = sys.unraisablehook, repeat
    try:
        yield arrived
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)
