"""Candidates of a fusion: the documents that some index returns, as arrays.

The rows of candidates are in the order of the ids, so equal scores are ordered by row. `table` has the form of
`fusion.lists`, with the row of a document in place of its id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli.fusion import lists
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.runs.index import Documents, Hits, Rows, Scores
from hybrid_cli.runs.tables import ranks

Values = npt.NDArray[np.float64]


class CommonRows:
    """The documents of several indexes, numbered in the order of their ids.

    Attributes:
        documents: the documents of all indexes.
        of: for each index, the common row of each of its rows.
    """

    def __init__(self, parts: Sequence[Documents]) -> None:
        first = parts[0]
        if all(part.ids.equals(first.ids) for part in parts[1:]):
            for part in parts[1:]:  # sorted once
                part.__dict__["sorted"] = first.sorted
        self._sorted = [part.sorted for part in parts]
        ids = first.sorted.ids
        if all(part.ids.equals(ids) for part in self._sorted[1:]):
            self.of: list[Rows] = [part.numbers for part in self._sorted]
        else:
            ids = pl.concat(part.ids for part in self._sorted).unique().sort()
            self.of = [np.asarray(ids.search_sorted(part.ids))[part.numbers] for part in self._sorted]
        self.documents = Documents(ids)

    @cached_property
    def rows(self) -> list[Rows]:
        """For each index, its row of each common row; -1 where it lacks the document."""
        back: list[Rows] = []
        for common in self.of:
            rows = np.full(len(self.documents), -1, np.int64)
            rows[common] = np.arange(len(common))
            back.append(rows)
        return back


@dataclass(frozen=True)
class Candidates:
    """Documents that some index returns for some queries.

    Attributes:
        qids: ids of the queries, by number.
        keys: [n] number of the query times 2^32, and the common row of the document; rising.
        scores: [n] scores of each index; NaN if not known.
        ranks: [n] rank in each index, from 1; NaN where it does not return the document.
        passages: [n] common row of the best passage, in the list in which the document has the best rank; None where
            hits are no documents of passages.
    """

    qids: pl.Series
    keys: npt.NDArray[np.int64]
    scores: Sequence[Values]
    ranks: Sequence[Values]
    passages: Rows | None

    @classmethod
    def of(
        cls,
        qids: pl.Series,
        hits: Sequence[Hits],
        rows: CommonRows,
        passages: CommonRows | None,
        exact: Sequence[Callable[[Rows, Rows], Scores]] | None,
    ) -> Candidates:
        """Return the candidates among the hits of each index.

        Args:
            qids: ids of the queries.
            hits: hits of each index.
            rows: the documents of all indexes.
            passages: their passages.
            exact: for each index, from numbers of queries and rows to scores; None leaves unknown scores out.

        Raises:
            InputError: an exact score is not finite, or an index lacks a document.
        """
        mine = [_keys(own.queries, common[own.rows]) for own, common in zip(hits, rows.of, strict=True)]
        every = np.concatenate(mine)
        order = np.argsort(every)  # `np.unique` takes five times as long, and `np.searchsorted` of keys in any order
        first = np.diff(every[order], prepend=-1) > 0
        keys, at_all = every[order][first], np.empty(len(every), np.int64)
        at_all[order] = np.cumsum(first) - 1
        scores: list[Values] = []
        places: list[Values] = []
        best, nearest = np.full(len(keys), -1, np.int64), np.full(len(keys), np.inf)
        ends = np.cumsum([len(its) for its in mine])
        for number, (own, at) in enumerate(zip(hits, np.split(at_all, ends[:-1]), strict=True)):
            score, rank = np.full((2, len(keys)), np.nan)
            score[at], rank[at] = own.scores, ranks(own.counts)
            if passages is not None and "passage" in own.columns:
                nearer = rank[at] < nearest[at]
                best[at[nearer]] = passages.of[number][own.columns["passage"][nearer]]
                nearest[at[nearer]] = rank[at[nearer]]
            missing = np.isnan(rank)
            if exact is not None and missing.any():
                queries, common = _parts(keys[missing])
                score[missing] = exact[number](queries, rows.rows[number][common])
                lists.refuse_infinite(score, number)
            scores.append(score)
            places.append(rank)
        return cls(qids, keys, scores, places, None if passages is None else best)

    def fused(self, recipe: FusionRecipe, depth: int) -> Hits:
        """Return the documents with the highest fused scores, with the scores and ranks of each index.

        Args:
            recipe: method and weights.
            depth: documents kept per query.
        """
        count = len(self.qids)
        at: Rows = np.arange(len(self.keys))
        if recipe.is_sum_of_scores and recipe.missing == "exact":  # ranks are not needed
            scores = np.add.reduce([weight * score for weight, score in zip(recipe.weights, self.scores, strict=True)])
        else:
            scored = lists.scored(self.table(recipe.missing == "exact"), self.qids, recipe).collect()
            scores = scored["score"].to_numpy()
            if len(scores) < len(at):  # the rule drops some
                at = self.find(scored["query"].to_numpy(), scored["docid"].to_numpy())
        queries, rows = _parts(self.keys[at])
        ends = np.searchsorted(queries, np.arange(count + 1))
        highest = (begin + _highest(scores[begin:end], depth) for begin, end in pairwise(ends))
        best = np.concatenate([np.zeros(0, np.int64), *highest])
        best = best[np.lexsort((-scores[best], queries[best]))]  # equal scores are in the order of their ids
        counts = np.bincount(queries[best], minlength=count)
        best, counts = best[ranks(counts) <= depth], np.minimum(counts, depth)
        return Hits(counts, rows[best], scores[best].astype(np.float32))

    def table(self, exact: bool) -> pl.DataFrame:
        """Return the candidates in the form of `fusion.lists`, with ranks among all candidates if scores are exact."""
        queries, rows = _parts(self.keys)
        columns: dict[str, object] = {"query": queries, "docid": rows}
        begins = np.searchsorted(queries, queries)
        for number, (score, rank) in enumerate(zip(self.scores, self.ranks, strict=True)):
            if exact:
                order = np.lexsort((-score, queries))  # equal scores are in the order of their ids
                rank = np.empty(len(order))
                rank[order] = np.arange(1, len(order) + 1) - begins[order]
                columns |= {f"score_{number}": score, f"rank_{number}": rank}
            else:
                known = pl.Series(np.where(np.isnan(rank), np.nan, score))
                columns |= {f"score_{number}": known.fill_nan(None), f"rank_{number}": pl.Series(rank).fill_nan(None)}
        return pl.DataFrame(columns)

    def find(self, queries: Rows, rows: Rows) -> Rows:
        """Return the positions of candidates."""
        return np.searchsorted(self.keys, _keys(queries, rows))

    def columns(self, at: Rows, names: Sequence[str]) -> dict[str, Any]:
        """Return `NAME_rank` and `NAME_score` of each index for some candidates, null where they are not known.

        Documents of passages also have `passage`, see `passages`.
        """
        columns: dict[str, Any] = {} if self.passages is None else {"passage": self.passages[at]}
        for name, rank, score in zip(names, self.ranks, self.scores, strict=True):
            columns[f"{name}_rank"] = pl.Series(rank[at], nan_to_null=True).cast(pl.Int32)
            columns[f"{name}_score"] = pl.Series(score[at].astype(np.float32), nan_to_null=True)
        return columns


def _highest(scores: Values, depth: int) -> Rows:
    """Return the positions of the highest scores and of equal ones; sorting all would take most of the time."""
    if len(scores) <= depth:
        return np.arange(len(scores))
    return np.flatnonzero(scores >= np.partition(scores, len(scores) - depth)[len(scores) - depth])


def _keys(queries: Rows, rows: Rows) -> npt.NDArray[np.int64]:
    return (queries.astype(np.int64) << 32) + rows


def _parts(keys: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    return (keys >> 32).astype(np.uint32), keys.astype(np.uint32)
