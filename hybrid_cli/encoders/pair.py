"""One encoder for queries and another for documents: a light student asks what an ensemble has encoded (methods 5.3).

Documents get the second one's vectors, so its indexes serve the pair too. On disk it is a folder of both encoders and
`encoder.json`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hybrid_cli import artifacts
from hybrid_cli.encoders.contract import FILE
from hybrid_cli.errors import InputError

if TYPE_CHECKING:
    from hybrid_cli.encoders.encoder import Encoder

KIND = "pair"
SIDES = ("queries", "documents")


class Pair:
    """Queries by one encoder, documents by another.

    Attributes:
        fingerprint: that of the documents' encoder, since an index does not depend on the other.

    Raises:
        InputError: their vectors have different lengths.
    """

    def __init__(self, queries: Encoder, documents: Encoder):
        if queries.dim != documents.dim:
            raise InputError(f"queries of {queries.dim} dimensions cannot meet documents of {documents.dim}")
        self.queries, self.documents = queries, documents
        self.fingerprint = documents.fingerprint

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self.documents.dim

    @property
    def device(self) -> torch.device:
        """Where the weights of the queries' encoder are."""
        return self.queries.device

    @property
    def truncated(self) -> int:
        """How many texts were cut so far."""
        return self.queries.truncated + self.documents.truncated

    def describe(self) -> dict[str, Any]:
        """The contract, as manifests hold it."""
        return {"kind": KIND, "queries": self.queries.describe(), "documents": self.documents.describe()}

    def encode_queries(self, texts: Sequence[str], *batch_tokens: int) -> np.ndarray:
        """Vectors [n, dim], float32, in the order of `texts`."""
        return self.queries.encode_queries(texts, *batch_tokens)

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str], *batch_tokens: int) -> np.ndarray:
        """Vectors [n, dim], float32, in the order of `texts`."""
        return self.documents.encode_documents(titles, texts, *batch_tokens)


def write(folder: Path, documents: Path) -> None:
    """Complete the pair in `folder`, where the queries' encoder is saved: the other one's files are shared."""
    artifacts.hard_link(documents, folder / SIDES[1])
    (folder / FILE).write_text(json.dumps({"kind": KIND}, indent=2) + "\n", "utf-8")
