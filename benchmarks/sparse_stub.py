"""`hybrid` with a sparse encoder that draws the weights of documents, so that `memory.py` can encode large collections.

A document has at most 80 terms, drawn from the vocabulary by Zipf's law.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from hybrid_cli.cli import run
from hybrid_cli.encoders.sparse import SparseEncoder, TermLists

DRAWN = 80


def drawn(self: SparseEncoder, titles: Sequence[str], texts: Sequence[str], *_: int) -> TermLists:
    """Return weights of documents as `SparseEncoder.document_weights` does."""
    rng = np.random.default_rng(len(texts[0]))
    shares = np.cumsum(1 / np.arange(1, len(self.terms) + 1))
    terms = np.searchsorted(shares, rng.random((len(texts), DRAWN)) * shares[-1])
    pairs = np.unique(np.arange(len(texts))[:, None] << 32 | terms)
    distinct = np.bincount(pairs >> 32, minlength=len(texts))
    names = pa.DictionaryArray.from_arrays(pa.array((pairs & 0xFFFFFFFF).astype(np.int32)), self.terms)
    return TermLists(distinct.astype(np.int64), names, rng.integers(1, 128, len(pairs), dtype=np.int32))


if __name__ == "__main__":
    SparseEncoder.document_weights = drawn  # type: ignore[assignment, method-assign]
    run()
