"""The comparison of two runs (`evaluate --complement`) as terminal tables, JSON, CSV and Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate, groupby, pairwise, zip_longest
from typing import TYPE_CHECKING, Any

from hybrid_cli import console
from hybrid_cli.console import styled
from hybrid_cli.evaluation.buckets import HARD
from hybrid_cli.reporting import tables
from hybrid_cli.reporting.tables import cells, figure, markdown, markdown_table

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console
    from rich.text import Text

    from hybrid_cli.evaluation.buckets import Buckets
    from hybrid_cli.evaluation.complement import Changed, Complement, Hit, Listed
    from hybrid_cli.evaluation.complementarity import Sets

_BAR_CELLS, _BAR_LABEL = 72, 5
_WIDEST = 120
_MARKDOWN_CHARACTERS = 80
_SHADES = ("█", "blue"), ("▒", "magenta"), ("░", "yellow"), ("·", "dim")
_RELEVANT = "●"


# --------------------------------------------------------------------------------------------- machine-readable formats


def as_dict(complement: Complement) -> dict[str, Any]:
    """Return all figures for JSON; the ratio of an empty set is None."""
    cuts = [
        {
            **asdict(cut),
            "roc": tables.without_nan(cut.roc),
            "mirror": tables.without_nan(cut.mirror),
            "oracle": cut.oracle,
            "overlap": share,
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
            yield _row(pair, f"{name}@{cut.cutoff}", counts[name] / max(cut.queries, 1), cut.queries)
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


@dataclass(frozen=True)
class _Block:
    """A table with its title and the notes below it."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


def blocks(complement: Complement) -> Iterator[_Block]:
    """Yield the tables of the comparison."""
    yield _ratios_block(complement)
    yield _sets_block(complement)
    columns = ["run", "against", "wins", "ties", "losses", "difference"]
    rows = [
        [each.run, each.base, *(f"{n:,}" for n in (each.wins, each.ties, each.losses)), figure(each.difference)]
        for each in complement.contests
    ]
    yield _Block(f"{complement.measure} per query", columns, rows, [])
    for group, means in complement.groups:
        yield _group_block(complement, group, means)


def _ratios_block(complement: Complement) -> _Block:
    dense, sparse, cuts = complement.dense, complement.sparse, complement.sets
    rows = [
        [str(cut.cutoff), _ratio(cut.roc), _ratio(cut.mirror), figure(cut.oracle, 3), figure(common, 3)]
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
    return _Block(f"complementarity of D = {dense} and S = {sparse}", columns, rows, notes)


def _sets_block(complement: Complement) -> _Block:
    rows = []
    for cut in complement.sets:
        counts = (cut.dense, cut.sparse, cut.dense_only, cut.both, cut.sparse_only, cut.fail)
        rows.append([str(cut.cutoff), *(f"{count:,} {count / max(cut.queries, 1):3.0%}" for count in counts)])
    notes = [
        f"{name} has no hits for {absent:,} of these queries; they count as not found."
        for name, absent in complement.absent.items()
        if absent
    ]
    title = f"{complement.sets[0].queries:,} queries with a relevant document, by the run that finds one in its top k"
    return _Block(title, ["k", "D", "S", "D only", "both", "S only", "neither"], rows, notes)


def _ratio(value: float) -> str:
    return "undefined" if math.isnan(value) else figure(value, 3)


def _group_block(complement: Complement, group: Buckets, means: pl.DataFrame) -> _Block:
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
    return _Block(f"{complement.measure} by {group.name}", ["", *sizes], rows, notes)


def bar(cut: Sets, cells: int) -> list[int]:
    """Divide the cells of a bar among D only, both, S only and neither."""
    ends = accumulate((cut.dense_only, cut.both, cut.sparse_only, cut.fail))
    edges = [0, *(round(cells * end / max(cut.queries, 1)) for end in ends)]
    return [last - first for first, last in pairwise(edges)]


def _changed_in_groups(complement: Complement) -> Iterator[tuple[str, list[Changed]]]:
    """Yield a title with the queries that one run hurts, or helps."""
    for (run, hurt), changed in groupby(complement.changed, lambda each: (each.run, each.change < 0)):
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
    ratios, *others = blocks(complement)
    parts = [*_markdown(ratios), "\n".join(f"    {line.plain}" for line in _bars(complement, _BAR_CELLS))]
    for block in others:
        parts += _markdown(block)
    for title, queries in _changed_in_groups(complement):
        parts.append(f"### {markdown(title[0].upper() + title[1:])}")
        for changed in queries:
            heads = [_head(name, listed, complement.depth) for name, listed in changed.lists.items()]
            rows = [list(row) for row in _side_by_side(changed, _MARKDOWN_CHARACTERS)]
            parts += [
                f"**{markdown(changed.qid)}** {markdown(changed.text)}",
                markdown_table(heads, rows, left=len(heads)),
            ]
    return "\n\n".join(parts)


def _markdown(block: _Block) -> list[str]:
    return [f"### {markdown(block.title)}", markdown_table(block.columns, block.rows), *map(markdown, block.notes)]


def show(complement: Complement) -> None:
    """Print tables, bars and the most changed queries."""
    out = tables.stdout()
    for number, block in enumerate(blocks(complement)):
        tables.heading(block.title)
        tables.show(block.columns, block.rows, stack=tables.at_words)
        if number == 0:
            for line in _bars(complement, min(_BAR_CELLS, out.width - _BAR_LABEL)):
                out.print(line)
        tables.prose(block.notes)
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
