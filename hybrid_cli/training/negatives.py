"""Negatives from the errors of a first stage: filters of candidates, and draws.

The drawing order of candidates is a hash of (seed, source, qid, positive, rank). Draws therefore do not depend on the
order of the queries, batches, other sources, or candidates that a filter drops.

Tables have one row per candidate. `example` numbers the pairs (query, positive) from 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hybrid_cli import draws
from hybrid_cli.draws import GOLDEN, Keys, keys, mix
from hybrid_cli.training.options import RANDOM, Source

SHORT, REPLACEMENTS = "short lists", "drawn in place of other sources"  # counts of a tally

Filter = Callable[[pl.DataFrame], pl.DataFrame]  # candidates -> the kept candidates, in order


@dataclass
class Tally:
    """Counts per source: candidates, dropped candidates by filter, and draws."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, source: str, what: str, number: int) -> None:
        """Add `number` to the count `what` of `source`."""
        self.counts.setdefault(source, Counter())[what] += number

    @classmethod
    def sum(cls, tallies: Iterable[Tally]) -> Tally:
        """Return the sum of all counts."""
        total = cls()
        for tally in tallies:
            for source, counts in tally.counts.items():
                total.counts.setdefault(source, Counter()).update(counts)
        return total


# --------------------------------------------------------------------------------------------------------- quotas


def seeds(examples: pl.DataFrame, seed: int, source: str) -> Keys:
    """Return 64 random bits per example (qid, docid) for a source; [E]."""
    ids = examples.select("qid", "docid").iter_rows()
    return np.array([draws.draw(seed, source, qid, docid) for qid, docid in ids], dtype=np.uint64)


def quotas(sources: Sequence[Source], examples: pl.DataFrame, prob: float, seed: int) -> dict[str, NDArray[np.int64]]:
    """Return the number of negatives that each example takes from each source.

    Args:
        sources: names with numbers of negatives.
        examples: example, qid, docid.
        prob: probability that a negative of a ranked source is drawn from this source, else from `random`. CLEAR
            (section 3.3) gives no value; our choice: 1, because its triples contain only BM25 negatives. 0 is the
            ablation with random negatives.
        seed: seed of the draws.

    Returns:
        Name -> numbers [E]; always includes `random`.
    """
    wanted = {RANDOM: np.zeros(len(examples), np.int64)}
    for source in sources:
        kept = np.full(len(examples), source.count, np.int64)
        if source.name != RANDOM and prob < 1:
            example_seeds = seeds(examples, seed, f"{source.name}?")
            chance = [keys(example_seeds, np.full(len(examples), position)) for position in range(source.count)]
            kept = np.sum([draw < np.uint64(prob * (2**64 - 1)) for draw in chance], axis=0, dtype=np.int64)
            wanted[RANDOM] += source.count - kept
        wanted[source.name] = wanted.get(source.name, 0) + kept
    return wanted


# ------------------------------------------------------------------------------------------------------ candidates


def hits_of_examples(run: pl.DataFrame, examples: pl.DataFrame, skip_top: int, depth: int) -> pl.DataFrame:
    """Return the hits at ranks `skip_top` + 1 to `depth` for each example.

    Args:
        run: qid, docid, rank, score.
        examples: example, qid, docid.
        skip_top: number of skipped top ranks.
        depth: lowest rank.

    Returns:
        example, qid, docid, position (the rank), score.
    """
    hits = run.lazy().filter(pl.col("rank").is_between(skip_top + 1, depth))
    return (
        examples.lazy()
        .select("example", "qid")
        .join(hits, on="qid", how="inner")
        .select("example", "qid", "docid", pl.col("rank").cast(pl.Int64).alias("position"), "score")
        .collect()
    )


def from_corpus(docids: pl.Series, examples: pl.DataFrame, example_seeds: Keys, number: int) -> pl.DataFrame:
    """Draw about `number` documents uniformly for each example, or all documents of a small corpus.

    Args:
        docids: ids of the corpus.
        examples: example, qid, docid.
        example_seeds: random bits per example; see `seeds`.
        number: draws per example, with replacement; repeated documents count once.

    Returns:
        example, qid, docid, position (number of the draw), score (null).
    """
    if len(docids) <= 4 * number:
        positions, rows = (np.tile(np.arange(len(docids)), len(examples)) for _ in range(2))
        count = len(docids)
    else:
        positions, count = np.tile(np.arange(number), len(examples)), number
        drawn_keys = keys(np.repeat(example_seeds, count) ^ GOLDEN, positions)
        rows = (drawn_keys % np.uint64(len(docids))).astype(np.int64)
    repeated = {name: examples[name].gather(np.repeat(np.arange(len(examples)), count)) for name in ("example", "qid")}
    drawn = pl.DataFrame({**repeated, "docid": docids.gather(rows), "position": positions})
    return drawn.unique(["example", "docid"], keep="first", maintain_order=True).with_columns(
        score=pl.lit(None, dtype=pl.Float32)
    )


def admissible(candidates: pl.DataFrame, filters: Mapping[str, Filter], source: str, tally: Tally) -> pl.DataFrame:
    """Return the candidates that every filter keeps.

    Args:
        candidates: candidates of one source; see `hits_of_examples`.
        filters: name -> filter; applied in order.
        source: name of the source.
        tally: counts the candidates that each filter drops.
    """
    for name, keep in filters.items():
        kept = keep(candidates)
        tally.add(source, name, len(candidates) - len(kept))
        candidates = kept
    return candidates


