"""Numbers and tables in text: for the terminal, at most 80 columns wide, and as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hybrid_cli import console
from hybrid_cli.console import styled

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


# Characters with a meaning in Markdown: an underscore inside a word has none, nor has a `<` before a space.
_MARKUP = re.compile(r"[\\`*\[\]|~$&]|<(?=[A-Za-z/!?])|(?<![^\W_])_|_(?![^\W_])|^(?:[#>]|[+-](?=\s))")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four: wide forms
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE | re.ASCII)
LETTERS = "abcdefghijklmnoprstuvwxyzABDEGHIJKLMNOPRTUW"  # of runs; the others have no superscript in Unicode
RAISED = dict(zip(LETTERS, "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᴬᴮᴰᴱᴳᴴᴵᴶᴷᴸᴹᴺᴼᴾᴿᵀᵁᵂ", strict=True))
_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
_SPECIAL |= {"|": r"\textbar{}", "`": r"\textasciigrave{}", "[": "{[}", "]": "{]}"}  # `\\\\ [` has an argument
_SPECIAL |= {character: f"${character}$" for character in "<>"}
_SPECIAL |= {character: f"\\{character}" for character in "&%$#_{}"}
_LETTERS = {raised: letter for letter, raised in RAISED.items()}
_MARKS = re.compile(f"[{''.join(_LETTERS)}]+")
_INTERVAL = re.compile(r" (?=[±(])")
_WIDEST = 120  # columns of a table whose cells are cut
WIDTH = 80  # columns of a table when output is piped; a terminal's own width otherwise


def figure(value: float, digits: int = 4) -> str:
    """Format a value without leading zero, as in papers: `.5460`, `1.0000`."""
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"


def with_sign(value: float, digits: int = 3) -> str:
    """Format a difference: `+.250`, `-.250`, and `.000` if it rounds to 0."""
    value = round(value, digits) + 0.0  # no negative zero
    return ("+" if value > 0 else "") + figure(value, digits)


def count(value: float) -> str:
    """Format an integer as `1,234`, another number as `.5460`."""
    return f"{value:,}" if isinstance(value, int) else figure(value)


def pseudo_note(kind: str) -> str:
    """Return the line below figures that were measured on pseudo-queries."""
    return f"Measured on pseudo-queries ({kind}), not on queries of users."


def stdout() -> Console:
    """Return the console of tables: as wide as the terminal, 80 columns when piped."""
    return console.stdout(WIDTH)


def prose(lines: Iterable[str]) -> None:
    """Print lines unchanged, wrapped at words."""
    out = stdout()
    for line in lines:
        out.print(line)


def heading(text: str) -> None:
    """Print a bold line."""
    stdout().print(f"\n{console.one_line(text)}", style="bold")


@dataclass(frozen=True)
class Table:
    """A table for the terminal, Markdown, LaTeX and the HTML page; texts are not escaped.

    Attributes:
        columns: headings.
        rows: cells; on the page, the second line of a cell is smaller.
        title: line above the table.
        notes: lines below it.
        left: number of columns aligned to the left.
        bold: row and column of the cells whose first word is bold.
        stacked: break headings at words, and cells before an interval, if the table is too wide for the terminal.
        shared: columns of equal width in the terminal, whose cells are cut.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = ()
    left: int = 1
    bold: Collection[tuple[int, int]] = ()
    stacked: bool = False
    shared: bool = False


