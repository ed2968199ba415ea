"""Metadata of documents: columns of their tables with one type each, which filters of a search read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from hybrid_cli import console
from hybrid_cli.collections.options import ALL_COLUMNS, is_column_name
from hybrid_cli.collections.readers.tables import OpenTable, is_delimited
from hybrid_cli.collections.source import Location
from hybrid_cli.errors import InputError
from hybrid_cli.inputs.json_rows import Number

_WHOLE = re.compile(r"-?(0|[1-9]\d*)")  # 007 is a text
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_BOOLEANS = {"true": True, "false": False}
_LARGEST = 2**63
_OTHER = "a list, an object or a number beyond 64 bits"
Kinds = dict[str, Location]  # type of a value -> location of the first one


def metadata_types(names: Sequence[str], tables: Sequence[OpenTable], taken: Sequence[Iterable[str]]) -> dict[str, str]:
    """Return the type of each column of metadata: of Parquet files as stored, else of all its values.

    Args:
        names: columns, or `all`: every column that is not a field, has a name for filters, and has values of one type.
        tables: the tables of documents.
        taken: for each table, the columns of its fields.

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
    fields = {name for columns in taken for name in columns}
    wanted = [name for name in every if name not in fields and is_column_name(name)] if whole else list(names)
    kinds: dict[str, Kinds] = {name: {} for name in wanted}
    for table in tables:
        _add_kinds(table, [name for name in wanted if name in table.names], kinds)
    textual = all(is_delimited(table.path) for table in tables)
    types, left_out = {}, [name for name in every if name not in fields and name not in wanted] if whole else []
    for name in wanted:
        try:
            types[name] = _common_type(name, kinds[name], textual)
        except InputError:
            if not whole:
                raise
            left_out.append(name)
    if left_out:
        console.note(
            f"--metadata all: left out: {', '.join(left_out)} (lists, objects, values of several types, or names that "
            "are no identifiers)",
            code="columns-left-out",
            option="metadata",
            columns=left_out,
        )
    return types


def _add_kinds(table: OpenTable, names: Sequence[str], kinds: Mapping[str, Kinds]) -> None:
    """Add the types of values of columns that a table has."""
    if table.types:
        for name in names:
            kinds[name].setdefault(_stored_type(table.types[name]), Location(table.path, 1, "row"))
        return
    kind_of = _kind_of_text if is_delimited(table.path) else _kind_of_value
    for location, row in table.rows(names):
        for name in names:
            value = row.get(name)
            if value is not None and value != "":
                kinds[name].setdefault(kind_of(value), location)


def _stored_type(kind: pa.DataType) -> str:
    """Return the type of a Parquet column; dates and times become texts in ISO 8601, which compare as they do."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
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
    if _WHOLE.fullmatch(text) and -_LARGEST <= int(text) < _LARGEST:
        return "int64"
    return "float64" if _NUMBER.fullmatch(text) else "string"


def _kind_of_value(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, Number):
        whole = _WHOLE.fullmatch(value) is not None
        return "float64" if not whole else "int64" if -_LARGEST <= int(value) < _LARGEST else _OTHER
    return "string" if isinstance(value, str) else _OTHER


def _common_type(name: str, kinds: Kinds, textual: bool) -> str:
    """Return the type for values of several types: floats for numbers, texts for a column of TSV and CSV files."""
    if _OTHER in kinds:
        problem = f"--metadata {name}: {_OTHER}; metadata needs texts, numbers or true and false"
        raise kinds[_OTHER].error(problem, code="other-type", column=name)
    if len(kinds) <= 1:
        return next(iter(kinds), "string")
    if set(kinds) == {"int64", "float64"}:
        return "float64"
    if textual:
        return "string"
    (first, location), (second, other) = list(kinds.items())[:2]
    problem = f"--metadata {name}: a {second}, but a {first} in {location}; write all values with one type"
    raise other.error(problem, code="other-type", column=name)


def metadata_values(row: Mapping[str, Any], types: Mapping[str, str], textual: bool) -> Iterator[Any]:
    """Yield the values of a row with their types; None for a missing value, NaN, or an empty cell of TSV and CSV.

    Args:
        row: values by column.
        types: types of `metadata_types`.
        textual: the row is of a TSV or CSV file.
    """
    for name, kind in types.items():
        value = row.get(name)
        if value is None or (value == "" and (textual or kind != "string")):
            yield None
        elif kind == "string":
            yield str(value)
        elif kind == "boolean":
            yield value if isinstance(value, bool) else _BOOLEANS[value.casefold()]
        elif kind == "int64":
            yield int(value)
        else:
            number = float(value)
            yield None if math.isnan(number) else number
