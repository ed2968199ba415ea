"""Groups of queries: by BM25's score, by length, by terms in the relevant document (RoC, sections 4.2.2 and A.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from hybrid_cli import words

EASY, HARD = "Easy", "Hard"
CUTOFF = 10  # of the reciprocal rank that decides; ranks beyond it count as not found
NO_OVERLAP, ALL_OVERLAP = "0", "1"
_LENGTH_STEP, _LENGTH_STEPS = 40, 8
_QUERY_STEP, _QUERY_STEPS = 4, 4

Analyze = Callable[[Sequence[str]], list[list[str]]]


@dataclass(frozen=True)
class Buckets:
    """Queries, each in one bucket.

    Attributes:
        name: the property that queries are grouped by, in words.
        labels: the buckets in order; some may be empty.
        queries: qid, bucket; queries without a bucket are omitted.
        note: how the buckets were formed.
    """

    name: str
    labels: tuple[str, ...]
    queries: pl.DataFrame
    note: str = ""


def means(values: pl.DataFrame, buckets: Buckets, measure: str) -> pl.DataFrame:
    """Return the mean of a measure per run and non-empty bucket.

    Args:
        values: run, measure, qid, value.

    Returns:
        bucket, run, queries, mean: buckets in the order of their labels, runs in the order of `values`.
    """
    joined = values.filter(measure=measure).join(buckets.queries, on="qid", maintain_order="left")
    averages = joined.group_by("bucket", "run", maintain_order=True).agg(queries=pl.len(), mean=pl.mean("value"))
    rank = pl.col("bucket").replace_strict({label: n for n, label in enumerate(buckets.labels)}, return_dtype=pl.Int32)
    return averages.sort(rank, maintain_order=True)


# --------------------------------------------------------------------------------------------------- easy and hard


def easy_hard(first_sparse: pl.DataFrame, name: str) -> Buckets:
    """Split the queries in halves at the median score of the sparse run (RoC, section 4.2.2).

    Queries are ordered by reciprocal rank, then by qid, which orders the queries tied at the median. Of an odd number,
    the middle query is Hard.

    Args:
        first_sparse: qid, rank of the first relevant document of the sparse run; see `first_relevant`.
        name: name of the sparse run.
    """
    scored = first_sparse.select("qid", value=_RECIPROCAL).sort(["value", "qid"], descending=[True, False])
    half = len(scored) // 2
    bucket = pl.when(pl.int_range(pl.len()) < half).then(pl.lit(EASY)).otherwise(pl.lit(HARD))
    cut = scored["value"][half - 1] if half else 0.0
    tied = int((scored["value"] == cut).sum())
    median = f"{cut:.4f}".replace("0.", ".", 1)
    tie = f"; {tied:,} tied queries are ordered by qid" if tied > 1 else ""
    note = f"split at the median MRR@{CUTOFF} ({median}){tie}"
    return Buckets(f"difficulty for {name}", (EASY, HARD), scored.select("qid", bucket=bucket), note)


def share_above_sparse(first: pl.DataFrame, first_sparse: pl.DataFrame, easy_or_hard: Buckets) -> float:
    """Return the fraction of Hard queries on which a run's reciprocal rank exceeds that of the sparse run."""
    hard = easy_or_hard.queries.filter(bucket=HARD).select("qid")
    ours, theirs = (
        hard.join(ranks, on="qid", how="left", maintain_order="left").select(value=_RECIPROCAL)["value"]
        for ranks in (first, first_sparse)
    )
    return int((ours > theirs).sum()) / len(hard) if len(hard) else 0.0


_RECIPROCAL = pl.when(pl.col("rank") <= CUTOFF).then(1 / pl.col("rank")).otherwise(0.0)


# ------------------------------------------------------------------------------------------------ lengths and overlap


def targets(qrels: pl.DataFrame, level: int = 1, known: pl.Series | None = None) -> pl.DataFrame:
    """Return qid, docid of one relevant document per query: the first of those with the highest grade.

    Args:
        qrels: qid, docid, relevance.
        level: lowest relevant grade.
        known: docids of the corpus, since judgments may have others too; ignored if they have only others.
    """
    relevant = qrels.filter(pl.col("relevance") >= level)
    if known is not None and len(inside := relevant.filter(pl.col("docid").is_in(known.implode()))):
        relevant = inside
    return relevant.group_by("qid", maintain_order=True).agg(pl.col("docid").get(pl.col("relevance").arg_max()))


def document_length(targets: pl.DataFrame, texts: pl.DataFrame) -> Buckets:
    """Group by the number of words in the relevant document (title and text), in steps of 40 (RoC, appendix A.1).

    Args:
        targets: qid, docid, as returned by `targets`.
        texts: docid, title, text; a query without its document has no bucket.
    """
    lengths = texts.select("docid", words=words.counts(texts["title"]) + words.counts(texts["text"]))
    counted = targets.join(lengths, on="docid", maintain_order="left")
    return _by_length("words in the relevant document", counted, _LENGTH_STEP, _LENGTH_STEPS)


def query_length(queries: pl.DataFrame) -> Buckets:
    """Group by the number of words in the query (qid, text), in steps of 4."""
    counted = queries.select("qid", words=words.counts(queries["text"]))
    return _by_length("words in the query", counted, _QUERY_STEP, _QUERY_STEPS)


def _by_length(name: str, counted: pl.DataFrame, step: int, steps: int) -> Buckets:
    """Return buckets `up to 40`, `41-80`, ..., `over 320`."""
    closed = [f"{step * n + 1}-{step * (n + 1)}" for n in range(1, steps)]
    labels = (f"up to {step}", *closed, f"over {step * steps}")
    bucket = (counted["words"].cast(pl.Int64).clip(lower_bound=1) - 1) // step
    return Buckets(name, labels, counted.select("qid", bucket=pl.Series(labels).gather(bucket.clip(upper_bound=steps))))


def lexical_overlap(targets: pl.DataFrame, queries: pl.DataFrame, texts: pl.DataFrame, analyze: Analyze) -> Buckets:
    """Group by the fraction of a query's distinct terms that occur in its relevant document (title or text).

    Args:
        targets: qid, docid.
        queries: qid, text.
        texts: docid, title, text.
        analyze: texts to terms, as in the lexical index: stemmed, without stop words. A query without terms has no
            bucket.
    """
    joined = targets.join(queries.select("qid", query="text"), on="qid", maintain_order="left")
    joined = joined.join(texts, on="docid", maintain_order="left")
    query_terms = analyze(joined["query"].to_list())
    document_terms = analyze(joined.select(pl.format("{}\n{}", "title", "text")).to_series().to_list())
    shares = [
        len(set(terms) & set(document)) / len(set(terms)) if terms else None
        for terms, document in zip(query_terms, document_terms, strict=True)
    ]
    share = pl.Series("share", shares, dtype=pl.Float64)
    labels = (NO_OVERLAP, "(0, .25]", "(.25, .5]", "(.5, .75]", "(.75, 1)", ALL_OVERLAP)
    between = share.cut([0.0, 0.25, 0.5, 0.75, 1 - 1e-9], labels=list(labels)).cast(pl.String)
    framed = joined.select("qid", bucket=between).drop_nulls()
    return Buckets("fraction of query terms in the relevant document", labels, framed)
