"""A BEIR folder: `corpus.jsonl`, `queries.jsonl`, `qrels/SPLIT.tsv`; each may be gzipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hybrid_cli.collections.collection import judgement_rows, query_rows
from hybrid_cli.collections.readers import jsonl
from hybrid_cli.collections.source import Document, Judgement, Query, Source
from hybrid_cli.errors import InputError

UNJUDGED = "unjudged"


def source(folder: Path) -> Source:
    """The collection of `folder`; each file of judgements is a split, queries in none are the split `unjudged`."""
    corpus, queries = _file(folder, "corpus.jsonl"), _file(folder, "queries.jsonl")
    qrels = {path.name.removesuffix(".gz").removesuffix(".tsv"): path for path in sorted(folder.glob("qrels/*.tsv*"))}

    def documents() -> Iterator[Document]:
        return jsonl.documents(corpus)

    def judgements() -> Iterator[Judgement]:
        for split, path in qrels.items():
            for place, qid, docid, relevance in judgement_rows(path):
                yield Judgement(split, qid, docid, relevance, place)

    def split_queries() -> Iterator[Query]:
        splits: dict[str, dict[str, None]] = {}
        for row in judgements():
            splits.setdefault(row.qid, {})[row.split] = None
        for place, qid, text, answers in query_rows(queries):
            for split in splits.get(qid, (UNJUDGED,)):
                yield Query(split, qid, text, answers, place)

    files = {"corpus": corpus, "queries": queries, **{f"qrels {split}": path for split, path in qrels.items()}}
    return Source("beir", documents, split_queries, judgements, files)


def _file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise InputError(
        f"{folder}: has no {name}; a BEIR folder holds corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv"
        if folder.exists()
        else f"{folder}: no such folder"
    )
