"""Snippets of documents for result lists."""

from __future__ import annotations

import re

CHARACTERS = 240


def snippet(text: str, query: str, size: int = CHARACTERS) -> str:
    """Return about `size` characters of `text` on one line, from the place with most of the words of the query."""
    line = " ".join(text.split())
    words = {word for word in re.findall(r"\w+", query.casefold()) if len(word) > 2}
    places = [
        (match.start(), match.group()) for match in re.finditer(r"\w+", line.casefold()) if match.group() in words
    ]
    begin = max(
        (start for start, _ in places),
        key=lambda start: len({word for place, word in places if start <= place < start + size - 40}),
        default=0,
    )
    begin = line.rfind(" ", 0, max(0, begin - 40)) + 1 if begin > 40 else 0
    end = len(line) if len(line) <= begin + size else line.rfind(" ", begin, begin + size)
    end = end if end > begin else begin + size
    return ("... " if begin else "") + line[begin:end] + (" ..." if end < len(line) else "")
