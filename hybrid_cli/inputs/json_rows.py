"""Rows in JSON of any origin: JSON lines, one array, indented objects, or one object of objects; one row in memory.

Numbers keep their spelling as strings (`Number`), so that ids are preserved.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

from hybrid_cli.errors import InputError, path_error
from hybrid_cli.inputs.files import Location, byte_lines, is_parquet, limits, located_lines, open_binary, plain_suffix
from hybrid_cli.inputs.json_values import describe_value, mismatch_of_fields

JSON_LINES = (".jsonl", ".json", ".ndjson")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACE = re.compile(r"\s*")
_STARTS = re.compile(r"\s*(?:\{\s*[\"}]|\[\s*[{\]])")  # an object, or an array of objects
_NESTED = re.compile(r'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\{')  # an object of objects
_LONGEST_WORD = 12  # characters of `-Infinity` or of an escaped surrogate pair, of which the end of a chunk has a part


class Number(str):
    """A number as it is written."""


_AS_WRITTEN = json.JSONDecoder(parse_float=Number, parse_int=Number, parse_constant=Number)


def is_json(path: Path) -> bool:
    """Return whether a file is JSON, by its name or its content."""
    if plain_suffix(path) in JSON_LINES:
        return True
    return not is_parquet(path) and _STARTS.match(_head(path)) is not None


def is_nested(path: Path) -> bool:
    """Return whether a file is one JSON object of objects, such as `{"qid": {"docid": 1}}`."""
    return not is_parquet(path) and _NESTED.match(_head(path)) is not None


def _head(path: Path, size: int = 1 << 16) -> str:
    """Return the first characters of a file."""
    with open_binary(path) as file:
        return file.read(size).removeprefix(BOM_UTF8).decode("utf-8", "replace")


def records(path: Path, chunk: int = 1 << 20) -> Iterator[tuple[Location, dict[str, Any]]]:
    """Yield the objects of JSON lines, of one array, or of indented JSON, with bounded memory.

    Numbers become strings with the same spelling (`1e5` stays `1e5`).

    Args:
        path: the file.
        chunk: characters that are read at a time of an array and of indented JSON; more for longer objects.
    """
    bound = limits()
    for location, record in _values(path, chunk):
        if not isinstance(record, dict):
            problem = f"is {describe_value(record)}; each line, or item of an array, needs an object {{...}}"
            raise InputError(f"{location}: {problem}", code="not-an-object", path=path, line=location.number)
        bound.refuse_columns(location, path, len(record), "fields")
        yield location, record


def _values(path: Path, chunk: int) -> Iterator[tuple[Location, Any]]:
    if not (_starts_array(path) or _starts_indented(path)):
        for location, line in located_lines(path):
            if not line or line.isspace():
                continue
            try:
                value = _AS_WRITTEN.decode(line.rstrip("\r\n"))
            except json.JSONDecodeError as error:
                _refuse_json(location, f"{error.msg} at character {error.pos + 1:,}", "fix or remove the line")
            except RecursionError:
                _refuse_json(location, "nested too deeply", "fix or remove the line")
            yield location, value
        return
    with _Json(path, chunk) as text:
        array = text.skip("[")
        number = 0
        while not (text.skip("]") if array else text.ended()):
            if array and number and not text.skip(","):
                text.refuse(number + 1, "no comma between two items")
            number += 1
            yield text.location_of(number), text.value(number)
        if not text.ended():
            text.refuse(number, "more text after the end of the array")


def _starts_array(path: Path) -> bool:
    return _head(path).lstrip().startswith("[")


def _starts_indented(path: Path) -> bool:
    """Return whether the first line of a file is the beginning of an object."""
    line = next((raw for raw in byte_lines(path) if raw.strip()), b"")
    text = line.removeprefix(BOM_UTF8).decode("utf-8", "replace").rstrip()
    try:
        _AS_WRITTEN.decode(text)
    except json.JSONDecodeError as error:
        return text.lstrip().startswith("{") and error.pos >= len(text)
    except RecursionError:
        pass
    return False


def named_objects(path: Path, chunk: int = 1 << 20) -> Iterator[tuple[Location, str, dict[str, Any]]]:
    """Yield the names and objects of one JSON object of objects, with bounded memory; see `is_nested`."""
    with _Json(path, chunk) as text:
        text.skip("{")
        number = 0
        while not text.skip("}"):
            if number and not text.skip(","):
                text.refuse(number + 1, "no comma between two items")
            number += 1
            name = text.value(number)
            if not isinstance(name, str) or not text.skip(":"):
                text.refuse(number, "an item needs a name and ':'")
            value = text.value(number)
            if not isinstance(value, dict):
                problem = f"{text.location_of(number)}: '{name}' has {describe_value(value)}; an object is needed"
                raise InputError(problem, code="not-an-object", path=path, line=number)
            yield text.location_of(number), without_surrogates(name), value
        if not text.ended():
            text.refuse(number, "more text after the end of the object")


def _refuse_json(location: Location, reason: str, advice: str) -> NoReturn:
    problem = f"{location}: not valid JSON ({reason}); {advice}"
    raise InputError(problem, code="not-json", path=location.file, line=location.number)


class _Json:
    """The values of a JSON text, of which one value and a chunk are in memory."""

    def __init__(self, path: Path, chunk: int):
        self._path, self._chunk, self._bound = path, chunk, limits()
        self._held, self._at, self._ended = "", 0, False

    def __enter__(self) -> _Json:
        self._file = TextIOWrapper(open_binary(self._path), encoding="utf-8-sig")  # type: ignore[arg-type]
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def location_of(self, number: int) -> Location:
        """Return the location of a value."""
        return Location(self._path, number, "record")

    def skip(self, sign: str) -> bool:
        """Skip white space, and the sign if it follows; return whether it does."""
        follows = not self.ended() and self._held[self._at] == sign
        self._at += follows
        return follows

    def ended(self) -> bool:
        """Skip white space; return whether the text ends."""
        while True:
            self._at = _SPACE.match(self._held, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._held) or self._ended:
                return self._at == len(self._held)
            self._read(self._chunk)

    def value(self, number: int) -> Any:
        """Return the next value.

        Raises:
            InputError: no JSON, or a value that is too long.
        """
        self.ended()
        while True:
            try:
                value, self._at = _AS_WRITTEN.raw_decode(self._held, self._at)
                return value
            except json.JSONDecodeError as error:
                left = len(self._held) - self._at
                inside = error.msg.startswith("Unterminated") or error.pos > len(self._held) - _LONGEST_WORD
                self._bound.refuse_line(self.location_of(number), self._path, left, "JSON value")
                if inside:
                    self._read(max(self._chunk, left))
                if self._ended or not inside:
                    self.refuse(number, error.msg)
            except RecursionError:
                self.refuse(number, "nested too deeply")

    def refuse(self, number: int, reason: str) -> NoReturn:
        """Refuse the text."""
        _refuse_json(self.location_of(number), reason, "fix the file")

    def _read(self, size: int) -> None:
        try:
            more = self._file.read(size)
        except UnicodeDecodeError:
            raise path_error(self._path, "not valid UTF-8; convert the file", code="not-utf-8") from None
        self._held, self._at, self._ended = self._held[self._at :] + more, 0, not more


def without_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can escape (`\\ud800`) and UTF-8 cannot encode, by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if _SURROGATE.search(text) else text


def check_field(record: dict[str, Any], field: str, kind: Any, location: Location, code: str) -> None:
    """Refuse a field of a row that has another type than the declared one.

    Args:
        record: the row, whose numbers are strings.
        field: name of the field.
        kind: type of the field; see `json_values.mismatch`.
        location: location of the row.
        code: code of the error.
    """
    if wrong := mismatch_of_fields(record, {field: kind}):
        raise location.error(str(wrong), code=code, column=field, element=wrong.element)