@dataclass(frozen=True)
class Result:
    """A result in the form of every format.

    Attributes:
        blocks: tables, and lines between them.
        content: all figures, for JSON.
        rows: all figures, for CSV.
    """

    blocks: Sequence[Table | str]
    content: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]] = ()

    def text(self, form: str) -> str:
        """Return the result as `json`, `csv`, `html`, `markdown` or `latex`."""
        if form == "json":
            return console.json_text(self.content, indent=2)
        if form == "csv":
            return csv_text(self.rows)
        if form == "html":
            return "\n".join(_html(block) if isinstance(block, str) else html_table(block) for block in self.blocks)
        write, escape = (markdown_table, markdown) if form == "markdown" else (latex_table, latex)
        blocks = [block for block in self.blocks if form == "markdown" or isinstance(block, str) or not block.shared]
        return "\n\n".join(escape(block) if isinstance(block, str) else write(block) for block in blocks)

    def show(self) -> None:
        """Print tables and lines in the terminal."""
        for block in self.blocks:
            prose([block]) if isinstance(block, str) else show(block)


# ----------------------------------------------------------------------------------------------------------- terminal


def show(table: Table) -> None:
    """Print a table that fits the console; a wide table is split into several, each with the first column."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable

    if table.title:
        heading(table.title)
    out = stdout()
    names, rows, gap = list(table.columns), table.rows, 2
    if table.stacked and sum(_widths(names, rows, gap)) > out.width:
        names = [names[0], *map(_at_words, names[1:])]
        rows = [[row[0], *(_INTERVAL.sub(r"\n", cell) for cell in row[1:])] for row in rows]
    if table.shared:
        pieces, width = [[*range(len(names))]], min(out.width, _WIDEST) // len(names) - 3
    else:
        gap = 2 if sum(_widths(names, rows, 2)) <= out.width else 1
        # without padding, the edges add a column
        pieces, width = list(_pieces(_widths(names, rows, gap), out.width - (gap == 1))), None
    for chosen in pieces:
        drawn = RichTable(box=SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False)
        for at in chosen:
            justify: Literal["left", "right"] = "left" if at < table.left else "right"
            drawn.add_column(styled(names[at]), justify=justify, no_wrap=True, overflow="ellipsis", width=width)
        for number, row in enumerate(rows):
            drawn.add_row(*(_bold(row[at]) if (number, at) in table.bold else styled(row[at]) for at in chosen))
        out.print(drawn)
    prose(table.notes)


def _bold(cell: str) -> Text:
    """Return a cell whose first word is bold."""
    text = styled(cell)
    text.stylize("bold", 0, len(cell.split(maxsplit=1)[0]))
    return text


def _widths(names: Sequence[str], rows: Sequence[Sequence[str]], gap: int) -> list[int]:
    """Return the width of each column, including the gap on the right."""
    from rich.cells import cell_len

    cells = [[console.plain(cell) for cell in row] for row in (names, *rows)]
    return [max(cell_len(line) for row in cells for line in row[n].split("\n")) + gap for n in range(len(names))]


def _pieces(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Yield the columns of each table: the first, and as many others as fit."""
    piece, used = [0], widths[0]
    for position, width in enumerate(widths[1:], 1):
        if used + width > room and len(piece) > 1:
            yield piece
            piece, used = [0], widths[0]
        piece.append(position)
        used += width
    yield piece


def _at_words(name: str) -> str:
    """Break a heading at hyphens, and at a bracket or its last space: `121-160`, `up to 40` over two lines."""
    head, bracket, rest = name.partition(" (")
    return f"{head}\n({rest}" if bracket else "\n".join(name.rsplit(" ", 1)).replace("-", "-\n")


# ------------------------------------------------------------------------------------------------- Markdown, LaTeX, CSV


def markdown_table(table: Table, heading: str = "**{}**") -> str:
    """Return a table with its title and notes; of a cell in bold, the first word is bold."""
    rules = [":--" if position < table.left else "--:" for position in range(len(table.columns))]
    cells = [[markdown(cell) for cell in row] for row in table.rows]
    for row, column in table.bold:
        word, space, rest = cells[row][column].partition(" ")
        cells[row][column] = f"**{word}**{space}{rest}"
    lines = (f"| {' | '.join(row)} |" for row in (list(map(markdown, table.columns)), rules, *cells))
    title = [heading.format(markdown(table.title))] if table.title else []
    return "\n\n".join([*title, "\n".join(lines), *map(markdown, table.notes)])


