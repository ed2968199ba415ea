"""Terms of English texts without Java: of a few texts in Python; of many as numbers, by compiled loops.

Lucene's analyzer splits a text at the word boundaries of Unicode (UAX 29), removes `'s`, lowercases, drops stop words,
and stems. Texts with other characters than those below have further rules (`word_rules`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hybrid_cli.lexical.english import STOP_WORDS, stem
from hybrid_cli.lexical.word_rules import Table, english_lists, english_rules

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

LONGEST = 100  # letters of a usual word
LONGEST_UNITS = 255  # UTF-16 code units of a word; Lucene splits longer ones
_QUOTES = "'\u2018\u2019"
# Letters of Western and Central Europe and of Greece; not those whose lower case Java and Python compute differently.
_LETTER = "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u012f\u0131-\u017f\u0391-\u03a1\u03a4-\u03a9\u03b1-\u03c9"
_MARKS = (
    f"{_QUOTES}\u201c\u201d\u2013\u2014\u2026\u00a0\u00a3\u20ac\u00a7\u00b0"  # quotes, dashes, space, currencies
    "\u00b1\u00d7\u00f7\u2190\u2192\u2212\u221e\u2248\u2260\u2264\u2265"  # operators and arrows
)
_KNOWN = re.compile(f"[\\x00-\\x7f{_LETTER}{_MARKS}]*")
# Letters, digits and `_`; a mark joins two letters (`os.path`, `don't`) or two digits (`3.14`, `1,000`).
_WORD = re.compile(
    f"(?:[{_LETTER}0-9_]|(?<=[{_LETTER}])[.:{_QUOTES}](?=[{_LETTER}])|(?<=[0-9])[.,;{_QUOTES}](?=[0-9]))+"
)
_POSSESSIVE = frozenset("'\u2019\uff07")


def analyze(texts: Sequence[str]) -> list[list[str]]:
    """Return the tokens of each text as Lucene's English analyzer does."""
    terms = []
    for text in texts:
        words = [word for word in _WORD.findall(text) if word.strip("_")] if _KNOWN.fullmatch(text) else None
        if words is None or any(len(word) > LONGEST for word in words):
            words = _words(text)
        else:
            words = [word.lower() for word in words]
        terms.append([stem(word) for word in map(_without_possessive, words) if word not in STOP_WORDS])
    return terms


def _words(text: str) -> list[str]:
    """Return the words of any text in lower case, in units of UTF-16: the loops of `word_kernels`, and their tables."""
    kinds_of, steps, ends, lower = english_lists()
    units = text.translate(lower).encode("utf-16-le")
    kinds, sizes = [kinds_of[ord(letter)] for letter in text], [1 + (ord(letter) > 0xFFFF) for letter in text]
    words, at, unit = [], 0, 0
    while at < len(text):
        state, size, stop, length = 0, 0, at, 0
        for read in range(at, len(text)):
            size += sizes[read]
            state = steps[state][kinds[read]]
            if state < 0 or size > LONGEST_UNITS:
                break
            if ends[state]:
                stop, length = read + 1, size
        if length:
            words.append("".join(map(chr, memoryview(units[2 * unit : 2 * (unit + length)]).cast("H"))))
        unit += length or sizes[at]
        at = max(stop, at + 1)
    return words


def _without_possessive(word: str) -> str:
    return word[:-2] if word[-1:] == "s" and word[-2:-1] in _POSSESSIVE and len(word) > 1 else word


class EnglishNumbers:
    """Numbers the terms of Lucene's English analyzer, without Java."""

    def __init__(self) -> None:
        self._words, self._terms, self._tokens = Table.empty(), Table.empty(), np.empty(1 << 12, np.int32)

    def number(self, texts: pa.Array) -> tuple[Ints, Longs]:
        """See `builder.TermNumbers`; the first array is overwritten by the next call."""
        from hybrid_cli.lexical import word_kernels

        texts = texts.cast(pa.large_string())
        _, offsets, data = texts.buffers()
        begins = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        letters, lengths = np.frombuffer(data or b"", np.uint8), np.zeros(len(texts), np.int64)
        arrays = self._words, self._terms, self._tokens, lengths
        self._words, self._terms, self._tokens, size = word_kernels.number(letters, begins, english_rules(), *arrays)
        return self._tokens[:size], lengths

    def terms(self) -> pa.Array:
        """See `builder.TermNumbers`; without a copy."""
        return self._terms.texts()

    def spellings(self) -> pa.Array:
        """See `builder.TermNumbers`."""
        return self.terms()

    @property
    def places(self) -> Ints:
        """See `builder.TermNumbers`."""
        return self._terms.values
