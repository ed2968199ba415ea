"""The learner of all training with queries and documents: computes an encoder's gradients on batches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from hybrid_cli.encoders.sparse import SparseEncoder
from hybrid_cli.encoders.sparse_towers import SparseTower
from hybrid_cli.encoders.tower import Tower
from hybrid_cli.encoders.transformer import TransformerEncoder, batches_by_length
from hybrid_cli.training import parallel
from hybrid_cli.training.batches import Group, allowed
from hybrid_cli.training.loop import backward
from hybrid_cli.training.losses import Objective, Terms, Vectors
from hybrid_cli.training.roc import Bm25Vectors, MatchMasking
from hybrid_cli.training.teachers import FrozenEncoder, Scorer, ScorerWeight

_TOKENS_AT_ONCE = 4096

Chunk = tuple[Tower | SparseTower, Tensor, Tensor]
Model = TypeVar("Model", TransformerEncoder, SparseEncoder)


@dataclass(frozen=True)
class BatchSources:
    """Sources of the constants of a batch that an objective reads.

    Attributes:
        lexical: BM25's vectors, for `orthogonality`.
        lexical_of_others: each example gets the BM25 vectors of the example before it, a control experiment.
        masking: hides matches of the query in documents.
        scorer: scores every query and document of the batch; None leaves the lexical scores of the examples.
        weight: weight of the scorer in a residual loss.
        teacher: vectors of a frozen encoder.
        queries_only: encode only queries; documents have the teacher's vectors.
    """

    lexical: Bm25Vectors | None = None
    lexical_of_others: bool = False
    masking: MatchMasking | None = None
    scorer: Scorer | None = None
    weight: ScorerWeight | None = None
    teacher: FrozenEncoder | None = None
    queries_only: bool = False


class DenseLearner(Generic[Model]):
    """Computes the gradients of an encoder on batches of queries with their documents.

    Args:
        encoder: the encoder to train.
        objective: maps vectors to the terms of the loss.
        precision: precision of the forward pass.
        chunk_size: texts encoded at once with gradient caching; None encodes the whole batch at once.
        sources: constants that the objective reads, next to the vectors.
    """

    def __init__(
        self,
        encoder: Model,
        objective: Objective,
        precision: torch.dtype,
        chunk_size: int | None = None,
        sources: BatchSources = BatchSources(),
    ):
        self.model: Model = encoder
        self.objective, self.precision, self.chunk_size = objective, precision, chunk_size
        self.sources = sources

    def backward(self, groups: list[Group], scale: Callable[[Tensor], Tensor], step: int = 0) -> Terms:
        """Add the gradients of one batch; return the terms of its loss, and diagnostics."""
        device = self.model.device
        chunks, order = self._chunks(groups)
        mask, constants = allowed(groups).to(device), self._constants(groups)
        diagnostics: Terms = {}

        def loss(vectors: Tensor) -> tuple[Tensor, Terms]:
            vectors = vectors[order]
            queries, documents = vectors[: len(groups)], vectors[len(groups) :]
            if self.sources.queries_only:
                documents = constants["teacher_documents"]
            documents = documents.view(len(groups), len(groups[0].docids), -1)
            batch = Vectors(queries, documents, allowed=mask, **constants, step=step, recorded=diagnostics)
            batch.record(**batch.similarities())
            if self.sources.weight is not None:
                batch = replace(batch, scorer_weight=self.sources.weight(step, groups[0].noise).to(device))
                batch.record(scorer_weight=torch.as_tensor(batch.scorer_weight))
            terms = self.objective(batch)
            return scale(torch.stack(list(terms.values())).sum()), terms

        def encode(chunk: Chunk) -> Tensor:
            with self._autocast():
                vectors: Tensor = chunk[0](chunk[1].to(device), chunk[2].to(device))
            return vectors.float()

        cached = self.chunk_size is not None
        # One autocast context for all chunks casts the weights once. With caching, each chunk needs its own context:
        # casts of the pass without a graph must not be reused.
        with nullcontext() if cached else self._autocast():
            terms = backward(encode, chunks, loss, cached=cached)
        return {name: value.detach() for name, value in {**terms, **diagnostics}.items()}

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.model.device.type, self.precision, enabled=self.precision != torch.float32)

    def _constants(self, groups: list[Group]) -> dict[str, Any]:
        """Return the other fields of `Vectors`."""
        sources = self.sources
        found = {}
        if sources.lexical is not None:
            lexical = groups[-1:] + groups[:-1] if sources.lexical_of_others else groups
            documents = sources.lexical.documents([docid for group in lexical for docid in group.docids])
            found["lexical_queries"] = sources.lexical.queries([group.query for group in lexical])
            found["lexical_documents"] = documents.reshape(len(groups), -1, documents.shape[1])
        if sources.teacher is not None:
            found["teacher_queries"] = sources.teacher.queries(groups)
            found["teacher_documents"] = sources.teacher.documents(groups)
        if sources.scorer is not None:
            docids = [docid for group in groups for docid in group.docids]
            found["scorer"] = sources.scorer.scores([group.query for group in groups], docids)
        else:
            found["scorer"] = np.array([group.lexical for group in groups], np.float32)
        return {name: torch.from_numpy(values).to(self.model.device) for name, values in found.items()}

    def _chunks(self, groups: list[Group]) -> tuple[list[Chunk], Tensor]:
        """Return chunks of texts of similar length, and the position of each text (queries, then documents) in them."""
        encoder, contract = self.model, self.model.contract
        queries, _ = encoder.query_tower.tokenize([contract.query(group.query) for group in groups], "query")
        if self.sources.queries_only:
            chunks, rows = self._batched(encoder.query_tower, queries)
            return chunks, torch.argsort(rows)
        texts = [
            contract.document(title, text)
            for group in groups
            for title, text in zip(group.titles, group.texts, strict=True)
        ]
        documents, _ = encoder.document_tower.tokenize(texts, "document")
        if self.sources.masking is not None:
            documents = self._masked(groups, queries, documents)
        chunks, rows = self._batched(encoder.query_tower, queries)
        more, more_rows = self._batched(encoder.document_tower, documents)
        return chunks + more, torch.argsort(torch.cat([rows, len(queries) + more_rows]))

    def _masked(self, groups: list[Group], queries: list[list[int]], documents: list[list[int]]) -> list[list[int]]:
        """Return the documents with masked matches of their queries."""
        masking = self.sources.masking
        assert masking is not None
        width = len(documents) // len(groups)
        return [
            masking(document, queries[place // width], [groups[place // width].noise, place % width])
            for place, document in enumerate(documents)
        ]

    def _batched(self, tower: Tower | SparseTower, tokens: list[list[int]]) -> tuple[list[Chunk], Tensor]:
        share = -(-len(tokens) // parallel.size())  # at least one chunk per process
        most = min(share, self.chunk_size or share)
        parts = list(batches_by_length([len(ids) for ids in tokens], _TOKENS_AT_ONCE, most))
        chunks = []
        for rows in parts:
            padded = tower.tokenizer.pad({"input_ids": [tokens[row] for row in rows]}, return_tensors="pt")
            chunks.append((tower, padded["input_ids"], padded["attention_mask"]))
        return chunks, torch.from_numpy(np.concatenate(parts))
