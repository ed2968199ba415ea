"""Snippets of documents with the words of a query, and lines cut between words."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hybrid_cli import words
from hybrid_cli.lexical import english

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
        initials = {stem[0] for stem in self.stems}  # of a word as of its stem
        spans = [span for span in words.plain_spans(text) if text[span[0]].casefold()[0] in initials]
        spans = [span for span in spans if _stem(text[slice(*span)]) in self.stems]
        return sorted([*spans, *self.common(text)])


def match_words(query: str) -> Matching:
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
    matches = [(begin, word) for begin, end in words.plain_spans(line) if (word := line[begin:end].casefold()) in asked]
    matches += [(begin, line[begin:end]) for begin, end in words.common(query)(line)]
    begin = _densest(sorted(matches), size - _BEFORE)
    begin = words.word_start(line, begin - _BEFORE) if begin > _BEFORE else 0
    end = words.word_end(line, begin, size)
    return ("... " if begin else "") + line[begin:end] + (" ..." if end < len(line) else "")


def _densest(occurrences: Sequence[tuple[int, str]], size: int) -> int:
    """Return the first position after which `size` letters contain most different words; 0 without words."""
    counts, ahead, best, most = Counter[str](), 0, 0, 0
    for start, word in occurrences:
        while ahead < len(occurrences) and occurrences[ahead][0] < start + size:
            counts[occurrences[ahead][1]] += 1
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


def wrap_lines(text: str, width: int) -> list[str]:
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
