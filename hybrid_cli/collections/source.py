"""What every reader hands over: documents, queries and judgements as streams that can be started again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hybrid_cli.collections.readers.lines import Place
from hybrid_cli.errors import InputError


class Document(NamedTuple):
    """One document, and where it was read."""

    docid: str
    title: str
    text: str
    place: Place

    @property
    def name(self) -> str:
        """As messages call it."""
        return self.docid


class Query(NamedTuple):
    """One query of one split; `answers` where the source has them."""

    split: str
    qid: str
    text: str
    answers: list[str] | None
    place: Place

    @property
    def name(self) -> str:
        """As messages call it."""
        return self.qid


class Judgement(NamedTuple):
    """One judged pair of one split."""

    split: str
    qid: str
    docid: str
    relevance: int
    place: Place

    @property
    def name(self) -> str:
        """As messages call it."""
        return f"{self.qid} {self.docid}"


def _none() -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True)
class Source:
    """A collection in a foreign form. Nothing is read before a stream is started.

    `files` (role -> path) and `options` are all that the result depends on; readers may put what else they learn
    into `facts`, for the manifest.
    """

    name: str
    documents: Callable[[], Iterator[Document]]
    queries: Callable[[], Iterator[Query]] = _none
    judgements: Callable[[], Iterator[Judgement]] = _none
    files: Mapping[str, Path] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


def checked_split(name: str) -> str:
    """Refuse a name of a split that cannot stand in a file name."""
    if not name or not all(letter.isalnum() or letter in "-_." for letter in name):
        raise InputError(f"split '{name}': needs letters, digits, '-', '_' and '.' only, such as train or dev-small")
    return name


def roles(kind: str, files: Mapping[str, Path]) -> dict[str, Path]:
    """Files by split as entries of a manifest: `queries dev` -> path."""
    return {f"{kind} {checked_split(split)}": path for split, path in files.items()}
