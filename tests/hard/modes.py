"""The ways in which an attempt disturbs a command."""

import errno
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cases import Case, clear, exchange
from faults import HALF, REPLACE, Call, Ended, Faulty, limit_files, run, turn_clock_back
from planted import PLANTS, planted

SMALLEST = 1024  # bytes of a limited file; the messages must fit
YEARS = 10 * 365 * 86400  # seconds from the clock to the time stamps of inputs from the future


@dataclass
class Attempt:
    """One disturbed run.

    Attributes:
        case: the command with its undisturbed results.
        words: the command, with --overwrite if there is an older output.
        usual: an undisturbed run of it.
        draw: random numbers of the attempt.
        number: number of the operation or system call; 0 for a random one.
        replaced: the input that is replaced.
        results: contents of the output that are allowed besides the older and the new one.
    """

    case: Case
    words: list[str]
    usual: Ended
    draw: random.Random
    number: int = 0
    replaced: str = ""
    results: list[dict[str, bytes]] = field(default_factory=list)

    def choose_input(self) -> None:
        self.replaced = self.draw.choice(self.case.inputs)
        result = self.case.with_other(self.replaced)
        self.results += [] if result is None else [result]
        clear(self.case.output)

    def place(self, count: int) -> int:
        return self.number or self.draw.randint(1, max(1, count))


def at_operation(attempt: Attempt, mode: str) -> Ended:
    return run(attempt.words, Faulty(mode, attempt.place(attempt.usual.operations)))


def at_moment(attempt: Attempt, number: int) -> Ended:
    return run(attempt.words, stop=(attempt.draw.random() * attempt.usual.seconds, number))


def killed_often(attempt: Attempt) -> Ended:
    """Kill at three random moments or operations, each time in the files that the last kill left."""
    for _ in range(3):
        if attempt.draw.random() < 0.5:
            ended = at_moment(attempt, signal.SIGKILL)
        else:
            ended = at_operation(attempt, attempt.draw.choice(["kill before", "kill inside", "kill after"]))
        if ended.code == 0:
            break
    return ended


def with_limit(attempt: Attempt) -> Ended:
    largest = max(map(len, attempt.case.whole.values()), default=0)
    return run(attempt.words, first=partial(limit_files, attempt.draw.randint(SMALLEST, max(SMALLEST, largest))))


def on_full_disk(attempt: Attempt) -> Ended:
    case = attempt.case
    with _filled(case.output.parent, attempt.draw.randint(0, 2 * sum(map(len, case.whole.values())))):
        return run(attempt.words)


@contextmanager
def _filled(folder: Path, left: int) -> Iterator[None]:
    """Fill the disk of a folder except for some bytes while the block runs."""
    disk_ = os.statvfs(folder)
    filler = folder.parent / "filler"
    try:
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, disk_.f_bavail * disk_.f_frsize - left))
        yield
    finally:
        filler.unlink()


def at_call(attempt: Attempt, kind: str, effect: int) -> Ended:
    return run(attempt.words, call=Call(kind, attempt.place(attempt.usual.calls[kind]), effect))


def with_replaced_input(attempt: Attempt) -> Ended:
    """Replace an input at a random opening of a file: the result is that of one version, or one line."""
    name = attempt.replaced
    before = os.stat(name).st_ino
    try:
        call = Call("open", attempt.place(attempt.usual.calls["open"]), REPLACE, (name, f"other/{name}"))
        return run(attempt.words, call=call)
    finally:
        if os.stat(name).st_ino != before:
            exchange(name)


def with_clock(attempt: Attempt) -> Ended:
    """Let the clock go back at every reading, with inputs from the future."""
    for name in attempt.case.inputs or ["tiny"]:
        for path in [Path(name), *Path(name).rglob("*")]:
            os.utime(path, (os.stat(path).st_atime, os.stat(path).st_ctime + YEARS))
    ended = run(attempt.words, first=turn_clock_back)
    assert ended.code == 0, ended
    return ended


def with_planted_files(attempt: Attempt) -> Ended:
    """Plant files of another user under the names of the scratch files: nothing outside changes, no code is loaded."""
    if attempt.draw.random() < 0.7:
        run(attempt.words, Faulty("kill after", attempt.draw.randint(1, attempt.usual.operations)))
    with planted(attempt.case.output, attempt.draw.choice(list(PLANTS))):
        return run(attempt.words)


DISK = {
    mode: partial(at_operation, mode=mode)
    for mode in ("kill before", "kill inside", "kill after", "no space", "input/output error", "short write")
}
PROCESS: dict[str, Callable[[Attempt], Ended]] = {
    "kill at a moment": partial(at_moment, number=signal.SIGKILL),
    "kills": killed_often,
    "SIGTERM": partial(at_moment, number=signal.SIGTERM),
    "file size limit": with_limit,
    "clock": with_clock,
    "planted files": with_planted_files,
}
_ERRORS = {
    "write fails": ("write", errno.EIO),
    "write is short": ("write", HALF),
    "no space for a write": ("write", errno.ENOSPC),
    "sync fails": ("sync", errno.EIO),
    "rename fails": ("rename", errno.EIO),
    "read fails": ("read", errno.EIO),
    "read is short": ("read", HALF),
    "open fails": ("open", errno.EIO),
    "removal fails": ("remove", errno.EIO),
}
CALLS: dict[str, Callable[[Attempt], Ended]] = {  # need a C compiler
    **{mode: partial(at_call, kind=kind, effect=effect) for mode, (kind, effect) in _ERRORS.items()},
    "input replaced": with_replaced_input,
}
FULL_DISK = "full disk"  # needs a small disk of its own
MODES: dict[str, Callable[[Attempt], Ended]] = {**DISK, **PROCESS, **CALLS, FULL_DISK: on_full_disk}
KINDS = {"input replaced": "open", **{mode: kind for mode, (kind, _) in _ERRORS.items()}}


def places(mode: str, usual: Ended) -> int:
    """Return the number of operations or calls of an undisturbed run that a mode can disturb; 0 for other modes."""
    return usual.operations if mode in DISK else usual.calls.get(KINDS.get(mode, ""), 0)
