"""Data for pretraining: a corpus as batches of masked spans, one block of documents in memory.

Each process of a training tokenizes the documents of its own share of the batches.

Order, spans and masks depend only on (seed, epoch, position), so a resumed run sees the same batches. The tokens of a
word are masked together (whole-word masking; Condenser). The collator of transformers splits words
only at spaces, so that punctuation belongs to a word, and omits BERT's random and unchanged tokens.
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

from hybrid_cli import console, draws, words
from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.training import parallel
from hybrid_cli.training.batches import passes
from hybrid_cli.training.options import Pretraining

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
            raise InputError(
                f"the model has no {' and no '.join(lacking)} token; use one like BERT", code="tokenizer-without-mask"
            )
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
        found: dict[int, np.ndarray] = {}
        with console.progress("count spans", self.documents, "documents") as advance:
            order = self._blocks(0)
            for first in range(0, len(order), parallel.size()):
                blocks = order[first : first + parallel.size()]
                own = [[len(units)] for block in blocks[parallel.rank() :][:1] for units in self._of_block(block)]
                counted = parallel.gather(torch.tensor(own, dtype=torch.int64).view(-1, 1))
                for block, counts in zip(blocks, counted, strict=False):  # the last blocks may be fewer than processes
                    found[block] = counts.flatten().cpu().numpy()
                    advance(min(BLOCK, self.documents - block * BLOCK))
                if sum(int(counts.sum()) for counts in found.values()) >= enough:
                    break
        if not any(counts.any() for counts in found.values()):
            raise path_error(self._path, "has no words to train on; pretrain needs documents with text", code="no-text")
        return found

    def _epoch(self, epoch: int, skip: int) -> Iterator[Unit | None]:
        """Yield the units of an epoch after the first `skip`; None for those of other processes, which stay text."""
        position = 0
        for block in self._blocks(epoch):
            if block not in self._counts:
                return
            ends = np.cumsum(self._counts[block])
            order = self._rng(_UNITS, epoch, block).permutation(int(self._counts[block].sum()))
            places = position + np.arange(len(order))
            position += len(order)
            if position > skip:
                units = self._chosen(block, ends, order[self._own(places) & (places >= skip)], epoch)
                yield from (units.get(unit) for unit in order[places >= skip].tolist())

    def _own(self, places: np.ndarray) -> np.ndarray:
        """Return a mask [n] of the units of this process, for places in the sequence of an epoch."""
        batch, place = np.divmod(places, self._plan.batch_size)
        lengths = np.minimum(self._plan.batch_size, len(self) - batch * self._plan.batch_size)
        mask = np.zeros(len(places), bool)
        for length in np.unique(lengths).tolist():
            own = parallel.own(length)
            mask |= (lengths == length) & (place >= own.start) & (place < own.stop)
        return mask

    def _chosen(self, block: int, ends: np.ndarray, chosen: np.ndarray, epoch: int) -> dict[int, Unit]:
        """Return some units of a block by their number; other documents are not tokenized."""
        rows = np.unique(np.searchsorted(ends, chosen, "right"))
        begins = ends - self._counts[block]
        found = zip(rows.tolist(), self._of_block(block, epoch, rows), strict=True)
        units = {int(begins[row]) + number: unit for row, several in found for number, unit in enumerate(several)}
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
        for place, unit in enumerate(units):
            rng = self._rng(*key, place)
            masked += [self._mask(span, rng) for span in unit or ()]
        return Spans([ids for ids, _ in masked], [labels for _, labels in masked])

    def _rng(self, *place: int) -> np.random.Generator:
        return draws.rng(self._plan.seed, *place)
