"""Frozen models: vectors of the training texts, and scores of every query and document of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from torch import Tensor, nn

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import layout
from hybrid_cli.encoders.contract import Encoder
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.training import parallel
from hybrid_cli.training.batches import Examples, Group

BLOCK_TEXTS = 2048  # texts per file, the maximum that an interruption loses

Floats = npt.NDArray[np.float32]


class ExactTeacher:
    """BM25 scores from the impact matrix of a collection, stored by rows."""

    def __init__(self, index: LexicalIndex):
        self._index = index
        self._rows = index.documents.tocsr()
        self._places = {docid: row for row, docid in enumerate(index.docids)}

    def __call__(self, groups: list[Group]) -> Floats:
        """Return scores [B, B * G] of every query and every document of the batch."""
        rows = self._rows[[self._places[docid] for group in groups for docid in group.docids]]
        queries = self._index.query_matrix([group.query for group in groups])
        scores: Floats = (queries @ rows.T).toarray().astype(np.float32)
        return scores


class FrozenEncoder:
    """The vectors of a frozen encoder, such as a Lambda or an ensemble; every text of the examples is encoded once.

    Args:
        encoder: the encoder.
        examples: training examples.
        work: folder of the unfinished artifact, where the vectors are stored for resuming.
    """

    def __init__(self, encoder: Encoder, examples: Examples, work: Path):
        self.dim = encoder.dim
        self._folder = work / layout.FROZEN
        self._folder.mkdir(exist_ok=True)
        for _ in parallel.first_alone():
            with console.progress("encode with the frozen model", unit="texts") as advance:
                self._queries, self._query_places = self._all(
                    "queries", examples.queries(), lambda part: encoder.encode_queries(part["text"].to_list()), advance
                )
                self._documents, self._document_places = self._all(
                    "documents",
                    examples.documents(),
                    lambda part: encoder.encode_documents(part["title"].to_list(), part["text"].to_list()),
                    advance,
                )

    def __call__(self, groups: list[Group]) -> Floats:
        """Return scores [B, B * G] of every query and every document of the batch."""
        scores: Floats = self.queries(groups) @ self.documents(groups).reshape(-1, self.dim).T
        return scores

    def queries(self, groups: list[Group]) -> Floats:
        """Return vectors [B, dim]."""
        return self._queries[[self._query_places[group.query] for group in groups]]

    def documents(self, groups: list[Group]) -> Floats:
        """Return vectors [B, G, dim]."""
        return self._documents[[[self._document_places[docid] for docid in group.docids] for group in groups]]

    def _all(
        self,
        role: str,
        tables: Iterable[pl.DataFrame],
        encode: Callable[[pl.DataFrame], np.ndarray],
        advance: Callable[[int], None],
    ) -> tuple[Floats, dict[str, int]]:
        """Return the vectors [n, dim] of all rows, and a map from values of the first column to row numbers."""
        blocks: list[np.ndarray] = []
        places: dict[str, int] = {}
        for part in (part for table in tables for part in table.iter_slices(BLOCK_TEXTS)):
            file = self._folder / f"{role}-{len(blocks):06}.npy"
            if not file.exists():
                with artifacts.replacing(file) as scratch, scratch.open("wb") as opened:
                    np.save(opened, encode(part))
            blocks.append(np.load(file))
            places.update(zip(part.to_series(0).to_list(), range(len(places), len(places) + len(part)), strict=True))
            advance(len(part))
        return np.concatenate(blocks), places


class FrozenWeight(nn.Module):
    """The learned weight of a frozen encoder in a sum of scores: `start * exp(1000 * logarithm)`.

    The factor 1000 (our choice) lets the learning rate of a transformer change the weight by some percent per step. The
    weight starts at the temperature, which is 1, as in SPAR, for vectors that are not normalized.
    """

    def __init__(self, start: float):
        super().__init__()
        self.start = start
        self.logarithm = nn.Parameter(torch.zeros(()))

    def forward(self) -> Tensor:
        """Return the weight, a scalar above 0."""
        return self.start * torch.exp(1000 * self.logarithm)
