"""Runs as callers of the library have them: data frames, dictionaries, paths."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli.errors import InputError
from hybrid_cli.runs.files import check_run, read_run, sort_hits
from hybrid_cli.runs.tables import SCHEMA, ranked
from hybrid_cli.runs.text import named_columns

RunLike = pl.DataFrame | Mapping[str, Mapping[str, float]] | str | os.PathLike[str] | Any  # Any: a pandas data frame


def run_table(run: RunLike, name: str = "the run") -> pl.DataFrame:
    """Return a run as a table: qid, docid, rank (from 1), score, sorted by query and rank.

    Args:
        run: a data frame (polars or pandas) with columns of ids, and of scores or ranks; a dictionary
            `{qid: {docid: score}}`; or the path of a run file.
        name: subject of the messages.

    Raises:
        InputError: something else, no columns of a run, an id that is no text or number, a score that is not finite, or
            a document twice for a query.
    """
    if isinstance(run, str | os.PathLike):
        return read_run(Path(run))
    frame = of_dictionary(run, "score", name) if isinstance(run, Mapping) else frame_of(run, name)
    positions = named_columns(frame.columns, name)
    if positions is None:
        raise InputError(
            f"{name}: needs the columns qid, docid, and score or rank; it has {', '.join(frame.columns) or 'none'}",
            code="no-such-column",
        )
    columns = {field: pl.col(frame.columns[at]) for field, at in positions.items()}
    texts = {field: _as_text(frame, columns[field], name) for field in ("qid", "docid")}
    try:
        rank = columns["rank"].cast(SCHEMA["rank"]) if "rank" in columns else pl.lit(None, SCHEMA["rank"])
        score = columns["score"] if "score" in columns else -columns["rank"]
        table = frame.select(**texts, rank=rank, score=score.cast(SCHEMA["score"]))
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{name}: {str(error).splitlines()[0]}", code="other-type") from None
    table = check_run(table, name)
    in_order = sort_hits(table, name) if "rank" in columns else ranked(table.drop("rank"))
    return in_order.sort("qid", "rank", maintain_order=True)


def frame_of(table: Any, name: str) -> pl.DataFrame:
    """Return a polars data frame of one of polars or pandas.

    Raises:
        InputError: something else.
    """
    if isinstance(table, pl.DataFrame):
        return table
    if hasattr(table, "columns") and hasattr(table, "to_dict"):  # pandas, which need not be installed
        return table_of(table.to_dict("list"), name)
    raise InputError(
        f"{name}: is {type(table).__name__}; pass a data frame, a dictionary {{qid: {{docid: value}}}} or a path",
        code="not-a-table",
    )


def of_dictionary(values: Mapping[Any, Any], column: str, name: str) -> pl.DataFrame:
    """Return qid, docid and a column of a dictionary `{qid: {docid: value}}`."""
    rows = [(qid, docid, value) for qid, hits in values.items() for docid, value in _items(hits, qid, name)]
    qids, docids, cells = zip(*rows, strict=True) if rows else ((), (), ())
    return table_of({"qid": qids, "docid": docids, column: cells}, name)


def table_of(columns: Mapping[str, Any], name: str) -> pl.DataFrame:
    """Return a table of columns; `name` is the subject of messages.

    Raises:
        InputError: a column has values of different types.
    """
    try:
        return pl.DataFrame(columns, strict=True, infer_schema_length=None)
    except (TypeError, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{name}: values of different types in a column ({reason})", code="other-type") from None


def _items(hits: Any, qid: object, name: str) -> Any:
    if not isinstance(hits, Mapping):
        raise InputError(
            f"{name}: query {qid} has {type(hits).__name__}; needs a dictionary {{docid: value}}", code="not-a-table"
        )
    return hits.items()


def _as_text(frame: pl.DataFrame, column: pl.Expr, name: str) -> pl.Expr:
    kind = frame.select(column).dtypes[0]
    if kind != pl.String and not kind.is_integer() and kind != pl.Null:
        raise InputError(f"{name}: an id is {kind}; needs a text or a whole number", code="other-type")
    return column.cast(pl.String)
