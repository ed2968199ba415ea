"""Validation of `train-dense` and `distill-lite`: retrieval of the dev queries from a pool of hard documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Kind, disk, layout
from hybrid_cli.collections import collection as collections
from hybrid_cli.encoders.contract import Encoder
from hybrid_cli.indexes.lexical import open_lexical
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.settings import DistillLite, TrainDense, TrainSparse
from hybrid_cli.training import parallel
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.loop import Validator
from hybrid_cli.training.losses import squared_cosine
from hybrid_cli.training.roc import Bm25Vectors, SignProjection
from hybrid_cli.training.teachers import BLOCK_TEXTS, Bm25Scorer, stored_vectors

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

POOL = 1000  # hits per validation, next to the judged documents
DEPTH = 100  # ranks of BM25 and of the model that can enter the pool
SMALL_CORPUS = 20_000  # documents that are encoded for any number of steps
WEIGHTS = (0.0, *(2.0**power for power in range(-4, 5)))  # of BM25 in the sum, both sides with unit deviation
CORPUS, HITS, EXAMPLES = "corpus", "hits", "examples"
_ORIGINS = {
    CORPUS: "all {:,} documents of the corpus",
    HITS: (
        "{:,} documents, the judged ones and the top hits of BM25; hits of the model outside them and full retrieval "
        "at the end are missing (the corpus is too large to encode)"
    ),
    EXAMPLES: (
        "the {:,} documents of the dev examples (their corpus was moved or changed, or is large and has no index)"
    ),
}
_COLUMNS = ("docid", "title", "text")


@dataclass(frozen=True)
class DevSet:
    """Dev queries and the documents that they search.

    Attributes:
        queries: qid, text.
        documents: docid, title, text.
        relevant: rows of the judged documents of each query.
        origin: `corpus`: all documents of the corpus; `hits`: the judged documents and the top hits of BM25;
            `examples`: the judged documents and the negatives of the dev examples.
    """

    queries: pl.DataFrame
    documents: pl.DataFrame
    relevant: Sequence[Rows]
    origin: str

    @classmethod
    def of(cls, examples: Path, queries: int, index: LexicalIndex | None, limit: int, threads: int | None) -> DevSet:
        """Return the dev queries with the corpus of their examples, if it still exists unchanged.

        Args:
            examples: dev examples.
            queries: number of queries.
            index: lexical index of the corpus.
            limit: largest number of documents; of a larger corpus, BM25's top hits are taken, rank by rank.
            threads: CPU threads.
        """
        rows = Examples(examples).dev_rows(queries)
        asked = rows.select("qid", text="query").unique("qid", keep="first", maintain_order=True)
        corpus = _unchanged(examples, "corpus")
        if corpus is not None and collections.document_count(corpus) <= limit:
            documents, origin = collections.scan(corpus).select(_COLUMNS).collect(), CORPUS
        elif corpus is not None and index is not None:
            hits = index.search(asked, DEPTH, threads).sort("rank", maintain_order=True)["docid"]
            wanted = pl.concat([rows["docid"], hits.unique(maintain_order=True).head(limit)])
            documents, origin = collections.texts(corpus, wanted), HITS
        else:
            negatives = rows.select(pl.col("negatives").explode(empty_as_null=False)).unnest("negatives")
            both = pl.concat([rows.select(_COLUMNS), negatives.select(_COLUMNS)]).drop_nulls("docid")
            documents, origin = both.unique("docid", keep="first", maintain_order=True), EXAMPLES
        place = dict(zip(documents["docid"], range(len(documents)), strict=True))
        judged = dict(rows.group_by("qid").agg("docid").iter_rows())
        relevant = [np.unique([place[docid] for docid in judged[qid]]) for qid in asked["qid"]]
        return cls(asked, documents, relevant, origin)


class DevPool:
    """Measures an encoder on dev queries: at each validation over a pool of the hardest documents, at the end over all.

    The pool of a validation contains the judged documents of all queries and at most `POOL` others: rank by rank, the
    top hits of BM25 and of the current query vectors over all document vectors of an earlier step. These are at first
    those of the start model. A validation encodes all documents again if the training has encoded at least as many
    since the last encoding. All queries search the whole pool (our choices).

    Args:
        dev: queries and documents.
        encoder: encoder to measure; at construction, the start model.
        bm25: scores of the documents, for the sum; with vectors, also for `cos2`.
        work: folder of the unfinished artifact, where the vectors are stored for resuming.
        step_documents: documents that a training step encodes; 0 if the training does not change their vectors.
    """

    def __init__(self, dev: DevSet, encoder: Encoder, bm25: Bm25Scorer | None, work: Path, step_documents: int):
        self.dev, self.encoder, self.bm25 = dev, encoder, bm25
        self.texts: list[str] = dev.queries["text"].to_list()
        self._work, self._step_documents = work, step_documents
        self._step = 0  # of the last encoding
        self._vectors: Floats | None = None
        if dev.origin != EXAMPLES and len(dev.documents) > POOL:
            with console.progress("encode with the start model", len(dev.documents), "documents") as advance:
                self._vectors, _ = stored_vectors(work, "start", [dev.documents], self._encoded, advance)

    def validate(self, step: int) -> dict[str, float]:
        """Return the values of `measure` over the pool of the current model, with the prefix `dev_`.

        Args:
            step: number of completed training steps.
        """
        trained = (step - self._step) * self._step_documents
        if self._vectors is not None and trained >= len(self.dev.documents):
            self._vectors, self._step = self._all("encode for the pool"), step
        queries = self.encoder.encode_queries(self.texts)
        rows = self.rows(queries)
        known = self._known(step)
        found = self.measure(queries, self._encoded(self.dev.documents[rows]) if known is None else known[rows], rows)
        return {f"dev_{name}": value for name, value in found.items()}

    def full(self, step: int) -> dict[str, float]:
        """Return the values of `measure` over all documents, with the prefix `full_`.

        Args:
            step: number of training steps of the current model.
        """
        known = self._known(step)
        vectors = self._all("encode for full retrieval") if known is None else known
        found = self.measure(self.encoder.encode_queries(self.texts), vectors, np.arange(len(vectors)))
        return {f"full_{name}": value for name, value in found.items()}

    def save(self, checkpoint: Path) -> None:
        """Add the vectors of the last encoding to a new checkpoint; those of the start model are stored apart.

        A checkpoint thus contains the vectors that the validations after it use, whenever a process was killed.
        """
        if self._vectors is None or not self._step:
            return
        file = checkpoint / layout.pool_vectors(self._step)
        written = self._work / layout.CHECKPOINT / file.name
        if written.exists():
            artifacts.hard_link(written, file)
            return
        with disk.create(file) as opened:
            np.save(opened, self._vectors)

    def load(self, checkpoint: Path) -> None:
        """Take the vectors of a checkpoint in place of those of the start model."""
        for file in checkpoint.glob(layout.POOL_VECTORS):
            if self._vectors is not None:
                self._vectors, self._step = np.load(file), int(file.stem.rpartition("-")[2])

    def rows(self, queries: Floats) -> Rows:
        """Return the sorted rows of the pool for query vectors [n, dim]."""
        if self._vectors is None:
            return np.arange(len(self.dev.documents))
        lists = [_best(queries @ self._searched(self._vectors).T), *([] if self.bm25 is None else [self._lexical])]
        by_rank = np.stack(lists, -1).swapaxes(0, 1).ravel()
        by_rank = by_rank[by_rank >= 0]
        _, first = np.unique(by_rank, return_index=True)
        return np.unique(np.concatenate([by_rank[np.sort(first)][:POOL], *self.dev.relevant]))

    @cached_property
    def _lexical(self) -> Rows:
        """Rows [n, DEPTH] of BM25's top hits; -1 after the last hit."""
        assert self.bm25 is not None
        scores = self.bm25.scores(self.texts, self.dev.documents["docid"].to_list())
        best = _best(scores)
        return np.where(np.take_along_axis(scores, best, 1) > 0, best, -1)

    def measure(self, queries: Floats, documents: Floats, rows: Rows) -> dict[str, float]:
        """Return measures of vectors over some documents.

        Args:
            queries: vectors [n, dim] of all queries.
            documents: vectors [m, dim].
            rows: rows [m] of these documents, sorted; with all judged ones.

        Returns:
            `MRR@10`: dense scores. `hybrid_MRR@10`: the best weighted sum with BM25, of `WEIGHTS` relative to the ratio
            of the standard deviations, so that the scale of an encoder's scores has no effect. `RoC@10` (RoC, section
            3.1), omitted if no query has a relevant document in its top ten. `cos2`: mean squared cosine between the
            encoder's and BM25's vectors, averaged over queries and documents.
        """
        relevant = [np.searchsorted(rows, own) for own in self.dev.relevant]
        docids = self.dev.documents["docid"].gather(rows).to_list()
        searched = self._searched(documents)
        scores = queries @ searched.T
        dense = reciprocal_ranks(scores, relevant)
        values = {"MRR@10": float(dense.mean())}
        if self.bm25 is not None:
            lexical = self.bm25.scores(self.texts, docids)
            unit = float(scores.std() / (lexical.std() or 1.0))
            sums = [reciprocal_ranks(scores + weight * unit * lexical, relevant) for weight in WEIGHTS]
            values["hybrid_MRR@10"] = max(float(ranks.mean()) for ranks in sums)
            found = dense > 0
            alone = found & (reciprocal_ranks(lexical, relevant) == 0)
            values |= {"RoC@10": float(alone.sum() / found.sum())} if found.any() else {}
        if isinstance(self.bm25, Bm25Vectors):
            sides = ((queries, self.bm25.queries(self.texts)), (searched, self.bm25.documents(docids)))
            cosines = [squared_cosine(torch.from_numpy(ours), torch.from_numpy(theirs)) for ours, theirs in sides]
            values["cos2"] = float(np.mean([each.mean().item() for each in cosines]))
        return values

    def _searched(self, documents: Floats) -> Floats:
        """Return the document vectors that a search uses: binary codes, or the vectors themselves."""
        binary = self.encoder.describe().get("binary")
        return np.where(documents >= 0, np.float32(1), np.float32(-1)) if binary else documents

    def _known(self, step: int) -> Floats | None:
        """Return the vectors of all documents by the model of a step, if they are those of the last encoding."""
        return self._vectors if step == self._step or not self._step_documents else None

    def _all(self, label: str) -> Floats:
        """Encode all documents with the current model."""
        parts = []
        with console.progress(label, len(self.dev.documents), "documents") as advance:
            for part in self.dev.documents.iter_slices(BLOCK_TEXTS):
                parts.append(self._encoded(part))
                advance(len(part))
        return np.concatenate(parts)

    def _encoded(self, documents: pl.DataFrame) -> Floats:
        return self.encoder.encode_documents(documents["title"].to_list(), documents["text"].to_list())


