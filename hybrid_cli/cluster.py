"""Where independent blocks of work run: in this process, in one per device, or on the machines of a Ray cluster.

Results come in the order of the blocks, so the output does not depend on where they ran. Only the calling process
writes files. The machines of a cluster read inputs by the same paths as the calling process (a shared file system).
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from hybrid_cli import console, plugins
from hybrid_cli.errors import HybridError, InputError, require_packages
from hybrid_cli.threads import ThreadPool

Item = TypeVar("Item")
Result = TypeVar("Result")

RETRIES = 4  # of a block whose process or machine ended; Ray gives it to another one
_SECONDS = 5.0  # until an address counts as unreachable
_LOCAL = "local"
_LESS_MEMORY = "use fewer --ray-workers, or machines with more memory"


# Brings the inputs of the running stage that are in an object store to the machine of another process.
inputs_on_machine: ContextVar[Callable[[], object]] = ContextVar("inputs_on_machine", default=dict)


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Processes that compute blocks.

    Attributes:
        ray_address: address of a Ray cluster, `auto` for that of this machine, or `local` to start one; None computes
            in this process.
        ray_workers: blocks in progress at a time.
    """

    ray_address: str | None = None
    ray_workers: int = 1

    @property
    def cores(self) -> int:
        """Number of cores of a block on a cluster."""
        return 1


def map_blocks(
    where: Workers,
    start: Callable[..., Callable[[Item], Result]],
    items: Iterable[Item],
    gpu: bool = False,
    local: int = 1,
    devices: Sequence[str] = (),
) -> Iterator[Result]:
    """Apply a function to blocks; yield the results in order.

    Args:
        where: the cluster; without `ray_address`, blocks are computed in this process.
        start: makes the function, once per process; must be picklable for another process. With `devices`, its argument
            is the device of the process.
        items: the blocks; at most `ray_workers` are in progress on a cluster, which bounds the memory of this process.
        gpu: each process needs a GPU of its own.
        local: threads of this process, each with a block in progress.
        devices: full names of devices, for one process of this machine each.

    Raises:
        InputError: no such cluster.
        HybridError: a block failed, or the process that computed it ended repeatedly.
    """
    if where.ray_address is not None:
        with _connect(where) as ray:
            gpus = int(gpu)
            needs = {"num_cpus": where.cores, "num_gpus": gpus, "max_retries": RETRIES}
            needs["max_calls"] = gpus  # a process with a GPU ends after its block: a model cannot move to another GPU
            task = ray.remote(**needs, scheduling_strategy="SPREAD")(_compute)
            job = partial(
                task.remote, ray.put((plugins.files(), inputs_on_machine.get(), start)), os.getcwd(), os.urandom(8)
            )
            yield from _in_order(job, partial(_result, ray), items, where.ray_workers)
    elif devices:
        yield from _on_devices(start, items, devices)
    elif local == 1:
        yield from map(start(), items)
    else:
        with ThreadPool(local) as pool:
            function = start()
            yield from _in_order(lambda item: pool.submit(function, item), Future.result, items, local)


def _in_order(
    submit: Callable[[Item], Any], result: Callable[[Any], Result], items: Iterable[Item], at_once: int
) -> Iterator[Result]:
    """Yield the results in the order of the blocks, with `at_once` blocks in progress."""
    running: deque[Any] = deque()
    for item in items:
        done = [result(running.popleft())] if len(running) == at_once else []
        running.append(submit(item))  # before the caller writes the result
        yield from done
    while running:
        yield result(running.popleft())


def _on_devices(
    start: Callable[..., Callable[[Item], Result]], items: Iterable[Item], devices: Sequence[str]
) -> Iterator[Result]:
    """Yield the results of blocks that one process per device computes."""
    context = multiprocessing.get_context("spawn")
    end, stage = context.Pipe(duplex=False)
    names = context.SimpleQueue()
    for device in devices:
        names.put(device)
    pool = ProcessPoolExecutor(len(devices), context, _begin, (names, end))
    made = (plugins.files(), inputs_on_machine.get(), start)
    try:
        compute = partial(_compute, made, os.getcwd(), os.urandom(8))
        yield from _in_order(lambda item: pool.submit(compute, item), Future.result, items, 2 * len(devices))
    except BrokenProcessPool:
        problem = f"a process of {', '.join(devices)} ended; repeat the command to resume; fewer need less memory"
        raise HybridError(problem, code="worker-ended") from None
    finally:
        stage.close()  # which ends the processes
        pool.shutdown(cancel_futures=True)


