"""How figures and tables look, whichever command prints them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.table import Table


def figure(value: float, digits: int = 4) -> str:
    """.5460, as the field's tables have it; 1.0000 for one."""
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"


def signed(value: float, digits: int = 3) -> str:
    """+.250 or -.250."""
    return ("+" if value > 0 else "") + figure(value, digits)


def count(value: float) -> str:
    """1,234 for a number of things, .5460 for a share."""
    return f"{value:,}" if isinstance(value, int) else figure(value)


def table(first: str, others: Sequence[str], justify: Literal["left", "right"] = "right", wrap: bool = False) -> Table:
    """An empty table for a terminal; with `wrap`, cells go over two lines where it is too narrow."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False)
    drawn.add_column(first)
    for name in others:
        drawn.add_column(Text(name), justify=justify, no_wrap=not wrap)
    return drawn


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table in Markdown, the first `left` columns to the left, the others to the right."""
    rules = [":--" if position < left else "--:" for position in range(len(columns))]
    escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (columns, rules, *rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def cell(value: Any) -> str:
    """A value of any kind in a Markdown table; NaN is nothing."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return str(value)
