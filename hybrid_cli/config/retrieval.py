"""The settings of collections, indexes, runs and what is said of them."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid_cli.config.choices import (
    Combine,
    FusionMethod,
    Grid,
    IndexType,
    Precision,
    VectorType,
)


@dataclass(frozen=True)
class Encoding:
    """How texts become vectors on disk; shards and batches bound the memory.

    `batch_tokens` is what one forward pass holds, padding included; 0 lets the device decide. It changes vectors by
    rounding only.
    """

    dtype: Precision = "auto"
    vector_dtype: VectorType = "float32"
    shard_size: int = 4_096
    batch_tokens: int = 0


@dataclass(frozen=True)
class IndexChoice:
    """What an index must be where measuring chooses it.

    Attributes:
        ram: most bytes of what a search reads.
        min_recall: least share of the exact first `cutoff` hits that it finds.
        sample: documents that candidates are tried on first, where there are more.
    """

    ram: int = 1 << 62
    min_recall: float = 0.98
    cutoff: int = 100
    sample: int = 50_000


@dataclass(frozen=True)
class VectorIndex:
    """Which FAISS index, and its settings (HNSW: DPR's efConstruction and efSearch, methods 3.6).

    `index_type`: None is `binary` where the encoder was trained for it (BPR), else `flat`. `nlist`, `pq_bytes`: 0 lets
    the number and the length of the vectors decide. `choice` is for the type `auto`.
    """

    index_type: IndexType | None = None
    factory: str | None = None
    m: int = 64
    ef_construction: int = 200
    ef_search: int = 128
    nlist: int = 0
    nprobe: int = 64
    pq_bytes: int = 0
    seed: int = 42
    choice: IndexChoice = IndexChoice()


@dataclass(frozen=True)
class RecallCheck:
    """How an approximate index is compared with exact search.

    Attributes:
        sample: stored documents that are searched with.
        cutoffs: hits among which the exact ones are looked for.
    """

    sample: int = 1_000
    cutoffs: tuple[int, ...] = (10, 100)
    seed: int = 42


@dataclass(frozen=True)
class Fusion:
    """How runs are fused (methods 9).

    Attributes:
        depth: hits taken from each list; normalisation sees these only.
        hits: documents kept for each query.
        measure: that compares the fused run with the single ones, and that tuning raises.
    """

    method: FusionMethod = "minmax"
    depth: int = 1000
    hits: int = 1000
    rrf_k: float = 60.0
    measure: str = "MRR@10"


@dataclass(frozen=True)
class Tuning:
    """How fusion weights are searched for (methods 9.5).

    Attributes:
        grid: `linear`: all weights that add up to 1; `log`: the last run has weight 1, the others .001 to 1000;
            `reciprocal`: .1, .2, ... 1 and their reciprocals (SPAR). The last two go on where an end point is best.
        step: between two weights of the linear grid.
        folds: parts of the queries, each scored with the weights that the others chose.
    """

    grid: Grid = "linear"
    step: float = 0.05
    folds: int = 5
    seed: int = 42


@dataclass(frozen=True)
class Combining:
    """How two encoders become one, and how the weight of the second is searched for (SPAR, methods 7.2).

    Attributes:
        how: vectors side by side, or added.
        weight: of the second encoder, on the query side.
        depth: documents of each half alone that tuning looks at.
        measure: that tuning raises.
        grid: of the weights tried.
    """

    how: Combine = "concat"
    weight: float = 1.0
    depth: int = 100
    measure: str = "R@100"
    grid: Grid = "reciprocal"
