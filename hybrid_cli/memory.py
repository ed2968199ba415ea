"""Memory, disk space and CPU cores that this process may use, and settings of libraries that reserve less memory.

Polars ends the process where an allocation fails, so a stage compares its need with `available` before it starts. Under
a budget (`--memory`), stages also choose the sizes of their blocks by `rows_that_fit`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from hybrid_cli.errors import HybridError, InputError

_MIB, _GIB = 1 << 20, 1 << 30
_LOW = 8 * _GIB  # limits below it change the settings of the allocators
CGROUP = Path("/sys/fs/cgroup")
_M_ARENA_MAX = -8  # malloc.h of glibc
_POOLS = ("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")  # OMP: of FAISS and PyTorch
_ALLOCATORS = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # mimalloc reserves 1 GiB at once
    "MALLOC_ARENA_MAX": "1",  # of child processes; glibc reserves 64 MiB per arena
    "_RJEM_MALLOC_CONF": "background_thread:false",  # of polars; it prints an error for each thread it cannot start
}
_TORCH = 1 << 30  # bytes of address space of PyTorch, transformers and a small model
# Messages of PyTorch, FAISS and mmap, and of an import.
_EXHAUSTED = (
    "can't allocate memory", "cannot allocate memory", "not enough memory", "out of memory", "bad_alloc",
    "failed to map segment",
)  # fmt: skip
_PART = 4  # of the free budget; a block and the copies made of it need several parts
_budget: ContextVar[int | None] = ContextVar("budget", default=None)  # of the running stage


@contextmanager
def limit_budget(budget: int | None) -> Iterator[None]:
    """Set the budget of the process in bytes while the block runs; None keeps the present one."""
    token = _budget.set(_budget.get() if budget is None else budget)
    try:
        yield
    finally:
        _budget.reset(token)


def rows_that_fit(row_bytes: int, max_rows: int, min_rows: int = 1) -> int:
    """Return the number of rows of a block: `max_rows` without a budget, else those for a quarter of its rest.

    Args:
        row_bytes: bytes per row, with copies.
        max_rows: maximum, and the number without a budget.
        min_rows: minimum.
    """
    budget = _budget.get()
    return max_rows if budget is None else max(min_rows, min(max_rows, _left(budget) // _PART // row_bytes))


def _left(budget: int) -> int:
    return max(budget - used_bytes(), 0)


def used_bytes() -> int:
    """Return the bytes of memory in use by this process, without pages of files, which the system can drop."""
    fields = _fields(Path("/proc/self/status"))
    if "RssAnon" in fields:
        return fields["RssAnon"] + fields.get("RssShmem", 0)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)


def address_limit() -> int | None:
    """Return the limit of the address space (`ulimit -v`) in bytes; None if there is none."""
    if sys.platform != "linux":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def scarce_addresses() -> int | None:
    """Return the bytes of address space that are left under a low limit; None without one."""
    limit = address_limit()
    if limit is None or limit >= _LOW:
        return None
    return max(limit - _fields(Path("/proc/self/status")).get("VmSize", 0), 0)


def limit_addresses(more: int) -> None:
    """Limit the address space of this process to that in use and `more` bytes, so that larger requests fail (Linux)."""
    if sys.platform != "linux":
        return
    import resource

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = _fields(Path("/proc/self/status")).get("VmSize", 0) + more
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def most_threads() -> int | None:
    """Return the number of threads that a low limit of the address space allows, one per GiB; None without one."""
    limit = address_limit()
    return None if limit is None or limit >= _LOW else max(1, limit // _GIB)


def cpu_count() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def require_threads(threads: int | None) -> None:
    """Refuse more threads than the address space holds: FAISS ends the process where a thread does not start."""
    most = most_threads()
    if threads is not None and most is not None and threads > most:
        raise InputError(
            f"--threads {threads}: `ulimit -v` leaves addresses for {most}; use --threads {most}, or raise the limit",
            code="out-of-range", option="threads", value=threads, maximum=most,
        )  # fmt: skip


def economize(environment: MutableMapping[str, str]) -> None:
    """Under a low limit of the address space, let libraries reserve less, and start fewer threads.

    Variables of the allocators that are set stay. A larger number of threads does not: it ends the process.

    Call it before numpy, pyarrow and polars are imported.
    """
    threads = most_threads()
    if threads is None:
        return
    for name, value in _ALLOCATORS.items():
        environment.setdefault(name, value)
    for name in _POOLS:
        wanted = environment.get(name, "")
        cores = int(wanted) if wanted.isdecimal() and int(wanted) else cpu_count()
        environment[name] = str(min(cores, threads))
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries than glibc lack it or ignore it
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
    sys.addaudithook(_before_import)


def _before_import(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse PyTorch where its libraries do not fit: those that start with less end the process, or never answer."""
    if event == "import" and arguments[0].partition(".")[0] == "torch" and "torch" not in sys.modules:
        require(_TORCH, "PyTorch", mapped=True)


