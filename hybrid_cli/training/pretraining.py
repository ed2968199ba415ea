"""Pretraining: masked language modeling, with the Condenser head and coCondenser's contrastive loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from hybrid_cli import console
from hybrid_cli.encoders.devices import autocast
from hybrid_cli.encoders.loading import padding_of
from hybrid_cli.encoders.sparse_towers import load_masked_language_model
from hybrid_cli.encoders.transformer import batches_by_length
from hybrid_cli.errors import option_error, path_error
from hybrid_cli.storage import disk, layout
from hybrid_cli.training import parallel
from hybrid_cli.training.gradients import Share, backward
from hybrid_cli.training.losses import Terms, span_contrast
from hybrid_cli.training.pretraining_data import IGNORED, Spans
from hybrid_cli.training.start import keep_first_layers

_HEAD_LAYERS = 2
_TOKENS_AT_ONCE = 4096

Chunk = tuple[Tensor, Tensor, Tensor]  # ids, attention mask and labels, each [n, L]


class MaskedLanguageModel(nn.Module):
    """Backbone, masked-language-model head, and optional Condenser head (Condenser, section 3).

    Attributes:
        terms: names of the losses that `forward` returns.
    """

    def __init__(self, whole: PreTrainedModel, head: nn.Module, condenser: nn.TransformerEncoder | None, skip: int = 0):
        super().__init__()
        self.whole = whole
        self.condenser = condenser
        self.skip = skip
        self.terms = ("mlm",) if condenser is None else ("mlm", "condenser_mlm")
        self._head = [head]  # in a list: already registered as a submodule of `whole`

    @classmethod
    def load(
        cls, folder: Path, *, condenser: bool, skip_layer: int | None = None, layers: int | None = None
    ) -> MaskedLanguageModel:
        """Load a complete checkpoint; missing heads are initialized from torch's random state, with a notice.

        Args:
            folder: checkpoint.
            condenser: add the Condenser head.
            skip_layer: layer whose states enter the Condenser head; 0 is the embeddings, None the middle layer.
            layers: keep only the first layers; None keeps all.

        Raises:
            InputError: unknown architecture, or a layer that does not exist.
        """
        whole, is_new = load_masked_language_model(folder)
        heads = [module for name, module in whole.named_children() if name != whole.base_model_prefix]
        if len(heads) != 1:
            raise path_error(
                folder,
                f"{type(whole).__name__} is not supported; use BERT, RoBERTa or similar",
                code="architecture-unsupported",
                value=type(whole).__name__,
            )
        if is_new:
            console.note(f"{folder}: has no masked-language-model head; a new one is tied to the embeddings")
        keep_first_layers(whole.base_model, layers)  # type: ignore[arg-type]
        return cls(whole, heads[0], *_condenser(folder, whole, skip_layer) if condenser else (None,))

    @property
    def backbone(self) -> PreTrainedModel:
        """Transformer without heads, which becomes the encoder."""
        backbone: PreTrainedModel = self.whole.base_model  # type: ignore[assignment]
        return backbone

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Map ids, mask and labels [n, L] to [CLS] vectors [n, h] and losses [n, terms], summed over each text."""
        states = self.backbone(ids, attention_mask=mask, output_hidden_states=True).hidden_states
        losses = [self._losses(states[-1], labels)]
        if self.condenser is not None:
            mixed = torch.cat([states[-1][:, :1], states[self.skip][:, 1:]], dim=1)
            losses.append(self._losses(self.condenser(mixed, src_key_padding_mask=mask == 0), labels))
        return states[-1][:, 0].float(), torch.stack(losses, dim=1)

    def _losses(self, states: Tensor, labels: Tensor) -> Tensor:
        """Return losses [n]; the vocabulary is scored only at masked positions."""
        rows, places = torch.nonzero(labels != IGNORED, as_tuple=True)
        scores = self._head[0](states[rows, places]).float()
        each = functional.cross_entropy(scores, labels[rows, places], reduction="none")
        return each.new_zeros(len(labels)).index_add(0, rows, each)

    def save(self, folder: Path) -> None:
        """Write the checkpoint for `AutoModelForMaskedLM`, with the Condenser head in a file of its own."""
        with disk.by_name(folder):
            self.whole.save_pretrained(folder, safe_serialization=True)
        if self.condenser is not None:
            with disk.by_name(folder / layout.CONDENSER_HEAD) as file:
                save_file(self.condenser.state_dict(), file, metadata={"format": "pt"})


