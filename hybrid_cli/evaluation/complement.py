"""Complementarity of two runs: the figures of `evaluate --complement` and of the report.

They include the queries that a fused run hurts and helps most, with texts and the top documents of each list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from hybrid_cli import console
from hybrid_cli.collections import collection
from hybrid_cli.collections.searched import check_common
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.evaluation import accuracy, buckets
from hybrid_cli.evaluation.buckets import Buckets
from hybrid_cli.evaluation.complementarity import (
    CUTOFFS,
    RBO_DEPTH,
    Sets,
    changes,
    first_relevant,
    most_changed,
    overlap,
    rbo,
    sets,
    tally,
)
from hybrid_cli.evaluation.plan import Plan, judgments, note_depth
from hybrid_cli.lexical.analysis import Analyzer
from hybrid_cli.settings.analysis import Comparison

SHOWN_HITS = 3
_TEXT_CHARACTERS = 200


@dataclass(frozen=True)
class Hit:
    """One hit with the start of its text; `title` and `text` are empty without a corpus."""

    docid: str
    title: str
    text: str
    relevant: bool


@dataclass(frozen=True)
class Listed:
    """One run on one query: value, rank of the first relevant document, top hits."""

    value: float
    first: int | None
    hits: Sequence[Hit]


@dataclass(frozen=True)
class Changed:
    """A query on which a run differs from the better of two others.

    Attributes:
        text: text of the query; empty without queries.
        change: value of `run` minus the better value of the two.
        lists: name -> list, for the two runs and for `run`.
    """

    run: str
    qid: str
    text: str
    change: float
    lists: Mapping[str, Listed]


def pick(values: pl.DataFrame, others: Sequence[str], pair: tuple[str, str], measure: str, count: int) -> pl.DataFrame:
    """Choose the queries to show: for each run those it hurts most, worst first, then those it helps most.

    Args:
        values: run, measure, qid, value.
        others: the runs.
        pair: two runs; the better value of the two is the baseline.
        measure: name of the measure.
        count: queries hurt, and queries helped, per run.

    Returns:
        run, qid, change.
    """
    schema = {"run": pl.String, "qid": pl.String, "change": pl.Float64}
    picked = [
        part.select(pl.lit(run).alias("run"), "qid", "change")
        for run in others
        for part in most_changed(changes(values, run, pair, measure), count)
    ]
    return pl.concat([pl.DataFrame(schema=schema), *picked])


def first_hits(
    heads: Mapping[str, pl.DataFrame], relevant: pl.DataFrame, picked: pl.DataFrame, count: int
) -> pl.DataFrame:
    """Return the top hits of every run for the chosen queries.

    Args:
        heads: name -> qid, docid, rank.
        relevant: qid, docid of the relevant documents.
        picked: result of `pick`.
        count: hits per list.

    Returns:
        run, qid, docid, rank, relevant.
    """
    qids = picked["qid"].implode()
    shown = [
        head.filter(pl.col("qid").is_in(qids) & (pl.col("rank") <= count)).select(
            pl.lit(name).alias("run"), "qid", "docid", "rank"
        )
        for name, head in heads.items()
    ]
    known = relevant.select("qid", "docid", relevant=pl.lit(True))
    joined = pl.concat(shown).join(known, on=["qid", "docid"], how="left", maintain_order="left")
    return joined.with_columns(pl.col("relevant").fill_null(False)).sort("run", "qid", "rank")


def describe(
    picked: pl.DataFrame,
    pair: tuple[str, str],
    values: pl.DataFrame,
    first: Mapping[str, pl.DataFrame],
    hits: pl.DataFrame,
    queries: pl.DataFrame,
    documents: pl.DataFrame,
) -> list[Changed]:
    """Add texts and lists to the chosen queries.

    Args:
        picked: result of `pick`.
        pair: the two baseline runs.
        values: run, qid, value of the measure.
        first: name -> qid, rank of the first relevant document (null if there is none).
        hits: result of `first_hits`.
        queries: qid, text; may be incomplete.
        documents: docid, title, text; may be incomplete.
    """
    asked = {qid: " ".join(text.split()) for qid, text in queries.join(picked, on="qid", how="semi").iter_rows()}
    text = pl.col("text").fill_null("").str.head(_TEXT_CHARACTERS)
    shown = hits.join(documents, on="docid", how="left", maintain_order="left").with_columns(
        pl.col("title").fill_null(""), text
    )

    def listed(run: str, qid: str) -> Listed:
        value = values.filter(run=run, qid=qid)["value"].item()
        ranks = first[run].filter(qid=qid)["rank"]
        rows = shown.filter(run=run, qid=qid).select("docid", "title", "text", "relevant")
        return Listed(value, ranks[0] if len(ranks) else None, [Hit(*row) for row in rows.iter_rows()])

    return [
        Changed(run, qid, asked.get(qid, ""), change, {name: listed(name, qid) for name in (*pair, run)})
        for run, qid, change in picked.select("run", "qid", "change").iter_rows()
    ]


DEPTH = max(*CUTOFFS, RBO_DEPTH)


@dataclass(frozen=True)
class Contest:
    """Wins, ties and losses of one run against another, per query by one measure."""

    run: str
    base: str
    wins: int
    ties: int
    losses: int
    difference: float


@dataclass(frozen=True)
class Complement:
    """Complementarity of two runs D and S.

    Attributes:
        dense, sparse: names of D and S.
        measure: measure by which queries are compared.
        sets: sizes of D and S at each cutoff.
        overlap: mean fraction of common documents at each cutoff.
        rbo: mean rank-biased overlap.
        depth: hits read of each list.
        absent: run -> number of queries with a relevant document but without hits of the run.
        contests: comparison of D with S, then of each other run with both.
        changed: for each other run, the queries that it hurts and helps most, relative to the better of D and S.
        groups: groups of queries with the means of each run; see `buckets.means`.
        above: run -> fraction of Hard queries with a higher reciprocal rank than S.
    """

    dense: str
    sparse: str
    measure: str
    sets: Sequence[Sets]
    overlap: Sequence[float]
    rbo: float
    depth: int
    absent: Mapping[str, int]
    contests: Sequence[Contest]
    changed: Sequence[Changed]
    groups: Sequence[tuple[Buckets, pl.DataFrame]]
    above: Mapping[str, float]


@dataclass(frozen=True)
class Texts:
    """Files with the texts of queries and documents."""

    queries: Path
    corpus: Path

    @classmethod
    def of(cls, settings: Comparison) -> Texts | None:
        """Return the files of --queries and --corpus, or of the collection; None if there are none."""
        judged, queries, corpus = judgments(settings), settings.queries, settings.corpus
        if judged.is_dir():
            queries, corpus = queries or collection.queries_path(judged, settings.split), corpus or judged
        return cls(queries, collection.corpus_path(corpus)) if queries and corpus else None


def complement(plan: Plan, values: pl.DataFrame, texts: Texts | None, show_queries: int) -> Complement:
    """Compare the two runs of `plan.pair`.

    Args:
        plan: runs, qrels and measures; the first measure compares queries.
        values: run, measure, qid, value, as returned by `plan.measure`.
        texts: None omits the figures that need texts.
        show_queries: queries hurt most, and queries helped most, of each other run.
    """
    assert plan.pair is not None
    dense, sparse = plan.pair
    measure = plan.measures[0].name
    values = values.filter(measure=measure)
    heads = _heads(plan)
    relevant = relevant_documents(plan, heads)
    first = {name: first_relevant(head, relevant) for name, head in heads.items()}
    others = [name for name in plan.runs if name not in plan.pair]
    picked = pick(values, others, plan.pair, measure, show_queries)
    hits = first_hits(heads, relevant, picked, SHOWN_HITS)
    known = None if texts is None else collection.docids(texts.corpus)
    targets = buckets.targets(relevant, known=known) if plan.qrels else relevant.clear()
    queries, documents = known_texts(texts, first[dense]["qid"], pl.concat([targets["docid"], hits["docid"]]))
    halves = buckets.easy_hard(first[sparse], sparse)
    groups = [halves, *grouped(targets, queries, documents)]
    return Complement(
        dense=dense,
        sparse=sparse,
        measure=measure,
        sets=[sets(first[dense], first[sparse], cutoff) for cutoff in CUTOFFS],
        overlap=[_mean(overlap(heads[dense], heads[sparse], cutoff), first[dense]) for cutoff in CUTOFFS],
        rbo=_mean(rbo(heads[dense], heads[sparse]), first[dense]),
        depth=DEPTH,
        absent={name: len(first[name].join(head, on="qid", how="anti")) for name, head in heads.items()},
        contests=_contests(values, [plan.pair, *((run, base) for run in others for base in plan.pair)], measure),
        changed=describe(picked, plan.pair, values, first, hits, queries, documents),
        groups=[(group, buckets.means(values, group, measure)) for group in groups],
        above={name: buckets.above_sparse(first[name], first[sparse], halves) for name in plan.runs if name != sparse},
    )


def _heads(plan: Plan) -> dict[str, pl.DataFrame]:
    """Return the top hits of every run: qid, docid, rank."""
    heads, queries = {}, {}
    with console.progress("complement", total=len(plan.runs), unit="runs") as advance:
        for name in plan.runs:
            found = plan.read(name, DEPTH)
            heads[name] = found.head.drop("score")
            if name in (plan.pair or ()):
                queries[plan.runs[name]] = found.lengths["qid"]
                note_depth(name, found.longest, {f"RoC@{cutoff}": cutoff for cutoff in CUTOFFS})
            advance(1)
    check_common(queries)
    return heads


def relevant_documents(plan: Plan, heads: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return qid, docid, relevance of the relevant documents; without qrels, the top hits with an answer."""
    if (judged := plan.judged()) is not None:
        return judged.filter(pl.col("relevance") >= plan.level)
    assert plan.queries is not None
    assert plan.corpus is not None
    asked = accuracy.with_answers(collection.read_queries(plan.queries))
    hits = pl.concat([head.select("qid", "docid") for head in heads.values()]).unique(maintain_order=True)
    passages = accuracy.passages(collection.texts_of_hits(plan.corpus, hits["docid"]), plan.answer_match)
    return accuracy.answer_qrels(hits, asked, passages, plan.answer_match)


