"""A reader."""

from collections.abc import Iterator
from pathlib import Path

from hybrid_cli.collections.readers.text_files import columns
from hybrid_cli.collections.source import Document, Source


def pairs(corpus: Path, *, prefix: str = "", upper: bool = False) -> Source:
    """Import a file of document ids and texts, separated by tabs.

    Args:
        corpus: file of documents
        prefix: text put before every id
        upper: write texts in capital letters
    """

    def documents() -> Iterator[Document]:
        for location, (docid, text) in columns(corpus, 2, "id and text"):
            yield Document(prefix + docid, "", text.upper() if upper else text, location)

    return Source("pairs", documents)
