"""Settings of learned sparse indexes."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid_cli.settings.common import ONE_MODEL, TEXTS, SparseArchitecture
from hybrid_cli.settings.options import Settings, option, when

SPARSE_ARCHITECTURES: dict[SparseArchitecture, str] = {  # name -> meaning
    "splade": "weights of all terms of the vocabulary (SPLADE)",
    "unicoil": "weights of the text's own word pieces (UniCOIL)",
    "deepct": "weights of the text's own words, as counts for BM25 (DeepCT)",
    "sparterm": "weights of all terms that a gate lets pass (SparTerm)",
}
SPARSE = "Learned sparse index"
_DOCUMENTS = when(input=TEXTS, models=ONE_MODEL, queries=None, split=None, from_vectors=None)


@dataclass(frozen=True, kw_only=True)
class SparseIndex(Settings):
    """Options of `encode` with a sparse encoder."""

    architecture: SparseArchitecture | None = option(
        None,
        "Read a plain checkpoint as a sparse encoder. "
        + "; ".join(f"`{name}`: {meaning}" for name, meaning in SPARSE_ARCHITECTURES.items())
        + ".",
        panel=SPARSE,
        shown="the model's",
        applies=_DOCUMENTS,
        recorded=False,
    )
    quantization: int | None = option(
        None,
        "Steps per unit of a learned weight, a power of two; for `deepct` any number: the count of a weight of 1.",
        panel=SPARSE,
        minimum=1,
        maximum=1 << 12,
        shown="128; 100 for `deepct`",
        applies=_DOCUMENTS,
        recorded=False,
    )
