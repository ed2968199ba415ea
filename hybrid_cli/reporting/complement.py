"""The comparison of two runs (`evaluate --complement`): its figures, as terminal tables, JSON, CSV and Markdown.

They include the queries that a fused run hurts and helps most, with texts and the top documents of each list.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise, zip_longest
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import console
from hybrid_cli.artifacts.belonging import check_common
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands.analysis import Comparison
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation import accuracy, buckets, complementarity
from hybrid_cli.evaluation.buckets import HARD, Buckets
from hybrid_cli.evaluation.complementarity import CUTOFFS, RBO_DEPTH, Sets, changes, first_relevant, most_changed
from hybrid_cli.lexical.analysis import LazyAnalyzer
from hybrid_cli.reporting.plan import EvaluationPlan, judgments, note_depth, text_files
from hybrid_cli.reporting.tables import Result, Table, figure, with_sign

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
    def of(cls, settings: Comparison, plan: EvaluationPlan) -> Texts | None:
        """Return the files of --queries and --corpus, of the collection, or of the runs; see `text_files`."""
        queries, corpus = text_files(judgments(settings), settings, plan.runs.values())
        return cls(queries, corpus) if queries and corpus else None


def complement(plan: EvaluationPlan, values: pl.DataFrame, texts: Texts | None, show_queries: int) -> Complement:
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
    changed = [
        (run, qid, change)
        for run in others
        for part in most_changed(changes(values, run, plan.pair, measure), show_queries)
        for qid, change in part.select("qid", "change").iter_rows()
    ]
    shown = (pl.col("rank") <= SHOWN_HITS) & pl.col("qid").is_in([qid for _, qid, _ in changed])
    tops = {name: head.filter(shown).sort("qid", "rank") for name, head in heads.items()}
    known = None if texts is None else collections.docids(texts.corpus)
    targets = buckets.targets(relevant, known=known) if plan.qrels else relevant.clear()
    docids = pl.concat([targets["docid"], *(top["docid"] for top in tops.values())])
    queries, documents = known_texts(texts, first[dense]["qid"], docids)
    asked = {qid: " ".join(text.split()) for qid, text in queries.iter_rows()}
    judged = set(relevant.select("qid", "docid").iter_rows())
    rows = documents.with_columns(pl.col("title", "text").fill_null("")).iter_rows()
    texts_by_id = {docid: (title, text[:_TEXT_CHARACTERS]) for docid, title, text in rows}

    def list_hits(run: str, qid: str) -> Listed:
        ranks, docids = (frame.filter(qid=qid)[name] for frame, name in ((first[run], "rank"), (tops[run], "docid")))
        hits = [Hit(docid, *texts_by_id.get(docid, ("", "")), (qid, docid) in judged) for docid in docids]
        return Listed(values.filter(run=run, qid=qid)["value"].item(), ranks[0] if len(ranks) else None, hits)

    pair = heads[dense], heads[sparse]
    halves = buckets.easy_hard(first[sparse], sparse)
    groups = [halves, *group_queries(targets, queries, documents)]
    return Complement(
        dense=dense,
        sparse=sparse,
        measure=measure,
        sets=[complementarity.sets(first[dense], first[sparse], cutoff) for cutoff in CUTOFFS],
        overlap=[_mean(complementarity.overlap(*pair, cutoff), first[dense]) for cutoff in CUTOFFS],
        rbo=_mean(complementarity.rbo(*pair), first[dense]),
        depth=DEPTH,
        absent={name: len(first[name].join(head, on="qid", how="anti")) for name, head in heads.items()},
        contests=[
            contest(values, run, [base], measure)
            for run, base in (plan.pair, *((run, base) for run in others for base in plan.pair))
        ],
        changed=[
            Changed(run, qid, asked.get(qid, ""), change, {name: list_hits(name, qid) for name in (*plan.pair, run)})
            for run, qid, change in changed
        ],
        groups=[(group, buckets.means(values, group, measure)) for group in groups],
        above={
            run: buckets.share_above_sparse(first[run], first[sparse], halves) for run in plan.runs if run != sparse
        },
    )


def _heads(plan: EvaluationPlan) -> dict[str, pl.DataFrame]:
    """Return the top hits of every run: qid, docid, rank."""
    heads, queries = {}, {}
    with console.progress("complement", total=len(plan.runs), unit="runs") as advance:
        for name in plan.runs:
            hits = plan.read(name, DEPTH)
            heads[name] = hits.head.drop("score")
            if name in (plan.pair or ()):
                queries[plan.runs[name]] = hits.lengths["qid"]
                note_depth(name, hits.longest, {f"RoC@{cutoff}": cutoff for cutoff in CUTOFFS})
            advance(1)
    check_common(queries)
    return heads


def relevant_documents(plan: EvaluationPlan, heads: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return qid, docid, relevance of the relevant documents; without qrels, the top hits with an answer."""
    if (judged := plan.judged()) is not None:
        return judged.filter(pl.col("relevance") >= plan.level)
    assert plan.queries is not None
    assert plan.corpus is not None
    asked = accuracy.with_answers(collections.read_queries(plan.queries))
    hits = pl.concat([head.select("qid", "docid") for head in heads.values()]).unique(maintain_order=True)
    passages = accuracy.passages(collections.texts_of_hits(plan.corpus, hits["docid"]), plan.answer_match)
    return accuracy.answer_qrels(hits, asked, passages, plan.answer_match)


