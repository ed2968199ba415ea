"""A first pass over codes of 8 bits, by which few queries find exactly what the vectors of a flat index would.

Reading the vectors takes all the time of a single query, and codes have a quarter of their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hybrid_cli.indexes.shards import Vectors
from hybrid_cli.lexical import kernels

_LEVELS = 127
_ROUNDING = 2.0**-22  # of a sum of float32, per dimension: twice that of a score and of its estimate together
_GROUP = 16  # rows whose largest bound stands for them in the choice of the least score


@dataclass(frozen=True)
class Codes:
    """Vectors rounded to multiples of 1/127 of their largest value.

    Attributes:
        values: [N, d] int8.
        units: [N] float32, of the values.
        errors: [N] float32; the scores of a query and a vector and of its code differ by at most this times the length
            of the query.
    """

    values: npt.NDArray[np.int8]
    units: npt.NDArray[np.float32]
    errors: npt.NDArray[np.float32]

    @classmethod
    def of(cls, blocks: Iterable[Vectors], count: int, dim: int) -> Codes:
        """Round `count` vectors of `dim` values, some at a time."""
        codes = cls(np.empty((count, dim), np.int8), np.empty(count, np.float32), np.empty(count, np.float32))
        first = 0
        for block in blocks:
            mine = slice(first, first + len(block))
            unit = np.abs(block).max(1, keepdims=True) / np.float32(_LEVELS)
            unit[unit == 0] = 1
            rounded = np.rint(block / unit)
            error = np.linalg.norm(block - rounded * unit, axis=1) + dim * _ROUNDING * np.linalg.norm(block, axis=1)
            codes.values[mine], codes.units[mine], codes.errors[mine] = rounded, unit[:, 0], error
            first += len(block)
        return codes

    def candidates(self, query: Vectors, depth: int) -> npt.NDArray[np.int64]:
        """Return rows, ascending, among which are the `depth` vectors with the largest scores for a query [d]."""
        scores = np.empty(len(self.units), np.float32)
        kernels.coded_products(self.values, self.units, query, scores)
        slack = self.errors * np.float32(np.linalg.norm(query))
        least = scores - slack
        groups = least[: len(least) // _GROUP * _GROUP].reshape(-1, _GROUP).max(1)
        some = groups if len(groups) >= depth else least  # each is the bound of another vector
        return np.flatnonzero(scores + slack >= np.partition(some, len(some) - depth)[len(some) - depth])
