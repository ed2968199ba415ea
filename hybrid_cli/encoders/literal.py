"""The words of a text, as the tokenizer splits them, with their terms in a lexical index (DeepCT)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hybrid_cli.lexical.analysis import ENGLISH, LazyAnalyzer

_CHUNK = re.compile(r"\S+")


class LiteralTerms:
    """The words of a text with their analyzed terms, by the position of their first piece.

    Args:
        head: characters before the text; words that begin there are skipped.
    """

    def __init__(self, head: int = 0):
        self._head, self._analyzer = head, LazyAnalyzer(ENGLISH)

    def words(self, texts: Sequence[str], encodings: Sequence[Any]) -> list[list[tuple[int, list[str]]]]:
        """Return position and terms of each word of each text.

        Lucene and the tokenizer may split a piece of text between spaces differently (`U.S.`): of such a piece, the
        terms that no word has alone go to the first word.

        Args:
            texts: [n] inputs of the tokenizer.
            encodings: [n] their encodings.
        """
        split = [list(self._split(text, encoding)) for text, encoding in zip(texts, encodings, strict=True)]
        wanted = dict.fromkeys(part for each in split for chunk, words in each for part in (chunk, *words.values()))
        known = dict(zip(wanted, self._analyzer.analyze(list(wanted)), strict=True))
        return [[word for chunk, words in each for word in _terms(chunk, words, known)] for each in split]

    def _split(self, text: str, encoding: Any) -> list[tuple[str, dict[int, str]]]:
        """Return the pieces of text between spaces, with the words of each by position."""
        chunks = [match.span() for match in _CHUNK.finditer(text)]
        found: list[tuple[str, dict[int, str]]] = [(text[begin:end], {}) for begin, end in chunks]
        number, ends = 0, {}
        for place, word in enumerate(encoding.word_ids):
            if word is not None:
                ends[word] = encoding.offsets[place][1]
        seen: set[int] = set()
        for place, word in enumerate(encoding.word_ids):
            if word is None or word in seen:
                continue
            seen.add(word)
            begin = encoding.offsets[place][0]
            while number < len(chunks) and begin >= chunks[number][1]:
                number += 1
            if begin >= self._head and number < len(chunks):
                found[number][1][place] = text[begin : ends[word]].strip()
        return [(chunk, words) for chunk, words in found if words]


def _terms(chunk: str, words: Mapping[int, str], known: Mapping[str, list[str]]) -> list[tuple[int, list[str]]]:
    whole = known[chunk]
    found = {place: [term for term in known[word] if term in whole] for place, word in words.items()}
    covered = {term for terms in found.values() for term in terms}
    found[min(found)] += [term for term in whole if term not in covered]
    return list(found.items())
