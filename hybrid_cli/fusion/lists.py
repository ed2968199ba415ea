"""Joined runs: candidates with their score and rank in each list, and the fused run.

Queries are processed in blocks of a few dozen: joins fit in the processor's cache, and memory is independent of the
number of queries. A frame of candidates has the columns `query` (number of the query), `docid`, and for list i
`score_i` (float64) and `rank_i` (from 1), both null if the list does not return the document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl

from hybrid_cli import console
from hybrid_cli.errors import InputError
from hybrid_cli.fusion.methods import FusionRecipe, fill, of_query
from hybrid_cli.runs import Run, ranked
from hybrid_cli.runs.tables import ranks

Scorer = Callable[[pl.DataFrame], pl.Series]
BLOCK_HITS = 1 << 16
_WIDE = 10.0  # ratio of the standard deviations of two lists above which one list dominates the sum
SCORED_AT_ONCE = 1 << 23  # candidates whose missing scores are computed together: one pass over the vectors


@dataclass(frozen=True)
class Lists:
    """Several runs, aligned over the union of their queries.

    Attributes:
        qids: ids of all queries, in the order of their first appearance.
        runs: the runs; one with another order of queries has its hits in memory.
        begins: one array per run: row of each query's first hit.
        lengths: one array per run: number of each query's hits.
    """

    qids: pl.Series
    runs: list[Run]
    begins: list[np.ndarray]
    lengths: list[np.ndarray]

    @classmethod
    def of(cls, given: Sequence[Run | pl.DataFrame], depth: int | None = None) -> Lists:
        """Align runs.

        Args:
            given: runs, opened or as tables (qid, docid, rank, score).
            depth: hits read per query; None for all.
        """
        runs = [Run.of(run) if isinstance(run, pl.DataFrame) else run for run in given]
        qids = pl.concat([run.qids for run in runs]).unique(maintain_order=True)
        joined, begins, lengths = [], [], []
        for run in runs:
            placed = qids.to_frame("qid").join(run.queries, on="qid", how="left", maintain_order="left")
            joined.append(run if placed["begin"].drop_nulls().is_sorted() else run.held())
            begin, length = (placed[name].fill_null(0).to_numpy() for name in ("begin", "length"))
            begins.append(begin)
            lengths.append(length if depth is None else np.minimum(length, depth))
        return cls(qids, joined, begins, lengths)

    @property
    def longest(self) -> list[int]:
        """Return the number of hits of the longest list of each run."""
        return [int(length.max(initial=0)) for length in self.lengths]

    def note_lengths(self, stage: str, names: Sequence[str]) -> None:
        """Note runs of which one has less than half of the hits per query: normalized scores depend on the length."""
        if 2 * min(self.longest) < max(self.longest):
            listed = ", ".join(f"{name} {hits:,}" for name, hits in zip(names, self.longest, strict=True))
            text = f"{stage}: the longest lists differ: {listed} hits; scores and weights depend on these lengths"
            console.note(text, code="list-lengths", hits=dict(zip(names, self.longest, strict=True)))

    def check_scores(self, paths: Mapping[str, Path], recipe: FusionRecipe, equal: bool) -> None:
        """Refuse distances; warn if one list dominates the sum, among those whose scores differ.

        Args:
            paths: name -> path of each run.
            recipe: method of the fusion.
            equal: the runs have equal weights.
        """
        spreads: dict[str, float] = {}
        for run, (name, path) in zip(self.runs, paths.items(), strict=True):
            if run.rising > 0.5:
                problem = f"{path}: scores rise with the rank, as distances do; negate them"
                raise InputError(problem, code="scores-rise", path=path, run=name)
            if run.deviation > 0:
                spreads[name] = run.deviation
        if recipe.sums_raw_scores and equal and spreads and min(spreads.values()) * _WIDE < max(spreads.values()):
            narrow, wide = min(spreads, key=lambda name: spreads[name]), max(spreads, key=lambda name: spreads[name])
            text = f"the standard deviation of {wide}'s scores is {spreads[wide] / spreads[narrow]:,.0f} times that of"
            text = f"{text} {narrow}'s, so {wide} nearly decides alone; pass --weights, tune them with --tune, or use"
            console.warn(f"{text} --method minmax", code="unequal-spread", run=wide, other=narrow)

    def candidates(self, scorers: Sequence[Scorer], shares: list[np.ndarray]) -> Iterator[pl.DataFrame]:
        """Yield the blocks, with exact scores of missing documents if there are scorers.

        Args:
            scorers: see `complete`; none for other rules.
            shares: the overlap of the lists of each block is added.
        """

        def watched() -> Iterator[pl.DataFrame]:
            for block in self.blocks():
                shares.append(overlap(block, len(self.runs)))
                yield block

        if not scorers:
            yield from watched()
            return
        with console.progress("score missing pairs", unit="pairs") as advance:
            yield from complete(watched(), self.qids, [_counted(scorer, advance) for scorer in scorers])

    def blocks(self) -> Iterator[pl.DataFrame]:
        """Yield the candidates of a few dozen queries at a time."""
        sizes = np.sum(self.lengths, axis=0) if len(self.qids) else np.zeros(0)
        block = np.cumsum(sizes) // BLOCK_HITS
        edges = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(self.qids)]
        for first, last in pairwise(edges):
            if last > first:
                yield self._candidates(first, last)

    def _candidates(self, first: int, last: int) -> pl.DataFrame:
        """Return the candidates of some queries: hits of the first list in order, then new hits of each other list."""
        key = ["query", "docid"]
        joined = self._hits(0, first, last)
        for number in range(1, len(self.runs)):
            more = self._hits(number, first, last).with_row_index("row")
            both = joined.join(more, on=key, how="left", maintain_order="left")
            new = np.delete(np.arange(len(more)), both["row"].drop_nulls().to_numpy())
            joined = pl.concat([both, more[new]], how="diagonal").drop("row")
        return joined

    def _hits(self, number: int, first: int, last: int) -> pl.DataFrame:
        """Return query, docid, score_i, rank_i of list i = `number` for the queries [first, last)."""
        begins, lengths = self.begins[number][first:last], self.lengths[number][first:last]
        hits = self.runs[number].gathered(begins, lengths)
        return pl.DataFrame(
            {
                "query": np.repeat(np.arange(first, last, dtype=np.uint32), lengths),
                "docid": hits["docid"],
                f"score_{number}": hits["score"].cast(pl.Float64),
                f"rank_{number}": pl.Series(ranks(lengths), dtype=pl.Float64),
            }
        )


def _counted(scorer: Scorer, advance: Callable[[int], None]) -> Scorer:
    def score(pairs: pl.DataFrame) -> pl.Series:
        scores = scorer(pairs)
        advance(len(pairs))
        return scores

    return score


def joined(hits: Sequence[pl.DataFrame], qids: pl.Series) -> pl.DataFrame:
    """Return the candidates of queries whose hits are in memory, in the order of the queries.

    Args:
        hits: one run per list: qid, docid, rank, score.
        qids: ids of the queries, by number.
    """
    numbers = pl.LazyFrame({"qid": qids}).with_row_index("query")
    sides = [
        run.lazy()
        .join(numbers, on="qid")
        .select(
            "query",
            "docid",
            pl.col("score").cast(pl.Float64).alias(f"score_{number}"),
            pl.col("rank").cast(pl.Float64).alias(f"rank_{number}"),
        )
        for number, run in enumerate(hits)
    ]
    key = ["query", "docid"]
    both = reduce(lambda left, right: left.join(right, on=key, how="full", coalesce=True), sides)
    return both.sort("query", maintain_order=True).collect()


def complete(candidates: Iterable[pl.DataFrame], qids: pl.Series, scorers: Sequence[Scorer]) -> Iterator[pl.DataFrame]:
    """Add the exact scores of missing documents to every list, and recompute the ranks of all candidates by score.

    Blocks are scored together as far as memory allows, because each call of a scorer may read all vectors of an index.

    Args:
        candidates: frames of candidates.
        qids: ids of the queries, by number.
        scorers: one function per list, from pairs (qid, docid) to scores.

    Raises:
        InputError: a scorer returned a score that is not finite.
    """
    for blocks in _groups(candidates, SCORED_AT_ONCE):
        yield from _completed(blocks, qids, scorers)


def _groups(blocks: Iterable[pl.DataFrame], rows: int) -> Iterator[list[pl.DataFrame]]:
    """Yield lists of consecutive blocks with at least `rows` rows; the last one may have fewer."""
    waiting: list[pl.DataFrame] = []
    for block in blocks:
        waiting.append(block)
        if sum(map(len, waiting)) >= rows:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _completed(blocks: list[pl.DataFrame], qids: pl.Series, scorers: Sequence[Scorer]) -> Iterator[pl.DataFrame]:
    for number, scorer in enumerate(scorers):
        score = f"score_{number}"
        absent = [np.isnan(block[score].to_numpy()) for block in blocks]  # null; no score is NaN
        if not any(mask.any() for mask in absent):
            continue
        queries, docids = (
            pl.concat([block[name].filter(pl.Series(mask)) for block, mask in zip(blocks, absent, strict=True)])
            for name in ("query", "docid")
        )
        scores = scorer(pl.DataFrame({"qid": named(queries, qids), "docid": docids})).to_numpy().astype(np.float64)
        refuse_infinite(scores, number)
        begin = 0
        for position, mask in enumerate(absent):
            block, end = blocks[position], begin + int(mask.sum())
            known = block[score].to_numpy().copy()
            known[mask] = scores[begin:end]
            blocks[position] = block.clone().replace_column(block.get_column_index(score), pl.Series(score, known))
            begin = end
    for block in blocks:
        yield _reranked(block, len(scorers))


def refuse_infinite(scores: np.ndarray, number: int) -> None:
    """Refuse exact scores of list `number`, from 0, that are not finite."""
    if not np.isfinite(scores).all():
        problem = f"some exact scores of list {number + 1} are not finite; rebuild its index"
        raise InputError(problem, code="values-not-finite")


def named(numbers: pl.Series, qids: pl.Series) -> pl.Series:
    """Return the ids of numbered queries."""
    if len(qids) == 1:  # a live query
        return pl.Series("qid", [qids[0]] * len(numbers), dtype=pl.String)
    return qids.gather(numbers).alias("qid")


def _reranked(block: pl.DataFrame, lists: int) -> pl.DataFrame:
    """Recompute the ranks of each list by score over all candidates of a query; ties are ordered by docid."""
    ranks = [
        (-pl.col(f"score_{number}")).rank("ordinal").over("query").cast(pl.Float64).alias(f"rank_{number}")
        for number in range(lists)
    ]
    return block.lazy().sort("query", "docid").with_columns(ranks).collect()


def values(candidates: pl.DataFrame, recipe: FusionRecipe) -> pl.DataFrame:
    """Normalize the scores of candidates, and fill in the values of missing documents.

    The result does not depend on the weights, so tuning computes it once.

    Returns:
        query, docid, and for list i `value_i` (null if ignored) and `present_i` (the list contains the document).
    """
    return _values(candidates, recipe).collect()


def _values(candidates: pl.DataFrame, recipe: FusionRecipe) -> pl.LazyFrame:
    lists = range(len(recipe.weights))
    normal = [
        recipe.normalized(pl.col(f"score_{number}"), pl.col(f"rank_{number}")).alias(f"value_{number}")
        for number in lists
    ]
    present = [pl.col(f"score_{number}").is_not_null().alias(f"present_{number}") for number in lists]
    filled = [fill(pl.col(f"value_{number}"), recipe.missing) for number in lists]
    frame = candidates.lazy().select("query", "docid", *normal, *present).with_columns(filled)
    if recipe.missing == "drop":
        answered = [of_query(pl.col(f"present_{number}").any()) for number in lists]
        frame = frame.filter(
            pl.all_horizontal(pl.col(f"present_{number}") | ~some for number, some in zip(lists, answered, strict=True))
        )
    return frame


def check_values(valued: pl.DataFrame, recipe: FusionRecipe, qids: pl.Series) -> None:
    """Refuse values that the rule of a method cannot rank, such as products of scores below 0.

    Args:
        valued: the result of `values`.
        recipe: method and weights.
        qids: ids of the queries, by number.
    """
    for number, weight in enumerate(recipe.weights):
        condition, why = recipe.fault(number)
        if not weight or not why:
            continue
        bad = valued.group_by("query", maintain_order=True).agg(bad=condition.fill_null(False)).filter("bad")
        if len(bad):
            qid = qids[int(bad["query"][0])]
            problem = (
                f"--method {recipe.method}: list {number + 1} has {why} (query {qid}); use --normalize minmax, another "
                "--method, or a smaller --depth"
            )
            raise InputError(problem, code="fusion-range", id=qid)


def fused(valued: pl.DataFrame, recipe: FusionRecipe) -> pl.DataFrame:
    """Return query, docid and fused score of every candidate, from the result of `values`."""
    return valued.select("query", "docid", _fused_score(recipe))


def _fused_score(recipe: FusionRecipe) -> pl.Expr:
    lists = range(len(recipe.weights))
    values, present = [pl.col(f"value_{n}") for n in lists], [pl.col(f"present_{n}") for n in lists]
    return recipe.combined(values, present).alias("score")


def _check_underflow(valued: pl.DataFrame, scored: pl.DataFrame, qids: pl.Series) -> None:
    """Refuse products of values above 0 that floating-point numbers cannot tell from 0."""
    positive = pl.all_horizontal(pl.col("^value_.*$").fill_null(1.0) > 0)
    lost = valued.filter(positive & pl.Series(scored["score"] == 0))
    if len(lost):
        qid = qids[int(lost["query"][0])]
        problem = (
            f"--method product: a score of query {qid} is too small for a floating-point number; use smaller --weights"
        )
        raise InputError(problem, code="fusion-underflow", id=qid)


def fuse_blocks(
    blocks: Iterable[pl.DataFrame], qids: pl.Series, recipe: FusionRecipe, hits: int
) -> Iterator[pl.DataFrame]:
    """Yield the fused run, one block of queries at a time, with at most `hits` documents per query.

    Args:
        blocks: candidates.
        qids: ids of the queries, by number.
        recipe: method and weights.
        hits: documents kept per query.
    """
    for block in blocks:
        run = ranked(scored(block, qids, recipe).rename({"query": "qid"}), hits)
        yield run.replace_column(0, named(run["qid"], qids))


def scored(block: pl.DataFrame, qids: pl.Series, recipe: FusionRecipe) -> pl.LazyFrame:
    """Return query, docid and fused score of the candidates of a block; see `fuse`."""
    valued = _values(block, recipe)
    if recipe.has_faults:
        checked = valued.collect()
        check_values(checked, recipe, qids)
        if recipe.multiplies:
            _check_underflow(checked, fused(checked, recipe), qids)
        valued = checked.lazy()
    return valued.select("query", "docid", _fused_score(recipe))


def overlap(candidates: pl.DataFrame, lists: int) -> np.ndarray:
    """Return the fraction of candidates that every list contains, for each query of a block."""
    everywhere = pl.all_horizontal(pl.col(f"rank_{number}").is_not_null() for number in range(lists))
    return candidates.group_by("query").agg(everywhere.mean())["rank_0"].to_numpy()
