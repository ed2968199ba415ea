"""Values in the rows of text files, by the usual names of their fields, each with its file and line for messages."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from hybrid_cli.collections.source import Document
from hybrid_cli.inputs.files import Location
from hybrid_cli.inputs.json_values import NOT_JSON, describe_value, without_surrogates
from hybrid_cli.inputs.rows import InputFile, check_field
from hybrid_cli.inputs.rows import columns as columns

# Field names of BEIR, MS MARCO, DPR, Pyserini and TREC tracks.
DOCID_FIELDS = ("_id", "id", "pid", "docid", "doc_id", "docno", "passage_id")  # `docid` is the whole of a passage `pid`
QID_FIELDS = ("qid", "query_id", "_id", "id")
QUERY_FIELDS = ("query", "question", "query_text", "text")
TITLE_FIELDS = ("title", "headline")
TEXT_FIELDS = ("text", "contents", "passage", "segment", "body", "abstract")
_LISTED = 50  # names in a message
_WORDS = 4  # spaces in a passage, at least; more than an id has


def text_of(record: Mapping[str, Any], names: Sequence[str], location: Location, *, default: str | None = None) -> str:
    """Return the first of the fields `names` that exists, as a string.

    Raises:
        InputError: none exists and there is no `default`, or the value is neither text nor a number.
    """
    for name in names:
        value = record.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if value is not None:
            problem = f"field '{name}' is {describe_value(value)}; text is needed"
            raise location.error(problem, code="not-a-text", column=name)
    if default is None:
        fields = ", ".join(islice(record, _LISTED)) or "none"
        raise location.error(f"no field {' or '.join(names)} (fields: {fields})", code="no-such-field", column=names[0])
    return default


def id_of(record: Mapping[str, Any], names: Sequence[str], location: Location) -> str:
    """Return the id in one of the fields `names`; it must not be empty."""
    return checked_id(text_of(record, names, location), location)


def checked_id(value: str, location: Location) -> str:
    """Return the id; refuse an empty one."""
    if not value or value.isspace():
        raise location.error("empty id; each row needs one", code="missing-value", column="id")
    return value


def answers_of(record: dict[str, Any], location: Location) -> list[str] | None:
    """Return the answers of a question, in `answers`, `answer` or BEIR's `metadata`; None if there are none."""
    metadata = record.get("metadata")
    fields = {**metadata, **record} if isinstance(metadata, dict) else record
    value = fields.get("answers", fields.get("answer"))
    if isinstance(value, str):
        value = [value]
    if value is None:
        return None
    check_field({"answers": value}, "answers", list[str], location, "answers-form")
    return list(value)


def answer_list(text: str, location: Location) -> list[str]:
    """Parse a list in the syntax of Python or JSON: `['1912', 'April 1912']`."""
    for parse in (json.loads, ast.literal_eval):
        try:
            parsed = parse(text)
        except (SyntaxError, MemoryError, *NOT_JSON):  # `literal_eval` raises MemoryError for deep nesting
            continue
        if isinstance(parsed, list) and all(isinstance(answer, str) for answer in parsed):
            return list(without_surrogates(parsed))
    raise location.error(f"{text[:40]!r} is not a list of answers, such as ['1912', 'April 1912']", code="not-answers")


def id_triples(path: Path) -> Iterator[tuple[Location, str, str, str]]:
    """Yield query id, relevant id and other id of each line.

    Raises:
        InputError: an empty id, or texts in place of ids.
    """
    for location, fields in columns(path, 3, "query id, relevant id and other id"):
        if min(fields[1].count(" "), fields[2].count(" ")) >= _WORDS:
            problem = "has texts in place of ids; triples have ids, as in qidpidtriples.train.full.2.tsv"
            raise location.error(problem, code="triples-of-texts")
        qid, docid, other = (checked_id(field, location) for field in fields[:3])
        yield location, qid, docid, other


# ------------------------------------------------------------------------------------------ rows of a collection


def json_documents(file: InputFile) -> Iterator[Document]:
    """Yield the documents of a JSON file: an id, a text, and a title if there is one."""
    for location, record in file.records():
        title = text_of(record, TITLE_FIELDS, location, default="")
        yield Document(id_of(record, DOCID_FIELDS, location), title, text_of(record, TEXT_FIELDS, location), location)
