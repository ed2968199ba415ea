"""Filters: a condition over the metadata of documents, evaluated once into the documents that a search may return.

DuckDB reads a condition and evaluates it. Its parser bounds the depth of expressions; of what it reads, only the
columns, operators and functions that are listed here are accepted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import InputError, require_packages
from hybrid_cli.runs.index import Allowed

MOST_CHARACTERS = 16_384
SECONDS = 10.0  # of an evaluation
_FUNCTIONS = ("lower", "upper", "length", "abs", "coalesce", "contains")
_OPERATORS = ("+", "-", "*", "/", "//", "%", "||", "~~", "!~~", "~~*", "!~~*")  # with LIKE and ILIKE
_ESCAPES = ("like_escape", "not_like_escape", "ilike_escape", "not_ilike_escape")
_EXPRESSIONS = (
    *("COLUMN_REF", "CONSTANT", "CONJUNCTION", "COMPARISON", "OPERATOR", "BETWEEN", "CASE", "FUNCTION"),
    *("CAST", "TYPE"),  # which `IS TRUE` contains
)
_ELEMENTS = ("ARRAY_EXTRACT", "ARRAY_SLICE", "STRUCT_EXTRACT", "ARRAY_CONSTRUCTOR")  # operators on nested values
_SETTINGS: dict[str, Any] = {
    "enable_external_access": False,  # no file and no other database
    "python_enable_replacements": False,  # and no variable of this program
    "autoload_known_extensions": False,
    "threads": 1,  # rows keep their order
    "max_expression_depth": 100,
}
_EXAMPLE = "such as: year >= 2020 AND lang = 'de'"


class Metadata:
    """The metadata of the documents of corpora; a later corpus replaces the documents of earlier ones."""

    def __init__(self, corpora: Sequence[Path]) -> None:
        self.corpora = tuple(corpora)

    @cached_property
    def schema(self) -> dict[str, pl.DataType]:
        """Type of each column.

        Raises:
            InputError: the corpora have a column with texts and with numbers.
        """
        return collections.common_schema(self.corpora)

    def allowed(self, text: str, among: Allowed | None = None) -> Allowed:
        """Return the documents for which a predicate is true; as in SQL, it is not where a comparison meets a null.

        Args:
            text: the predicate.
            among: evaluates it for these documents alone; None for all.

        Raises:
            InputError: no predicate over the columns; see `predicate`.
        """
        names = columns_of(text, self.schema)
        frame = pl.concat(
            [collections.metadata(corpus, {name: self.schema[name] for name in names}) for corpus in self.corpora]
        )
        if len(self.corpora) > 1:
            frame = frame.filter(pl.col("docid").is_last_distinct())
        if among is not None:
            frame = frame.filter(among.mask(frame["docid"]))
        return Allowed(frame["docid"], matching(text, frame))


def allowed_of(text: str, table: pl.DataFrame) -> Allowed:
    """Return the documents of a table (docid and metadata) for which a predicate is true; see `Metadata.allowed`."""
    names = columns_of(text, {name: kind for name, kind in table.schema.items() if name != "docid"})
    return Allowed(table["docid"], matching(text, table.select("docid", *names)))


def columns_of(text: str, schema: Mapping[str, pl.DataType]) -> list[str]:
    """Return the columns that a condition in the syntax of SQL reads.

    Raises:
        InputError: a syntax error, an unknown column or function, types that cannot be compared, or no condition.
        PackageError: DuckDB is not installed.
    """
    with require_packages("duckdb"):
        import duckdb  # noqa: F401
    if len(text) > MOST_CHARACTERS:
        problem = f"--filter: has {len(text):,} characters, at most {MOST_CHARACTERS:,} are read"
        raise InputError(problem, code="too-long", option="filter", value=len(text), limit=MOST_CHARACTERS)
    names = dict.fromkeys(_names(text))
    for name in names:
        if name not in schema:
            known = _in_words(schema) or "none; see `prepare --metadata`"
            quotes = "; a text needs single quotes" if f'"{name}"' in text else ""
            problem = f"--filter: the documents have no column {name} (columns: {known}){quotes}"
            raise InputError(problem, code="no-such-column", option="filter", column=name, choices=list(schema))
    row: dict[str, Any] = {"docid": pl.String()} | {name: schema[name] for name in names}
    matching(text, pl.DataFrame({name: [None] for name in row}, schema=row))
    return list(names)


def kind_of(dtype: pl.DataType) -> str:
    """Return the kind of the values of a column, as people call it."""
    if dtype in (pl.Boolean, pl.List):
        return "boolean" if dtype == pl.Boolean else "list"
    return "number" if dtype.is_numeric() else "text"


def _in_words(schema: Mapping[str, pl.DataType]) -> str:
    return ", ".join(f"{name} ({kind_of(kind)})" for name, kind in schema.items())


@cache
def _database() -> Any:
    """Return an empty database in memory; each evaluation has a connection of its own."""
    import duckdb  # slow to import

    return duckdb.connect(config=_SETTINGS)


def _statement(text: str) -> str:
    return f"SELECT ({text}\n) AS kept FROM documents"


def _names(text: str) -> Iterator[str]:
    """Yield the columns of a condition.

    Raises:
        InputError: more than a condition, or operators and functions that a filter does not have.
    """
    import duckdb

    try:
        (read,) = _database().cursor().execute("SELECT json_serialize_sql(?)", [_statement(text)]).fetchone() or ("",)
    except duckdb.Error as error:
        read = json.dumps({"error": True, "error_message": _first_line(error)})
    tree = json.loads(read)
    if tree["error"]:
        problem = f"--filter: {tree['error_message']}; pass a condition, {_EXAMPLE}"
        raise InputError(problem, code="filter-syntax", option="filter", value=text)
    statements = [each["node"] for each in tree["statements"]]
    selected = [each for node in statements for each in node.get("select_list", ())]
    tables = [node.get("from_table", {}).get("type") for node in statements]
    if len(selected) != 1 or tables != ["BASE_TABLE"] or selected[0]["alias"] != "kept":
        problem = f"--filter {text}: is more than a condition; pass one, {_EXAMPLE}"
        raise InputError(problem, code="filter-syntax", option="filter", value=text)
    for node in _nodes(selected[0]):
        name = node.get("function_name", "").lower()
        known = node["class"] in _EXPRESSIONS and node["type"] not in _ELEMENTS
        if not known or (name and name not in (*_FUNCTIONS, *_OPERATORS, *_ESCAPES)):
            what = name or str(node["type"]).lower()
            problem = f"--filter {text}: {what} is not for filters; functions: {', '.join(_FUNCTIONS)}"
            raise InputError(problem, code="filter-syntax", option="filter", value=text)
        if node["class"] == "COLUMN_REF":
            yield ".".join(node["column_names"])


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a syntax tree, in the order of the text."""
    rest = [tree]
    while rest:
        node = rest.pop()
        inner = list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else []
        rest += reversed(inner)
        if isinstance(node, dict) and "class" in node:
            yield node


