"""What starts and ends the process faster, and the environment of libraries; imported first.

CPU seconds of `hybrid search --index RETRIEVER --query TEXT` (BM25 and a six-layer BERT) with and without each trick,
15 runs in alternation on two shared cores, the least and the median; of the second, 8 runs with BM25 alone:

| Trick | with | without |
|---|---|---|
| `keep_pandas_out` | 1.59, 1.85 | 1.74, 2.14 |
| `keep_values_as_typed` | .83, .86 | .94, .99 |
| `gc.set_threshold` | .76 (BM25 alone, the least of 12) | .85 with 50,000 |
| `end` | 1.59, 1.85 | 1.46, 2.27; `hybrid --help`: .35, .46 with, .45, .55 without |
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NoReturn

if sys.platform == "win32":  # it has no advisory locks, no renames of open files, and no signals of terminals
    raise SystemExit("hybrid: does not run on Windows; use the Windows Subsystem for Linux (wsl --install)")

gc.set_threshold(200_000)  # imports make as many objects and no garbage

# Idle OpenMP threads sleep instead of spinning: if other processes use the cores too, a spinning thread takes time from
# the thread that it waits for. OpenMP reads the variable when torch or FAISS loads it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# NumPy's threads always spin, so it gets one: next to other programs, eight queries of a BERT encoder took 700 ms on
# two threads, and 60 on one. PyTorch, FAISS and compiled loops have threads of their own.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def keep_pandas_out() -> None:
    """Let pyarrow look for pandas now, in vain: it would import it to recognize its objects, and hybrid has none.

    Later imports of pandas are not affected.
    """
    import pyarrow as pa

    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)

    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, finder := SimpleNamespace(find_spec=find_spec))  # type: ignore[arg-type]
        try:
            pa.array([])
        finally:
            sys.meta_path.remove(finder)  # type: ignore[arg-type]


def keep_values_as_typed(parameter: Any) -> None:
    """Let Typer pass values on as text, which the settings class converts; its own conversion imports pydantic.

    The callbacks of `--help` and of completion are called.
    """

    def process_value(ctx: Any, value: Any) -> Any:
        if value is None:
            return () if parameter.multiple or parameter.nargs == -1 else None
        return value if parameter.callback is None else type(parameter).process_value(parameter, ctx, value)

    parameter.process_value = process_value


def end(code: object) -> NoReturn:
    """End the process without the teardown of imported modules; functions of `atexit` run before.

    Args:
        code: that of `SystemExit`: an exit code, a message, or None.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
