"""Numbers, snippets and tables in text: for the terminal, at most 80 columns wide, and for Markdown."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybrid_cli import console, words
from hybrid_cli.console import styled
from hybrid_cli.lexical import english

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


# Characters with a meaning in Markdown: an underscore inside a word has none, nor has a `<` before a space.
_MARKUP = re.compile(r"[\\`*\[\]|~$&]|<(?=[A-Za-z/!?])|(?<![^\W_])_|_(?![^\W_])|^(?:[#>]|[+-](?=\s))")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four: wide forms
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE | re.ASCII)
WIDTH = 80  # columns of a table when output is piped; a terminal's own width otherwise


def figure(value: float, digits: int = 4) -> str:
    """Format a value without leading zero, as in papers: `.5460`, `1.0000`."""
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"


def signed(value: float, digits: int = 3) -> str:
    """Format a difference: `+.250`, `-.250`, and `.000` if it rounds to 0."""
    value = round(value, digits) + 0.0  # no negative zero
    return ("+" if value > 0 else "") + figure(value, digits)


def count(value: float) -> str:
    """Format an integer as `1,234`, another number as `.5460`."""
    return f"{value:,}" if isinstance(value, int) else figure(value)


def without_nan(value: Any) -> Any:
    """Return None for NaN, which JSON cannot represent."""
    return None if isinstance(value, float) and math.isnan(value) else value


def pseudo_note(kind: str) -> str:
    """Return the line below figures that were measured on pseudo-queries."""
    return f"Measured on pseudo-queries ({kind}), not on queries of users."


def stdout() -> Console:
    """Return the console of tables: as wide as the terminal, 80 columns when piped."""
    return console.stdout(WIDTH)


def prose(lines: Sequence[str]) -> None:
    """Print lines unchanged, wrapped at words."""
    out = stdout()
    for line in lines:
        out.print(line)


def heading(text: str) -> None:
    """Print a bold line."""
    stdout().print(f"\n{console.one_line(text)}", style="bold")


def show(
    columns: Sequence[str], rows: Sequence[Sequence[str | Text]], left: int = 1, stack: Callable[[str], str] = str
) -> None:
    """Print a table that fits the console; a wide table is split into several, each with the first column.

    Args:
        columns: headings.
        rows: cells, plain or styled.
        left: number of columns aligned to the left.
        stack: function that breaks a heading into lines; used if the table is too wide.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    out = stdout()
    names, gap = list(columns), 2
    if not fits(names, rows):
        names = [names[0], *map(stack, names[1:])]
        gap = 2 if fits(names, rows) else 1
    for chosen in _pieces(_widths(names, rows, gap), out.width - (gap == 1)):  # without padding, the edges add a column
        table = Table(box=SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False)
        for place in chosen:
            table.add_column(styled(names[place]), justify="left" if place < left else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(styled(cell) if isinstance(cell, str) else cell for cell in (row[n] for n in chosen)))
        out.print(table)