def matching(text: str, frame: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Return whether a condition is true for each row; it is not where it is null."""
    import duckdb

    connection = _database().cursor()
    ended = Event()

    def interrupt() -> None:
        while not ended.wait(SECONDS):  # an interrupt has no effect before the evaluation starts
            connection.interrupt()

    clock = Thread(target=interrupt)
    clock.start()
    try:
        connection.register("documents", frame.to_arrow())
        kept = connection.sql(_statement(text)).to_arrow_table()["kept"]
    except duckdb.InterruptException:
        problem = f"--filter {text}: takes longer than {SECONDS:g} seconds"
        raise InputError(problem, code="filter-too-slow", option="filter", value=text) from None
    except duckdb.Error as error:
        columns = _in_words({name: kind for name, kind in frame.schema.items() if name != "docid"})
        reason = f"the kinds of values differ{columns and f' (columns: {columns})'}"
        reason += "; a text needs single quotes, a number none"
        lists = [name for name, kind in frame.schema.items() if kind == pl.List]
        reason += f", a list contains({lists[0]}, 'TEXT')" if lists else ""
        kinds = isinstance(error, (duckdb.BinderException, duckdb.ConversionException))
        problem = f"--filter {text}: {reason if kinds else _first_line(error)}"
        raise InputError(problem, code="other-type", option="filter", value=text) from None
    finally:
        ended.set()
        clock.join()
        connection.close()
    values = pl.Series("kept", kept)
    if values.dtype != pl.Boolean:
        problem = f"--filter {text}: is a {kind_of(values.dtype)}, not true or false; pass a condition, {_EXAMPLE}"
        raise InputError(problem, code="other-type", option="filter", value=text)
    return values.fill_null(False).to_numpy()


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
