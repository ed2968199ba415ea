"""A corpus to batches of masked spans: a seeded order, seeded cuts and masks, one block of documents in memory.

Everything depends on (seed, epoch, place) alone, never on where an interrupted training goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import console
from hybrid_cli.collections import collection as collections
from hybrid_cli.config import Pretraining
from hybrid_cli.errors import InputError
from hybrid_cli.training.spans import Pieces, consecutive, pieces, two
from hybrid_cli.training.whole_words import WholeWordMasking

BLOCK = 8192  # documents that are shuffled together
_HELD_OUT, _BLOCKS, _UNITS, _CUTS, _MASKS = range(5)  # what is drawn, so that no two draws share their seed

Unit = list[Pieces]


@dataclass(frozen=True)
class Spans:
    """A batch: token ids of each span, [CLS] and [SEP] around it, and the labels of what is masked there.

    With coCondenser spans 2i and 2i + 1 are of one document.
    """

    ids: list[np.ndarray]
    labels: list[np.ndarray]


class Corpus:
    """Documents as units of training: consecutive spans, or with coCondenser pairs of spans.

    Attributes:
        documents, held: how many there are, and how many of them are never trained on.

    Args:
        text: title and text to what is read of a document.

    Raises:
        InputError: no documents, or none with words; a tokenizer without mask token.
    """

    def __init__(self, path: Path, tokenizer: Any, text: Callable[[str, str], str], plan: Pretraining):
        self._path, self._tokenizer, self._text, self._plan = path, tokenizer, text, plan
        self._mask = WholeWordMasking(tokenizer, plan.mask_share)
        self.documents = collections.document_count(path)
        self._scan = collections.scan(path).select("corpus_row", "title", "text")
        self.held = min(plan.held_out, self.documents // 10)
        self._held: list[int] = self._rng(_HELD_OUT).choice(self.documents, self.held, replace=False).tolist()
        self._sizes = self._count()

    def __len__(self) -> int:
        """Units of one epoch, or as many of them as `max_steps` asks for."""
        return sum(self._sizes.values())

    def batches(self, done: int = 0) -> Iterator[Spans]:
        """Batches over all epochs, the last one of an epoch shorter; the first `done` are passed over."""
        size = self._plan.batch_size
        steps = -(-len(self) // size)
        for epoch in range(done // steps, self._plan.epochs):
            units = self._epoch(epoch, (done - epoch * steps) * size)
            while batch := list(islice(units, size)):
                yield self._masked(batch, self._rng(_MASKS, done))
                done += 1

    def held_out(self) -> Spans | None:
        """One unit of each document that is never trained on; None where there are none."""
        documents = self._scan.filter(pl.col("corpus_row").is_in(self._held))
        units = [units[0] for units in self._units(documents, epoch=0) if units]
        return self._masked(units, self._rng(_HELD_OUT, 0)) if units else None

    def _count(self) -> dict[int, int]:
        """Units of each block, in the order of the first epoch, as far as the training will go."""
        enough = (self._plan.max_steps or math.inf) * self._plan.batch_size
        sizes: dict[int, int] = {}
        with console.progress("count spans", self.documents, "documents") as advance:
            for block in self._blocks(0):
                sizes[block] = len(self._block(block, epoch=0))
                advance(min(BLOCK, self.documents - block * BLOCK))
                if sum(sizes.values()) >= enough:
                    break
        if not sum(sizes.values()):
            raise InputError(f"{self._path}: holds no words to train on; a corpus needs documents with text")
        return sizes

    def _epoch(self, epoch: int, skip: int) -> Iterator[Unit]:
        for block in self._blocks(epoch):
            if skip and skip >= self._sizes[block]:
                skip -= self._sizes[block]
                continue
            units = self._block(block, epoch)
            for place in self._rng(_UNITS, epoch, block).permutation(len(units))[skip:]:
                yield units[place]
            skip = 0

    def _blocks(self, epoch: int) -> list[int]:
        order: list[int] = self._rng(_BLOCKS, epoch).permutation(-(-self.documents // BLOCK)).tolist()
        return order

    def _block(self, block: int, epoch: int) -> list[Unit]:
        documents = self._scan.slice(block * BLOCK, BLOCK).filter(~pl.col("corpus_row").is_in(self._held))
        return list(chain.from_iterable(self._units(documents, epoch)))

    def _units(self, documents: pl.LazyFrame, epoch: int) -> Iterator[list[Unit]]:
        """Those of each document."""
        room = self._plan.max_length - 2
        rows, titles, texts = documents.collect().get_columns()
        whole = [self._text(title, text) for title, text in zip(titles, texts, strict=True)]
        for row, document in zip(rows, pieces(self._tokenizer, whole), strict=True):
            if self._plan.cocondenser:
                pair = two(document, room, self._rng(_CUTS, epoch, row))
                yield [pair] if pair else []
            else:
                yield [[span] for span in consecutive(document, room)]

    def _masked(self, units: Sequence[Unit], rng: np.random.Generator) -> Spans:
        masked = [self._mask(span, rng) for unit in units for span in unit]
        return Spans([ids for ids, _ in masked], [labels for _, labels in masked])

    def _rng(self, *place: int) -> np.random.Generator:
        return np.random.default_rng([self._plan.seed, *place])
