"""Texts and titles of HTML pages, without scripts, styles and navigation.

A parser of HTML5 needs quadratic time for tags that are nested deeply, and memory for formatting tags that are never
closed. `_well_formed` therefore rewrites a page first, in linear time: it closes every tag, nests no deeper than
`_DEEPEST`, and drops hidden texts, attributes, comments, scripts and the tags of inline elements.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

HTML = (".html", ".htm")
_DEEPEST = 256  # our choice; browsers stop at 512
_DROPPED = {"script", "style", "iframe", "noembed", "noframes", "noscript"}  # elements whose content is no HTML
_PLAIN = {"title", "textarea"}  # elements whose content has entities, but no tags
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr", "param"}
_BLOCKS = {"address", "article", "aside", "blockquote", "center", "details", "dialog", "dir", "div", "dl", "fieldset"}
_BLOCKS |= {"figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hgroup", "hr"}
_BLOCKS |= {"main", "menu", "nav", "ol", "p", "pre", "search", "section", "summary", "table", "ul"}
_CLOSED_BY: dict[str, set[str]] = {name: {"p"} for name in _BLOCKS} | {
    "li": {"p", "li"},  # start tag -> open elements that it closes, where end tags may be missing
    "dt": {"p", "dt", "dd"},
    "dd": {"p", "dt", "dd"},
    "option": {"option"},
    "tr": {"p", "td", "th", "tr"},
    "td": {"p", "td", "th"},
    "th": {"p", "td", "th"},
    "body": {"head"},
    "tbody": {"p", "td", "th", "tr", "thead", "tbody"},
    "tfoot": {"p", "td", "th", "tr", "tbody", "thead"},
}
_UNSEEN = ["template", "svg", "math", "audio", "video", "canvas", "datalist", "rp"]
_BOILERPLATE = ["nav", "footer", "aside", "button", "select", "textarea", "menu"]
_KEPT = {*_CLOSED_BY, *_UNSEEN, *_BOILERPLATE, "br", "caption", "head", "html", "legend", "optgroup", "thead"}
_TAG = re.compile(
    r"<(?P<slash>/?)(?P<name>[A-Za-z][A-Za-z0-9:-]*+)(?=[\s/>])"
    r"(?:[^<>\"']++|\"[^\"<]*\"|'[^'<]*'|\"[^\"]{0,2000}\"|'[^']{0,2000}'){0,1000}+>"
)
_OPENING = re.compile(r"<(?:(?P<comment>!--(?P<empty>-?>)?)|(?P<other>[!?])|/?[A-Za-z])")
_MAY_HIDE = re.compile(r"hidden|none|<dialog", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"([^\s\"'<>/=]+)(?:\s*=\s*(\"[^\"]*\"|'[^']*'|[^\s>]+))?")
_INVISIBLE = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)
_COMMENT = re.compile(rb"<!(?=--).*?-->", re.DOTALL)
_CHARSET = re.compile(rb"(?:<meta\s[^>]*charset|^<\?xml\s[^>]*encoding)\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_CHARSETS = re.compile(
    r"utf-?(?:8|16(?:[lb]e)?)|(?:us-)?ascii|latin-?[1-9]|iso[-_]?8859-\d{1,2}|windows-\d{3,4}|cp125\d|koi8-[ru]|"
    r"shift[-_]?jis|sjis|euc-(?:jp|kr)|iso-2022-jp|gb2312|gbk|gb18030|big5|tis-620|(?:ibm|cp)866|mac_roman",
    re.IGNORECASE,
)
_LABELS = {  # other labels of the encoding standard of the web, without `x-` -> a usual one
    **dict.fromkeys(("iso-8859-8-i", "iso-8859-8-e", "logical", "visual"), "iso-8859-8"),
    **dict.fromkeys(("windows-31j", "ms932", "ms_kanji", "csshiftjis"), "shift_jis"),
    **dict.fromkeys(("ks_c_5601-1987", "ks_c_5601-1989", "ksc5601", "korean", "windows-949"), "euc-kr"),
    **dict.fromkeys(("gb_2312-80", "gb_2312", "csgb2312", "chinese"), "gbk"),
    **dict.fromkeys(("big5-hkscs", "cn-big5", "csbig5"), "big5"),
    **dict.fromkeys(("macintosh", "mac", "mac-roman"), "mac_roman"),
}
_DECLARED_BY = 1024  # bytes at the beginning of a page that may declare its encoding
_MEANT = {  # name of a codec -> what the web means by it
    **dict.fromkeys(("ascii", "iso8859-1"), "cp1252"),
    **dict.fromkeys(("iso8859-11", "tis-620"), "cp874"),
    **dict.fromkeys(("gb2312", "gbk"), "gb18030"),
    **dict.fromkeys(("utf-16", "utf-16-le", "utf-16-be"), "utf-8"),
    "iso8859-9": "cp1254",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
}


class Page(NamedTuple):
    """Title and text of a page; the text has a line for each paragraph, heading, item or cell."""

    title: str
    text: str


def read_page(content: str) -> Page:
    """Return the title and the text of a page: of its element `main`, if there is one with a text.

    The title is the element `title`, else the first heading. Text is that of a browser with scripts, without what the
    attributes `hidden` and `style` hide; closed `details` are read, since a reader opens them.
    """
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser("".join(_well_formed(content)))
    tree.strip_tags(_UNSEEN)
    title = _text(tree.css_first("title"))
    tree.strip_tags(["title"])
    everything = _text(tree.body)
    tree.strip_tags(_BOILERPLATE)
    tree.merge_text_nodes()
    headings = (_text(node) for node in tree.css("h1, h2, h3, h4, h5, h6")) if not title else ()
    title = (title or next(filter(None, headings), "")).replace("\n", " ")
    return Page(title, _text(tree.css_first("main")) or _text(tree.body) or everything)


def decode_page(content: bytes) -> str:
    """Return the text of a page as a browser decodes it: by its byte order mark, or by the encoding that it declares.

    Without either, it is UTF-8 where all of it is valid, else windows-1252. Bytes that are not valid become U+FFFD.
    """
    for mark, encoding in ((b"\xef\xbb\xbf", "utf-8"), (b"\xfe\xff", "utf-16-be"), (b"\xff\xfe", "utf-16-le")):
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding, "replace")
    match = _CHARSET.search(_COMMENT.sub(b"", content[:_DECLARED_BY]))
    name = match[1].decode("ascii", "replace").lower().removeprefix("x-") if match else ""
    name = _LABELS.get(name, name)
    if _CHARSETS.fullmatch(name):
        with suppress(LookupError):
            codec = codecs.lookup(name).name
            return content.decode(_MEANT.get(codec, codec), "replace")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace")


def _text(node: LexborNode | None) -> str:
    """Return the text of an element, a line for each block."""
    lines = node.text(separator="\n").split("\n") if node is not None else []
    return "\n".join(words for line in lines if (words := " ".join(line.split())))


def _well_formed(content: str) -> Iterator[str]:
    """Yield a page with the visible texts, in which all tags are closed, and nested up to a limit.

    Only the tags of blocks are kept, since others do not separate words, and of elements that are left out.
    """
    position, last, missing = 0, 0, set[str]()
    opened: list[tuple[str, bool]] = []
    while match := _OPENING.search(content, position):
        start, name, slash, hides = match.start(), "", False, False
        if match["comment"]:
            end = match.end() if match["empty"] else _end(content, "--!?>", match.end(), missing)
        elif (tag := _TAG.match(content, start)) is not None:
            end, name, slash = tag.end(), tag["name"].lower(), bool(tag["slash"])
            hides = not slash and name not in _VOID and _is_hidden(name, tag[0])
        else:
            end = _end(content, ">", match.end(), missing)
        visible = not _in_hidden(opened)
        yield _escaped(content[last:start]) if visible else ""
        if end < 0:  # never closed
            return
        if not slash and name in _DROPPED | _PLAIN:
            closing = f"</{name}"
            stop = _end(content, closing, end, missing)
            if name in _PLAIN and visible:
                inner = content[end : stop - len(closing) if stop >= 0 else None]
                yield f"<{name}>{_escaped(inner)}</{name}>"
            end = _end(content, ">", stop, missing) if stop >= 0 else -1
            if end < 0:
                return
        elif name in _KEPT or hides or any(name == other for other, _ in opened):
            yield _nested(name, slash, hides, opened)
        position = last = end
    yield "" if _in_hidden(opened) else _escaped(content[last:])


def _nested(name: str, slash: bool, hides: bool, opened: list[tuple[str, bool]]) -> str:
    """Return the tags that keep a page well-formed: a start or end tag, after the end tags of the elements inside.

    Args:
        name: name of the element.
        slash: it is an end tag.
        hides: the element is hidden.
        opened: open elements, and whether each is hidden; it is changed.
    """
    if name in _VOID:
        return "" if _in_hidden(opened) else f"<{name}>"
    closed: list[tuple[str, bool]] = []
    if slash:
        if not any(name == other for other, _ in opened):
            return "\n"
        while not closed or closed[-1][0] != name:
            closed.append(opened.pop())
    else:
        while opened and opened[-1][0] in _CLOSED_BY.get(name, ()):
            closed.append(opened.pop())
    tags = [f"</{inner}>" for inner, hidden in closed if not hidden]
    if not slash and len(opened) < _DEEPEST:
        opened.append((name, hides or _in_hidden(opened)))
        tags += [] if opened[-1][1] else [f"<{name}>"]
    elif not slash:
        tags.append("<br>")
    return "".join(tags)


def _in_hidden(opened: Sequence[tuple[str, bool]]) -> bool:
    return bool(opened) and opened[-1][1]


def _is_hidden(name: str, tag: str) -> bool:
    """Return whether a start tag hides its element."""
    if not _MAY_HIDE.search(tag):
        return False
    attributes = {key.lower(): value.strip("\"'") for key, value in _ATTRIBUTE.findall(tag[1 + len(name) : -1])}
    closed = name == "dialog" and "open" not in attributes
    return closed or "hidden" in attributes or _INVISIBLE.search(attributes.get("style", "")) is not None


def _end(content: str, closing: str, position: int, missing: set[str]) -> int:
    """Return the position after the next closing mark, a pattern, in any case of letters; -1 if there is none.

    A mark that is missing once is not searched again, which would take quadratic time.
    """
    if closing in missing:
        return -1
    match = re.compile(closing, re.IGNORECASE).search(content, position)
    if match is None:
        missing.add(closing)
        return -1
    return match.end()


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("\r", " ").replace("\n", " ")
