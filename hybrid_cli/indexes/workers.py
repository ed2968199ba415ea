"""Processes that share the work of a stage, one per device.

A job is JSON on the standard input of a new Python process, which sends messages as JSON lines. It ends when the
stage ends, also when the stage is killed, so that no process writes into a folder that another call resumes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

from hybrid_cli import console, plugins
from hybrid_cli.encoders.models import pick_device
from hybrid_cli.errors import HybridError, InputError, option_error

_ERRORS = {kind.__name__: kind for kind in (HybridError, InputError)}
_PLUGINS = "plugins"  # of a job: files that the process loads
Send = Callable[[str, Any], None]  # name and JSON value of a message


def pick_devices(names: Sequence[str]) -> list[str]:
    """Return the devices of `--devices` by their full names: `0` is `cuda:0`, `all` is all GPUs.

    Raises:
        InputError: no such device, a GPU twice, or devices of several types, whose vectors differ by rounding.
    """
    if "all" in names:
        import torch

        names = [str(number) for number in range(torch.cuda.device_count())]
        if not names:
            raise option_error("devices", "all", "no GPU is visible; pass --device cpu", code="no-gpu")
    devices = [pick_device(f"cuda:{name}" if name.isdecimal() else name) for name in names]
    if len({name.partition(":")[0] for name in devices}) > 1:
        raise option_error("devices", names, "vectors differ between types; use one", code="conflicting-options")
    if repeated := [name for name in set(devices) if name != "cpu" and devices.count(name) > 1]:
        raise option_error("devices", names, f"{repeated[0]} is named twice", code="repeated-value")
    return devices


def run(function: str, jobs: Mapping[str, Mapping[str, Any]], receive: Mapping[str, Callable[[Any], object]]) -> None:
    """Run `function` in one process per job, and wait for all.

    Args:
        function: module and name of a function of a job, which calls `serve`.
        jobs: name of the process for messages -> JSON values.
        receive: name of a message of the processes -> function of its value.

    Raises:
        InputError, HybridError: the error of a process, or a process was killed; the others are stopped.
    """
    module, _, name = function.rpartition(".")
    command = [sys.executable, "-c", f"from {module} import {name}; {name}()"]
    pipe: Any = subprocess.PIPE
    files = [str(path) for path in plugins.files()]
    processes = {label: subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for label in jobs}
    messages: SimpleQueue[tuple[str, list[Any] | None]] = SimpleQueue()
    try:
        for label, process in processes.items():
            threading.Thread(target=_relay, args=(label, process, messages), daemon=True).start()
            assert process.stdin is not None
            process.stdin.write(json.dumps({**jobs[label], _PLUGINS: files}) + "\n")
            process.stdin.flush()  # the pipe stays open: its end ends the process
        running = set(processes)
        while running:
            label, message = messages.get()
            if message is None:
                running.discard(label)
                _check_end(label, processes[label].wait())
            elif message[0] in _ERRORS:
                raise _ERRORS[message[0]](message[1])
            else:
                receive[message[0]](message[1])
    except BrokenPipeError:  # it ended before it read its job
        raise HybridError(
            f"the process of {label} ended at its start; repeat the command", code="worker-ended"
        ) from None
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def _relay(label: str, process: subprocess.Popen[str], messages: SimpleQueue[tuple[str, list[Any] | None]]) -> None:
    """Pass on the messages of a process, then None."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.endswith("\n"):
            messages.put((label, json.loads(line)))
    messages.put((label, None))


def _check_end(label: str, code: int) -> None:
    if code:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed (exit code {code})"
        advice = "; less memory is needed with fewer devices" if code == -signal.SIGKILL else ""
        raise HybridError(f"the process of {label} {how}; repeat the command to resume{advice}", code="worker-ended")


def serve(work: Callable[[dict[str, Any], Send], None]) -> None:
    """Run the job on the standard input in this process, and send its messages and its error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_stage, daemon=True).start()
    console.set_quiet(True)

    def send(name: str, value: Any) -> None:
        out.write(json.dumps([name, value]) + "\n")
        out.flush()

    try:
        for path in job.pop(_PLUGINS):
            plugins.load(path)
        work(job, send)
    except HybridError as error:
        kind = InputError if isinstance(error, InputError) else HybridError
        send(kind.__name__, str(error))


def _end_with_stage() -> None:
    """End this process when the stage closes the pipe; a buffered read would block the end of Python."""
    while os.read(0, 1):
        pass
    os._exit(1)
