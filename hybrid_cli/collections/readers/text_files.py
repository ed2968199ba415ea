"""Rows of text files (lines, JSON, columns; plain or gzip), each with its file and line for messages.

Lines end at a line feed only, and numbers in JSON keep their spelling, so that ids are preserved.
"""

from __future__ import annotations

import ast
import csv
import json
import re
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from hybrid_cli.collections.source import Document, Place
from hybrid_cli.errors import InputError
from hybrid_cli.input_files import BROKEN_GZIP, open_binary
from hybrid_cli.json_files import NOT_JSON

# Field names of BEIR, MS MARCO, DPR, Pyserini and TREC tracks.
DOCID_FIELDS = ("_id", "id", "docid", "doc_id", "docno", "pid", "passage_id")
QID_FIELDS = ("qid", "query_id", "_id", "id")
QUERY_FIELDS = ("query", "question", "text")
TITLE_FIELDS = ("title", "headline")
TEXT_FIELDS = ("text", "contents", "passage", "segment", "body", "abstract")
JSON_LINES = (".jsonl", ".json", ".ndjson")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SURROGATE = re.compile("[\ud800-\udfff]")
_BETWEEN = re.compile(r"[\s,]*")
_LONGEST_OBJECT = 1 << 28
_AS_WRITTEN = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)


def lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[Place, str]]:
    """Yield each line that is not blank, without its line end.

    Raises:
        InputError: no such file, a damaged gzip file, or bytes that are not valid in `encoding`.
    """
    for place, line in _all_lines(path, encoding):
        if line and not line.isspace():
            yield place, line.rstrip("\r\n")


def _all_lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[Place, str]]:
    """Yield each line with its line end; see `lines`."""
    number = 0
    with open_binary(path) as file:
        try:
            for number, raw in enumerate(file, 1):
                if number == 1:
                    raw = raw.removeprefix(_BYTE_ORDER_MARK)
                yield Place(path, number), raw.decode(encoding)
        except UnicodeError as error:
            byte = f"byte {error.start + 1}" if isinstance(error, UnicodeDecodeError) else "the line"
            raise InputError(
                f"{Place(path, number)}: {byte} is not valid {encoding}; convert the file to UTF-8"
            ) from None
        except BROKEN_GZIP as error:
            raise InputError(f"{path}: damaged gzip file ({error}); download it again") from None


def records(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield the objects of a JSON lines file; numbers become strings with the same spelling (`1e5` stays `1e5`)."""
    for place, line in lines(path):
        try:
            record = _AS_WRITTEN.decode(line)
        except json.JSONDecodeError as error:
            raise InputError(
                f"{place}: not valid JSON ({error.msg} at character {error.pos + 1}); fix or remove the line"
            ) from None
        except RecursionError:
            raise InputError(f"{place}: not valid JSON (nested too deeply); fix or remove the line") from None
        if not isinstance(record, dict):
            raise InputError(f"{place}: not a JSON object; each line needs one: {{...}}")
        yield place, record


def array_records(path: Path, chunk: int = 1 << 20) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield the objects of a file that is one JSON array, with bounded memory.

    Args:
        path: the file.
        chunk: characters read at a time; more for longer objects.
    """
    with open_binary(path) as binary, TextIOWrapper(binary, encoding="utf-8-sig") as file:
        held = _read(file, chunk, path).lstrip()
        if not held.startswith("["):
            raise InputError(f"{path}: not a JSON array: begins with {held[:20]!r} instead of [")
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
                    raise InputError(f"{place}: not valid JSON ({error.msg}); fix the file") from None
                held, at = held[at:] + more, 0
                continue
            except RecursionError:
                raise InputError(f"{place}: not valid JSON (nested too deeply); fix the file") from None
            if not isinstance(record, dict):
                raise InputError(f"{place}: not a JSON object; the array needs objects: {{...}}")
            yield place, record
            number += 1


def _end_of(pattern: re.Pattern[str], text: str, begin: int) -> int:
    found = pattern.match(text, begin)
    return found.end() if found else begin


def _read(file: TextIOWrapper, size: int, path: Path) -> str:
    try:
        return file.read(size)
    except UnicodeDecodeError:
        raise InputError(f"{path}: not valid UTF-8; convert the file") from None
    except BROKEN_GZIP as error:
        raise InputError(f"{path}: damaged gzip file ({error}); download it again") from None


def text_of(record: dict[str, Any], names: Sequence[str], place: Place, *, default: str | None = None) -> str:
    """Return the first of the fields `names` that exists, as a string.

    Raises:
        InputError: none exists and there is no `default`, or the value is neither text nor a number.
    """
    for name in names:
        value = record.get(name)
        if isinstance(value, str):
            return value if value.isascii() else without_surrogates(value)
        if value is not None:
            raise InputError(f"{place}: field '{name}' is {_kind(value)}; text is needed")
    if default is None:
        raise InputError(f"{place}: no field {' or '.join(names)} (fields: {', '.join(record) or 'none'})")
    return default


def without_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can escape (`\\ud800`) and UTF-8 cannot encode, by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if _SURROGATE.search(text) else text


def id_of(record: dict[str, Any], names: Sequence[str], place: Place) -> str:
    """Return the id in one of the fields `names`; it must not be empty."""
    return checked_id(text_of(record, names, place), place)


def checked_id(value: str, place: Place) -> str:
    """Return the id; refuse an empty one."""
    if not value or value.isspace():
        raise InputError(f"{place}: empty id; each row needs one")
    return value


def answers_of(record: dict[str, Any], place: Place) -> list[str] | None:
    """Return the answers of a question, in `answers`, `answer` or BEIR's `metadata`; None if there are none."""
    metadata = record.get("metadata")
    fields = {**metadata, **record} if isinstance(metadata, dict) else record
    found = fields.get("answers", fields.get("answer"))
    if isinstance(found, str):
        found = [found]
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(answer, str) for answer in found):
        raise InputError(f"{place}: field 'answers' is {_kind(found)}; a list of texts is needed")
    return [without_surrogates(answer) for answer in found]


