"""How two runs beside each other are shown: bars and tables for people, the same figures for programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate, groupby, pairwise, zip_longest
from typing import TYPE_CHECKING, Any

from hybrid_cli import console
from hybrid_cli.evaluation import layout
from hybrid_cli.evaluation.buckets import HARD

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console
    from rich.text import Text

    from hybrid_cli.evaluation.buckets import Buckets
    from hybrid_cli.evaluation.complement import Complement
    from hybrid_cli.evaluation.complementarity import Sets
    from hybrid_cli.evaluation.per_query import Changed, Hit, Listed

_BAR_CELLS, _BAR_LABEL = 72, 5
_WIDEST = 120
_MARKDOWN_CHARACTERS = 80
_SHADES = ("█", "blue"), ("▒", "magenta"), ("░", "yellow"), ("·", "dim")
_RELEVANT = "●"


# ----------------------------------------------------------------------------------------------------------- programs


def as_dict(complement: Complement) -> dict[str, Any]:
    """Everything, for JSON; a ratio of an empty set is None."""
    cuts = [
        {
            **asdict(cut),
            "roc": _or_none(cut.roc),
            "mirror": _or_none(cut.mirror),
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


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def figures(complement: Complement) -> Iterator[dict[str, Any]]:
    """The figures as rows of the CSV: run, measure, mean (a share where sets are counted), queries (those it is of)."""
    pair = f"{complement.dense} beside {complement.sparse}"
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


# -------------------------------------------------------------------------------------------- tables, wherever they go


@dataclass(frozen=True)
class _Block:
    """A table under its title, and what is to be said below it."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


def _blocks(complement: Complement) -> Iterator[_Block]:
    yield _sets_block(complement)
    columns = ["run", "against", "wins", "ties", "losses", "difference"]
    rows = [
        [each.run, each.base, *(f"{n:,}" for n in (each.wins, each.ties, each.losses)), layout.figure(each.difference)]
        for each in complement.contests
    ]
    yield _Block(f"{complement.measure}, query by query", columns, rows, [])
    for group, means in complement.groups:
        yield _group_block(complement, group, means)


def _sets_block(complement: Complement) -> _Block:
    dense, sparse, cuts = complement.dense, complement.sparse, complement.sets
    rows = []
    for cut, share in zip(cuts, complement.overlap, strict=True):
        counts = (cut.dense, cut.sparse, cut.dense_only, cut.both, cut.sparse_only, cut.fail, cut.queries - cut.fail)
        shares = [f"{count:,} {count / max(cut.queries, 1):3.0%}" for count in counts]
        rows.append([str(cut.cutoff), _ratio(cut.roc), _ratio(cut.mirror), *shares, layout.figure(share, 3)])
    notes = [
        f"D: {dense} has a relevant document among its first k hits; S: {sparse} has one. "
        f"Shares are of {cuts[0].queries:,} queries with something relevant.",
        "RoC = D only / D; mirror = S only / S; oracle = D or S; overlap: mean share of the first k hits in common; "
        f"rank-biased overlap: {layout.figure(complement.rbo, 3)}.",
    ]
    notes += [f"RoC@{cut.cutoff} is undefined: D is empty." for cut in cuts if not cut.dense]
    notes += [f"The mirror at {cut.cutoff} is undefined: S is empty." for cut in cuts if not cut.sparse]
    notes += [
        f"{absent:,} of these queries are missing from {name} and count as not found."
        for name, absent in complement.absent.items()
        if absent
    ]
    columns = ["k", "RoC", "mirror", "D", "S", "D only", "both", "S only", "neither", "oracle", "overlap"]
    return _Block(f"complementarity: D = {dense}, S = {sparse}", columns, rows, notes)


def _ratio(value: float) -> str:
    return "undefined" if math.isnan(value) else layout.figure(value, 3)


def _group_block(complement: Complement, group: Buckets, means: pl.DataFrame) -> _Block:
    runs = means["run"].unique(maintain_order=True).to_list()
    rows = []
    for (bucket,), found in means.group_by("bucket", maintain_order=True):
        by_run = dict(found.select("run", "mean").iter_rows())
        rows.append([str(bucket), f"{found['queries'][0]:,}", *(layout.figure(by_run[run]) for run in runs)])
    notes = [group.note] if group.note else []
    if HARD in group.labels:
        shares = ", ".join(f"{run} {layout.figure(share, 3)}" for run, share in complement.above.items())
        notes.append(f"share of the {HARD} queries with a higher reciprocal rank than {complement.sparse}: {shares}")
    return _Block(f"{complement.measure} by {group.name}", ["", "queries", *runs], rows, notes)


def bar(cut: Sets, cells: int) -> list[int]:
    """How many cells of a bar go to D only, both, S only and neither; they add up to `cells`."""
    ends = accumulate((cut.dense_only, cut.both, cut.sparse_only, cut.fail))
    edges = [0, *(round(cells * end / max(cut.queries, 1)) for end in ends)]
    return [last - first for first, last in pairwise(edges)]


