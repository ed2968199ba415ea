"""BM25's own vectors of the texts of a batch, in the dimension of the encoder: the constants of RoC's objective."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli.errors import InputError
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.lexical.projection import SignProjection

Floats = npt.NDArray[np.float32]


class LexicalSide:
    """Queries and documents as BM25 sees them (RoC 3.2): q[t] = IDF(t), d[t] = tf / (tf + k1 (1 - b + b |d|/avgdl)).

    The factor (k1 + 1) of the printed formula is left out: no cosine knows it. A repeated query word counts once.

    Args:
        index: the impact matrix.
        projection: to the encoder's dimension.
        docids: all documents that will be asked for; their rows are held, and no others.

    Raises:
        InputError: the index lacks one of them.
    """

    def __init__(self, index: LexicalIndex, projection: SignProjection, docids: pl.Series):
        self.index, self.projection = index, projection
        self._terms = index.impacts.postings.terms
        try:
            self.impacts = index.rows(docids)
        except InputError as error:
            raise InputError(f"{error}; give the --index that the examples were mined with") from None
        self._rows = dict(zip(docids.to_list(), range(len(docids)), strict=True))

    def queries(self, texts: Sequence[str]) -> Floats:
        """[n, dim]"""
        matrix = self.index.query_matrix(texts)
        matrix.data = self.index.idf[matrix.indices]
        return self.projection.project(matrix, self._terms)

    def documents(self, docids: Sequence[str]) -> Floats:
        """[n, dim]"""
        matrix = self.impacts[[self._rows[docid] for docid in docids]]
        matrix.data = matrix.data / self.index.idf[matrix.indices]
        return self.projection.project(matrix, self._terms)

    def scores(self, texts: Sequence[str], docids: Sequence[str]) -> Floats:
        """[n, m] BM25 of every text with every document, unprojected."""
        rows = self.impacts[[self._rows[docid] for docid in docids]]
        scores: Floats = (self.index.query_matrix(texts) @ rows.T).toarray().astype(np.float32)
        return scores
