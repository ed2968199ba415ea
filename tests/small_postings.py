"""Postings and indexes in memory for tests, without Java."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from hybrid_cli.lexical.builder import PostingsBuilder
from hybrid_cli.lexical.impacts import Impacts, Postings
from hybrid_cli.lexical.index import LexicalIndex


class Spaces:
    def analyze(self, texts: Sequence[str]) -> list[list[str]]:
        return [text.split() for text in texts]

    def tokens(self, texts: Sequence[str]) -> tuple[pa.StringArray, npt.NDArray[np.int64]]:
        return flat(self.analyze(texts))


def flat(documents: Sequence[Sequence[str]]) -> tuple[pa.StringArray, npt.NDArray[np.int64]]:
    """All tokens, concatenated, and the number of tokens of each document."""
    tokens = pa.array([token for document in documents for token in document], pa.string())
    return tokens, np.array([len(document) for document in documents], np.int64)


def count(documents: Sequence[Sequence[str]]) -> Postings:
    builder = PostingsBuilder()
    builder.add(*flat(documents))
    return builder.finish()


def small_index(documents: Sequence[Sequence[str]], k1: float, b: float) -> LexicalIndex:
    """An index of documents d1, d2, ..."""
    docids = pl.Series("docid", [f"d{number}" for number in range(1, len(documents) + 1)], dtype=pl.String)
    return LexicalIndex(Impacts.of(count(documents), k1, b), docids, queries=Spaces())
