"""Names and defaults of encoders, which import nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Pooling = Literal["mean", "cls", "max", "last", "mean-sqrt", "weighted-mean"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
EncodingPrecision = Literal[Precision, "int8"]
CombineMode = Literal["concat", "sum"]
Markers = Literal["none", "replace", "prepend"]
SparseArchitecture = Literal["splade", "unicoil", "deepct", "sparterm"]

INT8: Literal["int8"] = "int8"
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


@dataclass(frozen=True, kw_only=True)
class EncoderContract:
    """Changes to the contract of a model; None keeps the value of the model.

    Attributes:
        preset: name of a published model, whose contract comes before the other changes.
        pooling: pooling of the token states.
        normalize: scale vectors to length 1.
        query_prefix: text put before every query; `{task}` is replaced.
        task: text in place of `{task}`.
        append_eos: every text ends with the end-of-sequence token.
        doc_prefix: text put before every document.
        title_separator: text between title and body.
        query_max_len: maximum word pieces of a query, special tokens included.
        doc_max_len: maximum word pieces of a document, special tokens included.
    """

    preset: str | None = None
    pooling: Pooling | None = None
    normalize: bool | None = None
    query_prefix: str | None = None
    task: str | None = None
    append_eos: bool | None = None
    doc_prefix: str | None = None
    title_separator: str | None = None
    query_max_len: int | None = None
    doc_max_len: int | None = None


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


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Changes to the input of a reranker; None keeps the value of the model.

    Attributes:
        query_max_len: maximum word pieces of a query, special tokens included.
        max_length: maximum word pieces of query and document together.
        title_separator: text between title and body of a document.
    """

    query_max_len: int | None = None
    max_length: int | None = None
    title_separator: str | None = None
