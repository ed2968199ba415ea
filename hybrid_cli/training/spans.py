"""Texts as word pieces that know their words, and spans cut out of them between words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Pieces:
    """A text, or a span of one, without special tokens of its own.

    Attributes:
        ids: [n] of the word pieces.
        starts: [w + 1] where each word begins among them, and n.
    """

    ids: np.ndarray
    starts: np.ndarray

    @property
    def words(self) -> int:
        """How many."""
        return len(self.starts) - 1

    def span(self, first: int, last: int, room: int) -> Pieces:
        """From word `first` to before word `last` at most: the whole words that `room` pieces hold.

        At least one word, which is cut where it alone is longer.
        """
        begin = self.starts[first]
        last = min(last, max(first + 1, int(np.searchsorted(self.starts, begin + room, "right")) - 1))
        starts = np.minimum(self.starts[first : last + 1] - begin, room)
        return Pieces(self.ids[begin : begin + starts[-1]], starts)


def pieces(tokenizer: Any, texts: Sequence[str]) -> Iterator[Pieces]:
    """Cut texts into word pieces; words are the tokenizer's own, for BERT what `##` continues."""
    options = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}
    for encoding in tokenizer(list(texts), **options).encodings if texts else []:
        ids = np.asarray(encoding.ids, np.int32)
        words = np.asarray(encoding.word_ids, np.int32)
        yield Pieces(ids, np.flatnonzero(np.diff(words, prepend=-1, append=-1)) if len(ids) else np.zeros(1, np.int64))


def consecutive(text: Pieces, room: int) -> Iterator[Pieces]:
    """The whole text, in spans of at most `room` word pieces."""
    first = 0
    while first < text.words:
        yield (span := text.span(first, text.words, room))
        first += span.words


def two(text: Pieces, room: int, rng: np.random.Generator) -> list[Pieces]:
    """Two random spans that share nothing, the first before the second; none of a text that has no two words.

    The text is parted between two words of its middle half; a random window of each part is a span.
    """
    if text.words < 2:
        return []
    middle = int(rng.integers(max(1, text.words // 4), text.words - text.words // 4))
    return [_window(text, 0, middle, room, rng), _window(text, middle, text.words, room, rng)]


def _window(text: Pieces, first: int, last: int, room: int, rng: np.random.Generator) -> Pieces:
    """A span of words [first, last) that begins at random, but early enough to fill the room where it can."""
    latest = min(last - 1, int(np.searchsorted(text.starts, text.starts[last] - room)))
    return text.span(int(rng.integers(first, max(first, latest) + 1)), last, room)
