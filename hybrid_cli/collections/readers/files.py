"""Files of documents, queries and judgments with columns: TSV, CSV, JSON lines or Parquet; text files, HTML pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hybrid_cli import console
from hybrid_cli.collections.journal import is_journal
from hybrid_cli.collections.options import DELIMITED, TEXT_FILES, Files, OnError
from hybrid_cli.collections.readers.folders import is_page, page_document, text_documents
from hybrid_cli.collections.readers.qrels import QRELS, JudgmentRow, judgment_rows, judgments_of
from hybrid_cli.collections.readers.queries import (
    LINE_COLUMNS,
    QUERIES,
    plain_queries,
    queries_of,
    showing_the_first_line,
)
from hybrid_cli.collections.readers.tables import (
    Layout,
    OpenTable,
    cell,
    chosen_columns,
    describe_columns,
    ignored_columns,
    is_delimited,
    metadata_types,
    metadata_values,
    open_table,
)
from hybrid_cli.collections.readers.text_files import DOCID_FIELDS, TEXT_FIELDS, TITLE_FIELDS, checked_id
from hybrid_cli.collections.source import Document, DocumentFiles, Judgment, Query, Source, checked_split
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.inputs.files import DOCIDS

DEFAULT_SPLIT, UNJUDGED = "test", "unjudged"
_SPLITS = ("train", "dev", "val", "valid", "validation", "test", "eval")

DOCUMENTS = Layout(
    "--document-columns",
    {
        "id": tuple(dict.fromkeys((*DOCIDS, *DOCID_FIELDS))),
        "title": TITLE_FIELDS,
        "text": (*TEXT_FIELDS, "content", "document", "doc"),
    },
    frozenset({"title"}),
    {2: {"id": "1", "text": "2"}},
)


_ReadsTexts = Callable[[Path, OnError], list[Callable[[], Iterator[Document]]]]


class _Opened(NamedTuple):
    """A table, and the column of each field."""

    table: OpenTable
    columns: Mapping[str, str]


def source(options: Files) -> Source:
    """Return the collection of files with columns, and print the columns and splits.

    A file of queries or judgments belongs to the split that the option names, or that its file name contains. Other
    queries belong to the splits that judge them, as in BEIR. Other judgments belong to the split of the queries, if
    there is one file of each, else to `test`.

    Raises:
        InputError: a file cannot be read, or options of TSV and CSV files without such a file.
    """

    texts = _text_readers(options)
    tables = {
        path: _open(path, DOCUMENTS, options.document_columns, options)
        for path in options.documents
        if path not in texts
    }
    others = tuple(options.other_fields)
    asked = _splits("--queries", options.queries)
    judged = _named_splits(_splits("--qrels", options.qrels), asked)
    paths = [*tables, *asked.values(), *judged.values()]
    known = {
        "inputs": DELIMITED if any(map(is_delimited, paths)) else "",
        "documents_form": TEXT_FILES if texts else "",
    }

    queries = {split: _open_queries(path, options) for split, path in asked.items()}
    qrels = {
        split: _open(path, QRELS, options.qrels_columns, options)
        for split, path in judged.items()
        if not is_journal(path)
    }
    opened_tables = [file.table for file in tables.values()]
    types = metadata_types(options.metadata, opened_tables, [file.columns.values() for file in tables.values()])
    for file in tables.values():
        _note_columns(file, types)
    for file in [*queries.values(), *qrels.values()]:
        _note_columns(file, {})

    def judgments() -> Iterator[Judgment]:
        for split, path in judged.items():
            for location, qid, docid, relevance in _judgments(path, qrels.get(split)):
                yield Judgment(split, qid, docid, relevance, location)

    def query_rows() -> Iterator[Query]:
        splits: dict[str, dict[str, None]] = {}
        for row in judgments() if "" in queries else ():
            splits.setdefault(row.qid, {})[row.split] = None
        for split, opened in queries.items():
            for location, qid, text, answers in queries_of(opened.table, opened.columns):
                for one in [split] if split else splits.get(qid, [UNJUDGED if judged else DEFAULT_SPLIT]):
                    yield Query(one, qid, text, answers, location)

    files = {
        f"documents {number}" if number > 1 else "documents": path for number, path in enumerate(options.documents, 1)
    }
    files |= {f"queries {split}".strip(): path for split, path in asked.items()}
    files |= {f"qrels {split}": path for split, path in judged.items()}
    rows = DocumentFiles(
        [
            read
            for path in options.documents
            for read in (
                [partial(_documents, tables[path], others, types)]
                if path in tables
                else texts[path](path, options.on_error)
            )
        ]
    )
    recorded = {"metadata": list(options.metadata)} if options.metadata else {}
    return Source("files", rows, query_rows, judgments, files, recorded, fields=others, metadata=types, known=known)


def _judgments(path: Path, opened: _Opened | None) -> Iterator[JudgmentRow]:
    """Yield the judgments of a table, or of a journal, which is not opened as one."""
    return judgment_rows(path) if opened is None else judgments_of(opened.table, opened.columns)


def _note_columns(file: _Opened, metadata: Mapping[str, str]) -> None:
    text, path = describe_columns(file.table, file.columns, metadata), file.table.path
    ignored = ignored_columns(file.table, file.columns, metadata)
    console.note(text, code="columns", path=path, columns=dict(file.columns), metadata=dict(metadata), ignored=ignored)


def _text_readers(options: Files) -> dict[Path, _ReadsTexts]:
    """Return the function that reads each folder or HTML page among the documents.

    Raises:
        InputError: columns are named, which such documents lack.
    """
    texts: dict[Path, _ReadsTexts] = {path: text_documents for path in options.documents if path.is_dir()}
    texts |= {path: page_document for path in options.documents if path not in texts and is_page(path)}
    given = {"document_columns": options.document_columns, "metadata": options.metadata}
    if texts and (named := next((name for name, value in given.items() if value), None)):
        path = next(iter(texts))
        what = "a folder of text files" if path.is_dir() else "an HTML page"
        problem = f"--{named.replace('_', '-')}: not with {path}, {what}"
        raise InputError(problem, code="option-does-not-apply", option=named, path=path)
    return texts


def _open(path: Path, layout: Layout, given: Mapping[str, str], options: Files) -> _Opened:
    table = open_table(path, layout, given, options.header, options.quoted)
    return _Opened(table, chosen_columns(table, layout, given))


def _open_queries(path: Path, options: Files) -> _Opened:
    """Open a table of queries, or a text file with a query per line if no option describes a table."""
    described = options.query_columns or options.header is not None or options.quoted is not None
    if not described and (table := plain_queries(path)) is not None:
        return _Opened(table, LINE_COLUMNS)
    with showing_the_first_line(path):
        return _open(path, QUERIES, options.query_columns, options)


def _splits(option: str, values: Sequence[str]) -> dict[str, Path]:
    """Return the files by split; the split is empty if neither the option nor the file name contains one."""
    by_split: dict[str, Path] = {}
    for value in values:
        name, equals, rest = value.partition("=")
        named = bool(equals and rest) and "/" not in name and not Path(value).is_file()
        path = Path(rest) if named else Path(value)
        split = checked_split(name) if named else _split_of(path)
        if split in by_split:
            what = f"split '{split}'" if split else "no split"
            problem = f"{option}: {by_split[split]} and {path} have {what}; name it: {option} SPLIT=FILE"
            raise InputError(problem, code="duplicate-split", option=option, path=path, split=split)
        by_split[split] = path
    return by_split


def _named_splits(judged: Mapping[str, Path], asked: Mapping[str, Path]) -> dict[str, Path]:
    """Return the files of judgments by split, that of an unnamed one too.

    Raises:
        InputError: the default split for an unnamed file has no queries.
    """
    if "" not in judged:
        return dict(judged)
    default = (next(iter(asked)) if len(asked) == len(judged) == 1 else "") or DEFAULT_SPLIT
    if asked and not {"", default} & set(asked):
        problem = f"split {DEFAULT_SPLIT} has no queries (splits: {', '.join(asked)}); pass --qrels SPLIT=FILE"
        raise path_error(judged[""], problem, code="no-such-split", split=DEFAULT_SPLIT)
    if default in judged:
        problem = f"--qrels: {judged[default]} and {judged['']} have split '{default}'; name it: --qrels SPLIT=FILE"
        raise InputError(problem, code="duplicate-split", option="qrels", path=judged[""], split=default)
    return {split or default: path for split, path in judged.items()}


def _split_of(path: Path) -> str:
    """Return the split in a file name such as `qrels.dev.tsv`; empty if there is none, or more than one."""
    named = {word for word in re.split(r"[^a-z]+", path.name.lower()) if word in _SPLITS}
    return named.pop() if len(named) == 1 else ""


def _documents(opened: _Opened, others: Sequence[str], metadata: Mapping[str, str]) -> Iterator[Document]:
    docid, text, title = (opened.columns.get(field) for field in ("id", "text", "title"))
    assert docid is not None  # `chosen_columns` checks
    assert text is not None
    textual = is_delimited(opened.table.path)
    for location, row in opened.table.rows([*opened.columns.values(), *metadata]):
        named = cell(row, title, location, default="") if title else ""
        fields = [cell(row, opened.columns[name], location, default="") for name in others]
        rest = (*fields, *metadata_values(row, metadata, textual))
        yield Document(
            checked_id(cell(row, docid, location), location), named, cell(row, text, location), location, rest
        )
