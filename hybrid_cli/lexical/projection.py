"""Random sign (Rademacher) projection of lexical vectors to few dimensions, for the objective of RoC (section 3.2).

The signs of a term are a hash of (seed, term). They do not depend on the order or size of the vocabulary, and are
computed for the terms of a batch only, so that no matrix is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import shake_256
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

VERSION = 1  # of the hash: a change gives other signs, and encoders trained with the old ones cannot resume


@dataclass(frozen=True)
class SignProjection:
    """Matrix A in R^(dim x V) with entries +1/sqrt(dim) or -1/sqrt(dim), as a function of the term (RoC, eq. 3).

    Inner products are preserved in expectation: the error of `<Ax, Ay>` has mean 0 and standard deviation of about
    `|x||y|/sqrt(dim)`. This suffices for a loss but not for retrieval.

    Attributes:
        dim: length of the projected vectors.
        seed: random seed of the signs.
        version: version of the hash.
    """

    dim: int
    seed: int = 0
    version: int = VERSION

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as an encoder's folder stores them."""
        return asdict(self)

    def signs(self, terms: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return the column of each term times sqrt(dim): [n, dim] of +1 and -1."""
        size = -(-self.dim // 8)
        digests = b"".join(shake_256(f"{self.seed}\0{term}".encode()).digest(size) for term in terms)
        bits = np.unpackbits(np.frombuffer(digests, np.uint8).reshape(len(terms), size), axis=1, count=self.dim)
        return np.where(bits, np.float32(1), np.float32(-1))

    def project(self, matrix: Any, terms: pl.Series) -> npt.NDArray[np.float32]:
        """Project each row of a scipy CSR matrix [n, V] to [n, dim]; rows without terms become zeros."""
        used, columns = np.unique(matrix.indices, return_inverse=True)
        signs = self.signs(terms.gather(used).to_list())
        narrow = type(matrix)((matrix.data, columns, matrix.indptr), shape=(matrix.shape[0], len(used)))
        projected: npt.NDArray[np.float32] = (narrow @ signs).astype(np.float32) / np.float32(np.sqrt(self.dim))
        return projected
