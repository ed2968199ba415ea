"""The English analyzer for a few texts, such as live queries, without importing numba; many: `word_kernels`.

Lucene's analyzer splits a text at the word boundaries of Unicode (UAX 29), removes `'s`, lowercases, drops stop words,
and stems with Porter's algorithm (PorterStemmer, as in its author's Java program: `bli` and `logi` are suffixes, and
words of one or two letters are kept). Texts with other characters than those below have further rules (`word_rules`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

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
# fmt: off
STOP_WORDS = frozenset(
    {"a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
     "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with"}
)  # removed by the English analyzer
DOUBLE_SUFFIXES = (  # step 3: (suffix, replacement), of which the first that fits is applied
    ("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("bli", "ble"),
    ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate"),
    ("ator", "ate"), ("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"),
    ("iviti", "ive"), ("biliti", "ble"), ("logi", "log"),
)
SINGLE_SUFFIXES = (  # step 4
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", ""),
)
LAST_SUFFIXES = (  # step 5
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
    "ous", "ive", "ize",
)
# fmt: on


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
    from hybrid_cli.lexical.word_rules import english_lists

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


@lru_cache(1 << 14)  # live queries repeat words
def stem(word: str) -> str:
    """Return the stem of a lower-case word, in units of UTF-16."""
    if len(word) <= 2:
        return _joined(word)
    word = _final_y(_past_and_progressive(_plural(word)))
    word = _replaced(_replaced(word, DOUBLE_SUFFIXES), SINGLE_SUFFIXES)
    return _joined(_final_e(_without_last_suffix(word)))


def _joined(word: str) -> str:
    """Return a word with its pairs of UTF-16 as characters."""
    return word if word.isascii() else word.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _consonants(word: str) -> list[bool]:
    """Distinguish consonants from vowels; `y` is a vowel after a consonant."""
    kinds: list[bool] = []
    for letter in word:
        kinds.append(not kinds or not kinds[-1] if letter == "y" else letter not in "aeiou")
    return kinds


def _measure(word: str) -> int:
    """Return how often a consonant follows a vowel."""
    kinds = _consonants(word)
    return sum(after and not before for before, after in pairwise(kinds))


def _ends_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _consonants(word)[-1]


def _ends_short(word: str) -> bool:
    """Test for consonant, vowel, consonant at the end, the last one neither w, x nor y: `hop`."""
    return _consonants(word)[-3:] == [True, False, True] and word[-1] not in "wxy"


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past_and_progressive(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    ending = next((suffix for suffix in ("ed", "ing") if word.endswith(suffix)), "")
    rest = word.removesuffix(ending)
    if not ending or all(_consonants(rest)):
        return word
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if _ends_double(rest):
        return rest if rest[-1] in "lsz" else rest[:-1]
    return rest + "e" if _measure(rest) == 1 and _ends_short(rest) else rest


def _final_y(word: str) -> str:
    return word[:-1] + "i" if word.endswith("y") and not all(_consonants(word[:-1])) else word


def _replaced(word: str, suffixes: Sequence[tuple[str, str]]) -> str:
    for suffix, replacement in suffixes:
        if word.endswith(suffix):
            rest = word.removesuffix(suffix)
            return rest + replacement if _measure(rest) > 0 else word
    return word


def _without_last_suffix(word: str) -> str:
    for suffix in LAST_SUFFIXES:
        if word.endswith(suffix):
            rest = word.removesuffix(suffix)
            if suffix == "ion" and not rest.endswith(("s", "t")):
                return word
            return rest if _measure(rest) > 1 else word
    return word


def _final_e(word: str) -> str:
    measure = _measure(word)
    if word.endswith("e") and (measure > 1 or (measure == 1 and not _ends_short(word[:-1]))):
        word = word[:-1]
    return word[:-1] if word.endswith("l") and _ends_double(word) and measure > 1 else word
