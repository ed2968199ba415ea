"""The tables of `evaluate` as LaTeX (package booktabs)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from hybrid_cli import console
from hybrid_cli.reporting import complement, summary
from hybrid_cli.reporting.summary import BELOW, RAISED, Summary

_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
_SPECIAL |= {"|": r"\textbar{}", "`": r"\textasciigrave{}", "[": "{[}", "]": "{]}"}  # `\\\\ [` has an argument
_SPECIAL |= {character: f"${character}$" for character in "<>"}
_SPECIAL |= {character: f"\\{character}" for character in "&%$#_{}"}
_LETTERS = {raised: letter for letter, raised in RAISED.items()} | {BELOW: r"\downarrow "}
_MARKS = re.compile(f"[{''.join(_LETTERS)}]+")


def latex(text: str) -> str:
    """Return a text for LaTeX in one line: special characters escaped, raised letters as superscripts."""
    escaped = "".join(_SPECIAL.get(character, character) for character in console.one_line(text))
    escaped = f"{{*}}{escaped[1:]}" if escaped.startswith("*") else escaped  # a star after a line break has a meaning
    return _MARKS.sub(lambda found: f"$^{{{''.join(_LETTERS[mark] for mark in found[0])}}}$", escaped)


def latex_table(columns: Sequence[str], rows: Sequence[Sequence[str]], bold: Collection[tuple[int, int]] = ()) -> str:
    r"""Return a `tabular` with rules of booktabs, the first column aligned to the left.

    Args:
        columns, rows: texts, not escaped.
        bold: row and column of the cells in bold.
    """
    lines = [" & ".join(map(latex, columns))]
    for number, row in enumerate(rows):
        cells = (rf"\textbf{{{latex(cell)}}}" if (number, at) in bold else latex(cell) for at, cell in enumerate(row))
        lines.append(" & ".join(cells))
    head, *body = (f"{line} \\\\" for line in lines)
    form = "l" + "r" * (len(columns) - 1)
    return "\n".join(
        [rf"\begin{{tabular}}{{{form}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    )


def summary_latex(found: Summary) -> str:
    """Return the means with marks and intervals, the best value of each measure in bold, and the legend."""
    rows, bold = summary.means_cells(found)
    blocks = [latex_table(["run", *found.measures], rows, bold)]
    if found.complement:
        for block in complement.blocks(found.complement):
            blocks += [latex(block.title), latex_table(block.columns, block.rows), *map(latex, block.notes)]
    return _with_legend(blocks, summary.legend(found))


def _with_legend(blocks: Iterable[str], legend: Iterable[str]) -> str:
    return "\n\n".join([*blocks, *map(latex, legend)])


def titled_latex(tables: Mapping[str, str], legend: Iterable[str]) -> str:
    """Return tables with titles, and the legend."""
    return _with_legend((f"{latex(title)}\n\n{table}" if title else table for title, table in tables.items()), legend)
