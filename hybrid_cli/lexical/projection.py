"""Lexical vectors in few dimensions: a random projection with signs (Rademacher), for RoC's objective (methods 1.10).

A term's signs are a hash of (seed, term), so that neither the order of the vocabulary nor its size matters and no
matrix of them is ever held: a batch makes the signs of its own terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import shake_256
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

VERSION = 1  # of the hash: a change gives other signs, and makes encoders trained on the old ones unfit to go on with


@dataclass(frozen=True)
class SignProjection:
    """A in R^(dim x V), every entry +1/sqrt(dim) or -1/sqrt(dim), as a function of the term (RoC eq. 3).

    Inner products are kept on average: the error of `<Ax, Ay>` has mean 0 and a deviation of about `|x||y|/sqrt(dim)`.
    That is enough for a loss, and far from enough for retrieval (methods 1.10).

    Attributes:
        dim: length of the projected vectors.
        seed: other signs for another seed.
        version: of the hash.
    """

    dim: int
    seed: int = 0
    version: int = VERSION

    def to_dict(self) -> dict[str, Any]:
        """As an encoder's folder remembers it."""
        return asdict(self)

    def signs(self, terms: Sequence[str]) -> npt.NDArray[np.float32]:
        """[n, dim] of +1 and -1: the column of each term, times sqrt(dim)."""
        size = -(-self.dim // 8)
        digests = b"".join(shake_256(f"{self.seed}\0{term}".encode()).digest(size) for term in terms)
        bits = np.unpackbits(np.frombuffer(digests, np.uint8).reshape(len(terms), size), axis=1, count=self.dim)
        return np.where(bits, np.float32(1), np.float32(-1))

    def project(self, matrix: Any, terms: pl.Series) -> npt.NDArray[np.float32]:
        """[n, dim]: each row of a scipy CSR matrix [n, V] projected; a row without terms gives zeros."""
        used, columns = np.unique(matrix.indices, return_inverse=True)
        signs = self.signs(terms.gather(used).to_list())
        narrow = type(matrix)((matrix.data, columns, matrix.indptr), shape=(matrix.shape[0], len(used)))
        projected: npt.NDArray[np.float32] = (narrow @ signs).astype(np.float32) / np.float32(np.sqrt(self.dim))
        return projected
