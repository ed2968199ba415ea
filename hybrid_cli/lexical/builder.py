"""Terms of documents as numbers, their frequencies, and the postings sorted by term."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from hybrid_cli.lexical.english_words import Longs
from hybrid_cli.lexical.impacts import Ints, Postings
from hybrid_cli.threads import ThreadPool

FEW_POSTINGS = 1 << 22  # sorted by numpy in a second


class PostingsBuilder:
    """Collects documents block by block; memory holds two integers per posting, and the dictionary.

    Args:
        threads: threads that sort the postings, each those of some terms.

    Attributes:
        numbers: numbers of the terms.
    """

    def __init__(self, threads: int = 1) -> None:
        self.numbers = TermNumbers()
        self._threads = threads
        self._blocks: list[Counted] = []

    def add(self, tokens: pa.Array, lengths: Longs) -> None:
        """Add documents.

        Args:
            tokens: tokens of all documents, concatenated.
            lengths: number of tokens of each document.
        """
        self.add_counted(count(self.numbers.number(tokens), lengths))

    def add_weights(self, terms: pa.DictionaryArray, weights: Ints, distinct: Longs) -> None:
        """Add documents with learned weights.

        Args:
            terms: terms of all documents, concatenated; each term of a document once.
            weights: quantized weights of the terms, above 0.
            distinct: number of terms of each document.
        """
        documents = np.repeat(np.arange(len(distinct)), distinct)
        lengths = np.bincount(documents, weights, len(distinct)).astype(np.int64)
        self.add_counted(Counted(lengths, distinct, self.numbers.number(terms), weights))

    def add_counted(self, counted: Counted) -> None:
        """Add documents whose terms have the numbers of `numbers`."""
        self._blocks.append(counted)

    def finish(self) -> Postings:
        """Return the postings sorted by term. The builder cannot be used afterwards."""
        names, nothing = pl.Series("term", self.numbers.terms(), pl.String), np.zeros(0, np.int32)
        by_name = names.arg_sort().to_numpy()
        terms, ranks = names.gather(by_name), np.empty(len(names), np.int32)
        ranks[by_name] = np.arange(len(names), dtype=np.int32)
        df = np.zeros(len(terms), np.int64)
        for block in self._blocks:
            df += np.bincount(ranks[block.terms], minlength=len(terms))
        lengths = np.concatenate([nothing, *(block.lengths for block in self._blocks)]).astype(np.int32)
        if df.sum() <= FEW_POSTINGS:
            words = ranks[np.concatenate([nothing, *(block.terms for block in self._blocks)])]
            tfs = np.concatenate([nothing, *(block.tfs for block in self._blocks)])
            distinct = np.concatenate([nothing, *(block.distinct for block in self._blocks)])
            by_term, documents = np.argsort(words, kind="stable"), np.repeat(np.arange(len(distinct)), distinct)
            rows = documents[by_term].astype(np.int32)
            return Postings.of(terms, np.concatenate(([0], np.cumsum(df))), rows, tfs[by_term], lengths)
        from hybrid_cli.lexical import kernels

        largest = max((int(block.tfs.max(initial=0)) for block in self._blocks), default=0)
        postings = Postings.empty(terms, df, largest, lengths)
        matrix, cursor = postings.matrix(None), postings.indptr[:-1].copy()

        def fill(begin: int, end: int) -> None:
            first = 0
            for block in self._blocks:
                kernels.scatter(first, block.distinct, ranks[block.terms], block.tfs, (begin, end), cursor, matrix)
                first += len(block.lengths)

        equal = np.arange(1, self._threads) * len(postings) // self._threads
        cuts = [0, *np.searchsorted(postings.indptr, equal).tolist(), len(terms)]
        with ThreadPool(self._threads) as pool:
            list(pool.map(fill, cuts, cuts[1:]))
        kernels.end_parts(matrix)
        self._blocks.clear()  # larger than the postings
        return postings


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


class TermNumbers:
    """Numbers terms in the order of their first occurrence, for any number of threads."""

    def __init__(self) -> None:
        self._numbers = defaultdict[str, int]()
        self._numbers.default_factory = self._numbers.__len__  # without a step of Python, so no other thread is between

    def number(self, tokens: pa.Array) -> Ints:
        """Return the number of each token."""
        encoded = tokens if isinstance(tokens, pa.DictionaryArray) else tokens.dictionary_encode()
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        used = np.flatnonzero(np.bincount(indices, minlength=len(encoded.dictionary)))
        numbers = np.empty(len(encoded.dictionary), np.int32)
        numbers[used] = [self._numbers[name] for name in encoded.dictionary.take(pa.array(used)).to_pylist()]
        found: Ints = numbers[indices]
        return found

    def terms(self) -> list[str]:
        """Return the terms by number."""
        return list(self._numbers)

    def spellings(self, numbers: Ints) -> pa.Array:
        """Return some terms, such that each is one token where Lucene splits at spaces."""
        terms = self.terms()
        return pa.array([_spelling(terms[number]) for number in numbers.tolist()], pa.large_string())


def _spelling(term: str) -> str:
    """Return a term as one token: not empty, without spaces, and not too long."""
    if not 0 < len(term) <= _LONGEST // 2 or _SPACE.search(term):
        units = _SPACE.sub("\u00a0", term).encode("utf-16-le")[: 2 * _LONGEST]
        return units.decode("utf-16-le", "ignore") or _EMPTY
    return term


def count(tokens: Ints, lengths: Longs) -> Counted:
    """Count terms.

    Args:
        tokens: number of the term of each token, document by document.
        lengths: [n] tokens of each document.
    """
    owners = np.repeat(np.arange(len(lengths)), lengths)
    pairs = np.sort(owners << 32 | tokens)
    firsts = np.flatnonzero(np.diff(pairs, prepend=-1))
    documents, terms = pairs[firsts] >> 32, pairs[firsts].astype(np.int32)  # the lower half
    tfs = np.diff(firsts, append=len(pairs)).astype(np.int32)
    return Counted(lengths, np.bincount(documents, minlength=len(lengths)), terms, tfs)