def markdown(text: str) -> str:
    """Return a text for Markdown in one line, whose characters have no other meaning: no link, no HTML, no column."""
    return _MARKUP.sub(r"\\\g<0>", console.one_line(text))


def latex_table(table: Table, caption: str = "", label: str = "") -> str:
    r"""Return a `tabular` with rules of booktabs, its title and notes; of a cell in bold, the first word is bold.

    A count and its share, the two lines of a cell, are columns of their own.

    Args:
        table: the table.
        caption, label: LaTeX of a `table` environment, which is written around the table if one of them is given; a
            caption replaces the title.
    """
    wide = range(table.left, len(table.columns))
    double = {at for at in wide if any("\n" in row[at] for row in table.rows)}

    def written(at: int, cell: str) -> str:
        return " & ".join(map(latex, cell.partition("\n")[::2])) if at in double else latex(cell)

    rows = [[written(at, cell) for at, cell in enumerate(row)] for row in table.rows]
    for row, column in table.bold:
        word, space, rest = rows[row][column].partition(" ")
        rows[row][column] = rf"\textbf{{{word}}}{space}{rest}"
    heads = [latex(name) for name in table.columns]
    for at in double:
        heads[at] = rf"\multicolumn{{2}}{{r}}{{{heads[at]}}}"
    head, *body = (f"{' & '.join(row)} \\\\" for row in (heads, *rows))
    begin = rf"\begin{{tabular}}{{{'l' * table.left}{'r' * (len(wide) + len(double))}}}"
    tabular = "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"])
    title = [latex(table.title)] if table.title and not caption else []
    text = "\n\n".join([*title, tabular, *map(latex, table.notes)])
    names = [rf"\{name}{{{value}}}" for name, value in (("caption", caption), ("label", label)) if value]
    return "\n".join([r"\begin{table}", r"\centering", *names, text, r"\end{table}"]) if names else text


def latex(text: str) -> str:
    """Return a text for LaTeX in one line: special characters escaped, raised letters as superscripts."""
    escaped = "".join(_SPECIAL.get(character, character) for character in console.one_line(text))
    escaped = f"{{*}}{escaped[1:]}" if escaped.startswith("*") else escaped  # a star after a line break has a meaning
    return _MARKS.sub(lambda match: f"$^{{{''.join(_LETTERS[mark] for mark in match[0])}}}$", escaped)


def html_table(table: Table) -> str:
    """Return a table for a notebook, with its title and notes; `Table.bold` are its bold cells."""
    body = ""
    for number, row in enumerate([table.columns, *table.rows], -1):
        tag, line = "th" if number < 0 else "td", ""
        for at, cell in enumerate(row):
            side, text = "left" if at < table.left else "right", _html(cell)
            text = f"<b>{text}</b>" if (number, at) in table.bold else text
            line += f'<{tag} style="text-align: {side}">{text}</{tag}>'
        body += f"<tr>{line}</tr>"
    notes = "".join(f"<p>{_html(note)}</p>" for note in table.notes)
    return f"<table><caption>{_html(table.title)}</caption>{body}</table>{notes}"


def _html(text: str) -> str:
    """Return a text for HTML, whose characters have no other meaning."""
    return html.escape(console.plain(text)).replace("\n", "<br>")


def csv_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV; the columns are all keys, in the order of their first use.

    Spreadsheets take a cell that begins with `=`, `+`, `-` or `@` for a formula; an apostrophe before it makes it text.
    Numbers are kept.
    """
    rows = list(rows)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_cell, columns))
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return out.getvalue().removesuffix("\n")


def _cell(value: Any) -> Any:
    """Return a value that no spreadsheet takes for a formula; texts are escaped as in JSON."""
    if not isinstance(value, str):
        return value
    text = f"'{value}" if value.startswith(_FORMULA) and not _NUMBER.fullmatch(value) else value
    return console.escape(text)
