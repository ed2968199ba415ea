"""The stages: one module per command; each reads artifacts, calls the library, and writes one artifact.

A stage is a function of a settings object; the same options may also be passed as keywords.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

from hybrid_cli import plugins
from hybrid_cli.artifacts.manifest import naming_plugins
from hybrid_cli.artifacts.output import stage_scope
from hybrid_cli.commands import ALL_COMMANDS
from hybrid_cli.errors import InputError, require_packages
from hybrid_cli.inputs import files as input_files
from hybrid_cli.settings import Settings
from hybrid_cli.settings.conversion import has_url

__all__ = ["Stage", "call", "stage"]

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


def _with_local_paths(settings: S) -> AbstractContextManager[S]:
    """Download the inputs that are in an object store, and upload the output at the end."""
    if not any(has_url(getattr(settings, name)) for name in settings.given):
        return nullcontext(settings)
    from hybrid_cli.artifacts.remote import local_paths

    return local_paths(settings)


def stage(kind: Callable[P, S]) -> Callable[[Callable[[S], R]], Stage[S, P, R]]:
    """Decorate a stage, a function of a settings object of class `kind`: the fields may also be passed as keywords."""

    def decorate(function: Callable[[S], R]) -> Stage[S, P, R]:
        def made(*args: Any, **options: Any) -> S:
            return kind(*args, **kind.by_field(options) if isinstance(kind, type) else options)  # type: ignore

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> R:
            settings = args[0] if len(args) == 1 and isinstance(args[0], Settings) else made(*args, **options)
            if not isinstance(settings, cast("type[S]", kind)):
                raise TypeError(f"{function.__name__}: needs {kind.__name__}, got {type(settings).__name__}")
            if settings.result_functions and (other := _function_of(settings)) != function.__name__:
                problem = f"{function.__name__}: call {other} with these options, which has their result"
                raise InputError(problem, code="other-function", function=other)
            with (
                require_packages(),
                stage_scope(),
                naming_plugins(),
                plugins.record_use(),
                input_files.change_limits(getattr(settings, "limits", {})),
                _with_local_paths(settings) as local,
            ):
                return function(local)

        call.settings = kind  # type: ignore[attr-defined]  # a plugin registers the function
        return cast("Stage[S, P, R]", call)

    return decorate


def _function_of(settings: Settings) -> str:
    """Return the name of the function, in the module of the stage, that has the result of the options."""
    others = (function for name, function in settings.result_functions.items() if getattr(settings, name))
    return next(others, settings.command.split()[0].replace("-", "_"))


def call(settings: Settings) -> Any:
    """Call the stage of a settings object: `prepare trec` is the function `prepare` of `stages/prepare.py`."""
    with plugins.record_use():
        command = ALL_COMMANDS.get(settings.command)
        if command is not None and command.function is not None:
            return command.function(settings)
    name = settings.command.split()[0].replace("-", "_")
    return getattr(import_module(f"hybrid_cli.stages.{name}"), _function_of(settings))(settings)
