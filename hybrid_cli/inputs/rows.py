"""Files with rows of any origin: opened and recognized once, read in pieces under the limits, also as tables.

A text has lines, TSV or CSV fields, or JSON: lines, one array, indented objects, or one object of objects, of which one
row is in memory. Numbers of JSON keep their spelling as strings (`Number`), so that ids are preserved.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from hybrid_cli.errors import InputError, path_error
from hybrid_cli.inputs.files import (
    Limits,
    Location,
    csv_rows,
    is_parquet,
    limits,
    located_lines,
    open_binary,
    opened,
    plain_suffix,
)
from hybrid_cli.inputs.json_values import ESCAPED_SURROGATE, describe_value, mismatch_of_fields, without_surrogates

Form = Literal["parquet", "json", "text"]
_JSON_LINES = (".jsonl", ".json", ".ndjson")
_HEAD = 1 << 16  # bytes that reveal JSON
_SPACE = re.compile(r"\s*")
_STARTS = re.compile(r"\s*(?:\{\s*[\"}]|\[\s*[{\]])")  # an object, or an array of objects
_NESTED = re.compile(r'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\{')  # an object of objects
_LONGEST_WORD = 12  # characters of `-Infinity` or of an escaped surrogate pair, of which the end of a chunk has a part
_CHUNK = 1 << 20  # characters of an array or of indented JSON that are read at a time; more for longer objects


class Number(str):
    """A number as it is written."""


_AS_WRITTEN = json.JSONDecoder(parse_float=Number, parse_int=Number, parse_constant=Number)


@dataclass(frozen=True)
class InputFile:
    """A file with rows, and what its name and its first bytes reveal.

    Attributes:
        path: the file.
        form: Parquet, JSON, or another text.
        suffix: suffix of the format: `.csv` for `a.csv.gz`.
        is_array: a text that begins as a list of JSON does.
        is_nested: one JSON object of objects, such as `{"qid": {"docid": 1}}`, by its beginning.
    """

    path: Path
    form: Form
    suffix: str
    is_array: bool = False
    is_nested: bool = False

    @classmethod
    def of(cls, path: Path) -> InputFile:
        """Open a file and recognize it.

        Raises:
            InputError: see `open_binary`.
        """
        suffix = plain_suffix(path)
        if is_parquet(path):
            opened(path).close()
            return cls(path, "parquet", suffix)
        with open_binary(path) as file:
            head = file.read(_HEAD).removeprefix(BOM_UTF8).decode("utf-8", "replace")
        form: Form = "json" if suffix in _JSON_LINES or _STARTS.match(head) else "text"
        return cls(path, form, suffix, head.lstrip().startswith("["), _NESTED.match(head) is not None)

    def lines(self, encoding: str = "utf-8") -> Iterator[tuple[Location, str]]:
        """Yield each line that is not blank, without its line end; see `lines`."""
        return lines(self.path, encoding)

    @cached_property
    def first_line(self) -> str:
        """The first line that is not blank; empty if there is none."""
        return next((line for _, line in self.lines()), "")

    def records(self, chunk: int = _CHUNK) -> Iterator[tuple[Location, dict[str, Any]]]:
        """Yield the objects of JSON lines, of one array, or of indented JSON, with bounded memory.

        Numbers become strings with the same spelling (`1e5` stays `1e5`).
        """
        bound = limits()
        for location, record in self._values(chunk):
            if not isinstance(record, dict):
                problem = f"is {describe_value(record)}; each line, or item of an array, needs an object {{...}}"
                raise InputError(f"{location}: {problem}", code="not-an-object", path=self.path, line=location.number)
            bound.refuse_columns(location, self.path, len(record), "fields")
            yield location, record

    def _values(self, chunk: int) -> Iterator[tuple[Location, Any]]:
        if not (self.is_array or self._is_indented):
            for location, line in self.lines():
                try:
                    value = _AS_WRITTEN.decode(line)
                    value = without_surrogates(value) if ESCAPED_SURROGATE.search(line) else value
                except json.JSONDecodeError as error:
                    _refuse_json(location, f"{error.msg} at character {error.pos + 1:,}", "fix or remove the line")
                except RecursionError:
                    _refuse_json(location, "nested too deeply", "fix or remove the line")
                yield location, value
            return
        with _Json(self.path, chunk) as text:
            for number in text.items("]" if text.skip("[") else ""):
                yield text.location_of(number), text.value(number)

    @property
    def _is_indented(self) -> bool:
        """Return whether the first line is the beginning of an object."""
        text = next((line for _, line in self.lines()), "").rstrip()  # not held: there may be many files
        try:
            _AS_WRITTEN.decode(text)
        except json.JSONDecodeError as error:
            return text.lstrip().startswith("{") and error.pos >= len(text)
        except RecursionError:
            pass
        return False

    def named_objects(self, chunk: int = _CHUNK) -> Iterator[tuple[Location, str, dict[str, Any]]]:
        """Yield the names and objects of one JSON object of objects, with bounded memory; see `is_nested`."""
        with _Json(self.path, chunk) as text:
            text.skip("{")
            for number in text.items("}"):
                name = text.value(number)
                if not isinstance(name, str) or not text.skip(":"):
                    text.refuse(number, "an item needs a name and ':'")
                value = text.value(number)
                if not isinstance(value, dict):
                    problem = f"{text.location_of(number)}: '{name}' has {describe_value(value)}; an object is needed"
                    raise InputError(problem, code="not-an-object", path=self.path, line=number)
                yield text.location_of(number), name, value


def lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[Location, str]]:
    """Yield each line that is not blank, without its line end, a line feed, so that texts and ids are preserved.

    Raises:
        InputError: no such file, a line over the limits, damaged compression, or bytes not valid in `encoding`.
    """
    for location, line in located_lines(path, encoding):
        if line and not line.isspace():
            yield location, line.rstrip("\r\n")


def columns(path: Path, least: int, layout: str, quoted: bool = False) -> Iterator[tuple[Location, list[str]]]:
    """Yield the columns of each line, split at tabs; `layout` describes the expected columns in messages.

    Args:
        path: the file.
        least: number of columns that every line needs.
        layout: the columns in words.
        quoted: fields may be in double quotes (CSV rules, with tabs).
    """
    bound = limits()
    split = ((location, line.split("\t", bound.columns)) for location, line in lines(path))
    for location, fields in csv_rows(path, "\t") if quoted else split:
        bound.refuse_columns(location, path, len(fields))
        if len(fields) < least:
            raise location.error(f"{len(fields)} tab-separated columns; needs {layout}", code="too-few-columns")
        yield location, fields


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

    def items(self, end: str) -> Iterator[int]:
        """Yield the number of each item, before it is read, up to the sign at the end; without one, of each value."""
        number = 0
        while not (self.skip(end) if end else self.ended()):
            if end and number and not self.skip(","):
                self.refuse(number + 1, "no comma between two items")
            number += 1
            yield number
        if not self.ended():
            self.refuse(number, "more text after the end")

    def value(self, number: int) -> Any:
        """Return the next value.

        Raises:
            InputError: no JSON, or a value that is too long.
        """
        self.ended()
        while True:
            try:
                begin = self._at
                value, self._at = _AS_WRITTEN.raw_decode(self._held, begin)
                return without_surrogates(value) if ESCAPED_SURROGATE.search(self._held, begin, self._at) else value
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


# -------------------------------------------------------------------------------------------------------------- tables


Row = tuple[Location, Mapping[str, Any]]
Fields = Callable[[], Iterator[tuple[Location, list[str]]]]
_SAMPLED_ROWS = 1000
_BATCH = 64  # rows of a Parquet file in memory, whose texts may be long; more are hardly faster


@dataclass(frozen=True)
class Table:
    """Rows of a file by column.

    Attributes:
        file: the file.
        names: names of the columns; `1`, `2`, ... in a file without a header.
        header: the file names its columns.
        rows: returns a new stream of locations and values of columns by name; texts, and lists of answers. Other
            columns may have values, too.
        partial: names that some rows of a JSON lines file lack.
        types: types of the columns of a Parquet file.
        keeps_quotes: double quotes around fields of a TSV file are parts of the values.
        columns: field -> name of its column, as the reader of the table chose them.
    """

    file: InputFile
    names: tuple[str, ...]
    header: bool
    rows: Callable[[Collection[str]], Iterator[Row]]
    partial: frozenset[str] = frozenset()
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    keeps_quotes: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        file: InputFile,
        names_columns: Callable[[Sequence[Sequence[str]]], bool],
        quoted: bool | None = None,
        nested: tuple[str, ...] = (),
    ) -> Table:
        """Open a table.

        Args:
            file: the file. In a text of an unknown suffix or `.txt`, tabs separate columns, spaces if there is no tab.
            names_columns: tells from the first rows of a TSV or CSV file whether the first one names the columns.
            quoted: fields of TSV and CSV files may be in double quotes; None for CSV files only.
            nested: columns of one JSON object of objects (`{"q1": {"d1": 2}}`); none if such a file is no table.

        Raises:
            InputError: no rows, or columns without or with the same name.
        """
        if file.form == "parquet":
            return _parquet(file)
        if nested and file.is_nested:
            return cls(file, nested, True, lambda _: _nested(file, nested))
        return _json(file) if file.form == "json" else _delimited(file, names_columns, quoted)

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return self.file.path

    @property
    def is_delimited(self) -> bool:
        """Return whether the file is TSV or CSV."""
        return self.file.form == "text"

    def described(self, name: str) -> str:
        """Return a column as messages name it: `'title'`, or `column 2`."""
        return f"'{name}'" if self.header else f"column {name}"


def row_advice(file: InputFile) -> str:
    """Return advice for a file that may be plain text, by the suffix of its name."""
    plain = file.form == "text" and file.suffix not in (".csv", ".tsv")
    return "; each document, query or judgment needs a row of a table or a JSON line" if plain else ""


def _delimited(file: InputFile, names_columns: Callable[[Sequence[Sequence[str]]], bool], quoted: bool | None) -> Table:
    """Return the table of a TSV or CSV file."""
    rows = _fields(file, quoted)
    head = list(islice(rows(), _SAMPLED_ROWS))
    if not head:
        raise path_error(file.path, "no rows", code="no-rows")
    location, fields = head[0]
    first_row = tuple(name.strip() for name in fields)
    header = names_columns([first_row, *(row for _, row in head[1:])])
    names = first_row if header else tuple(str(number) for number in range(1, len(first_row) + 1))
    _refuse_repeated(file, names, location)
    unread = quoted is None and file.suffix != ".csv"
    keeps_quotes = unread and any(len(field) > 1 and field[0] == field[-1] == '"' for _, row in head for field in row)
    return Table(file, names, header, lambda _: _named(rows(), names, header), keeps_quotes=keeps_quotes)


def _refuse_repeated(file: InputFile, names: Sequence[str], header: Location | None = None) -> None:
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        problem = f"two columns are named '{repeated[0]}'; rename one of them{row_advice(file)}"
        raise path_error(header or file.path, problem, code="repeated-column", column=repeated[0])


def _fields(file: InputFile, quoted: bool | None) -> Fields:
    """Return a function that reads the fields of each row of a TSV or CSV file."""
    if file.suffix == ".csv" and quoted is not False:
        return lambda: csv_rows(file.path, ",")
    if file.suffix == ".csv":
        return lambda: ((location, line.split(",")) for location, line in file.lines())
    if quoted:
        return lambda: csv_rows(file.path, "\t")
    if not file.first_line or "\t" in file.first_line:
        return lambda: columns(file.path, 1, "columns")
    return lambda: ((location, line.split()) for location, line in file.lines())


def _named(rows: Iterator[tuple[Location, list[str]]], names: tuple[str, ...], header: bool) -> Iterator[Row]:
    for location, fields in islice(rows, int(header), None):
        if len(fields) != len(names):
            problem = f"{len(fields)} columns, the first row has {len(names)}; quote fields with separators, in a CSV"
            problem = f"{problem} file, or in a TSV file that `prepare files --quoted` reads"
            raise location.error(problem, code="other-width", found=len(fields), expected=len(names))
        yield location, dict(zip(names, fields, strict=True))


def _nested(file: InputFile, names: Sequence[str]) -> Iterator[Row]:
    for location, outer, values in file.named_objects():
        for inner, value in values.items():
            yield location, dict(zip(names, (outer, inner, value), strict=True))


def _json(file: InputFile) -> Table:
    """Return the table of a JSON file, which is read for the names of all objects."""
    total, counts, bound = 0, Counter[str](), limits()
    for location, record in file.records():
        total += 1
        counts.update(record.keys())
        bound.refuse_columns(location, file.path, len(counts))
    if not total:
        raise path_error(file.path, "no rows", code="no-rows")
    partial = frozenset(name for name, count in counts.items() if count < total)
    return Table(file, tuple(counts), True, lambda _: file.records(), partial)


def _parquet(file: InputFile) -> Table:
    path = file.path

    def open_file() -> pq.ParquetFile:
        try:
            return pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False)
        except (pa.ArrowInvalid, OSError) as error:
            problem = f"not a valid Parquet file ({str(error).splitlines()[0]})"
            raise path_error(path, problem, code="not-parquet") from None

    def rows(columns: Collection[str]) -> Iterator[Row]:
        number, read, stored, bound = 0, 0, path.stat().st_size, limits()
        with open_file() as opened:
            wanted = [name for name in names if name in columns]
            try:
                for batch in opened.iter_batches(_BATCH, columns=wanted):
                    read += batch.nbytes
                    bound.refuse_expansion(path, read, stored)
                    arrays = list(map(_texts, batch.columns))
                    _refuse_long(path, number, dict(zip(batch.schema.names, arrays, strict=True)), bound)
                    for row in pa.table(arrays, batch.schema.names).to_pylist():
                        number += 1
                        yield Location(path, number, "row"), row
            except UnicodeDecodeError:
                raise path_error(path, f"not valid UTF-8 after row {number}", code="not-utf-8") from None
            except (pa.ArrowException, OSError) as error:
                problem = f"damaged after row {number} ({str(error).splitlines()[0]})"
                raise path_error(path, problem, code="damaged-parquet") from None

    with open_file() as opened:
        names, types, footer = tuple(opened.schema_arrow.names), opened.schema_arrow.types, opened.metadata
    limits().refuse_columns(path, path, len(names))
    size = sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
    limits().refuse_expansion(path, size, path.stat().st_size)  # before pages are read
    if not footer.num_rows:
        raise path_error(path, "no rows", code="no-rows")
    _refuse_repeated(file, names)
    return Table(file, names, True, rows, types=dict(zip(names, types, strict=True)))


def _texts(column: pa.Array) -> pa.Array:
    """Return whole numbers, dates and times as texts; ids are often numbers in Parquet. Times are in UTC."""
    if pa.types.is_timestamp(column.type):
        import pyarrow.compute as pc

        return pc.strftime(column.cast(pa.timestamp(column.type.unit)), "%Y-%m-%dT%H:%M:%S")
    textual = pa.types.is_integer(column.type) or pa.types.is_date(column.type)
    return column.cast(pa.string()) if textual else column


def _refuse_long(path: Path, above: int, columns: Mapping[str, pa.Array], bound: Limits) -> None:
    """Refuse a text that is too long for the limits."""
    import pyarrow.compute as pc

    for column in columns.values():
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            longest = pc.max(pc.binary_length(column)).as_py() or 0
            if longest > bound.line:
                row = above + 1 + pc.index(pc.binary_length(column), longest).as_py()
                bound.refuse_line(Location(path, row, "row"), path, longest, "text")
