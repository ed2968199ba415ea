"""Terms as numbers, and their frequencies in each document.

English texts are analyzed by compiled loops, each distinct word once; other languages by Lucene.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from hybrid_cli.lexical.analysis import ENGLISH, Analyzer
from hybrid_cli.lexical.english_numbers import EnglishNumbers, Ints, Longs

_EMPTY = "\u2400"  # stands for an empty token
_LONGEST = 255  # UTF-16 code units of a token that Lucene does not split
_SPACE = re.compile(r"\s")


@dataclass(frozen=True)
class Counted:
    """Term frequencies of consecutive documents.

    Attributes:
        lengths: [n] tokens of each document.
        distinct: [n] distinct terms of each document.
        terms, tfs: numbers and frequencies of the terms, document by document.
    """

    lengths: Longs
    distinct: Longs
    terms: Ints
    tfs: Ints


class TermNumbers(Protocol):
    """Numbers the terms of texts in the order of their first occurrence; for one thread at a time."""

    def number(self, texts: pa.Array) -> tuple[Ints, Longs]:
        """Return the number of each token of some texts, concatenated, and the tokens of each text."""

    def terms(self) -> pa.Array:
        """Return the terms by number."""

    def spellings(self) -> pa.Array:
        """Return the terms by number, such that each is one token where Lucene splits at spaces."""

    @property
    def places(self) -> Ints:
        """Memory of one integer per term, for `count`."""


class TokenNumbers:
    """Numbers tokens, of Lucene's analyzer if there is one."""

    def __init__(self, analyzer: Analyzer | None = None):
        self._analyzer, self._numbers = analyzer, dict[str, int]()

    def number(self, texts: pa.Array) -> tuple[Ints, Longs]:
        """See `TermNumbers`."""
        assert self._analyzer is not None
        tokens, lengths = self._analyzer.document_tokens(texts.to_pylist())
        return self.number_tokens(tokens), lengths

    def number_tokens(self, tokens: pa.Array) -> Ints:
        """Return the number of each token."""
        encoded = tokens if isinstance(tokens, pa.DictionaryArray) else tokens.dictionary_encode()
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        used, positions = np.unique(indices, return_inverse=True)
        names = encoded.dictionary.take(pa.array(used)).to_pylist()
        numbers = [self._numbers.setdefault(name, len(self._numbers)) for name in names]
        return np.array(numbers, np.int32)[positions]

    def terms(self) -> pa.Array:
        """See `TermNumbers`."""
        return pa.array(list(self._numbers), pa.large_string())

    def spellings(self) -> pa.Array:
        """See `TermNumbers`."""
        return pa.array([_spelling(term) for term in self._numbers], pa.large_string())

    @property
    def places(self) -> Ints:
        """See `TermNumbers`."""
        return np.empty(len(self._numbers), np.int32)


def _spelling(term: str) -> str:
    """Return a term as one token: not empty, without spaces, and not too long."""
    if not 0 < len(term) <= _LONGEST // 2 or _SPACE.search(term):
        units = _SPACE.sub("\u00a0", term).encode("utf-16-le")[: 2 * _LONGEST]
        return units.decode("utf-16-le", "ignore") or _EMPTY
    return term


def numbers_of(language: str, analyzer: Analyzer | None = None) -> TermNumbers:
    """Return the numbers of the terms of a language, of its analyzer if there is one already."""
    return EnglishNumbers() if language == ENGLISH else TokenNumbers(analyzer or Analyzer(language))


def count(tokens: Ints, lengths: Longs, places: Ints) -> Counted:
    """Count terms.

    Args:
        tokens: number of the term of each token, document by document.
        lengths: [n] tokens of each document.
        places: memory of one integer per term.
    """
    from hybrid_cli.lexical import word_kernels

    distinct, terms, tfs = np.empty(len(lengths), np.int64), np.empty_like(tokens), np.empty_like(tokens)
    size = word_kernels.count(tokens, lengths, places, distinct, terms, tfs)
    return Counted(lengths, distinct, terms[:size].copy(), tfs[:size].copy())
