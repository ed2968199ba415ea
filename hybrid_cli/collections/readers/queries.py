"""Files of queries: JSON lines, TSV or CSV whose columns are found by name or position, and a query per line."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hybrid_cli.collections.readers.tables import Layout, cell, open_table
from hybrid_cli.collections.readers.text_files import (
    QID_FIELDS,
    QUERY_FIELDS,
    answer_list,
    answers_of,
    checked_id,
    columns,
    id_of,
    text_of,
)
from hybrid_cli.collections.source import Location
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.inputs.files import QIDS, fold_name
from hybrid_cli.inputs.rows import InputFile, Row, Table

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
_SHOWN = 60  # characters of a first line in a message
_OTHER_FORM = frozenset(
    {"too-few-columns", "no-such-column", "other-separator", "no-such-field", "not-an-object", "not-json"}
)


def query_rows(file: InputFile) -> Iterator[QueryRow]:
    """Yield location, query id, text and answers of a JSON, Parquet, CSV or tab-separated file, or of plain lines.

    Raises:
        InputError: a row without id or text, or columns other than id and text without a header that names them.
    """
    if (table := plain_queries(file)) is not None:
        yield from queries_of(table)
        return
    if file.form == "json":  # answers may be in `metadata`
        with showing_the_first_line(file):
            for location, record in file.records():
                fields = {fold_name(name): value for name, value in record.items()}
                qid = id_of(fields, QUERIES.known["id"], location)
                yield location, qid, text_of(fields, QUERIES.known["text"], location), answers_of(fields, location)
        return
    if file.form == "text" and not file.first_line:
        return
    tabs = file.form == "text" and file.suffix != ".csv"
    with showing_the_first_line(file):
        if tabs:
            next(columns(file.path, 2, "query id and text"))  # refuses spaces as separators
        table = open_table(file, _WITHOUT_OPTIONS, {}, None, False if tabs else None)
    yield from queries_of(table)


def plain_queries(file: InputFile) -> Table | None:
    """Return the table of a text file with a query per line; None for another file.

    An id is a hash of the query, so that judgments follow it; a repeated line is skipped.
    Such a file has no tabs, no first line with names of columns, no pairs of an id with a digit and a word, and neither
    `.csv` nor `.tsv` at the end of its name.

    Raises:
        InputError: every line begins with a word that has a digit, as an id or number, or the file has tags.
    """
    first = file.first_line.split() if file.form == "text" and file.suffix not in (".csv", ".tsv") else []
    if not first or any(map(QUERIES.reveals, first[:1] if len(first) > 1 else first)):
        return None
    count, numbered, longest, shortest = 0, True, 0, len(first)
    for _, line in file.lines():
        if "\t" in line:
            return None
        words = line.split()
        numbered = numbered and any(map(str.isdigit, words[0]))
        count, longest, shortest = count + 1, max(longest, len(words)), min(shortest, len(words))
    if numbered and longest == shortest == 2:
        return None
    if file.first_line.lstrip().startswith("<"):
        problem = f"has tags in place of queries: {_shortened(file.first_line)}; import topics of TREC"
        raise path_error(file.path, f"{problem} with `prepare trec`", code="other-form")
    if numbered and count > 1:
        problem = f"every line begins with a number: {_shortened(file.first_line)}; separate id and text by a tab"
        raise path_error(file.path, problem, code="other-form")

    def rows(_: Collection[str]) -> Iterator[Row]:
        known: set[str] = set()
        for location, line in file.lines():
            if (qid := text_id(line)) not in known:
                known.add(qid)
                yield location, {_ID: qid, _LINE: line.strip()}

    return Table(file, (_ID, _LINE), True, rows, columns={"id": _ID, "text": _LINE})


def text_id(text: str) -> str:
    """Return the id of a query without one: a hash of its words."""
    return hashlib.blake2b(" ".join(text.split()).encode(), digest_size=6).hexdigest()


@contextmanager
def showing_the_first_line(file: InputFile) -> Iterator[None]:
    """Add the first line of a text file to an error about its columns or fields; of JSON lines, the faulty line."""
    try:
        yield
    except InputError as error:
        if error.code not in _OTHER_FORM or file.form == "parquet":
            raise
        place, shown = "the first line", file.first_line
        number = error.fields.get("line", 1)
        if file.form == "json" and number != 1 and not shown.lstrip().startswith("["):
            place = f"line {number}"
            shown = next((line for location, line in file.lines() if location.number == number), "")
        message = f"{error}; {place} is {_shortened(shown)}"
        raise InputError(message, code=error.code, **error.fields) from None


def _shortened(line: str) -> str:
    return repr(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}...")


def queries_of(table: Table) -> Iterator[QueryRow]:
    """Yield location, query id, text and answers of each row, from the column of each field."""
    chosen = table.columns
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
