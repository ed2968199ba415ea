"""The learner of all training with queries and documents: computes an encoder's gradients on batches.

The start model may keep its first layers, or get an adapter. Batches may have hard negatives that the model in training
ranks first, alone or in the sum with a frozen scorer.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybrid_cli import console, draws, storage
from hybrid_cli.encoders.adapters import BaseModel, adapter_of, add_adapter, cast_base
from hybrid_cli.encoders.contract import Encoder, read_contract
from hybrid_cli.encoders.models import autocast, resolve
from hybrid_cli.encoders.options import DEVICE, LoraOptions
from hybrid_cli.encoders.sparse import SparseEncoder
from hybrid_cli.encoders.sparse_towers import SparseTower
from hybrid_cli.encoders.transformer import Tower, TransformerEncoder
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.storage import disk
from hybrid_cli.training import parallel
from hybrid_cli.training.batches import Group, prefetch
from hybrid_cli.training.gradients import Share, backward
from hybrid_cli.training.losses import NO_SCORER, LossInputs, Objective, Terms
from hybrid_cli.training.mining import fold_columns
from hybrid_cli.training.options import WHOLE, Optimization, Start
from hybrid_cli.training.roc import Bm25Vectors, MatchMasking, VectorsOfOthers
from hybrid_cli.training.teachers import BLOCK_TEXTS, FrozenEncoder, Scorer, ScorerWeight, TeacherScores

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

    def batches(
        self, groups: Callable[[int], Iterator[list[Group]]], negatives: StudentNegatives | None = None
    ) -> Callable[[int], Iterator[Batch]]:
        """Return a function from n to the batches from the n-th on.

        Args:
            groups: returns the queries of the batches, from the n-th on.
            negatives: adds negatives that the model ranks first; without them, batches are prepared in another thread.
        """
        if negatives is None:
            return lambda done: prefetch(map(self.prepare, groups(done)))
        return lambda done: map(self.prepare, negatives.added(groups(done), done))

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
            vectors: Tensor = chunk[0](chunk[1].to(device), chunk[2].to(device))
            return vectors.float()

        cached = self.chunk_size is not None
        with nullcontext() if cached else self._autocast():
            terms = backward(encode, prepared.share, loss, scale, cached=cached, context=self._autocast)
        return terms | diagnostics

    def _autocast(self) -> torch.autocast:
        return autocast(self.model.device, self.precision)

    def _constants(self, groups: list[Group]) -> dict[str, Any]:
        """Return the other fields of `LossInputs`."""
        sources = self.sources
        constants: dict[str, np.ndarray] = {}
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
        for name in ("scorer", "teacher_scores"):
            if np.isnan(constants.get(name, 0.0)).any():  # the examples lack some
                del constants[name]
        tensors = {name: torch.from_numpy(values).to(self.model.device) for name, values in constants.items()}
        return {"scorer": NO_SCORER, **tensors}

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


# --------------------------------------------------------------------------------- negatives of the model in training


BLOCK_QUERIES = 4096  # whose scores of a block of documents are in memory


@dataclass(frozen=True)
class Fusion:
    """The sum whose top hits are negatives: `s / temperature + weight * s_scorer`."""

    temperature: float
    scorer: Scorer
    weight: ScorerWeight


@dataclass(frozen=True)
class StudentNegatives:
    """Adds the student's top-ranked documents to the queries of a batch, as hard negatives.

    They come from a pool of documents that the student encodes again at every checkpoint, so that a resumed run sees
    the same documents.

    Attributes:
        encoder: the student.
        texts: docid, title, text of the documents that the pool is drawn from.
        plan: settings of the training.
        precision: precision of the student's forward pass.
        count: negatives per query.
        pool: documents of the pool.
        excluded: maps a query to the documents that are never added; those that it has are not added either.
        fusion: the sum that ranks; None ranks by the student alone.
    """

    encoder: TransformerEncoder
    texts: pl.DataFrame
    plan: Optimization
    precision: torch.dtype
    count: int
    pool: int = 2048
    excluded: Callable[[Group], Set[str]] = lambda group: frozenset()
    fusion: Fusion | None = None

    def __post_init__(self) -> None:
        documents = min(self.pool, len(self.texts))
        if self.count >= documents:
            problem = f"{self.count:,} negatives per query from a pool of {documents:,} documents; pass a lower number"
            console.warn(problem, code="small-pool", count=self.count, documents=documents)

    def added(self, batches: Iterator[list[Group]], done: int) -> Iterator[list[Group]]:
        """Yield the batches from the `done`-th on, with `count` more documents per query.

        Raises:
            InputError: all documents of the pool are excluded for a query.
        """
        documents, vectors = self.texts.clear(), np.empty((0, 0), np.float32)
        every = self.plan.checkpoint_steps * self.plan.accumulate
        for number, batch in enumerate(batches, done):
            if number % every == 0 or number == done:
                rows = draws.sample(len(self.texts), self.pool, draws.rng(self.plan.seed, number, 1))
                documents = self.texts[rows.tolist()]
                vectors = self._encoded(documents["title"].to_list(), documents["text"].to_list())
            queries = [group.query for group in batch]
            scores = self._encoded(None, queries) @ vectors.T
            scores = self._fused(scores, queries, documents["docid"], number // self.plan.accumulate, batch[0].noise)
            yield [self._extended(group, row, documents) for group, row in zip(batch, scores, strict=True)]

    def _extended(self, group: Group, scores: np.ndarray, documents: pl.DataFrame) -> Group:
        known = self._known(group, documents["docid"])
        ranked = np.argsort(np.where(known, np.inf, -scores), kind="stable")[: np.count_nonzero(~known)]
        return self._with(group, documents[np.resize(ranked[: self.count], self.count).tolist()])  # repeated if too few

    def _fused(self, scores: np.ndarray, queries: list[str], docids: pl.Series, step: int, noise: int) -> np.ndarray:
        """Return the scores [n, m] of the sum, if it ranks."""
        if self.fusion is None:
            return scores
        weight = self.fusion.weight(step, noise).item()
        fused: np.ndarray = scores / self.fusion.temperature + weight * self.fusion.scorer.scores(
            queries, docids.to_list()
        )
        return fused

    def _known(self, group: Group, docids: pl.Series) -> np.ndarray:
        """Return whether each document is one that the query has, or that is excluded."""
        known = docids.is_in([*group.docids, *self.excluded(group)]).to_numpy()
        if known.all():
            raise InputError(f"query {group.query!r}: no document is a negative; mine more", code="no-negatives")
        return known

    def _with(self, group: Group, best: pl.DataFrame) -> Group:
        """Return the group with more documents."""
        return replace(
            group,
            docids=group.docids + best["docid"].to_list(),
            titles=group.titles + best["title"].to_list(),
            texts=group.texts + best["text"].to_list(),
            lexical=[*group.lexical, *[None] * len(best)],
        )

    def _encoded(self, titles: list[str] | None, texts: list[str]) -> np.ndarray:
        """Return the student's current vectors of documents or, without titles, of queries."""
        self.encoder.eval()
        with autocast(self.encoder.device, self.precision):
            vectors = (
                self.encoder.encode_queries(texts) if titles is None else self.encoder.encode_documents(titles, texts)
            )
        self.encoder.train()
        return vectors


