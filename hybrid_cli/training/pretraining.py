"""What `pretrain` trains: a transformer on masked spans, with coCondenser on pairs of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybrid_cli.encoders.transformer import batches_by_length
from hybrid_cli.training.condenser import MaskedLanguageModel
from hybrid_cli.training.corpus import Spans
from hybrid_cli.training.gradients import backward
from hybrid_cli.training.losses import Terms, span_contrast
from hybrid_cli.training.whole_words import IGNORED

_TOKENS_AT_ONCE = 4096

Chunk = tuple[Tensor, Tensor, Tensor]  # ids, attention mask and labels, each [n, L]


class PretrainingLearner:
    """Batches of masked spans to gradients of a masked language model.

    The loss of masked words is a sum over spans, so that chunks of a batch are done one after the other. Where spans
    are compared with one another, the rows that are cached hold the losses of a span beside its vector; so caching is
    exact for both.

    Args:
        chunk_size: spans in memory at once; None takes as many as 4,096 word pieces hold, and compares spans without
            caching.
    """

    def __init__(
        self, model: MaskedLanguageModel, tokenizer: Any, precision: torch.dtype, chunk_size: int | None = None
    ):
        self.model, self.precision, self.chunk_size = model, precision, chunk_size
        self._padding: int = tokenizer.pad_token_id
        self._device = next(model.parameters()).device

    def backward(self, batch: Spans, scale: Callable[[Tensor], Tensor]) -> Terms:
        """Add the gradients of one batch; the terms of its loss."""
        chunks, order = self._chunks(batch)
        masked = _masked(batch)

        def loss(rows: Tensor) -> tuple[Tensor, Terms]:
            terms = self._terms(rows, order, masked)
            return scale(torch.stack(list(terms.values())).sum()), terms

        cached = self.model.condenser is not None and self.chunk_size is not None
        parts = [chunks] if self.model.condenser is not None else [[chunk] for chunk in chunks]
        totals: Terms = {}
        for part in parts:
            for name, term in backward(self._encode, part, loss, cached=cached).items():
                totals[name] = totals.get(name, 0) + term.detach()
        return totals

    def measure(self, batch: Spans) -> dict[str, float]:
        """The terms of a batch that is not trained on, for the learning curve."""
        chunks, order = self._chunks(batch)
        with torch.no_grad():
            terms = self._terms(torch.cat([self._encode(chunk) for chunk in chunks]), order, _masked(batch))
        return {f"held_out_{name}": term.item() for name, term in terms.items()}

    def _terms(self, rows: Tensor, order: Tensor, masked: int) -> Terms:
        """What the rows of one chunk or of the whole batch, in the order of the chunks, add to each term."""
        names = self.model.terms
        losses, vectors = rows[:, : len(names)], rows[:, len(names) :]
        terms = dict(zip(names, losses.sum(0) / masked, strict=True))
        return terms if self.model.condenser is None else {**terms, **span_contrast(vectors[order])}

    def _encode(self, chunk: Chunk) -> Tensor:
        """[n, terms + h]: the losses of each span, and its vector."""
        with torch.autocast(self._device.type, self.precision, enabled=self.precision != torch.float32):
            vectors, losses = self.model(*(tensor.to(self._device) for tensor in chunk))
        return torch.cat([losses, vectors], dim=1)

    def _chunks(self, batch: Spans) -> tuple[list[Chunk], Tensor]:
        """Chunks of spans of similar length, and the place of each span in them."""
        lengths = [len(ids) for ids in batch.ids]
        tokens = _TOKENS_AT_ONCE if self.chunk_size is None else self.chunk_size * max(lengths)
        parts = list(batches_by_length(lengths, tokens, self.chunk_size))
        chunks = []
        for rows in parts:
            ids = _padded([batch.ids[row] for row in rows], self._padding)
            mask = torch.arange(ids.shape[1]) < torch.tensor([[lengths[row]] for row in rows])
            chunks.append((ids, mask.long(), _padded([batch.labels[row] for row in rows], IGNORED)))
        return chunks, torch.argsort(torch.from_numpy(np.concatenate(parts)))


def _masked(batch: Spans) -> int:
    return max(1, sum(int((labels != IGNORED).sum()) for labels in batch.labels))


def _padded(rows: list[np.ndarray], value: int) -> Tensor:
    """[n, L] of the longest."""
    tensors = [torch.from_numpy(row).long() for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)
