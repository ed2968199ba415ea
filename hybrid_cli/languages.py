"""Languages of texts, detected in samples: by their letters, by common English words, else by py3langid.

A text is English unless something else is clear: letters of another script, or 20 letters or more for which the library
gives another language more than half of the probability. Code, identifiers, names and short texts are thus English.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any

ENGLISH = "en"
LETTERS, TEXTS = 500, 2000  # letters of a text, and texts of a collection, that are read
NOTED = 0.01  # share of texts in other languages
_FEWEST_LETTERS, _LEAST_PROBABILITY = 20, 0.5
_SCRIPTS = {  # the only language of a script, or its most frequent one; an ideograph is as much text as three letters
    "ja": ("\u3041-\u30ff\uff66-\uff9f", 3),
    "zh": ("\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff", 3),
    "ko": ("\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3", 3),
    "th": ("\u0e01-\u0e7f", 1),
    "te": ("\u0c00-\u0c7f", 1),
    "ru": ("\u0400-\u052f", 1),
    "ar": ("\u0600-\u06ff\u0750-\u077f", 1),
    "hi": ("\u0900-\u097f", 1),
    "bn": ("\u0980-\u09ff", 1),
    "en": ("A-Za-z\u00c0-\u024f\u1e00-\u1eff", 1),
}
_ALONE = ("ja", "zh", "ko", "th", "te")  # no other language has this script
_LETTERS_OF = {language: (re.compile(f"[{letters}]"), weight) for language, (letters, weight) in _SCRIPTS.items()}
_OTHER = re.compile(f"[^\\W\\d_{''.join(letters for letters, _ in _SCRIPTS.values())}]")
_KANA = 0.1  # of the characters of a Japanese text, at least
_SAME = {"arz": "ar", "ary": "ar", "nn": "no", "pcm": ENGLISH, "zxx": ENGLISH}  # dialects, and texts without language
_ENGLISH_WORD = re.compile(
    r"\b(?:the|of|and|that|this|with|are|from|have|which|what|how|your|you|to|for)\b", re.IGNORECASE
)
_WORDS_PER_ENGLISH_WORD = 8


def detect(text: str) -> str | None:
    """Return the language of a text (ISO 639-1), None of one without letters."""
    language, is_clear = _by_letters(text := text[:LETTERS])
    if is_clear:
        return language
    other, probability = _classified(text)
    return other if language is None or probability >= _LEAST_PROBABILITY else language


def _by_letters(text: str) -> tuple[str | None, bool]:
    """Return the usual language of the letters of a text, and whether the library is not needed."""
    sizes = {language: weight * len(found.findall(text)) for language, (found, weight) in _LETTERS_OF.items()}
    other = len(_OTHER.findall(text))
    script = max(sizes, key=sizes.__getitem__)
    if other > sizes[script] or not sizes[script]:
        return None, not other
    if script in ("ja", "zh"):
        return "ja" if sizes["ja"] >= _KANA * (sizes["ja"] + sizes["zh"]) else "zh", True
    return script, script in _ALONE or (script == ENGLISH and _is_english(text, sizes[script]))


def count(texts: Iterable[str]) -> dict[str, int]:
    """Return the number of texts in each language."""
    return dict(Counter(filter(None, map(detect, texts))))


def of_most(texts: Sequence[str]) -> str:
    """Return the most frequent language; the library is loaded only where other texts can outnumber the clear ones."""
    found = (_by_letters(text[:LETTERS]) for text in texts)
    clear = Counter(language for language, is_clear in found if is_clear and language is not None)
    language = majority(clear)
    return language if 2 * clear[language] > len(texts) else majority(count(texts))


def majority(counts: Mapping[str, int]) -> str:
    """Return the most frequent language of `count`; English of no texts."""
    return next(iter(_ranked(counts)), ENGLISH)


def listed(counts: Mapping[str, int], most: int = 5) -> str:
    """Return counts as text: `zh 80%, en 12%, and 3 more`."""
    total, more = sum(counts.values()), len(counts) - most
    shares = ", ".join(f"{language} {number / total:.1%}" for language, number in islice(_ranked(counts).items(), most))
    return f"{shares}, and {more} more" if more > 0 else shares


def _ranked(counts: Mapping[str, int]) -> dict[str, int]:
    """Return counts by falling number; of equal ones, English first."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0] != ENGLISH, item[0])))


def others(counts: Mapping[str, int], than: str | None = None) -> float:
    """Return the share of the texts in other languages than one, by default the most frequent one."""
    return 1 - counts.get(than or majority(counts), 0) / sum(counts.values()) if counts else 0.0


def _is_english(text: str, letters: int) -> bool:
    """Return whether a text in Latin letters has too few of them to tell, or many common English words."""
    common = len(_ENGLISH_WORD.findall(text))
    return letters < _FEWEST_LETTERS or (common > 1 and common * _WORDS_PER_ENGLISH_WORD >= len(text.split()))


def _classified(text: str) -> tuple[str, float]:
    """Return the most probable language of a text, and its probability."""
    language, probability = _identifier().classify(text)
    return _SAME.get(language, language), probability


@cache
def _identifier() -> Any:
    from py3langid import langid  # its model takes a second to load

    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
