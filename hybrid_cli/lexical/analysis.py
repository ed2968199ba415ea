"""Lucene's text analysis in batches, and the same analysis of English without Java.

A call into Java takes as long as the analysis of a sentence. English texts are therefore joined to one string with a
marker word between them, and the tokens are returned as one string. This requires a tokenizer without context across
line ends; texts in other languages are analyzed one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hybrid_cli import console, languages, plugins, words
from hybrid_cli.errors import HybridError, InputError, option_error, path_error
from hybrid_cli.lexical import english_words, jvm
from hybrid_cli.lexical.options import BIGRAMS, ENGLISH, IDENTIFIERS, LUCENE_LANGUAGES, STACKING

FIELD = "contents"
TEXTS_PER_CALL = 32
_PIECES = 1 << 20  # of texts, whose terms are kept: a collection repeats them
_MARKER = "7h4e0b2r1i6d9"  # neither a stop word nor stemmed, and unlikely in a text
_CJK = "hybrid_cli.lexical.cjk"
# The terms of a text, in order, without Java.
ANALYZERS: plugins.Registry[Callable[[str], Iterable[str]]] = plugins.Registry(
    "analyzers",
    {
        ENGLISH: english_words.terms_of,
        **dict.fromkeys(("zh", "ko"), plugins.Lazy(f"{_CJK}:terms_of")),
        BIGRAMS: plugins.Lazy(f"{_CJK}:bigrams_of"),
    },
    checked=plugins.function_of,
    spellings=LUCENE_LANGUAGES,
)
_BETWEEN = f"\n{_MARKER}\n"
_BYTE_ORDER_MARKS = "\ufeff\ufffe"
_PLAIN = re.compile("[\x00-\u02ff\u2010-\u2027\u2030-\u205e]*")  # texts in which no analyzer removes a whole token


@runtime_checkable
class TextAnalyzer(Protocol):
    """Splits texts into terms; see `lexical.analysis.Analyzer`."""

    def analyze(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the tokens of each text."""

    def tokens(self, texts: Sequence[str]) -> tuple[pa.StringArray, npt.NDArray[np.int64]]:
        """Return the tokens of all texts, concatenated, and the number of tokens of each."""


