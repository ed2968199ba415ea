"""What may be chosen, by name."""

from __future__ import annotations

from typing import Literal

Precision = Literal["auto", "fp32", "bf16", "fp16"]
Pooling = Literal["mean", "cls"]
Markers = Literal["none", "replace", "prepend"]
VectorType = Literal["float32", "float16"]
IndexType = Literal[
    "flat", "fp16", "sq8", "pq", "opq", "binary",
    "hnsw", "hnsw-fp16", "hnsw-sq8", "hnsw-binary", "ivf", "auto",
]  # fmt: skip
FusionMethod = Literal[
    "minmax", "weighted-sum", "sum", "product", "rrf", "zscore", "dbsf", "borda", "isr", "log-isr", "rbc",
    "combsum", "combmnz", "combanz", "combmax", "combmin", "combmed",
]  # fmt: skip
Normalization = Literal["none", "minmax", "max", "sum", "l2", "zscore", "rank", "borda", "dbsf"]
Missing = Literal["exact", "min", "zero", "ignore", "drop"]
Grid = Literal["linear", "log", "reciprocal"]
Combine = Literal["concat", "sum"]
