"""Processes of this machine that share the work of a stage: their results, errors and end."""

import os
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command import raises
from processes import Started

from hybrid_cli import cluster
from hybrid_cli.cluster import Workers
from hybrid_cli.errors import HybridError, InputError, option_error

LONG = 600


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))


def children(process: int) -> set[int]:
    found: set[int] = set()
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(FileNotFoundError):  # a thread that has ended
            found |= {int(number) for number in path.read_text().split()}
    return found


def start(fail: str, device: str) -> Any:
    """Return the function of a block in a process: it waits, ends the process, or returns the device and the block."""

    def compute(number: int) -> tuple[str, int]:
        print("a library prints")  # noqa: T201
        if number == 3 and fail == "refuse":
            raise option_error("shard_size", number, "is refused", code="out-of-range")
        if number == 3 and fail == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fail == "wait":
            time.sleep(LONG)
        return device, number

    return compute


def results(fail: str = "") -> list[tuple[str, int]]:
    import test_workers  # by the name that the processes import

    where: Any = partial(test_workers.start, fail)
    return list(cluster.map_blocks(Workers(), where, range(40), devices=["a", "b"]))


def test_results_are_in_the_order_of_the_blocks() -> None:
    done = results()
    assert [number for _, number in done] == list(range(40))
    assert {device for device, _ in done} == {"a", "b"}


@pytest.mark.parametrize(
    ("fail", "code", "kind"), [("refuse", "out-of-range", InputError), ("kill", "worker-ended", HybridError)]
)
def test_the_error_of_a_process_ends_the_others(fail: str, code: str, kind: type[HybridError]) -> None:
    results()  # starts a process of Python's own, which stays
    before = children(os.getpid())
    with raises(code, kind):
        results(fail)
    assert children(os.getpid()) == before


@pytest.mark.heavy
def test_the_processes_end_with_a_killed_stage() -> None:
    stage = Started("import test_workers; test_workers.results('wait')")
    while len(running := children(stage.pid)) < 2 and stage.poll() is None:
        time.sleep(0.01)
    assert len(running) >= 2
    time.sleep(0.5)  # until both wait
    stage.kill()
    stage.wait()
    for _ in range(1000):
        if not any(Path(f"/proc/{number}/stat").exists() for number in running):
            return
        time.sleep(0.01)
    pytest.fail("a process of the stage still runs")
