"""Terms of documents as numbers, their frequencies, and the postings sorted by term."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from hybrid_cli.lexical import english_numbers
from hybrid_cli.lexical.analysis import ENGLISH, Analyzer
from hybrid_cli.lexical.english_numbers import EnglishNumbers, Ints, Longs
from hybrid_cli.lexical.impacts import Postings, positions_of_terms
from hybrid_cli.threads import ThreadPool


class PostingsBuilder:
    """Collects documents block by block; memory holds two integers per posting, and the dictionaries.

    Args:
        threads: threads that sort the postings, each those of some terms.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._tokens = TokenNumbers()
        self._blocks: list[tuple[TermNumbers, Counted]] = []

    def add(self, tokens: pa.StringArray, lengths: Longs) -> None:
        """Add documents.

        Args:
            tokens: tokens of all documents, concatenated.
            lengths: number of tokens of each document.
        """
        numbers = self._tokens.number_tokens(tokens)
        self.add_counted(self._tokens, count(numbers, lengths, self._tokens.places))

    def add_weights(self, terms: pa.DictionaryArray, weights: Ints, distinct: Longs) -> None:
        """Add documents with learned weights.

        Args:
            terms: terms of all documents, concatenated; each term of a document once.
            weights: quantized weights of the terms, above 0.
            distinct: number of terms of each document.
        """
        documents = np.repeat(np.arange(len(distinct)), distinct)
        lengths = np.bincount(documents, weights, len(distinct)).astype(np.int64)
        self.add_counted(self._tokens, Counted(lengths, distinct, self._tokens.number_tokens(terms), weights))

    def add_counted(self, numbers: TermNumbers, counted: Counted) -> None:
        """Add documents whose terms have some numbers."""
        self._blocks.append((numbers, counted))

    def finish(self) -> Postings:
        """Return the postings sorted by term. The builder cannot be used afterwards."""
        terms, ranks = _sorted_terms({id(numbers): numbers for numbers, _ in self._blocks})
        df = np.zeros(len(terms), np.int64)
        for numbers, block in self._blocks:
            np.add.at(df, ranks[id(numbers)][block.terms], 1)
        lengths = np.concatenate([np.zeros(0, np.int64), *(block.lengths for _, block in self._blocks)]).astype(
            np.int32
        )
        if df.sum() <= FEW_POSTINGS:
            return self._sorted(terms, ranks, df, lengths)
        from hybrid_cli.lexical import kernels

        largest = max((int(block.tfs.max(initial=0)) for _, block in self._blocks), default=0)
        postings = Postings.empty(terms, df, largest, lengths)
        matrix, cursor = postings.matrix(None), postings.indptr[:-1].copy()

        def fill(begin: int, end: int) -> None:
            first = 0
            for numbers, block in self._blocks:
                words = ranks[id(numbers)][block.terms]
                kernels.scatter(first, block.distinct, words, block.tfs, (begin, end), cursor, matrix)
                first += len(block.lengths)

        equal = np.arange(1, self._threads) * len(postings) // self._threads
        cuts = [0, *np.searchsorted(postings.indptr, equal).tolist(), len(terms)]
        with ThreadPool(self._threads) as pool:
            list(pool.map(fill, cuts, cuts[1:]))
        kernels.end_parts(matrix)
        self._blocks.clear()  # larger than the postings
        return postings

    def _sorted(self, terms: pl.Series, ranks: dict[int, Ints], df: Longs, lengths: Ints) -> Postings:
        """Return few postings, sorted by numpy in less time than numba needs to be imported."""
        nothing, blocks = np.zeros(0, np.int32), [block for _, block in self._blocks]
        words = np.concatenate([nothing, *(ranks[id(numbers)][block.terms] for numbers, block in self._blocks)])
        tfs = np.concatenate([nothing, *(block.tfs for block in blocks)])
        distinct = np.concatenate([nothing, *(block.distinct for block in blocks)])
        by_term, documents = np.argsort(words, kind="stable"), np.repeat(np.arange(len(distinct)), distinct)
        rows = documents[by_term].astype(np.int32)
        return Postings.of(terms, np.concatenate(([0], np.cumsum(df))), rows, tfs[by_term], lengths)


