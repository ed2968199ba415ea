"""TREC's forms: documents in SGML or JSON lines, topics in SGML, XML or columns, judgements of four columns."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hybrid_cli.collections.collection import judgement_rows, query_rows
from hybrid_cli.collections.readers import jsonl
from hybrid_cli.collections.readers.lines import Place, checked_id, lines, plain_suffix
from hybrid_cli.collections.source import Document, Judgement, Query, Source, roles
from hybrid_cli.errors import InputError

_JSON = (".jsonl", ".json", ".ndjson")
_TITLE_TAGS = ("HEADLINE", "TITLE", "HL", "HEAD", "TTL", "TI")
_TEXT_TAGS = ("TEXT", "LEADPARA", "LP", "GRAPHIC", "BODY")
_TAG = re.compile(r"<[^<>]*>")
_TOPIC_LABEL = re.compile(r"\s*(?:Number|Topic|Title|Description|Narrative)\s*:", re.IGNORECASE)
_TOPIC_FIELDS = {"title": ("title", "query"), "desc": ("desc", "question"), "narr": ("narr", "narrative")}


def source(
    corpus: Path,
    *,
    topics: Mapping[str, Path],
    qrels: Mapping[str, Path],
    topic_fields: Sequence[str] = ("title",),
    encoding: str = "utf-8",
) -> Source:
    """The collection of a file or folder of documents, with topics and judgements by split.

    Args:
        corpus: a file, or a folder whose files (at any depth) are read in the order of their names.
        topics: split -> file.
        qrels: split -> file.
        topic_fields: what of a topic is the query, joined by a space: title, desc, narr.
        encoding: of the SGML and XML files; older TREC disks are `latin-1`.
    """
    if unknown := [name for name in topic_fields if name not in _TOPIC_FIELDS]:
        raise InputError(f"topic field {unknown[0]}: needs one of {', '.join(_TOPIC_FIELDS)}")

    def all_documents() -> Iterator[Document]:
        for path in _files(corpus):
            yield from jsonl.documents(path) if plain_suffix(path) in _JSON else sgml_documents(path, encoding)

    def queries() -> Iterator[Query]:
        for split, path in topics.items():
            for place, qid, text, answers in _topic_rows(path, topic_fields, encoding):
                yield Query(split, qid, text, answers, place)

    def judgements() -> Iterator[Judgement]:
        for split, path in qrels.items():
            for place, qid, docid, relevance in judgement_rows(path):
                yield Judgement(split, qid, docid, relevance, place)

    files = {"corpus": corpus, **roles("topics", topics), **roles("qrels", qrels)}
    options = {"topic_fields": list(topic_fields), "encoding": encoding}
    return Source("trec", all_documents, queries, judgements, files, options)


def _files(corpus: Path) -> list[Path]:
    if not corpus.is_dir():
        return [corpus]
    return sorted(path for path in corpus.rglob("*") if path.is_file() and not path.name.startswith("."))


# --------------------------------------------------------------------------------------------------------- documents


def sgml_documents(path: Path, encoding: str = "utf-8") -> Iterator[Document]:
    """Yield each `<DOC>` with its `<DOCNO>`: title from the headline tags, text from the text tags.

    A document without any known text tag keeps all that stands in it.
    """
    for place, _, block in _blocks(path, "DOC", encoding):
        docno = _tagged(block, ("DOCNO",))
        if not docno:
            raise InputError(f"{place}: this <DOC> has no <DOCNO>; each document needs one")
        title, text = _tagged(block, _TITLE_TAGS)[:1], _tagged(block, _TEXT_TAGS)
        body = text or [re.sub(r"(?is)<DOCNO>.*?</DOCNO>", " ", block)]
        yield Document(checked_id(docno[0].strip(), place), _plain(*title), _plain(*body), place)


def _blocks(path: Path, tag: str, encoding: str) -> Iterator[tuple[Place, str, str]]:
    """(place, opening tag, contents) of each `<tag>...</tag>`, whose ends may stand anywhere in a line."""
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
        raise InputError(f"{start[0]}: this <{tag}> has no </{tag}>; the file is cut off, fetch it again")


def _tagged(block: str, tags: Sequence[str]) -> list[str]:
    """What stands within each of `tags`, in the order of the text."""
    names = "|".join(tags)
    return [found[2] for found in re.finditer(rf"(?is)<({names})(?:\s[^>]*)?>(.*?)</\1\s*>", block)]


def _plain(*parts: str) -> str:
    """Text without tags, entities and line breaks."""
    return " ".join(html.unescape(_TAG.sub(" ", " ".join(parts))).split())


# ------------------------------------------------------------------------------------------------------------ topics


def _topic_rows(path: Path, fields: Sequence[str], encoding: str) -> Iterator[tuple[Place, str, str, list[str] | None]]:
    """Topics of a JSON lines or tab-separated file, else of TREC's SGML or XML."""
    head = next((line for _, line in lines(path, encoding)), "")
    if plain_suffix(path) in _JSON or not head.lstrip().startswith("<"):
        yield from query_rows(path)
        return
    for place, number, block in _topic_blocks(path, encoding):
        found = [text for name in fields if (text := _topic_field(block, _TOPIC_FIELDS[name]))]
        if not found:
            raise InputError(f"{place}: topic {number} has none of the fields {', '.join(fields)}")
        yield place, number, " ".join(found), None


def _topic_blocks(path: Path, encoding: str) -> Iterator[tuple[Place, str, str]]:
    """(place, number, contents) of `<top>` with `<num>`, and of `<topic number="...">`."""
    for place, _, block in _blocks(path, "top", encoding):
        yield place, checked_id(_topic_field(block, ("num",)), place), block
    for place, opening, block in _blocks(path, "topic", encoding):
        number = re.search(r"number\s*=\s*[\"']([^\"']*)", opening)
        yield place, checked_id(number[1].strip() if number else "", place), block


def _topic_field(block: str, names: Sequence[str]) -> str:
    """One field of a topic: up to its end tag, or in SGML, where that is left out, up to the next tag."""
    found = re.search(rf"(?is)<(?:{'|'.join(names)})(?:\s[^>]*)?>(.*?)(?=<[a-z/]|\Z)", block)
    return " ".join(html.unescape(_TOPIC_LABEL.sub("", found[1], count=1)).split()) if found else ""