@dataclass(frozen=True, kw_only=True)
class RefreshedNegatives(StudentNegatives):
    """Adds documents drawn from the student's top hits in a whole corpus, which it searches again after some steps.

    The hits of each search are stored, so that a resumed run draws from the same ones.

    Attributes:
        every: optimizer steps between two searches.
        queries: all queries.
        folder: folder of the hits, one file per search.
        depth: hits from which the documents are drawn.
        spare: further hits, in place of excluded documents.
    """

    every: int
    queries: Sequence[str]
    folder: Path
    depth: int
    spare: int

    def added(self, batches: Iterator[list[Group]], done: int) -> Iterator[list[Group]]:
        """Yield the batches from the `done`-th on, with `count` more documents per query; see `StudentNegatives`."""
        hits, row_of = np.empty((0, 0), np.int32), {query: row for row, query in enumerate(self.queries)}
        every = self.every * self.plan.accumulate
        for number, batch in enumerate(batches, done):
            if number % every == 0 or number == done:
                hits = self._stored(number // every * self.every)
            yield [self._drawn(group, hits[row_of[group.query]]) for group in batch]

    def _drawn(self, group: Group, hits: np.ndarray) -> Group:
        allowed = hits[~self._known(group, self.texts["docid"].gather(hits))][: self.depth]
        drawn = draws.rng(group.noise, 2).permutation(allowed)
        return self._with(group, self.texts[np.resize(drawn, self.count).tolist()])

    def _stored(self, step: int) -> np.ndarray:
        """Return the rows of the hits [Q, depth + spare] of the search at a step, best first."""
        file = self.folder / f"{step:08}.npy"
        for first in parallel.first_alone():
            if first and not file.exists():
                self.folder.mkdir(exist_ok=True)
                with storage.replacing(file) as scratch, disk.create(scratch) as opened:
                    np.save(opened, self._search(step))
        hits: np.ndarray = np.load(file, mmap_mode="r")
        return hits

    def _search(self, step: int) -> np.ndarray:
        """Return the rows of the best documents [Q, depth + spare], from one block of documents after the other."""
        queries, device = [*self.queries], self.encoder.device
        vectors, most = self._encoded(None, queries), min(self.depth + self.spare, len(self.texts))
        scores, rows = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int32)
        first = 0
        with console.progress("search the corpus for negatives", len(self.texts), "documents") as advance:
            for part in self.texts.iter_slices(BLOCK_TEXTS):
                documents = torch.from_numpy(self._encoded(part["title"].to_list(), part["text"].to_list())).to(device)
                own, best = torch.arange(first, first + len(part), dtype=torch.int32), []
                for begin in range(0, len(queries), BLOCK_QUERIES):
                    some = slice(begin, begin + BLOCK_QUERIES)
                    block = (torch.from_numpy(vectors[some]).to(device) @ documents.T).cpu().numpy()
                    block = self._fused(block, queries[some], part["docid"], step, self.plan.seed)
                    best.append(_best((scores[some], rows[some]), torch.from_numpy(block), own, most))
                scores, rows = (torch.cat(parts) for parts in zip(*best, strict=True))
                first += len(part)
                advance(len(part))
        hits: np.ndarray = rows.numpy()
        return hits


