"""Compilation of loops by numba, whose code is cached for later processes; without a cache where none can be stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
from numba.core.caching import FunctionCache

from hybrid_cli import console

# of kernels that only kernels call: without wrappers, whose compilation takes longer than that of the loops
WITHOUT_WRAPPERS = {"no_cpython_wrapper": True}


def jit(function: Callable[..., Any], **options: Any) -> Any:
    """Compile on the first call; numba caches a function by the content of its file alone.

    Args:
        function: the loops.
        options: options of `numba.njit`.
    """
    compiled = numba.njit(nogil=True, no_cfunc_wrapper=True, **options)(function)
    try:
        compiled._cache = _Cache(function)  # type: ignore[no-untyped-call]
    except RuntimeError:  # numba found no folder
        _warn("its folders are read-only")
    return compiled


class _Cache(FunctionCache):  # type: ignore[misc]
    """The cache of a function, which stays empty where the disk is full or the folder became read-only."""

    def save_overload(self, signature: Any, data: Any) -> None:
        """Store the code of a signature."""
        try:
            super().save_overload(signature, data)  # type: ignore[no-untyped-call]
        except OSError as error:
            _warn(f"{self.cache_path}: {str(error.strerror or error).lower()}")


@cache
def _warn(reason: str) -> None:
    problem = f"compiled code cannot be stored ({reason}), so every command compiles again; set NUMBA_CACHE_DIR"
    console.warn(problem, code="code-not-stored", reason=reason)
