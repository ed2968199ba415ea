"""Sort the term frequencies of documents by term."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

from hybrid_cli.lexical.english_numbers import Ints, Longs
from hybrid_cli.lexical.impacts import Postings, positions_of_terms
from hybrid_cli.lexical.numbering import Counted, TermNumbers, TokenNumbers, count
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
        from hybrid_cli.lexical import kernels, word_kernels

        terms, ranks = _sorted_terms({id(numbers): numbers for numbers, _ in self._blocks})
        df = np.zeros(len(terms), np.int64)
        for numbers, block in self._blocks:
            word_kernels.add_frequencies(block.terms, ranks[id(numbers)], df)
        lengths = np.concatenate([np.zeros(0, np.int64), *(block.lengths for _, block in self._blocks)]).astype(
            np.int32
        )
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


def _sorted_terms(sources: dict[int, TermNumbers]) -> tuple[pl.Series, dict[int, Ints]]:
    """Return the terms of several numberings in string order, and for each numbering the positions of its terms."""
    names = {key: pl.Series(pl.from_arrow(numbers.terms()), dtype=pl.String) for key, numbers in sources.items()}
    terms = pl.concat([pl.Series("term", [], pl.String), *(own.alias("term") for own in names.values())])
    terms = (terms if len(names) == 1 else terms.unique()).sort()
    return terms, {key: positions_of_terms(own, terms).astype(np.int32) for key, own in names.items()}
