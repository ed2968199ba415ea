"""Every default, once. Frozen, typed, free of heavy imports; the command line takes its defaults from here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bm25:
    """Lucene's BM25 as Anserini sets it (methods: BM25 without the factor k1+1)."""

    k1: float = 0.9
    b: float = 0.4


@dataclass(frozen=True)
class Retrieval:
    """How deep a search goes."""

    hits: int = 1000


@dataclass(frozen=True)
class Mining:
    """Negatives from the errors of a first stage (CLEAR 3.3: uniform over BM25's top 1,000)."""

    depth: int = 1000
    skip_top: int = 0
    num_negatives: int = 8
    seed: int = 42
