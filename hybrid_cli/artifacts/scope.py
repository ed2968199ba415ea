"""The running stage: functions that are called when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

_running: ContextVar[ExitStack | None] = ContextVar("running", default=None)


@contextmanager
def stage_scope() -> Iterator[None]:
    """Run the functions of `at_stage_end` when the block ends, also after an error."""
    with ExitStack() as functions:
        token = _running.set(functions)
        try:
            yield
        finally:
            _running.reset(token)


def at_stage_end(function: Callable[[], object]) -> None:
    """Call `function` when the running stage ends, also after an error; ignored outside of a stage."""
    if (functions := _running.get()) is not None:
        functions.callback(function)
