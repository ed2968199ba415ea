"""Options of opening and searching indexes, and kinds of indexes, which import nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from hybrid_cli.encoders.options import DEVICE
from hybrid_cli.indexes.options import BINARY_K, VectorIndex
from hybrid_cli.passages import Group

Engine = Literal["matrix", "matrix-8bit", "lucene"]
TRANSFORMER_INDEX, LEARNED = "an index of a transformer encoder", "a learned sparse index"


@dataclass(frozen=True, kw_only=True)
class Searching:
    """How indexes are opened and searched; None keeps what an index stores.

    Attributes:
        device: device of the query encoder.
        threads: CPU threads of a search; None for all cores.
        group: rule by which passages score their document.
        min_probability: hits with a lower probability are dropped.
        engine: reader of a lexical index.
        k1, b: parameters of BM25.
        rm3: expand queries with pseudo-relevance feedback, of `fb_terms` terms of `fb_docs` documents, with the weight
            `fb_weight` of the original query.
        model: query encoder.
        weight: weight of the second encoder of a combination.
        faiss_device: GPUs that search a flat index; see `faiss.pick_gpus`.
        ef_search: candidates during the search of an HNSW graph.
        nprobe: inverted lists searched per query.
        binary_k: candidates by Hamming distance, rescored with the float query.
    """

    device: str = DEVICE
    threads: int | None = None
    group: Group | None = None
    min_probability: float | None = None
    engine: Engine = "matrix"
    k1: float | None = None
    b: float | None = None
    rm3: bool = False
    fb_terms: int = 10
    fb_docs: int = 10
    fb_weight: float = 0.5
    model: str | None = None
    weight: float | None = None
    faiss_device: str = VectorIndex.faiss_device
    ef_search: int | None = None
    nprobe: int | None = None
    binary_k: int = BINARY_K

    def changed(self, **values: Any) -> Self:
        """Return these options with other values."""
        return replace(self, **values)