class Analyzer:
    """Anserini's analyzer of a language; `en` uses the Porter stemmer and Lucene's 33 stop words."""

    def __init__(self, language: str = ENGLISH):
        self.language = language
        self.java = _java_analyzer(language)
        self._analyze = jvm.java_class("io.anserini.analysis.AnalyzerUtils").analyze
        string = jvm.java_class("java.lang.String")
        self._join, self._line_end = string.join, jvm.cast("java.lang.CharSequence", string("\n"))
        self._together = TEXTS_PER_CALL if language == ENGLISH else 1
        self._of_length = jvm.java_class("org.apache.lucene.analysis.miscellaneous.LengthFilter")

    def analyze(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the tokens of each text."""
        return _split(*self.tokens(texts))

    def tokens(self, texts: Sequence[str]) -> tuple[pa.StringArray, npt.NDArray[np.int64]]:
        """Return the tokens of all texts, concatenated, and the number of tokens of each."""
        parts = [self._batch(texts[at : at + self._together]) for at in range(0, len(texts), self._together)]
        if not parts:
            return pa.array([], pa.string()), np.zeros(0, np.int64)
        return pa.concat_arrays([part for part, _ in parts]), np.concatenate([lengths for _, lengths in parts])

    def document_tokens(self, texts: Sequence[str]) -> tuple[pa.StringArray, npt.NDArray[np.int64]]:
        """Return the tokens of documents as `tokens` does, with the empty ones.

        A filter may remove all characters of a token, such as the tatweel in Arabic. Lucene counts an empty token in
        the length of a document, but leaves it out of a query.
        """
        tokens, lengths = self.tokens(texts)
        if self.language == ENGLISH:
            return tokens, lengths
        empty = np.array([0 if _PLAIN.fullmatch(text) else self._count_empty(text) for text in texts], np.int64)
        if not empty.any():
            return tokens, lengths
        positions = np.insert(np.arange(len(tokens)), np.repeat(np.cumsum(lengths), empty), -1)
        return tokens.take(pa.array(positions, mask=positions < 0)).fill_null(""), lengths + empty

    def _count_empty(self, text: str) -> int:
        """Return the number of empty tokens of a text."""
        stream, count = self._of_length(self.java.tokenStream(FIELD, text), 0, 0), 0
        stream.reset()
        while stream.incrementToken():
            count += 1
        stream.close()
        return count

    def _batch(self, texts: Sequence[str]) -> tuple[pa.StringArray, npt.NDArray[np.int64]]:
        """Analyze texts in one call; one by one if a text contains the marker."""
        import pyarrow.compute as pc  # takes as long as a search

        words = self._call(_BETWEEN.join(texts))
        marks = np.flatnonzero(pc.equal(words, _MARKER).to_numpy(zero_copy_only=False))
        if len(marks) == len(texts) - 1:
            lengths = np.diff(np.concatenate(([-1], marks, [len(words)]))) - 1
            return (words.filter(pc.not_equal(words, _MARKER)) if len(marks) else words), lengths
        if len(texts) == 1:  # a text that contains the marker
            return words, np.array([len(words)])
        tokens_of_texts = [self._call(text) for text in texts]
        return pa.concat_arrays(tokens_of_texts), np.array([len(part) for part in tokens_of_texts])

    def _call(self, text: str) -> pa.StringArray:
        tokens = self._analyze(self.java, text)
        marked = any(mark in text for mark in _BYTE_ORDER_MARKS)
        if marked:  # jnius takes one at the begin of a string for its byte order
            tokens.add(0, "")
        joined = self._join(self._line_end, jvm.cast("java.lang.Iterable", tokens))
        words = pa.array(joined.split("\n") if joined else [], pa.string())
        return words[1:] if marked else words


class LazyAnalyzer:
    """The analyzer of a name, such as `en`, `zh+identifiers` or one of a plugin.

    Those of `ANALYZERS` need no Java; for other languages Java starts with the first text.
    """

    def __init__(self, name: str = ENGLISH):
        """Name the analyzer; see `options.analysis`."""
        self.language, self._identifiers, _ = name.partition(IDENTIFIERS)
        self._terms = lru_cache(_PIECES)(english_words.terms_of)

    @cached_property
    def _java(self) -> Analyzer | None:
        if self.language == ENGLISH or self.language in ANALYZERS:  # the installed plugins are not read for English
            return None
        return Analyzer(self.language)

    def expanded(self, texts: Sequence[str]) -> Sequence[str]:
        """Return texts with the parts of their identifiers, if the analysis has them."""
        return [*map(words.with_name_parts, texts)] if self._identifiers else texts

    def analyze(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the tokens of each text."""
        texts = self.expanded(texts)
        return self._analyzed(texts) if self._java is None else self._java.analyze(texts)

    def tokens(self, texts: Sequence[str]) -> tuple[pa.StringArray, npt.NDArray[np.int64]]:
        """Return the tokens of all texts, concatenated, and the number of tokens of each."""
        if self._java is not None:
            return self._java.tokens(self.expanded(texts))
        tokens, lengths = self.document_tokens(pa.array(texts, pa.large_string()))
        return tokens.cast(pa.string()), lengths

    def document_tokens(self, texts: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
        """Return the tokens of documents; see `Analyzer`."""
        if self.language == ENGLISH and not self._identifiers:
            return english_words.tokens_of(texts, self._terms)
        expanded = self.expanded(texts.to_pylist())
        if self.language == ENGLISH:
            return english_words.tokens_of(pa.array(expanded, pa.large_string()), self._terms)
        if self._java is not None:
            return self._java.document_tokens(expanded)
        terms = self._analyzed(expanded)
        return pa.array(chain.from_iterable(terms), pa.string()), np.array([*map(len, terms)], np.int64)

    def _analyzed(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the terms that the function of `ANALYZERS` finds in each text."""
        if self.language == ENGLISH:
            return english_words.analyze(texts)
        function = ANALYZERS[self.language]
        with plugins.calling("analyzers", self.language):
            terms = [[*function(text)] for text in texts]
            if not all(isinstance(term, str) for own in terms for term in own):
                raise TypeError("a term is no text")
            return terms


def refuse_unknown(name: str, path: Path | None = None) -> None:
    """Refuse a name without an analyzer, in the manifest of the index `path` or as an option.

    Raises:
        InputError: names the known ones, or the index.
    """
    language = name.partition(IDENTIFIERS)[0]
    if language == ENGLISH or language in LUCENE_LANGUAGES or language in ANALYZERS:
        return
    if path is not None:
        fields = {"group": "analyzers", "name": language}
        raise path_error(path, f"unknown analyzer {language}; pass --plugin", code="unknown-choice", **fields)
    known = sorted({*ANALYZERS, *LUCENE_LANGUAGES})
    raise option_error("language", language, f"unknown; use {', '.join(known)}", code="unknown-choice", choices=known)


def choose_language(counts: Mapping[str, int], with_lucene: bool) -> str:
    """Return the analyzer of most documents, with a note about other languages; pairs and words where it is missing.

    Args:
        counts: number of documents in each language.
        with_lucene: Lucene's index is built too.
    """
    language, others = languages.majority(counts), languages.others(counts)
    if others >= languages.NOTED:
        text = f"index-bm25: documents: {languages.listed(counts)}; all are analyzed as {language} (--language)"
        console.note(text, code="languages", language=language, others=round(others, 3))
    try:
        refuse_unknown(language)
        if language in STACKING and not with_lucene:
            raise HybridError("needs Lucene's index: pass --lucene", code="no-lucene-index")
        LazyAnalyzer(language).analyze([""])  # starts Java for the languages that need it
    except (InputError, HybridError) as error:
        reason = str(error) if language in LUCENE_LANGUAGES else "no analyzer has this language"
        text = f"index-bm25: most documents have the language {language}: {reason}; words and pairs of characters are"
        console.warn(f"{text} indexed (--language {BIGRAMS})", code="no-analyzer", language=language)
        return BIGRAMS
    return language


def _split(tokens: pa.StringArray, lengths: npt.NDArray[np.int64]) -> list[list[str]]:
    """Return the tokens of each text."""
    words, ends = tokens.to_pylist(), np.cumsum(lengths)
    return [words[end - length : end] for length, end in zip(lengths, ends, strict=True)]


def _java_analyzer(language: str) -> Any:
    if language == ENGLISH:
        return jvm.java_class("io.anserini.analysis.DefaultEnglishAnalyzer").newStemmingInstance("porter")
    refuse_unknown(language)
    if language not in LUCENE_LANGUAGES:
        raise option_error("language", language, "has no analyzer in Java", code="option-does-not-apply")
    table = jvm.java_class("io.anserini.analysis.AnalyzerMap")
    try:
        analyzer = table.getLanguageSpecificAnalyzer(language)
        jvm.java_class("io.anserini.analysis.AnalyzerUtils").analyze(analyzer, "a")
    except jvm.java_errors() as error:  # Thai requires a full Java runtime
        reason = str(error).splitlines()[0]
        problem = f"--language {language}: does not run in this Java ({reason}); set JAVA_HOME to a whole one (Temurin)"
        raise HybridError(problem, code="java-failed", option="language") from None
    return analyzer
