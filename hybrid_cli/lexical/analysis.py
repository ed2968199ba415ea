"""Lucene's analysis, many texts at a time.

A call into Java costs as much as the analysis of a sentence, so that texts travel together: one string, a marker word
between each two, and the tokens come back as one string. That needs a tokenizer which starts anew at a line end, as
the English one does; other languages go text by text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.lexical import jvm

ENGLISH = "en"
STACKING = ("pl", "uk")  # several stems of a word stand at one position, and count once in Lucene's length
FIELD = "contents"
TEXTS_PER_CALL = 32
# fmt: off
STOP_WORDS = frozenset(
    {"a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
     "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with"}
)  # what the English analyzer drops
# fmt: on
_MARKER = "7h4e0b2r1i6d9"  # one word with digits: no stop word, not stemmed, in nobody's text
_BETWEEN = f"\n{_MARKER}\n"


class Analyzer:
    """Anserini's analyzer for a language: `en` with Porter's stemmer and Lucene's 33 stop words, or another code."""

    def __init__(self, language: str = ENGLISH):
        self.language = language
        self.java = _java_analyzer(language)
        self._analyze = jvm.java_class("io.anserini.analysis.AnalyzerUtils").analyze
        string = jvm.java_class("java.lang.String")
        self._join, self._line_end = string.join, jvm.cast("java.lang.CharSequence", string("\n"))
        self._together = TEXTS_PER_CALL if language == ENGLISH else 1

    def analyse(self, texts: Sequence[str]) -> list[list[str]]:
        """The tokens of each text."""
        tokens, lengths = self.tokens(texts)
        words, ends = tokens.to_pylist(), np.cumsum(lengths)
        return [words[end - length : end] for length, end in zip(lengths, ends, strict=True)]

    def tokens(self, texts: Sequence[str]) -> tuple[pa.StringArray, npt.NDArray[np.int64]]:
        """The tokens of all texts in a row, and how many each text has."""
        parts = [self._some(texts[at : at + self._together]) for at in range(0, len(texts), self._together)]
        if not parts:
            return pa.array([], pa.string()), np.zeros(0, np.int64)
        return pa.concat_arrays([part for part, _ in parts]), np.concatenate([lengths for _, lengths in parts])

    def _some(self, texts: Sequence[str]) -> tuple[pa.StringArray, npt.NDArray[np.int64]]:
        """As `tokens`, for texts that go in one call; where the marker does not come back whole, one by one."""
        words = self._call(_BETWEEN.join(texts))
        marks = np.flatnonzero(pc.equal(words, _MARKER).to_numpy(zero_copy_only=False))
        if len(marks) == len(texts) - 1:
            lengths = np.diff(np.concatenate(([-1], marks, [len(words)]))) - 1
            return (words.filter(pc.not_equal(words, _MARKER)) if len(marks) else words), lengths
        if len(texts) == 1:  # a text that holds the marker
            return words, np.array([len(words)])
        each = [self._call(text) for text in texts]
        return pa.concat_arrays(each), np.array([len(part) for part in each])

    def _call(self, text: str) -> pa.StringArray:
        joined = self._join(self._line_end, jvm.cast("java.lang.Iterable", self._analyze(self.java, text)))
        return pc.split_pattern(pa.array([joined]), "\n").flatten() if joined else pa.array([], pa.string())


def _java_analyzer(language: str) -> Any:
    if language == ENGLISH:
        return jvm.java_class("io.anserini.analysis.DefaultEnglishAnalyzer").newStemmingInstance("porter")
    table = jvm.java_class("io.anserini.analysis.AnalyzerMap")
    known = sorted({ENGLISH, *table.analyzerMap.keySet().toArray()})
    if language not in known:
        raise InputError(f"--language {language}: Anserini has no analyzer for it; it has {', '.join(known)}")
    try:
        found = table.getLanguageSpecificAnalyzer(language)
        jvm.java_class("io.anserini.analysis.AnalyzerUtils").analyze(found, "a")
    except jvm.java_errors() as error:  # Thai needs a full Java
        reason = str(error).splitlines()[0]
        raise HybridError(f"--language {language}: its analyzer does not work in this Java ({reason})") from None
    return found
