"""Files of `--plugin`, which are loaded before the options are parsed: they may add commands and values of options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

OPTION, CONFIG = "--plugin", "--config"


def requested(words: Sequence[str]) -> list[str]:
    """Return the plugin files of a command line, and those that its config files name."""
    found = list(values_of(words, OPTION))
    for config in values_of(words, CONFIG):
        found += import_module("hybrid_cli.cli.config").plugin_files(config, words)
    return found


def values_of(words: Sequence[str], option: str) -> Iterator[str]:
    """Yield the values of an option that may be repeated."""
    end = words.index("--") if "--" in words else len(words)
    for number, word in enumerate(words[:end]):
        if word == option and number + 1 < end:
            yield words[number + 1]
        elif word.startswith(f"{option}="):
            yield word.removeprefix(f"{option}=")


def as_paths(value: Any) -> list[str]:
    """Return the files of `plugin` in a config file: a path, or a list of paths."""
    return [str(path) for path in (value if isinstance(value, list | tuple) else [value])]
