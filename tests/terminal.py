"""A command of hybrid in a pseudo-terminal."""

import os
import select
import signal
import termios
import time
from pathlib import Path

from processes import HYBRID, Started


class Terminal:
    """A `hybrid` process in a terminal of 80 columns and 24 lines."""

    def __init__(self, *words: object):
        self.terminal, other = os.openpty()
        termios.tcsetwinsize(other, (24, 80))
        self.process = Started(HYBRID, *words, terminal=os.ttyname(other), TERM="xterm")
        self._other = [other]  # closed with the first output: the process has opened it
        self.received = b""
        self.code: int | None = None  # after `end`

    def read(self, seconds: float = 0.05) -> bool:
        if not select.select([self.terminal], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.terminal, 1 << 16)
        except OSError:  # the other side is closed
            return False
        while self._other:
            os.close(self._other.pop())
        self.received += data
        return bool(data)

    def wait_for(self, text: bytes) -> None:
        self.wait_for_texts(1, text)

    def wait_for_texts(self, count: int, text: bytes) -> None:
        deadline = time.monotonic() + 120
        while self.received.count(text) < count:
            assert self.read(), self.received
            assert time.monotonic() < deadline, self.received

    def wait_until_it_waits(self) -> None:
        """Wait until the process sleeps: CPython loses a signal between readline's prompt and its wait for a key."""
        while Path(f"/proc/{self.process.pid}/stat").read_text("utf-8").rpartition(") ")[2][0] != "S":
            time.sleep(0.01)

    def press(self, keys: bytes) -> None:
        os.write(self.terminal, keys)

    def end(self) -> str:
        deadline = time.monotonic() + 120
        while self.read():
            assert time.monotonic() < deadline, self.received
        self.code = self.process.wait().returncode
        os.close(self.terminal)
        return self.received.decode("utf-8", "replace")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.end()
