"""Keys of a terminal: signals end the wait for one."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from hybrid_cli.cli import signals
from hybrid_cli.reporting import keyboard


def test_a_signal_that_does_not_interrupt_the_system_call_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when it arrives just before the system call, or is handled by another thread."""
    terminal, other = os.openpty()
    ended = threading.Event()
    pressed = []

    def receive() -> None:
        time.sleep(0.3)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        if not ended.wait(10):
            pressed.append(os.write(terminal, b"q"))

    def read_key() -> None:
        with signals.raised(), keyboard.keys(lambda: None) as key:
            thread.start()
            key()

    monkeypatch.setattr(sys, "stdin", os.fdopen(other))
    thread = threading.Thread(target=receive)
    with pytest.raises(signals.Ended):
        read_key()
    ended.set()
    thread.join()
    assert not pressed, "only a key ended the wait"
    os.close(terminal)
