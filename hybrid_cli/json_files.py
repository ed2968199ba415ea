"""JSON from files that anyone may have written: errors are one line, and values are checked against declared types."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hybrid_cli.errors import InputError
from hybrid_cli.input_files import read_bytes

T = TypeVar("T")
NOT_JSON = (ValueError, RecursionError)  # not JSON, not UTF-8, a number of thousands of digits; nested too deeply


def parse_json(text: str | bytes, name: object, **options: Any) -> Any:
    """Return the content of JSON text.

    Args:
        text: JSON, in UTF-8 if bytes.
        name: origin of the text, for the message: a file, or a file and a line.
        options: of `json.loads`.

    Raises:
        InputError: not valid JSON.
    """
    try:
        return json.loads(text.decode() if isinstance(text, bytes) else text, **options)
    except NOT_JSON as error:
        raise InputError(f"{name}: is not readable JSON ({reason(error)})") from None


def reason(error: Exception) -> str:
    """Return why a text cannot be parsed, in a few words."""
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        InputError: the file cannot be read, or is not JSON.
    """
    return parse_json(read_bytes(path), path)


def read_object(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file that is one object.

    Raises:
        InputError: the file cannot be read, or is not a JSON object.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: needs a JSON object {{...}}, not {named(content)}")
    return content


def typed(kind: type[T], values: Any, where: object) -> T:
    """Make a dataclass from JSON values, each checked against the type of its field.

    Args:
        kind: dataclass with fields of plain types, literals, enumerations, lists and mappings.
        values: field name -> value; anything else is refused.
        where: the file, for messages.

    Raises:
        InputError: no object, an unknown or missing field, or a value of another type.
    """
    if not isinstance(values, dict):
        raise InputError(f"{where}: needs a JSON object {{...}}, not {named(values)}")
    hints = get_type_hints(kind)
    declared = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(set(values) - set(declared)):
        raise InputError(f"{where}: unknown field {', '.join(unknown)}; update hybrid")
    required = (name for name, each in declared.items() if each.default is each.default_factory is MISSING)
    if lacking := [name for name in required if name not in values]:
        raise InputError(f"{where}: has no field '{lacking[0]}'")
    for name, value in values.items():
        if not fits(value, hints[name]):
            raise InputError(f"{where}: field '{name}' is {named(value)}; needs {_wanted(hints[name])}")
    return kind(**{name: _as_declared(value, hints[name]) for name, value in values.items()})


def fits(value: Any, kind: Any) -> bool:
    """Test whether a JSON value has a declared type."""
    origin, arms = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(fits(value, arm) for arm in arms)
    if origin is Literal:
        return isinstance(value, str) and value in arms
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(fits(item, arms[1]) for item in value.values())
    if origin is tuple and Ellipsis not in arms:
        return isinstance(value, list) and len(value) == len(arms) and all(map(fits, value, arms))
    if origin in (list, tuple, Sequence):
        return isinstance(value, list) and all(fits(item, arms[0]) for item in value)
    if issubclass(kind, Enum):
        return isinstance(value, str) and value in {each.value for each in kind}
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _as_declared(value: Any, kind: Any) -> Any:
    if isinstance(value, list) and get_origin(kind) is tuple:
        return tuple(value)
    return kind(value) if isinstance(kind, type) and issubclass(kind, Enum) else value


def _wanted(kind: Any) -> str:
    origin, arms = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(map(_wanted, arms))
    if origin is Literal:
        return " or ".join(arms)
    if origin is None and isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(each.value for each in kind)
    plain = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text", type(None): "null"}
    lists: dict[Any, str] = {dict: "an object", Mapping: "an object", list: "a list", tuple: "a list"}
    return plain.get(kind) or lists.get(origin, "another type")


def named(value: Any) -> str:
    """Return a JSON value in words, shortened, for messages."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "..."
