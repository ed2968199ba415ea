"""Negatives from the errors of a first stage: which candidates may be one, and which of them are drawn.

A candidate's place in the drawing order is a hash of (seed, source, qid, positive, rank). So a draw does not depend on
the order of the queries, on how they are batched, on the other sources, or on what the filters dropped.

Tables hold one row a candidate. `example` numbers the pairs (query, positive) from 0.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hybrid_cli.errors import InputError

BM25 = "bm25"
RANDOM = "random"
RUN = "run"
Keys = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Source:
    """Where negatives come from (`bm25`, `random`, or the name of a run) and how many of each list."""

    name: str
    count: int
    run: Path | None = None


def parse_sources(text: str, num_negatives: int | None, default: int) -> list[Source]:
    """Read `bm25:6,random:2` or `run:out/dense.parquet:4`; a single source without a number gives all negatives.

    Raises:
        InputError: unknown source, a number missing or below 1, a name twice, or a sum that is not `num_negatives`.
    """
    items = [item.strip() for item in text.split(",") if item.strip()]
    sources = [_parse_source(item, (num_negatives or default) if len(items) == 1 else None) for item in items]
    names = Counter(source.name for source in sources)
    if not sources or max(names.values()) > 1:
        raise InputError(f"--sources {text}: each source must stand there once, under a name of its own")
    total = sum(source.count for source in sources)
    if num_negatives is not None and total != num_negatives:
        raise InputError(f"--sources {text}: the numbers add up to {total}, --num-negatives says {num_negatives}")
    return sources


def _parse_source(item: str, default: int | None) -> Source:
    head, separator, tail = item.rpartition(":")
    numbered = bool(separator) and tail.isdecimal()
    name, count = (head, int(tail)) if numbered else (item, default)
    if count is None or count < 1:
        raise InputError(f"--sources {item}: say how many negatives it gives, as in bm25:6,random:2")
    if name in (BM25, RANDOM):
        return Source(name, count)
    prefix, _, path = name.partition(":")
    if prefix != RUN or not path:
        raise InputError(f"--sources {item}: is none of bm25:N, random:N, run:PATH:N")
    stem = Path(path).stem
    return Source(f"{RUN}:{stem}" if stem in (BM25, RANDOM) else stem, count, Path(path))


@dataclass
class Tally:
    """How many candidates of each source came in, were dropped by which filter, and were drawn."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, source: str, what: str, number: int) -> None:
        """Count `number` more of `what` for `source`."""
        self.counts.setdefault(source, Counter())[what] += number

    def total(self, what: str) -> int:
        """The sum of `what` over the sources."""
        return sum(counter[what] for counter in self.counts.values())


# ---------------------------------------------------------------------------------------------------------- keys


def seeds(examples: pl.DataFrame, seed: int, source: str) -> Keys:
    """64 random bits for each example (qid, docid), of `seed` and `source`; [E]."""
    return np.array(
        [
            int.from_bytes(hashlib.blake2b("\0".join((str(seed), source, *ids)).encode(), digest_size=8).digest())
            for ids in examples.select("qid", "docid").iter_rows()
        ],
        dtype=np.uint64,
    )


def _mixed(bits: Keys) -> Keys:
    """SplitMix64's finaliser: equal inputs give equal outputs, neighbours give unrelated ones."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def keys(example_seeds: Keys, places: NDArray[np.int64]) -> Keys:
    """A uniform 64-bit key for each (example, place)."""
    return _mixed(example_seeds + (places.astype(np.uint64) + np.uint64(1)) * _GOLDEN)


def quotas(sources: Sequence[Source], examples: pl.DataFrame, prob: float, seed: int) -> dict[str, NDArray[np.int64]]:
    """How many negatives each example takes from each source; [E] for each name, `random` always among them.

    Each place of a source that retrieves keeps it with probability `prob`, else the place goes to `random`
    (CLEAR 3.3: 1 is the published setting, 0 the ablation without error-based negatives).
    """
    wanted = {RANDOM: np.zeros(len(examples), np.int64)}
    for source in sources:
        kept = np.full(len(examples), source.count, np.int64)
        if source.name != RANDOM and prob < 1:
            example_seeds = seeds(examples, seed, f"{source.name}?")
            chance = [keys(example_seeds, np.full(len(examples), place)) for place in range(source.count)]
            kept = np.sum([draw < np.uint64(prob * (2**64 - 1)) for draw in chance], axis=0, dtype=np.int64)
            wanted[RANDOM] += source.count - kept
        wanted[source.name] = wanted.get(source.name, 0) + kept
    return wanted


# ------------------------------------------------------------------------------------------------------ candidates


def retrieved(run: pl.DataFrame, examples: pl.DataFrame, skip_top: int, depth: int) -> pl.DataFrame:
    """The hits at ranks (skip_top, depth] for each example: example, qid, docid, place, score.

    Args:
        run: qid, docid, rank, score.
        examples: example, qid, docid.
    """
    hits = run.lazy().filter(pl.col("rank").is_between(skip_top + 1, depth))
    return (
        examples.lazy()
        .select("example", "qid")
        .join(hits, on="qid", how="inner")
        .select("example", "qid", "docid", pl.col("rank").cast(pl.Int64).alias("place"), "score")
        .collect()
    )


def from_corpus(docids: pl.Series, examples: pl.DataFrame, example_seeds: Keys, number: int) -> pl.DataFrame:
    """About `number` documents drawn uniformly for each example (all of a small corpus), as `retrieved` gives hits.

    They have no score. Their place is the turn in which they were drawn.
    """
    if len(docids) <= 4 * number:
        places, rows = (np.tile(np.arange(len(docids)), len(examples)) for _ in range(2))
        count = len(docids)
    else:
        places, count = np.tile(np.arange(number), len(examples)), number
        draws = keys(np.repeat(example_seeds, count) ^ _GOLDEN, places)
        rows = (draws % np.uint64(len(docids))).astype(np.int64)
    repeated = {name: examples[name].gather(np.repeat(np.arange(len(examples)), count)) for name in ("example", "qid")}
    drawn = pl.DataFrame({**repeated, "docid": docids.gather(rows), "place": places})
    return drawn.unique(["example", "docid"], keep="first", maintain_order=True).with_columns(
        score=pl.lit(None, dtype=pl.Float32)
    )


@dataclass(frozen=True)
class Limits:
    """Filters by score: at most `max_score`, at most `relative_margin` of the positive's score (NV-Retriever: 0.95)."""

    relative_margin: float | None = None
    max_score: float | None = None


