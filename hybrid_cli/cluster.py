"""Where independent blocks of work run: in this process, or on the machines of a Ray cluster.

Results come in the order of the blocks, so the output does not depend on where they ran. Only the calling process
writes files. The machines of a cluster read inputs by the same paths as the calling process (a shared file system).
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import Any, TypeVar

from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.settings.cluster import OnCluster
from hybrid_cli.settings.stage import inputs_on_machine

Item = TypeVar("Item")
Result = TypeVar("Result")

RETRIES = 4  # of a block whose process or machine ended
_SECONDS = 5.0  # until an address counts as unreachable
_LOCAL = "local"
_OFF = ("", "0", "false", "False")
# The start of an HTTP/2 connection, on which gRPC builds, with empty settings (RFC 9113, section 3.4). A server answers
# with its settings: a frame whose header has the type at byte 3.
_SETTINGS, _FRAME_TYPE, _FRAME_BYTES = 4, 3, 9
_HTTP2_START = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_HANDLER_BYTES = 256  # not less than C's `struct sigaction` on any system
_LESS_MEMORY = "use fewer --ray-workers, or machines with more memory"


def ordered(
    settings: OnCluster,
    start: Callable[[], Callable[[Item], Result]],
    items: Iterable[Item],
    gpu: bool = False,
    local: int = 1,
) -> Iterator[Result]:
    """Apply a function to blocks; yield the results in order.

    Args:
        settings: the cluster; without `ray_address`, blocks are computed in this process.
        start: makes the function, once per process; must be picklable for a cluster.
        items: the blocks; at most `ray_workers` are in progress on a cluster, which bounds the memory of this process.
        gpu: each process needs a GPU of its own.
        local: threads of this process, each with a block in progress.

    Raises:
        InputError: no such cluster.
        HybridError: a block failed, or the process that computed it ended repeatedly.
    """
    if settings.ray_address is not None:
        with _connected(settings) as ray:
            yield from _Pool(ray, settings, start, gpu).ordered(items)
    elif local == 1:
        yield from map(start(), items)
    else:
        with ThreadPoolExecutor(local) as pool:
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


class _Worker:
    """A process of the cluster that computes blocks, in the folder of the calling process: paths may be relative."""

    def begin(self, made: tuple[Callable[[], object], Callable[[], Callable[[Any], Any]]], folder: str) -> None:
        """Make the function, such as an opened model."""
        os.chdir(folder)
        bring_inputs, start = made
        bring_inputs()
        self._function = start()

    def compute(self, item: Any) -> Any:
        """Return the result of a block."""
        return self._function(item)


@dataclass(eq=False)
class _Block:
    """A block in progress; `result` has one value when it is computed."""

    item: Any
    ended: int = 0  # processes
    result: list[Any] = field(default_factory=list)


class _Pool:
    """Processes of a cluster (Ray actors), which keep their processors and their GPU until the work is done.

    A process that the cluster has no room for is not waited for while others compute. The block of a process that ended
    goes to another one.
    """

    def __init__(self, ray: Any, settings: OnCluster, start: Callable[[], Callable[[Any], Any]], gpu: bool):
        kind = ray.remote(_Worker).options(
            num_cpus=settings.cores, num_gpus=int(gpu), max_restarts=0, scheduling_strategy="SPREAD"
        )
        self._new, self._begin = kind.remote, (ray.put((inputs_on_machine.get(), start)), os.getcwd())
        self._ray, self._most = ray, settings.ray_workers
        self._idle: list[Any] = []
        self._joining: dict[Any, Any] = {}  # answer of a new process -> process
        self._running: dict[Any, tuple[Any, _Block]] = {}  # answer -> process, block
        self._waiting: deque[_Block] = deque()
        self._failed = _Block(None)  # counts new processes that ended, one after the other

    def ordered(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the results of blocks, in their order."""
        begun: deque[_Block] = deque()
        for item in items:
            done = [self._first(begun)] if len(begun) == self._most else []
            begun.append(_Block(item))
            self._waiting.append(begun[-1])
            self._assign()  # before the caller writes the result
            yield from done
        while begun:
            yield self._first(begun)

    def _first(self, begun: deque[_Block]) -> Any:
        block = begun.popleft()
        while not block.result:
            self._wait()
        return block.result.pop()

    def _assign(self) -> None:
        """Send waiting blocks to idle processes; start processes for the others."""
        while self._waiting and self._idle:
            process, block = self._idle.pop(), self._waiting.popleft()
            self._running[process.compute.remote(block.item)] = process, block
        missing = len(self._waiting) - len(self._joining)
        for _ in range(min(missing, self._most - len(self._running) - len(self._joining))):
            process = self._new()
            self._joining[process.begin.remote(*self._begin)] = process

    def _wait(self) -> None:
        """Wait for an answer of a process, and assign blocks."""
        (answer,), _ = self._ray.wait([*self._running, *self._joining], num_returns=1)
        joins = answer in self._joining
        process, block = (self._joining.pop(answer), self._failed) if joins else self._running.pop(answer)
        try:
            found = _result(self._ray, answer)
        except _Ended as reason:
            block.ended += 1
            if block.ended > RETRIES:
                what = f"a process of the Ray cluster ended {block.ended} times ({reason})"
                raise HybridError(f"{what}; {_LESS_MEMORY}") from None
            if not joins:
                self._waiting.appendleft(block)
        else:
            self._idle.append(process)
            if joins:
                self._failed.ended = 0
            else:
                block.result.append(found)
        self._assign()


