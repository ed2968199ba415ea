"""The calling convention of stages: a settings object, or the same options as keywords."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

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


def stage(kind: Callable[P, S]) -> Callable[[Callable[[S], R]], Stage[S, P, R]]:
    """Let a function of one settings object of class `kind` also be called with that class's fields."""

    def decorate(function: Callable[[S], R]) -> Stage[S, P, R]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> R:
            from hybrid_cli.artifacts import release_outputs

            settings = args[0] if len(args) == 1 and isinstance(args[0], Settings) else kind(*args, **options)
            with release_outputs():
                return function(cast("S", settings))

        return cast("Stage[S, P, R]", call)

    return decorate
