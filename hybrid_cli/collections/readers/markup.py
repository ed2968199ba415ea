"""Markup of SGML, XML and HTML as collections have it: end tags may be missing, and names are in any case.

Nothing is lost: every text is returned with the fields around it, and removed tags and unknown entities are counted.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.entities import html5
from typing import NamedTuple

COMMENT = "<!-- -->"  # field of the text of comments
_DEEPEST = 32  # tags inside of more fields are no fields
_MARKUP = re.compile(
    r"<(?P<long>!--|!\[CDATA\[)"
    r"|<(?P<slash>/?)(?P<name>[A-Za-z][\w.:-]*)(?:\s[^<>]*)?(?P<empty>/?)>"
    r"|<(?P<other>[?!][A-Za-z][\w.:-]*)[^<>]*>"
)  # any other < is text
_ENDS = {"!--": "-->", "![CDATA[": "]]>"}
# Tags that format a text, and are not fields of it; FBIS has F.
_INLINE = {"A", "ABBR", "B", "BIG", "CITE", "CODE", "EM", "F", "FONT", "I", "IMG", "S", "SMALL", "SPAN", "STRONG"}
_INLINE |= {"BLOCKQUOTE", "BR", "CENTER", "DIV", "H1", "H2", "H3", "H4", "H5", "H6", "HR", "P", "PRE", "SUB", "SUP"}
_INLINE |= {"DL", "DT", "LI", "OL", "TABLE", "TBODY", "TD", "TFOOT", "TH", "THEAD", "TR", "TT", "U", "UL"}
_ENTITY = re.compile(
    r"&(?:#(?P<number>[0-9]{1,7}|[xX][0-9A-Fa-f]{1,6});?|(?P<name>[A-Za-z][A-Za-z0-9.]{0,31})(?P<end>;?))"
)
# Names of the TREC disks that HTML lacks, or reads as another character.
_ENTITIES = {"blank": " ", "hyph": "-", "ncirc": "n\u0302", "Gacute": "\u01f4"}


class Piece(NamedTuple):
    """A text without tags.

    Attributes:
        fields: names in capitals of the fields around it, the outermost first.
        text: the text, as it is written; see `Markup.plain`.
    """

    fields: tuple[str, ...]
    text: str


@dataclass
class Markup:
    """The texts of a block, and what was removed from them.

    Attributes:
        pieces: texts in their order; none is blank.
        tags: number of start tags by name in capitals.
        entities: number of unknown entities by name, as `plain` finds them.
    """

    pieces: list[Piece] = field(default_factory=list)
    tags: Counter[str] = field(default_factory=Counter)
    entities: Counter[str] = field(default_factory=Counter)

    def plain(self, *texts: str) -> str:
        """Return texts as one, without entities and line breaks; unknown entities are kept and counted."""
        return " ".join(_ENTITY.sub(self._character, " ".join(texts)).split())

    def _character(self, match: re.Match[str]) -> str:
        if match["number"]:
            return html.unescape(f"&#{match['number']};")
        name = match["name"]
        if not match["end"]:  # an end may be missing, but `&copy=1` is part of an address
            return match[0] if match.string.startswith("=", match.end()) else html5.get(name, match[0])
        for known in (name, name.lower()):
            if (character := _ENTITIES.get(known) or html5.get(f"{known};")) is not None:
                return character
        self.entities[match[0]] += 1
        return match[0]


class _Token(NamedTuple):
    """A tag, a comment or a CDATA section.

    Attributes:
        start, end: location.
        name: name in capitals; empty for a text.
        slash: an end tag.
        field: a start tag that may be one of a field.
        text: the text of a comment or of a CDATA section.
    """

    start: int
    end: int
    name: str
    slash: bool = False
    field: bool = False
    text: str = ""


def read(block: str) -> Markup:
    """Return the texts of a block with their fields.

    A field ends at its end tag, or, if it has none, at the next tag that is no formatting.
    """
    markup = Markup()
    tokens = list(_tokens(block))
    closed = _end_tags(tokens)
    names: list[str] = []
    ends: list[int | None] = []  # of each open field: its end tag, None if it has none

    def add(text: str, fields: tuple[str, ...]) -> None:
        if text and not text.isspace():
            markup.pieces.append(Piece(fields, text))

    last = 0
    for number, token in enumerate(tokens):
        add(block[last : token.start], tuple(names))
        last = token.end
        if token.text:
            add(token.text, (COMMENT,) if token.name == COMMENT else tuple(names))
        if not token.slash and token.name not in ("", COMMENT):
            markup.tags[token.name] += 1
        if token.name in _INLINE or not (token.field or token.slash):
            continue
        while ends and ends[-1] is None:
            del names[-1], ends[-1]
        if token.slash and number in ends:
            del names[ends.index(number) :], ends[ends.index(number) :]
        elif token.field and len(names) < _DEEPEST:
            names.append(token.name)
            ends.append(closed.get(number))
    add(block[last:], tuple(names))
    return markup


def _tokens(block: str) -> Iterator[_Token]:
    position, missing = 0, set[str]()
    while match := _MARKUP.search(block, position):
        start, position = match.span()
        if kind := match["long"]:
            end = -1 if kind in missing else block.find(_ENDS[kind], position)
            if end < 0:
                missing.add(kind)
                continue
            text = block[position:end]
            position = end + len(_ENDS[kind])
            if kind == "!--":
                yield _Token(start, position, COMMENT, text=text)
            else:
                yield _Token(start, position, "", text=text.replace("&", "&amp;"))  # without entities
        elif match["other"]:
            yield _Token(start, position, f"<{match['other']}>")
        else:
            slash = bool(match["slash"])
            yield _Token(start, position, match["name"].upper(), slash, field=not slash and not match[0].endswith("/>"))


def _end_tags(tokens: list[_Token]) -> dict[int, int]:
    """Return the number of the end tag of each start tag that has one."""
    begun: dict[str, list[int]] = {}
    closed = {}
    for number, token in enumerate(tokens):
        if token.field:
            begun.setdefault(token.name, []).append(number)
        elif token.slash and begun.get(token.name):
            closed[begun[token.name].pop()] = number
    return closed