_devices: list[str] = []  # that of this process, if it is one of several


def _begin(names: Any, end: Connection) -> None:
    """Prepare a process of this machine, which ends when the stage does, or when it closes its end of the pipe."""
    os.dup2(2, 1)  # what libraries print
    console.set_quiet(True)
    threading.Thread(target=_end_with_stage, args=(end,), daemon=True).start()
    _devices.append(names.get())


def _end_with_stage(end: Connection) -> None:
    with suppress(EOFError, OSError):
        end.recv()
    os._exit(1)


_functions: dict[bytes, Callable[[Any], Any]] = {}  # in another process: id of the job -> its function


def _compute(
    made: tuple[list[Path], Callable[[], object], Callable[..., Callable[[Any], Any]]],
    folder: str,
    job: bytes,
    item: Any,
) -> Any:
    """Return the result of a block, in another process, which keeps the function, such as an opened model.

    Args:
        made: plugin files; fetches the inputs; makes the function.
        folder: the folder of the calling process: paths may be relative.
        job: id of the function.
        item: the block.
    """
    if job not in _functions:
        _functions.clear()
        os.chdir(folder)
        plugin_files, fetch_inputs, start = made
        for path in plugin_files:
            plugins.load(path)
        fetch_inputs()
        _functions[job] = start(*_devices)
    return _functions[job](item)


@contextmanager
def _connect(where: Workers) -> Iterator[Any]:
    """Connect to a cluster, or start one on this machine; yield the module `ray`."""
    address, handler, faults = where.ray_address, signal.getsignal(signal.SIGTERM), faulthandler.is_enabled()
    if not address:
        problem = "--ray-address: is empty; pass HOST:PORT, auto, or local"
        raise InputError(problem, code="missing-value", option="ray_address")
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")  # Java in this process works by SIGSEGV
    with require_packages():
        import ray
    if ":" in address:
        _check_reachable(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address == _LOCAL:
        options |= {"num_cpus": where.ray_workers * where.cores, "include_dashboard": False}
    try:
        ray.init(address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        problem = f"--ray-address {address}: {str(error).splitlines()[0]}"
        raise InputError(problem, code="unreachable", option="ray_address", value=address) from None
    if not faults:
        faulthandler.disable()  # Ray enables it, which replaces Java's handlers
    signal.signal(signal.SIGTERM, handler)  # Ray replaces it, here and at the end
    try:
        yield ray
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, handler)


def _check_reachable(address: str) -> None:
    """Refuse an address where nothing listens; Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), _SECONDS).close()
    except (OSError, ValueError) as error:
        problem = (
            f"--ray-address {address}: cannot connect ({error}); start a cluster with `ray start --head`, which prints "
            "its address"
        )
        raise InputError(problem, code="unreachable", option="ray_address", value=address) from None


def _result(ray: Any, reference: Any) -> Any:
    """Wait for a block and return its result."""
    errors = ray.exceptions
    try:
        return ray.get(reference)
    except errors.RayTaskError as error:
        if isinstance(error.cause, HybridError):
            raise error.cause from None
        if isinstance(error.cause, MemoryError):
            problem = f"not enough memory in a process of the Ray cluster; {_LESS_MEMORY}"
            raise HybridError(problem, code="no-memory") from None
        raise
    except (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.ObjectLostError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__).partition(". ")[0]
        problem = f"a process of the Ray cluster ended {RETRIES + 1} times ({reason}); {_LESS_MEMORY}"
        raise HybridError(problem, code="worker-ended", count=RETRIES + 1) from None
