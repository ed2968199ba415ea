"""What `train-dense` trains: an encoder whose vectors of queries and documents meet in an objective."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hybrid_cli.encoders.tower import Tower
from hybrid_cli.encoders.transformer import TransformerEncoder, batches_by_length
from hybrid_cli.training import parallel
from hybrid_cli.training.batches import Group, allowed, lexical_scores
from hybrid_cli.training.bm25_vectors import LexicalSide
from hybrid_cli.training.gradients import backward
from hybrid_cli.training.losses import Objective, Terms, Vectors
from hybrid_cli.training.masks import MatchMasking
from hybrid_cli.training.teachers import FrozenEncoder

_TOKENS_AT_ONCE = 4096

Chunk = tuple[Tower, Tensor, Tensor]
Scorer = Callable[[list[Group]], npt.NDArray[np.float32]]


class DenseLearner:
    """Batches of queries with their documents to gradients of an encoder.

    Args:
        objective: vectors to loss terms.
        precision: what the forward pass computes in.
        chunk_size: texts encoded at once with gradient caching; None encodes the batch in one go.
        lexical: BM25's own vectors, where the objective asks for them.
        masking: what of the documents is hidden from the encoder.
        other: a batch to another model's scores of it, where the objective asks for them.
        teacher: whose vectors the objective asks for.
        queries_only: encode no documents; theirs are the teacher's vectors.

    Attributes:
        step: optimiser steps done.
    """

    def __init__(
        self,
        encoder: TransformerEncoder,
        objective: Objective,
        precision: torch.dtype,
        chunk_size: int | None = None,
        lexical: LexicalSide | None = None,
        masking: MatchMasking | None = None,
        other: Scorer | None = None,
        teacher: FrozenEncoder | None = None,
        queries_only: bool = False,
    ):
        self.model, self.objective, self.precision, self.chunk_size = encoder, objective, precision, chunk_size
        self.lexical, self.masking, self.other, self.teacher = lexical, masking, other, teacher
        self.queries_only, self.step = queries_only, 0

    def begin(self, step: int) -> None:
        """Tell objectives that change as training goes on where it stands."""
        self.step = step

    def backward(self, groups: list[Group], scale: Callable[[Tensor], Tensor]) -> Terms:
        """Add the gradients of one batch; the terms of its loss."""
        device = self.model.device
        chunks, order = self._chunks(groups)
        scores, mask = lexical_scores(groups).to(device), allowed(groups).to(device)
        constants, step = self._constants(groups), self.step

        def loss(vectors: Tensor) -> tuple[Tensor, Terms]:
            vectors = vectors[order]
            queries, documents = vectors[: len(groups)], vectors[len(groups) :]
            if self.queries_only:
                documents = constants["teacher_documents"]
            documents = documents.view(*scores.shape, -1)
            terms = self.objective(Vectors(queries, documents, scores, mask, **constants, step=step))
            return scale(torch.stack(list(terms.values())).sum()), terms

        def encode(chunk: Chunk) -> Tensor:
            with self._autocast():
                vectors: Tensor = chunk[0](chunk[1].to(device), chunk[2].to(device))
            return vectors.float()

        cached = self.chunk_size is not None
        # Around all chunks, autocast casts the weights once; under caching the casts of the pass without graph must go.
        with nullcontext() if cached else self._autocast():
            return {name: term.detach() for name, term in backward(encode, chunks, loss, cached=cached).items()}

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.model.device.type, self.precision, enabled=self.precision != torch.float32)

    def _constants(self, groups: list[Group]) -> dict[str, Tensor]:
        """What else of `Vectors` the objective asks for."""
        found = {}
        if self.lexical is not None:
            documents = self.lexical.documents([docid for group in groups for docid in group.docids])
            found["lexical_queries"] = self.lexical.queries([group.query for group in groups])
            found["lexical_documents"] = documents.reshape(len(groups), -1, documents.shape[1])
        if self.other is not None:
            found["other"] = self.other(groups)
        if self.teacher is not None:
            found["teacher_queries"] = self.teacher.queries(groups)
            found["teacher_documents"] = self.teacher.documents(groups)
        return {name: torch.from_numpy(values).to(self.model.device) for name, values in found.items()}

    def _chunks(self, groups: list[Group]) -> tuple[list[Chunk], Tensor]:
        """The batch's texts in chunks of similar length, and the place of each (queries, then documents) in them."""
        encoder, contract = self.model, self.model.contract
        queries = _tokens(
            encoder.query_tower, [contract.query(group.query) for group in groups], contract.query_max_len
        )
        if self.queries_only:
            chunks, rows = self._batched(encoder.query_tower, queries)
            return chunks, torch.argsort(rows)
        texts = [
            contract.document(title, text)
            for group in groups
            for title, text in zip(group.titles, group.texts, strict=True)
        ]
        documents = _tokens(encoder.document_tower, texts, contract.doc_max_len)
        if self.masking is not None:
            documents = self._masked(groups, queries, documents)
        chunks, rows = self._batched(encoder.query_tower, queries)
        more, more_rows = self._batched(encoder.document_tower, documents)
        return chunks + more, torch.argsort(torch.cat([rows, len(queries) + more_rows]))

    def _masked(self, groups: list[Group], queries: list[list[int]], documents: list[list[int]]) -> list[list[int]]:
        """The documents with some of what each one's query has too hidden."""
        assert self.masking is not None
        width = len(documents) // len(groups)
        return [
            self.masking(document, queries[place // width], [groups[place // width].noise, place % width])
            for place, document in enumerate(documents)
        ]

    def _batched(self, tower: Tower, tokens: list[list[int]]) -> tuple[list[Chunk], Tensor]:
        share = -(-len(tokens) // parallel.size())  # so that every process has one
        most = min(share, self.chunk_size or share)
        parts = list(batches_by_length([len(ids) for ids in tokens], _TOKENS_AT_ONCE, most))
        chunks = []
        for rows in parts:
            padded = tower.tokenizer.pad({"input_ids": [tokens[row] for row in rows]}, return_tensors="pt")
            chunks.append((tower, padded["input_ids"], padded["attention_mask"]))
        return chunks, torch.from_numpy(np.concatenate(parts))


def _tokens(tower: Tower, texts: list[str], max_length: int) -> list[list[int]]:
    encoded = tower.tokenizer(texts, truncation=True, max_length=max_length, return_token_type_ids=False)
    ids: list[list[int]] = encoded["input_ids"]
    return ids
