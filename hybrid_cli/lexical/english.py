"""English stems and stop words, as in Lucene's analyzer.

Stems are those of Porter's algorithm (PorterStemmer, as in its author's Java program: `bli` and `logi` are suffixes,
and words of one or two letters are kept).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

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
