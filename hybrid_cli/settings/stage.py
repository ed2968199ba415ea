"""The calling convention of stages: a settings object, or the same options as keywords."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from importlib import import_module
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

from hybrid_cli import input_files, memory
from hybrid_cli.settings.conversion import has_url
from hybrid_cli.settings.options import Settings

P = ParamSpec("P")
S = TypeVar("S", bound=Settings)
S_contra = TypeVar("S_contra", bound=Settings, contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Stage(Protocol[S_contra, P, R_co]):
    """A stage: `fuse(Fuse(runs, output=path))` and `fuse(runs, output=path)` are the same call."""

    __name__: str

    @overload
    def __call__(self, settings: S_contra, /) -> R_co: ...

    @overload
    def __call__(self, *args: P.args, **options: P.kwargs) -> R_co: ...


# Brings the inputs of the running stage that are in an object store to the machine of another process.
inputs_on_machine: ContextVar[Callable[[], object]] = ContextVar("inputs_on_machine", default=dict)
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


def _with_local_paths(settings: S) -> AbstractContextManager[S]:
    """Download the inputs that are in an object store, and upload the output at the end."""
    if not any(has_url(getattr(settings, name)) for name in settings.given):
        return nullcontext(settings)
    local: AbstractContextManager[S] = import_module("hybrid_cli.artifacts.remote").local_paths(settings)
    return local


def stage(kind: Callable[P, S]) -> Callable[[Callable[[S], R]], Stage[S, P, R]]:
    """Decorate a stage, a function of a settings object of class `kind`: the fields may also be passed as keywords."""

    def decorate(function: Callable[[S], R]) -> Stage[S, P, R]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> R:
            settings = args[0] if len(args) == 1 and isinstance(args[0], Settings) else kind(*args, **options)
            if not isinstance(settings, cast("type[S]", kind)):
                wanted = getattr(kind, "__name__", "settings")
                raise TypeError(f"{function.__name__}: needs {wanted}, got {type(settings).__name__}")
            with (
                stage_scope(),
                memory.limited(getattr(settings, "memory", None)),
                input_files.limited(getattr(settings, "limits", {})),
                _with_local_paths(settings) as local,
            ):
                return function(local)

        return cast("Stage[S, P, R]", call)

    return decorate


def call(settings: Settings) -> Any:
    """Call the stage of a settings object: `prepare trec` is the function `prepare` of `stages/prepare.py`."""
    name = settings.command.split()[0].replace("-", "_")
    return getattr(import_module(f"hybrid_cli.stages.{name}"), name)(settings)
