"""TREC formats: documents in SGML or JSON lines, topics in SGML, XML or columns, judgments of four columns.

In SGML and XML, all that is neither title, text nor query is counted by its name; see `Document.left_out`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hybrid_cli import console, words
from hybrid_cli.collections.options import ALL_FIELDS, SGML, SGML_TOPICS, Trec
from hybrid_cli.collections.readers import markup
from hybrid_cli.collections.readers.markup import Markup, Piece
from hybrid_cli.collections.readers.qrels import split_judgments
from hybrid_cli.collections.readers.queries import query_rows
from hybrid_cli.collections.readers.text_files import checked_id, json_documents
from hybrid_cli.collections.source import Document, DocumentFiles, Judgment, LeftOut, Location, Query, Source, roles
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.inputs.rows import InputFile

# Anserini indexes TEXT, LP, LEADPARA, HEADLINE, TITLE, HL, HEAD, TTL, DD and DATE.
_IDS = ("DOCNO", "DOCID")
_TITLES = frozenset({"HEADLINE", "TITLE", "HL", "HEAD", "TTL", "TI"})
_TEXTS = frozenset({"TEXT", "LEADPARA", "LP", "GRAPHIC", "CAPTION", "BODY", "ARTICLE", "SUMMARY", "ABSTRACT", "ABST"})
_DATES = frozenset({"DD", "DATE"})  # they follow the text, so that it begins with its first sentence
_DROPPED = frozenset({markup.COMMENT, "DOCHDR", "SCRIPT", "STYLE"})
_NO_FIELD, _OUTSIDE = "(no field)", "(outside of documents)"

_NUMBERS = ("NUM", "NUMBER", "IDENTIFIER", "TOPICID", "QID", "ID")
_ALIASES = {
    "title": ("TITLE", "QUERY"),
    "desc": ("DESC", "DESCRIPTION", "QUESTION"),
    "narr": ("NARR", "NARRATIVE"),
    "con": ("CON", "CONC", "CONCEPTS"),
    "smry": ("SMRY", "SUMMARY"),
    "dom": ("DOM", "DOMAIN"),
    "def": ("DEF", "DEFINITION"),
    "fac": ("FAC", "FACTORS"),
}
_LABEL = re.compile(
    r"\s*(?:Number|Topic|Title|Description|Narrative|Summary|Domain|(?:Concept|Factor|Definition)(?:s|\(s\))?)\s*:",
    re.IGNORECASE,
)
_LANGUAGE = re.compile(r"[A-Z]{2}-")  # in names of CLEF: EN-title
_COLONS = re.compile(r"(?P<number>\w+):(?:\d+:)?(?P<text>.*\S.*)")  # Million Query: number:query, number:priority:query


def source(options: Trec) -> Source:
    """Return the collection of a file or folder of documents, with topics and judgments by split.

    The files of a folder, at any depth, are read in the order of their names.

    Raises:
        InputError: options of SGML or XML files without such files.
    """
    files = {"corpus": options.corpus, **roles("topics", options.queries), **roles("qrels", options.qrels)}
    encoding, more = options.encoding, frozenset(name.upper() for name in options.text_fields)
    topics = {split: InputFile.of(path) for split, path in options.queries.items()}
    in_sgml = any(_is_sgml(file, encoding) for file in topics.values())
    corpus = list(map(InputFile.of, _files(options.corpus)))
    sgml = any(file.form != "json" for file in corpus)
    known = {
        "inputs": SGML if sgml or in_sgml else "",
        "document_format": SGML if sgml else "",
        "topic_format": SGML_TOPICS if in_sgml else "",
    }

    def reader(file: InputFile) -> partial[Iterator[Document]]:
        if file.form == "json":
            return partial(json_documents, file)
        return partial(sgml_documents, file, encoding, more)

    def queries() -> Iterator[Query]:
        for split, file in topics.items():
            for topic in _topics(file, options.topic_fields, encoding):
                yield topic._replace(split=split)

    def judgments() -> Iterator[Judgment]:
        return split_judgments(options.qrels)

    return Source("trec", DocumentFiles(list(map(reader, corpus))), queries, judgments, files, known=known)


def _files(corpus: Path) -> list[Path]:
    """Return the files of a folder, without those that describe a TREC disk."""
    if not corpus.is_dir():
        return [corpus]
    files = sorted(path for path in corpus.rglob("*") if not path.is_dir() and not path.name.startswith("."))
    others = [path for path in files if path.name.lower().startswith("readme") or path.suffix.lower() == ".dtd"]
    if others:
        console.note(f"{others[0]}: skipped, with all files named readme or .dtd ({len(others):,})")
    return [path for path in files if path not in set(others)]


# --------------------------------------------------------------------------------------------------------- documents


class _Block(NamedTuple):
    """A tag with its content, or a text outside of such tags.

    Attributes:
        location: first line.
        opening: the start tag; empty outside.
        text: the content.
    """

    location: Location
    opening: str
    text: str


def sgml_documents(
    file: InputFile, encoding: str = Trec.encoding, more: frozenset[str] = frozenset()
) -> Iterator[Document]:
    """Yield each `<DOC>`: title from all headline fields, text from the text fields and then the dates.

    The id is `<DOCNO>`, else `<DOCID>`, else the id in the tag `<DOC>`. Without a known text field, all fields
    are text.

    Args:
        file: a file with at least one document, or a blank one.
        encoding: an extension of ASCII.
        more: names of other fields that are text, in capitals; `ALL_FIELDS` for all.

    Raises:
        InputError: a document without id or end, or no document.
    """
    held: Document | None = None
    outside: Counter[tuple[str, str]] = Counter()
    for block in _blocks(file, "DOC", encoding):
        if not block.opening:
            content = markup.read(block.text)
            outside += _counts("words", {_OUTSIDE: words.count(content.plain(*(text for _, text in content.pieces)))})
            continue
        if held:
            yield held._replace(left_out={**(held.left_out or {}), **outside})
            outside.clear()
        held = _document(block, more)
    if held:
        yield held._replace(left_out={**(held.left_out or {}), **outside})
    elif outside:
        problem = "no <DOC>; pass SGML documents with <DOC> or JSON lines (.jsonl), or move the file out of the folder"
        raise path_error(file.path, problem, code="no-documents")


def _document(block: _Block, more: frozenset[str]) -> Document:
    content = markup.read(block.text)
    docid, used = _docid(block, content)
    texts = _TEXTS | more if content.tags.keys() & _TEXTS else frozenset({ALL_FIELDS})
    parts: dict[str, list[Piece]] = {"title": [], "text": [], "date": [], "": []}
    for piece in content.pieces:
        if piece is not used:
            parts[_part(piece.fields, texts)].append(piece)
    title = content.plain(*(piece.text for piece in parts["title"]))
    text = content.plain(*(piece.text for piece in (*parts["text"], *parts["date"])))
    return Document(docid, title, text, block.location, left_out=_left_out(content, parts[""]))


def _docid(block: _Block, content: Markup) -> tuple[str, Piece | None]:
    """Return the id of a document and the text that contains it, if it is not in the tag `<DOC>`."""
    for name in _IDS:
        for piece in content.pieces:
            if name in piece.fields:
                return checked_id(piece.text.strip(), block.location), piece
    if docid := _attribute(block.opening, "id", "docno", "docid"):
        return docid, None
    problem = "<DOC> without <DOCNO>, <DOCID> or id; each document needs one"
    raise block.location.error(problem, code="document-without-id")


def _part(fields: Sequence[str], texts: frozenset[str]) -> str:
    """Return the part of a document that a text belongs to: title, text, date, or none."""
    if not _DROPPED.isdisjoint(fields) or not set(_IDS).isdisjoint(fields):
        return ""
    for name in fields:
        for part, names in (("title", _TITLES), ("text", texts), ("date", _DATES)):
            if name in names:
                return part
    return "text" if ALL_FIELDS in texts else ""


def _left_out(content: Markup, pieces: Iterable[Piece]) -> LeftOut | None:
    """Return the number of words of texts by field, of removed tags and of unknown entities, which are kept."""
    counts = _counts("entities", content.entities)
    fields = {_name(piece.fields) for piece in content.pieces} | _TITLES | _TEXTS | _DATES | set(_IDS)
    counts += _counts("tags", {name: count for name, count in content.tags.items() if name not in fields})
    for piece in pieces:
        counts += _counts("words", {_name(piece.fields): words.count(content.plain(piece.text))})
    return counts or None


def _name(fields: Sequence[str]) -> str:
    """Return the name that stands for a text in the counts: of its outermost field."""
    return next((name for name in fields if name in _DROPPED), fields[0] if fields else _NO_FIELD)


def _counts(kind: str, counts: Mapping[str, int]) -> Counter[tuple[str, str]]:
    return Counter({(kind, name): count for name, count in counts.items()})


def _attribute(opening: str, *names: str) -> str:
    """Return the value of the first of some attributes of a start tag that is not empty."""
    for name in names:
        pattern = rf"""\s{name}\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>"']+))"""
        for match in re.finditer(pattern, opening, re.IGNORECASE):
            if value := (match[match.lastindex or 0]).strip():
                return value
    return ""


