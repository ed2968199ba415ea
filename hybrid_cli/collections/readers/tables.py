"""The columns of tables of documents, queries and judgments: their choice, their types, and their values as text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import pyarrow as pa

from hybrid_cli import console
from hybrid_cli.collections.options import ALL_COLUMNS, is_column_name
from hybrid_cli.collections.readers.text_files import text_of
from hybrid_cli.collections.source import Location
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.inputs.files import fold_name
from hybrid_cli.inputs.rows import InputFile, Number, Table, row_advice

_LISTED_NAMES = 50
_NAME = re.compile(r"(?=..{1,40}$)[^\W\d]+(\W+[^\W\d]+){0,3}[)]?")  # two letters to four words, no digit
_SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "bars"}


@dataclass(frozen=True)
class Layout:
    """The columns of one kind of table.

    Attributes:
        option: option that names the columns.
        known: field -> usual names of its column, the most specific first, in lower case with `_`.
        optional: fields that a table may lack.
        positions: number of columns -> number of the column of each field, in a file without a header.
        advice: phrase for a file without a column, if `option` does not take names of columns.
        revealing: fields whose usual names reveal a header; all if empty.
        nested: columns of one JSON object of objects (`{"q1": {"d1": 2}}`); none if such a file is no table.
    """

    option: str
    known: Mapping[str, Sequence[str]]
    optional: frozenset[str]
    positions: Mapping[int, Mapping[str, str]]
    advice: str = ""
    revealing: frozenset[str] = frozenset()
    nested: tuple[str, ...] = ()

    def reveals(self, name: str) -> bool:
        """Return whether a name in the first row reveals a header."""
        return any(self.names(field, name) for field in self.revealing or self.known)

    def names(self, field: str, name: str) -> bool:
        """Return whether a name is a usual one of the column of a field."""
        return fold_name(name) in self.known[field]


def open_table(
    file: InputFile, layout: Layout, given: Mapping[str, str], header: bool | None, quoted: bool | None
) -> Table:
    """Open a table, and choose the column of each field; warn about double quotes that are kept.

    Args:
        file: the file.
        layout: usual names of columns, which reveal a header.
        given: field -> name or number of its column.
        header: the first row names the columns; None to look for a usual name, a name in `given`, or a text above
            numbers in it.
        quoted: fields may be in double quotes; None for CSV files only.

    Raises:
        InputError: no rows, columns without or with the same name, no column for a field, or a first row that may name
            columns or be data.
    """

    def names_columns(rows: Sequence[Sequence[str]]) -> bool:
        if header is not None:
            return header
        if any(not name.isdecimal() for name in given.values()) or any(map(layout.reveals, rows[0])):
            return True
        undecided = not layout.advice and not given and len(rows[0]) in layout.positions
        return _is_header(rows, file if undecided else None)

    table = warned_about_quotes(Table.of(file, names_columns, quoted, layout.nested))
    return replace(table, columns=_chosen_columns(table, layout, given))


def _is_header(rows: Sequence[Sequence[str]], file: InputFile | None) -> bool:
    """Return whether a first row without usual names has a text in a column of numbers.

    Args:
        rows: the first rows of a file.
        file: the file, if an undecided first row is an error; None to take it for data.

    Raises:
        InputError: the first row has short texts without digits, which may be names of columns.
    """
    first, columns = rows[0], zip_longest(*rows[1:], fillvalue="")
    for name, values in zip(first, columns, strict=False):
        if name and not _NUMBER.fullmatch(name) and all(map(_NUMBER.fullmatch, values)):
            return True
    if file is None or not all(_NAME.fullmatch(name) for name in first):
        return False
    problem = f"line 1 ({', '.join(first)}) may name the columns or be data; pass --header or --no-header"
    raise path_error(
        file.path, f"{problem} of `prepare files` or `auto`", code="undecided-header", line=1, option="header"
    )


def warned_about_quotes(table: Table) -> Table:
    """Return the table; warn if double quotes around fields are kept."""
    if table.keeps_quotes:
        text = f"{table.path}: double quotes around fields are kept; pass --quoted to remove them"
        console.warn(text, code="quotes-kept", path=table.path, option="quoted")
    return table


# --------------------------------------------------------------------------------------------------- choice of columns


def _chosen_columns(table: Table, layout: Layout, given: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each field: the given one, else by its usual name, else by its position.

    A field that every row needs takes a column that some rows lack only if no other has a usual name.

    Raises:
        InputError: a given column does not exist, or no column is known for a field that is needed.
    """
    listed = _listed(table.names) if table.header else f"1 to {len(table.names)}, without a header"
    for field, name in given.items():
        if name not in table.names:
            _refuse_other_separator(table)
            problem = f"{layout.option} {field}={name}: {table.path} has no such column (columns: {listed})"
            raise InputError(problem, code="no-such-column", path=table.path, option=layout.option, column=name)
    chosen = dict(given)
    free = {fold_name(name): name for name in reversed(table.names) if name not in given.values()}
    positions = {} if table.header or given else layout.positions.get(len(table.names), {})
    for field, known in layout.known.items():
        usual = [free[spelling] for spelling in known if spelling in free]
        if field not in layout.optional:
            usual.sort(key=table.partial.__contains__)
        guessed = next(iter(usual), positions.get(field))
        if field not in chosen and guessed is not None:
            chosen[field] = guessed
            free.pop(fold_name(guessed), None)
    missing = [field for field in layout.known if field not in chosen and field not in layout.optional]
    if missing:
        _refuse_other_separator(table)
        advice = layout.advice or f"name it with {layout.option} {missing[0]}=COLUMN"
        if not (table.header or layout.advice):
            advice += ", or pass --header if the first row names the columns"
        problem = f"no column known for the {missing[0]} (columns: {listed}); {advice}{row_advice(table.file)}"
        raise path_error(table.path, problem, code="no-such-column", field=missing[0])
    return chosen


