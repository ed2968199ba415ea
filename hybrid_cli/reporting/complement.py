"""The comparison of two runs (`evaluate --complement`): its figures, as terminal tables, JSON, CSV and Markdown.

They include the queries that a fused run hurts and helps most, with texts and the top documents of each list.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, groupby, pairwise, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hybrid_cli import console
from hybrid_cli.artifacts.belonging import check_common
from hybrid_cli.collections import collection
from hybrid_cli.console import styled
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation import accuracy, buckets
from hybrid_cli.evaluation.buckets import HARD, Buckets
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
from hybrid_cli.lexical.analysis import LazyAnalyzer
from hybrid_cli.reporting import tables
from hybrid_cli.reporting.plan import EvaluationPlan, judgments, note_depth, text_files
from hybrid_cli.reporting.snippets import cells
from hybrid_cli.reporting.tables import Table, figure, markdown, markdown_table
from hybrid_cli.settings.analysis import Comparison

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


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
    known = None if texts is None else collection.docids(texts.corpus)
    targets = buckets.targets(relevant, known=known) if plan.qrels else relevant.clear()
    queries, documents = known_texts(
        texts, first[dense]["qid"], pl.concat([targets["docid"], *(top["docid"] for top in tops.values())])
    )
    asked = {qid: " ".join(text.split()) for qid, text in queries.iter_rows()}
    judged = set(relevant.select("qid", "docid").iter_rows())
    texts_by_id = {
        docid: (title or "", (text or "")[:_TEXT_CHARACTERS]) for docid, title, text in documents.iter_rows()
    }

    def list_hits(run: str, qid: str) -> Listed:
        ranks, docids = (frame.filter(qid=qid)[name] for frame, name in ((first[run], "rank"), (tops[run], "docid")))
        hits = [Hit(docid, *texts_by_id.get(docid, ("", "")), (qid, docid) in judged) for docid in docids]
        return Listed(values.filter(run=run, qid=qid)["value"].item(), ranks[0] if len(ranks) else None, hits)

    halves = buckets.easy_hard(first[sparse], sparse)
    groups = [halves, *group_queries(targets, queries, documents)]
    return Complement(
        dense=dense,
        sparse=sparse,
        measure=measure,
        sets=[sets(first[dense], first[sparse], cutoff) for cutoff in CUTOFFS],
        overlap=[_mean(overlap(heads[dense], heads[sparse], cutoff), first[dense]) for cutoff in CUTOFFS],
        rbo=_mean(rbo(heads[dense], heads[sparse]), first[dense]),
        depth=DEPTH,
        absent={name: len(first[name].join(head, on="qid", how="anti")) for name, head in heads.items()},
        contests=[
            Contest(run, base, *contest(values, run, [base], measure))
            for run, base in (plan.pair, *((run, base) for run in others for base in plan.pair))
        ],
        changed=[
            Changed(run, qid, asked.get(qid, ""), change, {name: list_hits(name, qid) for name in (*plan.pair, run)})
            for run, qid, change in changed
        ],
        groups=[(group, buckets.means(values, group, measure)) for group in groups],
        above={
            name: buckets.share_above_sparse(first[name], first[sparse], halves) for name in plan.runs if name != sparse
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
            problem = f"{texts.queries}: has no query of the runs, such as '{qids[0]}'; pass their queries"
            raise InputError(problem, code="other-queries", path=texts.queries, id=qids[0])
        return queries, collection.texts_of_hits(texts.corpus, docids)
    console.note(
        "complement: no texts, so queries and documents are shown by their ids and not grouped by length and terms; "
        "pass a collection, or --queries FILE and --corpus FILE",
        code="no-texts",
    )
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


def contest(values: pl.DataFrame, run: str, bases: Sequence[str], measure: str) -> tuple[int, int, int, float]:
    """Return wins, ties and losses of a run against the best of others, and the mean difference."""
    changed = changes(values, run, bases, measure)
    return *tally(changed), float(changed["change"].to_numpy().mean())


_BAR_CELLS, _BAR_LABEL = 72, 5
_WIDEST = 120
_MARKDOWN_CHARACTERS = 80
_SHADES = ("█", "blue"), ("▒", "magenta"), ("░", "yellow"), ("·", "dim")
_RELEVANT = "●"
_HEADING = "### {}"  # in Markdown
_PARTS = "dense_only", "sparse_only", "fail"  # of RoC


# --------------------------------------------------------------------------------------------- machine-readable formats


def as_dict(complement: Complement) -> dict[str, Any]:
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
    return {
        "dense": complement.dense,
        "sparse": complement.sparse,
        "measure": complement.measure,
        "cutoffs": cuts,
        "rbo": complement.rbo,
        "depth": complement.depth,
        "absent": dict(complement.absent),
        "contests": [asdict(contest) for contest in complement.contests],
        "changed": [asdict(changed) for changed in complement.changed],
        "buckets": groups,
        "above_sparse_on_hard": dict(complement.above),
    }


def csv_rows(complement: Complement) -> Iterator[dict[str, Any]]:
    """Yield rows of the CSV: run, measure, mean (sizes of sets as fractions), queries (the denominator)."""
    pair = f"{complement.dense} vs {complement.sparse}"
    for cut, share in zip(complement.sets, complement.overlap, strict=True):
        yield _row(pair, f"RoC@{cut.cutoff}", cut.roc, cut.dense)
        yield _row(pair, f"mirror@{cut.cutoff}", cut.mirror, cut.sparse)
        counts = asdict(cut)
        for name in ("dense", "sparse", "dense_only", "both", "sparse_only", "fail"):
            low, high = map(repr, cut.interval(counts[name]))
            row = _row(pair, f"{name}@{cut.cutoff}", counts[name] / max(cut.queries, 1), cut.queries)
            yield row | ({"low": low, "high": high} if name in _PARTS else {})
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
    return {"run": run, "measure": measure, "mean": "" if math.isnan(value) else repr(value), "queries": queries}


# ------------------------------------------------------------------------------------------------------------- tables


def blocks(complement: Complement) -> Iterator[Table]:
    """Yield the tables of the comparison."""
    yield _ratios_block(complement)
    yield _sets_block(complement)
    columns = ["run", "against", "wins", "ties", "losses", "difference"]
    rows = [
        [
            contest.run,
            contest.base,
            *(f"{n:,}" for n in (contest.wins, contest.ties, contest.losses)),
            figure(contest.difference),
        ]
        for contest in complement.contests
    ]
    yield Table(columns, rows, f"{complement.measure} per query", stacked=True)
    for group, means in complement.groups:
        yield _group_block(complement, group, means)


def _ratios_block(complement: Complement) -> Table:
    dense, sparse, cuts = complement.dense, complement.sparse, complement.sets
    rows = [
        [str(cut.cutoff), ratio_text(cut.roc), ratio_text(cut.mirror), figure(cut.oracle, 3), figure(common, 3)]
        for cut, common in zip(cuts, complement.overlap, strict=True)
    ]
    notes = [
        f"D (S): queries with a relevant document in the top k of {dense} ({sparse}).",
        "RoC(D;S) = D only / D; oracle = D or S; overlap: mean fraction of common documents in the top k; "
        f"rank-biased overlap: {figure(complement.rbo, 3)}.",
    ]
    notes += [f"RoC(D;S) at {cut.cutoff} is undefined: D is empty." for cut in cuts if not cut.dense]
    notes += [f"RoC(S;D) at {cut.cutoff} is undefined: S is empty." for cut in cuts if not cut.sparse]
    columns = ["k", "RoC(D;S)", "RoC(S;D)", "oracle", "overlap"]
    return Table(columns, rows, f"complementarity of D = {dense} and S = {sparse}", notes, stacked=True)


def _sets_block(complement: Complement) -> Table:
    rows = []
    for cut in complement.sets:
        named = {name: getattr(cut, name) for name in ("dense", "sparse", "dense_only", "both", "sparse_only", "fail")}
        cells = (
            f"{count:,} {count / max(cut.queries, 1):3.0%}"
            + (f"\n{interval_text(cut, count)}" if name in _PARTS else "")
            for name, count in named.items()
        )
        rows.append([str(cut.cutoff), *cells])
    notes = ["In brackets: 95% interval of the share (Wilson)."]
    notes += [
        f"{name} has no hits for {absent:,} of these queries; they count as not found."
        for name, absent in complement.absent.items()
        if absent
    ]
    title = f"{complement.sets[0].queries:,} queries with a relevant document, by the run that finds one in its top k"
    return Table(["k", "D", "S", "D only", "both", "S only", "neither"], rows, title, notes, stacked=True)


def ratio_text(value: float) -> str:
    """Format a ratio of complementarity, which is NaN for an empty set."""
    return "undefined" if math.isnan(value) else figure(value, 3)


def interval_text(cut: Sets, count: int) -> str:
    """Format the 95% interval of a count, in percent of the queries."""
    low, high = cut.interval(count)
    return f"({low:.0%} to {high:.0%})"


def _group_block(complement: Complement, group: Buckets, means: pl.DataFrame) -> Table:
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


def _changed_in_groups(complement: Complement) -> Iterator[tuple[str, list[Changed]]]:
    """Yield a title with the queries that one run hurts, or helps."""
    for (run, hurt), changed in groupby(complement.changed, lambda query: (query.run, query.change < 0)):
        sign, verb = ("below", "hurts") if hurt else ("above", "helps")
        better = f"the better of {complement.dense} and {complement.sparse}"
        yield f"queries that {run} {verb} most: {complement.measure} {sign} {better}", list(changed)


def _head(name: str, listed: Listed, depth: int) -> str:
    first = f"first relevant at {listed.first}" if listed.first else f"none relevant in {depth}"
    return f"{name} {figure(listed.value)},\n{first}"


def _side_by_side(changed: Changed, characters: int) -> Iterator[tuple[str, ...]]:
    """Yield the documents at each rank of all lists: id on one line, title and text on the next."""
    hits = ([_hit(hit, characters) for hit in listed.hits] for listed in changed.lists.values())
    return zip_longest(*hits, fillvalue="")


def _hit(hit: Hit, characters: int) -> str:
    """Return a document in two lines; a long id keeps its end, which distinguishes it."""
    room = characters - 2
    docid = console.one_line(hit.docid)
    docid = docid if len(docid) <= room else f"…{docid[1 - room :]}"
    text = " ".join(console.plain(f"{hit.title if hit.title != hit.docid else ''} {hit.text}").split())
    return f"{_RELEVANT if hit.relevant else ' '} {docid}\n  {cells(text, room)}"


# --------------------------------------------------------------------------------------------------------- text formats


def as_markdown(complement: Complement) -> str:
    """Return tables under headings; top documents of changed queries side by side."""
    ratios, *others = (markdown_table(block, _HEADING) for block in blocks(complement))
    parts = [ratios, "\n".join(f"    {line.plain}" for line in _bars(complement, _BAR_CELLS)), *others]
    for title, queries in _changed_in_groups(complement):
        parts.append(_HEADING.format(markdown(title[0].upper() + title[1:])))
        for changed in queries:
            heads = [_head(name, listed, complement.depth) for name, listed in changed.lists.items()]
            rows = list(_side_by_side(changed, _MARKDOWN_CHARACTERS))
            parts += [f"**{markdown(changed.qid)}** {markdown(changed.text)}"]
            parts += [markdown_table(Table(heads, rows, left=len(heads)))]
    return "\n\n".join(parts)


def show(complement: Complement) -> None:
    """Print tables, bars and the most changed queries."""
    out = tables.stdout()
    ratios, *others = blocks(complement)
    tables.show(replace(ratios, notes=()))
    for line in _bars(complement, min(_BAR_CELLS, out.width - _BAR_LABEL)):
        out.print(line)
    tables.prose(ratios.notes)
    for block in others:
        tables.show(block)
    for title, queries in _changed_in_groups(complement):
        tables.heading(title)
        for changed in queries:
            _print_changed(out, changed, complement.depth)


def _bars(complement: Complement, cells: int) -> Iterator[Text]:
    """Yield one line per cutoff with the sizes of the four sets, then the legend."""
    for cut in complement.sets:
        line = styled(f"{cut.cutoff} ".rjust(_BAR_LABEL))
        for (glyph, colour), size in zip(_SHADES, bar(cut, cells), strict=True):
            line.append(glyph * size, colour)
        yield line
    legend = styled("k ".rjust(_BAR_LABEL))
    names = (f"{complement.dense} only", "both", f"{complement.sparse} only", "neither")
    for (glyph, colour), name in zip(_SHADES, names, strict=True):
        legend.append(glyph, colour).append(console.plain(f" {name}  "))
    yield legend


def _print_changed(out: Console, changed: Changed, depth: int) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    width = min(out.width, _WIDEST)
    text = styled(f"  {console.one_line(changed.text)}")
    out.print(styled("").append_text(styled(console.one_line(changed.qid), "bold")).append_text(text), width=width)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    characters = width // len(changed.lists) - 3
    for name, listed in changed.lists.items():
        table.add_column(styled(_head(name, listed, depth)), width=characters, no_wrap=True, overflow="ellipsis")
    for row in _side_by_side(changed, characters):
        table.add_row(*(styled(hit, "bold" if hit.startswith(_RELEVANT) else "") for hit in row))
    out.print(table)
