"""BEIR folders: `corpus.jsonl`, `queries.jsonl`, `qrels/SPLIT.tsv` or `.parquet`; texts may be compressed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hybrid_cli.collections.options import Beir
from hybrid_cli.collections.readers.qrels import split_judgments
from hybrid_cli.collections.readers.queries import query_rows
from hybrid_cli.collections.readers.text_files import json_documents
from hybrid_cli.collections.source import Document, Judgment, Query, Source, roles
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.inputs.files import COMPRESSED, refuse_link_out
from hybrid_cli.inputs.rows import InputFile

UNJUDGED = "unjudged"


def source(options: Beir) -> Source:
    """Return the collection of a BEIR folder; queries without judgments form the split `unjudged`."""
    folder = options.folder
    corpus, queries = _file(folder, "corpus.jsonl"), _file(folder, "queries.jsonl")
    qrels = _qrels(folder)

    def documents() -> Iterator[Document]:
        return json_documents(InputFile.of(corpus))

    def judgments() -> Iterator[Judgment]:
        return split_judgments(qrels)

    def split_queries() -> Iterator[Query]:
        splits: dict[str, dict[str, None]] = {}
        for row in judgments():
            splits.setdefault(row.qid, {})[row.split] = None
        for location, qid, text, answers in query_rows(InputFile.of(queries)):
            for split in splits.get(qid, (UNJUDGED,)):
                yield Query(split, qid, text, answers, location)

    files = {"corpus": corpus, "queries": queries, **roles("qrels", qrels)}
    return Source("beir", documents, split_queries, judgments, files)


def _qrels(folder: Path) -> dict[str, Path]:
    """Return the judgments of each split, plain rather than compressed; hidden and other files are ignored."""
    by_split = {}
    for suffix in (".parquet", *(f".tsv{form}" for form in reversed(COMPRESSED)), ".tsv"):
        for path in sorted(folder.glob(f"qrels/*{suffix}")):
            if not path.name.startswith("."):
                by_split[path.name.removesuffix(suffix)] = refuse_link_out(path, folder)
    return dict(sorted(by_split.items()))


def _file(folder: Path, name: str) -> Path:
    for path in (folder / name, *(folder / f"{name}{form}" for form in COMPRESSED)):
        if path.is_file():
            return refuse_link_out(path, folder)
    if not folder.exists():
        raise path_error(folder, "no such folder", code="no-such-folder")
    problem = f"{folder}: no {name}; a BEIR folder contains corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv"
    raise InputError(problem, code="no-such-file", path=folder / name)
