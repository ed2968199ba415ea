"""Features of a query that look across two ranked lists, for a fusion with one weight per query.

The features of a query depend on its own lists and text alone and are computed row by row, so they are the same in any
batch and order. They are finite, also for empty lists, lists of one hit, and lists of equal scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hybrid_cli import words
from hybrid_cli.errors import InputError
from hybrid_cli.fusion.lists import Scorer
from hybrid_cli.lexical.index import LexicalIndex

Matrix = NDArray[np.float64]
DEPTH = 100  # hits of each list that features use
_SHAPE = (2, 3, 5, 10, 20, 50, 100)  # ranks of normalized scores
_OVERLAP = (1, 3, 5, 10, 20, 50, 100)
_TOP = 10  # hits of each list that are looked up in the other list
_FAR = np.log(1001.0)  # log rank of a document that is not in the other list
_LOWEST = -2.0  # of a normalized exact score


@dataclass(frozen=True)
class Sources:
    """Indexes and texts of two runs.

    Attributes:
        scorers: one function per list, from pairs (qid, docid) to exact scores.
        queries: qid, text.
        lexical: the lexical index whose IDF statistics are used; None without one.
    """

    scorers: Sequence[Scorer]
    queries: pl.DataFrame
    lexical: LexicalIndex | None


@dataclass(frozen=True)
class Heads:
    """The first hits of two lists of consecutive queries, padded with NaN.

    Attributes:
        first: number of the first query.
        scores: for each list, the scores of its first hits, [queries, `DEPTH`].
        ranks: for each list, the ranks (from 1) of these hits in the other list, NaN if absent, [queries, `DEPTH`].
        crossed: for each list, the scores of these hits in the other list, NaN if unknown, [queries, `DEPTH`].
        lengths: for each list, the number of hits, [queries].
        lowest: for each list, the lowest score, NaN for an empty list, [queries].
    """

    first: int
    scores: tuple[Matrix, Matrix]
    ranks: tuple[Matrix, Matrix]
    crossed: tuple[Matrix, Matrix]
    lengths: tuple[Matrix, Matrix]
    lowest: tuple[Matrix, Matrix]

    @classmethod
    def of(cls, block: pl.DataFrame) -> Heads:
        """Return the heads of a block of candidates of two lists; see `fusion.lists`."""
        numbers = block["query"].to_numpy().astype(np.int64)
        first = int(numbers.min())
        query, queries = numbers - first, int(numbers.max()) - first + 1
        score = [block[f"score_{side}"].fill_null(np.nan).to_numpy() for side in (0, 1)]
        rank = [block[f"rank_{side}"].fill_null(np.nan).to_numpy() for side in (0, 1)]
        found: dict[str, list[Matrix]] = {"scores": [], "ranks": [], "crossed": [], "lengths": [], "lowest": []}
        for side, other in ((0, 1), (1, 0)):
            lengths = np.bincount(query[~np.isnan(rank[side])], minlength=queries).astype(np.float64)
            head, last = rank[side] <= DEPTH, rank[side] == lengths[query]
            place = (query[head], rank[side][head].astype(np.int64) - 1)
            for name, values in (("scores", score[side]), ("ranks", rank[other]), ("crossed", score[other])):
                padded = np.full((queries, DEPTH), np.nan)
                padded[place] = values[head]
                found[name].append(padded)
            lowest = np.full(queries, np.nan)
            lowest[query[last]] = score[side][last]
            found["lengths"].append(lengths)
            found["lowest"].append(lowest)
        return cls(first, **{name: (each[0], each[1]) for name, each in found.items()})


def list_features(heads: Heads) -> dict[str, Matrix]:
    """Return the features of the lists, name -> [queries].

    Shapes of the scores of both lists, overlap at several depths, and rank and score of the top hits of each list in
    the other one.
    """
    found: dict[str, Matrix] = {}
    for side, other in ((0, 1), (1, 0)):
        name, scores = f"run {side + 1}", heads.scores[side]
        high, low = scores[:, 0], heads.lowest[side]
        normal = _normalized(scores, low, high)
        found |= {f"{name}: normalized score at rank {rank}": normal[:, rank - 1] for rank in _SHAPE}
        found[f"{name}: hits (log)"] = np.log1p(heads.lengths[side])
        found[f"{name}: top score (log)"] = _log(high)
        found[f"{name}: top score - score at rank 2 (log)"] = _log(high - scores[:, 1])
        found[f"{name}: top score - score at rank {_TOP} (log)"] = _log(high - scores[:, _TOP - 1])
        found[f"{name}: top score - lowest (log)"] = _log(high - low)
        crossed = _normalized(heads.crossed[side], heads.lowest[other], heads.scores[other][:, 0])
        there, ranks = f"in run {other + 1}", heads.ranks[side]
        for top in (1, 2, 3, 5, _TOP):
            found[f"{name}: mean normalized score of its top {top} {there}"] = crossed[:, :top].mean(1)
        for top in (1, 2, 3):
            found[f"{name}: reciprocal rank of its hit {top} {there}"] = np.nan_to_num(1 / ranks[:, top - 1])
        deep = np.nan_to_num(np.log(ranks), nan=_FAR)
        found |= {f"{name}: mean log rank of its top {top} {there}": deep[:, :top].mean(1) for top in (1, 3, _TOP)}
    for depth in _OVERLAP:
        found[f"overlap at {depth}"] = (heads.ranks[0][:, :depth] <= depth).sum(1) / depth
    return {name: np.nan_to_num(values, posinf=0.0, neginf=0.0) for name, values in found.items()}


def _normalized(scores: Matrix, low: Matrix, high: Matrix) -> Matrix:
    """Return min-max normalized scores as `methods.minmax`; 0 for unknown scores, at least -2 for exact ones."""
    spread = (high - low)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.where(spread > 0, (scores - low[:, None]) / spread, 1.0)
    return np.where(np.isnan(scores), 0.0, np.nan_to_num(values).clip(_LOWEST, 1.0))


def _log(values: Matrix) -> Matrix:
    """Return sign(v) log(1 + |v|), 0 for NaN."""
    return np.asarray(np.nan_to_num(np.sign(values) * np.log1p(np.abs(values))))


def query_features(texts: Sequence[str], lexical: LexicalIndex | None) -> dict[str, Matrix]:
    """Return the features of query texts, name -> [queries]: length, and IDF statistics of a lexical index."""
    found = {
        "query: words (log)": np.log1p([float(words.count(text)) for text in texts]),
        "query: characters (log)": np.log1p([float(len(text)) for text in texts]),
    }
    if lexical is None:
        return found
    bags = lexical.bags(texts)
    terms = [lexical.idf[bags.terms[begin:end]].astype(np.float64) for begin, end in zip(bags.ends, bags.ends[1:])]  # noqa: B905
    found["query: index terms (log)"] = np.log1p([float(len(idf)) for idf in terms])
    for name, statistic in (("lowest", np.min), ("mean", np.mean), ("highest", np.max), ("sum of", np.sum)):
        found[f"query: {name} IDF"] = np.array([float(statistic(idf)) if len(idf) else 0.0 for idf in terms])
    return found


def of_lists(block: pl.DataFrame) -> tuple[list[str], Matrix]:
    """Return names and values [queries, features] of the features of the lists of a block."""
    return _stacked(list_features(Heads.of(block)))


def collected(
    blocks: Iterable[pl.DataFrame], qids: pl.Series, sources: Sources | None = None
) -> tuple[list[str], Matrix]:
    """Return names and values [queries, features] of all features, in the order of `qids`.

    Args:
        blocks: candidates of two lists.
        qids: ids of the queries, by number.
        sources: adds exact scores of the top hits in the other list, query lengths and IDF statistics.
    """
    heads, absent = [], []
    for block in blocks:
        heads.append(Heads.of(block))
        if sources is not None:
            absent.append(_absent(block))
    if sources is not None and absent:
        _add_exact(heads, pl.concat(absent), qids, sources.scorers)
    names, rows = _stacked(list_features(_empty()))
    values = np.repeat(rows, len(qids), axis=0)
    for each in heads:
        values[each.first : each.first + len(each.lengths[0])] = _stacked(list_features(each))[1]
    if sources is None:
        return names, values
    texts = qids.to_frame("qid").join(
        sources.queries.select("qid", "text"), on="qid", how="left", maintain_order="left"
    )
    if texts["text"].null_count():
        missing = texts.filter(pl.col("text").is_null())["qid"][0]
        raise InputError(f"--queries: no text of query {missing}; pass the queries of the runs")
    more, columns = _stacked(query_features(texts["text"].to_list(), sources.lexical))
    return names + more, np.hstack([values, columns])


def _absent(block: pl.DataFrame) -> pl.DataFrame:
    """Return query, docid, side and rank of the top hits of each list that the other list does not contain."""
    return pl.concat(
        block.filter((pl.col(f"rank_{side}") <= _TOP) & pl.col(f"rank_{other}").is_null()).select(
            "query", "docid", pl.lit(side).alias("side"), pl.col(f"rank_{side}").cast(pl.Int64).alias("rank")
        )
        for side, other in ((0, 1), (1, 0))
    )


def _add_exact(heads: Sequence[Heads], absent: pl.DataFrame, qids: pl.Series, scorers: Sequence[Scorer]) -> None:
    """Fill in the exact scores of the top hits in the other list."""
    firsts = np.array([each.first for each in heads])
    for side, other in ((0, 1), (1, 0)):
        pairs = absent.filter(side=side)
        if not len(pairs):
            continue
        score = scorers[other](pairs.select(qids.gather(pairs["query"]).alias("qid"), "docid")).cast(pl.Float64)
        if not score.is_finite().all():
            raise InputError(f"some exact scores of list {other + 1} are not finite; rebuild its index")
        number = pairs["query"].to_numpy().astype(np.int64)
        block = np.searchsorted(firsts, number, side="right") - 1
        for at in np.unique(block):
            here = block == at
            place = (number[here] - firsts[at], pairs["rank"].to_numpy()[here] - 1)
            heads[at].crossed[side][place] = score.to_numpy()[here]


def _empty() -> Heads:
    """Return the heads of one query without hits."""
    none, number, unknown = np.full((1, DEPTH), np.nan), np.zeros(1), np.full(1, np.nan)
    return Heads(0, (none, none), (none, none), (none, none), (number, number), (unknown, unknown))


def _stacked(features: Mapping[str, Matrix]) -> tuple[list[str], Matrix]:
    return list(features), np.column_stack(list(features.values()))
