"""What every reader returns: documents, queries and judgments as streams that can be restarted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hybrid_cli.errors import InputError


class Place(NamedTuple):
    """A row of a file, in the form that messages use."""

    file: Path | str
    number: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}"


class Document(NamedTuple):
    """A document, and the place where it was read."""

    docid: str
    title: str
    text: str
    place: Place

    @property
    def name(self) -> str:
        """Return the name that messages use."""
        return self.docid


class Query(NamedTuple):
    """A query of one split; `answers` is None if the source has none."""

    split: str
    qid: str
    text: str
    answers: list[str] | None
    place: Place

    @property
    def name(self) -> str:
        """Return the name that messages use."""
        return self.qid


class Judgment(NamedTuple):
    """A judged pair of one split."""

    split: str
    qid: str
    docid: str
    relevance: int
    place: Place

    @property
    def name(self) -> str:
        """Return the name that messages use."""
        return f"{self.qid} {self.docid}"


def _none() -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True)
class Source:
    """A collection in a foreign format. Files are read when a stream is started.

    Attributes:
        name: the collection in messages, where there is no file to name.
        documents, queries, judgments: return a new stream on each call.
        files: role -> path of each input file.
        options: resolved values for the manifest, besides the recorded settings.
        facts: what a reader learns while reading, for the manifest.
    """

    name: str
    documents: Callable[[], Iterator[Document]]
    queries: Callable[[], Iterator[Query]] = _none
    judgments: Callable[[], Iterator[Judgment]] = _none
    files: Mapping[str, Path] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


def checked_split(name: str) -> str:
    """Return the name of a split; refuse a name that cannot be part of a file name."""
    if not name or not all(letter.isalnum() or letter in "-_." for letter in name):
        raise InputError(f"split '{name}': needs letters, digits, '-', '_' and '.' only, such as train or dev-small")
    return name


def roles(kind: str, files: Mapping[str, Path]) -> dict[str, Path]:
    """Return files by split as inputs of a manifest: `queries dev` -> path."""
    return {f"{kind} {checked_split(split)}": path for split, path in files.items()}
