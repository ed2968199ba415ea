"""What an option declares (default, help, range, choices, variants), and how its values are converted.

Values come from the command line, YAML or Python and become checked values; the help shows them as text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin

from hybrid_cli.errors import InputError

REQUIRED: Any = MISSING
GENERAL = "General"
KEY = "option"


class _Given:
    def __repr__(self) -> str:
        return "GIVEN"


GIVEN: Any = _Given()  # in `when`: the other option must be set, to whatever value


@dataclass(frozen=True)
class By:
    """A default that another option decides.

    Attributes:
        other: name of the other option; its values are the keys of `values`.
        values: value of the other option -> default.
        otherwise: default for all other values.
    """

    other: str
    values: Mapping[Any, Any]
    otherwise: Any = None

    def resolve(self, settings: Any) -> Any:
        """Return the default under these settings."""
        return self.values.get(getattr(settings, self.other), self.otherwise)

    def __str__(self) -> str:
        named = [f"{shown_value(value)} for {key}" for key, value in self.values.items()]
        return "; ".join([*([] if self.otherwise is None else [shown_value(self.otherwise)]), *named])


@dataclass(frozen=True)
class Condition:
    """One way in which an option applies: every named option (or fact) has one of the listed values."""

    allowed: Mapping[str, Any]

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Test the condition; a fact that is not known yet does not count against it."""
        return all(_matches(values[name], allowed) for name, allowed in self.allowed.items() if name in values)


