"""`hybrid mine-negatives`: training examples whose negatives are the errors of a first stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from hybrid_cli import artifacts, console, runs
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.answers import matcher, passage_form
from hybrid_cli.config import Mining
from hybrid_cli.errors import InputError
from hybrid_cli.lexical.index import LexicalIndex, check_corpus
from hybrid_cli.training import negatives
from hybrid_cli.training.negatives import BM25, RANDOM, Limits, Source, Tally

EXAMPLES_AT_ONCE = 4096
LOOK_AHEAD = 64


def mine_negatives(
    collection: Path,
    *,
    output: Path,
    split: str | None = None,
    index: Path | None = None,
    queries: Path | None = None,
    qrels: Path | None = None,
    sources: str = Mining.sources,
    depth: int = Mining.depth,
    skip_top: int = Mining.skip_top,
    num_negatives: int | None = None,
    prob: float = Mining.prob,
    seed: int = Mining.seed,
    exclude_same_text: bool = True,
    answer_filter: bool = False,
    relative_margin: float | None = None,
    max_score: float | None = None,
    threads: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Write one training example for each pair of a query and a document judged relevant, and print what was dropped.

    Args:
        collection: its corpus, and its queries and judgements of `split` unless `queries` or `qrels` name files.
        index: lexical index of the same corpus; needed by the source `bm25`. Without it lexical scores are null.
        sources: as in `bm25:6,random:2` or `run:PATH:8`.
        depth: negatives come from ranks (`skip_top`, `depth`].
        prob: probability that a place keeps its source; else the place goes to a random document.
        exclude_same_text: drop candidates whose title and text are those of a positive, white space aside.
        answer_filter: drop candidates whose text holds an answer, among the first 64 (or eight times the number wanted)
            in drawing order.
        relative_margin: drop candidates that score above this share of the positive's score.

    Raises:
        InputError: unusable inputs or options; a judged document that the corpus lacks; no query with a positive.
    """
    plan = negatives.parse_sources(sources, num_negatives, Mining.num_negatives)
    _check_options(plan, index, depth, skip_top, prob)
    query_file = queries or collections.queries_path(collection, split)
    qrels_file = qrels or collections.qrels_path(collection, split)
    inputs = {"corpus": collections.corpus_path(collection), "queries": query_file, "qrels": qrels_file}
    claim = artifacts.open_output(
        output,
        Kind.EXAMPLES,
        "mine-negatives",
        inputs=inputs
        | ({"index": index} if index else {})
        | {f"run {source.name}": source.run for source in plan if source.run},
        options={
            "sources": {source.name: source.count for source in plan},
            "depth": depth,
            "skip_top": skip_top,
            "prob": prob,
            "seed": seed,
            "exclude_same_text": exclude_same_text,
            "answer_filter": answer_filter,
            "relative_margin": relative_margin,
            "max_score": max_score,
        },
        overwrite=overwrite,
    )
    if claim.up_to_date:
        return output
    if index:
        check_corpus(index, inputs["corpus"])
    questions = collections.read_queries(query_file)
    if answer_filter and not questions["answers"].list.len().sum():
        raise InputError(f"{query_file}: no question has answers, so --answer-filter has nothing to look for")
    examples, skipped = _examples(questions, collections.read_qrels(qrels_file), qrels_file)
    miner = _Miner(
        collection, questions, index, plan, (skip_top, depth), seed, Limits(relative_margin, max_score), threads
    )
    examples = miner.forbid(examples, exclude_same_text)
    chosen = miner.mine(examples, prob, answer_filter)
    manifest = claim.write(
        miner.rows(examples, chosen),
        queries=examples["qid"].n_unique(),
        queries_without_positive=skipped,
        negatives=len(chosen),
        tally={source: dict(counter) for source, counter in miner.tally.counts.items()},
    )
    _report(miner.tally, manifest.counts, output)
    return output


def _check_options(plan: list[Source], index: Path | None, depth: int, skip_top: int, prob: float) -> None:
    if skip_top >= depth:
        raise InputError(f"--skip-top {skip_top} leaves nothing of --depth {depth}; lower the one or raise the other")
    if not 0 <= prob <= 1:
        raise InputError(f"--prob {prob}: a probability lies between 0 and 1")
    if index is None and any(source.name == BM25 for source in plan):
        raise InputError("the source bm25 needs --index, a lexical index of the collection (`hybrid index-bm25`)")