def _blocks(file: InputFile, tag: str, encoding: str, *, ended: bool = True) -> Iterator[_Block]:
    """Yield each `<tag>...</tag>`, and each text outside; tags may be anywhere in a line.

    Args:
        file: a file.
        tag: name of the tag, in any case.
        encoding: an extension of ASCII.
        ended: refuse a missing tag; if not, a block also ends before the next one and at the end of the file.
    """
    edge = re.compile(rf"<(/?){tag}(?:\s[^<>]*)?>", re.IGNORECASE)
    held: list[str] = []
    start: tuple[Location, str] | None = None
    for location, line in file.lines(encoding):
        after = 0
        for match in edge.finditer(line):
            held.append(line[after : match.start()])
            opens, after = not match[1], match.end()
            if ended and opens == bool(start):
                raise _unpaired(start[0] if start else location, tag, missing="end" if start else "start")
            yield from _block(start, location, held)
            start, held = ((location, match[0]) if opens else None), []
        held.append(line[after:])
        if not start:
            yield from _block(start, location, held)
            held = []
    if start and ended:
        raise _unpaired(start[0], tag, missing="end")
    if start:
        yield from _block(start, start[0], held)


def _block(start: tuple[Location, str] | None, location: Location, held: list[str]) -> Iterator[_Block]:
    text = "\n".join(held)
    if start:
        yield _Block(*start, text)
    elif text and not text.isspace():
        yield _Block(location, "", text)


