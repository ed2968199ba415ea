"""Public names of a package that are imported on first use: polars, SciPy or PyTorch take up to seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def attach(package: str, homes: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package, which lists the names in `__all__` alone.

    A type checker sees neither, so that it knows the names: `if TYPE_CHECKING` imports them.

    Args:
        package: name of the package.
        homes: module of the package -> names that it defines.
    """
    modules = {name: f"{package}.{module}" for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name in modules:
            return getattr(import_module(modules[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])

    return get, lambda: sorted(sys.modules[package].__all__)
