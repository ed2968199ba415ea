"""The result of `evaluate` in the format of `--format`."""

from __future__ import annotations

from hybrid_cli import console
from hybrid_cli.reporting import complement, tables
from hybrid_cli.reporting.aggregate import Aggregate
from hybrid_cli.reporting.answerable import Answerable
from hybrid_cli.reporting.machine_labels import MachineLabels
from hybrid_cli.reporting.over_seeds import OverSeeds
from hybrid_cli.reporting.people import PeopleAgreement
from hybrid_cli.reporting.robustness import Robustness
from hybrid_cli.reporting.summary import Summary
from hybrid_cli.settings.analysis import Evaluate

Result = Summary | Robustness | OverSeeds | Aggregate | MachineLabels | PeopleAgreement | Answerable


def show(result: Result, settings: Evaluate) -> None:
    """Print the result of `evaluate`."""
    if settings.form == "table":
        show_tables(result)
    else:
        console.result(text(result, settings.form))


def show_tables(result: Result) -> None:
    """Print the tables with their legend, then the comparison of two runs if there is one."""
    for table in result.tables("table"):
        tables.show(table)
    tables.prose(result.legend())
    if isinstance(result, Summary) and result.complement:
        complement.show(result.complement)
    if isinstance(result, Summary) and result.verdict:
        tables.prose([result.verdict.sentence()])


def text(result: Result, form: str) -> str:
    """Return the result as `json`, `csv`, `markdown` or `latex`."""
    if form == "json":
        return console.json_text(result.content(), indent=2)
    if form == "csv":
        return tables.csv_text(result.csv_rows())
    write, escape = {"markdown": (tables.markdown_table, tables.markdown), "latex": (tables.latex_table, tables.latex)}[
        form
    ]
    parts = [*map(write, result.tables(form)), *map(escape, result.legend())]
    if form == "markdown" and isinstance(result, Summary) and result.complement:
        parts.append(complement.as_markdown(result.complement))
    if form == "markdown" and isinstance(result, Summary) and result.verdict:
        parts.append(tables.markdown(result.verdict.sentence()))
    return "\n\n".join(parts)
