"""Two runs beside each other, and runs made from them: all that `evaluate --complement` shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from hybrid_cli import config, console, runs
from hybrid_cli.collections import collection
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.evaluation import accuracy, buckets
from hybrid_cli.evaluation.buckets import Buckets
from hybrid_cli.evaluation.complementarity import Sets, changes, first_relevant, overlap, rbo, sets, tally
from hybrid_cli.evaluation.measures import RR, Measure, in_order
from hybrid_cli.evaluation.per_query import Changed, describe, first_hits, pick
from hybrid_cli.evaluation.plan import Plan, note_depth
from hybrid_cli.lexical.analysis import Analyzer


@dataclass(frozen=True)
class Contest:
    """How often a run is better than another by one measure, query by query."""

    run: str
    base: str
    wins: int
    ties: int
    losses: int
    difference: float


@dataclass(frozen=True)
class Complement:
    """What two runs find, each alone and both.

    Attributes:
        dense, sparse: the names of the two, D and S.
        measure: by which queries are compared.
        sets: D and S at each cutoff.
        overlap: at each cutoff, the mean share of the first hits that both have.
        rbo: mean rank-biased overlap.
        depth: hits of each list that were looked at.
        absent: run -> how many queries with something relevant it lacks.
        contests: the dense run against the sparse one, then each other run against each of the two.
        changed: of each other run the queries it hurts most, then those it helps most, against the better of the two.
        groups: the queries in buckets, and each run's means in them (`buckets.means`).
        above: run -> share of BM25-Hard queries in which its reciprocal rank exceeds the sparse run's.
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
    """Where the texts of queries and documents stand."""

    queries: Path
    corpus: Path

    @classmethod
    def of(cls, judgements: Path, split: str | None, queries: Path | None, corpus: Path | None) -> Texts | None:
        """Those of a collection, unless other files are named; None where there are none."""
        if judgements.is_dir():
            queries, corpus = queries or collection.queries_path(judgements, split), corpus or judgements
        return cls(queries, collection.corpus_path(corpus)) if queries and corpus else None


def with_pair(
    inputs: Sequence[str | Path], qrels: Path | None, pair: Sequence[str]
) -> tuple[list[str | Path], list[Path]]:
    """What a person gave as inputs, with those runs of the pair that are not yet among them, and the paths of the pair.

    Args:
        inputs, qrels: as for `Plan.of`.
        pair: two runs, each by the name it has among the inputs, or as a path or `name=path`; or none.

    Raises:
        InputError: there is no such run, or both are the same.
    """
    known = runs.named(inputs if qrels else inputs[1:])
    added: list[str | Path] = []
    paths: list[Path] = []
    for given in pair:
        path = runs.pick(given, known, "--complement")
        if path.resolve() in [other.resolve() for other in paths]:
            raise InputError(f"--complement {' '.join(pair)}: needs two different runs")
        if path.resolve() not in [other.resolve() for other in known.values()]:
            added.append(given)
        paths.append(path)
    return [*inputs, *added], paths


def names_of(pair: Sequence[Path], plan: Plan) -> tuple[str, str]:
    """The names that the plan has for the two paths that `with_pair` returned."""
    names = {path.resolve(): name for name, path in plan.runs.items()}
    return names[pair[0].resolve()], names[pair[1].resolve()]


def with_reciprocal_rank(plan: Plan) -> Plan:
    """The same with the reciprocal rank over the whole list: what D and S at any cutoff can be read from later."""
    measure = Measure("MRR", RR, None, plan.level)
    if plan.qrels is None or any(replace(given, name=measure.name) == measure for given in plan.measures):
        return plan
    return replace(plan, measures=[*plan.measures, measure])


