"""Training files of Tevatron: JSON lines of a query with its positive and negative passages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybrid_cli.collections.readers.text_files import (
    DOCID_FIELDS,
    QID_FIELDS,
    answers_of,
    id_of,
    json_documents,
    records,
    text_of,
)
from hybrid_cli.collections.source import Document, Judgment, Place, Query, Source, roles
from hybrid_cli.errors import InputError
from hybrid_cli.settings.data import PrepareTevatron

POSITIVES, NEGATIVES = "positive_passages", "negative_passages"


def source(settings: PrepareTevatron) -> Source:
    """Return the collection of training files; without a corpus file, its documents are their passages.

    Positive passages become judgments of relevance 1. `mine-negatives --sources given:FILE` draws from the negatives.
    """

    def rows() -> Iterator[tuple[str, Place, dict[str, Any]]]:
        for split, path in settings.training.items():
            for place, record in records(path):
                yield split, place, record

    def documents() -> Iterator[Document]:
        if settings.corpus is not None:
            yield from json_documents(settings.corpus)
            return
        seen: dict[str, int] = {}  # hashes of titles and texts
        for _, place, record in rows():
            if NEGATIVES not in record:
                raise InputError(
                    f"{place}: no '{NEGATIVES}'; without them, the documents are not known: pass them as --corpus FILE"
                )
            for each in [*passages(record, POSITIVES, place), *passages(record, NEGATIVES, place)]:
                docid = id_of(each, DOCID_FIELDS, place)
                found = (text_of(each, ("title",), place, default=""), text_of(each, ("text",), place))
                if docid not in seen:
                    seen[docid] = hash(found)
                    yield Document(docid, *found, place)
                elif seen[docid] != hash(found):
                    raise InputError(f"{place}: passage {docid} has another text than before; pass --corpus")

    def queries() -> Iterator[Query]:
        for split, place, record in rows():
            text = text_of(record, ("query", "text"), place)
            qid = id_of(record, ("query_id", *QID_FIELDS), place)
            yield Query(split, qid, text, answers_of(record, place) or None, place)

    def judgments() -> Iterator[Judgment]:
        for split, place, record in rows():
            qid = id_of(record, ("query_id", *QID_FIELDS), place)
            for each in passages(record, POSITIVES, place):
                yield Judgment(split, qid, id_of(each, DOCID_FIELDS, place), 1, place)

    files = {**roles("training", settings.training), **({"corpus": settings.corpus} if settings.corpus else {})}
    return Source("tevatron", documents, queries, judgments, files)


def passages(record: dict[str, Any], field: str, place: Place) -> list[dict[str, Any]]:
    """Return the passages in a field of a training record.

    Raises:
        InputError: the field is missing, or no list of objects.
    """
    found = record.get(field)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise InputError(f"{place}: no list '{field}' of passages, which a training file contains")
    return found
