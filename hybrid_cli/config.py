"""Every default, once. Frozen, typed, free of heavy imports; the command line takes its defaults from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OnDuplicate = Literal["error", "first", "last"]
OnDangling = Literal["error", "drop"]


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


@dataclass(frozen=True)
class Preparation:
    """What `prepare` does with rows that cannot all stand, and from what length it calls a text over-long."""

    on_duplicate: OnDuplicate = "error"
    on_dangling: OnDangling = "error"
    long_words: int = 512


@dataclass(frozen=True)
class Encoding:
    """How texts become vectors on disk. Types are `fp32`, `bf16`, `fp16`, `auto`; shards and batches bound the memory.

    `batch_tokens` is what one forward pass holds, padding included; it changes vectors by rounding only.
    """

    dtype: str = "auto"
    vector_dtype: str = "float32"
    shard_size: int = 16_384
    batch_tokens: int = 4_096


@dataclass(frozen=True)
class VectorIndex:
    """Which FAISS index, and its settings (HNSW: DPR's efConstruction and efSearch, methods 3.6).

    `nlist`, `pq_bytes`: 0 lets the number and the length of the vectors decide.
    `rescore`: how many candidates by Hamming distance are re-scored for one hit that is kept (BPR, methods 8.1).
    """

    type: str = "flat"
    factory: str | None = None
    m: int = 64
    ef_construction: int = 200
    ef_search: int = 128
    nlist: int = 0
    nprobe: int = 64
    pq_bytes: int = 0
    seed: int = 42
    rescore: int = 10
