"""Runs, documents and queries as callers of the library have them: data frames, dictionaries, texts, paths."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs

from hybrid_cli.errors import InputError
from hybrid_cli.inputs.files import DOCIDS, QIDS, fold_name
from hybrid_cli.inputs.json_values import without_surrogates
from hybrid_cli.runs.files import check_run, read_run, sort_hits
from hybrid_cli.runs.tables import SCHEMA, ranked
from hybrid_cli.runs.text import named_columns

DocumentsLike = Sequence[str] | Sequence[Mapping[str, str]] | Mapping[str, str] | pl.DataFrame | Any  # Any: pandas
QueriesLike = str | Sequence[str] | Mapping[str, str] | pl.DataFrame | Any  # Any: pandas, arrays and tensors of vectors
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
    frame = of_dictionary(run, "score", name) if isinstance(run, Mapping) else frame_of(run, name, "score")
    positions = named_columns(frame.columns, name)
    if positions is None:
        names = ", ".join(frame.columns) or "none"
        problem = f"{name}: needs the columns qid, docid, and score or rank; it has {names}"
        raise InputError(problem, code="no-such-column")
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


def frame_of(table: Any, name: str, value: str = "") -> pl.DataFrame:
    """Return a polars data frame of one of polars or pandas, or of tuples (qid, docid, value), named or not.

    Args:
        table: the data frame, or the tuples.
        name: subject of the messages.
        value: name of the third value of a tuple; empty where tuples are no table.

    Raises:
        InputError: something else.
    """
    if isinstance(table, pl.DataFrame):
        return table
    if hasattr(table, "columns") and hasattr(table, "to_dict"):  # pandas, which need not be installed
        return table_of(table.to_dict("list"), name)
    if value and hasattr(table, "to_dict"):  # ranx
        return of_dictionary(table.to_dict(), value, name)
    if value and isinstance(table, Iterable) and not isinstance(table, str | bytes):
        rows = [row._asdict() if hasattr(row, "_asdict") else row for row in table]
        if all(isinstance(row, tuple | list) and len(row) == 3 for row in rows):
            rows = [dict(zip(("qid", "docid", value), row, strict=True)) for row in rows]
        if rows and all(isinstance(row, Mapping) for row in rows):
            return table_of({column: [row.get(column) for row in rows] for column in rows[0]}, name)
    problem = f"{name}: is {type(table).__name__}; pass a data frame, a dictionary {{qid: {{docid: value}}}} or a path"
    raise InputError(problem, code="not-a-table")


def of_dictionary(values: Mapping[Any, Any], column: str, name: str) -> pl.DataFrame:
    """Return qid, docid and a column of a dictionary `{qid: {docid: value}}`."""
    rows = [(qid, docid, value) for qid, hits in values.items() for docid, value in _items(hits, qid, name)]
    qids, docids, cells = zip(*rows, strict=True) if rows else ((), (), ())
    return table_of({"qid": qids, "docid": docids, column: cells}, name)


def table_of(columns: Mapping[str, Any], name: str, schema: Mapping[str, Any] | None = None) -> pl.DataFrame:
    """Return a table of columns, without lone surrogates; `name` is the subject of messages.

    Raises:
        InputError: a column has values of different types.
    """
    try:
        return pl.DataFrame(columns, schema, strict=True, infer_schema_length=None)
    except UnicodeEncodeError:
        return table_of(without_surrogates({column: list(values) for column, values in columns.items()}), name, schema)
    except (TypeError, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{name}: values of different types in a column ({reason})", code="other-type") from None


def _items(hits: Any, qid: object, name: str) -> Any:
    if not isinstance(hits, Mapping):
        problem = f"{name}: query {qid} has {type(hits).__name__}; needs a dictionary {{docid: value}}"
        raise InputError(problem, code="not-a-table")
    return hits.items()


def _as_text(frame: pl.DataFrame, column: pl.Expr, name: str) -> pl.Expr:
    kind = frame.select(column).dtypes[0]
    if kind != pl.String and not kind.is_integer() and kind != pl.Null:
        raise InputError(f"{name}: an id is {kind}; needs a text or a whole number", code="other-type")
    return column.cast(pl.String)


def documents_table(documents: DocumentsLike) -> pl.DataFrame:
    """Return documents as a table: docid, title, text, and their other fields: texts, numbers and booleans.

    Args:
        documents: texts, whose docids are "0", "1", ...; a dictionary `{docid: text}`; tuples (docid, text) or (docid,
            title, text); a dataset of ir_datasets, or its documents; dictionaries with `docid`, `text` and maybe
            `title`; or a data frame with such columns, also by the names of BEIR (`_id`) and PyTerrier (`docno`);
            or a collection (`open_collection`).

    Raises:
        InputError: something else, no text, or a docid that is missing or not unique.
    """
    if callable(own := getattr(documents, "documents", None)):  # a collection
        documents = own()
    documents = documents.docs_iter() if hasattr(documents, "docs_iter") else documents
    table = _table(documents, "docid", DOCIDS, "the documents")
    if "title" not in table.columns:
        table = table.with_columns(title=pl.lit(""))
    if table["docid"].is_duplicated().any():
        repeated = table.filter(pl.col("docid").is_duplicated())["docid"][0]
        raise InputError(f"the documents: two have the id {repeated}", code="duplicate-id", id=repeated)
    others = [name for name in table.columns if name not in ("docid", "title", "text")]
    return table.select("docid", pl.col("title", "text").fill_null(""), *others)


_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def query_text(text: str) -> str:
    """Return a query as every search reads it: control characters are spaces, lone surrogates U+FFFD.

    Joiners and soft hyphens stay, as in documents: they are parts of words.
    """
    return _CONTROLS.sub(" ", without_surrogates(text))


def queries_table(queries: QueriesLike) -> pl.DataFrame:
    """Return queries as a table: qid, text.

    Args:
        queries: a text, or several texts, whose qids are "0", "1", ...; texts by qid; tuples (qid, text); a data frame
            with qid and text, also by the names of BEIR (`_id`) and PyTerrier (`query`), and maybe `vector`; or vectors
            [d] or [Q, d] of an array or tensor, whose texts are empty. See `query_text`.

    Raises:
        InputError: something else, or a qid that is not unique.
    """
    if isinstance(queries, str):
        return pl.DataFrame({"qid": ["0"], "text": [query_text(queries)]})
    qids, vectors = (list(queries), list(queries.values())) if isinstance(queries, Mapping) else (None, queries)
    first = vectors[0] if isinstance(vectors, list) and vectors else vectors
    if isinstance(first, np.ndarray) or hasattr(first, "detach"):
        array = np.atleast_2d(as_array(vectors, "the queries"))
        return pl.DataFrame({"qid": [str(qid) for qid in qids or range(len(array))], "text": "", "vector": array})
    queries = queries.queries_iter() if hasattr(queries, "queries_iter") else queries
    if "vector" in (names := set(getattr(queries, "columns", ()))) and not {"text", "query"} & names:
        queries = frame_of(queries, "the queries").with_columns(text=pl.lit(""))
    table = _table(queries, "qid", QIDS, "the queries")
    if "vector" in table.columns:
        table = table.with_columns(vector=np.atleast_2d(as_array(table["vector"].to_list(), "the queries")))
    table = table.select("qid", "text", *({"vector"} & set(table.columns)))
    if table["qid"].is_duplicated().any():
        repeated = table.filter(pl.col("qid").is_duplicated())["qid"][0]
        raise InputError(f"the queries: two have the id {repeated}", code="duplicate-id", id=repeated)
    if table["text"].null_count():
        qid = table.filter(pl.col("text").is_null())["qid"][0]
        raise InputError(f"the queries: {qid} has no text", code="no-text", id=qid)
    return table.with_columns(pl.col("text").str.replace_all(_CONTROLS.pattern, " "))


def numbers_of(values: Any) -> np.ndarray:
    """Return the numbers of an array, a tensor on any device and of any type, or a list of them, float32.

    Raises:
        TypeError, ValueError, RuntimeError: no real numbers, or lists of different lengths.
    """
    if isinstance(values, list | tuple | Iterator):
        values = [numbers_of(value) if hasattr(value, "detach") else value for value in values]
    elif hasattr(values, "detach"):
        values = values.detach().to_dense().cpu()
        values = (values if values.is_complex() else values.float()).numpy()
    if np.iscomplexobj(values):
        raise TypeError("complex numbers")
    return np.asarray(values, np.float32)


def as_array(values: Any, name: str) -> np.ndarray:
    """Return vectors of an array or a tensor, on any device and of any type of numbers, float32.

    Args:
        values: [n, d] or [d].
        name: subject of the messages.

    Raises:
        InputError: no numbers, or one that is not finite.
    """
    try:
        array = numbers_of(values)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name}: no vectors of numbers", code="other-type") from None
    if array.ndim not in (1, 2) or not np.isfinite(array).all():
        problem = f"{name}: an array of the shape {list(array.shape)} is no matrix of finite numbers"
        raise InputError(problem, code="other-type", shape=array.shape)
    return array


def checked_depth(k: int, name: str = "k") -> int:
    """Return the number of hits per query, or another one from 1 on.

    Raises:
        InputError: no whole number from 1 on.
    """
    if not isinstance(k, Integral) or k < 1:
        raise InputError(f"{name} {k}: needs a whole number >= 1", code="invalid-depth")
    return int(k)


def _table(given: Any, key: str, names: Iterable[str], name: str) -> pl.DataFrame:
    """Return a table with the columns `key` and `text`, both texts."""
    if isinstance(given, Mapping) and given and all(isinstance(row, Mapping) for row in given.values()):  # of BEIR
        given = [{key: id, **row} for id, row in given.items()]
    if isinstance(given, Mapping):
        frame = table_of({key: list(given), "text": list(given.values())}, name)
    elif isinstance(given, str | bytes) or not isinstance(given, Iterable):
        of = repr(given) if isinstance(given, str) else type(given).__name__
        raise InputError(f"{name}: {of} is no list; pass texts, texts by id, or a data frame", code="not-a-list")
    elif isinstance(given, pl.DataFrame) or hasattr(given, "columns"):
        frame = frame_of(given, name)
    else:
        frame = _of_list(list(given), key, name)
    by_name = {fold_name(column): column for column in reversed(frame.columns)}
    usual, text = (
        next((by_name[spelling] for spelling in spellings if spelling in by_name), None)
        for spellings in ((*names, "_id", "id"), ("text", "query"))
    )
    if usual is None or text is None:
        had = ", ".join(map(str, frame.columns)) or "none"
        problem = f"{name}: no column {'text' if usual else key} (columns: {had})"
        raise InputError(problem, code="no-such-column")
    frame = frame.rename({column: new for column, new in ((usual, key), (text, "text")) if column != new})
    kind = frame[key].dtype
    if not (kind.is_integer() or kind == pl.String or frame.is_empty()) or frame[key].null_count():
        raise InputError(f"{name}: an id is no text or whole number", code="other-type")
    for column in {"title", "text"} & set(frame.columns):
        if frame[column].dtype not in (pl.String, pl.Null):
            raise InputError(f"{name}: {column} is {frame[column].dtype}, no text", code="other-type", column=column)
    frame = frame.with_columns((cs.temporal() - cs.duration()).dt.to_string("iso:strict"))
    others = (
        cs.string()
        | cs.numeric()
        | cs.boolean()
        | cs.by_dtype(pl.List(pl.String))
        | cs.by_name("vector", require_all=False)
    ) - cs.by_name(key, "text")
    return frame.select(key, "text", others).with_columns(pl.col(key, "text").cast(pl.String))


def _of_list(rows: list[Any], key: str, name: str) -> pl.DataFrame:
    if all(isinstance(row, str) for row in rows):
        numbers = [str(number) for number in range(len(rows))]
        return table_of({key: numbers, "text": rows}, name, {key: pl.String, "text": pl.String})
    rows = [_fields(row) if hasattr(row, "_asdict") else row for row in rows]
    if all(isinstance(row, tuple | list) and len(row) in (2, 3) for row in rows):
        rows = [{key: row[0], "text": row[-1], **({"title": row[1]} if len(row) == 3 else {})} for row in rows]
    if all(isinstance(row, Mapping) for row in rows):
        columns = dict.fromkeys(column for row in rows for column in row)
        return table_of({column: [row.get(column) for row in rows] for column in columns}, name)
    wrong = next(row for row in rows if not isinstance(row, str))
    raise InputError(f"{name}: {wrong!r} is no text, and no dictionary with {key} and text", code="not-a-text")


def _fields(row: Any) -> dict[str, Any]:
    """Return the fields of a named tuple; topics of TREC in ir_datasets have a `default_text` in place of a text."""
    values: dict[str, Any] = row._asdict()
    return values if "text" in values or not hasattr(row, "default_text") else {**values, "text": row.default_text()}
