"""What may be chosen, by name."""

from __future__ import annotations

from typing import Literal

Precision = Literal["auto", "fp32", "bf16", "fp16"]
Pooling = Literal["mean", "cls"]
Markers = Literal["none", "replace", "prepend"]
AnswerMatch = Literal["string", "regex"]
Correction = Literal["holm", "bonferroni", "none"]
SignificanceTest = Literal["t", "permutation"]
FusionMethod = Literal[
    "minmax", "weighted-sum", "sum", "product", "rrf", "zscore", "dbsf", "borda", "isr", "log-isr", "rbc",
    "combsum", "combmnz", "combanz", "combmax", "combmin", "combmed",
]  # fmt: skip
Normalization = Literal["none", "minmax", "max", "sum", "l2", "zscore", "rank", "borda", "dbsf"]
Missing = Literal["exact", "min", "zero", "ignore", "drop"]
Grid = Literal["linear", "log", "reciprocal"]
