"""Processes that share the work of a stage: their progress, errors and end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from command import raises
from processes import Started

from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.indexes import workers

LONG = 600


@pytest.fixture(autouse=True)
def job_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (["0", "cuda:0"], {"code": "repeated-value", "option": "devices"}),
        (["cpu", "1"], {"code": "conflicting-options", "option": "devices"}),
    ],
)
def test_devices_that_cannot_share_the_work_are_refused(
    monkeypatch: pytest.MonkeyPatch, devices: list[str], message: dict[str, Any]
) -> None:
    monkeypatch.setattr(workers, "pick_device", str)  # every device exists
    assert workers.pick_devices(["0", "1"]) == ["cuda:0", "cuda:1"]
    with raises(**message):
        workers.pick_devices(devices)


def children(process: int) -> set[int]:
    """Return the child processes of a process."""
    found = (path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children"))
    return {int(number) for each in found for number in each.split()}


def test_all_jobs_run_and_report_their_progress() -> None:
    done: list[int] = []
    workers.run("worker_jobs.job", {"a": {"count": 1}, "b": {"count": 2}}, {"done": done.append})
    assert sorted(done) == [1, 2]


def test_the_error_of_a_process_ends_the_others() -> None:
    before = children(os.getpid())
    with pytest.raises(InputError, match=r"^the text of document 7 is missing$"):
        workers.run(
            "worker_jobs.job",
            {"a": {"count": 1, "seconds": LONG}, "b": {"count": 1, "error": "the text of document 7 is missing"}},
            {"done": lambda count: None},
        )
    assert children(os.getpid()) == before


def test_a_killed_process_is_named_and_ends_the_others() -> None:
    before = children(os.getpid())

    def kill(count: int) -> None:
        if count == 2:
            os.kill(max(children(os.getpid()) - before), signal.SIGKILL)

    jobs = {"a": {"count": 1, "seconds": LONG}, "b": {"count": 2, "seconds": LONG}}
    with raises("worker-ended", HybridError):
        workers.run("worker_jobs.job", jobs, {"done": kill})
    assert children(os.getpid()) == before


@pytest.mark.heavy
def test_the_processes_end_with_a_killed_stage() -> None:
    code = "from hybrid_cli.indexes import workers; "
    code += f"workers.run('worker_jobs.job', dict.fromkeys('ab', dict(count=1, seconds={LONG})), dict(done=int))"
    stage = Started(code)
    while len(running := children(stage.pid)) < 2 and stage.poll() is None:
        time.sleep(0.01)
    assert len(running) == 2
    time.sleep(0.5)  # until both wait
    stage.kill()
    stage.wait()
    for _ in range(1000):
        if not any(Path(f"/proc/{number}/stat").exists() for number in running):
            return
        time.sleep(0.01)
    pytest.fail("a process of the stage still runs")
