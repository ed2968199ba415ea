"""Processes and tasks measured in turns, and ratios as rows of the table of `make bench`."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        task: the measured task.
        peer: the tool of the comparison.
        ratios: time of the peer divided by the time of hybrid, in each round.
        goal: smallest ratio that the project wants, or "".
        script: name of the script.
    """

    task: str
    peer: str
    ratios: Sequence[float]
    goal: str
    script: str

    def __str__(self) -> str:
        least, middle, most = (f"{each(self.ratios):#.3g}" for each in (min, statistics.median, max))
        goal = f"; goal {self.goal}" if self.goal else ""
        return f"{self.task} / {self.peer}: {middle} ({least} to {most}){goal}"


def in_turns(
    tasks: Mapping[str, Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Run each task once to warm up, then all tasks in turn, so that a busy period of the machine affects all.

    Returns:
        Seconds of each task in each round, and the result of its first run.
    """
    results = {name: task() for name, task in tasks.items()}
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            begin = clock()
            task()
            seconds[name].append(clock() - begin)
    return seconds, results


def ratios(peer: Sequence[float], ours: Sequence[float]) -> list[float]:
    """Return the ratio of two tasks in each round."""
    return [a / b for a, b in zip(peer, ours, strict=True)]


class Used(NamedTuple):
    """What a process used, and what it printed."""

    seconds: float
    cpu: float
    gigabytes: float
    output: str


def measured(command: Sequence[str]) -> Used:
    """Run a process; return wall seconds, CPU seconds, peak resident gigabytes and its output."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"failed: {command[:3]}")
    return Used(time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20, output)
