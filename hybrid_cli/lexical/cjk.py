"""Terms of Chinese, Japanese and Korean texts without Java: pairs of characters, as Lucene's CJKAnalyzer makes them.

Words are those of the StandardTokenizer (`word_rules`). Full-width Latin and half-width katakana become usual ones
(CJKWidthFilter), letters become lower case, and words of ideographs, kana or Hangul that touch each other become pairs
of characters, a lone character itself (CJKBigramFilter).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from unicodedata import normalize

from hybrid_cli.lexical.english import STOP_WORDS
from hybrid_cli.lexical.word_rules import kinds_of, word_rules, word_spans

_STOP_WORDS = STOP_WORDS - {"an"} | {"s", "t", "www"}
_MARKS = "[xszmkghte]*"
_HANGUL = re.compile("[\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7fb\uffa0-\uffdc]")
_SINGLE = re.compile(f"J{_MARKS}|(?:K{_MARKS})+|(?:G{_MARKS})+")  # ideograph or hiragana, katakana, Hangul
_RUN = re.compile(f"(?:[Ss]{_MARKS})+")  # Thai, Lao, Khmer, Burmese
_WIDE, _NARROW_KANA, _VOICED = range(0xFF01, 0xFF5F), range(0xFF65, 0xFFA0), "\uff9e\uff9f"
_COMBINING = range(0x30A6, 0x30FE)  # katakana that take a mark of voice


def terms_of(text: str) -> list[str]:
    """Return the tokens of a text: pairs of CJK characters, and words."""
    return _terms(text, _SINGLE)


def bigrams_of(text: str) -> list[str]:
    """Return the tokens of `terms_of`, with pairs of characters also in Thai, Lao, Khmer and Burmese."""
    return _terms(text, re.compile(f"{_SINGLE.pattern}|{_RUN.pattern}"))


def _terms(text: str, paired: re.Pattern[str]) -> list[str]:
    lower, kinds = text.translate(word_rules().lower), kinds_of(text)
    kinds = "".join(
        "G" if kind == "A" and _HANGUL.match(letter) else kind for kind, letter in zip(kinds, text, strict=True)
    )
    terms: list[str] = []
    run, last = "", -1
    for begin, end in word_spans(text):
        joins = paired.fullmatch(kinds, begin, end) is not None
        if not joins or begin != last:
            terms += _pairs(run)
            run = ""
        word = _usual_width(lower[begin:end])
        if joins:
            run, last = run + word, end
        elif word not in _STOP_WORDS:
            terms.append(word)
    return terms + _pairs(run)


def _pairs(run: str) -> list[str]:
    return [first + second for first, second in pairwise(run)] or [*run]


def _usual_width(word: Iterable[str]) -> str:
    """Return a word with Latin letters and katakana of the usual width; a katakana and its mark are one character."""
    letters: list[str] = []
    for letter in word:
        if letter in _VOICED and letters and ord(letters[-1]) in _COMBINING:
            joined = normalize("NFC", letters[-1] + normalize("NFKC", letter))
            if len(joined) == 1:
                letters[-1] = joined
                continue
        code = ord(letter)
        letters.append(normalize("NFKC", letter) if code in _WIDE or code in _NARROW_KANA else letter)
    return "".join(letters)
