"""Other models beside the one that trains: their scores of every query with every document of a batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hybrid_cli.encoders.encoder import Encoder
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.training.batches import Group

Floats = npt.NDArray[np.float32]


class ExactTeacher:
    """BM25 of a collection by its impact matrix, which is held by rows."""

    def __init__(self, index: LexicalIndex):
        self._index = index
        self._rows = index.documents.tocsr()
        self._places = {docid: row for row, docid in enumerate(index.docids)}

    def __call__(self, groups: list[Group]) -> Floats:
        """[B, B * G]"""
        rows = self._rows[[self._places[docid] for group in groups for docid in group.docids]]
        queries = self._index.query_matrix([group.query for group in groups])
        scores: Floats = (queries @ rows.T).toarray().astype(np.float32)
        return scores


class FrozenEncoder:
    """An encoder that is finished, such as a Lambda."""

    def __init__(self, encoder: Encoder):
        self._encoder = encoder

    def __call__(self, groups: list[Group]) -> Floats:
        """[B, B * G]"""
        titles = [title for group in groups for title in group.titles]
        texts = [text for group in groups for text in group.texts]
        documents = self._encoder.encode_documents(titles, texts)
        scores: Floats = self._encoder.encode_queries([group.query for group in groups]) @ documents.T
        return scores


class FrozenWeight(nn.Module):
    """The weight of a frozen encoder in the sum, learned: `start * exp(1000 * logarithm)`.

    The factor lets the learning rate of a transformer move it by some percent a step. SPAR's own starts at 1; here it
    starts at the temperature, which is 1 where vectors have any length.
    """

    def __init__(self, start: float):
        super().__init__()
        self.start = start
        self.logarithm = nn.Parameter(torch.zeros(()))

    def forward(self) -> Tensor:
        """A scalar above 0."""
        return self.start * torch.exp(1000 * self.logarithm)
