"""Seeded draws that depend on names only, never on order or on other draws."""

from __future__ import annotations

import hashlib
import random


def draw(seed: int, *names: str) -> int:
    """Return a number in [0, 2**64) for a seed and names, such as an attack, a query id and a word."""
    key = "\0".join((str(seed), *names))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest())


def generator(seed: int, name: str) -> random.Random:
    """Return a generator for several draws about one name, such as a document id."""
    return random.Random(f"{seed}\0{name}")