def _examples(queries: pl.DataFrame, qrels: pl.DataFrame, qrels_file: Path) -> tuple[pl.DataFrame, int]:
    """(example, qid, docid), in the order of the queries; and how many queries have no positive."""
    relevant = qrels.filter(pl.col("relevance") > 0)
    examples = (
        queries.select("qid")
        .with_row_index("_query")
        .join(relevant.select("qid", "docid"), on="qid")
        .sort("_query", "docid")
        .drop("_query")
        .with_row_index("example")
    )
    if not len(examples):
        raise InputError(f"{qrels_file}: judges no document relevant to any of the {len(queries):,} queries")
    return examples, len(queries) - examples["qid"].n_unique()


def _known(examples: pl.DataFrame, corpus: pl.DataFrame, where: Path) -> pl.DataFrame:
    """The examples whose positive the corpus has, numbered anew."""
    known = examples.join(corpus, on="docid", how="semi", maintain_order="left")
    missing = examples.join(corpus, on="docid", how="anti", maintain_order="left")["docid"].unique(maintain_order=True)
    if len(missing):
        names = ", ".join(missing.head(3)) + (", ..." if len(missing) > 3 else "")
        if not len(known):
            raise InputError(f"{where}: has none of the documents judged relevant ({names}); name the right collection")
        console.warn(f"{where}: {len(missing):,} documents judged relevant are not in the corpus ({names}); left out")
    return known.drop("example").with_row_index("example")