def known_texts(texts: Texts | None, qids: pl.Series, docids: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return qid, text of the queries and docid, title, text of the documents; empty frames without texts.

    Raises:
        InputError: the files have none of the queries, or none of the documents.
    """
    if texts is not None:
        queries = (
            collection.read_queries(texts.queries).select("qid", "text").filter(pl.col("qid").is_in(qids.implode()))
        )
        if len(qids) and not len(queries):
            raise InputError(f"{texts.queries}: has no query of the runs, such as '{qids[0]}'; pass their queries")
        return queries, collection.texts_of_hits(texts.corpus, docids)
    console.note(
        "complement: no texts, so queries and documents are shown by their ids and not grouped by length and terms; "
        "pass a collection, or --queries FILE and --corpus FILE"
    )
    names = ("qid", "text"), ("docid", "title", "text")
    queries, documents = (pl.DataFrame(schema=dict.fromkeys(columns, pl.String())) for columns in names)
    return queries, documents


def grouped(targets: pl.DataFrame, queries: pl.DataFrame, documents: pl.DataFrame) -> list[Buckets]:
    """Group the queries by length and by terms shared with the relevant document, if texts are available."""
    if not len(queries):
        return []
    groups = [buckets.query_length(queries)]
    if len(targets):
        groups.append(buckets.document_length(targets, documents))
        try:
            groups.append(buckets.lexical_overlap(targets, queries, documents, Analyzer().analyze))
        except HybridError as error:  # no Java
            console.note(f"complement: skipped the grouping by terms in the relevant document: {error}")
    return groups


def _mean(values: pl.DataFrame, queries: pl.DataFrame) -> float:
    """Return the mean over the given queries; 0 for queries without a value."""
    joined = queries.join(values, on="qid", how="left", maintain_order="left")
    return float(joined["value"].fill_null(0.0).to_numpy().mean()) if len(joined) else 0.0


def _contests(values: pl.DataFrame, pairs: Sequence[tuple[str, str]], measure: str) -> list[Contest]:
    contests = []
    for run, base in pairs:
        changed = changes(values, run, [base], measure)
        wins, ties, losses = tally(changed)
        contests.append(Contest(run, base, wins, ties, losses, float(changed["change"].to_numpy().mean())))
    return contests
