"""Pseudo-queries: a title, sentence or heading of a document is the query, and the rest is relevant.

With `sentence`, this is the inverse cloze task (ICT, section 4). The text is removed from every document that has it,
not only from those of the drawn queries, so that a relevant document cannot be recognized by its missing text.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from hybrid_cli.collections.options import PSEUDO_SIZES, Import
from hybrid_cli.collections.sentences import HEADING, LEAST_WORDS, heading, split, word_count
from hybrid_cli.collections.source import Document, Judgment, Location, Query, Source
from hybrid_cli.draws import draw, generator
from hybrid_cli.errors import InputError

Item = TypeVar("Item")

TRAIN, DEV = "train", "dev"
# Our choices: longer texts are no queries; shorter documents have nothing to find; texts of more documents are generic.
MOST_WORDS, LEAST_REST, MOST_DOCUMENTS = 64, 5, 10
_DEV_SHARE = 5  # at most every fifth query is a dev query
_PURPOSE = "pseudo-query"


class Cut(NamedTuple):
    """A pseudo-query with white space folded, and the document without its text."""

    query: str
    document: Document


class _Drawn(NamedTuple):
    """A pseudo-query of one split, the documents that contained it, and the location of the first."""

    split: str
    text: str
    docids: list[str]
    location: Location


def with_pseudo_queries(source: Source, options: Import) -> Source:
    """Return a source with pseudo-queries in place of its queries, or the source itself if none are requested.

    Args:
        source: collection; its queries and judgments are left out, since its documents change.
        options: `pseudo_queries`, the number of queries of each split, and `seed`.

    Raises:
        InputError: no document has such a text. Raised when a stream is started.
    """
    if options.pseudo_queries is None:
        return source
    made = _PseudoQueries(source, options)
    return replace(
        source,
        documents=made.documents,
        queries=made.queries,
        judgments=made.judgments,
        options={**source.options, "pseudo_queries": options.pseudo_queries},
    )


def count_usable(source: Source, options: Import) -> int:
    """Return the number of different pseudo-queries that the documents of a source have; see `with_pseudo_queries`."""
    return len(_PseudoQueries(source, options).texts.usable)


class _Texts(NamedTuple):
    """The keys of all texts that can be queries, and the counts of the documents with and without one."""

    usable: list[int]
    too_frequent: int
    documents_changed: int
    left_out: Counter[str]


class _PseudoQueries:
    """Streams of the changed documents and of the pseudo-queries; memory holds 8 bytes per document and their ids."""

    def __init__(self, source: Source, options: Import):
        self._source, self._options, self._seed = source, options, options.seed
        self._form = str(options.pseudo_queries)

    def documents(self) -> Iterator[Document]:
        """Yield every document, without its pseudo-query if it has one."""
        for row in self._source.documents():
            cut = self._cut(row)
            yield row if isinstance(cut, str) else cut.document

    def queries(self) -> Iterator[Query]:
        """Yield the queries of both splits in the order of their first documents."""
        for query in self._drawn:
            yield Query(query.split, _qid(query), query.text, None, query.location)

    def judgments(self) -> Iterator[Judgment]:
        """Yield one judgment per query and document that contained its text."""
        for query in self._drawn:
            for docid in query.docids:
                yield Judgment(query.split, _qid(query), docid, 1, query.location)

    @cached_property
    def texts(self) -> _Texts:
        """Find the texts of at most `MOST_DOCUMENTS` documents."""
        keys, left_out = array("Q"), Counter[str]()
        for cut in self._cuts():
            if isinstance(cut, str):
                left_out[cut] += 1
            else:
                keys.append(self._key(cut.query))
        texts, documents = np.unique(np.frombuffer(keys, np.uint64), return_counts=True)
        usable_texts = texts[documents <= MOST_DOCUMENTS].tolist()
        return _Texts(usable_texts, len(texts) - len(usable_texts), len(keys), left_out)

    @cached_property
    def _drawn(self) -> list[_Drawn]:
        """Draw the queries by a hash of their text; a larger train split contains the smaller ones."""
        texts, too_frequent, changed, left_out = self.texts
        if not texts:
            problem = f"--pseudo-queries {self._form}: {self._nothing(left_out)}; use another kind"
            raise InputError(problem, code="no-queries", option="pseudo_queries", value=self._form)
        train, dev = ({**PSEUDO_SIZES, **self._options.pseudo_sizes}[split] for split in (TRAIN, DEV))
        dev = min(dev, max(1, len(texts) // _DEV_SHARE) if train else len(texts))
        splits = dict.fromkeys(texts[:dev], DEV) | dict.fromkeys(texts[dev : dev + train], TRAIN)
        self._source.facts["pseudo_queries"] = {
            "documents_changed": changed,
            "left_out": dict(sorted(left_out.items())),
            f"texts_of_over_{MOST_DOCUMENTS}_documents": too_frequent,
        }
        drawn: dict[int, _Drawn] = {}
        for cut in self._cuts():
            if isinstance(cut, Cut) and (key := self._key(cut.query)) in splits:
                row = cut.document
                drawn.setdefault(key, _Drawn(splits[key], cut.query, [], row.location)).docids.append(row.docid)
        return list(drawn.values())

    def _nothing(self, left_out: Counter[str]) -> str:
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in sorted(left_out.items()))
        return f"no document has a usable one ({reasons or f'all occur in over {MOST_DOCUMENTS} documents'})"

    def _cuts(self) -> Iterator[Cut | str]:
        """Yield the pseudo-query of each document, or the reason why it has none; repeated ids are skipped."""
        seen: set[str] = set()
        for row in self._source.documents():
            if row.docid not in seen:
                seen.add(row.docid)
                yield self._cut(row)

    def _cut(self, row: Document) -> Cut | str:
        if self._form == "title":
            return _check_cut(row.title, row._replace(title=""), "no title")
        if self._form == "heading":
            return self._without_heading(row)
        return self._without_sentence(row)

    def _without_sentence(self, row: Document) -> Cut | str:
        ends, begin = [], 0
        for piece in split(row.text):
            begin += len(piece)
            if piece.strip():
                ends.append((begin - len(piece), begin))
        if self._form == "first-sentence":
            candidates = ends[:1]
        else:
            candidates = [end for end in ends if LEAST_WORDS <= word_count(row.text[slice(*end)]) <= MOST_WORDS]
        if not candidates:
            return "no suitable sentence"
        span = candidates[0] if self._form == "first-sentence" else self._choice(row, candidates)
        return _without(row, row.text[slice(*span)], span, "no suitable sentence", LEAST_WORDS)

    def _without_heading(self, row: Document) -> Cut | str:
        headings = list(HEADING.finditer(row.text))
        if not headings:
            return "no heading"
        rare = [match for match in headings if self._headings[self._key(heading(match))] <= MOST_DOCUMENTS]
        if not rare:
            return f"only headings of over {MOST_DOCUMENTS} documents"
        chosen = self._choice(row, rare)
        return _without(row, heading(chosen), chosen.span(), "no heading")

    @cached_property
    def _headings(self) -> Counter[int]:
        """Number of documents with each heading, by its key."""
        documents: Counter[int] = Counter()
        for row in self._source.documents():
            documents.update({self._key(heading(match)) for match in HEADING.finditer(row.text)})
        return documents

    def _choice(self, row: Document, candidates: Sequence[Item]) -> Item:
        return generator(self._seed, _PURPOSE, row.docid).choice(candidates)

    def _key(self, text: str) -> int:
        """Return the draw of a text; texts that differ in case or white space only are equal."""
        return draw(self._seed, _PURPOSE, _folded(text).casefold())


def _qid(query: _Drawn) -> str:
    """Return the query id: a prefix and the first docid. Some evaluators drop hits whose docid is the qid."""
    return f"q:{query.docids[0]}"


def _without(row: Document, query: str, span: tuple[int, int], absent: str, least: int = 1) -> Cut | str:
    """Remove a span of the text; the pieces around it are separated by white space."""
    before, after = row.text[: span[0]].rstrip(), row.text[span[1] :].lstrip()
    between = "\n" if "\n" in row.text[max(span[0] - 1, 0) : span[1] + 1] else " "
    return _check_cut(query, row._replace(text=between.join(filter(None, (before, after)))), absent, least)


def _check_cut(query: str, rest: Document, absent: str, least: int = 1) -> Cut | str:
    """Return the cut, or the reason why the text cannot be a query: unsuitable, repeated, or too little is left."""
    query = _folded(query)
    if not least <= word_count(query) <= MOST_WORDS:
        return absent
    if word_count(rest.text) < LEAST_REST:
        return f"rest of under {LEAST_REST} words"
    lines = (_folded(line).casefold() for line in rest.text.splitlines())
    if query.casefold() in lines or (least > 1 and query.casefold() in _folded(rest.text).casefold()):
        return "repeated in the rest"
    return Cut(query, rest)


def _folded(text: str) -> str:
    return " ".join(text.split())