class _Miner:
    """What mining needs at hand: the corpus, the index, the filters and the tally."""

    def __init__(
        self,
        collection: Path,
        queries: pl.DataFrame,
        index: Path | None,
        plan: list[Source],
        ranks: tuple[int, int],
        seed: int,
        limits: Limits,
        threads: int | None,
    ):
        self.collection, self.queries, self.plan = collection, queries, plan
        self.index = LexicalIndex.open(index) if index else None
        self.runs = {source.name: runs.read_run(source.run) for source in plan if source.run}
        self.skip_top, self.depth = ranks
        self.seed, self.limits, self.threads = seed, limits, threads
        self.tally = Tally()
        self.forbidden: dict[str, pl.DataFrame] = {}
        self.docids = pl.Series("docid", [], dtype=pl.String)

    def forbid(self, examples: pl.DataFrame, exclude_same_text: bool) -> pl.DataFrame:
        """Read the corpus once: its ids, and which documents repeat the text of a positive.

        Returns:
            the examples whose document the corpus has.
        """
        parts = []
        with console.progress("read corpus", len(collections.docids(self.collection)), "documents") as advance:
            for batch in collections.documents(self.collection):
                frame = pl.DataFrame(pl.from_arrow(batch))
                parts.append(frame.select("docid", negatives.folded("title", "text").hash().alias("hash")))
                advance(len(batch))
        corpus = pl.concat(parts)
        self.docids = corpus["docid"]
        known = _known(examples, corpus, self.collection)
        self.forbidden["judged relevant"] = examples.select("qid", "docid")
        if exclude_same_text:
            self.forbidden["text of a positive"] = negatives.same_text(corpus, known)
        return known

    def mine(self, examples: pl.DataFrame, prob: float, answer_filter: bool) -> pl.DataFrame:
        """The negatives of all examples: example, qid, docid, source."""
        chosen = []
        with console.progress("mine", len(examples), "examples") as advance:
            for part in examples.iter_slices(EXAMPLES_AT_ONCE):
                first = part["example"][0]
                part = part.with_columns(pl.col("example") - first)
                wanted = negatives.quotas(self.plan, part, prob, self.seed)
                total = sum(source.count for source in self.plan)
                keep = max(LOOK_AHEAD, 8 * total) if answer_filter else 2 * total
                pools = {source: self._pool(source, part, keep, bool(wanted[source].any())) for source in wanted}
                if answer_filter:
                    pools = self._without_answers(pools)
                drawn = negatives.draw(pools, wanted, self.tally)
                chosen.append(drawn.with_columns(pl.col("example") + first))
                advance(len(part))
        return pl.concat(chosen)

    def _pool(self, source: str, examples: pl.DataFrame, keep: int, needed: bool) -> pl.DataFrame:
        """Candidates of one source for some examples, filtered, in drawing order."""
        seeds = negatives.seeds(examples, self.seed, source)
        if source == RANDOM:
            number = LOOK_AHEAD + keep
            candidates = negatives.from_corpus(self.docids, examples, seeds, number)
            positives = _NO_SCORES
        else:
            run, positives = self._retrieved(source, examples) if needed else (runs.empty(), _NO_SCORES)
            candidates = negatives.retrieved(run, examples, self.skip_top, self.depth)
        left = negatives.admissible(candidates, self.forbidden, self.limits, positives, source, self.tally)
        return negatives.in_drawing_order(left, seeds, keep)

    def _retrieved(self, source: str, examples: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The run of a source for these examples, and the scores that it gives their positives, if a filter asks."""
        queries = self.queries.join(examples, on="qid", how="semi", maintain_order="left").select("qid", "text")
        index = self.index if source == BM25 else None
        if index:
            run = index.search(queries, self.depth, self.threads)
        else:
            run = self.runs[source].join(queries, on="qid", how="semi", maintain_order="left")
        if self.limits.relative_margin is None:
            return run, _NO_SCORES
        if index:
            return run, examples.select("example", index.score(examples, queries).alias("score"))
        scored = examples.join(run, on=["qid", "docid"], how="left", maintain_order="left")
        return run, scored.select("example", "score")

    def _without_answers(self, pools: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        """Drop candidates whose text holds an answer; only those that a draw may reach are looked at."""
        pairs = pl.concat([pool.select("qid", "docid") for pool in pools.values()]).unique()
        texts = collections.texts(self.collection, pairs["docid"])
        forms = dict(zip(texts["docid"], map(passage_form, texts["text"]), strict=True))
        answers = self.queries.filter(pl.col("answers").list.len() > 0).select("qid", "answers")
        holding = []
        for (qid,), group in pairs.join(answers, on="qid").group_by("qid"):
            bears = matcher(group["answers"][0])
            holding += [(qid, docid) for docid in group["docid"] if bears(forms.get(docid, ""))]
        bearing = pl.DataFrame(holding, schema={"qid": pl.String, "docid": pl.String}, orient="row")
        kept = {}
        for source, pool in pools.items():
            kept[source] = pool.join(bearing, on=["qid", "docid"], how="anti", maintain_order="left")
            self.tally.add(source, "holds an answer", len(pool) - len(kept[source]))
        return kept

    def rows(self, examples: pl.DataFrame, chosen: pl.DataFrame) -> Iterator[pa.Table]:
        """Rows of training examples, texts and exact lexical scores inside."""
        wanted = pl.concat([examples["docid"], chosen["docid"]]).unique()
        texts = collections.texts(self.collection, wanted)
        if missing := set(wanted) - set(texts["docid"]):
            raise InputError(f"{self.collection}: lacks document {min(missing)}, which a source retrieved")
        scored_examples = self._scored(examples).join(self.queries.select("qid", query="text"), on="qid")
        scored = self._scored(chosen)
        for part in scored_examples.sort("example").iter_slices(EXAMPLES_AT_ONCE):
            yield _nested(part, scored.join(part, on="example", how="semi", maintain_order="left"), texts)

    def _scored(self, pairs: pl.DataFrame) -> pl.DataFrame:
        if self.index is None:
            return pairs.with_columns(lexical_score=pl.lit(None, dtype=pl.Float32))
        queries = self.queries.select("qid", "text")
        return pairs.with_columns(self.index.score(pairs.select("qid", "docid"), queries).alias("lexical_score"))


_NO_SCORES = pl.DataFrame(schema={"example": pl.UInt32, "score": pl.Float32})


def _nested(examples: pl.DataFrame, chosen: pl.DataFrame, texts: pl.DataFrame) -> pa.Table:
    """One row an example, its negatives as a list of records."""
    fields = ["docid", "title", "text", "lexical_score", "source"]
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


def _report(tally: Tally, counts: Mapping[str, Any], output: Path) -> None:
    """Say how many candidates each source had, what each filter dropped, and what was written."""
    names = [name for name, counter in tally.counts.items() if counter["drawn"] or name != RANDOM]
    rows = dict.fromkeys(what for name in names for what in tally.counts[name])
    console.table(("", *names), [(what, *(f"{tally.counts[name][what]:,}" for name in names)) for what in rows])
    if replaced := tally.counts[RANDOM]["drawn in place of others"]:
        console.warn(f"{replaced:,} negatives are random documents, because their source had too few candidates")
    if short := tally.counts[RANDOM]["lists short of it"]:
        console.warn(f"{short:,} examples have fewer negatives than asked for")
    if skipped := counts["queries_without_positive"]:
        console.note(f"mine-negatives: {skipped:,} queries have no relevant document and were skipped")
    console.note(
        f"mine-negatives: {counts['rows']:,} examples of {counts['queries']:,} queries "
        f"with {counts['negatives']:,} negatives -> {output}"
    )
