"""JSON from files that anyone may have written: errors are one line, and values are checked against declared types."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from enum import Enum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from hybrid_cli.errors import path_error
from hybrid_cli.inputs.files import read_bytes

T = TypeVar("T")
ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
NOT_JSON = (ValueError, RecursionError)  # not JSON, not UTF-8, a number of thousands of digits; nested too deeply


def parse_json(text: str | bytes, name: object, **options: Any) -> Any:
    """Return the content of JSON text, without lone surrogates.

    Args:
        text: JSON, in UTF-8 if bytes.
        name: origin of the text, for the message: a file, or a file and a line.
        options: of `json.loads`.

    Raises:
        InputError: not valid JSON.
    """
    try:
        text = text.decode() if isinstance(text, bytes) else text
        content = json.loads(text, **options)
        return without_surrogates(content) if ESCAPED_SURROGATE.search(text) else content
    except NOT_JSON as error:
        raise path_error(name, f"is not readable JSON ({reason(error)})", code="not-json") from None


def without_surrogates(value: Any) -> Any:
    """Replace lone surrogates, which JSON can escape (`\\ud800`) and UTF-8 cannot encode, by U+FFFD in all texts."""
    if isinstance(value, dict):
        return {without_surrogates(name): without_surrogates(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_surrogates(inner) for inner in value]
    if isinstance(value, str) and _SURROGATE.search(value):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


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
        _refuse_no_object(content, path)
    return content


def _refuse_no_object(value: Any, where: object) -> NoReturn:
    problem = f"needs a JSON object {{...}}, not {describe_value(value)}"
    raise path_error(where, problem, code="not-an-object")


class Mismatch(NamedTuple):
    """A JSON value that has another type than the declared one.

    Attributes:
        element: its place, from the outermost field or item: `field 'inputs', field 'corpus'`, `item 3`; empty for the
            whole value.
        value: the value.
        needed: the declared type in words.
    """

    element: str
    value: Any
    needed: str

    def __str__(self) -> str:
        sentence = f"is {describe_value(self.value)}; needs {self.needed}"
        return f"{self.element} {sentence}" if self.element else sentence

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of an error."""
        return {"element": self.element, "value": self.value}


def make_typed(kind: type[T], values: Any, where: object) -> T:
    """Make a dataclass from JSON values, each checked against the type of its field.

    Args:
        kind: dataclass with fields of plain types, literals, enumerations, lists and mappings.
        values: field name -> value; anything else is refused.
        where: the file, for messages.

    Raises:
        InputError: no object, an unknown or missing field, or a value of another type.
    """
    if not isinstance(values, dict):
        _refuse_no_object(values, where)
    hints = _hints(kind)  # type: ignore[arg-type]
    declared = {declaration.name: declaration for declaration in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(set(values) - set(declared)):
        problem = f"unknown field {', '.join(unknown)}; update hybrid"
        raise path_error(where, problem, code="json-unknown-field", element=unknown[0])
    for name, declaration in declared.items():
        if name not in values and declaration.default is declaration.default_factory is MISSING:
            raise path_error(where, f"has no field '{name}'", code="json-missing-field", element=name)
    if wrong := mismatch_of_fields(values, {name: hints[name] for name in values}):
        raise path_error(where, f"{wrong}", code="json-type", **wrong.fields)
    return kind(**{name: _as_declared(value, hints[name]) for name, value in values.items()})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of the fields of a dataclass."""
    return get_type_hints(kind)


def mismatch_of_fields(values: Mapping[str, Any], kinds: Mapping[str, Any]) -> Mismatch | None:
    """Return the first field that is missing or of another type; None if all fit.

    Args:
        values: field name -> value; a missing one counts as null.
        kinds: field name -> declared type.
    """
    mismatches = (_inside(f"field '{name}'", mismatch(values.get(name), kind)) for name, kind in kinds.items())
    return next((wrong for wrong in mismatches if wrong), None)


def has_type(value: Any, kind: Any) -> bool:
    """Test whether a JSON value has a declared type."""
    return mismatch(value, kind) is None


def mismatch(value: Any, kind: Any) -> Mismatch | None:
    """Return the first element of a JSON value that has another type than the declared one; None if all fit."""
    origin, arms = get_origin(kind), get_args(kind)
    if kind is Any:
        return None
    if origin in (Union, UnionType):
        mismatches = [mismatch(value, arm) for arm in arms]
        inner = [wrong for wrong in mismatches if wrong and wrong.element]  # of the arm whose outer type fits
        return None if None in mismatches else (inner[0] if inner else Mismatch("", value, _in_words(kind)))
    if origin in (dict, Mapping) and isinstance(value, dict):
        return mismatch_of_fields(value, dict.fromkeys(value, arms[1]))
    if origin in (list, tuple, Sequence) and isinstance(value, list) and _has_length(value, origin, arms):
        kinds = arms if origin is tuple and Ellipsis not in arms else arms[:1] * len(value)
        pairs = enumerate(zip(value, kinds, strict=True), 1)
        items = (_inside(f"item {number}", mismatch(item, item_kind)) for number, (item, item_kind) in pairs)
        return next((wrong for wrong in items if wrong), None)
    return None if origin in (None, Literal) and _fits_plain(value, kind) else Mismatch("", value, _in_words(kind))


def _inside(element: str, inner: Mismatch | None) -> Mismatch | None:
    """Return a mismatch with the element that contains it."""
    return inner and inner._replace(element=f"{element}, {inner.element}" if inner.element else element)


def _has_length(value: list[Any], origin: Any, arms: tuple[Any, ...]) -> bool:
    return origin is not tuple or Ellipsis in arms or len(value) == len(arms)


def _fits_plain(value: Any, kind: Any) -> bool:
    """Test a value against a literal, an enumeration or a plain type."""
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if issubclass(kind, Enum):
        return isinstance(value, str) and value in {member.value for member in kind}
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _as_declared(value: Any, kind: Any) -> Any:
    if isinstance(value, list) and get_origin(kind) is tuple:
        return tuple(value)
    return kind(value) if isinstance(kind, type) and issubclass(kind, Enum) else value


def _in_words(kind: Any) -> str:
    """Return a declared type in words."""
    origin, arms = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(map(_in_words, arms))
    if origin is Literal:
        return " or ".join(arms)
    if origin is tuple and Ellipsis not in arms:
        return f"a list of {len(arms)} items"
    if origin is None and isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(member.value for member in kind)
    plain = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text", type(None): "null"}
    lists: dict[Any, str] = dict.fromkeys((dict, Mapping), "an object") | dict.fromkeys(
        (list, tuple, Sequence), "a list"
    )
    return plain.get(kind) or lists.get(origin or kind, "another type")


def describe_value(value: Any) -> str:
    """Return the type of a JSON value and the value, shortened, for messages."""
    if isinstance(value, list):
        return f"a list of {len(value)} item{'s' * (len(value) != 1)}"
    kind = "the text " if isinstance(value, str) else ""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return ("the number " if number else kind) + value_in_words(value)


def value_in_words(value: Any) -> str:
    """Return a JSON value in words, shortened, for messages."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "..."