def answer_list(text: str, place: Place) -> list[str]:
    """Parse a list in the syntax of Python or JSON: `['1912', 'April 1912']`."""
    for parse in (json.loads, ast.literal_eval):
        try:
            found = parse(text)
        except (SyntaxError, MemoryError, *NOT_JSON):  # `literal_eval` raises MemoryError for deep nesting
            continue
        if isinstance(found, list) and all(isinstance(answer, str) for answer in found):
            return [without_surrogates(answer) for answer in found]
    raise InputError(f"{place}: {text[:40]!r} is not a list of answers, such as ['1912', 'April 1912']")


def columns(path: Path, least: int, layout: str, encoding: str = "utf-8") -> Iterator[tuple[Place, list[str]]]:
    """Yield the columns of each line, split at tabs; `layout` describes the expected columns in messages."""
    for place, line in lines(path, encoding):
        fields = line.split("\t")
        if len(fields) < least:
            raise InputError(f"{place}: {len(fields)} tab-separated columns; needs {layout}")
        yield place, fields


def quoted_columns(path: Path, least: int, layout: str) -> Iterator[tuple[Place, list[str]]]:
    """Like `columns`, with fields that may be double-quoted (CSV rules, with tabs)."""
    for place, fields in csv_rows(path, "\t"):
        if len(fields) < least:
            raise InputError(f"{place}: {len(fields)} tab-separated columns; needs {layout}")
        yield place, fields


def csv_rows(path: Path, separator: str) -> Iterator[tuple[Place, list[str]]]:
    """Yield the fields of each row that is not blank; a field in double quotes may contain separators and line ends.

    Raises:
        InputError: a quote is not closed, or text follows a closing quote; the message names the first line of the row.
    """
    csv.field_size_limit(1 << 30)
    reader = csv.reader((line for _, line in _all_lines(path)), delimiter=separator, strict=True)
    place = Place(path, 1)
    try:
        for fields in reader:
            if fields and not (len(fields) == 1 and fields[0].isspace()):
                yield place, fields
            place = Place(path, reader.line_num + 1)
    except csv.Error as error:
        raise InputError(f"{place}: {error}; a quote inside a quoted field is written twice") from None


def _kind(value: Any) -> str:
    return {bool: "true or false", list: "a list", dict: "an object"}.get(type(value), type(value).__name__)


# ------------------------------------------------------------------------------------------ rows of a collection


def json_documents(path: Path) -> Iterator[Document]:
    """Yield the documents of a JSON lines file: an id, a text, and a title if there is one."""
    for place, record in records(path):
        title = text_of(record, TITLE_FIELDS, place, default="")
        yield Document(id_of(record, DOCID_FIELDS, place), title, text_of(record, TEXT_FIELDS, place), place)
