"""The interface of all encoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch


class Encoder(Protocol):
    """Texts to vectors whose inner product is the score.

    Attributes:
        fingerprint: hash of the stored weights and of everything else that decides the vector of a document.
    """

    fingerprint: str

    @property
    def truncated(self) -> int:
        """Number of texts cut to the maximum length so far."""
        ...

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        ...

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return the contract as JSON values, as manifests store it."""
        ...

    def encode_queries(self, texts: Sequence[str], batch_tokens: int = ...) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`."""
        ...

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str], batch_tokens: int = ...) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`."""
        ...
