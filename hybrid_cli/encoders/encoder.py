"""What an encoder is: texts to vectors whose inner product is the score. Stages never ask which kind it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from hybrid_cli.config import Precision
from hybrid_cli.encoders import combination, pair, static
from hybrid_cli.encoders.combination import Combination
from hybrid_cli.encoders.contract import kind_of
from hybrid_cli.encoders.models import resolve
from hybrid_cli.encoders.pair import Pair
from hybrid_cli.encoders.static import StaticEncoder
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError


class Encoder(Protocol):
    """A transformer, a static encoder, a combination, or a pair.

    Attributes:
        fingerprint: hash of the weights on disk and of all else that decides a document's vector.
    """

    fingerprint: str

    @property
    def truncated(self) -> int:
        """How many texts were cut so far."""
        ...

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        ...

    def describe(self) -> dict[str, Any]:
        """The contract, as manifests hold it."""
        ...

    def encode_queries(self, texts: Sequence[str], batch_tokens: int = ...) -> np.ndarray:
        """Vectors [n, dim], float32, in the order of `texts`."""
        ...

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str], batch_tokens: int = ...) -> np.ndarray:
        """Vectors [n, dim], float32, in the order of `texts`."""
        ...


def open_encoder(
    name: str | Path,
    *,
    device: str = "auto",
    dtype: Precision = "fp32",
    overrides: Mapping[str, Any] | None = None,
) -> Encoder:
    """Open an encoder of any kind.

    Args:
        name: `minilm`, a folder, or a Hugging Face id.
        dtype: of a transformer's weights; `auto` is bf16 where the processor computes in it, else fp32.
        overrides: fields of its contract to change.

    Raises:
        InputError: there is no such model here, or its kind knows no such field.
    """
    folder, changes = resolve(str(name)), dict(overrides or {})
    kind = kind_of(folder)
    if kind == static.KIND:
        prefix = changes.pop("prefix", None)
        _refuse(folder, changes, kind)
        return StaticEncoder.load(folder, prefix)
    if kind == combination.KIND:
        weight = changes.pop("weight", None)
        _refuse(folder, changes, kind)
        recipe = combination.read(folder)
        parts = [
            open_encoder(part, device=device, dtype=dtype, overrides=changed)
            for part, changed in zip(combination.parts(folder), recipe.changes, strict=True)
        ]
        return Combination(recipe, parts, weight)
    if kind == pair.KIND:
        _refuse(folder, changes, kind)
        return Pair(*(open_encoder(folder / side, device=device, dtype=dtype) for side in pair.SIDES))
    if "weight" in changes:
        raise InputError(f"{folder}: is one encoder; only a combination has a --weight")
    return TransformerEncoder.load(folder, device=device, dtype=dtype, **changes)


def _refuse(folder: Path, changes: Mapping[str, Any], kind: str) -> None:
    if changes:
        options = ", ".join("--" + name.replace("_", "-") for name in changes)
        raise InputError(f"{options}: means nothing to {folder}, which is a {kind} encoder")