def set_beside(
    plan: Plan,
    values: pl.DataFrame,
    pair: tuple[str, str],
    texts: Texts | None,
    how: config.Complementarity,
) -> Complement:
    """Set two runs beside each other.

    Args:
        plan: the runs, the judgements and the measures, the first of which compares queries.
        values: run, measure, qid, value, as `judging.measure` returns them.
        pair: the names of D, whose complement is measured (normally the dense run), and of S (normally BM25).
        texts: None leaves out what needs texts.
    """
    dense, sparse = pair
    measure = plan.measures[0].name
    values = values.filter(measure=measure)
    heads = _heads(plan, pair, how)
    relevant = relevant_documents(plan, heads)
    first = {name: first_relevant(head, relevant) for name, head in heads.items()}
    others = [name for name in plan.runs if name not in pair]
    picked = pick(values, others, pair, measure, how.changed)
    hits = first_hits(heads, relevant, picked, how.shown)
    targets = buckets.targets(relevant) if plan.qrels else relevant.clear()
    queries, documents = known_texts(texts, pl.concat([targets["docid"], hits["docid"]]))
    queries = queries.join(first[dense], on="qid", how="semi")
    halves = buckets.easy_hard(first[sparse], sparse)
    groups = [halves, *grouped(targets, queries, documents)]
    return Complement(
        dense=dense,
        sparse=sparse,
        measure=measure,
        sets=[sets(first[dense], first[sparse], cutoff) for cutoff in how.cutoffs],
        overlap=[_mean(overlap(heads[dense], heads[sparse], cutoff), first[dense]) for cutoff in how.cutoffs],
        rbo=_mean(rbo(heads[dense], heads[sparse], how.rbo_p, how.rbo_depth), first[dense]),
        depth=_depth(how),
        absent={name: len(first[name].join(head, on="qid", how="anti")) for name, head in heads.items()},
        contests=_contests(values, [pair, *((run, base) for run in others for base in pair)], measure),
        changed=describe(picked, pair, values, first, hits, queries, documents),
        groups=[(group, buckets.means(values, group, measure)) for group in groups],
        above={name: buckets.above_sparse(first[name], first[sparse], halves) for name in plan.runs if name != sparse},
    )


def _heads(plan: Plan, pair: tuple[str, str], how: config.Complementarity) -> dict[str, pl.DataFrame]:
    """The first hits of every run: qid, docid, rank."""
    heads = {}
    with console.progress("complement", total=len(plan.runs), unit="runs") as advance:
        for name in plan.runs:
            heads[name] = in_order(plan.read(name)[0], _depth(how)).rename({"position": "rank"})
            if name in pair:
                note_depth(name, heads[name], {f"RoC@{cutoff}": cutoff for cutoff in how.cutoffs})
            advance(1)
    return heads


def _depth(how: config.Complementarity) -> int:
    return max(*how.cutoffs, how.rbo_depth)


def relevant_documents(plan: Plan, heads: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """qid, docid, relevance of all that is relevant.

    Where answers are all that is measured, these are the first hits with an answer in their text.
    """
    if plan.qrels:
        return collection.read_qrels(plan.qrels).filter(pl.col("relevance") >= plan.level)
    assert plan.queries is not None
    assert plan.corpus is not None
    asked = accuracy.with_answers(collection.read_queries(plan.queries))
    hits = pl.concat([head.select("qid", "docid") for head in heads.values()]).unique(maintain_order=True)
    passages = accuracy.passages(collection.texts(plan.corpus, hits["docid"]), plan.answer_match)
    return accuracy.judgements(hits, asked, passages, plan.answer_match)


def known_texts(texts: Texts | None, docids: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame]:
    """qid, text of the queries; docid, title, text of the documents; without rows where there are no texts."""
    if texts is not None:
        return collection.read_queries(texts.queries).select("qid", "text"), collection.texts(texts.corpus, docids)
    console.note(
        "complement: without texts queries and documents are shown by their ids, and not grouped by lengths and words; "
        "name a collection, or --queries FILE and --corpus FILE"
    )
    names = ("qid", "text"), ("docid", "title", "text")
    queries, documents = (pl.DataFrame(schema=dict.fromkeys(columns, pl.String())) for columns in names)
    return queries, documents


def grouped(targets: pl.DataFrame, queries: pl.DataFrame, documents: pl.DataFrame) -> list[Buckets]:
    """The queries by lengths and by shared words, as far as their texts are known."""
    if not len(queries):
        return []
    groups = [buckets.query_length(queries)]
    if len(targets):
        groups.append(buckets.document_length(targets, documents))
        try:
            groups.append(buckets.lexical_overlap(targets, queries, documents, Analyzer().analyze))
        except HybridError as error:  # no Java, or none that works
            console.note(f"complement: queries are not grouped by the words they share with documents: {error}")
    return groups


def _mean(values: pl.DataFrame, queries: pl.DataFrame) -> float:
    """The mean over the given queries, 0 for those that have no value."""
    joined = queries.join(values, on="qid", how="left", maintain_order="left")
    return float(joined["value"].fill_null(0.0).to_numpy().mean()) if len(joined) else 0.0


def _contests(values: pl.DataFrame, pairs: Sequence[tuple[str, str]], measure: str) -> list[Contest]:
    contests = []
    for run, base in pairs:
        changed = changes(values, run, [base], measure)
        wins, ties, losses = tally(changed)
        contests.append(Contest(run, base, wins, ties, losses, float(changed["change"].to_numpy().mean())))
    return contests
