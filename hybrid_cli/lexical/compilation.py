"""Compilation of loops by numba, whose code is cached for later processes; without a cache where none can be stored."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from functools import cache
from threading import Timer
from typing import Any

import numba
from numba.core.caching import FunctionCache

from hybrid_cli import console

numba.config.SLP_VECTORIZE = 1  # type: ignore[attr-defined] # lanes of `kernels.inner_products`; the order of sums stays


def jit(function: Callable[..., Any], **options: Any) -> Any:
    """Compile on the first call; numba caches a function by the content of its file alone.

    Args:
        function: the loops.
        options: options of `numba.njit`; `no_cpython_wrapper` for loops that only other loops call, because the wrapper
            takes longer to be compiled than they do.
    """
    compiled = numba.njit(**{"nogil": True, "no_cfunc_wrapper": True, **options})(function)
    try:
        compiled._cache = _Cache(function)  # type: ignore[no-untyped-call]
    except RuntimeError:  # numba found no folder
        _warn("its folders are read-only")
    return compiled


def is_compiled(compiled: Any) -> bool:
    """Return whether this process has compiled a function of `jit`, or an earlier one, which stored the code."""
    return bool(getattr(compiled, "overloads", True) or getattr(compiled._cache, "stored", None))


class _Cache(FunctionCache):  # type: ignore[misc]
    """The cache of a function, which stays empty where the disk is full or the folder became read-only."""

    @property
    def stored(self) -> Any:
        """Names of stored code by signature."""
        return self._cache_file._load_index()

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return the stored code of a signature, or None before it is compiled, with a note after a second."""
        stored = super().load_overload(signature, target)  # type: ignore[no-untyped-call]
        if stored is None:
            self._timer = Timer(1, copy_context().run, (_note,))
            self._timer.daemon = True
            self._timer.start()
        return stored

    def save_overload(self, signature: Any, data: Any) -> None:
        """Store the code of a signature."""
        self._timer.cancel()
        try:
            super().save_overload(signature, data)  # type: ignore[no-untyped-call]
        except OSError as error:
            _warn(f"{self.cache_path}: {str(error.strerror or error).lower()}")


@cache
def _note() -> None:
    console.note("compiling loops for this processor: seconds, once after an installation", code="compiling")


@cache
def _warn(reason: str) -> None:
    problem = f"compiled code cannot be stored ({reason}), so every command compiles again; set NUMBA_CACHE_DIR"
    console.warn(problem, code="code-not-stored", reason=reason)
