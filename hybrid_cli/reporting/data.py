"""Everything that the report shows, computed: from a plan of runs to findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from hybrid_cli import config, console
from hybrid_cli.collections import collection
from hybrid_cli.evaluation import buckets
from hybrid_cli.evaluation.buckets import Buckets
from hybrid_cli.evaluation.complement import Complement, Texts, grouped, known_texts, relevant_documents, set_beside
from hybrid_cli.evaluation.complementarity import changes, first_relevant, most_changed
from hybrid_cli.evaluation.measures import in_order, judged_hits
from hybrid_cli.evaluation.plan import Comparing, Plan, measure, summarize
from hybrid_cli.evaluation.recall import DEPTHS, answered_by_depth, recall_by_depth
from hybrid_cli.evaluation.summary import Summary

Pair = tuple[str, str]
Groups = Sequence[tuple[Buckets, pl.DataFrame]]


@dataclass(frozen=True)
class Match:
    """A run against the better of some others, query by query; `bases` are one or two."""

    run: str
    bases: tuple[str, ...]

    @property
    def base(self) -> str:
        """What the run is compared with, in words."""
        return self.bases[0] if len(self.bases) == 1 else f"the better of {' and '.join(self.bases)}"

    @property
    def runs(self) -> list[str]:
        """All of them, the run last."""
        return [*self.bases, self.run]


@dataclass(frozen=True)
class Kept:
    """What is kept of a run.

    Attributes:
        head: qid, docid, rank, score of the first hits.
        judged: qid, docid, relevance, position (null where it was not found) of the documents known to be judged.
        first: qid, rank of the first relevant document.
        curve: depth, recall; where only answers are measured, the share of the questions that are answered.
    """

    head: pl.DataFrame
    judged: pl.DataFrame
    first: pl.DataFrame
    curve: pl.DataFrame


@dataclass(frozen=True)
class Findings:
    """What was found.

    Attributes:
        matches: what is compared query by query; the last is the one of most interest.
        groups: the queries in buckets, and each run's means in them.
        helped, hurt: qid, change of the queries in which the last match's run differs most.
        queries: qid -> text, as far as it is known; documents: docid -> title and text of those that are shown.
    """

    plan: Plan
    summary: Summary
    complement: Complement | None
    matches: Sequence[Match]
    kept: Mapping[str, Kept]
    groups: Groups
    helped: pl.DataFrame
    hurt: pl.DataFrame
    queries: Mapping[str, str]
    documents: Mapping[str, tuple[str, str]]

    @property
    def measure(self) -> str:
        """The first measure, by which queries are compared."""
        return self.summary.measures[0]

    @property
    def by_answers(self) -> bool:
        """Whether there are no judgements, but answers that were looked for."""
        return self.plan.qrels is None


def find(plan: Plan, comparing: Comparing, pair: Pair | None, texts: Texts | None, how: config.Reporting) -> Findings:
    """Measure the runs, set the pair beside each other, and pick the queries to show.

    Args:
        pair: the names of D and S, if there are two runs to be set beside each other.
        texts: None leaves out what needs texts.
    """
    values, counts = measure(plan)
    summary = summarize(plan, values, counts, comparing)
    kept = gather(plan, how)
    beside = set_beside(plan, values, pair, texts, config.Complementarity(changed=0)) if pair else None
    matches = _matches(summary, pair)
    changed = changes(values, matches[-1].run, matches[-1].bases, summary.measures[0]) if matches else pl.DataFrame()
    hurt, helped = most_changed(changed, how.changed) if matches else (changed, changed)
    shown = pl.concat([pl.Series([], dtype=pl.String), *_shown(kept, matches[-1:], hurt, helped)])
    queries, documents, groups = _texts(plan, summary, beside, texts, shown)
    return Findings(
        plan=plan,
        summary=summary,
        complement=beside,
        matches=matches,
        kept=kept,
        groups=groups,
        helped=helped,
        hurt=hurt,
        queries=dict(queries.iter_rows()),
        documents={docid: (title, text) for docid, title, text in documents.iter_rows()},
    )


def _matches(summary: Summary, pair: Pair | None) -> list[Match]:
    """The pair, and the best of the other runs against it; without a pair the best run against a baseline."""
    measure, means = summary.measures[0], summary.means
    ranking = sorted(summary.runs, key=lambda run: -means[run, measure])
    if pair:
        others = [run for run in ranking if run not in pair]
        return [Match(pair[0], (pair[1],)), *(Match(run, pair) for run in others[:1])]
    baseline = summary.baselines[0]
    others = [run for run in ranking if run != baseline]
    return [Match(run, (baseline,)) for run in others[:1]]


def _shown(kept: Mapping[str, Kept], matches: Sequence[Match], *parts: pl.DataFrame) -> list[pl.Series]:
    """The documents of the lists that are shown."""
    heads = [kept[run].head for match in matches for run in match.runs]
    return [head.join(part, on="qid", how="semi")["docid"] for head in heads for part in parts]


def _texts(
    plan: Plan, summary: Summary, beside: Complement | None, texts: Texts | None, shown: pl.Series
) -> tuple[pl.DataFrame, pl.DataFrame, Groups]:
    """qid and text of the queries; docid, title and text of documents; the queries in groups."""
    found = beside.groups if beside else ()
    if texts is None:
        names = ("qid", "text"), ("docid", "title", "text")
        queries, documents = (pl.DataFrame(schema=dict.fromkeys(columns, pl.String())) for columns in names)
        return queries, documents, found
    if beside or plan.qrels is None:
        return *known_texts(texts, shown), found
    targets = buckets.targets(collection.read_qrels(plan.qrels), plan.level)
    queries, documents = known_texts(texts, pl.concat([shown, targets["docid"]]))
    groups = grouped(targets, queries.join(targets, on="qid", how="semi"), documents)
    return queries, documents, [(group, buckets.means(summary.values, group, summary.measures[0])) for group in groups]


# -------------------------------------------------------------------------------------------------------- run by run


def gather(plan: Plan, how: config.Reporting) -> dict[str, Kept]:
    """Read every run once, and keep what is shown of it."""
    if plan.qrels is None:
        return _by_answers(plan, how)
    qrels = collection.read_qrels(plan.qrels)
    kept = {}
    with console.progress("report", total=len(plan.runs), unit="runs") as advance:
        for name in plan.runs:
            run, _ = plan.read(name)
            judged = judged_hits(in_order(run), qrels)
            kept[name] = Kept(
                head=_head(run, how.shown),
                judged=judged,
                first=first_relevant(run, qrels, plan.level),
                curve=recall_by_depth(judged, _depths(run), plan.level),
            )
            advance(1)
    return kept


def _by_answers(plan: Plan, how: config.Reporting) -> dict[str, Kept]:
    """Where answers are all that is measured, a hit is relevant if its text bears one."""
    runs = {name: _head(plan.read(name)[0], how.answers_depth) for name in plan.runs}
    relevant = relevant_documents(plan, runs)
    kept = {}
    for name, run in runs.items():
        first = first_relevant(run, relevant)
        positions = run.select("qid", "docid", position="rank")
        judged = relevant.drop_nulls("docid").join(positions, on=["qid", "docid"], how="left", maintain_order="left")
        kept[name] = Kept(_head(run, how.shown), judged, first, answered_by_depth(first, _depths(run)))
    return kept


def _head(run: pl.DataFrame, count: int) -> pl.DataFrame:
    """The first hits with their scores, their ranks counted from 1."""
    ranks = in_order(run, count).rename({"position": "rank"})
    return ranks.join(run.select("qid", "docid", "score"), on=["qid", "docid"], how="left", maintain_order="left")


def _depths(run: pl.DataFrame) -> Sequence[int]:
    deepest = int(str(run["rank"].max() or 0))
    return [depth for depth in DEPTHS if depth <= deepest] or DEPTHS[:1]
