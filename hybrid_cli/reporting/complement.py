"""What two runs find, each alone and both: area-true diagrams and the ratio of complementarity."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from hybrid_cli.evaluation.complement import Complement
from hybrid_cli.evaluation.complementarity import Sets
from hybrid_cli.evaluation.layout import figure
from hybrid_cli.reporting.diagrams import diagram, scale
from hybrid_cli.reporting.page import Cell, Figure, Section, Table


def section(found: Complement, runs: Sequence[str], cutoffs: Sequence[int]) -> Section:
    """Diagrams at some cutoffs, and a table of all."""
    drawn = [sets for sets in found.sets if sets.cutoff in cutoffs]
    pair = (found.dense, found.sparse)
    text = (
        f"A query is found if a relevant document stands among its first k hits. D are the queries that {found.dense} "
        f"finds, S those that {found.sparse} finds. RoC, the ratio of complementarity, is the share of D that is not "
        "in S: what the first adds to the second. Areas are true to the counts, the common one too, on one scale."
    )
    return Section(
        "complement",
        "What each finds",
        text=[text],
        figures=[_figure(sets, pair, runs, scale(drawn)) for sets in drawn],
        tables=[_table(found)],
    )


def _figure(sets: Sets, pair: tuple[str, str], runs: Sequence[str], scale: float) -> Figure:
    ratio = _ratio(sets.roc)
    name = f"venn-at-{sets.cutoff}"
    return Figure(
        name,
        f"First {sets.cutoff} hits: RoC {ratio}" if sets.cutoff > 1 else f"First hit: RoC {ratio}",
        diagram(name, sets, pair, runs, scale),
        f"{pair[0]} only {sets.dense_only:,} · both {sets.both:,} · {pair[1]} only {sets.sparse_only:,} · "
        f"neither {sets.fail:,} · of {sets.queries:,} queries",
        legend=pair,
    )


def _table(found: Complement) -> Table:
    columns = ["first k", "RoC", "mirror", "D", "S", "D only", "S only", "both", "neither", "oracle", "overlap"]
    rows = []
    for sets, common in zip(found.sets, found.overlap, strict=True):
        counts = (sets.dense, sets.sparse, sets.dense_only, sets.sparse_only, sets.both, sets.fail)
        rows.append(
            [
                Cell(str(sets.cutoff)),
                Cell(_ratio(sets.roc), strong=True),
                Cell(_ratio(sets.mirror)),
                *(Cell(f"{count:,}", _share(count, sets.queries)) for count in counts),
                Cell(f"{sets.queries - sets.fail:,}", _share(sets.queries - sets.fail, sets.queries)),
                Cell(figure(common, 3)),
            ]
        )
    notes = [
        "RoC = D only / D; mirror = S only / S; oracle: D or S, what a perfect choice between the two lists would "
        "find; overlap: mean share of the first k hits that both lists have. "
        f"Rank-biased overlap of the lists: {figure(found.rbo, 3)}."
    ]
    empty = [str(sets.cutoff) for sets in found.sets if not sets.dense]
    if empty:
        notes.append(f"RoC is not defined at k = {', '.join(empty)}: {found.dense} finds nothing there.")
    return Table("Complementarity at every cutoff", columns, rows, notes)


def _ratio(value: float) -> str:
    return "undefined" if isnan(value) else figure(value, 3)


def _share(count: int, queries: int) -> str:
    return f"{count / queries:.1%}" if queries else ""
