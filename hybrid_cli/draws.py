"""Seeded random draws, which depend only on the seed and the item, not on batches, workers or other draws.

Hashed draws (`draw`, `generator`, `keys`) serve items that have an id: the same item gets the same number
in every collection and order. Positional draws (`rng`, `sample`, `stream_sample`, `shuffle_tables`) serve rows of a
table.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import polars as pl

Keys = NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # increment of SplitMix64


# --------------------------------------------------------------------------------------------------------------- hashed


def draw(seed: int, *names: object) -> int:
    """Return a number in [0, 2**64) that depends on the seed and the names alone.

    Args:
        seed: seed of the stage.
        names: purpose of the draw, and ids of the item.
    """
    return int.from_bytes(hashlib.blake2b(_key(seed, names).encode(), digest_size=8).digest())


def generator(seed: int, *names: object) -> random.Random:
    """Return a generator for several draws about one item; see `draw`."""
    return random.Random(_key(seed, names))


def _key(seed: int, names: Sequence[object]) -> str:
    return "\0".join(map(str, (seed, *names)))


def keys(seeds: Keys, positions: NDArray[np.int64]) -> Keys:
    """Return a uniform 64-bit key per (seed, position), the `position`-th output of SplitMix64; all arrays [N]."""
    return mix(seeds + (positions.astype(np.uint64) + np.uint64(1)) * GOLDEN)


def mix(values: Keys) -> Keys:
    """Return the finalizer of SplitMix64: equal inputs give equal outputs, neighbors give unrelated ones; [N]."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


# ----------------------------------------------------------------------------------------------------------- positional


def rng(*seed: int) -> np.random.Generator:
    """Return a generator for one draw, seeded with the seed of the run, then the epoch, step or row."""
    return np.random.default_rng(seed)


def sample(total: int, size: int, chance: np.random.Generator) -> NDArray[np.int64]:
    """Return `size` of the rows 0 to `total` - 1 without replacement, sorted; all rows if there are no more."""
    if total <= size:
        return np.arange(total)
    return np.sort(chance.choice(total, size, replace=False))


class StreamSample:
    """A sample of a stream of texts of unknown length: those with the smallest keys of a seed.

    Attributes:
        seen: number of texts so far.
    """

    def __init__(self, size: int, seed: int):
        self._size, self._seed, self.seen = size, seed, 0
        self._kept: list[tuple[int, str]] = []

    def add(self, texts: Sequence[str]) -> None:
        """Add the next texts of the stream."""
        drawn = keys(np.full(len(texts), self._seed, np.uint64), np.arange(self.seen, self.seen + len(texts)))
        self.seen += len(texts)
        if len(self._kept) == self._size:
            rows = np.flatnonzero(drawn < np.uint64(self._kept[-1][0])).tolist()
        else:
            rows = list(range(len(texts)))
        self._kept = sorted([*self._kept, *((int(drawn[row]), texts[row]) for row in rows)])[: self._size]

    def texts(self) -> list[str]:
        """Return the sampled texts."""
        return [text for _, text in self._kept]


def stream_sample(blocks: Iterable[pl.DataFrame], total: int, size: int, seed: int) -> Iterator[pl.DataFrame]:
    """Yield `size` of `total` rows, in their order, with one block in memory; every set of rows is equally likely.

    Selection sampling (Knuth, The Art of Computer Programming, volume 2, algorithm 3.4.2 S): a row is taken with the
    probability (rows still wanted) / (rows still to come).
    """
    chance = rng(seed)
    for block in blocks:
        taken = np.zeros(len(block), bool)
        for row, number in enumerate(chance.random(len(block)).tolist()):
            if number * (total - row) < size:
                taken[row] = True
                size -= 1
        total -= len(block)
        yield block.filter(taken)
        if not size:
            return


def shuffle_tables(sizes: Sequence[int], *seed: int, skip: int = 0, pieces: int = 1) -> Iterator[tuple[int, list[int]]]:
    """Yield every part of a table in random order, with its rows in random order.

    Args:
        sizes: rows of each part.
        seed: seed of the run, and number of the epoch.
        skip: number of rows to skip at the start; parts without remaining rows are not yielded.
        pieces: each part is yielded in as many random pieces, between pieces of other parts, so that the first rows
            come from many parts.

    Yields:
        Number of the part, and numbers of its rows.
    """
    bounds = [
        (part, size * piece // pieces, size * (piece + 1) // pieces)
        for part, size in enumerate(sizes)
        for piece in range(pieces)
    ]
    for number in rng(*seed).permutation(len(bounds)).tolist():
        part, begin, end = bounds[number]
        if skip >= end - begin:
            skip -= end - begin
            continue
        yield part, rng(*seed, part).permutation(sizes[part])[begin + skip : end].tolist()
        skip = 0