def validator(
    settings: TrainDense | DistillLite | TrainSparse,
    encoder: Encoder,
    work: Path,
    steps: int,
    index: Path | None = None,
    projection: SignProjection | None = None,
) -> Validator | None:
    """Return the validation on mined examples, if there are any.

    Checkpoints of all losses are chosen by `dev_hybrid_MRR@10`, the use of the encoder in a hybrid, or by `dev_MRR@10`
    if no lexical index is known. The corpus is encoded, before the training and after it, if it is small, or has at
    most half as many documents as the training encodes, so that the forward passes cost at most about a third of the
    training (our choice). `DevPool` encodes it again during the training.

    Args:
        settings: dev examples and options.
        encoder: encoder to measure, before its training.
        work: folder of the unfinished artifact.
        steps: number of optimizer steps.
        index: lexical index; None uses the one that the examples were mined with, if it still exists.
        projection: projection of BM25's vectors, for `dev_cos2`.
    """
    if settings.dev is None or parallel.rank():
        return None
    path = index or _unchanged(settings.dev, "index")
    lexical = open_lexical(path) if path else None
    texts = 1 + max(1, settings.negatives)  # of a query; `--queries-only` draws no negatives, but encodes the query
    limit = max(SMALL_CORPUS, steps * settings.batch_size * settings.accumulate * texts // 2)
    limit = POOL if isinstance(settings, TrainSparse) else limit  # weights of a whole corpus do not fit as vectors
    dev = DevSet.of(settings.dev, settings.dev_queries, lexical, limit, settings.threads)
    bm25 = _bm25(lexical, projection, dev.documents["docid"])
    console.note(
        f"validation: {console.counted(query=len(dev.queries))}, {_ORIGINS[dev.origin].format(len(dev.documents))}"
    )
    fixed = isinstance(settings, DistillLite) and settings.queries_only  # the documents' vectors are the teacher's
    step_documents = 0 if fixed else settings.batch_size * settings.accumulate * (1 + settings.negatives)
    pool = DevPool(dev, encoder, bm25, work, step_documents)
    criterion = "dev_MRR@10" if bm25 is None else "dev_hybrid_MRR@10"
    return Validator(
        pool.validate,
        settings.eval_steps,
        criterion if settings.keep == "best" else None,
        pool.full if dev.origin == CORPUS else None,
        {"dev_documents": dev.origin},
        pool,
    )


def _bm25(index: LexicalIndex | None, projection: SignProjection | None, docids: pl.Series) -> Bm25Scorer | None:
    if index is None:
        return None
    return Bm25Scorer(index, docids) if projection is None else Bm25Vectors(index, projection, docids)


def _unchanged(examples: Path, role: str) -> Path | None:
    """Return an input of the mining of examples, if it still exists with the same content."""
    manifest = artifacts.read_manifest(examples, Kind.EXAMPLES)
    path = manifest.input_path(role)
    if path is None or not path.exists():
        return None
    return path if artifacts.fingerprint(path) == manifest.inputs[role]["fingerprint"] else None


def _best(scores: Floats) -> Rows:
    """Return the columns [n, DEPTH] of the highest scores [n, m], best first; ties by column."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH]


def reciprocal_ranks(scores: Floats, relevant: Sequence[Rows], cut: int = 10) -> npt.NDArray[np.float64]:
    """Return 1 / rank [n] of the best relevant document, with ties counted against it; 0 below rank `cut`.

    Args:
        scores: scores [n, m].
        relevant: columns of the relevant documents of each query.
        cut: lowest rank that counts.
    """
    ranks = []
    for row, own in zip(scores, relevant, strict=True):
        best = row[own].max()
        ranks.append(1 + np.count_nonzero(row >= best) - np.count_nonzero(row[own] >= best))
    return np.array([1 / rank if rank <= cut else 0.0 for rank in ranks])