def shown_value(value: Any) -> str:
    """Return a value as the help prints it: `0.05`, `1,2`."""
    if isinstance(value, tuple):
        return ",".join(map(shown_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def when(**allowed: Any) -> Condition:
    """Declare that an option applies where the named options have these values: `when(loss=("nll", "roc"))`.

    A value may be a tuple of alternatives, or `GIVEN`. A name that is no field of the class is a fact that only the
    stage knows, such as the kind of an index; see `Settings.check_facts`. Of a list option, and of a fact that is a
    frozenset, one item must be allowed.
    """
    return Condition(allowed)


def _matches(value: Any, allowed: Any) -> bool:
    if allowed is GIVEN:
        return value is not None and value is not False and value != () and value != {}
    wanted = allowed if isinstance(allowed, tuple) else (allowed,)
    return not set(wanted).isdisjoint(value) if isinstance(value, frozenset | tuple) else value in wanted


@dataclass(frozen=True)
class Option:
    """What a field of a settings class declares besides its type.

    Attributes:
        default: value, `By`, or REQUIRED.
        help: one line; a sentence that stands alone.
        names: spellings on the command line, if not `--field-name`; `--tied/--untied` for a switch.
        panel: group in the help.
        minimum, maximum, above: inclusive range, and exclusive lower bound, of numbers.
        choices: allowed values, their meaning where it is a mapping, or a function that returns them.
        parse: text to value, for units such as `2G`; raises ValueError with the reason.
        metavar: placeholder of the value in the help.
        shown: the default in words, where the value would not say it.
        applies: conditions, one of which must hold; empty if the option always applies.
        recorded: the value is part of the manifest's options (and so decides whether an output is up to date).
        positional: an argument, not an option.
    """

    default: Any
    help: str
    names: tuple[str, ...] = ()
    panel: str = ""
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    choices: Collection[str] | Callable[[], Collection[str]] | None = None
    parse: Callable[[str], Any] | None = None
    metavar: str | None = None
    shown: str | None = None
    applies: tuple[Condition, ...] = ()
    recorded: bool = True
    positional: bool = False

    def allowed(self) -> Collection[str] | None:
        """Return the choices, reading a registry only now."""
        return self.choices() if callable(self.choices) else self.choices


def option(default: Any, help: str, *names: str, applies: Condition | Sequence[Condition] = (), **more: Any) -> Any:
    """Declare an option as the default of a dataclass field; see `Option`."""
    conditions = (applies,) if isinstance(applies, Condition) else tuple(applies)
    return declare(Option(default, help, names, applies=conditions, **more))


def argument(default: Any, help: str, **more: Any) -> Any:
    """Declare a positional argument as the default of a dataclass field; see `Option`."""
    return declare(Option(default, help, positional=True, recorded=False, **more))


def declare(declared: Option) -> Any:
    """Return the dataclass field of a declaration."""
    if declared.default is REQUIRED:
        return field(metadata={KEY: declared})
    default = None if isinstance(declared.default, dict) else declared.default  # a dataclass refuses mutable defaults
    return field(default=default, metadata={KEY: declared})


def registered(module: str, name: str) -> Callable[[], Collection[str]]:
    """Return choices that live in a registry next to the functions they name, imported only when needed."""
    return lambda: cast("Collection[str]", getattr(import_module(module), name))


def parsed_by(module: str, name: str) -> Callable[[str], Any]:
    """Return a parser of text that is imported only when needed."""
    return lambda text: getattr(import_module(module), name)(text)


def spelling(name: str, declared: Option) -> str:
    """Return the name that messages use: `--rrf-k`, or the bare name of an argument."""
    if declared.positional:
        return name
    return declared.names[0].partition("/")[0] if declared.names else "--" + name.replace("_", "-")


# --------------------------------------------------------------------------------------------------------- conversion


def bare_type(kind: Any) -> Any:
    """Return the first type of a union: `str` for `str | Path | None`."""
    if get_origin(kind) in (Union, UnionType):
        return next(arm for arm in get_args(kind) if arm is not NoneType)
    return kind


def is_list(kind: Any) -> bool:
    """Test for a list of any length: `Sequence[X]` or `tuple[X, ...]`."""
    origin, arms = get_origin(kind), get_args(kind)
    return origin is Sequence or (origin is tuple and Ellipsis in arms)


def is_pair(kind: Any) -> bool:
    """Test for a fixed number of values: `tuple[X, Y]`."""
    return get_origin(kind) is tuple and Ellipsis not in get_args(kind)


def is_mapping(kind: Any) -> bool:
    """Test for names with values: `Mapping[str, Path]`, written NAME=FILE."""
    return get_origin(kind) in (Mapping, dict)


def converted(name: str, declared: Option, kind: Any, value: Any) -> Any:
    """Convert a value to the type of its field, and check its range or choices.

    Raises:
        InputError: the value is unusable; the message names the option.
    """
    kind = bare_type(kind)
    try:
        if declared.parse is not None and not is_list(kind):
            value = declared.parse(value) if isinstance(value, str) else value
            return _number(declared, kind, value) if kind in (int, float) else value
        if is_list(kind):
            items = list(value) if declared.positional and not isinstance(value, str | Path) else _items(value)
            return tuple(_one(declared, bare_type(get_args(kind)[0]), item) for item in items)
        if is_pair(kind):
            arms = get_args(kind)
            if isinstance(value, str) or len(value) != len(arms):
                raise ValueError(f"needs {len(arms)} values")
            return tuple(_one(declared, arm, item) for arm, item in zip(arms, value, strict=True))
        if is_mapping(kind):
            return _mapping(declared, get_args(kind)[1], value)
        return _one(declared, kind, value)
    except (ValueError, TypeError) as error:
        raise InputError(f"{spelling(name, declared)} {_text(value)}: {error}") from None


def _items(value: Any) -> list[Any]:
    """Split texts at commas, so that `-m A -m B`, `-m A,B` and a list are the same."""
    several = [value] if isinstance(value, str | Path) or not hasattr(value, "__iter__") else list(value)
    found: list[Any] = []
    for each in several:
        found += [part.strip() for part in each.split(",") if part.strip()] if isinstance(each, str) else [each]
    if not found:
        raise ValueError("needs at least one value")
    return found


def _mapping(declared: Option, kind: Any, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {str(name): _one(declared, kind, item) for name, item in value.items()}
    what = (declared.metavar or "NAME=FILE").partition("=")[0]
    found: dict[str, Any] = {}
    for item in _items(value):
        name, equals, rest = str(item).partition("=")
        if not equals or not name or not rest:
            raise ValueError(f"needs {declared.metavar or 'NAME=FILE'}")
        if name in found:
            raise ValueError(f"{what.lower()} '{name}' is given twice; concatenate the files, or use another name")
        found[name] = _one(declared, kind, rest)
    return found


def _one(declared: Option, kind: Any, value: Any) -> Any:
    """Convert one value to `kind` and check its range or choices."""
    choices = get_args(kind) if get_origin(kind) is Literal else declared.allowed()
    if declared.parse is not None and isinstance(value, str):
        return declared.parse(value)
    if choices is not None:
        return _chosen(str(value), choices)
    if kind is bool:
        if not isinstance(value, bool):
            raise ValueError("needs true or false")
        return value
    if kind in (int, float):
        return _number(declared, kind, value)
    if kind is Path:
        if str(value) == "":
            raise ValueError("needs a path")
        return Path(value)
    if kind is str:
        return str(value)
    return value


def _chosen(value: str, choices: Collection[str]) -> str:
    if value in choices:
        return value
    close = get_close_matches(value, choices, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]}? " if close else ""
    raise ValueError(f"unknown; {hint}Choices: {', '.join(choices)}")


def _number(declared: Option, kind: type[int] | type[float], value: Any) -> int | float:
    text = str(value).strip()
    if isinstance(value, bool) or (kind is int and not re.fullmatch(r"[+-]?[0-9]+", text)):
        raise ValueError("needs a whole number" if kind is int else "needs a number")
    if "_" in text or not text.isascii():
        raise ValueError("needs a number")
    try:
        number = kind(text)
    except ValueError:
        raise ValueError("needs a number") from None
    if not math.isfinite(number):
        raise ValueError("needs a finite number")
    if wanted := range_text(declared):
        low, high, above = declared.minimum, declared.maximum, declared.above
        if (low is not None and number < low) or (high is not None and number > high):
            raise ValueError(f"needs a number {wanted}")
        if above is not None and number <= above:
            raise ValueError(f"needs a number {wanted}")
    return number


def range_text(declared: Option) -> str:
    """Return the range in words: `>= 1`, `between 0 and 1`."""
    low, high, above = declared.minimum, declared.maximum, declared.above
    if low is not None and high is not None:
        return f"between {low:g} and {high:g}"
    if above is not None:
        return f"> {above:g}" + (f" and <= {high:g}" if high is not None else "")
    return f">= {low:g}" if low is not None else f"<= {high:g}" if high is not None else ""


def byte_count(text: str) -> int:
    """Return the bytes of `500M`, `2G`, `1.5GiB`; `M`, `G`, `T` are decimal units, with an `i` binary ones."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B?", text.strip(), re.ASCII)
    if found is None:
        raise ValueError("needs bytes, such as 500M, 2G or 1.5GiB")
    power: int = (1024 if found[3] else 1000) ** " kMGT".index(found[2].replace("K", "k") or " ")
    return int(float(found[1]) * power)


# ------------------------------------------------------------------------------------------------------------ display


def default_text(declared: Option) -> str:
    """Return the default for the help; empty where there is none."""
    if declared.shown is not None:
        return declared.shown
    if declared.default in (REQUIRED, None) or declared.default is False or declared.default == {}:
        return ""
    if declared.default is True:
        return spelling("", declared).removeprefix("--") if declared.names else "on"
    return shown_value(declared.default)


def _text(value: Any) -> str:
    if isinstance(value, str | int | float | Path):
        return str(value)
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def plain(value: Any) -> Any:
    """Return a value as JSON holds it."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
