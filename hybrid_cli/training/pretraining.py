"""Pretraining: masked language modeling, with the Condenser head and coCondenser's contrastive loss.

The corpus becomes batches of masked spans, with one block of documents in memory. Each process of a training tokenizes
the documents of its own share of the batches. Order, spans and masks depend only on (seed, epoch, position), so a
resumed run sees the same batches. The tokens of a word are masked together (whole-word masking; Condenser). The
collator of transformers splits words only at spaces, so that punctuation belongs to a word, and omits BERT's random and
unchanged tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from hybrid_cli import console, draws, words
from hybrid_cli.collections import collection as collections
from hybrid_cli.encoders.loading import padding_of
from hybrid_cli.encoders.models import autocast
from hybrid_cli.encoders.sparse_towers import load_masked_language_model
from hybrid_cli.errors import InputError, option_error, path_error
from hybrid_cli.storage import disk, layout
from hybrid_cli.training import parallel
from hybrid_cli.training.batches import passes
from hybrid_cli.training.dense import prepare_start
from hybrid_cli.training.gradients import TOKENS_AT_ONCE, Share, backward
from hybrid_cli.training.losses import Terms, span_contrast
from hybrid_cli.training.options import WHOLE, Pretraining, Start

BLOCK = 8192  # documents that are shuffled together
IGNORED = -100  # label of a token that is not predicted, as in PyTorch
_MASKED, _RANDOM = 0.8, 0.1  # BERT: fractions of the predicted tokens; the others keep their token
_HELD_OUT, _BLOCKS, _UNITS, _CUTS, _MASKS = range(5)  # seeds of the kinds of draws


@dataclass(frozen=True, eq=False)
class Pieces:
    """The tokens of a text or of a span, without special tokens.

    Attributes:
        ids: [n] token ids.
        starts: [w + 1] position of the first token of each word; the last entry is n.
    """

    ids: np.ndarray
    starts: np.ndarray

    @property
    def words(self) -> int:
        """Number of words."""
        return len(self.starts) - 1

    def span(self, first: int, last: int, room: int) -> Pieces:
        """Return the words [first, last) that fit into `room` tokens.

        The span has at least one word; a word longer than `room` is truncated.
        """
        begin = self.starts[first]
        last = min(last, max(first + 1, int(np.searchsorted(self.starts, begin + room, "right")) - 1))
        starts = np.minimum(self.starts[first : last + 1] - begin, room)
        return Pieces(self.ids[begin : begin + starts[-1]], starts)


def pieces(tokenizer: Any, texts: Sequence[str]) -> Iterator[Pieces]:
    """Tokenize texts; words are those of the tokenizer (for BERT, a token and the `##` tokens after it).

    In scripts without spaces, where a tokenizer may take a clause for a word, words end as in `hybrid_cli.words` too.
    """
    options = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}
    for text, encoding in zip(texts, tokenizer(list(texts), **options).encodings if texts else [], strict=True):
        ids = np.asarray(encoding.ids, np.int32)
        begins_word = np.diff(np.asarray(encoding.word_ids, np.int32), prepend=-1, append=-1) != 0
        if len(ids) and words.has_unspaced(text):
            begins = [begin for begin, _ in words.spans(text)]
            numbers = np.searchsorted(begins, [begin for begin, _ in encoding.offsets], "right")
            begins_word[1:-1] |= np.diff(numbers) != 0
        yield Pieces(ids, np.flatnonzero(begins_word) if len(ids) else np.zeros(1, np.int64))


def consecutive(text: Pieces, room: int) -> Iterator[Pieces]:
    """Split a text into consecutive spans of at most `room` tokens."""
    first = 0
    while first < text.words:
        yield (span := text.span(first, text.words, room))
        first += span.words


def two(text: Pieces, room: int, rng: np.random.Generator) -> list[Pieces]:
    """Return two disjoint random spans in order; none for a text of fewer than two words.

    The text is split between two words of its middle half; a random window of each part is a span. (Our choice, so
    that the spans of a document never overlap.)
    """
    if text.words < 2:
        return []
    middle = int(rng.integers(max(1, text.words // 4), text.words - text.words // 4))
    return [_window(text, 0, middle, room, rng), _window(text, middle, text.words, room, rng)]


def _window(text: Pieces, first: int, last: int, room: int, rng: np.random.Generator) -> Pieces:
    """Return a span of words [first, last) with a random start, early enough to fill `room` if possible."""
    latest = min(last - 1, int(np.searchsorted(text.starts, text.starts[last] - room)))
    return text.span(int(rng.integers(first, max(first, latest) + 1)), last, room)


class WholeWordMasking:
    """Whole-word masking. Special tokens are neither predicted nor inserted.

    Args:
        tokenizer: tokenizer of the model.
        probability: fraction of a span's tokens to predict; at least one word, and no word that would exceed it.

    Raises:
        InputError: the tokenizer has no mask, [CLS] or [SEP] token.
    """

    def __init__(self, tokenizer: Any, probability: float):
        tokens = {"mask": tokenizer.mask_token_id, "[CLS]": tokenizer.cls_token_id, "[SEP]": tokenizer.sep_token_id}
        if lacking := [name for name, number in tokens.items() if number is None]:
            raise InputError(f"the model has no {' and no '.join(lacking)} token", code="tokenizer-without-mask")
        self._mask, self._first, self._last = tokens.values()
        self._special = np.asarray(sorted(tokenizer.all_special_ids))
        self._ordinary = np.setdiff1d(np.arange(len(tokenizer)), self._special)
        self._probability = probability

    def __call__(self, span: Pieces, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return token ids and labels [n + 2] of a span with [CLS] and [SEP]."""
        predicted = self._choose(span, rng)
        draws = rng.random(len(span.ids))
        ids = span.ids.copy()
        ids[predicted & (draws < _MASKED)] = self._mask
        random = predicted & (draws >= _MASKED) & (draws < _MASKED + _RANDOM)
        ids[random] = rng.choice(self._ordinary, random.sum())
        labels = np.where(predicted, span.ids, IGNORED)
        return np.concatenate([[self._first], ids, [self._last]]), np.pad(labels, 1, constant_values=IGNORED)

    def _choose(self, span: Pieces, rng: np.random.Generator) -> np.ndarray:
        """Return a mask [n] of the tokens of the chosen words."""
        sizes = np.diff(span.starts)
        order = rng.permutation(np.flatnonzero(~np.isin(span.ids[span.starts[:-1]], self._special)))
        chosen = np.zeros(span.words, bool)
        chosen[order[np.cumsum(sizes[order]) <= self._probability * len(span.ids)]] = True
        chosen[order[:1]] = True
        return np.repeat(chosen, sizes)


