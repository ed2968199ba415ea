"""A command of hybrid in a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import termios
import time


class Terminal:
    """A `hybrid` process in a terminal of 80 columns and 24 lines."""

    def __init__(self, *words: object):
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            termios.tcsetwinsize(0, (24, 80))
            os.environ["TERM"] = "xterm"
            os.execv(sys.executable, [sys.executable, "-m", "hybrid_cli", *map(str, words)])
        self.received = b""
        self.status: int | None = None

    def read(self, seconds: float = 0.05) -> bool:
        """Read output; return False at the end."""
        if not select.select([self.terminal], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.terminal, 1 << 16)
        except OSError:  # the other side is closed
            return False
        self.received += data
        return bool(data)

    def wait_for(self, text: bytes) -> None:
        """Wait until `text` is received."""
        deadline = time.monotonic() + 120
        while text not in self.received:
            assert self.read(), self.received
            assert time.monotonic() < deadline, self.received

    def press(self, keys: bytes) -> None:
        """Type."""
        os.write(self.terminal, keys)

    def end(self) -> str:
        """Wait for the end of the process; return all output."""
        deadline = time.monotonic() + 120
        while self.read():
            assert time.monotonic() < deadline, self.received
        _, self.status = os.waitpid(self.process, 0)
        os.close(self.terminal)
        return self.received.decode("utf-8", "replace")

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        os.kill(self.process, number)

    def kill(self) -> None:
        """End the process without warning."""
        self.send(signal.SIGKILL)
        self.end()

    @property
    def code(self) -> int | None:
        """Return the exit code, after `end`."""
        return None if self.status is None else os.waitstatus_to_exitcode(self.status)
