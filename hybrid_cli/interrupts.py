"""Signals: they end a command with one line and without scratch files, and a wait for input at once.

SIGTERM and SIGHUP stop a command like Ctrl-C. A signal that arrives between Python's last check and a blocking system
call has no effect until the call ends, and a handler of a library, such as that of polars, restarts the call. Both are
avoided by a wait for the input and for a pipe into which every signal writes a byte.
"""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from hybrid_cli.errors import HybridError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

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


@contextmanager
def waiting() -> Iterator[Callable[[int], None]]:
    """Yield a function that waits until a descriptor can be read; the handlers of signals run meanwhile.

    Only the main thread receives signals; in another one, the function returns without waiting.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda descriptor: None
        return
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def wait(descriptor: int) -> None:
        while True:
            ready = select.select([descriptor, reading], [], [])[0]
            if reading in ready:
                os.read(reading, 64)
            if descriptor in ready:
                return

    try:
        yield wait
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)


class _Interruptible(io.FileIO):
    """A file whose reads wait for input so that a signal ends the wait."""

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        """Read into a buffer."""
        with waiting() as wait:
            wait(self.fileno())
        return super().readinto(buffer)


def interruptible(stream: TextIO) -> TextIO:
    """Return a stream of the same descriptor whose reads end at a signal.

    The stream itself is returned if it has no descriptor.

    Args:
        stream: a stream from which nothing was read, or a terminal.
    """
    if type(stream) is not io.TextIOWrapper:
        return stream
    raw = getattr(stream.buffer, "raw", None)
    if type(raw) is not io.FileIO:
        return stream
    reader = io.BufferedReader(_Interruptible(raw.fileno(), closefd=False))
    return io.TextIOWrapper(reader, stream.encoding, stream.errors)