Unit = list[Pieces]


@dataclass(frozen=True)
class Spans:
    """A batch: token ids of each span with [CLS] and [SEP], and labels of the masked tokens.

    With coCondenser, spans 2i and 2i + 1 belong to one document.
    """

    ids: list[np.ndarray]
    labels: list[np.ndarray]


class Corpus:
    """A corpus as training units: consecutive spans or, with coCondenser, pairs of spans.

    Args:
        path: corpus.
        tokenizer: tokenizer of the model.
        text: maps title and text of a document to the text that is tokenized.
        plan: settings of the pretraining.

    Attributes:
        documents: number of documents.
        held: number of documents held out for validation.

    Raises:
        InputError: the tokenizer has no mask token; or, when the units are counted, the corpus has no words.
    """

    def __init__(self, path: Path, tokenizer: Any, text: Callable[[str, str], str], plan: Pretraining):
        self._path, self._tokenizer, self._text, self._plan = path, tokenizer, text, plan
        self._mask = WholeWordMasking(tokenizer, plan.mlm_probability)
        self.documents = collections.document_count(path)
        self._scan = collections.scan(path).select("corpus_row", "title", "text")
        self.held = min(plan.held_out, self.documents // 10)
        self._held: list[int] = self._rng(_HELD_OUT).choice(self.documents, self.held, replace=False).tolist()

    def __len__(self) -> int:
        """Return the number of units of one epoch, or those counted until `max_steps` is reached."""
        return sum(int(counts.sum()) for counts in self._counts.values())

    def batches(self, done: int = 0) -> Iterator[Spans]:
        """Yield this process's share of the batches of all epochs from the `done`-th on.

        The last batch of an epoch may be smaller.
        """
        size = self._plan.batch_size
        steps = -(-len(self) // size)
        for epoch in range(done // steps, passes(self._plan)):
            units = self._epoch(epoch, (done - epoch * steps) * size)
            while batch := list(islice(units, size)):
                yield self._masked(batch, _MASKS, done)
                done += 1

    def held_out(self) -> Spans | None:
        """Return one unit of each held-out document; None if no document is held out."""
        documents = self._scan.filter(pl.col("corpus_row").is_in(self._held)).collect()
        units = [units[0] for units in self._units(documents, epoch=0) if units]
        return self._masked(units, _HELD_OUT, 0) if units else None

    @cached_property
    def _counts(self) -> dict[int, np.ndarray]:
        """Number of units of each document, by block in the order of the first epoch, until `max_steps` is reached.

        The processes of a training count one block each at a time.
        """
        enough = (self._plan.max_steps or math.inf) * self._plan.batch_size * self._plan.accumulate
        counts_by_block: dict[int, np.ndarray] = {}
        with console.progress("count spans", self.documents, "documents") as advance:
            order = self._blocks(0)
            for first in range(0, len(order), parallel.size()):
                blocks = order[first : first + parallel.size()]
                own = [[len(units)] for block in blocks[parallel.rank() :][:1] for units in self._of_block(block)]
                counted = parallel.gather(torch.tensor(own, dtype=torch.int64).view(-1, 1))
                for block, counts in zip(blocks, counted, strict=False):  # the last blocks may be fewer than processes
                    counts_by_block[block] = counts.flatten().cpu().numpy()
                    advance(min(BLOCK, self.documents - block * BLOCK))
                if sum(int(counts.sum()) for counts in counts_by_block.values()) >= enough:
                    break
        if not any(counts.any() for counts in counts_by_block.values()):
            raise path_error(self._path, "has no words to train on", code="no-text")
        return counts_by_block

    def _epoch(self, epoch: int, skip: int) -> Iterator[Unit | None]:
        """Yield the units of an epoch after the first `skip`; None for those of other processes, which stay text."""
        position = 0
        for block in self._blocks(epoch):
            if block not in self._counts:
                return
            ends = np.cumsum(self._counts[block])
            order = self._rng(_UNITS, epoch, block).permutation(int(self._counts[block].sum()))
            positions = position + np.arange(len(order))
            position += len(order)
            if position > skip:
                units = self._chosen(block, ends, order[self._own(positions) & (positions >= skip)], epoch)
                yield from (units.get(unit) for unit in order[positions >= skip].tolist())

    def _own(self, positions: np.ndarray) -> np.ndarray:
        """Return a mask [n] of the units of this process, for positions in the sequence of an epoch."""
        batch, position = np.divmod(positions, self._plan.batch_size)
        lengths = np.minimum(self._plan.batch_size, len(self) - batch * self._plan.batch_size)
        mask = np.zeros(len(positions), bool)
        for length in np.unique(lengths).tolist():
            own = parallel.own_slice(length)
            mask |= (lengths == length) & (position >= own.start) & (position < own.stop)
        return mask

    def _chosen(self, block: int, ends: np.ndarray, chosen: np.ndarray, epoch: int) -> dict[int, Unit]:
        """Return some units of a block by their number; other documents are not tokenized."""
        rows = np.unique(np.searchsorted(ends, chosen, "right"))
        begins = ends - self._counts[block]
        documents = zip(rows.tolist(), self._of_block(block, epoch, rows), strict=True)
        units = {int(begins[row]) + number: unit for row, several in documents for number, unit in enumerate(several)}
        return {number: units[number] for number in chosen.tolist()}

    def _blocks(self, epoch: int) -> list[int]:
        order: list[int] = self._rng(_BLOCKS, epoch).permutation(-(-self.documents // BLOCK)).tolist()
        return order

    def _of_block(self, block: int, epoch: int = 0, rows: np.ndarray | None = None) -> Iterator[list[Unit]]:
        """Yield the units of each document of a block, or of the documents in some rows of it."""
        held = pl.col("corpus_row").is_in(self._held)
        documents = self._scan.slice(block * BLOCK, BLOCK).filter(~held).collect()
        return self._units(documents if rows is None else documents[rows], epoch)

    def _units(self, documents: pl.DataFrame, epoch: int) -> Iterator[list[Unit]]:
        """Yield the units of each document."""
        room = self._plan.max_length - 2
        rows, titles, texts = documents.get_columns()
        whole = [self._text(title, text) for title, text in zip(titles, texts, strict=True)]
        for row, document in zip(rows, pieces(self._tokenizer, whole), strict=True):
            if self._plan.cocondenser:
                pair = two(document, room, self._rng(_CUTS, epoch, row))
                yield [pair] if pair else []
            else:
                yield [[span] for span in consecutive(document, room)]

    def _masked(self, units: Sequence[Unit | None], *key: int) -> Spans:
        """Mask the units of a batch; the masks of a unit depend on its place in the batch."""
        masked = []
        for position, unit in enumerate(units):
            rng = self._rng(*key, position)
            masked += [self._mask(span, rng) for span in unit or ()]
        return Spans([ids for ids, _ in masked], [labels for _, labels in masked])

    def _rng(self, *key: int) -> np.random.Generator:
        return draws.rng(self._plan.seed, *key)


_HEAD_LAYERS = 2

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
        cls, folder: Path, *, condenser: bool, skip_layer: int | None = None, start: Start = WHOLE
    ) -> MaskedLanguageModel:
        """Load a complete checkpoint; missing heads are initialized from torch's random state, with a notice.

        Args:
            folder: checkpoint.
            condenser: add the Condenser head.
            skip_layer: layer whose states enter the Condenser head; 0 is the embeddings, None the middle layer.
            start: layers to keep, and how they are trained.

        Raises:
            InputError: unknown architecture, or a layer that does not exist.
        """
        whole, is_new = load_masked_language_model(folder)
        heads = [module for name, module in whole.named_children() if name != whole.base_model_prefix]
        if len(heads) != 1:
            raise path_error(
                folder, f"{type(whole).__name__} is not built like BERT or RoBERTa", code="architecture-unsupported"
            )
        if is_new:
            console.note(f"{folder}: starts with a new masked-language-model head", code="new-head", path=folder)
        prepare_start(whole.base_model, start)  # type: ignore[arg-type]
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
        rows, positions = torch.nonzero(labels != IGNORED, as_tuple=True)
        scores = self._head[0](states[rows, positions]).float()
        losses = functional.cross_entropy(scores, labels[rows, positions], reduction="none")
        return losses.new_zeros(len(labels)).index_add(0, rows, losses)

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
        most = config.num_hidden_layers
        raise option_error("skip_layer", skip, f"the model has {most} layers", limit=most)
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
        console.note(f"{folder}: training continues with its Condenser head", code="condenser-head", path=folder)
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

        def loss(rows: Sequence[Tensor]) -> Terms:
            return self._terms(torch.cat([*rows]), masked)

        return backward(self._encode, share, loss, scale, cached=self.chunk_size is not None)

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
        tokens = TOKENS_AT_ONCE if self.chunk_size is None else self.chunk_size * max(lengths, default=0)

        def chunk(rows: np.ndarray) -> Chunk:
            ids = _padded([batch.ids[row] for row in rows], self._padding)
            mask = torch.arange(ids.shape[1]) < torch.tensor([[lengths[row]] for row in rows])
            return ids, mask.long(), _padded([batch.labels[row] for row in rows], IGNORED)

        return Share.of(lengths, chunk, self.chunk_size, tokens)


def _masked(batch: Spans) -> int:
    return sum(int((labels != IGNORED).sum()) for labels in batch.labels)


def _padded(rows: list[np.ndarray], value: int) -> Tensor:
    """Return rows [n, L] padded to the longest."""
    tensors = [torch.from_numpy(row).long() for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)
