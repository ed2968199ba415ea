"""A retriever: indexes of one corpus, searched together by one fusion.

Runs of many queries and single queries take the same path: the hits of each index are joined and fused by
`fusion.lists`, as `hybrid fuse` does with runs on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import polars as pl

from hybrid_cli import runs
from hybrid_cli.errors import InputError
from hybrid_cli.fusion import lists
from hybrid_cli.fusion.frames import recipe_of
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.fusion.options import HITS, METHOD, RRF_K, Missing, Normalization
from hybrid_cli.retrieval.calibration import FIRST, Calibration
from hybrid_cli.retrieval.filters import Allowed
from hybrid_cli.retrieval.in_memory import Answers, Queries, checked_depth, queries_table
from hybrid_cli.retrieval.numbered import Candidates, NumberedSide

_QUERIES_AT_ONCE, _LEAST_QUERIES = 1024, 16
_HITS_AT_ONCE = 1 << 20  # of all sides; a hit takes some 700 bytes in all steps of a fusion


class Side(Protocol):
    """One open index of a retriever."""

    def answer(self, queries: pl.DataFrame) -> Answers:
        """Return the answers to queries (qid, text)."""

    def within(self, allowed: Allowed) -> Side:
        """Return the same index whose hits are documents that a filter keeps."""

    @property
    def numbered(self) -> NumberedSide | None:
        """The index with numbers of documents; None if it has none, as one of shards."""


class Block(NamedTuple):
    """Candidates of some queries.

    Attributes:
        fused: from a number of documents per query to their runs.
        explain: from hits (qid, docid) to rank and score of each side, in the same order.
        passages: the best passages of documents (qid, docid, passage); None where hits are not grouped.
    """

    fused: Callable[[int], Iterable[pl.DataFrame]]
    explain: Callable[[pl.DataFrame], pl.DataFrame]
    passages: pl.DataFrame | None = None


@dataclass(frozen=True)
class RerankStep:
    """A reranker that rescores the first hits of the fusion.

    Attributes:
        depth: hits per query that are rescored.
        score: from pairs (query, title, text) to scores [n], float32.
        texts: from docids to docid, title and text, in the same order.
    """

    depth: int
    score: Callable[[pl.DataFrame], np.ndarray]
    texts: Callable[[pl.Series], pl.DataFrame]

    def apply(self, run: pl.DataFrame, queries: pl.DataFrame) -> pl.DataFrame:
        """Return the hits of a run in the order of the new scores; see `runs.rerank_hits`."""
        named = queries.select("qid", query="text")
        heads = run.filter(pl.col("rank") <= self.depth).join(named, on="qid", how="left", maintain_order="left")
        heads = heads.filter(pl.col("query").str.strip_chars() != "")
        if not len(heads):
            return run
        shown = heads["passage" if "passage" in heads.columns else "docid"]
        pairs = heads.with_columns(self.texts(shown).select(pl.col("title", "text").fill_null("")))
        new = heads.select("qid", "docid", new_score=pl.Series(self.score(pairs)))
        key = ["qid", "docid"]
        ordered = runs.rerank_hits(run.join(new, on=key, how="left", maintain_order="left"), self.depth)
        if "passage" not in run.columns:
            return ordered
        return ordered.join(run.select(*key, "passage"), on=key, how="left", maintain_order="left")


@dataclass(frozen=True)
class Retriever:
    """Indexes of one corpus and the fusion of their hits.

    Attributes:
        sides: name -> open index, in the order of the weights.
        recipe: method, weights and the rule for documents that a side does not return.
        depth: hits of each side that are fused.
        reranker: rescores the first fused hits; None for none.
        calibration: gives the hits probabilities; None for none.
    """

    sides: Mapping[str, Side]
    recipe: FusionRecipe
    depth: int = HITS
    reranker: RerankStep | None = None
    calibration: Calibration | None = None

    @classmethod
    def of(
        cls,
        sides: Mapping[str, Side],
        method: str = METHOD,
        weights: Sequence[float] | Mapping[str, float] | None = None,
        *,
        normalize: Normalization | None = None,
        missing: Missing | None = None,
        rrf_k: float = RRF_K,
        depth: int = HITS,
    ) -> Retriever:
        """Fuse the hits of indexes, in memory or on disk, by any method of `fuse`.

        Args:
            sides: name -> index, such as `BM25().index(texts)`.
            method, weights, normalize, missing, rrf_k: see `fusion.fuse`; `missing` may be `exact`.
            depth: hits of each index that are fused.

        Raises:
            InputError: an unknown method, or a weight too few.
        """
        return cls(sides, recipe_of(list(sides), method, weights, normalize, missing, rrf_k), depth)

    def __post_init__(self) -> None:
        if not self.sides or len(self.sides) != len(self.recipe.weights):
            problem = f"retriever: {len(self.recipe.weights)} weights for {len(self.sides)} indexes; pass one per index"
            raise InputError(
                problem, code="number-of-weights", value=len(self.recipe.weights), expected=len(self.sides)
            )

    def search(self, queries: Queries, k: int = 10, min_probability: float | None = None) -> pl.DataFrame:
        """Return the top documents of one or more queries.

        Args:
            queries: a text; several texts, whose qids are "0", "1", ...; texts by qid; or a data frame.
            k: documents per query.
            min_probability: least probability of a hit, for a calibrated retriever; None for all hits.

        Returns:
            qid, docid, rank (from 1), score, and for each side its rank and score of the document, such as `bm25_rank`
            and `bm25_score`. The rank is null if the side does not return the document, and so is the score, unless the
            rule for missing documents is `exact`. If the retriever is calibrated, `probability` that the document is
            relevant.

        Raises:
            InputError: `k` is no whole number from 1 on, a query is no text, or `min_probability` without calibration.
        """
        k, table = checked_depth(k), queries_table(queries)
        return pl.concat(list(self.explained(table, k, min_probability)) or [self._nothing()])

    def within(self, allowed: Allowed) -> Retriever:
        """Return the same retriever whose hits are documents that a filter keeps."""
        return replace(self, sides={name: side.within(allowed) for name, side in self.sides.items()})

    def explained(
        self, queries: pl.DataFrame, hits: int, min_probability: float | None = None
    ) -> Iterator[pl.DataFrame]:
        """Yield the hits of some queries at a time, with the columns of `search`."""
        self.check_probability(min_probability)
        for block in self._blocks(queries):
            depth = hits if self.calibration is None else max(hits, FIRST)
            run = pl.concat([runs.empty(), *self._fused(block, queries, depth)], how="diagonal")
            if block.passages is not None and "passage" not in run.columns:  # without hits
                run = run.with_columns(passage=pl.lit(None, pl.String))
            run = run.hstack(block.explain(run))
            if self.calibration is not None:
                likely = self.calibration.probabilities(run, list(self.sides))
                run = run.with_columns(probability=likely).filter(pl.col("rank") <= hits)
            if min_probability is not None:
                run = run.filter(pl.col("probability") >= min_probability)
                run = run.with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32).over("qid"))
            yield run

    def check_probability(self, min_probability: float | None) -> None:
        """Refuse a probability outside [0, 1], or one of a retriever that is not calibrated.

        Raises:
            InputError: see above.
        """
        if min_probability is None:
            return
        if not 0 <= min_probability <= 1:
            problem = f"min_probability {min_probability}: needs a number from 0 to 1"
            raise InputError(problem, code="out-of-range", option="min_probability", value=min_probability)
        if self.calibration is None:
            problem = "the hits have no probabilities; calibrate the retriever: hybrid compose INDEXES --calibrate"
            raise InputError(f"{problem} --qrels COLLECTION --split dev --output RETRIEVER", code="not-calibrated")

    def runs(self, queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
        """Yield the run of some queries (qid, text) at a time: qid, docid, rank, score."""
        for block in self._blocks(queries):
            for run in self._fused(block, queries, hits):
                yield run.select(runs.SCHEMA.names())

    def _fused(self, block: Block, queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
        depth = hits if self.reranker is None else max(hits, self.reranker.depth)
        for run in block.fused(depth):
            if block.passages is not None:
                run = run.join(block.passages, on=["qid", "docid"], how="left", maintain_order="left")
            yield run if self.reranker is None else self.reranker.apply(run, queries).filter(pl.col("rank") <= hits)

    def candidates(self, queries: pl.DataFrame) -> Iterator[tuple[list[pl.DataFrame], pl.Series]]:
        """Yield the candidates of some queries (qid, text) at a time: frames of `fusion.lists`, and ids by number."""
        for some in self._some(queries):
            yield self._completed(some)[1], some["qid"]

    def scales(self, queries: pl.DataFrame) -> tuple[float, ...]:
        """Return the standard deviation of each side's scores over the candidates of all queries; 1 where it is 0.

        Scores are exact, whatever the rule of the retriever.
        """
        exact = replace(self, recipe=FusionRecipe("weighted-sum", (1.0,) * len(self.sides), "exact"))
        blocks = [frame for some in exact._some(queries) for frame in exact._completed(some)[1]]
        if not blocks:
            return (1.0,) * len(self.sides)
        scores = pl.concat(blocks)
        return tuple(float(np.std(scores[f"score_{number}"].to_numpy())) or 1.0 for number in range(len(self.sides)))

    def _nothing(self) -> pl.DataFrame:
        """Return hits of no query."""
        columns = [pl.lit(None, kind).alias(f"{name}_{part}") for name in self.sides for part, kind in _PARTS.items()]
        columns += [] if self.calibration is None else [pl.lit(None, pl.Float64).alias("probability")]
        return runs.empty().with_columns(columns)

    @cached_property
    def _numbered(self) -> list[NumberedSide] | None:
        """The sides with numbers of documents, if the rule is exact, and all number the same documents."""
        if self.recipe.missing != "exact":
            return None
        sides = [side.numbered for side in self.sides.values()]
        known = [side for side in sides if side is not None]
        alike = len(known) == len(sides) and all(side.ids.ids.equals(known[0].ids.ids) for side in known[1:])
        return known if alike else None

    def _blocks(self, queries: pl.DataFrame) -> Iterator[Block]:
        """Yield the candidates of some queries at a time, with all scores if the rule is exact."""
        for some in self._some(queries):
            yield self._by_id(some) if self._numbered is None else self._by_number(some, self._numbered)

    def _some(self, queries: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Yield queries whose candidates are in memory at once."""
        size = max(_LEAST_QUERIES, min(_QUERIES_AT_ONCE, _HITS_AT_ONCE // (self.depth * len(self.sides))))
        return queries.iter_slices(size)

    def _by_number(self, queries: pl.DataFrame, sides: Sequence[NumberedSide]) -> Block:
        ids, candidates = sides[0].ids, Candidates.of([side.answer(queries) for side in sides], self.depth)

        def explain(run: pl.DataFrame) -> pl.DataFrame:
            asked = runs.positions(run["qid"], queries["qid"], "no text for query")
            rows, _ = ids.find(run["docid"])
            return candidates.of_hits(asked, ids.numbers[rows], list(self.sides))

        return Block(lambda hits: [candidates.fused(queries["qid"], self.recipe, hits, ids)], explain)

    def _by_id(self, queries: pl.DataFrame) -> Block:
        qids = queries["qid"]
        returned, frames, passages = self._completed(queries)

        def explain(run: pl.DataFrame) -> pl.DataFrame:
            hits = run.lazy().select("qid", "docid")
            for part, frame in (("rank", returned), ("score", pl.concat(frames))):
                numbers = pl.LazyFrame({"qid": qids}).with_row_index("query")
                columns = (pl.col(f"{part}_{n}").alias(f"{name}_{part}") for n, name in enumerate(self.sides))
                known = frame.lazy().join(numbers, on="query").select("qid", "docid", *columns)
                hits = hits.join(known, on=["qid", "docid"], how="left", maintain_order="left")
            sides = (pl.col(f"{name}_{part}").cast(kind) for name in self.sides for part, kind in _PARTS.items())
            return hits.select(sides).collect()

        return Block(lambda hits: lists.fuse(frames, qids, self.recipe, hits), explain, passages)

    def _completed(self, queries: pl.DataFrame) -> tuple[pl.DataFrame, list[pl.DataFrame], pl.DataFrame | None]:
        """Return the documents that the sides return, the candidates of the fusion, and the passages of documents.

        The first two have the columns of `fusion.lists`; candidates have all scores if the rule is exact. The passage
        of a document is the best one in the list in which it has the best rank.
        """
        qids, answers = queries["qid"], [side.answer(queries) for side in self.sides.values()]
        hits = [answer.hits(self.depth) for answer in answers]
        named = [run.select("qid", "docid", "rank", "passage") for run in hits if "passage" in run.columns]
        passages = (
            pl.concat(named).sort("rank", maintain_order=True).unique(["qid", "docid"], keep="first").drop("rank")
            if named
            else None
        )
        returned = lists.joined(hits, qids)
        if self.recipe.missing != "exact":
            return returned, [returned], passages
        return returned, list(lists.complete([returned], qids, [answer.score for answer in answers])), passages


_PARTS = {"rank": pl.Int32(), "score": pl.Float32()}
