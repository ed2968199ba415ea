"""Validation of trainings on mined examples: retrieval of the dev queries from one fixed set of documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from hybrid_cli import console
from hybrid_cli.collections import collection as collections
from hybrid_cli.encoders.contract import Encoder
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.loop import VALIDATIONS, Validator
from hybrid_cli.training.losses import squared_cosine
from hybrid_cli.training.options import Validation
from hybrid_cli.training.roc import Bm25Vectors, SignProjection
from hybrid_cli.training.teachers import BLOCK_TEXTS, Bm25Scorer

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

SMALL_CORPUS = 10_000  # documents that are encoded for any number of steps
LARGEST = 500_000  # documents of a corpus whose vectors, and scores of 200 queries, are held in memory
MOST_HITS = 1000  # hits of BM25, and of the start model, in place of a corpus, next to the judged documents
DEPTH = 100  # ranks of these hits
WEIGHTS = (0.0, *(2.0**power for power in range(-4, 5)))  # of BM25 in the sum, both sides with unit deviation
CORPUS, HITS, EXAMPLES = "corpus", "hits", "examples"
_ORIGINS = {
    CORPUS: "all {:,} documents of the corpus",
    HITS: "{:,} documents, the judged ones and the top hits of BM25 (the corpus is too large to encode every time)",
    EXAMPLES: "the {:,} documents of the dev examples (their corpus was changed, or is large and has no index)",
}
_SEARCHED = " with those of the start model; at the end the kept weights search all {:,} documents"
_COLUMNS = ("docid", "title", "text")


@dataclass(frozen=True)
class DevExamples:
    """Dev examples, and what they were mined from.

    Attributes:
        examples: the examples.
        corpus: their corpus; None if it was moved or changed.
        index: a lexical index of the corpus.
        lost_index: they were mined with a lexical index that is missing or changed.
    """

    examples: Examples
    corpus: Path | None = None
    index: LexicalIndex | None = None
    lost_index: bool = False


@dataclass(frozen=True)
class DevSet:
    """Dev queries and the documents that they search.

    Attributes:
        queries: qid, text.
        documents: docid, title, text.
        relevant: rows of the judged documents of each query.
        origin: `corpus`: all documents of the corpus; `hits`: the judged documents and the top hits of BM25;
            `examples`: the judged documents and the negatives of the dev examples.
        own: numbers of the queries that are documents, and their rows among the documents: no hits.
    """

    queries: pl.DataFrame
    documents: pl.DataFrame
    relevant: Sequence[Rows]
    origin: str
    own: tuple[Sequence[int], Sequence[int]] = ((), ())

    @classmethod
    def of(cls, dev: DevExamples, queries: int, limit: int) -> DevSet:
        """Return the dev queries with the corpus of their examples, if it still exists unchanged.

        Args:
            dev: dev examples.
            queries: number of queries.
            limit: largest number of documents; of a larger corpus, BM25's first `MOST_HITS` hits, rank by rank.
        """
        rows, corpus = dev.examples.dev_rows(queries), dev.corpus
        asked = rows.select("qid", text="query").unique("qid", keep="first", maintain_order=True)
        if corpus is not None and collections.document_count(corpus) <= limit:
            documents, origin = collections.scan(corpus).select(_COLUMNS).collect(), CORPUS
        elif corpus is not None and dev.index is not None:
            hits = dev.index.search(asked, DEPTH).sort("rank", maintain_order=True)["docid"]
            wanted = pl.concat([rows["docid"], hits.unique(maintain_order=True).head(MOST_HITS)])
            documents, origin = collections.texts(corpus, wanted), HITS
        else:
            negatives = rows.select(pl.col("negatives").explode(empty_as_null=False)).unnest("negatives")
            both = pl.concat([rows.select(_COLUMNS), negatives.select(_COLUMNS)]).drop_nulls("docid")
            documents, origin = both.unique("docid", keep="first", maintain_order=True), EXAMPLES
        row_of = dict(zip(documents["docid"], range(len(documents)), strict=True))
        judged = dict(rows.group_by("qid").agg("docid").iter_rows())
        relevant = [np.unique([row_of[docid] for docid in judged[qid]]) for qid in asked["qid"]]
        own = [(at, row_of[qid]) for at, qid in enumerate(asked["qid"]) if dev.examples.remove_query and qid in row_of]
        return cls(asked, documents, relevant, origin, ([at for at, _ in own], [row for _, row in own]))

    def with_hits(self, hits: pl.Series, documents: pl.DataFrame) -> DevSet:
        """Return the dev set with more documents.

        Args:
            hits: docids, of which those of the dev set are ignored.
            documents: docid, title, text of all hits.
        """
        new = hits.filter(~hits.is_in(self.documents["docid"].implode())).to_frame("docid")
        texts = new.join(documents, on="docid", maintain_order="left").select(_COLUMNS)
        return replace(self, documents=pl.concat([self.documents, texts]))


class DevRetrieval:
    """Measures an encoder on dev queries: each search ranks all documents of the dev set, encoded by the current model.

    Args:
        dev: queries and documents.
        encoder: encoder to measure.
        bm25: scores of the documents, for the sum; with vectors, also for `dev_cos2`.
        fixed: the training does not change the vectors of documents, so they are encoded once.
    """

    def __init__(self, dev: DevSet, encoder: Encoder, bm25: Bm25Scorer | None, fixed: bool = False):
        self.dev, self.encoder = dev, encoder
        self._texts: list[str] = dev.queries["text"].to_list()
        self._docids: list[str] = dev.documents["docid"].to_list()
        self._bm25 = bm25 if isinstance(bm25, Bm25Vectors) else None
        self._lexical = None if bm25 is None else bm25.scores(self._texts, self._docids)
        self._documents: Callable[[], Floats] = cache(self._encoded) if fixed else self._encoded

    def measure(self) -> dict[str, float]:
        """Return measures of the current model.

        Returns:
            `dev_MRR@10`: dense scores. `dev_hybrid_MRR@10`: the best weighted sum with BM25, of `WEIGHTS` relative to
            the ratio of the standard deviations, so that the scale of an encoder's scores has no effect.
            `dev_dense_only@10`, `dev_sparse_only@10` and `dev_fail@10`: queries with a relevant document in the first
            ten of the encoder only, of BM25 only, of neither. `dev_RoC@10` (RoC, section 3.1), omitted if the encoder
            answers no query. `dev_cos2`: mean squared cosine between the encoder's and BM25's vectors, averaged over
            queries and documents.
        """
        queries, documents = self.encoder.encode_queries(self._texts), self._documents()
        scores, relevant = queries @ documents.T, self.dev.relevant
        unit = float(scores.std())
        scores[self.dev.own] = -np.inf
        dense = reciprocal_ranks(scores, relevant)
        values = {"dev_MRR@10": float(dense.mean())}
        if self._lexical is not None:
            unit /= float(self._lexical.std() or 1.0)
            sums = [reciprocal_ranks(scores + weight * unit * self._lexical, relevant) for weight in WEIGHTS]
            values["dev_hybrid_MRR@10"] = max(float(ranks.mean()) for ranks in sums)
            lexical = self._lexical.copy()
            lexical[self.dev.own] = -np.inf
            ours, theirs = dense > 0, reciprocal_ranks(lexical, relevant) > 0
            parts = {"dense_only": ours & ~theirs, "sparse_only": theirs & ~ours, "fail": ~ours & ~theirs}
            values |= {f"dev_{name}@10": float(part.sum()) for name, part in parts.items()}
            values |= {"dev_RoC@10": values["dev_dense_only@10"] / float(ours.sum())} if ours.any() else {}
        if self._bm25 is not None:
            sides = ((queries, self._bm25.queries(self._texts)), (documents, self._bm25.documents(self._docids)))
            cosines = [squared_cosine(torch.from_numpy(ours), torch.from_numpy(theirs)) for ours, theirs in sides]
            values["dev_cos2"] = float(np.mean([cosine.mean().item() for cosine in cosines]))
        return values

    def measure_corpus(self) -> dict[str, float]:
        """Return the measures of the rankings, with `dev_corpus_` in place of `dev_`."""
        return {name.replace("dev_", "dev_corpus_"): value for name, value in self.measure().items()}

    def hits(self) -> pl.Series:
        """Return the first `MOST_HITS` docids of the current model, rank by rank down to rank `DEPTH`."""
        scores = self.encoder.encode_queries(self._texts) @ self._documents().T
        ranked = np.stack([np.argsort(-row, kind="stable")[:DEPTH] for row in scores]).T.ravel()
        return self.dev.documents["docid"].gather(ranked).unique(maintain_order=True).head(MOST_HITS)

    def _encoded(self) -> Floats:
        """Return the vectors of all documents as a search uses them: of a binary encoder, the codes."""
        parts = []
        with console.progress("encode for the validation", len(self._docids), "documents") as advance:
            for part in self.dev.documents.iter_slices(BLOCK_TEXTS):
                parts.append(self.encoder.encode_documents(part["title"].to_list(), part["text"].to_list()))
                advance(len(part))
        vectors = np.concatenate(parts)
        binary = self.encoder.describe().get("binary")
        return np.where(vectors >= 0, np.float32(1), np.float32(-1)) if binary else vectors


@dataclass(frozen=True, kw_only=True)
class DevValidation:
    """A validation on mined examples.

    Attributes:
        examples: dev examples.
        trained: training examples, for a warning about common queries.
        options: number of queries, steps between two validations, and the weights that are kept.
        step_documents: documents that the training encodes per optimizer step.
        steps: number of optimizer steps.
        projection: projection of BM25's vectors, for `dev_cos2`.
        fixed: the training does not change the vectors of documents.
        whole: a whole corpus may be searched; false for vectors of the length of the vocabulary.
    """

    examples: DevExamples
    trained: Examples
    options: Validation
    step_documents: int
    steps: int
    projection: SignProjection | None = None
    fixed: bool = False
    whole: bool = True


def validator(encoder: Encoder, how: DevValidation) -> Validator:
    """Return the validation on mined examples.

    Checkpoints of all losses are chosen by `dev_hybrid_MRR@10`, the use of the encoder in a hybrid, or by `dev_MRR@10`
    if no lexical index is known. The corpus is searched if it is small, or has at most half as many documents as the
    training encodes. If it has at most as many, the start model and the kept weights search it once: the hits of the
    start model join the dev documents, and the measures of the kept weights the learning curve. By default, the
    validations between the first and the last step encode at most as many documents as the training (our choices).

    Args:
        encoder: encoder to measure.
        how: dev examples and options.
    """
    steps, per_step = how.steps, how.step_documents
    encoded = steps * per_step
    limit = min(LARGEST, max(SMALL_CORPUS, encoded // 2)) if how.whole else MOST_HITS
    dev = DevSet.of(how.examples, how.options.dev_queries, limit)
    whole = _whole(how, encoder, min(LARGEST, encoded)) if dev.origin == HITS and how.whole else None
    if whole:
        dev = dev.with_hits(whole.hits(), whole.dev.documents)
    bm25 = _bm25(how.examples.index, how.projection, dev.documents["docid"])
    every = how.options.eval_steps or max(
        1, steps // VALIDATIONS, 0 if how.fixed else -(-len(dev.documents) // per_step)
    )
    when = f"every {every:,} steps" if every < steps else "before and after the training"
    criterion = "dev_MRR@10" if bm25 is None else "dev_hybrid_MRR@10"
    documents = _ORIGINS[dev.origin].format(len(dev.documents))
    searched = _SEARCHED.format(len(whole.dev.documents)) if whole else ""
    kept = f"; keeps the weights with the best {criterion}" if how.options.keep == "best" else ""
    facts = {"origin": dev.origin, "criterion": criterion, "corpus": len(whole.dev.documents) if whole else None}
    queries = console.counted(query=len(dev.queries))
    console.note(f"validation {when}: {queries}, {documents}{searched}{kept}", code="validation", **facts)
    path = how.examples.examples.path
    if how.examples.lost_index:
        problem = "its BM25 index is missing or changed, so the sum with BM25 is not measured; mine again"
        console.warn(f"{path}: {problem}", code="index-changed", path=path)
    _warn_of_training_queries(path, dev.queries, how.trained)
    return Validator(
        DevRetrieval(dev, encoder, bm25, how.fixed).measure,
        every,
        criterion if how.options.keep == "best" else None,
        {"dev_documents": dev.origin} | ({"dev_corpus": len(whole.dev.documents)} if whole else {}),
        whole.measure_corpus if whole else None,
    )


def _whole(how: DevValidation, encoder: Encoder, limit: int) -> DevRetrieval | None:
    """Return the retrieval from the whole corpus of the dev examples; None if it is larger than `limit`."""
    corpus = how.examples.corpus
    if corpus is None or collections.document_count(corpus) > limit:
        return None
    whole = DevSet.of(how.examples, how.options.dev_queries, limit)
    return DevRetrieval(whole, encoder, _bm25(how.examples.index, None, whole.documents["docid"]), how.fixed)


def _bm25(index: LexicalIndex | None, projection: SignProjection | None, docids: pl.Series) -> Bm25Scorer | None:
    if index is None:
        return None
    return Bm25Scorer(index, docids) if projection is None else Bm25Vectors(index, projection, docids)


def _warn_of_training_queries(examples: Path | str, queries: pl.DataFrame, trained: Examples) -> None:
    """Warn about queries of the validation that are in the training examples too, with the same id and text."""
    if common := len(trained.asked().join(queries, on=["qid", "text"])):
        problem = f"{common:,} of the {len(queries):,} dev queries are training queries; mine another split"
        facts = {"path": examples, "count": common, "queries": len(queries)}
        console.warn(f"{examples}: {problem}", code="trained-on-queries", **facts)


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
