"""Mining of training examples with hard negatives from a collection (CLEAR, section 3.3): filters and draws.

The drawing order of candidates is a hash of (seed, source, qid, positive, rank). Draws therefore do not depend on the
order of the queries, batches, other sources, or candidates that a filter drops.

Tables have one row per candidate. `example` numbers the pairs (query, positive) from 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from hybrid_cli import cluster, console, draws, runs
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.readers.tevatron import given_negatives
from hybrid_cli.draws import GOLDEN, Keys, keys, mix
from hybrid_cli.errors import path_error
from hybrid_cli.evaluation.accuracy import matcher, passage_form
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.runs import Run
from hybrid_cli.training.options import BM25, GIVEN_FILE, RANDOM, Mining, NegativeSource

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


def seeds_of(examples: pl.DataFrame, seed: int, source: str) -> Keys:
    """Return 64 random bits per example (qid, docid) for a source; [E]."""
    ids = examples.select("qid", "docid").iter_rows()
    return np.array([draws.draw(seed, source, qid, docid) for qid, docid in ids], dtype=np.uint64)


def quotas(
    sources: Sequence[NegativeSource], examples: pl.DataFrame, prob: float, seed: int
) -> dict[str, NDArray[np.int64]]:
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
            example_seeds = seeds_of(examples, seed, f"{source.name}?")
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
        example_seeds: random bits per example; see `seeds_of`.
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

    def keep(dropped: pl.DataFrame, candidates: pl.DataFrame) -> pl.DataFrame:
        return candidates.join(dropped, on=["qid", "docid"], how="anti", maintain_order="left")

    return {name: partial(keep, dropped) for name, dropped in forbidden.items()}


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

    def keep(bound: pl.Expr, candidates: pl.DataFrame) -> pl.DataFrame:
        known = positive_scores.rename({"score": "score_positive"})
        scored = candidates.join(known, on="example", how="left", maintain_order="left")
        return scored.filter(pl.col("score").is_null() | (pl.col("score") <= bound)).drop("score_positive")

    filters: dict[str, Filter] = {}
    if max_score is not None:
        filters["max score"] = partial(keep, pl.lit(max_score))
    if relative_margin is not None:
        positive = pl.coalesce("score_positive", pl.col("score").min().over("example"))
        # The bound is below the score of the positive, also if that is negative.
        filters["relative margin"] = partial(keep, positive - (1 - relative_margin) * positive.abs())
    return filters


def in_drawing_order(candidates: pl.DataFrame, example_seeds: Keys, keep: int) -> pl.DataFrame:
    """Return the first `keep` candidates of each example in the order of a draw without replacement.

    Args:
        candidates: example, qid, docid, position.
        example_seeds: random bits per example [E]; see `seeds_of`.
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
    drawn = pl.concat(chosen)
    again = mix(drawn["key"].to_numpy() ^ GOLDEN)  # mixes the sources, so that a training with few negatives sees all
    return drawn.with_columns(pl.Series("key", again)).sort("example", "key", "docid").drop("key")


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


EXAMPLES_AT_ONCE = 4096
_DOCUMENT_BYTES, _NEGATIVE_BYTES = 96, 160  # id and hash of a document; a drawn negative, with copies
LOOK_AHEAD = 64  # minimum number of candidates per example that the answer filter reads; later ones are not drawn

_TEACHER = "teacher_score"
_NO_SCORES = pl.DataFrame(schema={"example": pl.UInt32, "score": pl.Float32})


def pairs(queries: pl.DataFrame, qrels: pl.DataFrame, first: bool = False) -> pl.DataFrame:
    """Return every pair of a query and a relevant document, in the order of the queries.

    Args:
        queries: qid.
        qrels: qid, docid, relevance.
        first: keep the first relevant document of each query, in the order of the judgments.

    Returns:
        example, qid, docid.
    """
    relevant = qrels.filter(pl.col("relevance") > 0)
    relevant = relevant.unique("qid", keep="first", maintain_order=True) if first else relevant
    return (
        queries.select("qid")
        .with_row_index("_query")
        .join(relevant.select("qid", "docid"), on="qid")
        .sort("_query", "docid")
        .drop("_query")
        .with_row_index("example")
    )


