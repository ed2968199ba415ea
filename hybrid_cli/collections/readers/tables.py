"""Tables with named columns: TSV, CSV, JSON lines and Parquet files, and the choice of their columns."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hybrid_cli import console
from hybrid_cli.collections.options import ALL_COLUMNS, is_column_name
from hybrid_cli.collections.readers.text_files import columns, lines, text_of
from hybrid_cli.collections.source import Location
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.inputs.files import Limits, csv_rows, fold_name, is_parquet, limits, opened, plain_suffix
from hybrid_cli.inputs.json_rows import Number, is_json, is_nested, named_objects, records

Row = tuple[Location, Mapping[str, Any]]
_SAMPLED_ROWS = 1000
_BATCH = 64  # rows of a Parquet file in memory, whose texts may be long; more are hardly faster
_LISTED_NAMES = 50
_SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "bars"}


@dataclass(frozen=True)
class OpenTable:
    """Rows of a file by column.

    Attributes:
        path: the file.
        names: names of the columns; `1`, `2`, ... in a file without a header.
        header: the file names its columns.
        rows: returns a new stream of locations and values of columns by name; texts, and lists of answers. Other
            columns may have values, too.
        partial: names that some rows of a JSON lines file lack.
        types: types of the columns of a Parquet file.
    """

    path: Path
    names: tuple[str, ...]
    header: bool
    rows: Callable[[Collection[str]], Iterator[Row]]
    partial: frozenset[str] = frozenset()
    types: Mapping[str, pa.DataType] = dataclasses.field(default_factory=dict)

    def described(self, name: str) -> str:
        """Return a column as messages name it: `'title'`, or `column 2`."""
        return f"'{name}'" if self.header else f"column {name}"


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


def is_delimited(path: Path) -> bool:
    """Test whether a file is TSV or CSV, and neither Parquet nor JSON by its name or its content."""
    return not is_parquet(path) and not is_json(path)


def open_table(
    path: Path, layout: Layout, given: Mapping[str, str], header: bool | None, quoted: bool | None
) -> OpenTable:
    """Open a table by its content, and TSV or CSV by the suffix of its name.

    Args:
        path: the file. In a file of an unknown suffix or `.txt`, tabs separate columns, or spaces if there is no tab.
        layout: usual names of columns, which reveal a header.
        given: field -> name or number of its column.
        header: the first row names the columns; None to look for a usual name, or a name in `given`, in it.
        quoted: fields may be in double quotes; None for CSV files only.

    Raises:
        InputError: no such file, no rows, or columns without or with the same name.
    """
    if is_parquet(path):
        return _parquet(path)
    if layout.nested and is_nested(path):
        return OpenTable(path, layout.nested, True, lambda _: _nested(path, layout.nested))
    if is_json(path):
        return _json(path)
    suffix = plain_suffix(path)
    rows = _fields(path, suffix, quoted)
    head = list(islice(rows(), _SAMPLED_ROWS))
    if not head:
        raise path_error(path, "no rows", code="no-rows")
    first_row = tuple(name.strip() for name in head[0][1])
    if header is None:
        header = any(not name.isdecimal() for name in given.values()) or any(map(layout.reveals, first_row))
    names = first_row if header else tuple(str(number) for number in range(1, len(first_row) + 1))
    quoting = "in a CSV file" if layout.advice else "and --quoted in a TSV file"
    _refuse_repeated(path, names, head[0][0])
    if suffix != ".csv" and quoted is None and any(_in_quotes(field) for _, row in head for field in row):
        text = f"{path}: double quotes around fields are kept; pass --quoted to remove them"
        console.warn(text, code="quotes-kept", path=path, option="quoted")
    return OpenTable(path, names, header, lambda _: _named(rows(), names, header, quoting))


def _refuse_repeated(path: Path, names: Sequence[str], header: Location | None = None) -> None:
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        problem = f"two columns are named '{repeated[0]}'; rename one of them{_row_advice(path)}"
        raise path_error(header or path, problem, code="repeated-column", column=repeated[0])


def _in_quotes(field: str) -> bool:
    return len(field) > 1 and field[0] == field[-1] == '"'


def _fields(path: Path, suffix: str, quoted: bool | None) -> Callable[[], Iterator[tuple[Location, list[str]]]]:
    """Return a function that reads the fields of each row of a TSV or CSV file."""
    if suffix == ".csv" and quoted is not False:
        return lambda: csv_rows(path, ",")
    if suffix == ".csv":
        return lambda: ((location, line.split(",")) for location, line in lines(path))
    if quoted:
        return lambda: csv_rows(path, "\t")
    if "\t" in next((line for _, line in lines(path)), "\t"):
        return lambda: columns(path, 1, "columns")
    return lambda: ((location, line.split()) for location, line in lines(path))


def _named(
    rows: Iterator[tuple[Location, list[str]]], names: tuple[str, ...], header: bool, quoting: str
) -> Iterator[Row]:
    for location, fields in islice(rows, int(header), None):
        if len(fields) != len(names):
            count = console.counted(column=len(fields))
            problem = f"{count}, the first row has {len(names)}; quote fields with separators ({quoting})"
            raise location.error(problem, code="other-width", found=len(fields), expected=len(names))
        yield location, dict(zip(names, fields, strict=True))


def _nested(path: Path, names: Sequence[str]) -> Iterator[Row]:
    for location, outer, values in named_objects(path):
        for inner, value in values.items():
            yield location, dict(zip(names, (outer, inner, value), strict=True))


def _json(path: Path) -> OpenTable:
    """Return the table of a JSON file, which is read for the names of all objects."""
    total, counts, bound = 0, Counter[str](), limits()
    for location, record in records(path):
        total += 1
        counts.update(record.keys())
        bound.refuse_columns(location, path, len(counts))
    if not total:
        raise path_error(path, "no rows", code="no-rows")
    partial = frozenset(name for name, count in counts.items() if count < total)
    return OpenTable(path, tuple(counts), True, lambda _: records(path), partial)


def _parquet(path: Path) -> OpenTable:
    opened(path).close()

    def table() -> pq.ParquetFile:
        try:
            return pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False)
        except (pa.ArrowInvalid, OSError) as error:
            problem = f"not a valid Parquet file ({str(error).splitlines()[0]})"
            raise path_error(path, problem, code="not-parquet") from None

    def rows(columns: Collection[str]) -> Iterator[Row]:
        number, read, stored, bound = 0, 0, path.stat().st_size, limits()
        with table() as file:
            wanted = [name for name in names if name in columns]
            try:
                for batch in file.iter_batches(_BATCH, columns=wanted):
                    read += batch.nbytes
                    bound.refuse_expansion(path, read, stored)
                    arrays = list(map(_texts, batch.columns))
                    _refuse_long(path, number, dict(zip(batch.schema.names, arrays, strict=True)), bound)
                    for row in pa.table(arrays, batch.schema.names).to_pylist():
                        number += 1
                        yield Location(path, number, "row"), row
            except (pa.ArrowException, OSError) as error:
                problem = f"damaged after row {number} ({str(error).splitlines()[0]})"
                raise path_error(path, problem, code="damaged-parquet") from None

    with table() as file:
        names, types, total = tuple(file.schema_arrow.names), file.schema_arrow.types, file.metadata.num_rows
        limits().refuse_columns(path, path, len(names))
        _refuse_expanding(path, file.metadata)
    if not total:
        raise path_error(path, "no rows", code="no-rows")
    _refuse_repeated(path, names)
    return OpenTable(path, names, True, rows, types=dict(zip(names, types, strict=True)))


def _texts(column: pa.Array) -> pa.Array:
    """Return whole numbers, dates and times as texts; ids are often numbers in Parquet. Times are in UTC."""
    if pa.types.is_timestamp(column.type):
        return pc.strftime(column.cast(pa.timestamp(column.type.unit)), "%Y-%m-%dT%H:%M:%S")
    textual = pa.types.is_integer(column.type) or pa.types.is_date(column.type)
    return column.cast(pa.string()) if textual else column


def _refuse_expanding(path: Path, footer: pq.FileMetaData) -> None:
    """Refuse a file whose pages are much larger than the file, before they are read."""
    size = sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
    limits().refuse_expansion(path, size, path.stat().st_size)


def _refuse_long(path: Path, above: int, columns: Mapping[str, pa.Array], bound: Limits) -> None:
    """Refuse a text that is too long for the limits."""
    for column in columns.values():
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            longest = pc.max(pc.binary_length(column)).as_py() or 0
            if longest > bound.line:
                row = above + 1 + pc.index(pc.binary_length(column), longest).as_py()
                bound.refuse_line(Location(path, row, "row"), path, longest, "text")


# --------------------------------------------------------------------------------------------------- choice of columns


def chosen_columns(table: OpenTable, layout: Layout, given: Mapping[str, str]) -> dict[str, str]:
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
        problem = f"no column known for the {missing[0]} (columns: {listed}); {advice}{_row_advice(table.path)}"
        raise path_error(table.path, problem, code="no-such-column", field=missing[0])
    return chosen


def _row_advice(path: Path) -> str:
    """Return advice for a file that may be plain text, by the suffix of its name."""
    plain = is_delimited(path) and plain_suffix(path) not in (".csv", ".tsv")
    return "; each document, query or judgment needs a row of a table or a JSON line" if plain else ""


def _refuse_other_separator(table: OpenTable) -> None:
    """Refuse a TSV or CSV file of one column, whose first row has another separator."""
    if len(table.names) > 1 or not is_delimited(table.path):
        return
    first = table.names[0] if table.header else next(table.rows(("1",)))[1]["1"]
    for separator, what in _SEPARATORS.items():
        if separator in first:
            problem = f"{what} separate the fields; save the file as CSV with commas, or TSV with tabs"
            raise path_error(table.path, problem, code="other-separator")


def describe_columns(table: OpenTable, chosen: Mapping[str, str], metadata: Mapping[str, str]) -> str:
    """Return one line about the columns that are read: `docs.csv: id from 'docid', text from 'body'`."""
    read = ", ".join(f"{field} from {table.described(name)}" for field, name in chosen.items())
    typed = [f"{name} ({kind})" for name, kind in metadata.items() if name in table.names]
    ignored = [table.described(name) for name in ignored_columns(table, chosen, metadata)]
    header = "" if table.header else "no header; "
    parts = [f"; {what}: {_listed(some)}" for what, some in (("metadata", typed), ("ignored", ignored)) if some]
    return f"{table.path}: {header}{read}{''.join(parts)}"


def ignored_columns(table: OpenTable, chosen: Mapping[str, str], metadata: Iterable[str]) -> list[str]:
    """Return the columns that are not read."""
    read = {*chosen.values(), *metadata}
    return [name for name in table.names if name not in read]


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _LISTED_NAMES
    return ", ".join(names[:_LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")


def cell(row: Mapping[str, Any], column: str, location: Location, *, default: str | None = None) -> str:
    """Return a value as text; an empty cell of a Parquet file is an error without a `default`."""
    if row.get(column) is None and default is None:
        raise location.error(f"no value in column '{column}'", code="missing-value", column=column)
    return text_of(dict(row), (column,), location, default=default)


# ------------------------------------------------------------------------------------------------------------- metadata


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
        text = f"--metadata all: left out: {', '.join(left_out)} (several types, lists, objects, or no identifiers)"
        console.note(text, code="columns-left-out", option="metadata", columns=left_out)
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