def _sorted_terms(sources: dict[int, TermNumbers]) -> tuple[pl.Series, dict[int, Ints]]:
    """Return the terms of several numberings in string order, and for each numbering the positions of its terms."""
    names = {key: pl.Series(pl.from_arrow(numbers.terms()), dtype=pl.String) for key, numbers in sources.items()}
    terms = pl.concat([pl.Series("term", [], pl.String), *(own.alias("term") for own in names.values())])
    terms = (terms if len(names) == 1 else terms.unique()).sort()
    return terms, {key: positions_of_terms(own, terms).astype(np.int32) for key, own in names.items()}


FEW_POSTINGS = 1 << 22  # sorted by numpy in a second
FIRST_LETTERS = 1 << 23  # of documents, analyzed by Python in 1.5 seconds; loops take 5 to be compiled
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
    def places(self) -> Ints | None:
        """Memory of one integer per term, for `count`; None where numpy counts."""


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
    def places(self) -> Ints | None:
        """See `TermNumbers`."""
        return np.empty(len(self._numbers), np.int32)


def _spelling(term: str) -> str:
    """Return a term as one token: not empty, without spaces, and not too long."""
    if not 0 < len(term) <= _LONGEST // 2 or _SPACE.search(term):
        units = _SPACE.sub("\u00a0", term).encode("utf-16-le")[: 2 * _LONGEST]
        return units.decode("utf-16-le", "ignore") or _EMPTY
    return term


class FewNumbers(TokenNumbers):
    """Numbers the terms of the first `letters` of English texts, without numba."""

    def __init__(self, letters: int):
        super().__init__()
        self.letters = letters

    def number(self, texts: pa.Array) -> tuple[Ints, Longs]:
        """See `TermNumbers`."""
        tokens = english_numbers.analyze(texts.to_pylist())
        self.letters -= sum(map(len, texts.to_pylist()))
        numbers = self.number_tokens(pa.array(list(chain.from_iterable(tokens)), pa.string()))
        return numbers, np.array([*map(len, tokens)], np.int64)

    @property
    def places(self) -> None:
        """See `TermNumbers`."""


def next_numbers(numbers: TermNumbers) -> TermNumbers:
    """Return the numbers for the texts that follow: compiled ones after the first English texts."""
    return EnglishNumbers() if isinstance(numbers, FewNumbers) and numbers.letters < 0 else numbers


def numbers_of(language: str, analyzer: Analyzer | None = None, threads: int = 1) -> TermNumbers:
    """Return the numbers of the first terms of a language, of its analyzer if there is one already."""
    return (
        next_numbers(FewNumbers(FIRST_LETTERS // threads))
        if language == ENGLISH
        else TokenNumbers(analyzer or Analyzer(language))
    )


def count(tokens: Ints, lengths: Longs, places: Ints | None) -> Counted:
    """Count terms.

    Args:
        tokens: number of the term of each token, document by document.
        lengths: [n] tokens of each document.
        places: memory of one integer per term, or None for few tokens.
    """
    if places is None:
        owners = np.repeat(np.arange(len(lengths)), lengths)
        pairs = owners << 32 | tokens
        _, firsts, tfs = np.unique(pairs, return_index=True, return_counts=True)
        in_order = np.argsort(firsts)
        firsts = firsts[in_order]
        distinct = np.bincount(owners[firsts], minlength=len(lengths))
        return Counted(lengths, distinct, tokens[firsts], tfs[in_order].astype(np.int32))
    from hybrid_cli.lexical import word_kernels

    distinct, terms, tfs = np.empty(len(lengths), np.int64), np.empty_like(tokens), np.empty_like(tokens)
    size = word_kernels.count(tokens, lengths, places, distinct, terms, tfs)
    return Counted(lengths, distinct, terms[:size].copy(), tfs[:size].copy())
