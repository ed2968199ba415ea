"""The result of `evaluate` in the format of `--format`."""

from __future__ import annotations

from hybrid_cli import console
from hybrid_cli.reporting import complement, tables
from hybrid_cli.reporting.aggregate import Aggregate
from hybrid_cli.reporting.over_seeds import OverSeeds
from hybrid_cli.reporting.robustness import Robustness
from hybrid_cli.reporting.summary import Summary
from hybrid_cli.settings.analysis import Evaluate

Result = Summary | Robustness | OverSeeds | Aggregate


def show(found: Result, settings: Evaluate) -> None:
    """Print the result of `evaluate`."""
    if settings.form == "table":
        show_tables(found)
    else:
        console.result(text(found, settings.form))


def show_tables(found: Result) -> None:
    """Print the tables with their legend, then the comparison of two runs if there is one."""
    for table in found.tables("table"):
        tables.show(table)
    tables.prose(found.legend())
    if isinstance(found, Summary) and found.complement:
        complement.show(found.complement)


def text(found: Result, form: str) -> str:
    """Return the result as `json`, `csv`, `markdown` or `latex`."""
    if form == "json":
        return console.json_text(found.content(), indent=2)
    if form == "csv":
        return tables.csv_text(found.csv_rows())
    write, escape = {"markdown": (tables.markdown_table, tables.markdown), "latex": (tables.latex_table, tables.latex)}[
        form
    ]
    parts = [*map(write, found.tables(form)), *map(escape, found.legend())]
    if form == "markdown" and isinstance(found, Summary) and found.complement:
        parts.append(complement.as_markdown(found.complement))
    return "\n\n".join(parts)
