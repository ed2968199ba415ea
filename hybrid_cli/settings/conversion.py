"""Conversion of values from the command line, YAML and Python to checked values, and back to text for the help."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from hybrid_cli.errors import InputError
from hybrid_cli.settings.options import REQUIRED, Option, shown_value, spelling

_UNUSABLE_PATHS = {  # what a path must not begin with -> what it needs; libraries open `~` and other URLs themselves
    re.compile(r"$"): "a path",
    re.compile(r"(s3|gs)://(/|$)"): "a bucket, as in s3://BUCKET/KEY",
    re.compile(r"~(/|$)"): "the home folder in place of ~, as in $HOME/NAME",
    re.compile(r"(?!(s3|gs):)[A-Za-z][A-Za-z0-9+.-]+:/"): "a path, or a URL that begins with s3:// or gs://",
}
# A path in an object store, with text before it as in `run:s3://BUCKET/KEY`; a Path has lost its second slash.
URL = re.compile(r"(?P<before>@|[^\s/@]+[=:])?(?P<scheme>s3|gs):/{1,2}(?P<key>[^/].*)", re.DOTALL)
LARGEST = 2**31 - 1  # of whole numbers: Lucene and FAISS count in 32 bits

# --------------------------------------------------------------------------------------------------------- conversion


def bare_type(kind: Any) -> Any:
    """Return the first type of a union: `str` for `str | Path | None`."""
    if get_origin(kind) in (Union, UnionType):
        return next(arm for arm in get_args(kind) if arm is not NoneType)
    return kind


def is_list(kind: Any) -> bool:
    """Return whether a type is a list of any length: `Sequence[X]` or `tuple[X, ...]`."""
    origin, arms = get_origin(kind), get_args(kind)
    return origin is Sequence or (origin is tuple and Ellipsis in arms)


def is_pair(kind: Any) -> bool:
    """Return whether a type has a fixed number of values: `tuple[X, Y]`."""
    return get_origin(kind) is tuple and Ellipsis not in get_args(kind)


def is_mapping(kind: Any) -> bool:
    """Return whether a type is a mapping such as `Mapping[str, Path]`, written NAME=FILE."""
    return get_origin(kind) in (Mapping, dict)


def converted(name: str, declared: Option, kind: Any, value: Any) -> Any:
    """Convert a value to the type of its field, and check its range or choices.

    Raises:
        InputError: the value is unusable; the message names the option.
    """
    arms = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
    kind = bare_type(kind)
    try:
        if declared.parse is not None and not is_list(kind) and not is_mapping(kind):
            value = declared.parse(value) if isinstance(value, str) else value
            if kind in (int, float):
                return _number(declared, kind, value)
            if not isinstance(value, str) and not any(is_list(arm) for arm in arms):
                raise Unusable("needs a text", code="not-a-text")
            return value if isinstance(value, str) else _numbers(declared, value)
        if is_list(kind):
            items = list(value) if declared.positional and not isinstance(value, str | Path) else _items(value)
            of = bare_type(get_args(kind)[0])
            return _distinct(declared, of, [_item(declared, of, item) for item in items])
        if is_pair(kind):
            arms = get_args(kind)
            if isinstance(value, str) or len(value) != len(arms):
                raise Unusable(f"needs {len(arms)} values", code="number-of-values")
            return tuple(_item(declared, arm, item) for arm, item in zip(arms, value, strict=True))
        if is_mapping(kind):
            return _mapping(declared, get_args(kind)[1], value)
        return _convert_value(declared, kind, value)
    except (ValueError, TypeError) as error:
        known = _value_error(value, error)
        text = f"{spelling(name, declared)} {_text(known.fields['value'])}: {error}"
        raise InputError(text, code=known.code, option=name, **known.fields) from None


class Unusable(ValueError):
    """A value that an option does not take: the reason, with the code and the fields of the error.

    Functions that parse values may raise another `ValueError`, whose code is `invalid-value`.
    """

    def __init__(self, reason: str, *, code: str = "invalid-value", **fields: object) -> None:
        super().__init__(reason)
        self.code, self.fields = code, fields


def _value_error(value: Any, error: Exception) -> Unusable:
    """Return the error of a value; that of an item of a list quotes only the item."""
    known = error if isinstance(error, Unusable) else Unusable(str(error))
    known.fields.setdefault("value", value)
    return known


def _item(declared: Option, kind: Any, item: Any) -> Any:
    try:
        return _convert_value(declared, kind, item)
    except (ValueError, TypeError) as error:
        raise _value_error(item, error) from None


def _distinct(declared: Option, kind: Any, items: list[Any]) -> tuple[Any, ...]:
    """Refuse a repeated choice or whole number; texts and paths may repeat, such as two processes on one device."""
    if kind is int or get_origin(kind) is Literal or declared.choices is not None:
        for position, item in enumerate(items):
            if item in items[:position]:
                raise Unusable("is listed twice; list each value once", code="repeated-value", value=item)
    return tuple(items)


def _numbers(declared: Option, value: Any) -> tuple[float, ...]:
    if not isinstance(value, list | tuple):
        raise Unusable("needs a list of numbers", code="not-a-list")
    return tuple(_item(replace(declared, parse=None), float, item) for item in value)


def _items(value: Any) -> list[Any]:
    """Split texts at commas, so that `-m A -m B`, `-m A,B` and a list are the same."""
    if isinstance(value, Mapping):
        raise Unusable("needs a list", code="not-a-list")
    several = [value] if isinstance(value, str | Path) or not hasattr(value, "__iter__") else list(value)
    parts: list[Any] = []
    for item in several:
        parts += [part.strip() for part in item.split(",") if part.strip()] if isinstance(item, str) else [item]
    if not parts:
        raise Unusable("needs at least one value", code="missing-value")
    return parts


def _mapping(declared: Option, kind: Any, value: Any) -> dict[str, Any]:
    """Convert the values of `NAME=VALUE`; the choices of a mapping are its names."""
    if (names := declared.allowed()) is not None:
        declared = replace(declared, choices=None)
        return {chosen(name, names): item for name, item in _mapping(declared, kind, value).items()}
    if isinstance(value, Mapping):
        return {str(name): _convert_value(declared, kind, item) for name, item in value.items()}
    what = (declared.metavar or "NAME=FILE").partition("=")[0]
    values: dict[str, Any] = {}
    for item in _items(value):
        name, equals, rest = str(item).partition("=")
        if not equals or not name or not rest:
            raise Unusable(f"needs {declared.metavar or 'NAME=FILE'}", code="needs-a-name", value=item)
        if name in values:
            reason = f"{what.lower()} '{name}' is given twice; concatenate the files, or use another name"
            raise Unusable(reason, code="repeated-value")
        values[name] = _item(declared, kind, rest)
    return values


def _convert_value(declared: Option, kind: Any, value: Any) -> Any:
    """Convert one value to `kind` and check its range or choices."""
    choices = get_args(kind) if get_origin(kind) is Literal else declared.allowed()
    if declared.parse is not None and isinstance(value, str):
        return declared.parse(value)
    if choices is not None:
        return chosen(str(value), choices)
    if kind is bool:
        if not isinstance(value, bool):
            raise Unusable("needs true or false", code="not-true-or-false")
        return value
    if kind in (int, float):
        return _number(declared, kind, value)
    if kind is Path:
        path = str(value) if isinstance(value, str | PathLike) else ""
        for pattern, needed in _UNUSABLE_PATHS.items():
            if pattern.match(path) or (path and pattern.match(str(Path(path)))):
                raise Unusable(f"needs {needed}", code="not-a-path")
        return Path(_valid(path))
    if kind is str:
        if isinstance(value, bool) or not isinstance(value, str | PathLike | int | float):
            raise Unusable("needs a text; in a config file, put it in quotes", code="not-a-text")
        return _valid(str(value))
    return value


def _valid(text: str) -> str:
    """Return a text that files and other libraries can hold."""
    if "\0" in text:
        raise Unusable("needs a text without NUL characters", code="not-a-text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unusable("needs valid UTF-8", code="not-utf-8") from None
    return text


def chosen(value: str, choices: Collection[str]) -> str:
    """Return a value that is one of the choices."""
    if value in choices:
        return value
    close = get_close_matches(value, choices, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]}? " if close else ""
    raise Unusable(
        f"unknown; {hint}Choices: {', '.join(choices)}", code="unknown-choice", choices=list(choices), value=value
    )


def _number(declared: Option, kind: type[int] | type[float], value: Any) -> int | float:
    text = str(value).strip()
    if isinstance(value, bool) or (kind is int and not re.fullmatch(r"[+-]?[0-9]+", text)):
        other = f" or {declared.automatic}" if declared.automatic else ""
        raise Unusable(f"needs a whole number{other}" if kind is int else "needs a number", code="not-a-number")
    if "_" in text or not text.isascii():
        raise Unusable("needs a number", code="not-a-number")
    try:
        number = kind(text)
    except ValueError:
        raise Unusable("needs a number", code="not-a-number") from None
    if not math.isfinite(number):
        raise Unusable("needs a finite number", code="not-a-number")
    if wanted := range_text(declared):
        low, high, above = declared.minimum, declared.maximum, declared.above
        too_low = (low is not None and number < low) or (above is not None and number <= above)
        if too_low or (high is not None and number > high):
            raise Unusable(f"needs a number {wanted}", code="out-of-range", minimum=low, maximum=high, above=above)
    if declared.parse is None and abs(number) > LARGEST:
        raise Unusable(f"needs a number <= {LARGEST}", code="out-of-range", maximum=LARGEST)
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
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B?", text.strip(), re.ASCII)
    if match is None:
        raise Unusable("needs bytes, such as 500M, 2G or 1.5GiB", code="not-a-number")
    power: int = (1024 if match[3] else 1000) ** " kMGT".index(match[2].replace("K", "k") or " ")
    bytes_ = float(match[1]) * power
    if bytes_ >= 2**63:
        raise Unusable("needs fewer than 2**63 bytes", code="out-of-range")
    return int(bytes_)


# ------------------------------------------------------------------------------------------------------------ display


def default_text(declared: Option) -> str:
    """Return the default for the help; empty without a default."""
    if declared.shown is not None:
        return declared.shown
    if declared.default in (REQUIRED, None) or declared.default is False or declared.default == {}:
        return ""
    if declared.default is True:
        return spelling("", declared).removeprefix("--") if declared.names else "on"
    return shown_value(declared.default)


def _text(value: Any) -> str:
    if isinstance(value, str | int | float | Path):
        return str(value) or "''"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def has_url(value: Any) -> bool:
    """Return whether the value of an option has a path in an object store."""
    if isinstance(value, Mapping):
        return any(map(has_url, value.values()))
    if isinstance(value, tuple):
        return any(map(has_url, value))
    return isinstance(value, str | Path) and URL.fullmatch(str(value)) is not None


def json_value(value: Any) -> Any:
    """Return a value as JSON."""
    if isinstance(value, Mapping):
        return {name: json_value(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [json_value(item) for item in value]
    return str(value) if isinstance(value, Path) else value