def _best(known: tuple[Tensor, Tensor], scores: Tensor, rows: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return scores and rows [n, most] of the best of known documents and of a block.

    Args:
        known: scores and rows [n, k].
        scores: [n, m].
        rows: [m].
        most: documents that are kept.
    """
    both = torch.cat([known[0], scores], 1)
    kept = both.topk(min(most, both.shape[1]))
    return kept.values, torch.cat([known[1], rows.expand(len(scores), -1)], 1).gather(1, kept.indices)


def relevant(texts: pl.DataFrame, positives: pl.Series) -> Callable[[Group], Set[str]]:
    """Return a function from a query to its positives and the documents with the text of one.

    Args:
        texts: docid, title, text of all documents.
        positives: ids of the positives of all queries.
    """
    hashes = texts.select("docid", fold_columns("title", "text").hash().alias("hash"))
    alike = hashes.join(hashes.filter(pl.col("docid").is_in(positives.implode())), on="hash", suffix="_positive")
    same = dict(alike.group_by("docid_positive").agg("docid").iter_rows())
    return lambda group: {other for docid in group.positives for other in same.get(docid, [docid])}


# ------------------------------------------------------------------------------------------------------- start models


def load_start(
    model: str, device: str = DEVICE, start: Start = WHOLE, *, any_dim: bool = False, **changes: Any
) -> TransformerEncoder:
    """Load the start model with a changed contract; see `prepare_start`.

    Args:
        model: `minilm`, a folder, or a Hugging Face id.
        device: device of the weights.
        start: layers to keep, and how they are trained.
        any_dim: allow a new projection to more values than the model has.
        changes: fields of the contract to change.

    Raises:
        InputError: the model cannot be loaded, has fewer layers, or has fewer dimensions.
    """
    own = read_contract(resolve(model))
    encoder = TransformerEncoder.load(model, device=device, **changes)
    dim, limit = encoder.contract.dim, encoder.query_tower.unprojected_dim
    if dim not in (None, own.dim) and dim > limit and not any_dim:
        raise option_error("dim", dim, f"{model} has {limit} dimensions", limit=limit)
    if _lora(start) and encoder.contract.markers != own.markers:
        problem = "a frozen transformer has no vectors for new markers; omit one of both"
        raise option_error("markers", encoder.contract.markers, problem, code="conflicting-options")
    towers = {"document": encoder.document_tower, "query": encoder.query_tower}
    for side, tower in towers.items() if encoder.document_tower is not encoder.query_tower else [*towers.items()][:1]:
        prepare_start(tower.backbone, start, model, side)
    return encoder


def prepare_start(backbone: PreTrainedModel, start: Start, model: str = "", side: str = "document") -> None:
    """Keep the first layers of a transformer, and prepare it for training; add an adapter if `start` asks for one.

    Args:
        backbone: transformer of the start model.
        start: layers to keep, and how they are trained.
        model: name of the start model.
        side: its tower; empty for a reranker.

    Raises:
        InputError: it has fewer layers, an adapter, no modules to adapt, or cannot compute states again.
    """
    if (lora := _lora(start)) is not None:
        add_adapter(backbone, BaseModel.of(model, side), lora)
    elif adapter_of(backbone):
        problem = "has an adapter; merge it first: hybrid convert-checkpoint MODEL OUT --merge"
        raise option_error("model", model, problem, code="model-adapter")
    keep_first_layers(backbone, start.layers)
    if start.gradient_checkpointing:
        if not getattr(backbone, "supports_gradient_checkpointing", False):
            problem = f"{type(backbone).__name__} does not support it; pass --chunk-size for less memory"
            raise option_error("gradient_checkpointing", None, problem, code="architecture-unsupported")
        with warnings.catch_warnings(action="ignore"):  # of the new name in transformers 6
            backbone.gradient_checkpointing_enable({"use_reentrant": False})


def _lora(start: Start) -> LoraOptions | None:
    return start if isinstance(start, LoraOptions) and start.lora_r is not None else None


def check_layers(layers: int, count: int) -> None:
    """Refuse more layers than the `count` of the start model."""
    if layers > count:
        raise option_error("layers", layers, f"the model has {count} layers", limit=count)


def keep_first_layers(backbone: PreTrainedModel, layers: int | None) -> None:
    """Remove all transformer layers after the first `layers`; None keeps all.

    Raises:
        InputError: the model has fewer layers, or no list of layers.
    """
    if layers is None:
        return
    count = getattr(backbone.config, "num_hidden_layers", 0)
    check_layers(layers, count)
    stacks = [
        (parent, name, child)
        for parent in backbone.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == count
    ]
    if len(stacks) != 1:
        raise option_error(
            "layers", None, f"{type(backbone).__name__} has no single stack of layers", code="architecture-unsupported"
        )
    parent, name, stack = stacks[0]
    setattr(parent, name, stack[:layers])
    backbone.config.num_hidden_layers = layers


def allowed_mask(groups: list[Group]) -> Tensor:
    """Return a mask [B, B * G]: False for another positive of the query in the batch (a false in-batch negative)."""
    columns = [docid for group in groups for docid in group.docids]
    mask = torch.tensor([[docid not in group.positives for docid in columns] for group in groups])
    width = len(columns) // len(groups)
    own = torch.arange(len(groups))
    mask[own, own * width] = True
    return mask