def _condenser(folder: Path, whole: PreTrainedModel, skip_layer: int | None) -> tuple[nn.TransformerEncoder, int]:
    """Return the Condenser head, with layers like those of the backbone, and the layer whose states enter it."""
    config = whole.config
    skip = config.num_hidden_layers // 2 if skip_layer is None else skip_layer
    if not 0 <= skip < config.num_hidden_layers:
        raise option_error(
            "skip_layer", skip, f"the model has {config.num_hidden_layers} layers", limit=config.num_hidden_layers
        )
    layer = nn.TransformerEncoderLayer(
        d_model=config.hidden_size,
        nhead=config.num_attention_heads,
        dim_feedforward=config.intermediate_size,
        dropout=config.hidden_dropout_prob,
        activation=ACT2FN[config.hidden_act],
        layer_norm_eps=config.layer_norm_eps,
        batch_first=True,
    )
    head = nn.TransformerEncoder(layer, _HEAD_LAYERS, enable_nested_tensor=False)
    for name, parameter in head.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=config.initializer_range)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    if (folder / layout.CONDENSER_HEAD).is_file():
        head.load_state_dict(load_file(folder / layout.CONDENSER_HEAD))
        console.note(f"{folder}: training continues with its Condenser head")
    return head, skip


class PretrainingLearner:
    """Computes the gradients of a masked language model on batches of masked spans.

    The masked-language-model loss is a sum over spans, so chunks of a batch are processed one by one. For the
    contrastive loss, the cached rows hold the losses and the vector of each span, so that caching is exact for both.

    Args:
        model: model to train.
        tokenizer: its tokenizer.
        precision: precision of the forward pass.
        chunk_size: spans in memory at once; None processes 4,096 tokens at once, without gradient caching.
    """

    def __init__(
        self, model: MaskedLanguageModel, tokenizer: Any, precision: torch.dtype, chunk_size: int | None = None
    ):
        self.model, self.precision, self.chunk_size = model, precision, chunk_size
        self._padding = padding_of(tokenizer)
        self._device = next(model.parameters()).device

    def backward(self, batch: Spans, scale: Callable[[Tensor], Tensor], step: int = 0) -> Terms:
        """Add the gradients of this process's share of a batch; return the terms of the loss of the batch."""
        masked = max(1, int(parallel.total(torch.tensor(_masked(batch), device=self._device))))
        share = self._chunks(batch)
        if self.model.condenser is None:
            return self._one_by_one(share.chunks, masked, scale)

        def loss(rows: Sequence[Tensor]) -> tuple[Tensor, Terms]:
            terms = self._terms(torch.cat(list(rows)), masked)
            return scale(torch.stack(list(terms.values())).sum()), terms

        terms = backward(self._encode, share, loss, cached=self.chunk_size is not None)
        return {name: term.detach() for name, term in terms.items()}

    def measure(self, batch: Spans) -> dict[str, float]:
        """Return the terms of a held-out batch, for the learning curve."""
        share = self._chunks(batch)
        with torch.no_grad():
            rows = torch.cat([self._encode(chunk) for chunk in share.chunks])
            terms = self._terms(rows[share.order], max(1, _masked(batch)))
        return {f"held_out_{name}": term.item() for name, term in terms.items()}

    def _one_by_one(self, chunks: Sequence[Chunk], masked: int, scale: Callable[[Tensor], Tensor]) -> Terms:
        """Add the gradients of chunks without contrastive loss; return the term of the chunks of all processes."""
        whole = torch.zeros((), device=self._device)
        for chunk in chunks:
            term = self._encode(chunk)[:, 0].sum() / masked
            scale(term).backward()
            whole += term.detach()
        return {self.model.terms[0]: parallel.total(whole)}

    def _terms(self, rows: Tensor, masked: int) -> Terms:
        """Return the terms of rows, given in the order of the spans."""
        names = self.model.terms
        losses, vectors = rows[:, : len(names)], rows[:, len(names) :]
        terms = dict(zip(names, losses.sum(0) / masked, strict=True))
        return terms if self.model.condenser is None else {**terms, **span_contrast(vectors)}

    def _encode(self, chunk: Chunk) -> Tensor:
        """Return rows [n, terms + h]: the losses of each span, and its vector."""
        with autocast(self._device, self.precision):
            vectors, losses = self.model(*(tensor.to(self._device) for tensor in chunk))
        return torch.cat([losses, vectors], dim=1)

    def _chunks(self, batch: Spans) -> Share[Chunk]:
        """Return chunks of spans of similar length."""
        lengths = [len(ids) for ids in batch.ids]
        tokens = _TOKENS_AT_ONCE if self.chunk_size is None else self.chunk_size * max(lengths, default=0)
        parts = list(batches_by_length(lengths, tokens, self.chunk_size))
        chunks = []
        for rows in parts:
            ids = _padded([batch.ids[row] for row in rows], self._padding)
            mask = torch.arange(ids.shape[1]) < torch.tensor([[lengths[row]] for row in rows])
            chunks.append((ids, mask.long(), _padded([batch.labels[row] for row in rows], IGNORED)))
        rows = np.concatenate([*parts, np.empty(0, np.int64)])
        return Share(chunks, torch.argsort(torch.from_numpy(rows)))


def _masked(batch: Spans) -> int:
    return sum(int((labels != IGNORED).sum()) for labels in batch.labels)


def _padded(rows: list[np.ndarray], value: int) -> Tensor:
    """Return rows [n, L] padded to the longest."""
    tensors = [torch.from_numpy(row).long() for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)
