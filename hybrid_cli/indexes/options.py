"""Names and defaults of indexes, which import nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from hybrid_cli.lexical.options import FB_DOCS, FB_TERMS, FB_WEIGHT
from hybrid_cli.passages import Group

INDEX_TYPES = {  # name -> meaning; the factory strings are in hybrid_cli/indexes/faiss.py
    "flat": "exact",
    "fp16": "16 bits per value",
    "sq8": "8 bits per value",
    "pq": "product codes",
    "opq": "product codes after a rotation",
    "binary": "sign bits",
    "hnsw": "a graph over the vectors",
    "hnsw-fp16": "a graph over `fp16` codes",
    "hnsw-sq8": "a graph over `sq8` codes",
    "hnsw-binary": "a graph over `binary` codes",
    "ivf": "inverted lists",
    "auto": "the smallest index with enough recall",
}
FLAT = "Flat"  # factory string of an exact index
VectorType = Literal["float32", "float16"]
ENGINES = ("matrix", "lucene")  # readers of a lexical index
TRANSFORMER_INDEX, LEARNED = "an index of a transformer encoder", "a learned sparse index"
ENDPOINT_INDEX = "an index of an encoder behind an API"

BINARY_K = 1000  # candidates by Hamming distance, rescored with the float query


@dataclass(frozen=True, kw_only=True)
class VectorIndex:
    """Type and parameters of a FAISS index.

    Attributes:
        index_type: a name of `INDEX_TYPES`, or a factory string of FAISS; None is `flat`.
        ef_search: candidates during the search of an HNSW graph.
        nprobe: inverted lists searched per query.
        memory: bytes that an index of type `auto` may have.
        min_recall: recall of the exact top 100 hits that an index of type `auto` must have.
        faiss_device: GPUs that train inverted lists and assign vectors to them; see `faiss.pick_gpus`.
        seed: random seed of training samples and recall checks.
    """

    index_type: str | None = None
    ef_search: int = 128
    nprobe: int = 64
    memory: int | None = None
    min_recall: float = 0.98
    faiss_device: str = "auto"
    seed: int = 42


@dataclass(frozen=True, kw_only=True)
class Shards:
    """How vectors are stored.

    Attributes:
        shard_size: texts per shard.
        vector_dtype: type of the stored values.
    """

    shard_size: int = 4096
    vector_dtype: VectorType = "float32"


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
        timeout: seconds for an answer of the API that encodes queries.
        weight: weight of the second encoder of a combination.
        faiss_device: GPUs that search a flat index; see `faiss.pick_gpus`.
        ef_search: candidates during the search of an HNSW graph.
        nprobe: inverted lists searched per query.
        binary_k: candidates by Hamming distance, rescored with the float query.
    """

    device: str = "auto"
    threads: int | None = None
    group: Group | None = None
    min_probability: float | None = None
    engine: str = "matrix"
    k1: float | None = None
    b: float | None = None
    rm3: bool = False
    fb_terms: int = FB_TERMS
    fb_docs: int = FB_DOCS
    fb_weight: float = FB_WEIGHT
    model: str | None = None
    timeout: float = 10.0
    weight: float | None = None
    faiss_device: str = VectorIndex.faiss_device
    ef_search: int | None = None
    nprobe: int | None = None
    binary_k: int = BINARY_K

    def changed(self, **values: Any) -> Self:
        """Return these options with other values."""
        return replace(self, **values)
