"""A forked `hybrid` command whose disk fails, or which is killed, at one operation."""

import ctypes
import errno
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hybrid_cli.cli import main
from hybrid_cli.storage import disk

STDIN = "answers.txt"  # in the working directory
CALLS = ("write", "sync", "rename", "read", "open", "remove")  # in the order of calls.c
LIBRARY = "HYBRID_CALLS"  # environment variable with the path of the compiled calls.c
HALF, REPLACE = 0, -1  # in place of the number of an error


class Faulty(disk.Disk):
    """Counts the operations; kills the process or fails at one of them."""

    def __init__(self, mode: str = "", number: int = 0):
        self.mode, self.number, self.count = mode, number, 0

    def _step(self) -> bool:
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
        if chosen and self.mode in ("kill inside", "short write") and len(data) > 1:
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

    def remove(self, path: Path) -> None:
        chosen = self._step()
        super().remove(path)
        self._after(chosen)


@dataclass(frozen=True)
class Call:
    """One system call on a file below the working directory: number `number` of its kind fails or does half its work.

    Attributes:
        kind: one of `CALLS`.
        number: from 1; 0 counts only.
        effect: number of the error; `HALF`; or `REPLACE`, which swaps two paths before the call.
        paths: the two paths.
    """

    kind: str = "write"
    number: int = 0
    effect: int = errno.EIO
    paths: tuple[str, str] = ("", "")


def compiled(folder: Path) -> Path | None:
    compiler, library = shutil.which("cc"), folder / "calls.so"
    if compiler is None or sys.platform != "linux":
        return None
    source = Path(__file__).with_name("calls.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


@dataclass
class Ended:
    """The end of a process: exit code (negative: signal), stderr, operations on the disk, system calls, seconds."""

    code: int
    lines: list[str]
    operations: int
    seconds: float
    calls: dict[str, int] = field(default_factory=dict)


def run(
    words: list[str],
    device: Faulty | None = None,
    stop: tuple[float, int] | None = None,
    first: Callable[[], object] | None = None,
    call: Call | None = None,
) -> Ended:
    """Run one command in a forked process.

    Args:
        words: the command.
        device: disk of the command.
        stop: seconds until a signal, and its number.
        first: called in the process before the command.
        call: system call that is disturbed.
    """
    device = device or Faulty()
    with tempfile.NamedTemporaryFile() as err, tempfile.NamedTemporaryFile() as count:
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            if first is not None:
                first()
            _command(words, device, call or Call(), err.name, count.name)
        if stop is not None:
            time.sleep(stop[0])
            os.kill(child, stop[1])
        _, status = os.waitpid(child, 0)
        lines = Path(err.name).read_text("utf-8", "replace").splitlines()
        operations, *calls = [int(word) for word in Path(count.name).read_text().split() or ["0"]]
        seconds = time.monotonic() - started
        return Ended(
            os.waitstatus_to_exitcode(status), lines, operations, seconds, dict(zip(CALLS, calls, strict=False))
        )


def _command(words: list[str], device: Faulty, call: Call, err: str, count: str) -> None:
    os.dup2(os.open(STDIN, os.O_RDONLY), 0)
    os.dup2(os.open(err, os.O_WRONLY), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    disk.device = device
    sys.argv = ["hybrid", *words]
    code, library = 70, os.environ.get(LIBRARY)
    if library is not None:
        paths = (str(Path(path).absolute()).encode() for path in call.paths)
        ctypes.CDLL(library).arm(os.getcwd().encode(), CALLS.index(call.kind), call.number, call.effect, *paths)
    try:
        main()
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    finally:
        calls = [] if library is None else [ctypes.CDLL(library).counted(kind) for kind in range(len(CALLS))]
        Path(count).write_text(" ".join(map(str, [device.count, *calls])))
        sys.stderr.flush()
        os._exit(code)


def limit_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def turn_clock_back() -> None:
    """Let the clock of this process go back by an hour whenever it is read."""
    library = os.environ.get(LIBRARY)
    if library is not None:
        ctypes.CDLL(library).turn_back()
        return
    now = time.time()

    def back() -> float:
        nonlocal now
        now -= 3600
        return now

    time.time, time.time_ns = back, lambda: int(1e9 * back())
