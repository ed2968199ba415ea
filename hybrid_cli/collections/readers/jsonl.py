"""Documents in JSON lines, under the field names that BEIR, MS MARCO, Pyserini and TREC tracks use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hybrid_cli.collections.collection import DOCID_FIELDS
from hybrid_cli.collections.readers.lines import id_of, records, text_of
from hybrid_cli.collections.source import Document

TITLE_FIELDS = ("title", "headline")
TEXT_FIELDS = ("text", "contents", "passage", "segment", "body", "abstract")


def documents(path: Path) -> Iterator[Document]:
    """One document a line: an id, a text, and a title where there is one."""
    for place, record in records(path):
        title = text_of(record, TITLE_FIELDS, place, default="")
        yield Document(id_of(record, DOCID_FIELDS, place), title, text_of(record, TEXT_FIELDS, place), place)
