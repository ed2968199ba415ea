"""MS MARCO's files, versions 1 and 2: passages or documents, queries, judgments, and triples of ids."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from hybrid_cli import console
from hybrid_cli.collections.options import Msmarco
from hybrid_cli.collections.readers.files import DOCUMENTS
from hybrid_cli.collections.readers.qrels import split_judgments
from hybrid_cli.collections.readers.queries import query_rows
from hybrid_cli.collections.readers.text_files import checked_id, columns, id_triples, json_documents
from hybrid_cli.collections.source import Document, DocumentFiles, Judgment, Location, Query, Source, roles
from hybrid_cli.errors import path_error
from hybrid_cli.inputs.files import files_of_folder
from hybrid_cli.inputs.rows import InputFile


def source(options: Msmarco) -> Source:
    """Return the collection of `collection.tsv` (id, text), `msmarco-docs.tsv` (id, url, title, body), or a JSON file.

    JSON has a passage (`pid`, `passage`) or a document (`docid`, `title`, `body`) on each line; the files of a folder
    are read in the order of their names.

    The relevant documents of triples become judgments of relevance 1. The other documents are ignored;
    `mine-negatives` draws negatives.
    """

    documents = DocumentFiles([partial(_documents, path) for path in _files(options.corpus)])

    def queries() -> Iterator[Query]:
        for split, path in options.queries.items():
            for location, qid, text, answers in query_rows(InputFile.of(path)):
                yield Query(split, qid, text, answers, location)

    def judgments() -> Iterator[Judgment]:
        yield from split_judgments(options.qrels)
        for split, path in options.training.items():
            yield from positives(split, path)

    def positives(split: str, path: Path) -> Iterator[Judgment]:
        count = 0
        for location, qid, docid, _ in id_triples(path):
            count += 1
            yield Judgment(split, qid, docid, 1, location)
        result.facts.setdefault("triples", {})[split] = count

    files = {
        "corpus": options.corpus,
        **roles("queries", options.queries),
        **roles("qrels", options.qrels),
        **roles("triples", options.training),
    }
    result = Source("msmarco", documents, queries, judgments, files)
    return result


def _files(corpus: Path) -> list[Path]:
    if not corpus.is_dir():
        return [corpus]
    files = files_of_folder(corpus)
    if not files.paths:
        raise path_error(corpus, f"has no files{files.note()}", code="empty-folder")
    if files.left_out:
        console.note(f"{corpus}: {console.counted(file=len(files.paths))}{files.note()}")
    return files.paths


def _documents(path: Path) -> Iterator[Document]:
    file = InputFile.of(path)
    if file.form == "json":
        yield from json_documents(file)
        return
    for location, fields in _passages(path):
        title = fields[2] if len(fields) == 4 else ""
        yield Document(checked_id(fields[0], location), title, fields[-1], location)


def _passages(path: Path) -> Iterator[tuple[Location, list[str]]]:
    """Yield the columns of each line: two, or four, in all lines.

    Raises:
        InputError: another number of columns, of which some would be lost, or a header.
    """
    layout, count = "id and text, or id, url, title and body", 0
    for location, fields in columns(path, 2, layout):
        if not count:
            count = len(fields)
            if count not in (2, 4):
                problem = f"{count} tab-separated columns; needs {layout}; `prepare files` reads other tables"
                raise location.error(problem, code="other-width", found=count)
            if DOCUMENTS.names("id", fields[0]) and DOCUMENTS.names("text", fields[-1]):
                problem = "is a header, MS MARCO's files have none; remove it, or use `prepare files`"
                raise location.error(problem, code="has-header")
        if len(fields) != count:
            problem = f"{len(fields)} columns, the first line has {count}; replace tabs inside texts by spaces"
            raise location.error(problem, code="other-width", found=len(fields), expected=count)
        yield location, fields
