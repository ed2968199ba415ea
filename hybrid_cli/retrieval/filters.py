"""Filters: a predicate over the metadata of documents, evaluated once into the documents that a search may return."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import polars as pl

from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.runs.index import Allowed

_FUNCTIONS = ("lower", "upper", "length", "abs", "coalesce")
_OPERATORS = ("and", "or", "not", "in", "between", "like", "ilike", "is", "when", "then", "else", "case")
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"")
_CALLED = re.compile(r"([A-Za-z_]\w*)\s*\(|\b(select)\b", re.IGNORECASE)
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
        schema: dict[str, pl.DataType] = {}
        for corpus in self.corpora:
            for name, kind in collections.metadata_schema(corpus).items():
                known = schema.setdefault(name, kind)
                if known != kind and not (known.is_numeric() and kind.is_numeric()):
                    problem = (
                        f"column {name} is {kind}, and {known} in {self.corpora[0]}; prepare the documents "
                        "again with one type"
                    )
                    raise path_error(corpus, problem, code="other-type", column=name)
                schema[name] = known if known == kind else pl.Float64()
        return schema

    def allowed(self, text: str) -> Allowed:
        """Return the documents for which a predicate is true; as in SQL, it is not where a comparison meets a null.

        Raises:
            InputError: no predicate over the columns; see `predicate`.
        """
        expression = predicate(text, self.schema)
        names = expression.meta.root_names()
        frame = pl.concat(
            [collections.metadata(corpus, {name: self.schema[name] for name in names}) for corpus in self.corpora]
        )
        if len(self.corpora) > 1:
            frame = frame.filter(pl.col("docid").is_last_distinct())
        kept = _evaluated(text, expression, frame).fill_null(False).to_numpy()
        return Allowed(frame["docid"], kept)


def predicate(text: str, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return a condition in the syntax of SQL as an expression.

    Raises:
        InputError: a syntax error, an unknown column or function, types that cannot be compared, or no condition.
    """
    try:
        expression = pl.sql_expr(text)
    except (pl.exceptions.SQLInterfaceError, pl.exceptions.SQLSyntaxError) as error:
        problem = f"--filter: {_first_line(error)}; pass a condition in the syntax of SQL, {_EXAMPLE}"
        raise InputError(problem, code="filter-syntax", option="filter", value=text) from None
    for call in _CALLED.finditer(_QUOTED.sub("''", text)):
        name = (call[1] or call[2]).lower()
        if name not in (*_FUNCTIONS, *_OPERATORS):
            problem = f"--filter {text}: {name} is not for filters; functions: {', '.join(_FUNCTIONS)}"
            raise InputError(problem, code="filter-syntax", option="filter", value=text)
    for column in expression.meta.root_names():
        if column not in schema:
            known = ", ".join(f"{name} ({kind})" for name, kind in schema.items()) or "none; see `prepare --metadata`"
            quotes = "; a text needs single quotes" if f'"{column}"' in text else ""
            problem = f"--filter: the documents have no column {column} (columns: {known}){quotes}"
            raise InputError(problem, code="no-such-column", option="filter", column=column, choices=list(schema))
    kind = _evaluated(text, expression, pl.DataFrame(schema=dict(schema))).dtype
    if kind != pl.Boolean:
        problem = f"--filter {text}: is {kind}, not true or false; pass a condition, {_EXAMPLE}"
        raise InputError(problem, code="other-type", option="filter", value=text)
    return expression


def _evaluated(text: str, expression: pl.Expr, frame: pl.DataFrame) -> pl.Series:
    try:
        return frame.with_columns(expression.alias("kept"))["kept"]
    except pl.exceptions.PolarsError as error:
        problem = f"--filter {text}: {_first_line(error)}"
        raise InputError(problem, code="other-type", option="filter", value=text) from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
