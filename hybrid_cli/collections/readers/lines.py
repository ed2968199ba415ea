"""Text files row by row, with the place of each row for messages: lines, JSON, columns; plain or gzip.

Lines end at a line feed and nowhere else, and a number in JSON keeps its spelling, so that ids survive.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from hybrid_cli.errors import InputError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BROKEN_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)
_SURROGATE = re.compile("[\ud800-\udfff]")
_BETWEEN = re.compile(r"[\s,]*")
_LONGEST_OBJECT = 1 << 28
_AS_WRITTEN = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)


class Place(NamedTuple):
    """Where something stands, as messages say it."""

    file: Path | str
    number: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}"


def open_binary(path: Path) -> IO[bytes]:
    """Open a plain or gzip file for reading bytes."""
    if not path.is_file():
        raise InputError(f"{path}: {'is a folder; a file is needed here' if path.is_dir() else 'no such file'}")
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def plain_suffix(path: Path) -> str:
    """The suffix that tells the format: `.jsonl` of `queries.jsonl.gz`."""
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


def lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[Place, str]]:
    """Yield each line that is not blank, without its end.

    Raises:
        InputError: no such file, a broken gzip file, or bytes that `encoding` does not have.
    """
    number = 0
    with open_binary(path) as file:
        try:
            for number, raw in enumerate(file, 1):
                if number == 1:
                    raw = raw.removeprefix(_BYTE_ORDER_MARK)
                line = raw.rstrip(b"\r\n").decode(encoding)
                if line and not line.isspace():
                    yield Place(path, number), line
        except UnicodeDecodeError as error:
            raise InputError(
                f"{Place(path, number)}: byte {error.start + 1} is not {encoding}; convert the file to UTF-8"
            ) from None
        except _BROKEN_GZIP as error:
            raise InputError(f"{path}: is not a whole gzip file ({error}); fetch it again") from None


def records(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield the objects of a JSON lines file; numbers are strings as they were written (`1e5` stays `1e5`)."""
    for place, line in lines(path):
        try:
            record = _AS_WRITTEN.decode(line)
        except json.JSONDecodeError as error:
            raise InputError(
                f"{place}: is not whole JSON ({error.msg} at character {error.pos + 1}); mend or remove it"
            ) from None
        if not isinstance(record, dict):
            raise InputError(f"{place}: holds no JSON object; each line needs one, such as {{...}}")
        yield place, record


def array_records(path: Path, chunk: int = 1 << 20) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield the objects of a file that is one JSON array; the file is never held whole.

    Args:
        path: the file.
        chunk: how many characters are read at a time; more where an object is longer.
    """
    with open_binary(path) as binary, TextIOWrapper(binary, encoding="utf-8-sig") as file:
        held = _read(file, chunk, path).lstrip()
        if not held.startswith("["):
            raise InputError(f"{path}: is not a JSON array; it begins with {held[:20]!r}, where [ is needed")
        at, number = 1, 1
        while True:
            at = _end_of(_BETWEEN, held, at)
            if held.startswith("]", at):
                return
            place = Place(path, number, "record")
            try:
                record, at = _AS_WRITTEN.raw_decode(held, at)
            except json.JSONDecodeError as error:
                more = _read(file, max(chunk, len(held)), path)
                if not more or len(held) > _LONGEST_OBJECT:
                    raise InputError(f"{place}: is not whole JSON ({error.msg}); mend the file") from None
                held, at = held[at:] + more, 0
                continue
            if not isinstance(record, dict):
                raise InputError(f"{place}: is no JSON object; the array needs objects, such as {{...}}")
            yield place, record
            number += 1


def _end_of(pattern: re.Pattern[str], text: str, begin: int) -> int:
    found = pattern.match(text, begin)
    return found.end() if found else begin


def _read(file: TextIOWrapper, size: int, path: Path) -> str:
    try:
        return file.read(size)
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8; convert it") from None
    except _BROKEN_GZIP as error:
        raise InputError(f"{path}: is not a whole gzip file ({error}); fetch it again") from None


def text_of(record: dict[str, Any], names: Sequence[str], place: Place, *, default: str | None = None) -> str:
    """The first of the fields `names` that is there, as a string.

    Raises:
        InputError: none is there and there is no `default`, or it is neither text nor a number.
    """
    for name in names:
        value = record.get(name)
        if isinstance(value, str):
            return value if value.isascii() else _without_surrogates(value)
        if value is not None:
            raise InputError(f"{place}: field '{name}' is {_kind(value)}; text is needed")
    if default is None:
        raise InputError(
            f"{place}: has none of the fields {', '.join(names)} (found: {', '.join(record) or 'nothing'})"
        )
    return default


def _without_surrogates(text: str) -> str:
    """Halves of surrogate pairs, which JSON can spell (`\\ud800`) and UTF-8 cannot, become U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if _SURROGATE.search(text) else text


def id_of(record: dict[str, Any], names: Sequence[str], place: Place) -> str:
    """The identifier among the fields `names`; it must not be empty."""
    return checked_id(text_of(record, names, place), place)


def checked_id(value: str, place: Place) -> str:
    """Refuse an empty identifier."""
    if not value or value.isspace():
        raise InputError(f"{place}: the id is empty; each row needs one")
    return value


def answers_of(record: dict[str, Any], place: Place) -> list[str] | None:
    """The answers that a question carries, in `answers`, `answer` or BEIR's `metadata`; None where there are none."""
    metadata = record.get("metadata")
    fields = {**metadata, **record} if isinstance(metadata, dict) else record
    found = fields.get("answers", fields.get("answer"))
    if isinstance(found, str):
        return [found]
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(answer, str) for answer in found):
        raise InputError(f"{place}: field 'answers' is {_kind(found)}; a list of texts is needed")
    return found


def columns(path: Path, least: int, layout: str, encoding: str = "utf-8") -> Iterator[tuple[Place, list[str]]]:
    """Yield the columns of each line, split at tabs; `layout` says in a message what was expected."""
    for place, line in lines(path, encoding):
        fields = line.split("\t")
        if len(fields) < least:
            raise InputError(f"{place}: {len(fields)} columns between tabs; needed: {layout}")
        yield place, fields


def quoted_columns(path: Path, least: int, layout: str) -> Iterator[tuple[Place, list[str]]]:
    """Like `columns`, where fields may stand in double quotes (CSV's rules, with tabs)."""
    place = Place(path, 0)

    def feed() -> Iterator[str]:
        nonlocal place
        for here, line in lines(path):
            place = here
            yield line + "\n"

    csv.field_size_limit(1 << 30)
    try:
        for fields in csv.reader(feed(), delimiter="\t"):
            if len(fields) < least:
                raise InputError(f"{place}: {len(fields)} columns between tabs; needed: {layout}")
            yield place, fields
    except csv.Error as error:
        raise InputError(f"{place}: {error}; needed: {layout}") from None


def _kind(value: Any) -> str:
    return {bool: "true or false", list: "a list", dict: "an object"}.get(type(value), type(value).__name__)