def pair_filters(forbidden: Mapping[str, pl.DataFrame]) -> dict[str, Filter]:
    """Return filters that drop pairs.

    Args:
        forbidden: name of the filter -> the pairs (qid, docid) that it drops.
    """

    def filter_of(dropped: pl.DataFrame) -> Filter:
        return lambda candidates: candidates.join(dropped, on=["qid", "docid"], how="anti", maintain_order="left")

    return {name: filter_of(dropped) for name, dropped in forbidden.items()}


def score_filters(
    positive_scores: pl.DataFrame, max_score: float | None = None, relative_margin: float | None = None
) -> dict[str, Filter]:
    """Return filters by score; candidates without a score pass.

    Args:
        positive_scores: example, score of its positive by the same source. A positive without a score gets that of the
            last candidate.
        max_score: highest score that passes.
        relative_margin: highest fraction of the positive's score that passes.
    """

    def filter_below(bound: pl.Expr) -> Filter:
        def keep(candidates: pl.DataFrame) -> pl.DataFrame:
            scored = candidates.join(
                positive_scores, on="example", how="left", maintain_order="left", suffix="_positive"
            )
            return scored.filter(pl.col("score").is_null() | (pl.col("score") <= bound)).drop("score_positive")

        return keep

    filters: dict[str, Filter] = {}
    if max_score is not None:
        filters["max score"] = filter_below(pl.lit(max_score))
    if relative_margin is not None:
        positive = pl.coalesce("score_positive", pl.col("score").min().over("example"))
        # The bound is below the score of the positive, also if that is negative.
        filters["relative margin"] = filter_below(positive - (1 - relative_margin) * positive.abs())
    return filters


def in_drawing_order(candidates: pl.DataFrame, example_seeds: Keys, keep: int) -> pl.DataFrame:
    """Return the first `keep` candidates of each example in the order of a draw without replacement.

    Args:
        candidates: example, qid, docid, position.
        example_seeds: random bits per example [E]; see `seeds`.
        keep: candidates per example.

    Returns:
        example, qid, docid, key.
    """
    drawn = keys(example_seeds[candidates["example"].to_numpy()], candidates["position"].to_numpy())
    return (
        candidates.lazy()
        .select("example", "qid", "docid")
        .with_columns(pl.Series("key", drawn))
        .filter(pl.col("key") <= pl.col("key").bottom_k(keep).max().over("example"))
        .sort("example", "key")
        .collect()
    )


# ------------------------------------------------------------------------------------------------------------ draw


def draw(pools: Mapping[str, pl.DataFrame], wanted: Mapping[str, NDArray[np.int64]], tally: Tally) -> pl.DataFrame:
    """Draw the requested numbers from the pools; documents drawn from the corpus complete short lists.

    Args:
        pools: source -> candidates in drawing order; `random` holds draws from the corpus.
        wanted: source -> negatives of each example [E].
        tally: counts draws, short lists, and draws from the corpus in place of another source.

    Returns:
        example, qid, docid, source; in random order within an example, without duplicates.
    """
    left = dict(wanted)
    chosen: list[pl.DataFrame] = []
    for source in [*(name for name in wanted if name != RANDOM), RANDOM]:
        pool = pools[source]
        for taken in chosen:
            pool = pool.join(taken, on=["example", "docid"], how="anti", maintain_order="left")
        quota = pl.Series("quota", left[source])
        turn = pl.int_range(pl.len()).over("example")
        taken = pool.filter(turn < quota.gather(pool["example"])).with_columns(pl.lit(source).alias("source"))
        counts = np.bincount(taken["example"].to_numpy(), minlength=len(quota))
        lacking = left[source] - counts
        tally.add(source, "drawn", len(taken))
        tally.add(source, SHORT, int(np.count_nonzero(lacking)))
        if source != RANDOM:
            left[RANDOM] = left[RANDOM] + lacking
        else:
            tally.add(RANDOM, REPLACEMENTS, int(np.maximum(counts - wanted[RANDOM], 0).sum()))
        chosen.append(taken)
    return _shuffled(pl.concat(chosen))


def _shuffled(chosen: pl.DataFrame) -> pl.DataFrame:
    """Return the draws with mixed sources in each list, so that a training with few negatives sees all sources."""
    again = mix(chosen["key"].to_numpy() ^ GOLDEN)
    return chosen.with_columns(pl.Series("key", again)).sort("example", "key", "docid").drop("key")


def fold_columns(*columns: str) -> pl.Expr:
    """Return the concatenated columns, with each run of white space as one space, for the comparison of texts."""
    return pl.concat_str(*columns, separator=" ").str.replace_all(r"\s+", " ").str.strip_chars()


def same_text(texts: pl.DataFrame, positives: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs of a query and a document with the text of one of its positives.

    Args:
        texts: docid, hash (of the folded text) of every document.
        positives: qid, docid.

    Returns:
        qid, docid; includes the positives.
    """
    copies = texts.filter(pl.col("hash").is_in(positives.join(texts, on="docid")["hash"].unique().implode()))
    return (
        positives.select("qid", "docid")
        .join(copies, on="docid")
        .join(copies, on="hash", suffix="_same")
        .select("qid", pl.col("docid_same").alias("docid"))
        .unique()
    )