@contextmanager
def _connected(settings: OnCluster) -> Iterator[Any]:
    """Connect to a cluster, or start one on this machine; yield the module `ray`."""
    address = settings.ray_address
    if not address:
        raise InputError("--ray-address: is empty; pass HOST:PORT, auto, or local")
    try:
        import ray
    except ModuleNotFoundError:
        raise InputError("--ray-address: needs Ray; run pip install 'hybrid_cli[ray]'") from None
    if ":" in address:
        _check_reachable(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address == _LOCAL:
        options |= {"num_cpus": settings.ray_workers * settings.cores, "include_dashboard": False}
    try:
        with _signal_handlers_kept():
            ray.init(address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(f"--ray-address {address}: {str(error).splitlines()[0]}") from None
    try:
        yield ray
    finally:
        with _signal_handlers_kept():
            ray.shutdown()


@contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Restore the handlers that Ray replaces: of SIGTERM, and of memory faults, by which Java in this process works."""
    libc, terminate = ctypes.CDLL(None), signal.getsignal(signal.SIGTERM)
    handlers = {number: ctypes.create_string_buffer(_HANDLER_BYTES) for number in _FAULTS}
    for number, handler in handlers.items():
        libc.sigaction(number, None, handler)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            libc.sigaction(number, handler, None)
        if signal.getsignal(signal.SIGTERM) != terminate:
            signal.signal(signal.SIGTERM, terminate)


def _check_reachable(address: str) -> None:
    """Refuse an address where no Ray cluster listens; Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    advice = "start a cluster with `ray start --head`, which prints its address"
    try:
        with socket.create_connection((host, int(port)), _SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") not in _OFF:
                return  # an encrypted connection begins in another way
            connection.settimeout(_SECONDS)
            connection.sendall(_HTTP2_START)
            answer = connection.recv(_FRAME_BYTES, socket.MSG_WAITALL)
    except (OSError, ValueError) as error:
        raise InputError(f"--ray-address {address}: cannot connect ({error}); {advice}") from None
    if len(answer) < _FRAME_BYTES or answer[_FRAME_TYPE] != _SETTINGS or not _is_ray(address):
        raise InputError(f"--ray-address {address}: another program than Ray answers; {advice}")


def _is_ray(address: str) -> bool:
    """Test whether a gRPC server is that of a Ray cluster; one that never answers takes half a minute."""
    import ray

    client = getattr(ray._raylet, "GcsClient", None)  # no public function asks an address
    if client is None or address.startswith("ray://"):
        return True
    try:
        with _no_stderr():  # Ray prints a warning of its own
            client(address=address)
    except ray.exceptions.RpcError:
        return False
    return True


@contextmanager
def _no_stderr() -> Iterator[None]:
    """Drop what libraries print on stderr."""
    kept = os.dup(2)
    try:
        with TemporaryFile() as dropped:
            os.dup2(dropped.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _first_sentence(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__).partition(". ")[0]


class _Ended(Exception):
    """A process of the cluster ended."""


def _result(ray: Any, reference: Any) -> Any:
    errors = ray.exceptions
    try:
        return ray.get(reference)
    except errors.RayTaskError as error:
        if isinstance(error.cause, HybridError):
            raise error.cause from None
        if isinstance(error.cause, MemoryError):
            raise HybridError(f"not enough memory in a process of the Ray cluster; {_LESS_MEMORY}") from None
        raise
    except (errors.RayActorError, errors.WorkerCrashedError, errors.OutOfMemoryError, errors.ObjectLostError) as error:
        raise _Ended(_first_sentence(error)) from None
