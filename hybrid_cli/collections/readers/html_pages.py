"""Texts and titles of HTML pages, without scripts, styles and navigation.

A parser of HTML5 needs quadratic time for tags that are nested deeply, and memory for formatting tags that are never
closed. `_well_formed` therefore rewrites a page first, in linear time: it closes every tag, nests no deeper than
`_DEEPEST`, and drops attributes, comments, scripts and formatting tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from selectolax.lexbor import LexborHTMLParser, LexborNode

HTML = (".html", ".htm")
_DEEPEST = 256  # our choice; browsers stop at 512
_DROPPED = {"script", "style", "iframe", "noembed", "noframes", "xmp"}  # elements whose content is no HTML
_PLAIN = {"title", "textarea"}  # elements whose content has entities, but no tags
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr", "param"}
_FORMATTING = {"a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font"}
_FORMATTING |= {"i", "ins", "kbd", "label", "mark", "nobr", "q", "s", "samp", "small", "span", "strike", "strong"}
_FORMATTING |= {"sub", "sup", "time", "tt", "u", "var", "wbr", "plaintext", "frameset"}
_CLOSED_BY = {  # start tag -> open elements that it closes, where end tags may be missing
    "li": {"p", "li"},
    "dt": {"p", "dt", "dd"},
    "dd": {"p", "dt", "dd"},
    "p": {"p"},
    "option": {"option"},
    "tr": {"p", "td", "th", "tr"},
    "td": {"p", "td", "th"},
    "th": {"p", "td", "th"},
    "body": {"head"},
    "tbody": {"p", "td", "th", "tr", "thead", "tbody"},
    "tfoot": {"p", "td", "th", "tr", "tbody", "thead"},
}
_BOILERPLATE = ["nav", "footer", "aside", "noscript", "template", "svg", "math", "button", "select", "textarea", "menu"]
_TAG = re.compile(r"<(?P<slash>/?)(?P<name>[A-Za-z][A-Za-z0-9:-]*+)(?=[\s/>])(?:\"[^\"<]*\"|'[^'<]*'|[^<>\"'])*+>")
_OPENING = re.compile(r"<(?:(?P<comment>!--)|(?P<other>[!?])|/?[A-Za-z])")
_CHARSET = re.compile(rb"<meta\s[^>]*charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_CHARSETS = re.compile(
    r"utf-?8|(?:us-)?ascii|latin-?1|iso[-_]?8859-\d{1,2}|windows-\d{3,4}|cp125\d|koi8-[ru]|shift[-_]?jis|euc-(?:jp|kr)|"
    r"gb2312|gbk|gb18030|big5",
    re.IGNORECASE,
)
_DECLARED_BY = 2048  # bytes at the beginning of a page that may declare its encoding
_LATIN = re.compile(r"(?:us-)?ascii|latin-?1|iso[-_]?8859-1", re.IGNORECASE)


class Page(NamedTuple):
    """Title and text of a page; the text has a line for each paragraph, heading, item or cell."""

    title: str
    text: str


def read_page(content: str) -> Page:
    """Return the title and the text of a page: of its element `main`, if there is one with a text.

    The title is the element `title`, else the first heading of the page.
    """
    tree = LexborHTMLParser("".join(_well_formed(content)))
    title, heading = (_text(tree.css_first(name)).replace("\n", " ") for name in ("title", "h1"))
    tree.strip_tags(["title"])
    everything = _text(tree.body)
    tree.strip_tags(_BOILERPLATE)
    return Page(title or heading, _text(tree.css_first("main")) or _text(tree.body) or everything)


def charset_of(content: bytes) -> str:
    """Return the encoding that a page declares, UTF-8 without one; ASCII and Latin-1 mean windows-1252, as on the web.

    Other declarations than those of common encodings of text are ignored.
    """
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    match = _CHARSET.search(content[:_DECLARED_BY])
    name = match[1].decode("ascii", "replace") if match else ""
    if _LATIN.fullmatch(name):
        return "windows-1252"
    return name.lower() if _CHARSETS.fullmatch(name) else "utf-8"


def _text(node: LexborNode | None) -> str:
    """Return the text of an element, a line for each block."""
    lines = node.text(separator="\n").split("\n") if node is not None else []
    return "\n".join(words for line in lines if (words := " ".join(line.split())))


def _well_formed(content: str) -> Iterator[str]:
    """Yield a page with the same texts, in which all tags are closed, and nested up to a limit."""
    position, last, missing = 0, 0, set[str]()
    opened: list[str] = []
    while match := _OPENING.search(content, position):
        start, name, slash, inner = match.start(), "", False, ""
        if match["comment"]:
            end = _end(content, "-->", match.end(), missing)
        elif (tag := _TAG.match(content, start)) is not None:
            end, name, slash = tag.end(), tag["name"].lower(), bool(tag["slash"])
        else:
            end = _end(content, ">", match.end(), missing)
        if end < 0:  # never closed: text
            position = match.end()
            continue
        yield _escaped(content[last:start])
        if not slash and name in _DROPPED | _PLAIN:
            closing = f"</{name}"
            stop = _end(content, closing, end, missing)
            if stop >= 0:
                inner = content[end : stop - len(closing)] if name in _PLAIN else ""
                rest = _end(content, ">", stop, missing)
                end = rest if rest >= 0 else len(content)
                yield f"<{name}>{_escaped(inner)}</{name}>" if inner else " "
            else:
                yield " "
        elif name and name not in _FORMATTING | _DROPPED | _PLAIN:
            yield _nested(name, slash, opened)
        position = last = end
    yield _escaped(content[last:])


def _nested(name: str, slash: bool, opened: list[str]) -> str:
    """Return the tags that keep a page well-formed: a start or end tag, after the end tags of the elements inside."""
    if name in _VOID:
        return f"<{name}>"
    closed = []
    if slash:
        if name not in opened:
            return "\n"
        while opened[-1] != name:
            closed.append(opened.pop())
        closed.append(opened.pop())
        return "".join(f"</{inner}>" for inner in closed)
    while opened and opened[-1] in _CLOSED_BY.get(name, ()):
        closed.append(opened.pop())
    ends = "".join(f"</{inner}>" for inner in closed)
    if len(opened) >= _DEEPEST:
        return ends + "<br>"
    opened.append(name)
    return f"{ends}<{name}>"


def _end(content: str, closing: str, position: int, missing: set[str]) -> int:
    """Return the position after the next closing mark, in any case of letters; -1 if there is none.

    A mark that is missing once is not searched again, which would take quadratic time.
    """
    if closing in missing:
        return -1
    match = re.compile(re.escape(closing), re.IGNORECASE).search(content, position)
    if match is None:
        missing.add(closing)
        return -1
    return match.end()


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("\r", " ").replace("\n", " ")