def _changed_in_groups(complement: Complement) -> Iterator[tuple[str, list[Changed]]]:
    """A title, and the queries of one run that are hurt, or helped."""
    for (run, hurt), changed in groupby(complement.changed, lambda each: (each.run, each.change < 0)):
        where, what = ("below", "hurts") if hurt else ("above", "helps")
        better = f"the better of {complement.dense} and {complement.sparse}"
        yield f"queries that {run} {what} most: {complement.measure} {where} {better}", list(changed)


def _head(name: str, listed: Listed, depth: int) -> str:
    first = f"first relevant at {listed.first}" if listed.first else f"nothing relevant in {depth}"
    return f"{name} {layout.figure(listed.value)},\n{first}"


def _side_by_side(changed: Changed, characters: int) -> Iterator[tuple[str, ...]]:
    """Rank by rank the documents of each list: the id on one line, title and text on the next."""
    hits = ([_hit(hit, characters) for hit in listed.hits] for listed in changed.lists.values())
    return zip_longest(*hits, fillvalue="")


def _hit(hit: Hit, characters: int) -> str:
    """Long ids keep their end, which tells them apart."""
    room = characters - 2
    docid = hit.docid if len(hit.docid) <= room else f"…{hit.docid[1 - room :]}"
    words = " ".join(f"{hit.title if hit.title != hit.docid else ''} {hit.text}".split())
    text = words if len(words) <= room else f"{words[: room - 1]}…"
    return f"{_RELEVANT if hit.relevant else ' '} {docid}\n  {text}"


# -------------------------------------------------------------------------------------------------------------- forms


def as_markdown(complement: Complement) -> str:
    """Tables under headings; the first documents of changed queries side by side."""
    first, *others = _blocks(complement)
    parts = [*_markdown(first), "\n".join(f"    {line.plain}" for line in _bars(complement, _BAR_CELLS))]
    for block in others:
        parts += _markdown(block)
    for title, queries in _changed_in_groups(complement):
        parts.append(f"### {title[0].upper()}{title[1:]}")
        for changed in queries:
            heads = [_head(name, listed, complement.depth) for name, listed in changed.lists.items()]
            rows = [list(row) for row in _side_by_side(changed, _MARKDOWN_CHARACTERS)]
            parts += [f"**{changed.qid}** {changed.text}", layout.markdown_table(heads, rows, left=len(heads))]
    return "\n\n".join(parts)


def _markdown(block: _Block) -> list[str]:
    return [f"### {block.title}", layout.markdown_table(block.columns, block.rows), *block.notes]


def show(complement: Complement) -> None:
    """Print tables, bars and the most changed queries on stdout."""
    out = console.stdout()
    first, *others = _blocks(complement)
    _print(out, first, _bars(complement, min(_BAR_CELLS, out.width - _BAR_LABEL)))
    for block in others:
        _print(out, block)
    for title, queries in _changed_in_groups(complement):
        out.print(f"\n{title}", style="bold", markup=False, highlight=False)
        for changed in queries:
            _print_changed(out, changed, complement.depth)


def _print(out: Console, block: _Block, bars: Iterable[Text] = ()) -> None:
    from rich.text import Text

    out.print(f"\n{block.title}", style="bold", markup=False, highlight=False)
    table = layout.table(block.columns[0], block.columns[1:], wrap=True)
    table.padding = (0, 1, 0, 0)
    for row in block.rows:
        table.add_row(*map(Text, row))
    out.print(table)
    for line in bars:
        out.print(line)
    for note in block.notes:
        out.print(note, markup=False, highlight=False)


def _bars(complement: Complement, cells: int) -> Iterator[Text]:
    """A line for each cutoff: which of the two finds how many of the queries; then what the shades mean."""
    from rich.text import Text

    for cut in complement.sets:
        line = Text(f"{cut.cutoff} ".rjust(_BAR_LABEL))
        for (glyph, colour), size in zip(_SHADES, bar(cut, cells), strict=True):
            line.append(glyph * size, colour)
        yield line
    legend = Text("k ".rjust(_BAR_LABEL))
    names = (f"{complement.dense} only", "both", f"{complement.sparse} only", "neither")
    for (glyph, colour), name in zip(_SHADES, names, strict=True):
        legend.append(glyph, colour).append(f" {name}   ")
    yield legend


def _print_changed(out: Console, changed: Changed, depth: int) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    width = min(out.width, _WIDEST)
    out.print(Text.assemble((changed.qid, "bold"), f"  {changed.text}"), width=width)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    characters = width // len(changed.lists) - 3
    for name, listed in changed.lists.items():
        table.add_column(Text(_head(name, listed, depth)), width=characters, no_wrap=True, overflow="ellipsis")
    for row in _side_by_side(changed, characters):
        table.add_row(*(Text(hit, "bold" if hit.startswith(_RELEVANT) else "") for hit in row))
    out.print(table)
