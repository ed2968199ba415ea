"""A forked `hybrid` command whose disk fails, or which is killed, at one operation."""

from __future__ import annotations

import errno
import io
import os
import resource
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from hybrid_cli.artifacts import disk
from hybrid_cli.cli import main

STDIN = "answers.txt"  # in the working directory


class Faulty(disk.Disk):
    """Counts the operations; kills the process or fails at one of them."""

    def __init__(self, mode: str = "", number: int = 0):
        self.mode, self.number, self.count = mode, number, 0

    def _step(self) -> bool:
        """Count an operation; return whether the process dies after it."""
        self.count += 1
        if self.count != self.number:
            return False
        if self.mode == "kill before":
            os.kill(os.getpid(), signal.SIGKILL)
        code = {"no space": errno.ENOSPC, "input/output error": errno.EIO}.get(self.mode)
        if code is not None:
            raise OSError(code, os.strerror(code))
        return True

    def _after(self, chosen: bool) -> None:
        if chosen and self.mode in ("kill inside", "kill after"):
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, file: io.FileIO, data: memoryview) -> int:
        chosen = self._step()
        if chosen and self.mode == "kill inside":
            data = data[: len(data) // 2]
        done = super().write(file, data)
        self._after(chosen)
        return done

    def write_by_library(self, path: Path) -> None:
        self._after(self._step())

    def rename(self, source: Path, target: Path) -> None:
        chosen = self._step()
        super().rename(source, target)
        self._after(chosen)

    def exchange(self, first: Path, second: Path) -> bool:
        chosen = self._step()
        done = super().exchange(first, second)
        self._after(chosen)
        return done

    def sync(self, descriptor: int) -> None:
        chosen = self._step()
        super().sync(descriptor)
        self._after(chosen)

    def link(self, source: Path, target: Path) -> None:
        chosen = self._step()
        super().link(source, target)
        self._after(chosen)


@dataclass
class Ended:
    """The end of a process: exit code (negative: signal), lines on stderr, operations on the disk, seconds."""

    code: int
    lines: list[str]
    operations: int
    seconds: float


def run(words: list[str], device: Faulty, stop: tuple[float, int] | None = None, limit: int | None = None) -> Ended:
    """Run one command in a forked process; `stop` sends a signal after some seconds, `limit` is the size of a file."""
    with tempfile.NamedTemporaryFile() as err, tempfile.NamedTemporaryFile() as count:
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            _command(words, device, err.name, count.name)
        if stop is not None:
            time.sleep(stop[0])
            os.kill(child, stop[1])
        _, status = os.waitpid(child, 0)
        lines = Path(err.name).read_text("utf-8", "replace").splitlines()
        operations = int(Path(count.name).read_text() or 0)
        return Ended(os.waitstatus_to_exitcode(status), lines, operations, time.monotonic() - started)


def _command(words: list[str], device: Faulty, err: str, count: str) -> None:
    os.dup2(os.open(STDIN, os.O_RDONLY), 0)
    os.dup2(os.open(err, os.O_WRONLY), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    disk.device = device
    sys.argv = ["hybrid", *words]
    code = 70
    try:
        main()
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    finally:
        Path(count).write_text(str(device.count))
        sys.stderr.flush()
        os._exit(code)
