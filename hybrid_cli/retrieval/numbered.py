"""Candidates of indexes of the same documents, which are numbered in the order of their ids.

Numbers are joined, completed and ranked as arrays, in less time than ids; the candidates are those of `fusion.lists`
with the number of a document in place of its id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli import runs
from hybrid_cli.fusion import lists
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.runs.run import ranks

Numbers: TypeAlias = npt.NDArray[np.integer]
Scores: TypeAlias = npt.NDArray[np.float32]


class NumberedAnswers(NamedTuple):
    """What one index returns for some queries; see `in_memory.Answers`.

    Attributes:
        hits: from a number of documents per query to the number of hits of each query [Q], and the numbers and scores
            of the documents, query by query, best first.
        score: from pairs of numbers of queries and documents to their scores.
    """

    hits: Callable[[int], tuple[Numbers, Numbers, Scores]]
    score: Callable[[Numbers, Numbers], Scores]


@dataclass(frozen=True)
class NumberedSide:
    """One index whose documents have numbers.

    Attributes:
        ids: ids of all documents, in string order: the document with number n is `ids.ids[n]`.
        answer: from queries (qid, text) to their answers.
    """

    ids: runs.SortedIds
    answer: Callable[[pl.DataFrame], NumberedAnswers]


@dataclass(frozen=True)
class Candidates:
    """Documents that some index returns for some queries, with the scores of all indexes.

    Attributes:
        keys: [n] number of the query times 2^32, and the number of the document; rising.
        scores: [n] float64 exact scores of each index.
        returned: [n] rank of each index, from 1; NaN where it does not return the document.
    """

    keys: npt.NDArray[np.int64]
    scores: Sequence[npt.NDArray[np.float64]]
    returned: Sequence[npt.NDArray[np.float64]]

    @classmethod
    def of(cls, answers: Sequence[NumberedAnswers], depth: int) -> Candidates:
        """Return the candidates among the first `depth` hits of each index."""
        hits = [answer.hits(depth) for answer in answers]
        named = [_keys(np.repeat(np.arange(len(counts)), counts), numbers) for counts, numbers, _ in hits]
        keys = np.unique(np.concatenate(named))
        scores: list[npt.NDArray[np.float64]] = []
        returned: list[npt.NDArray[np.float64]] = []
        for answer, mine, (counts, _, known) in zip(answers, named, hits, strict=True):
            at = np.searchsorted(keys, mine)
            score, rank = np.full((2, len(keys)), np.nan)
            score[at], rank[at] = known, ranks(counts)
            missing = np.isnan(rank)
            score[missing] = answer.score(*_parts(keys[missing]))
            lists.refuse_infinite(score, len(scores))
            scores.append(score)
            returned.append(rank)
        return cls(keys, scores, returned)

    def fused(self, qids: pl.Series, recipe: FusionRecipe, hits: int, ids: runs.SortedIds) -> pl.DataFrame:
        """Return the fused run, as `fusion.lists.fuse` does.

        Args:
            qids: ids of the queries, by number.
            recipe: method and weights.
            hits: documents kept per query.
            ids: ids of the documents, by number.
        """
        if recipe.is_sum_of_scores:  # ranks are not needed
            scores = np.add.reduce([weight * score for weight, score in zip(recipe.weights, self.scores, strict=True)])
        else:
            scores = lists.scored(self._table(), qids, recipe).collect()["score"].to_numpy()
        queries, numbers = _parts(self.keys)
        best = np.arange(len(scores))
        if len(qids) == 1 and hits < len(scores):  # sorting all of them would take most of the time
            best = np.flatnonzero(scores >= np.partition(scores, len(scores) - hits)[len(scores) - hits])
        best = best[np.lexsort((-scores[best], queries[best]))]  # equal scores are in the order of their ids
        rank = ranks(np.bincount(queries[best], minlength=len(qids)))
        best, rank = best[rank <= hits], rank[rank <= hits]
        return pl.DataFrame(
            {
                "qid": lists.named(pl.Series(queries[best]), qids),
                "docid": ids.gather(numbers[best]),
                "rank": rank.astype(np.int32),
                "score": scores[best].astype(np.float32),
            }
        )

    def _table(self) -> pl.DataFrame:
        """Return the candidates as `fusion.lists.complete` does, with numbers in place of ids."""
        queries, numbers = _parts(self.keys)
        columns: dict[str, npt.NDArray[np.generic]] = {"query": queries, "docid": numbers}
        begins = np.searchsorted(queries, queries)
        for number, score in enumerate(self.scores):
            order = np.lexsort((-score, queries))  # equal scores are in the order of their ids
            rank = np.empty(len(order))
            rank[order] = np.arange(1, len(order) + 1) - begins[order]
            columns |= {f"score_{number}": score, f"rank_{number}": rank}
        return pl.DataFrame(columns)

    def of_hits(self, queries: Numbers, numbers: Numbers, names: Sequence[str]) -> pl.DataFrame:
        """Return rank and score of each index, named `names`, for some of the candidates."""
        at = np.searchsorted(self.keys, _keys(queries, numbers))
        columns = {}
        for name, rank, score in zip(names, self.returned, self.scores, strict=True):
            columns[f"{name}_rank"] = pl.Series(rank[at]).fill_nan(None).cast(pl.Int32)
            columns[f"{name}_score"] = pl.Series(score[at].astype(np.float32))
        return pl.DataFrame(columns)


def _keys(queries: Numbers, numbers: Numbers) -> npt.NDArray[np.int64]:
    return (queries.astype(np.int64) << 32) + numbers


def _parts(keys: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    return (keys >> 32).astype(np.uint32), keys.astype(np.uint32)
