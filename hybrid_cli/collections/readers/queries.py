"""Files of queries: JSON lines, TSV or CSV whose columns are found by name or position, and a query per line."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hybrid_cli.collections.readers.tables import Layout, OpenTable, Row, cell, chosen_columns, is_delimited, open_table
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
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.inputs.files import QIDS, fold_name, is_parquet, plain_suffix
from hybrid_cli.inputs.json_rows import is_json, records

QueryRow = tuple[Location, str, str, list[str] | None]
QUERIES = Layout(
    "--query-columns",
    {"id": tuple(dict.fromkeys((*QIDS, *QID_FIELDS))), "text": QUERY_FIELDS, "answers": ("answers", "answer")},
    frozenset({"answers"}),
    {2: {"id": "1", "text": "2"}},
)
_WITHOUT_OPTIONS = replace(
    QUERIES,
    option="queries",
    advice="name its columns qid and text in the first row",
    revealing=frozenset({"id"}),  # a first query may be `text`
)


_ID, _LINE = "hash of the line", "line"  # columns of a file with a query per line
LINE_COLUMNS = {"id": _ID, "text": _LINE}
_SHOWN = 60  # characters of a first line in a message
_OTHER_FORM = frozenset(
    {"too-few-columns", "no-such-column", "other-separator", "no-such-field", "not-an-object", "not-json"}
)


def query_rows(path: Path) -> Iterator[QueryRow]:
    """Yield location, query id, text and answers of a JSON, Parquet, CSV or tab-separated file, or of plain lines.

    Raises:
        InputError: a row without id or text, or columns other than id and text without a header that names them.
    """
    if (table := plain_queries(path)) is not None:
        yield from queries_of(table, LINE_COLUMNS)
        return
    if is_json(path):  # answers may be in `metadata`
        with showing_the_first_line(path):
            for location, record in records(path):
                fields = {fold_name(name): value for name, value in record.items()}
                qid = id_of(fields, QUERIES.known["id"], location)
                yield location, qid, text_of(fields, QUERIES.known["text"], location), answers_of(fields, location)
        return
    quoted = None
    if not is_parquet(path):
        tabs = plain_suffix(path) != ".csv"
        quoted = False if tabs else None
        rows = columns(path, 2, "query id and text") if tabs else lines(path)  # `columns` refuses spaces as separators
        with showing_the_first_line(path):
            if next(rows, None) is None:
                return
    with showing_the_first_line(path):
        table = open_table(path, _WITHOUT_OPTIONS, {}, None, quoted)
        chosen = chosen_columns(table, _WITHOUT_OPTIONS, {})
    yield from queries_of(table, chosen)


def plain_queries(path: Path) -> OpenTable | None:
    """Return the table of a text file with a query per line; None for another file.

    An id is a hash of the query, so that judgments follow it; a repeated line is skipped.
    Such a file has no tabs, no first line with names of columns, no pairs of an id with a digit and a word, and neither
    `.csv` nor `.tsv` at the end of its name.

    Raises:
        InputError: every line begins with a word that has a digit, as an id or number, or the file has tags.
    """
    if not is_delimited(path) or plain_suffix(path) in (".csv", ".tsv"):
        return None
    first, count, numbered, widest = "", 0, True, 0
    for _, line in lines(path):
        if "\t" in line:
            return None
        words = line.split()
        if not count:
            first = line
            if any(map(QUERIES.reveals, words[:1] if len(words) > 1 else words)):
                return None
        numbered = numbered and any(map(str.isdigit, words[0]))
        count, widest = count + 1, max(widest, len(words))
    if not count or (numbered and widest == 2 and _pairs(path)):
        return None
    if first.lstrip().startswith("<"):
        problem = f"has tags in place of queries: {_shortened(first)}; import topics of TREC with `prepare trec`"
        raise path_error(path, problem, code="other-form")
    if numbered and count > 1:
        problem = f"every line begins with a number: {_shortened(first)}; separate id and text by a tab"
        raise path_error(path, problem, code="other-form")

    def rows(_: Collection[str]) -> Iterator[Row]:
        known: set[str] = set()
        for location, line in lines(path):
            if (qid := text_id(line)) not in known:
                known.add(qid)
                yield location, {_ID: qid, _LINE: line.strip()}

    return OpenTable(path, (_ID, _LINE), True, rows)


def text_id(text: str) -> str:
    """Return the id of a query without one: a hash of its words."""
    return hashlib.blake2b(" ".join(text.split()).encode(), digest_size=6).hexdigest()


@contextmanager
def showing_the_first_line(path: Path) -> Iterator[None]:
    """Add the first line of a text file to an error about its columns or fields; of JSON lines, the faulty line."""
    try:
        yield
    except InputError as error:
        if error.code not in _OTHER_FORM or not (is_delimited(path) or is_json(path)):
            raise
        place, shown = "the first line", next((line for _, line in lines(path)), "")
        number = error.fields.get("line", 1)
        if is_json(path) and number != 1 and not shown.lstrip().startswith("["):
            place = f"line {number}"
            shown = next((line for location, line in lines(path) if location.number == number), "")
        message = f"{error}; {place} is {_shortened(shown)}"
        raise InputError(message, code=error.code, **error.fields) from None


def _pairs(path: Path) -> bool:
    return all(len(line.split()) == 2 for _, line in lines(path))


def _shortened(line: str) -> str:
    return repr(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}...")


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
