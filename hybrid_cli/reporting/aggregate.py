"""The result of `evaluate --aggregate` as terminal tables, JSON, CSV, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence

from hybrid_cli import console
from hybrid_cli.evaluation.aggregate import MACRO, MICRO, Aggregate
from hybrid_cli.reporting import tables
from hybrid_cli.reporting.latex import latex_table, titled_latex
from hybrid_cli.reporting.tables import csv_text, figure, markdown, markdown_table


def show(found: Aggregate) -> None:
    """Print one table per measure, with a row per collection."""
    for measure in found.measures:
        tables.heading(measure)
        tables.show(*_cells(found, measure), left=1)
    tables.prose([_legend(found)])


def text(found: Aggregate, form: str) -> str:
    """Return the result as `json`, `csv`, `markdown` or `latex`."""
    if form == "json":
        content = {"queries": found.queries, "parts": found.parts, "means": found.table.to_dicts()}
        return console.json_text(content, indent=2)
    if form == "csv":
        return csv_text(found.table.to_dicts())
    if form == "latex":
        each = {measure: latex_table(*_cells(found, measure)) for measure in found.measures}
        return titled_latex(each, [_legend(found)])
    parts = (f"**{markdown(measure)}**\n\n{markdown_table(*_cells(found, measure))}" for measure in found.measures)
    return "\n\n".join([*parts, markdown(_legend(found))])


def _cells(found: Aggregate, measure: str) -> tuple[Sequence[str], list[list[str]]]:
    """Return headings and rows of a measure."""
    means = {
        (collection, run): mean
        for collection, run, mean in found.table.filter(measure=measure).select("collection", "run", "mean").iter_rows()
    }
    names = {name: name if parts == 1 else f"{name} ({parts} parts)" for name, parts in found.parts.items()}
    rows = [
        [shown, f"{found.queries[name]:,}", *(figure(means[name, run]) for run in found.runs)]
        for name, shown in names.items()
    ]
    total = f"{sum(found.queries.values()):,}"
    rows += [[name, total, *(figure(means[name, run]) for run in found.runs)] for name in (MACRO, MICRO)]
    return ["collection", "queries", *found.runs], rows


def _legend(found: Aggregate) -> str:
    count = len(found.parts)
    parts = " Parts are averaged first, without weights." if max(found.parts.values()) > 1 else ""
    return f"{MACRO}: unweighted mean over {count} collections. {MICRO}: mean over all queries.{parts}"