def _refuse_other_separator(table: Table) -> None:
    """Refuse a TSV or CSV file of one column, whose first row has another separator."""
    if len(table.names) > 1 or not table.is_delimited:
        return
    first = table.names[0] if table.header else next(table.rows(("1",)))[1]["1"]
    for separator, what in _SEPARATORS.items():
        if separator in first:
            problem = f"{what} separate the fields; save the file as CSV with commas, or TSV with tabs"
            raise path_error(table.path, problem, code="other-separator")


def note_columns(table: Table, metadata: Mapping[str, str]) -> None:
    """Print the columns that are read: `docs.csv: id from 'docid', text from 'body'`."""
    read = ", ".join(f"{field} from {table.described(name)}" for field, name in table.columns.items())
    typed = [f"{name} ({kind})" for name, kind in metadata.items() if name in table.names]
    ignored = [name for name in table.names if name not in {*table.columns.values(), *metadata}]
    header, unread = "" if table.header else "no header; ", list(map(table.described, ignored))
    parts = [f"; {what}: {_listed(some)}" for what, some in (("metadata", typed), ("ignored", unread)) if some]
    facts = {"columns": dict(table.columns), "metadata": dict(metadata), "ignored": ignored}
    text = f"{header}{read}{''.join(parts)}".removeprefix("; ")
    console.note(f"{table.path}: {text}", code="columns", path=table.path, **facts)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _LISTED_NAMES
    return ", ".join(names[:_LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")


def cell(row: Mapping[str, Any], column: str, location: Location, *, default: str | None = None) -> str:
    """Return a value as text; an empty cell of a Parquet file is an error without a `default`."""
    value = row.get(column)
    if value is None and default is None:
        raise location.error(f"no value in column '{column}'", code="missing-value", column=column)
    return value if isinstance(value, str) else text_of(row, (column,), location, default=default)


# ------------------------------------------------------------------------------------------------------------- metadata


_WHOLE = re.compile(r"-?(0|[1-9]\d*)")  # 007 is a text
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_BOOLEANS = {"true": True, "false": False}
_LARGEST = 2**63
_UNSIGNED = pa.uint64()  # whose values decide whether they are numbers of 64 bits with a sign
_OTHER = "an object, a list of other values than texts, bytes or a number beyond 64 bits"
Kinds = dict[str, Location]  # type of a value -> location of the first one


def metadata_types(names: Sequence[str], tables: Sequence[Table]) -> dict[str, str]:
    """Return the type of each column of metadata: of Parquet files as stored, else of all its values.

    Args:
        names: columns, or `all`: every column that is not a field, has a name for filters, and has values of one type.
        tables: the tables of documents.

    Raises:
        InputError: no such column, or one with lists, objects or values of different types.
    """
    if not names:
        return {}
    every = list(dict.fromkeys(name for table in tables for name in table.names))
    whole = list(names) == [ALL_COLUMNS]
    if missing := [name for name in names if name not in every and not whole]:
        problem = f"--metadata {missing[0]}: no such column (columns: {', '.join(every)})"
        raise InputError(problem, code="no-such-column", option="metadata", column=missing[0])
    fields = {name for table in tables for name in table.columns.values()}
    wanted = [name for name in every if name not in fields and is_column_name(name)] if whole else list(names)
    kinds: dict[str, Kinds] = {name: {} for name in wanted}
    for table in tables:
        _add_kinds(table, [name for name in wanted if name in table.names], kinds)
    textual = all(table.is_delimited for table in tables)
    types, left_out = {}, [name for name in every if name not in fields and name not in wanted] if whole else []
    for name in wanted:
        try:
            types[name] = _common_type(name, kinds[name], textual)
        except InputError:
            if not whole:
                raise
            left_out.append(name)
    if left_out:
        text = f"--metadata all: left out: {', '.join(left_out)} (several types, lists, objects, or no identifiers)"
        console.note(text, code="columns-left-out", option="metadata", columns=left_out)
    return types


def _add_kinds(table: Table, names: Sequence[str], kinds: Mapping[str, Kinds]) -> None:
    """Add the types of values of columns that a table has."""
    stored = {name: table.types[name] for name in names if table.types.get(name, _UNSIGNED) != _UNSIGNED}
    for name, kind in stored.items():
        kinds[name].setdefault(_stored_type(kind), Location(table.path, 1, "row"))
    if not (rest := [name for name in names if name not in stored]):
        return
    kind_of = _kind_of_text if table.is_delimited else _kind_of_value
    for location, row in table.rows(rest):
        for name in rest:
            value = Number(row[name]) if table.types and row[name] is not None else row.get(name)
            if value is not None and value != "":
                kinds[name].setdefault(kind_of(value), location)


def _stored_type(kind: pa.DataType) -> str:
    """Return the type of a Parquet column; dates and times become texts in ISO 8601, which compare as they do."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _stored_type(kind.value_type) == "string":
        return "list"
    tests = {
        "boolean": (pa.types.is_boolean,),
        "int64": (pa.types.is_integer,),
        "float64": (pa.types.is_floating, pa.types.is_decimal),
        "string": (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_date,
            pa.types.is_timestamp,
            pa.types.is_null,
        ),
    }
    return next((name for name, some in tests.items() if any(test(kind) for test in some)), _OTHER)


def _kind_of_text(text: str) -> str:
    if text.casefold() in _BOOLEANS:
        return "boolean"
    if _WHOLE.fullmatch(text) and _has_64_bits(text):
        return "int64"
    return "float64" if _NUMBER.fullmatch(text) else "string"


def typed_text(text: str) -> Any:
    """Return a number, a truth value or a text, as `metadata_types` takes them."""
    return _BOOLEANS.get(text.casefold(), Number(text) if _NUMBER.fullmatch(text) else text)


def _kind_of_value(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, Number):
        whole = _WHOLE.fullmatch(value) is not None
        return "float64" if not whole else "int64" if _has_64_bits(value) else _OTHER
    if isinstance(value, list) and all(each is None or type(each) is str for each in value):
        return "list"
    return "string" if isinstance(value, str) else _OTHER


def _has_64_bits(whole: str) -> bool:
    return len(whole) <= len(str(-_LARGEST)) and -_LARGEST <= int(whole) < _LARGEST


def _common_type(name: str, kinds: Kinds, textual: bool) -> str:
    """Return the type for values of several types: floats for numbers, texts for a column of TSV and CSV files."""
    if _OTHER in kinds:
        problem = f"--metadata {name}: {_OTHER}; metadata needs texts, lists of texts, numbers or true and false"
        raise kinds[_OTHER].error(problem, code="other-type", column=name)
    if len(kinds) <= 1:
        return next(iter(kinds), "string")
    if set(kinds) == {"int64", "float64"}:
        return "float64"
    if textual:
        return "string"
    if set(kinds) == {"list", "string"}:  # a text is a list of one
        return "list"
    (first, location), (second, other) = list(kinds.items())[:2]
    problem = f"--metadata {name}: a {second}, but a {first} in {location}; write all values with one type"
    raise other.error(problem, code="other-type", column=name)


def metadata_values(row: Mapping[str, Any], types: Mapping[str, str], textual: bool) -> Iterator[Any]:
    """Yield the values of a row with their types.

    None is a missing value, a number that is not finite, which JSON lacks, or an empty cell of TSV and CSV.

    Args:
        row: values by column.
        types: types of `metadata_types`.
        textual: the row is of a TSV or CSV file.
    """
    for name, kind in types.items():
        value = row.get(name)
        if value is None or (value == "" and (textual or kind != "string")):
            yield None
        elif kind == "list":
            yield [str(each) for each in value if each is not None] if isinstance(value, list) else [str(value)]
        elif kind == "string":
            yield str(value)
        elif kind == "boolean":
            yield value if isinstance(value, bool) else _BOOLEANS[value.casefold()]
        elif kind == "int64":
            yield int(value)
        else:
            number = float(value)
            yield number if math.isfinite(number) else None
