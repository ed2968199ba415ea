"""Files of queries: JSON lines, and TSV or CSV whose columns are found by name or position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hybrid_cli.collections.readers.tables import Layout, OpenTable, cell, chosen_columns, open_table
from hybrid_cli.collections.readers.text_files import (
    QID_FIELDS,
    QUERY_FIELDS,
    answer_list,
    answers_of,
    checked_id,
    columns,
    id_of,
    lines,
    text_of,
)
from hybrid_cli.collections.source import Location
from hybrid_cli.input_files import QIDS, fold_name, is_parquet, plain_suffix
from hybrid_cli.json_rows import is_json, records

QueryRow = tuple[Location, str, str, list[str] | None]
QUERIES = Layout(
    "--query-columns",
    {
        "id": tuple(dict.fromkeys((*QIDS, *QID_FIELDS))),
        "text": QUERY_FIELDS,
        "answers": ("answers", "answer"),
    },
    frozenset({"answers"}),
    {2: {"id": "1", "text": "2"}},
)
_WITHOUT_OPTIONS = replace(
    QUERIES,
    option="queries",
    advice="name its columns qid and text in the first row",
    revealing=frozenset({"id"}),  # a first query may be `text`
)


def query_rows(path: Path) -> Iterator[QueryRow]:
    """Yield location, query id, text and answers of a JSON, Parquet, CSV or tab-separated file.

    Raises:
        InputError: a row without id or text, or columns other than id and text without a header that names them.
    """
    if is_json(path):  # answers may be in `metadata`
        for location, record in records(path):
            fields = {fold_name(name): value for name, value in record.items()}
            qid, text = id_of(fields, QUERIES.known["id"], location), text_of(fields, QUERIES.known["text"], location)
            yield location, qid, text, answers_of(fields, location)
        return
    quoted = None
    if not is_parquet(path):
        tabs = plain_suffix(path) != ".csv"
        quoted = False if tabs else None
        rows = columns(path, 2, "query id and text") if tabs else lines(path)  # `columns` refuses spaces as separators
        if next(rows, None) is None:
            return
    table = open_table(path, _WITHOUT_OPTIONS, {}, None, quoted)
    yield from queries_of(table, chosen_columns(table, _WITHOUT_OPTIONS, {}))


def queries_of(table: OpenTable, chosen: Mapping[str, str]) -> Iterator[QueryRow]:
    """Yield location, query id, text and answers of each row, from the column of each field."""
    answers = chosen.get("answers")
    for location, row in table.rows(chosen.values()):
        qid = checked_id(cell(row, chosen["id"], location), location)
        texts = _answers(row.get(answers), location) if answers else None
        yield location, qid, cell(row, chosen["text"], location), texts


def _answers(value: Any, location: Location) -> list[str] | None:
    """Return the answers in a cell: a list, a list written as text (`['1912']`), or one answer."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        return answer_list(value, location)
    return answers_of({"answers": value or None}, location)