def known_texts(texts: Texts | None, qids: pl.Series, docids: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return qid, text of the queries and docid, title, text of the documents; empty frames without texts.

    Raises:
        InputError: the files have none of the queries, or none of the documents.
    """
    if texts is not None:
        queries = collections.read_queries(texts.queries).select("qid", "text")
        queries = queries.filter(pl.col("qid").is_in(qids.implode()))
        if len(qids) and not len(queries):
            problem = f"{texts.queries}: has no query of the runs, such as '{qids[0]}'; pass their queries"
            raise InputError(problem, code="other-queries", path=texts.queries, id=qids[0])
        return queries, collections.texts_of_hits(texts.corpus, docids)
    advice = "pass a collection, or --queries FILE and --corpus FILE"
    console.note(f"complement: no texts, so queries are shown by id and not grouped; {advice}", code="no-texts")
    return no_texts()


def no_texts() -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return empty frames of queries and documents."""
    names = ("qid", "text"), ("docid", "title", "text")
    queries, documents = (pl.DataFrame(schema=dict.fromkeys(columns, pl.String())) for columns in names)
    return queries, documents


def group_queries(targets: pl.DataFrame, queries: pl.DataFrame, documents: pl.DataFrame) -> list[Buckets]:
    """Group the queries by length and by terms shared with the relevant document, if texts are available."""
    if not len(queries):
        return []
    groups = [buckets.query_length(queries)]
    if len(targets):
        groups.append(buckets.document_length(targets, documents))
        groups.append(buckets.lexical_overlap(targets, queries, documents, LazyAnalyzer().analyze))
    return groups


def _mean(values: pl.DataFrame, queries: pl.DataFrame) -> float:
    """Return the mean over the given queries; 0 for queries without a value."""
    joined = queries.join(values, on="qid", how="left", maintain_order="left")
    return float(joined["value"].fill_null(0.0).to_numpy().mean()) if len(joined) else 0.0


def contest(values: pl.DataFrame, run: str, bases: Sequence[str], measure: str) -> Contest:
    """Compare a run with the best of one or two others, query by query."""
    changed = changes(values, run, bases, measure)
    return Contest(run, better_of(bases), *complementarity.tally(changed), float(changed["change"].to_numpy().mean()))


def better_of(runs: Sequence[str]) -> str:
    """Return the name of a run, or `the better of A and B`."""
    return runs[0] if len(runs) == 1 else f"the better of {' and '.join(runs)}"


_BAR_CELLS = 60
_GLYPHS = "█▒░·"
RELEVANT = "●"
_SETS = ("dense", "sparse", "dense_only", "sparse_only", "both", "fail")
_PARTS = "dense_only", "sparse_only", "fail"  # of RoC


def answered(cut: Sets, first: str, second: str) -> Result:
    """Return the sizes of the sets of two systems, and their ratios in both directions; D is the first system."""
    counts = {"both": cut.both, f"only {first}": cut.dense_only, f"only {second}": cut.sparse_only, "neither": cut.fail}
    shares = [(name, count, cut.queries) for name, count in {**counts, "oracle": cut.queries - cut.fail}.items()]
    shares.append((f"RoC({first};{second})", cut.dense_only, cut.dense))
    shares.append((f"RoC({second};{first})", cut.sparse_only, cut.sparse))
    rows, cells = [], []
    for name, count, of in shares:
        mean, (low, high) = count / of if of else math.nan, cut.interval(count, of)
        row = {"measure": name, "k": cut.cutoff, "count": count, "queries": of, "low": low, "high": high}
        rows.append({**row, "mean": mean if of else None})
        cells.append([name, f"{count:,}", f"{of:,}", ratio_text(mean), f"{figure(low, 3)} to {figure(high, 3)}"])
    title = f"Queries with a relevant document in the top {cut.cutoff} hits of {first} and {second}"
    note = "RoC(A;B) = only A / A, the share of the queries answered by A that B does not answer; oracle: A or B."
    table = Table(["queries", "count", "of", "share", "95% interval (Wilson)"], cells, title, [note])
    return Result([table], {**asdict(cut), "first": first, "second": second, "rows": rows}, rows)


def result(complement: Complement) -> Result:
    """Return the comparison in the form of every format."""
    names = (f"{complement.dense} only", "both", f"{complement.sparse} only", "neither")
    glyphs = [[str(cut.cutoff), "".join(map(str.__mul__, _GLYPHS, bar(cut, _BAR_CELLS)))] for cut in complement.sets]
    key = "   ".join(f"{glyph} {name}" for glyph, name in zip(_GLYPHS, names, strict=True))
    blocks = [
        sets_table(complement),
        Table(["k", key], glyphs, left=2),
        contest_table(complement.contests, complement.measure, "Wins, ties and losses per query"),
        *(_group_table(complement, group, means) for group, means in complement.groups),
        *_changed_tables(complement),
    ]
    return Result(blocks, _content(complement), list(_rows(complement)))


def _content(complement: Complement) -> dict[str, Any]:
    """Return all figures for JSON; the ratio of an empty set is None."""
    cuts = [
        {
            **asdict(cut),
            "roc": cut.roc if cut.dense else None,
            "mirror": cut.mirror if cut.sparse else None,
            "oracle": cut.oracle,
            "overlap": share,
            "intervals": {name: cut.interval(getattr(cut, name)) for name in _PARTS},
        }
        for cut, share in zip(complement.sets, complement.overlap, strict=True)
    ]
    groups = [{"name": group.name, "note": group.note, "means": means.to_dicts()} for group, means in complement.groups]
    names = ("dense", "sparse", "measure", "rbo", "depth", "absent")
    return {
        **{name: getattr(complement, name) for name in names},
        "cutoffs": cuts,
        "contests": [asdict(contest) for contest in complement.contests],
        "changed": [asdict(changed) for changed in complement.changed],
        "buckets": groups,
        "above_sparse_on_hard": complement.above,
    }


def _rows(complement: Complement) -> Iterator[dict[str, Any]]:
    """Yield rows of the CSV: run, measure, mean (sizes of sets as fractions), queries (the denominator)."""
    pair = f"{complement.dense} vs {complement.sparse}"
    for cut, share in zip(complement.sets, complement.overlap, strict=True):
        yield _row(pair, f"RoC@{cut.cutoff}", cut.roc, cut.dense)
        yield _row(pair, f"mirror@{cut.cutoff}", cut.mirror, cut.sparse)
        for name in _SETS:
            count = getattr(cut, name)
            row = _row(pair, f"{name}@{cut.cutoff}", count / max(cut.queries, 1), cut.queries)
            yield row | (dict(zip(("low", "high"), cut.interval(count), strict=True)) if name in _PARTS else {})
        yield _row(pair, f"oracle@{cut.cutoff}", cut.oracle, cut.queries)
        yield _row(pair, f"overlap@{cut.cutoff}", share, cut.queries)
    queries = complement.sets[0].queries
    yield _row(pair, "RBO", complement.rbo, queries)
    for contest in complement.contests:
        row = asdict(contest)
        yield {"measure": f"{complement.measure} query by query", "baseline": row.pop("base"), **row}
    for group, means in complement.groups:
        for bucket, run, size, mean in means.iter_rows():
            yield _row(run, f"{complement.measure} | {group.name} | {bucket}", mean, size)
    for run, share in complement.above.items():
        yield _row(run, f"above {complement.sparse} on {HARD}", share, queries - queries // 2)


def _row(run: str, measure: str, value: float, queries: int) -> dict[str, Any]:
    return {"run": run, "measure": measure, "mean": None if math.isnan(value) else value, "queries": queries}


# ------------------------------------------------------------------------------------------------------------- tables


def sets_table(complement: Complement) -> Table:
    """Return the ratios of complementarity and the sizes of the sets at every cutoff."""
    columns = ["k", "RoC(D;S)", "RoC(S;D)", "D", "S", "D only", "S only", "both", "neither", "oracle", "overlap"]
    rows = []
    for cut, common in zip(complement.sets, complement.overlap, strict=True):
        counts = {name: getattr(cut, name) for name in _SETS} | {"oracle": cut.queries - cut.fail}
        cells = [
            f"{count:,}\n{count / max(cut.queries, 1):.1%}{_interval(cut, count) if name in _PARTS else ''}"
            for name, count in counts.items()
        ]
        rows.append([str(cut.cutoff), ratio_text(cut.roc), ratio_text(cut.mirror), *cells, figure(common, 3)])
    dense, sparse = complement.dense, complement.sparse
    notes = [
        "RoC(D;S) = D only / D; RoC(S;D) = S only / S; oracle: D or S, the bound of any choice between the two lists; "
        "in brackets: 95% interval (Wilson); overlap: mean fraction of common documents in the top k. Rank-biased "
        f"overlap: {figure(complement.rbo, 3)}."
    ]
    for ratio, run, answered in (("RoC(D;S)", dense, "dense"), ("RoC(S;D)", sparse, "sparse")):
        if empty := [str(cut.cutoff) for cut in complement.sets if not getattr(cut, answered)]:
            notes.append(f"{ratio} is undefined at k = {', '.join(empty)}: {run} answers no query.")
    notes += [
        f"{name} has no hits for {absent:,} of these queries; they count as not found."
        for name, absent in complement.absent.items()
        if absent
    ]
    count = f"{complement.sets[0].queries:,} queries with a relevant document"
    title = f"Complementarity of D = {dense} and S = {sparse} in the top k hits, {count}"
    return Table(columns, rows, title, notes, bold={(row, 1) for row in range(len(rows))})


def contest_table(contests: Iterable[Contest], measure: str, title: str) -> Table:
    """Return wins, ties, losses and mean differences of runs against others."""
    rows = [
        [f"{c.run}\nagainst {c.base}", f"{c.wins:,}", f"{c.ties:,}", f"{c.losses:,}", with_sign(c.difference)]
        for c in contests
    ]
    return Table(["run", "wins", "ties", "losses", measure], rows, title)


def ratio_text(value: float) -> str:
    """Format a ratio of complementarity, which is NaN for an empty set."""
    return "undefined" if math.isnan(value) else figure(value, 3)


def _interval(cut: Sets, count: int) -> str:
    """Return the 95% interval of a count, in percent of the queries."""
    low, high = cut.interval(count)
    return f" ({low:.0%} to {high:.0%})"


def _group_table(complement: Complement, group: Buckets, means: pl.DataFrame) -> Table:
    """Return one row per run, one column per bucket; the first row has the number of queries."""
    sizes = dict(means.select("bucket", "queries").unique(maintain_order=True).iter_rows())
    rows = [["queries", *(f"{size:,}" for size in sizes.values())]]
    for run in means["run"].unique(maintain_order=True):
        by_bucket = dict(means.filter(run=run).select("bucket", "mean").iter_rows())
        rows.append([run, *(figure(by_bucket[bucket]) for bucket in sizes)])
    notes = [f"{group.note[:1].upper()}{group.note[1:]}."] if group.note else []
    if HARD in group.labels:
        shares = ", ".join(f"{run} {figure(share, 3)}" for run, share in complement.above.items())
        notes.append(f"Fraction of {HARD} queries with a higher reciprocal rank than {complement.sparse}: {shares}.")
    return Table(["", *sizes], rows, f"{complement.measure} by {group.name}", notes, stacked=True)


def bar(cut: Sets, cells: int) -> list[int]:
    """Divide the cells of a bar among D only, both, S only and neither."""
    ends = accumulate((cut.dense_only, cut.both, cut.sparse_only, cut.fail))
    edges = [0, *(round(cells * end / max(cut.queries, 1)) for end in ends)]
    return [last - first for first, last in pairwise(edges)]


def _changed_tables(complement: Complement) -> Iterator[Table]:
    """Yield the lists of each query that a run hurts, or helps; a title begins with the change."""
    base = better_of((complement.dense, complement.sparse))
    for query in complement.changed:
        heads, lists = [], []
        for name, listed in query.lists.items():
            first = f"first relevant at {listed.first}" if listed.first else f"none relevant in {complement.depth}"
            heads.append(f"{name} {figure(listed.value)},\n{first}")
            lists.append([hit_text(hit) for hit in listed.hits])
        title = f"{query.run} {with_sign(query.change)} {complement.measure} against {base}: {query.qid}  {query.text}"
        yield Table(heads, list(zip_longest(*lists, fillvalue="")), title, left=len(heads), shared=True)


def hit_text(hit: Hit) -> str:
    """Return a document in two lines: its id, marked if it is relevant, then title and text."""
    text = " ".join(f"{hit.title if hit.title != hit.docid else ''} {hit.text}".split())
    docid = f"{RELEVANT if hit.relevant else ' '} {console.one_line(hit.docid)}"
    return f"{docid}\n  {text}" if text else docid
