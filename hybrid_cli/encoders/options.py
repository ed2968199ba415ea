"""Names and defaults of encoders, which import nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Pooling = Literal["mean", "cls", "max", "last", "mean-sqrt", "weighted-mean"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
CombineMode = Literal["concat", "sum"]
Markers = Literal["none", "replace", "prepend"]
SparseArchitecture = Literal["splade", "unicoil", "deepct", "sparterm"]

DEVICE = "auto"  # a GPU if there is one
MODEL = "minilm"


@dataclass(frozen=True)
class Combining:
    """How two encoders are combined.

    Attributes:
        combine: `concat` or `sum` of the vectors.
        weight: weight mu of the second encoder, on the query side.
    """

    combine: CombineMode = "concat"
    weight: float = 1.0


AUTO_TARGETS = ("auto",)


@dataclass(frozen=True, kw_only=True)
class LoraOptions:
    """An adapter to train in place of a transformer.

    Attributes:
        lora_r: rank of the adapter; None trains all weights.
        lora_alpha: scale of the adapter times its rank; None for twice the rank.
        lora_targets: names of linear modules to adapt; `auto` for all.
    """

    lora_r: int | None = None
    lora_alpha: int | None = None
    lora_targets: Sequence[str] = AUTO_TARGETS


MOST_CALLS = 256  # at a time


@dataclass(frozen=True, kw_only=True)
class Calling:
    """How an API is called.

    Attributes:
        timeout: seconds for one answer.
        concurrency: calls at a time.
        max_calls: calls that may be made, retries included; None for any number.
    """

    timeout: float = 60.0
    concurrency: int = 4
    max_calls: int | None = None
