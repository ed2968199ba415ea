"""The learner of all training with queries and documents: computes an encoder's gradients on batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from hybrid_cli.encoders.adapters import cast_base
from hybrid_cli.encoders.contract import Encoder
from hybrid_cli.encoders.models import autocast
from hybrid_cli.encoders.sparse import SparseEncoder
from hybrid_cli.encoders.sparse_towers import SparseTower
from hybrid_cli.encoders.transformer import Tower, TransformerEncoder
from hybrid_cli.training import parallel
from hybrid_cli.training.batches import Group, allowed_mask
from hybrid_cli.training.gradients import Share, backward
from hybrid_cli.training.losses import LossInputs, Objective, Terms
from hybrid_cli.training.roc import Bm25Vectors, MatchMasking, VectorsOfOthers
from hybrid_cli.training.teachers import FrozenEncoder, Scorer, ScorerWeight, TeacherScores

Chunk = tuple[Tower | SparseTower, Tensor, Tensor]
Model = TypeVar("Model", TransformerEncoder, SparseEncoder)


@dataclass(frozen=True)
class Batch:
    """A batch of queries with their documents, and the tokens that this process encodes: queries, then documents."""

    groups: list[Group]
    share: Share[Chunk]


@dataclass(frozen=True)
class BatchSources:
    """Sources of the constants of a batch that an objective reads.

    Attributes:
        lexical: BM25's vectors, for `orthogonality`.
        masking: hides matches of the query in documents.
        scorer: scores every query and document of the batch; None leaves the lexical scores of the examples.
        weight: weight of the scorer in a residual loss.
        teacher: vectors of a frozen encoder.
        teacher_scores: scores [B, N] of a teacher for the positive and the mined negatives of each query.
        queries_only: encode only queries; documents have the teacher's vectors.
        base: frozen encoder whose vectors are added to those of the encoder.
    """

    lexical: Bm25Vectors | VectorsOfOthers | None = None
    masking: MatchMasking | None = None
    scorer: Scorer | None = None
    weight: ScorerWeight | None = None
    teacher: FrozenEncoder | None = None
    teacher_scores: TeacherScores | None = None
    queries_only: bool = False
    base: Encoder | None = None


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
        cast_base(encoder, precision)
        if sources.weight is not None:  # optimized, checkpointed and restored with the encoder
            encoder.add_module("scorer_weight", sources.weight)
        # Copies, because `encode_queries` sets the maximum length of the encoder's tokenizers in another thread.
        towers = {"query": encoder.query_tower, "document": encoder.document_tower}
        self._sides: dict[str, tuple[Tower | SparseTower, Any]]
        self._sides = {side: (tower, copy.deepcopy(tower.tokenizer)) for side, tower in towers.items()}

    def prepare(self, groups: list[Group]) -> Batch:
        """Tokenize the share of a batch that this process encodes; may run in another thread than `backward`."""
        mine, contract = parallel.share(groups), self.model.contract
        queries = self._tokens([contract.query(group.query) for group in mine], "query")
        share = self._share(queries, "query")
        if self.sources.queries_only:
            return Batch(groups, share)
        texts = [
            contract.document(title, text)
            for group in mine
            for title, text in zip(group.titles, group.texts, strict=True)
        ]
        documents = self._tokens(texts, "document")
        if self.sources.masking is not None:
            documents = self._masked(mine, queries, documents)
        return Batch(groups, share + self._share(documents, "document"))

    def _tokens(self, texts: list[str], side: str) -> list[list[int]]:
        tower, tokenizer = self._sides[side]
        return tower.tokenize(texts, side, tokenizer)[0] if texts else []

    def _share(self, tokens: list[list[int]], side: str) -> Share[Chunk]:
        tower: Tower | SparseTower = self._sides[side][0]

        def chunk(rows: np.ndarray) -> Chunk:
            return (tower, *tower.batch([tokens[row] for row in rows], side))

        return Share.of([*map(len, tokens)], chunk, self.chunk_size)

    def backward(self, prepared: Batch, scale: Callable[[Tensor], Tensor], step: int = 0) -> Terms:
        """Add the gradients of one batch; return the terms of its loss, and diagnostics."""
        device, groups = self.model.device, prepared.groups
        mask, constants = allowed_mask(groups).to(device), self._constants(groups)
        diagnostics: Terms = {}

        def loss(vectors: Sequence[Tensor]) -> Terms:
            counts = parallel.shares(len(groups))
            queries = torch.cat([mine[:count] for mine, count in zip(vectors, counts, strict=True)])
            if self.sources.queries_only:
                documents = constants["teacher_documents"]
            else:
                documents = torch.cat([mine[count:] for mine, count in zip(vectors, counts, strict=True)])
            documents = documents.view(len(groups), len(groups[0].docids), -1)
            if self.sources.base is not None:
                base = self._base(groups, self.sources.base)
                queries, documents = queries + base[: len(queries)], documents + base[len(queries) :].view_as(documents)
            batch = LossInputs(queries, documents, allowed=mask, **constants, step=step, recorded=diagnostics)
            batch.record(**batch.similarities())
            if self.sources.weight is not None:
                batch = replace(batch, scorer_weight=self.sources.weight(step, groups[0].noise).to(device))
                batch.record(scorer_weight=torch.as_tensor(batch.scorer_weight))
            return self.objective(batch)

        def encode(chunk: Chunk) -> Tensor:
            with self._autocast():
                vectors: Tensor = chunk[0](chunk[1].to(device), chunk[2].to(device))
            return vectors.float()

        cached = self.chunk_size is not None
        # One autocast context for all chunks casts the weights once. With caching, each chunk needs its own context:
        # casts of the pass without a graph must not be reused.
        with nullcontext() if cached else self._autocast():
            return backward(encode, prepared.share, loss, scale, cached=cached) | diagnostics

    def _autocast(self) -> torch.autocast:
        return autocast(self.model.device, self.precision)

    def _constants(self, groups: list[Group]) -> dict[str, Any]:
        """Return the other fields of `LossInputs`."""
        sources = self.sources
        constants = {}
        if sources.lexical is not None:
            documents = sources.lexical.documents([docid for group in groups for docid in group.docids])
            constants["lexical_queries"] = sources.lexical.queries([group.query for group in groups])
            constants["lexical_documents"] = documents.reshape(len(groups), -1, documents.shape[1])
        if sources.teacher is not None:
            constants["teacher_queries"] = sources.teacher.queries(groups)
            constants["teacher_documents"] = sources.teacher.documents(groups)
        if sources.teacher_scores is not None:
            constants["teacher_scores"] = sources.teacher_scores(groups)
        if sources.scorer is not None:
            docids = [docid for group in groups for docid in group.docids]
            constants["scorer"] = sources.scorer.scores([group.query for group in groups], docids)
        else:
            constants["scorer"] = np.array([group.lexical for group in groups], np.float32)
        return {name: torch.from_numpy(values).to(self.model.device) for name, values in constants.items()}

    def _base(self, groups: Sequence[Group], base: Encoder) -> Tensor:
        """Return the base vectors of the queries, then of the documents."""
        titles = [title for group in groups for title in group.titles]
        texts = [text for group in groups for text in group.texts]
        with self._autocast():
            vectors = base.encode_queries([group.query for group in groups]), base.encode_documents(titles, texts)
        return torch.from_numpy(np.concatenate(vectors)).to(self.model.device)

    def _masked(self, groups: Sequence[Group], queries: list[list[int]], documents: list[list[int]]) -> list[list[int]]:
        """Return the documents with masked matches of their queries."""
        masking = self.sources.masking
        assert masking is not None
        width = len(documents) // max(1, len(groups))
        return [
            masking(document, queries[position // width], [groups[position // width].noise, position % width])
            for position, document in enumerate(documents)
        ]
