"""BM25 vectors of a batch, projected to the dimensions of the encoder (RoC, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli.errors import InputError
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.lexical.projection import SignProjection

Floats = npt.NDArray[np.float32]


class Bm25Vectors:
    """BM25 vectors of queries and documents: q[t] = IDF(t), d[t] = tf / (tf + k1 (1 - b + b |d| / avgdl)).

    The factor (k1 + 1) of the published formula is omitted, since cosines do not depend on it. A repeated query word
    counts once.

    Args:
        index: lexical index.
        projection: random projection to the encoder's dimensions.
        docids: all documents that will be requested; only their rows are held.

    Raises:
        InputError: a document is not in the index.
    """

    def __init__(self, index: LexicalIndex, projection: SignProjection, docids: pl.Series):
        self.index, self.projection = index, projection
        self._terms = index.impacts.postings.terms
        try:
            self.impacts = index.rows(docids)
        except InputError as error:
            raise InputError(f"{error}; pass the --index that the examples were mined with") from None
        self._rows = dict(zip(docids.to_list(), range(len(docids)), strict=True))

    def queries(self, texts: Sequence[str]) -> Floats:
        """Return vectors [n, dim] of queries."""
        matrix = self.index.query_matrix(texts)
        matrix.data = self.index.idf[matrix.indices]
        return self.projection.project(matrix, self._terms)

    def documents(self, docids: Sequence[str]) -> Floats:
        """Return vectors [n, dim] of documents."""
        matrix = self.impacts[[self._rows[docid] for docid in docids]]
        matrix.data = matrix.data / self.index.idf[matrix.indices]
        return self.projection.project(matrix, self._terms)

    def scores(self, texts: Sequence[str], docids: Sequence[str]) -> Floats:
        """Return exact BM25 scores [n, m] of every query and every document."""
        rows = self.impacts[[self._rows[docid] for docid in docids]]
        scores: Floats = (self.index.query_matrix(texts) @ rows.T).toarray().astype(np.float32)
        return scores