def _unpaired(location: Location, tag: str, missing: str) -> InputError:
    tags = (f"<{tag}>", f"</{tag}>")
    this, other = tags if missing == "end" else tags[::-1]
    problem = f"{this} without {other}; the file is incomplete or damaged, download it again"
    return location.error(problem, code=f"document-without-{missing}")


# ------------------------------------------------------------------------------------------------------------ topics


def _is_sgml(file: InputFile, encoding: str) -> bool:
    """Test whether topics are in SGML or XML: neither JSON nor Parquet, and a tag at the start."""
    return _first_line(file, encoding).lstrip().startswith("<")


def _first_line(file: InputFile, encoding: str) -> str:
    return next((line for _, line in file.lines(encoding)), "") if file.form == "text" else ""


def _topics(file: InputFile, fields: Sequence[str], encoding: str) -> Iterator[Query]:
    """Yield the topics of a file, without their split.

    The file has JSON lines, columns, lines `number:query` (Million Query), or TREC's SGML or XML.
    """
    if _is_sgml(file, encoding):
        tag = _topic_tag(file, encoding)
        for block in _blocks(file, tag, encoding, ended=False):
            if block.opening:
                yield _topic(block, fields)
    elif _COLONS.fullmatch(_first_line(file, encoding)):
        for location, line in file.lines(encoding):
            if not (match := _COLONS.fullmatch(line)):
                problem = "no 'number:query' as in the first line; fix or remove the line"
                raise location.error(problem, code="topic-without-number")
            yield Query("", match["number"], match["text"].strip(), None, location)
    else:
        for location, qid, text, answers in query_rows(file):
            yield Query("", qid, text, answers, location)


def _topic_tag(file: InputFile, encoding: str) -> str:
    """Return the tag of topics, `top` or `topic`: the first one in the file."""
    tag = re.compile(r"<(top|topic)(?:\s[^<>]*)?>", re.IGNORECASE)
    for _, line in file.lines(encoding):
        if match := tag.search(line):
            return match[1].lower()
    problem = "no <top> and no <topic>; pass topics in SGML or XML, JSON lines (.jsonl) or tab-separated columns"
    raise path_error(file.path, problem, code="no-topics")


def _topic(block: _Block, fields: Sequence[str]) -> Query:
    content = markup.read(block.text)
    pieces = [Piece(tuple(_LANGUAGE.sub("", name, count=1) for name in names), text) for names, text in content.pieces]
    number = [piece for piece in pieces if piece.fields and piece.fields[0] in _NUMBERS][:1]
    qid = _value(content, number) or _attribute(block.opening, "number", "num", "id", "qid")
    if not qid:
        problem = "topic without number; each topic needs <num> or the attribute number"
        raise block.location.error(problem, code="topic-without-number")
    chosen = [own for name in fields if (own := _field(pieces, name)) and _value(content, own)]
    if not chosen:
        names = sorted({piece.fields[0].lower() for piece in pieces if piece not in number and piece.fields})
        listed = ", ".join(names) or "none"
        problem = f"topic {qid} has no field {' or '.join(fields)} (fields: {listed}); pass --topic-fields"
        raise block.location.error(problem, code="topic-without-field", id=qid)
    content.entities.clear()
    text = " ".join(_value(content, own) for own in chosen)
    used = [*number, *(piece for own in chosen for piece in own)]
    left = _left_out(content, [piece for piece in pieces if not any(piece is piece_used for piece_used in used)])
    return Query("", checked_id(qid, block.location), text, None, block.location, left)


def _field(pieces: Sequence[Piece], field: str) -> list[Piece]:
    """Return the texts of a field; a topic without fields is its own title."""
    if field.lower() == "title" and not any(piece.fields for piece in pieces):
        return list(pieces)
    for name in next((names for names in _ALIASES.values() if field.upper() in names), (field.upper(),)):
        if own := [piece for piece in pieces if name in piece.fields and markup.COMMENT not in piece.fields]:
            return own
    return []


def _value(content: Markup, pieces: Sequence[Piece]) -> str:
    """Return the text of a field without its label."""
    return content.plain(_LABEL.sub("", " ".join(piece.text for piece in pieces), count=1) if pieces else "")
