"""Text files line by line, with the place of each line for messages: plain or gzip, JSON lines, columns.

Lines end at a line feed and nowhere else, and a number in JSON keeps its spelling, so that ids survive.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from hybrid_cli.errors import InputError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_AS_WRITTEN = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)


class Place(NamedTuple):
    """Where something stands, as messages say it."""

    file: Path | str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


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
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
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


def text_of(record: dict[str, Any], names: Sequence[str], place: Place, *, default: str | None = None) -> str:
    """The first of the fields `names` that is there, as a string.

    Raises:
        InputError: none is there and there is no `default`, or it is neither text nor a number.
    """
    for name in names:
        value = record.get(name)
        if isinstance(value, str):
            return value
        if value is not None:
            raise InputError(f"{place}: field '{name}' is {_kind(value)}; text is needed")
    if default is None:
        raise InputError(
            f"{place}: has none of the fields {', '.join(names)} (found: {', '.join(record) or 'nothing'})"
        )
    return default


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


def _kind(value: Any) -> str:
    return {bool: "true or false", list: "a list", dict: "an object"}.get(type(value), type(value).__name__)