def fits(columns: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> bool:
    """Return whether `show` prints the table in one piece with its usual gaps."""
    return sum(_widths(columns, rows, 2)) <= stdout().width


def _widths(names: Sequence[str], rows: Sequence[Sequence[str | Text]], gap: int) -> list[int]:
    """Return the width of each column, including the gap on the right."""
    from rich.cells import cell_len

    cells = [[console.plain(str(cell)) for cell in row] for row in (names, *rows)]
    return [max(cell_len(line) for row in cells for line in row[n].split("\n")) + gap for n in range(len(names))]


def _pieces(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Yield the columns of each table: the first, and as many others as fit."""
    piece, used = [0], widths[0]
    for place, width in enumerate(widths[1:], 1):
        if used + width > room and len(piece) > 1:
            yield piece
            piece, used = [0], widths[0]
        piece.append(place)
        used += width
    yield piece


def at_words(name: str) -> str:
    """Break a heading at hyphens and at its last space: `121-160`, `up to 40` and `mean drop` over two lines."""
    return "\n".join(name.rsplit(" ", 1)).replace("-", "-\n")


def markdown_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, bold: Collection[tuple[int, int]] = ()
) -> str:
    """Return a Markdown table.

    Args:
        columns, rows: texts, not escaped.
        left: number of columns aligned to the left.
        bold: row and column of the cells whose first word is bold.
    """
    rules = [":--" if position < left else "--:" for position in range(len(columns))]
    cells = [[markdown(cell) for cell in row] for row in rows]
    for row, column in bold:
        word, space, rest = cells[row][column].partition(" ")
        cells[row][column] = f"**{word}**{space}{rest}"
    return "\n".join(f"| {' | '.join(row)} |" for row in ([markdown(column) for column in columns], rules, *cells))


def markdown(text: str) -> str:
    """Return a text for Markdown in one line, whose characters have no other meaning: no link, no HTML, no column."""
    return _MARKUP.sub(r"\\\g<0>", console.one_line(text))


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as CSV; the columns are all keys, in the order of their first use.

    Spreadsheets take a cell that begins with `=`, `+`, `-` or `@` for a formula; an apostrophe before it makes it text.
    Numbers are kept.
    """
    import csv
    import io

    out = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows(
        [_cell(row.get(column)) for column in columns] for row in ({each: each for each in columns}, *rows)
    )
    return out.getvalue().removesuffix("\n")


def _cell(value: Any) -> Any:
    """Return a value that no spreadsheet takes for a formula; texts are escaped as in JSON."""
    if not isinstance(value, str):
        return value
    text = f"'{value}" if value.startswith(_FORMULA) and not _NUMBER.fullmatch(value) else value
    return console.escaped(text)


CHARACTERS = 240
_BEFORE = 40  # letters of a snippet before its first word of the query


@dataclass(frozen=True)
class Matching:
    """The words of a query, by their stem.

    Attributes:
        stems: stems of the words of the query that are no stop words.
        common: finds parts of the query in scripts without spaces; see `words.common`.
    """

    stems: frozenset[str]
    common: Callable[[str], list[words.Span]]

    def spans(self, text: str) -> list[words.Span]:
        """Return start and end of each word of `text` with a stem of the query."""
        found = [span for span in words.plain_spans(text) if _stem(text[slice(*span)]) in self.stems]
        return sorted([*found, *self.common(text)])

    def words_of(self, text: str) -> list[str]:
        """Return each word of `text` with a stem of the query."""
        return [text[begin:end] for begin, end in self.spans(text)]


def matching(query: str) -> Matching:
    """Return the words of a query that are marked in texts."""
    asked = {word.casefold() for word in words.plain_words(query)}
    return Matching(frozenset(map(_stem, asked - english.STOP_WORDS)), words.common(query))


def _stem(word: str) -> str:
    """Return the stem of an English word; other words are kept."""
    folded = word.casefold()
    return english.stem(folded) if folded.isascii() else folded


def snippet(text: str, query: str, size: int = CHARACTERS) -> str:
    """Return about `size` characters of `text` on one line, from the part with most of the words of the query."""
    line = " ".join(text.split())
    asked = {word for word in words.plain_words(query.casefold()) if len(word) > 2}
    found = [(begin, word) for begin, end in words.plain_spans(line) if (word := line[begin:end].casefold()) in asked]
    found += [(begin, line[begin:end]) for begin, end in words.common(query)(line)]
    begin = _densest(sorted(found), size - _BEFORE)
    begin = words.word_start(line, begin - _BEFORE) if begin > _BEFORE else 0
    end = words.word_end(line, begin, size)
    return ("... " if begin else "") + line[begin:end] + (" ..." if end < len(line) else "")


def _densest(found: Sequence[tuple[int, str]], size: int) -> int:
    """Return the first position after which `size` letters contain most different words; 0 without words."""
    counts, ahead, best, most = Counter[str](), 0, 0, 0
    for start, word in found:
        while ahead < len(found) and found[ahead][0] < start + size:
            counts[found[ahead][1]] += 1
            ahead += 1
        if len(counts) > most:
            best, most = start, len(counts)
        counts[word] -= 1
        if not counts[word]:
            del counts[word]
    return best


def cells(text: str, room: int) -> str:
    """Return a text that is at most `room` columns wide, the last one `…` if it is cut between two characters."""
    from rich.cells import cell_len

    if cell_len(text) <= room:
        return text
    used = 1  # of the mark
    kept = []
    for character in words.characters(text[: 8 * room]):
        used += cell_len(character)
        if used > room:
            break
        kept.append(character)
    return "".join(kept) + "…"


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text, at most `width` columns wide, cut between words."""
    if not words.has_unspaced(text):
        return textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    from rich.cells import cell_len

    text = " ".join(text.split())
    lines, begin, last, used = [], 0, 0, 0
    for start, end in words.spans(text):
        room = cell_len(text[last:end])
        if used and used + room > width:
            lines.append(text[begin:last])
            begin, used, room = start, 0, cell_len(text[start:end])
        last, used = end, used + room
    return [*lines, text[begin:]]
