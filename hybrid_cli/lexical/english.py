"""English stems and stop words, as in Lucene's analyzer.

Stems are those of Porter's algorithm (PorterStemmer, as in its author's Java program: `bli` and `logi` are suffixes,
and words of one or two letters are kept).
"""

from __future__ import annotations

from functools import lru_cache

# fmt: off
STOP_WORDS = frozenset(
    {"a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
     "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with"}
)  # removed by the English analyzer
_DOUBLE_SUFFIXES = {  # step 3: suffix and replacement, of which the first that fits is applied
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble",
    "alli": "al", "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate",
    "ator": "ate", "alism": "al", "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al",
    "iviti": "ive", "biliti": "ble", "logi": "log",
}
_SINGLE_SUFFIXES = {  # step 4
    "icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": "",
}
_LAST_SUFFIXES = (  # step 5
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
    "ous", "ive", "ize",
)
# fmt: on
_SHAPES = bytes(118 if chr(code) in "aeiou" else 121 if chr(code) == "y" else 99 for code in range(256))


@lru_cache(1 << 14)  # live queries repeat words
def stem(word: str) -> str:
    """Return the stem of a lower-case word, in units of UTF-16."""
    if len(word) > 2:
        word = _final_y(_past_and_progressive(_plural(word)))
        word = _replaced(_replaced(word, _DOUBLE_SUFFIXES), _SINGLE_SUFFIXES)
        word = _final_e(_without_last_suffix(word))
    return word if word.isascii() else word.encode("utf-16-le", "surrogatepass").decode("utf-16-le")  # join pairs


def _shape(word: str) -> bytes:
    """Return `c` for each consonant and `v` for each vowel; `y` is a vowel after a consonant."""
    shape = word.encode("ascii", "replace").translate(_SHAPES)
    while (at := shape.find(b"y")) >= 0:
        shape = shape[:at] + (b"v" if shape[:at].endswith(b"c") else b"c") + shape[at + 1 :]
    return shape


def _measure(word: str) -> int:
    """Return how often a consonant follows a vowel."""
    return _shape(word).count(b"vc")


def _ends_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _shape(word).endswith(b"c")


def _ends_short(word: str) -> bool:
    """Test for consonant, vowel, consonant at the end, the last one neither w, x nor y: `hop`."""
    return _shape(word).endswith(b"cvc") and word[-1] not in "wxy"


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past_and_progressive(word: str) -> str:
    if not word.endswith(("ed", "ing")):
        return word
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    rest = word[:-2] if word.endswith("ed") else word[:-3]
    if b"v" not in _shape(rest):
        return word
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if _ends_double(rest):
        return rest if rest[-1] in "lsz" else rest[:-1]
    return rest + "e" if _measure(rest) == 1 and _ends_short(rest) else rest


def _final_y(word: str) -> str:
    return word[:-1] + "i" if word.endswith("y") and b"v" in _shape(word[:-1]) else word


def _replaced(word: str, suffixes: dict[str, str]) -> str:
    if not word.endswith((*suffixes,)):
        return word
    suffix = next(filter(word.endswith, suffixes))
    rest = word.removesuffix(suffix)
    return rest + suffixes[suffix] if _measure(rest) > 0 else word


def _without_last_suffix(word: str) -> str:
    if not word.endswith(_LAST_SUFFIXES):
        return word
    suffix = next(filter(word.endswith, _LAST_SUFFIXES))
    rest = word.removesuffix(suffix)
    fits = suffix != "ion" or rest.endswith(("s", "t"))
    return rest if fits and _measure(rest) > 1 else word


def _final_e(word: str) -> str:
    if not word.endswith(("e", "l")):
        return word
    measure = _measure(word)
    if word.endswith("e") and (measure > 1 or (measure == 1 and not _ends_short(word[:-1]))):
        word = word[:-1]
    return word[:-1] if word.endswith("l") and measure > 1 and _ends_double(word) else word
