"""Files of documents, queries and judgments with columns: TSV, CSV, JSON lines or Parquet; text files, HTML pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from hybrid_cli.collections.options import DELIMITED, TEXT_FILES, Files, OnError
from hybrid_cli.collections.readers.folders import folder_table, is_page, page_document, text_documents
from hybrid_cli.collections.readers.qrels import QRELS, JudgmentFile, judgments_of
from hybrid_cli.collections.readers.queries import QUERIES, plain_queries, queries_of, showing_the_first_line
from hybrid_cli.collections.readers.tables import (
    Layout,
    cell,
    metadata_types,
    metadata_values,
    note_columns,
    open_table,
)
from hybrid_cli.collections.readers.text_files import DOCID_FIELDS, TEXT_FIELDS, TITLE_FIELDS, checked_id
from hybrid_cli.collections.source import Document, DocumentFiles, Judgment, Query, Source, checked_split
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.inputs.files import DOCIDS
from hybrid_cli.inputs.rows import InputFile, Table

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


def source(options: Files) -> Source:
    """Return the collection of files with columns, and print the columns and splits.

    A file of queries or judgments belongs to the split that the option names, or that its file name contains. Other
    queries belong to the splits that judge them, as in BEIR. Other judgments belong to the split of the queries, if
    there is one file of each, else to `test`.

    Raises:
        InputError: a file cannot be read, or options of TSV and CSV files without such a file.
    """

    texts, how = _text_readers(options), (options.header, options.quoted)
    tables = {
        path: open_table(InputFile.of(path), DOCUMENTS, options.document_columns, *how)
        for path in options.documents
        if path not in texts
    }
    others = tuple(options.other_fields)
    asked = _splits("--queries", options.queries)
    judged = _named_splits(_splits("--qrels", options.qrels), asked)
    queries = {split: _open_queries(InputFile.of(path), options) for split, path in asked.items()}
    judgment_files = {split: JudgmentFile.of(path) for split, path in judged.items()}
    qrels = {
        split: open_table(opened.file, QRELS, options.qrels_columns, *how)
        for split, opened in judgment_files.items()
        if opened.journal is None
    }
    facts = _folder_tables(options, texts)
    types = metadata_types(options.columns_of_metadata, [*tables.values(), *facts.values()])
    judging_tables = [*queries.values(), *qrels.values()]
    delimited = any(table.is_delimited for table in (*tables.values(), *judging_tables))
    known = {"inputs": DELIMITED if delimited else "", "documents_form": TEXT_FILES if texts else ""}
    for table in (*tables.values(), *facts.values()):
        note_columns(table, types)
    for table in judging_tables:
        note_columns(table, {})

    def judgments() -> Iterator[Judgment]:
        for split, file in judgment_files.items():
            rows = judgments_of(qrels[split]) if split in qrels else file.rows()
            for location, qid, docid, relevance in rows:
                yield Judgment(split, qid, docid, relevance, location)

    def query_rows() -> Iterator[Query]:
        splits: dict[str, dict[str, None]] = {}
        for row in judgments() if "" in queries else ():
            splits.setdefault(row.qid, {})[row.split] = None
        for split, table in queries.items():
            for location, qid, text, answers in queries_of(table):
                for one in [split] if split else splits.get(qid, [UNJUDGED if judged else DEFAULT_SPLIT]):
                    yield Query(one, qid, text, answers, location)

    files = {
        f"documents {number}" if number > 1 else "documents": path for number, path in enumerate(options.documents, 1)
    }
    files |= {"metadata": options.metadata_file} if options.metadata_file is not None else {}
    files |= {f"queries {split}".strip(): path for split, path in asked.items()}
    files |= {f"qrels {split}": path for split, path in judged.items()}
    rows = DocumentFiles(
        [
            read
            for path in options.documents
            for read in (
                [partial(_documents, tables[path], others, types)]
                if path in tables
                else [partial(_typed, read, facts.get(path), types) for read in texts[path](path, options.on_error)]
            )
        ]
    )
    recorded = {"metadata": list(names)} if (names := options.columns_of_metadata) else {}
    return Source("files", rows, query_rows, judgments, files, recorded, fields=others, metadata=types, known=known)


def _text_readers(options: Files) -> dict[Path, _ReadsTexts]:
    """Return the function that reads each folder or HTML page among the documents.

    Raises:
        InputError: columns are named, which such documents lack.
    """
    texts: dict[Path, _ReadsTexts] = {path: text_documents for path in options.documents if path.is_dir()}
    texts |= {path: page_document for path in options.documents if path not in texts and is_page(path)}
    if texts and options.document_columns:
        path = next(iter(texts))
        what = "a folder of text files" if path.is_dir() else "an HTML page"
        problem = f"--document-columns: not with {path}, {what}"
        raise InputError(problem, code="option-does-not-apply", option="document_columns", path=path)
    return texts


def _folder_tables(options: Files, texts: Iterable[Path]) -> dict[Path, Table]:
    """Return the metadata of the files of each folder; none if none is asked for.

    Raises:
        InputError: `--metadata-file` without a folder, or with several.
    """
    folders = [path for path in texts if path.is_dir()]
    if options.metadata_file is not None and len(folders) != 1:
        problem = "--metadata-file: needs one folder of text files among the documents"
        raise InputError(problem, code="option-does-not-apply", option="metadata_file")
    asked = folders if options.columns_of_metadata else []
    return {path: folder_table(path, options.metadata_file) for path in asked}


def _open_queries(file: InputFile, options: Files) -> Table:
    """Open a table of queries, or a text file with a query per line if no option describes a table."""
    described = options.query_columns or options.header is not None or options.quoted is not None
    if not described and (table := plain_queries(file)) is not None:
        return table
    with showing_the_first_line(file):
        return open_table(file, QUERIES, options.query_columns, options.header, options.quoted)


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


def _typed(read: Callable[[], Iterator[Document]], facts: Table | None, types: Mapping[str, str]) -> Iterator[Document]:
    """Yield text files with the metadata of their folder."""
    rows = {row["docid"]: row for _, row in facts.rows(())} if facts is not None else {}
    for row in read():
        yield row._replace(others=tuple(metadata_values(rows.get(row.docid, {}), types, textual=False)))


def _documents(table: Table, others: Sequence[str], metadata: Mapping[str, str]) -> Iterator[Document]:
    docid, text, title = (table.columns.get(field) for field in ("id", "text", "title"))
    assert docid is not None  # `open_table` checks
    assert text is not None
    textual = table.is_delimited
    for location, row in table.rows([*table.columns.values(), *metadata]):
        named = cell(row, title, location, default="") if title else ""
        fields = [cell(row, table.columns[name], location, default="") for name in others]
        rest = (*fields, *metadata_values(row, metadata, textual))
        yield Document(
            checked_id(cell(row, docid, location), location), named, cell(row, text, location), location, rest
        )
