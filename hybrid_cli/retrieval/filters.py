"""Filters: a predicate over the metadata of documents, evaluated once into the documents that a search may return."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import InputError

Mask = npt.NDArray[np.bool_]
_FUNCTIONS = ("lower", "upper", "length", "abs", "coalesce")
_OPERATORS = ("and", "or", "not", "in", "between", "like", "ilike", "is", "when", "then", "else", "case")
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"")
_CALLED = re.compile(r"([A-Za-z_]\w*)\s*\(|\b(select)\b", re.IGNORECASE)
_EXAMPLE = "such as: year >= 2020 AND lang = 'de'"


@dataclass(frozen=True)
class Allowed:
    """The documents that a filter keeps.

    Attributes:
        docids: [N] ids of all documents with metadata.
        kept: [N] whether the filter keeps them.
    """

    docids: pl.Series
    kept: Mask

    def mask(self, docids: pl.Series) -> Mask:
        """Return whether each document of an index may be returned, by row."""
        if docids.equals(self.docids):
            return self.kept
        return docids.is_in(self.docids.filter(self.kept).implode()).to_numpy()


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
                    raise InputError(
                        f"{corpus}: column {name} is {kind}, and {known} in {self.corpora[0]}; prepare the documents "
                        "again with one type", code="other-type", path=corpus, column=name,
                    )  # fmt: skip
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
        raise InputError(
            f"--filter: {_first_line(error)}; pass a condition in the syntax of SQL, {_EXAMPLE}",
            code="filter-syntax", option="filter", value=text,
        ) from None  # fmt: skip
    for call in _CALLED.finditer(_QUOTED.sub("''", text)):
        name = (call[1] or call[2]).lower()
        if name not in (*_FUNCTIONS, *_OPERATORS):
            raise InputError(
                f"--filter {text}: {name} is not for filters; functions: {', '.join(_FUNCTIONS)}",
                code="filter-syntax", option="filter", value=text, name=name,
            )  # fmt: skip
    for column in expression.meta.root_names():
        if column not in schema:
            known = ", ".join(f"{name} ({kind})" for name, kind in schema.items()) or "none; see `prepare --metadata`"
            quotes = "; a text needs single quotes" if f'"{column}"' in text else ""
            raise InputError(
                f"--filter: the documents have no column {column} (columns: {known}){quotes}",
                code="no-such-column", option="filter", column=column, choices=list(schema),
            )  # fmt: skip
    kind = _evaluated(text, expression, pl.DataFrame(schema=dict(schema))).dtype
    if kind != pl.Boolean:
        raise InputError(
            f"--filter {text}: is {kind}, not true or false; pass a condition, {_EXAMPLE}",
            code="other-type", option="filter", value=text,
        )  # fmt: skip
    return expression


def _evaluated(text: str, expression: pl.Expr, frame: pl.DataFrame) -> pl.Series:
    try:
        return frame.with_columns(expression.alias("kept"))["kept"]
    except pl.exceptions.PolarsError as error:
        raise InputError(
            f"--filter {text}: {_first_line(error)}", code="other-type", option="filter", value=text
        ) from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
