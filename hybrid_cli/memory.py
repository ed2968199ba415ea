"""Memory, disk space and CPU cores that this process may use.

Polars ends the process where an allocation fails, so a stage that holds more than blocks in memory compares its need
with `available` before it starts.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from hybrid_cli.errors import HybridError

_MIB = 1 << 20
CGROUP = Path("/sys/fs/cgroup")
# Messages of PyTorch, FAISS and mmap, and of an import.
_EXHAUSTED = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
    "failed to map segment",
)


def address_limit() -> int | None:
    """Return the limit of the address space (`ulimit -v`) in bytes; None if there is none."""
    if sys.platform != "linux":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def cpu_count() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_allocation_failure(error: BaseException) -> bool:
    """Return whether an error of a library is a failed allocation."""
    named = isinstance(error, OSError | RuntimeError | ImportError)
    return isinstance(error, MemoryError) or (named and any(words in str(error).lower() for words in _EXHAUSTED))


def require(needed: int, purpose: str, remedy: str = "") -> None:
    """Refuse work that needs more memory than is available.

    Args:
        needed: bytes in addition to those in use.
        purpose: subject of the message.
        remedy: option that needs less, for the message.

    Raises:
        HybridError: less is available.
    """
    for free, name, advice in available():
        if free < needed:
            raise HybridError(
                f"not enough memory: {purpose} needs about {format_bytes(needed)} more, and {name} leaves "
                f"{format_bytes(free)}; {advice}{f', or {remedy}' if remedy else ''}",
                code="no-memory",
                needed=needed,
                free=free,
                remedy=remedy,
            )


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
            code="no-space",
            path=folder,
            needed=needed - written,
            free=free,
        )


def available() -> Iterator[tuple[int, str, str]]:
    """Yield bytes that are free, the name of what limits them, and advice; Linux only."""
    if (limit := address_limit()) is not None:
        used = _fields(Path("/proc/self/status")).get("VmSize", 0)
        yield max(limit - used, 0), "the limit of the address space (ulimit -v)", "raise it"
    if free := _fields(Path("/proc/meminfo")).get("MemAvailable"):
        yield free, "the machine", "free memory, or use smaller inputs"
    largest, current = _number(CGROUP / "memory.max"), _number(CGROUP / "memory.current")
    if largest is not None and current is not None:
        cached = _fields(CGROUP / "memory.stat").get("file", 0)
        yield max(largest - current + cached, 0), "the limit of the container (cgroup)", "raise it"


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
