"""Context of a prompt: the best parts of hits with their neighbors, within a number of tokens, each with its place.

A part is a passage of an index of passages, or 100 words of a whole document. First comes the best part of each hit, in
the order of the hits, then their neighbors, one and two parts away; what does not fit is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import polars as pl

from hybrid_cli import words
from hybrid_cli.passages import PASSAGE, passage_id

WORDS = 100  # of a part of a whole document
NEIGHBORS = 2  # on each side
BYTES = 3  # of a token: more tokens than most tokenizers make of English, German, code or Chinese
_OVERLAP = 16  # letters that the end of a passage and the start of the next have in common at least, with a stride
SCHEMA = {"docid": pl.String, "place": pl.String, "title": pl.String, "text": pl.String, "tokens": pl.Int64}
Read = Callable[[pl.Series], pl.DataFrame | None]


def tokens_of(text: str) -> int:
    """Return about the number of tokens of a text, rather too many: its bytes divided by `BYTES`."""
    return -(-len(text.encode()) // BYTES)


@dataclass
class _Document:
    """A document of a hit, and the parts that are taken, by number.

    Attributes:
        parts: number -> text, of passages; of a whole document, all its parts.
        taken: numbers of the parts of the context.
    """

    hit: dict[str, Any]
    number: int
    parts: dict[int, str] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, hit: dict[str, Any], query: str) -> _Document:
        """Return a document with its best part: the passage that is the hit, or that with most words of the query."""
        passage = re.search(PASSAGE, hit.get("passage") or hit["docid"])
        if passage is not None:
            number = int(passage[0][1:])
            docid = (hit.get("passage") or hit["docid"])[: passage.start()]
            return cls({**hit, "docid": docid, "passage": docid}, number, {number: hit["text"]})
        document = cls({**hit, "passage": None}, 0)
        document.parts = dict(enumerate(document.cut))
        asked, common = {word for word in words.plain_words(query.casefold()) if len(word) > 2}, words.common(query)
        matches = [len(asked & {*words.plain_words(part.casefold())}) + len(common(part)) for part in document.cut]
        document.number = matches.index(max(matches))
        return document

    @cached_property
    def _spans(self) -> list[words.Span]:
        """Start and end of each part of a whole document; a part has the white space after it."""
        starts = [0, *(begin for begin, _ in words.spans(self.hit["text"])[WORDS::WORDS]), len(self.hit["text"])]
        return list(pairwise(starts))

    @property
    def cut(self) -> list[str]:
        return [self.hit["text"][begin:end] for begin, end in self._spans]

    def neighbors(self, distance: int) -> list[int]:
        """Return the numbers of the parts that are `distance` away from the best one."""
        return [number for number in (self.number + distance, self.number - distance) if number >= 0]

    def missing(self, distance: int) -> list[str]:
        """Return the ids of passages that are not read yet."""
        stem = self.hit["passage"]
        return [] if stem is None else [passage_id(stem, n) for n in self.neighbors(distance) if n not in self.parts]

    def excerpts(self) -> Iterator[dict[str, Any]]:
        """Yield the runs of parts that follow each other."""
        numbers = sorted(self.taken)
        breaks = [0, *(at for at, (one, other) in enumerate(pairwise(numbers), 1) if other > one + 1), len(numbers)]
        for begin, end in pairwise(breaks):
            first, last = numbers[begin], numbers[end - 1]
            text = ""
            for number in numbers[begin:end]:
                text = _joined(text, self.parts[number]) if self.hit["passage"] else text + self.parts[number]
            if self.hit["passage"]:
                place = f"passage {first}" if first == last else f"passages {first} to {last}"
            elif last - first + 1 == len(self.parts):
                place = "whole document"
            else:
                place = f"words {first * WORDS + 1:,} to {(last + 1) * WORDS:,}"
            cited: dict[str, Any] = {
                name: self.hit[name] for name in ("docid", "title", "metadata") if name in self.hit
            }
            yield {**cited, "place": place, "text": text.strip(), "tokens": tokens_of(text.strip())}


def _joined(text: str, more: str) -> str:
    """Return two passages as one; what a stride repeats appears once."""
    for size in range(min(len(text), len(more)), _OVERLAP - 1, -1):
        if text.endswith(more[:size]):
            return text + more[size:]
    return f"{text} {more}".lstrip()


def context(hits: pl.DataFrame, query: str, tokens: int, read: Read) -> pl.DataFrame:
    """Return the parts of hits that fit into a number of tokens.

    Args:
        hits: docid (and `passage`, the best one), title, text and maybe `metadata`, best first.
        query: text of the query.
        tokens: largest sum of `tokens`, and of the titles; see `tokens_of`.
        read: returns docid, title and text of passages.

    Returns:
        docid, place ("whole document", "passages 2 to 4", "words 101 to 200"), title, text, tokens, and `metadata`
        if the hits have it; documents in the order of their best hits, parts in the order of the text.
    """
    documents: dict[str, _Document] = {}
    left = tokens
    for hit in hits.filter(pl.col("text").is_not_null()).iter_rows(named=True):
        one = _Document.of(hit, query)
        known = documents.get(one.hit["docid"])
        cost = tokens_of(one.parts[one.number]) + (0 if known else tokens_of(hit["title"] or ""))
        if not documents and cost > left and (room := left - tokens_of(hit["title"] or "")) > 0:
            whole = one.parts[one.number]
            most = len(whole.encode()[: BYTES * room].decode(errors="ignore"))
            one.parts[one.number], cost = whole[: words.word_end(whole, 0, most)], left
        if cost <= left:
            left -= cost
            document = documents.setdefault(one.hit["docid"], one)
            document.parts |= {one.number: one.parts[one.number]}
            document.taken.add(one.number)
    for distance in range(1, NEIGHBORS + 1):
        ids = [docid for document in documents.values() for docid in document.missing(distance)]
        found = read(pl.Series(ids, dtype=pl.String)) if ids else None
        texts = {} if found is None else dict(found.select("docid", "text").iter_rows())
        for document in documents.values():
            for number in document.neighbors(distance):
                text = document.parts.get(number, texts.get(passage_id(document.hit["passage"] or "", number)))
                between = number + (1 if number < document.number else -1)
                if text and number not in document.taken and between in document.taken and tokens_of(text) <= left:
                    left -= tokens_of(text)
                    document.parts[number] = text
                    document.taken.add(number)
    rows = [row for document in documents.values() for row in document.excerpts()]
    more = {"metadata": hits.schema["metadata"]} if "metadata" in hits.columns else {}
    return pl.DataFrame(rows, {**SCHEMA, **more})
