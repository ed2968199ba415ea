"""TREC formats: documents in SGML or JSON lines, topics in SGML, XML or columns, judgments of four columns."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from hybrid_cli.collections.readers.qrels import split_judgments
from hybrid_cli.collections.readers.queries import query_rows
from hybrid_cli.collections.readers.text_files import checked_id, json_documents, lines
from hybrid_cli.collections.source import Document, DocumentFiles, Judgment, Place, Query, Source, roles
from hybrid_cli.errors import InputError
from hybrid_cli.input_files import plain_suffix
from hybrid_cli.settings.data import SGML, SGML_TOPICS, PrepareTrec, TopicField

_JSON = (".jsonl", ".json", ".ndjson")
_TITLE_TAGS = ("HEADLINE", "TITLE", "HL", "HEAD", "TTL", "TI")
_TEXT_TAGS = ("TEXT", "LEADPARA", "LP", "GRAPHIC", "BODY")
_TAG = re.compile(r"<[A-Za-z/!?][^<>]*>")  # any other < is text
_TOPIC_LABEL = re.compile(r"\s*(?:Number|Topic|Title|Description|Narrative)\s*:", re.IGNORECASE)
_TOPIC_FIELDS: dict[TopicField, tuple[str, ...]] = {
    "title": ("title", "query"),
    "desc": ("desc", "question"),
    "narr": ("narr", "narrative"),
}


def source(settings: PrepareTrec) -> Source:
    """Return the collection of a file or folder of documents, with topics and judgments by split.

    The files of a folder, at any depth, are read in the order of their names.

    Raises:
        InputError: options of SGML or XML files without such files.
    """
    files = {"corpus": settings.corpus, **roles("topics", settings.topics), **roles("qrels", settings.qrels)}
    encoding = settings.encoding
    in_sgml = [path for path in settings.topics.values() if _is_sgml(path, encoding)]
    sgml = bool(in_sgml) or any(plain_suffix(path) not in _JSON for path in _files(settings.corpus))
    known = {"inputs": SGML if sgml else "", "topic_format": SGML_TOPICS if in_sgml else ""}
    settings.check_facts("the documents and topics have other formats", **known)

    documents = DocumentFiles(
        [
            partial(json_documents, path) if plain_suffix(path) in _JSON else partial(sgml_documents, path, encoding)
            for path in _files(settings.corpus)
        ]
    )

    def queries() -> Iterator[Query]:
        for split, path in settings.topics.items():
            for place, qid, text, answers in _topic_rows(path, settings.topic_fields, encoding):
                yield Query(split, qid, text, answers, place)

    def judgments() -> Iterator[Judgment]:
        return split_judgments(settings.qrels)

    return Source("trec", documents, queries, judgments, files, known=known)


def _files(corpus: Path) -> list[Path]:
    if not corpus.is_dir():
        return [corpus]
    return sorted(path for path in corpus.rglob("*") if not path.is_dir() and not path.name.startswith("."))


# --------------------------------------------------------------------------------------------------------- documents


def sgml_documents(path: Path, encoding: str = PrepareTrec.encoding) -> Iterator[Document]:
    """Yield each `<DOC>` with its `<DOCNO>`: title from the headline tags, text from the text tags.

    Without a known text tag, the whole content of the document is its text.
    """
    for place, _, block in _blocks(path, "DOC", encoding):
        docno = _tagged(block, ("DOCNO",))
        if not docno:
            raise InputError(f"{place}: <DOC> without <DOCNO>; each document needs one")
        title, text = _tagged(block, _TITLE_TAGS)[:1], _tagged(block, _TEXT_TAGS)
        body = text or [re.sub(r"(?is)<DOCNO>.*?</DOCNO>", " ", block)]
        yield Document(checked_id(docno[0].strip(), place), _plain(*title), _plain(*body), place)


def _blocks(path: Path, tag: str, encoding: str) -> Iterator[tuple[Place, str, str]]:
    """Yield place, opening tag and content of each `<tag>...</tag>`; tags may be anywhere in a line."""
    edge = re.compile(rf"<(/?){tag}(?:\s[^>]*)?>", re.IGNORECASE)
    held: list[str] = []
    start: tuple[Place, str] | None = None
    for place, line in lines(path, encoding):
        after = 0
        for found in edge.finditer(line):
            if not found[1]:
                start, held = (place, found[0]), []
            elif start:
                yield *start, "\n".join([*held, line[after : found.start()]])
                start = None
            after = found.end()
        if start:
            held.append(line[after:])
    if start:
        raise InputError(f"{start[0]}: <{tag}> without </{tag}>; the file is incomplete, download it again")


def _tagged(block: str, tags: Sequence[str]) -> list[str]:
    """Return the content of each of the tags, in the order of the text."""
    names = "|".join(tags)
    return [found[2] for found in re.finditer(rf"(?is)<({names})(?:\s[^>]*)?>(.*?)</\1\s*>", block)]


def _plain(*parts: str) -> str:
    """Return a text without tags, entities and line breaks."""
    return " ".join(html.unescape(_TAG.sub(" ", " ".join(parts))).split())


# ------------------------------------------------------------------------------------------------------------ topics


def _is_sgml(path: Path, encoding: str) -> bool:
    """Test whether topics are in SGML or XML: no suffix of JSON, and a tag at the start."""
    if plain_suffix(path) in _JSON:
        return False
    return next((line for _, line in lines(path, encoding)), "").lstrip().startswith("<")


def _topic_rows(
    path: Path, fields: Sequence[TopicField], encoding: str
) -> Iterator[tuple[Place, str, str, list[str] | None]]:
    """Yield the topics of a JSON lines or tab-separated file, or of TREC's SGML or XML."""
    if not _is_sgml(path, encoding):
        yield from query_rows(path)
        return
    for place, number, block in _topic_blocks(path, encoding):
        found = [text for name in fields if (text := _topic_field(block, _TOPIC_FIELDS[name]))]
        if not found:
            raise InputError(f"{place}: topic {number} has no field {' or '.join(fields)}")
        yield place, number, " ".join(found), None


def _topic_blocks(path: Path, encoding: str) -> Iterator[tuple[Place, str, str]]:
    """Yield place, number and content of each `<top>` with `<num>`, and of each `<topic number="...">`."""
    for place, _, block in _blocks(path, "top", encoding):
        yield place, checked_id(_topic_field(block, ("num",)), place), block
    for place, opening, block in _blocks(path, "topic", encoding):
        number = re.search(r"number\s*=\s*[\"']([^\"']*)", opening)
        yield place, checked_id(number[1].strip() if number else "", place), block


def _topic_field(block: str, names: Sequence[str]) -> str:
    """Return a field of a topic: up to its end tag, or up to the next tag, since SGML may omit end tags."""
    found = re.search(rf"(?is)<(?:{'|'.join(names)})(?:\s[^>]*)?>(.*?)(?=<[a-z/]|\Z)", block)
    return " ".join(html.unescape(_TOPIC_LABEL.sub("", found[1], count=1)).split()) if found else ""