def is_allocation_failure(error: BaseException) -> bool:
    """Return whether an error of a library is a failed allocation."""
    named = isinstance(error, OSError | RuntimeError | ImportError)
    return isinstance(error, MemoryError) or (named and any(words in str(error).lower() for words in _EXHAUSTED))


def require(needed: int, purpose: str, mapped: bool = False, remedy: str = "") -> None:
    """Refuse work that needs more memory than is available.

    Args:
        needed: bytes in addition to those in use.
        purpose: subject of the message.
        mapped: addresses that are mostly not used, such as those of libraries; compare only with `ulimit -v`.
        remedy: option that needs less, for the message.

    Raises:
        HybridError: less is available.
    """
    for free, name, advice in available():
        if free < needed and (not mapped or "ulimit" in name):
            raise HybridError(
                f"not enough memory: {purpose} needs about {format_bytes(needed)} more, and {name} leaves "
                f"{format_bytes(free)}; {advice}{f', or {remedy}' if remedy else ''}",
                code="no-memory", needed=needed, free=free, remedy=remedy,
            )  # fmt: skip


def require_space(needed: int, path: Path, purpose: str, remedy: str = "") -> None:
    """Refuse work that writes more than fits on the disk.

    Args:
        needed: bytes of all files.
        path: file or folder that is written; the files that an interrupted call left there count as written.
        purpose: subject of the message.
        remedy: option that needs less, for the message.

    Raises:
        HybridError: the file system has less space.
    """
    written = sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())
    folder = next(parent for parent in path.absolute().parents if parent.is_dir())
    if (free := shutil.disk_usage(folder).free) < needed - written:
        raise HybridError(
            f"not enough disk space: {purpose} needs about {format_bytes(needed - written)} more, and {folder} has "
            f"{format_bytes(free)}; free space, or name another output{f', or {remedy}' if remedy else ''}",
            code="no-space", path=folder, needed=needed - written, free=free,
        )  # fmt: skip


def available() -> Iterator[tuple[int, str, str]]:
    """Yield bytes that are free, the name of what limits them, and advice; Linux only, except for the budget."""
    if (budget := _budget.get()) is not None:
        yield _left(budget), f"--memory {format_bytes(budget)}", "raise it, or use smaller inputs"
    if (limit := address_limit()) is not None:
        used = _fields(Path("/proc/self/status")).get("VmSize", 0)
        yield max(limit - used, 0), "the limit of the address space (ulimit -v)", "raise it"
    if free := _fields(Path("/proc/meminfo")).get("MemAvailable"):
        yield free, "the machine", "free memory, or use smaller inputs"
    largest, current = _number(CGROUP / "memory.max"), _number(CGROUP / "memory.current")
    if largest is not None and current is not None:
        cached = _fields(CGROUP / "memory.stat").get("file", 0)
        yield max(largest - current + cached, 0), "the limit of the container (cgroup)", "raise it"


def of_machine() -> int | None:
    """Return the bytes of memory of this machine; None where it is not known."""
    return _fields(Path("/proc/meminfo")).get("MemTotal")


def _fields(path: Path) -> dict[str, int]:
    """Return the numbers of lines such as `VmSize: 12 kB` or `file 12`, in bytes; empty without the file."""
    try:
        lines = [line.replace(":", " ").split() for line in path.read_text("utf-8").splitlines()]
    except (OSError, ValueError):
        return {}
    return {
        line[0]: int(line[1]) * (1024 if line[2:] == ["kB"] else 1)
        for line in lines
        if len(line) > 1 and line[1].isdecimal()
    }


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text("utf-8"))
    except (OSError, ValueError):  # no such limit, or `max`
        return None


def format_bytes(size: int) -> str:
    """Format a number of bytes: `600 MiB`, and less than one MiB as `24 KiB`."""
    return f"{size / _MIB:,.0f} MiB" if size >= _MIB or size <= 0 else f"{-(-size // 1024):,} KiB"
