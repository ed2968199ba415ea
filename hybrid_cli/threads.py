"""Threads with the context of the code that starts them: the budget, limits and messages of the running stage."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class ThreadPool(ThreadPoolExecutor):
    """A pool whose threads read the context variables of the caller of `submit` and `map`."""

    def submit(self, function: Callable[P, R], /, *args: P.args, **options: P.kwargs) -> Future[R]:
        """See `ThreadPoolExecutor.submit`."""
        return super().submit(partial(copy_context().run, function, *args, **options))
