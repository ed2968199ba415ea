"""The command line of a settings object, to paste into a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from hybrid_cli import plugins
from hybrid_cli.settings.conversion import bare_type, is_pair
from hybrid_cli.settings.declaration import spelling
from hybrid_cli.settings.options import Settings


def command_line(settings: Settings) -> str:
    """Return `hybrid COMMAND ...` with the arguments and the options that were set, in the order of their fields."""
    arguments, options = [], []
    for name, declared in settings.declared().items():
        if name not in settings.given:
            continue
        value = getattr(settings, name)
        if declared.positional:
            arguments += list(map(_text, value)) if isinstance(value, tuple) else [str(value)]
        else:
            options += list(_words(spelling(name, declared, value), value, is_pair(bare_type(settings.types()[name]))))
    for path in plugins.files():
        options += ["--plugin", str(path)]
    return shlex.join(["hybrid", *settings.command.split(), *arguments, *options])


def _words(name: str, value: Any, pair: bool) -> Iterator[str]:
    """Yield the words of one option."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from (name, f"{key}={each}")
    elif isinstance(value, bool):
        yield name
    elif pair:
        yield from (name, *map(_text, value))
    else:
        yield from (name, ",".join(map(_text, value)) if isinstance(value, tuple) else _text(value))


def _text(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)
