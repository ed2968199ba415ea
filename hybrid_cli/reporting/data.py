"""The data of the report, computed from a plan of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from hybrid_cli import console
from hybrid_cli.artifacts import lineage
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Report
from hybrid_cli.evaluation import buckets
from hybrid_cli.evaluation.buckets import Buckets
from hybrid_cli.evaluation.complementarity import changes, first_position, first_relevant, most_changed
from hybrid_cli.evaluation.measures import DEPTHS, answered_by_depth, judged_hits, recall_by_depth
from hybrid_cli.reporting.complement import (
    Complement,
    Texts,
    better_of,
    complement,
    group_queries,
    known_texts,
    no_texts,
    relevant_documents,
)
from hybrid_cli.reporting.plan import EvaluationPlan, measure
from hybrid_cli.reporting.summary import Summary, summarize
from hybrid_cli.storage import Kind

SHOWN_HITS = 10  # per list
ANSWER_DEPTH = 100  # hits searched for answers without qrels

Groups = Sequence[tuple[Buckets, pl.DataFrame]]


@dataclass(frozen=True)
class Match:
    """Comparison of a run with the better of one or two others, per query."""

    run: str
    bases: tuple[str, ...]

    @property
    def base(self) -> str:
        """Return the name of the opponent."""
        return better_of(self.bases)

    @property
    def runs(self) -> list[str]:
        """Return all runs, `run` last."""
        return [*self.bases, self.run]


@dataclass(frozen=True)
class Kept:
    """The part of a run that the report shows.

    Attributes:
        head: qid, docid, rank, score of the top hits.
        judged: qid, docid, relevance, position (null if not retrieved) of the judged documents.
        first: qid, rank of the first relevant document.
        curve: depth, recall; without qrels, the fraction of answered questions.
    """

    head: pl.DataFrame
    judged: pl.DataFrame
    first: pl.DataFrame
    curve: pl.DataFrame


@dataclass(frozen=True)
class Findings:
    """All data of the report.

    Attributes:
        plan: runs and measures.
        summary: means, intervals and comparisons.
        complement: comparison of two runs; None without a pair.
        matches: comparisons per query.
        lead: comparison of the hybrid with BM25, which comes first and is shown in detail; None with one run.
        kept: run -> its data.
        groups: groups of queries with the means of each run.
        helped, hurt: qid, change of the queries that change most in `lead`.
        queries: qid -> text, if available.
        documents: docid -> title and text of the shown documents.
        reused: runs that were tuned or trained on the judged queries, in words.
    """

    plan: EvaluationPlan
    summary: Summary
    complement: Complement | None
    matches: Sequence[Match]
    lead: Match | None
    kept: Mapping[str, Kept]
    groups: Groups
    helped: pl.DataFrame
    hurt: pl.DataFrame
    queries: Mapping[str, str]
    documents: Mapping[str, tuple[str, str]]
    reused: Sequence[str]

    @property
    def measure(self) -> str:
        """Return the first measure, by which queries are compared."""
        return self.summary.measures[0]

    @property
    def by_answers(self) -> bool:
        """Return whether relevance is determined by answers, without qrels."""
        return self.plan.qrels is None


def find(
    plan: EvaluationPlan, settings: Report, baselines: Sequence[str], texts: Texts | None, reused: Sequence[str]
) -> Findings:
    """Measure the runs, compare the two runs of `plan.pair`, and choose the queries to show.

    Args:
        plan: runs and measures.
        settings: test, correction, seed and the number of queries to show.
        baselines: names of runs.
        texts: None omits sections that need texts.
        reused: see `Findings`.
    """
    values, counts = measure(plan)
    summary = summarize(plan, values, counts, settings, baselines)
    kept = gather(plan)
    compared = complement(plan, values, texts, show_queries=0) if plan.pair else None
    lead = _lead(summary, plan)
    changed = changes(values, lead.run, lead.bases, summary.measures[0]) if lead else pl.DataFrame()
    hurt, helped = most_changed(changed, settings.show_queries) if lead else (changed, changed)
    heads = [kept[run].head for run in kept] if lead else []
    lists = (head.join(part, on="qid", how="semi")["docid"] for head in heads for part in (hurt, helped))
    shown = pl.concat([pl.Series([], dtype=pl.String), *lists])
    queries, documents, groups = _texts(plan, summary, compared, texts, shown)
    by_id = {docid: (title, text) for docid, title, text in documents.iter_rows()}
    known = dict(queries.iter_rows()), by_id, reused
    matches = _matches(summary, plan.pair)
    return Findings(plan, summary, compared, matches, lead, kept, groups, helped, hurt, *known)


def _matches(summary: Summary, pair: tuple[str, str] | None) -> list[Match]:
    """Return the matches: the pair, and the best other run against the pair; or the best run against the baseline."""
    measure, means = summary.measures[0], summary.means
    ranking = sorted(summary.runs, key=lambda run: -means[run, measure])
    if pair:
        others = [run for run in ranking if run not in pair]
        return [Match(pair[0], (pair[1],)), *(Match(run, pair) for run in others[:1])]
    baseline = summary.baselines[0]
    others = [run for run in ranking if run != baseline]
    return [Match(run, (baseline,)) for run in others[:1]]


def _lead(summary: Summary, plan: EvaluationPlan) -> Match | None:
    """Return the match of the best hybrid with BM25, by their manifests or `plan.pair`.

    Without a lexical run, the opponent is the first baseline; without a fused run, the best other run takes part.
    """
    systems = {run: lineage.system_of(path) for run, path in plan.runs.items()}
    lexical = [run for run, system in systems.items() if system.kind == Kind.LEXICAL_INDEX]
    base = plan.pair[1] if plan.pair else [*lexical, *summary.baselines][0]
    others = [run for run in summary.runs if run != base]
    fused = [run for run in others if systems[run].is_fused]
    other_runs = [run for run in others if run not in (plan.pair or ())]
    best = max(fused or other_runs or others, key=lambda run: summary.means[run, summary.measures[0]], default=None)
    return Match(best, (base,)) if best else None


def _texts(
    plan: EvaluationPlan, summary: Summary, compared: Complement | None, texts: Texts | None, shown: pl.Series
) -> tuple[pl.DataFrame, pl.DataFrame, Groups]:
    """Return qid, text of the queries; docid, title, text of the documents; and the groups of queries."""
    groups_of_pair = compared.groups if compared else ()
    if texts is None:
        return *no_texts(), groups_of_pair
    qids = summary.values["qid"].unique()
    if compared or plan.qrels is None:
        return *known_texts(texts, qids, shown), groups_of_pair
    judged = plan.judged()
    assert judged is not None
    targets = buckets.targets(judged, plan.level, collections.docids(texts.corpus))
    queries, documents = known_texts(texts, qids, pl.concat([shown, targets["docid"]]))
    groups = group_queries(targets, queries.join(targets, on="qid", how="semi"), documents)
    return queries, documents, [(group, buckets.means(summary.values, group, summary.measures[0])) for group in groups]


# ----------------------------------------------------------------------------------------------------------------- runs


def gather(plan: EvaluationPlan) -> dict[str, Kept]:
    """Read each run once, and keep the shown part."""
    if (qrels := plan.judged()) is None:
        return _by_answers(plan)
    kept = {}
    with console.progress("report", total=len(plan.runs), unit="runs") as advance:
        for name in plan.runs:
            run = plan.read(name, SHOWN_HITS, qrels)
            judged = judged_hits(run.judged, qrels)
            curve = recall_by_depth(judged, _depths(run.longest), plan.level)
            kept[name] = Kept(run.head, judged, first_position(run.judged, qrels, plan.level), curve)
            advance(1)
    return kept


def _by_answers(plan: EvaluationPlan) -> dict[str, Kept]:
    """Read runs without qrels: a hit is relevant if its text contains an answer."""
    runs = {name: plan.read(name, ANSWER_DEPTH).head for name in plan.runs}
    relevant = relevant_documents(plan, runs)
    kept = {}
    for name, run in runs.items():
        first = first_relevant(run, relevant)
        positions = run.select("qid", "docid", position="rank")
        judged = relevant.drop_nulls("docid").join(positions, on=["qid", "docid"], how="left", maintain_order="left")
        head = run.filter(pl.col("rank") <= SHOWN_HITS)
        kept[name] = Kept(head, judged, first, answered_by_depth(first, _depths(int(str(run["rank"].max() or 0)))))
    return kept


def _depths(deepest: int) -> Sequence[int]:
    return [depth for depth in DEPTHS if depth <= deepest] or DEPTHS[:1]
