"""Processes of Python that have imported the package: forked from a server that does nothing else.

A new Python process needs seconds of CPU time to import PyTorch and transformers; a forked one starts at once. Tests of
the import itself, of limits of memory, and of variables that are read at import start Python with `subprocess`.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import NamedTuple

from hybrid_cli.commands import COMMANDS

HYBRID = "from hybrid_cli.cli import main; main()"
PROGRAM = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


class Ended(NamedTuple):
    """Exit code (negative: signal), stdout and stderr of a process."""

    returncode: int
    stdout: str
    stderr: str


class Started:
    """A process that runs Python code in the current folder.

    Args:
        code: program text.
        arguments: `sys.argv[1:]`.
        terminal: name of a terminal for all streams; otherwise, stdin is empty, and stdout and stderr are files.
        log: file that stdout and stderr share, to read while the process runs.
        environment: changes of the environment.
    """

    def __init__(self, code: str, *arguments: object, terminal: str = "", log: str = "", **environment: str):
        self._log = log
        self._streams = [] if terminal else [log or tempfile.mkstemp()[1] for _ in range(2)]
        words = ["-c", *map(str, arguments)]
        given = (code, words, os.getcwd(), {**os.environ, **environment}, self._streams or [terminal])
        self._process = _context().Process(target=_execute, args=given)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, seconds: float = 600) -> Ended:
        self._process.join(seconds)
        code = self._process.exitcode
        assert code is not None, f"still runs after {seconds} seconds"
        own = [] if self._log else self._streams
        texts = [Path(stream).read_text("utf-8", "replace") for stream in own] or ["", ""]
        for stream in own:
            Path(stream).unlink()
        return Ended(code, *texts)


def run(code: str, *arguments: object, **environment: str) -> Ended:
    """Run Python code in another process, to its end; see `Started`."""
    return Started(code, *arguments, **environment).wait()


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    stages = {kind.command.split()[0].replace("-", "_") for kind in COMMANDS}
    context.set_forkserver_preload([f"hybrid_cli.stages.{name}" for name in sorted(stages)])
    return context


def _execute(code: str, words: list[str], folder: str, environment: Mapping[str, str], streams: list[str]) -> None:
    """Run code in this process, with the streams and signals of a program that a shell has started."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if len(streams) == 1:
        os.login_tty(os.open(streams[0], os.O_RDWR))
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    else:
        for number, path in enumerate(streams, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_APPEND), number)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also if the tests run in the background
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.argv = words
    exec(compile(code, "-c", "exec"), {"__name__": "__main__"})
