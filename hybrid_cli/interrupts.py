"""Waiting for input, ended at once by a signal.

A signal that arrives between Python's last check and a blocking system call has no effect until the call ends, and a
handler of a library, such as that of polars, restarts the call. Both are avoided by a wait for the input and for a
pipe into which every signal writes a byte.
"""

from __future__ import annotations

import io
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


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
