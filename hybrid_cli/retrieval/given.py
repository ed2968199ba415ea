"""Documents and queries as callers of the library have them: texts, dictionaries, data frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import polars as pl
import polars.selectors as cs

from hybrid_cli.errors import InputError
from hybrid_cli.input_files import DOCIDS, QIDS, folded
from hybrid_cli.runs import frame_of, table_of

Documents = Sequence[str] | Sequence[Mapping[str, str]] | Mapping[str, str] | pl.DataFrame | Any  # Any: pandas
Queries = str | Sequence[str] | Mapping[str, str] | pl.DataFrame | Any


def documents_table(documents: Documents) -> pl.DataFrame:
    """Return documents as a table: docid, title, text, and their other fields of text.

    Args:
        documents: texts, whose docids are "0", "1", ...; a dictionary `{docid: text}`; dictionaries with `docid`,
            `text` and maybe `title`; or a data frame with such columns.

    Raises:
        InputError: something else, no text, or a docid that is missing or not unique.
    """
    table = _table(documents, "docid", DOCIDS, "the documents")
    if "title" not in table.columns:
        table = table.with_columns(title=pl.lit(""))
    if table["docid"].is_duplicated().any():
        repeated = table.filter(pl.col("docid").is_duplicated())["docid"][0]
        raise InputError(f"the documents: two have the id {repeated}", code="duplicate-id", id=repeated)
    others = [name for name in table.columns if name not in ("docid", "title", "text")]
    return table.select("docid", "title", "text", *others).fill_null("")


def queries_table(queries: Queries) -> pl.DataFrame:
    """Return queries as a table: qid, text.

    Args:
        queries: a text, or several texts, whose qids are "0", "1", ...; texts by qid; or a data frame with qid and
            text.

    Raises:
        InputError: something else, or a qid that is not unique.
    """
    table = _table([queries] if isinstance(queries, str) else queries, "qid", QIDS, "the queries").select("qid", "text")
    if table["qid"].is_duplicated().any():
        repeated = table.filter(pl.col("qid").is_duplicated())["qid"][0]
        raise InputError(f"the queries: two have the id {repeated}", code="duplicate-id", id=repeated)
    if table["text"].null_count():
        qid = table.filter(pl.col("text").is_null())["qid"][0]
        raise InputError(f"the queries: {qid} has no text", code="no-text", id=qid)
    return table


def checked_depth(k: int) -> int:
    """Return the number of hits per query.

    Raises:
        InputError: no whole number from 1 on.
    """
    if not isinstance(k, Integral) or k < 1:
        raise InputError(f"k {k}: needs a whole number >= 1", code="invalid-depth", value=k)
    return int(k)


def _table(given: Any, key: str, names: Iterable[str], name: str) -> pl.DataFrame:
    """Return a table with the columns `key` and `text`, both texts."""
    if isinstance(given, Mapping):
        frame = table_of({key: list(given), "text": list(given.values())}, name)
    elif isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"{name}: {given!r} is no list; pass texts, texts by id, or a data frame", code="not-a-list")
    elif isinstance(given, pl.DataFrame) or hasattr(given, "columns"):
        frame = frame_of(given, name)
    else:
        frame = _of_list(list(given), key, name)
    found = {folded(column): column for column in reversed(frame.columns)}
    usual = next((found[each] for each in names if each in found), None)
    if usual is None or "text" not in found:
        raise InputError(f"{name}: no column {'text' if usual else key}", code="no-such-column")
    frame = frame.rename({column: new for column, new in ((usual, key), (found["text"], "text")) if column != new})
    if (not frame[key].dtype.is_integer() and frame[key].dtype != pl.String) or frame[key].null_count():
        raise InputError(f"{name}: an id is no text or whole number", code="other-type")
    for column in {"title", "text"} & set(frame.columns):
        if frame[column].dtype not in (pl.String, pl.Null):
            raise InputError(f"{name}: {column} is {frame[column].dtype}, no text", code="other-type", column=column)
    texts = frame.select(key, "text", cs.string() - cs.by_name(key, "text"))
    return texts.with_columns(pl.col(key, "text").cast(pl.String))


def _of_list(rows: list[Any], key: str, name: str) -> pl.DataFrame:
    if all(isinstance(row, str) for row in rows):
        schema = {key: pl.String, "text": pl.String}
        return pl.DataFrame({key: [str(number) for number in range(len(rows))], "text": rows}, schema=schema)
    if all(isinstance(row, Mapping) for row in rows):
        columns = dict.fromkeys(column for row in rows for column in row)
        return table_of({column: [row.get(column) for row in rows] for column in columns}, name)
    wrong = next(row for row in rows if not isinstance(row, str))
    raise InputError(f"{name}: {wrong!r} is no text, and no dictionary with {key} and text", code="not-a-text")