def admissible(
    candidates: pl.DataFrame,
    forbidden: Mapping[str, pl.DataFrame],
    limits: Limits,
    positive_scores: pl.DataFrame,
    source: str,
    tally: Tally,
) -> pl.DataFrame:
    """The candidates that no filter drops; `tally` learns how many each one did, in the order of the filters.

    Args:
        candidates: as `retrieved` gives them.
        forbidden: name of the filter -> pairs (qid, docid) that it drops.
        positive_scores: example, score of its positive by the same source; null where the source did not retrieve
            it, and then it is taken as no better than the last candidate.
        limits: candidates without a score pass.
    """
    tally.add(source, "candidates", len(candidates))
    left = candidates
    for name, pairs in forbidden.items():
        kept = left.join(pairs, on=["qid", "docid"], how="anti", maintain_order="left")
        tally.add(source, name, len(left) - len(kept))
        left = kept
    for name, keep in _score_filters(limits).items():
        kept = left.join(positive_scores, on="example", how="left", maintain_order="left", suffix="_positive")
        kept = kept.filter(pl.col("score").is_null() | keep).drop("score_positive")
        tally.add(source, name, len(left) - len(kept))
        left = kept
    return left


def _score_filters(limits: Limits) -> dict[str, pl.Expr]:
    filters: dict[str, pl.Expr] = {}
    if limits.max_score is not None:
        filters["max score"] = pl.col("score") <= limits.max_score
    if limits.relative_margin is not None:
        positive = pl.coalesce("score_positive", pl.col("score").min().over("example"))
        bound = positive - (1 - limits.relative_margin) * positive.abs()  # below it for negative scores, too
        filters["relative margin"] = pl.col("score") <= bound
    return filters


def in_drawing_order(candidates: pl.DataFrame, example_seeds: Keys, keep: int) -> pl.DataFrame:
    """The first `keep` candidates of each example in the order in which a draw without replacement takes them.

    Returns:
        example, qid, docid, key.
    """
    drawn = keys(example_seeds[candidates["example"].to_numpy()], candidates["place"].to_numpy())
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
    """Take what each example wants from each pool; what a pool lacks comes from the corpus, and is counted.

    Args:
        pools: source -> candidates in drawing order; `random` holds draws from the corpus.
        wanted: source -> number for each example [E].

    Returns:
        example, qid, docid, source; the lists of an example in random order, no document twice in one.
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
        lacking = left[source] - np.bincount(taken["example"].to_numpy(), minlength=len(quota))
        tally.add(source, "drawn", len(taken))
        tally.add(source, "lists short of it", int(np.count_nonzero(lacking)))
        if source != RANDOM:
            left[RANDOM] = left[RANDOM] + lacking
            tally.add(RANDOM, "drawn in place of others", int(lacking.sum()))
        chosen.append(taken)
    return _shuffled(pl.concat(chosen))


def _shuffled(chosen: pl.DataFrame) -> pl.DataFrame:
    """Mix the sources within each list, so that the first negatives are not all of one source."""
    again = _mixed(chosen["key"].to_numpy() ^ _GOLDEN)
    return chosen.with_columns(pl.Series("key", again)).sort("example", "key", "docid").drop("key")


def folded(*columns: str) -> pl.Expr:
    """The columns (title, text) joined, every run of white space as one space: what 'the same text' compares."""
    return pl.concat_str(*columns, separator=" ").str.replace_all(r"\s+", " ").str.strip_chars()


def same_text(texts: pl.DataFrame, positives: pl.DataFrame) -> pl.DataFrame:
    """Pairs (qid, docid) of a query and a document whose text is that of one of its positives.

    Args:
        texts: docid, hash of its folded text, for every document.
        positives: qid, docid.
    """
    copies = texts.filter(pl.col("hash").is_in(positives.join(texts, on="docid")["hash"].unique().implode()))
    return (
        positives.select("qid", "docid")
        .join(copies, on="docid")
        .join(copies, on="hash", suffix="_same")
        .select("qid", pl.col("docid_same").alias("docid"))
        .unique()
    )