@dataclass(kw_only=True, eq=False)
class Miner:
    """Draws negatives for pairs of a query and a relevant document.

    Attributes:
        collection: the collection.
        plan: sources with their numbers of negatives.
        how: draws and filters.
        queries: qid, text, answers.
        open_index: opens the lexical index, for the source `bm25` and for exact lexical scores; each process calls it.
        depth: lowest rank from which negatives are drawn; 0 without a source that ranks.
        where: processes that compute blocks of examples.
        remedy: advice for fewer negatives, for messages.
        scores: run with the scores of a teacher; documents that it lacks are neither positives nor negatives.
        tally: counts per source: candidates, dropped candidates by filter, and draws.
        forbidden: name of a filter -> pairs that are never negatives.
        docids: ids of the corpus.
    """

    collection: Path
    plan: Sequence[NegativeSource]
    how: Mining
    queries: pl.DataFrame
    open_index: Callable[[], LexicalIndex] | None
    depth: int
    where: cluster.Workers
    remedy: str
    scores: Path | None
    tally: Tally = field(default_factory=Tally)
    forbidden: dict[str, pl.DataFrame] = field(default_factory=dict)
    docids: pl.Series = field(default_factory=lambda: pl.Series("docid", [], dtype=pl.String))

    def __post_init__(self) -> None:
        self._open()

    def _open(self) -> None:
        self.index = self.open_index() if self.open_index else None
        self.runs = {source.name: _run(source.run, self.queries) for source in self.plan if source.run}
        self.runs |= {source.name: Run.of(given_negatives(source.given)) for source in self.plan if source.given}
        self.teacher = _run(self.scores, self.queries) if self.scores else None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("index", "runs", "teacher")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()  # each process of a cluster opens the files itself

    def forbid(self, examples: pl.DataFrame, judged: pl.DataFrame, own: bool) -> pl.DataFrame:
        """Read the corpus once: ids, and documents with the text of a positive.

        Args:
            examples: example, qid, docid.
            judged: qid, docid of all relevant documents, which are never negatives.
            own: the document with the id of a query is the query itself, and never a negative.

        Returns:
            Examples whose positive is in the corpus, and has text and a score of the teacher, if there is one.
        """
        collection, parts = self.collection, []
        documents = collections.document_count(collection)
        drawn = len(examples) * sum(source.count for source in self.plan)
        needed = _DOCUMENT_BYTES * documents + _NEGATIVE_BYTES * drawn
        console.forecast(needed, f"mine-negatives with {drawn:,} negatives", self.remedy)
        with console.progress("read corpus", documents, "documents") as advance:
            for batch in collections.documents(collection):
                frame = pl.DataFrame(pl.from_arrow(batch))
                parts.append(frame.select("docid", fold_columns("title", "text").hash().alias("hash")))
                advance(len(batch))
        corpus = pl.concat(parts)
        self.docids = corpus["docid"]
        known = _known(examples, corpus, collection)
        self.forbidden["judged relevant"] = judged.select("qid", "docid")
        if own:
            self.forbidden["the query itself"] = self.queries.select("qid", docid="qid")
        self.forbidden["text of a positive"] = same_text(corpus, known)
        return known if self.teacher is None else self._taught(known)

    def mine(self, examples: pl.DataFrame) -> pl.DataFrame:
        """Draw the negatives of all examples.

        Returns:
            example, qid, docid, source.
        """
        chosen, tallies = list[pl.DataFrame](), list[Tally]()
        parts = list(examples.iter_slices(EXAMPLES_AT_ONCE))
        with console.progress("mine", len(examples), "examples") as advance:
            start: Callable[[], Callable[[pl.DataFrame], tuple[pl.DataFrame, Tally]]]
            start = partial(getattr, self, "mine_block")
            blocks = cluster.map_blocks(self.where, start, parts)
            for part, (drawn, tally) in zip(parts, blocks, strict=True):
                chosen.append(drawn)
                tallies.append(tally)
                advance(len(part))
        self.tally = Tally.sum(tallies)
        return pl.concat(chosen)

    def mine_block(self, part: pl.DataFrame) -> tuple[pl.DataFrame, Tally]:
        """Draw the negatives of a block of examples, and count; see `mine`."""
        how, first, self.tally = self.how, part["example"][0], Tally()
        total = sum(source.count for source in self.plan)
        keep = max(LOOK_AHEAD, 8 * total) if how.answer_filter else 2 * total
        part = part.with_columns(pl.col("example") - first)
        wanted = quotas(self.plan, part, how.prob, how.seed)
        pools = {source: self._pool(source, part, keep, bool(wanted[source].any())) for source in wanted}
        if how.answer_filter:
            pools = self._without_answers(pools)
        drawn = draw(pools, wanted, self.tally)
        return drawn.with_columns(pl.col("example") + first), self.tally

    def _pool(self, source: str, examples: pl.DataFrame, keep: int, needed: bool) -> pl.DataFrame:
        """Return the candidates of one source, filtered, in drawing order."""
        how = self.how
        seeds = seeds_of(examples, how.seed, source)
        if source == RANDOM:
            candidates, positives = from_corpus(self.docids, examples, seeds, LOOK_AHEAD + keep), _NO_SCORES
        else:
            run, positives = self._retrieved(source, examples) if needed else (runs.empty(), _NO_SCORES)
            candidates = hits_of_examples(run, examples, how.skip_top, self.depth)
            if source == GIVEN_FILE:  # a sample of the corpus has only some of them
                candidates = candidates.filter(pl.col("docid").is_in(self.docids.implode()))
        self.tally.add(source, "candidates", len(candidates))
        filters = {**pair_filters(self.forbidden), **score_filters(positives, how.max_score, how.relative_margin)}
        if self.teacher is not None:
            filters["no teacher score"] = lambda rows: self._with_teacher(rows).drop_nulls(_TEACHER).drop(_TEACHER)
        return in_drawing_order(admissible(candidates, filters, source, self.tally), seeds, keep)

    def _retrieved(self, source: str, examples: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the hits of a source, and the scores of the positives if a filter needs them."""
        queries = self.queries.join(examples, on="qid", how="semi", maintain_order="left").select("qid", "text")
        index = self.index if source == BM25 else None
        run = index.search(queries, self.depth) if index else self.runs[source].of_queries(queries["qid"]).table()
        if self.how.relative_margin is None:
            return run, _NO_SCORES
        if index:
            return run, examples.select("example", index.scorer(queries)(examples).alias("score"))
        scored = examples.join(run, on=["qid", "docid"], how="left", maintain_order="left")
        return run, scored.select("example", "score")

    def _without_answers(self, pools: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        """Drop candidates whose text contains an answer; only candidates that may be drawn are read."""
        read = pl.concat([pool.select("qid", "docid") for pool in pools.values()]).unique()
        texts = collections.texts(self.collection, read["docid"])
        forms = dict(zip(texts["docid"], map(passage_form, texts["text"]), strict=True))
        answers = self.queries.filter(pl.col("answers").list.len() > 0).select("qid", "answers")
        kept = []
        for (qid,), group in read.join(answers, on="qid").group_by("qid"):
            contains_answer = matcher(group["answers"][0])
            kept += [(qid, docid) for docid in group["docid"] if contains_answer(forms.get(docid, ""))]
        dropped = pl.DataFrame(kept, schema={"qid": pl.String, "docid": pl.String}, orient="row")
        filters = pair_filters({"contains an answer": dropped})
        return {source: admissible(pool, filters, source, self.tally) for source, pool in pools.items()}

    def rows(self, examples: pl.DataFrame, chosen: pl.DataFrame) -> Iterator[pa.Table]:
        """Yield training examples with texts and exact lexical scores.

        Raises:
            InputError: a source retrieved a document that is not in the corpus.
        """
        scored_examples = self._scored(examples).join(self.queries.select("qid", query="text"), on="qid")
        scored = self._scored(chosen)
        scored_examples = scored_examples.sort("example")
        mine = scored.join(scored_examples, on="example", how="semi", maintain_order="left")
        texts = self._texts(pl.concat([scored_examples["docid"], mine["docid"]]).unique())
        for some in scored_examples.iter_slices(EXAMPLES_AT_ONCE):
            yield _nested(some, mine.join(some, on="example", how="semi", maintain_order="left"), texts)

    def _texts(self, wanted: pl.Series) -> pl.DataFrame:
        collection = self.collection
        texts = collections.texts(collection, wanted)
        if len(texts) < len(wanted):
            missing = wanted.filter(~wanted.is_in(texts["docid"].implode())).sort()[0]
            raise path_error(collection, f"has no document {missing} of --sources", code="other-corpus", id=missing)
        return texts

    def _taught(self, examples: pl.DataFrame) -> pl.DataFrame:
        """Return the examples whose positive has a score of the teacher, renumbered from 0."""
        scored, run = self._with_teacher(examples), self.scores
        missing, kept = scored.filter(pl.col(_TEACHER).is_null()), scored.drop_nulls(_TEACHER).drop(_TEACHER)
        if not len(kept):
            problem = f"scores no relevant document ({_names(missing)}); pass a run of this split that ranks them"
            raise path_error(run, problem, code="no-scores")
        if len(missing):
            some = f"{console.counted(example=len(missing))} of {len(scored):,}"
            problem = f"{run}: lacks the relevant document of {some} ({_names(missing)}), which are left out"
            console.warn(problem, code="positives-without-score", path=run, count=len(missing))
        return kept.drop("example").with_row_index("example")

    def _with_teacher(self, pairs: pl.DataFrame) -> pl.DataFrame:
        """Return the pairs with the score of the teacher: null if its run lacks them, or without a teacher."""
        if self.teacher is None:
            return pairs.with_columns(pl.lit(None, pl.Float32).alias(_TEACHER))
        blocks = self.teacher.of_queries(pairs["qid"]).blocks()
        hits = pl.concat([runs.empty(), *(block.join(pairs, on=["qid", "docid"], how="semi") for block in blocks)])
        scores = hits.select("qid", "docid", pl.col("score").alias(_TEACHER))
        return pairs.join(scores, on=["qid", "docid"], how="left", maintain_order="left")

    def _scored(self, candidates: pl.DataFrame) -> pl.DataFrame:
        candidates = self._with_teacher(candidates)
        if self.index is None:
            return candidates.with_columns(lexical_score=pl.lit(None, dtype=pl.Float32))
        queries = self.queries.select("qid", "text")
        return candidates.with_columns(
            self.index.scorer(queries)(candidates.select("qid", "docid")).alias("lexical_score")
        )


@dataclass(frozen=True)
class MinedCollection:
    """The examples of one collection.

    Attributes:
        skipped: number of queries without a relevant document.
    """

    examples: pl.DataFrame
    chosen: pl.DataFrame
    miner: Miner
    skipped: int

    @classmethod
    def of(cls, miner: Miner, qrels: pl.DataFrame, first: bool, own: bool) -> MinedCollection:
        """Choose the negatives of all examples.

        Args:
            miner: draws negatives for its queries.
            qrels: qid, docid, relevance.
            first: keep the first relevant document of each query.
            own: the document with the id of a query is the query itself.

        Raises:
            InputError: no query has a relevant document.
        """
        judged = pairs(miner.queries, qrels)
        if not len(judged):
            raise path_error(miner.collection, "has no relevant document for any query", code="no-judgments")
        positives = pairs(miner.queries, qrels, True) if first else judged
        examples = miner.forbid(positives, judged, own)
        return cls(examples, miner.mine(examples), miner, len(miner.queries) - judged["qid"].n_unique())

    def counts(self) -> dict[str, int]:
        """Return counts for the manifest."""
        return {
            "queries": self.examples["qid"].n_unique(),
            "queries_without_positive": self.skipped,
            "negatives": len(self.chosen),
        }


def _run(path: Path, queries: pl.DataFrame) -> Run:
    """Open a run for reading in the order of the queries."""
    run = runs.open_run(path)
    if len(run.qids) and not run.qids.is_in(queries["qid"].implode()).any():
        raise path_error(path, f"has no query of the split, but {run.qids[0]}", code="other-queries", id=run.qids[0])
    in_order = run.in_order(queries["qid"])
    return replace(run.of_queries(queries["qid"]), reader=in_order.reader, in_memory=in_order.in_memory)


def _known(examples: pl.DataFrame, corpus: pl.DataFrame, where: Path) -> pl.DataFrame:
    """Return the examples whose positive is in the corpus and has text, renumbered from 0."""
    joined, blank = examples.join(corpus, on="docid", how="left", maintain_order="left"), pl.Series([""]).hash()[0]
    known = joined.filter(pl.col("hash") != blank).drop("hash")
    missing, empty = joined.filter(pl.col("hash").is_null()), joined.filter(hash=blank)
    if len(examples) and not len(known):
        reason = "none of the relevant documents" if len(missing) else "no relevant document with text"
        raise path_error(where, f"has {reason} ({_names(missing if len(missing) else empty)})", code="other-corpus")
    for skipped, what, code in (
        (missing, "outside of the corpus", "documents-outside-corpus"),
        (empty, "without title and text", "documents-without-text"),
    ):
        if len(skipped):
            count = skipped["docid"].n_unique()
            documents = console.counted(**{"relevant document": count})
            problem = f"{where}: skips {documents} {what} ({_names(skipped)})"
            ids = skipped["docid"].unique(maintain_order=True).head(3).to_list()
            console.warn(problem, code=code, path=where, count=count, ids=ids)
    return known.drop("example").with_row_index("example")


def _names(examples: pl.DataFrame) -> str:
    """Return the first ids of positives, in words."""
    docids = examples["docid"].unique(maintain_order=True)
    return ", ".join(docids.head(3)) + (", ..." if len(docids) > 3 else "")


def _nested(examples: pl.DataFrame, chosen: pl.DataFrame, texts: pl.DataFrame) -> pa.Table:
    """Return one row per example, with its negatives as a list of records."""
    fields = ["docid", "title", "text", "lexical_score", "source", "teacher_score"]
    lists = (
        chosen.join(texts, on="docid", maintain_order="left")
        .select("example", pl.struct(fields).alias("negatives"))
        .group_by("example", maintain_order=True)
        .agg("negatives")
    )
    return (
        examples.join(texts, on="docid", maintain_order="left")
        .join(lists, on="example", how="left", maintain_order="left")
        .with_columns(pl.col("negatives").fill_null([]))
        .to_arrow(compat_level=pl.CompatLevel.oldest())
    )
