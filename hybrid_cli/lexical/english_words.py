"""Terms of English texts without Java.

Lucene's analyzer splits a text at the word boundaries of Unicode (UAX 29), removes `'s`, lowercases, drops stop words,
and stems. Texts with other characters than those below have further rules (`word_rules`). Many texts are cut at
characters that belong to no word, so that each distinct piece is analyzed once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hybrid_cli.lexical.english import STOP_WORDS, stem
from hybrid_cli.lexical.word_rules import word_rules, word_spans

Longs = npt.NDArray[np.int64]

LONGEST = 100  # letters of a usual word
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


_SPACE, _ENDS = 32, list(b".,;:")  # an end is a part of a word before another letter or digit only
_IN_WORDS = frozenset("_'\"#*.,:;")
# For each byte of a text in UTF-8: the letter in lower case, or a space for what is in no word.
_PIECES = np.arange(256, dtype=np.uint8)
_PIECES[:128] = [ord(c.lower()) if c.isalnum() or c in _IN_WORDS else _SPACE for c in map(chr, range(128))]
_IS_END = np.isin(np.arange(256), _ENDS)


def analyze(texts: Sequence[str]) -> list[list[str]]:
    """Return the tokens of each text as Lucene's English analyzer does."""
    return [terms_of(text) for text in texts]


def terms_of(text: str) -> list[str]:
    """Return the tokens of a text."""
    if text.isascii() and text.isalnum() and len(text) <= LONGEST:  # most pieces, in a third of the time
        word = text.lower()
        return [] if word in STOP_WORDS else [stem(word)]
    words = [word.lower() for word in _WORD.findall(text) if word.strip("_")] if _KNOWN.fullmatch(text) else None
    if words is None or any(len(word) > LONGEST for word in words):
        words = _words(text)
    return [stem(word) for word in map(_without_possessive, words) if word not in STOP_WORDS]


def tokens_of(texts: pa.Array, terms: Callable[[str], Sequence[str]] = terms_of) -> tuple[pa.DictionaryArray, Longs]:
    """Return the tokens of all texts, concatenated, and the number of tokens of each.

    Args:
        texts: [n] texts.
        terms: `terms_of`, with a cache for the texts of later calls.
    """
    import pyarrow.compute as pc

    texts = texts.cast(pa.large_string())
    _, offsets, data = texts.buffers()
    begins = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    letters = _PIECES[np.frombuffer(data or b"", np.uint8)[begins[0] : begins[-1]]]
    letters[:-1][_IS_END[letters[:-1]] & (letters[1:] == _SPACE)] = _SPACE
    buffers = [None, pa.py_buffer(begins - begins[0]), pa.py_buffer(letters)]
    pieces = pc.ascii_split_whitespace(pa.Array.from_buffers(pa.large_string(), len(texts), buffers))
    encoded = pieces.flatten().dictionary_encode()
    distinct = [terms(piece) for piece in encoded.dictionary.to_pylist()]
    found = pa.array(chain.from_iterable(distinct), pa.string()).dictionary_encode()
    sizes, used = np.array([*map(len, distinct)], np.int64), encoded.indices.to_numpy()
    ends = np.concatenate(([0], np.cumsum(sizes[used])))
    firsts = np.cumsum(sizes) - sizes
    places = np.repeat(firsts[used] - ends[:-1], sizes[used]) + np.arange(ends[-1])
    return found.take(pa.array(places)), np.diff(ends[pieces.offsets.to_numpy()])


def _words(text: str) -> list[str]:
    """Return the words of any text in lower case, in units of UTF-16."""
    lower = text.translate(word_rules().lower)
    words = (lower[begin:end].encode("utf-16-le") for begin, end in word_spans(text))
    return ["".join(map(chr, memoryview(word).cast("H"))) for word in words]


def _without_possessive(word: str) -> str:
    return word[:-2] if word[-1:] == "s" and word[-2:-1] in _POSSESSIVE and len(word) > 1 else word
