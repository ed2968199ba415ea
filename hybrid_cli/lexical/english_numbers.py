"""Terms of English texts as numbers, by compiled loops and without Java."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hybrid_cli.lexical.word_rules import Table, english_rules

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]


class EnglishNumbers:
    """Numbers the terms of Lucene's English analyzer, without Java."""

    def __init__(self) -> None:
        self._words, self._terms, self._tokens = Table.empty(), Table.empty(), np.empty(1 << 12, np.int32)

    def number(self, texts: pa.Array) -> tuple[Ints, Longs]:
        """See `builder.TermNumbers`; the first array is overwritten by the next call."""
        from hybrid_cli.lexical import word_kernels

        texts = texts.cast(pa.large_string())
        _, offsets, data = texts.buffers()
        begins = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        letters, lengths = np.frombuffer(data or b"", np.uint8), np.zeros(len(texts), np.int64)
        arrays = self._words, self._terms, self._tokens, lengths
        self._words, self._terms, self._tokens, size = word_kernels.number(letters, begins, english_rules(), *arrays)
        return self._tokens[:size], lengths

    def terms(self) -> pa.Array:
        """See `builder.TermNumbers`; without a copy."""
        return self._terms.texts()

    def spellings(self) -> pa.Array:
        """See `builder.TermNumbers`."""
        return self.terms()

    @property
    def places(self) -> Ints:
        """See `builder.TermNumbers`."""
        return self._terms.values
