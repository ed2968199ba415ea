"""Files of queries: JSON lines, and TSV or CSV whose columns are found by name or position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hybrid_cli.collections.readers.tables import Layout, Table, cell, chosen_columns, open_table
from hybrid_cli.collections.readers.text_files import (
    JSON_LINES,
    QID_FIELDS,
    QUERY_FIELDS,
    answer_list,
    answers_of,
    checked_id,
    columns,
    id_of,
    lines,
    records,
    text_of,
)
from hybrid_cli.collections.source import Place
from hybrid_cli.input_files import QIDS, plain_suffix

QueryRow = tuple[Place, str, str, list[str] | None]
QUERIES = Layout(
    "--query-columns",
    {
        "id": (*QIDS, *QID_FIELDS),
        "text": ("query", "question", "query_text", *QUERY_FIELDS),
        "answers": ("answers", "answer"),
    },
    frozenset({"answers"}),
    {2: {"id": "1", "text": "2"}},
)
_WITHOUT_OPTIONS = replace(
    QUERIES,
    option="--queries",
    advice="name its columns qid and text in the first row",
    revealing=frozenset({"id"}),  # a first query may be `text`
)


def query_rows(path: Path) -> Iterator[QueryRow]:
    """Yield place, query id, text and answers of a JSON lines, CSV or tab-separated file.

    Raises:
        InputError: a row without id or text, or columns other than id and text without a header that names them.
    """
    suffix = plain_suffix(path)
    if suffix in JSON_LINES:
        for place, record in records(path):
            qid, text = id_of(record, QID_FIELDS, place), text_of(record, QUERY_FIELDS, place)
            yield place, qid, text, answers_of(record, place)
        return
    tabs = suffix != ".csv"
    rows = columns(path, 2, "query id and text") if tabs else lines(path)  # `columns` refuses spaces as separators
    if next(rows, None) is not None:
        table = open_table(path, _WITHOUT_OPTIONS, {}, None, False if tabs else None)
        yield from queries_of(table, chosen_columns(table, _WITHOUT_OPTIONS, {}))


def queries_of(table: Table, chosen: Mapping[str, str]) -> Iterator[QueryRow]:
    """Yield place, query id, text and answers of each row, from the column of each field."""
    answers = chosen.get("answers")
    for place, row in table.rows():
        qid = checked_id(cell(row, chosen["id"], place), place)
        found = _answers(row.get(answers), place) if answers else None
        yield place, qid, cell(row, chosen["text"], place), found


def _answers(value: Any, place: Place) -> list[str] | None:
    """Return the answers in a cell: a list, a list written as text (`['1912']`), or one answer."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        return answer_list(value, place)
    return answers_of({"answers": value or None}, place)
