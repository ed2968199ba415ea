"""The result of a reader: documents, queries and judgments as restartable streams; samples and passages of a source."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from heapq import nsmallest
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from hybrid_cli import cluster, words
from hybrid_cli.collections.options import Import
from hybrid_cli.draws import draw
from hybrid_cli.errors import InputError, option_error, path_error
from hybrid_cli.inputs import files as input_files
from hybrid_cli.inputs.files import Location as Location
from hybrid_cli.passages import passage_id

_LONGEST_SPLIT = 100
# Numbers of words, tags or entities of the source that a row does not contain: (kind, name) -> number.
LeftOut = Mapping[tuple[str, str], int]


class Document(NamedTuple):
    """A document, its location in the source, its other fields and its metadata, and what is left out."""

    docid: str
    title: str
    text: str
    location: Location
    others: tuple[Any, ...] = ()
    left_out: LeftOut | None = None


class Query(NamedTuple):
    """A query of one split; `answers` is None if the source contains no answers."""

    split: str
    qid: str
    text: str
    answers: list[str] | None
    location: Location
    left_out: LeftOut | None = None


class Judgment(NamedTuple):
    """A judged pair of query and document of one split."""

    split: str
    qid: str
    docid: str
    relevance: int
    location: Location


Row = TypeVar("Row", Query, Judgment)


def _none() -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True)
class DocumentFiles:
    """The documents of several files, which can be read independently of each other.

    Attributes:
        files: for each file, a function that returns a new stream of its documents.
    """

    files: Sequence[Callable[[], Iterator[Document]]]

    def __call__(self) -> Iterator[Document]:
        """Return a new stream of the documents of all files, in order."""
        return chain.from_iterable(read() for read in self.files)


@dataclass(frozen=True)
class Source:
    """A collection in a foreign format. Files are read when a stream is started.

    Attributes:
        name: name of the collection, for messages that cannot name a file.
        documents, queries, judgments: return a new stream on each call.
        files: role -> path of each input file.
        options: resolved values for the manifest, in addition to the recorded options.
        facts: counts for the manifest that the reader fills in while reading.
        known: facts about the inputs, by the names used in the conditions of options.
        preferred: returns the ids of documents that a sample contains first, besides the relevant ones.
        fields: names of the documents' fields besides title and text.
        metadata: types of the columns of metadata (`storage.COLUMN_TYPES`), whose values follow those of the fields.
    """

    name: str
    documents: Callable[[], Iterator[Document]]
    queries: Callable[[], Iterator[Query]] = _none
    judgments: Callable[[], Iterator[Judgment]] = _none
    files: Mapping[str, Path] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    preferred: Callable[[], Iterator[str]] = _none
    fields: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, Any] = field(default_factory=dict)


QUERY_ROLES = frozenset({"queries", "questions", "topics", "training"})  # first words of the roles of files
_JUDGMENT_ROLES = frozenset({"qrels", "triples"})


def without_empty_files(source: Source) -> Source:
    """Return a source that refuses a file of queries or judgments without any, before rows are sampled.

    Raises (while a stream is read):
        InputError: such a file.
    """

    def checked(rows: Callable[[], Iterator[Row]], what: str, roles: Set[str]) -> Callable[[], Iterator[Row]]:
        def stream() -> Iterator[Row]:
            left: dict[Path | str, None] = {
                path: None for role, path in source.files.items() if role.split()[0] in roles
            }
            for row in rows():
                left.pop(row.location.file, None)
                yield row
            for path in left:
                raise path_error(path, f"no {what}; replace or omit the file", code=f"no-{what}")

        return stream

    queries = checked(source.queries, "queries", QUERY_ROLES)
    return replace(source, queries=queries, judgments=checked(source.judgments, "judgments", _JUDGMENT_ROLES))


def checked_split(name: str) -> str:
    """Return the name of a split; refuse names that are unsuitable for file names."""
    if not name or name[0] in "-." or not all(letter.isalnum() or letter in "-_." for letter in name):
        problem = f"split '{name}': needs letters, digits, '-', '_' and '.' only, and no '-' or '.' first"
        raise InputError(problem, code="invalid-name", split=name)
    if len(name.encode()) > _LONGEST_SPLIT:
        problem = f"split '{name}': a name needs at most {_LONGEST_SPLIT} bytes"
        raise InputError(problem, code="invalid-name", split=name)
    return name


def roles(kind: str, files: Mapping[str, Path]) -> dict[str, Path]:
    """Return files by split as inputs of a manifest: `queries dev` -> path."""
    return {f"{kind} {checked_split(split)}": path for split, path in files.items()}


def split_into_passages(source: Source, options: Import) -> Source:
    """Return a source whose documents are split into passages, or the source itself if none are requested.

    A passage keeps the title, the other fields and the metadata of its document, and inherits its judgments (BERT-MaxP,
    section 3.2).

    Args:
        source: collection of documents.
        options: `split_passages` words, and `passage_stride`.
    """
    if options.split_passages is None:
        return source
    size, stride = options.split_passages, options.passage_stride or options.split_passages
    if stride > size:
        problem = f"--passage-stride {stride}: leaves out words; pass at most --split-passages {size}"
        raise InputError(problem, code="out-of-range", option="passage_stride", value=stride)
    counts: dict[str, int] = {}

    def documents() -> Iterator[Document]:
        for row in source.documents():
            pieces = document_passages(row, size, stride)
            counts[row.docid] = len(pieces)
            source.facts["whole_documents"] = len(counts)
            yield from pieces

    def judgments() -> Iterator[Judgment]:
        for _ in documents() if not counts else ():
            pass
        for row in source.judgments():
            names = [passage_id(row.docid, number) for number in range(counts.get(row.docid, 0))]
            yield from (row._replace(docid=name) for name in names or [row.docid])

    recorded = {**source.options, "split_passages": size, "passage_stride": stride}
    return replace(source, documents=documents, judgments=judgments, options=recorded)


def document_passages(row: Document, size: int, stride: int) -> list[Document]:
    """Return the passages of a document as documents DOCID#0, DOCID#1, ...; see `passages`."""
    texts = passages(row.text, size, stride)
    return [
        row._replace(docid=passage_id(row.docid, number), text=text, left_out=None if number else row.left_out)
        for number, text in enumerate(texts)
    ]


def passages(text: str, size: int, stride: int) -> list[str]:
    """Return passages of `size` words (see `words`) that start every `stride` words; the last one may be shorter.

    White space within a passage is unchanged. A text without words is one passage.
    """
    spans = words.spans(text)
    starts = range(0, max(len(spans) - size, 0) + stride, stride)
    windows = [spans[start : start + size] for start in starts if start < len(spans)]
    return [text[part[0][0] : part[-1][1]] for part in windows] or [text]


@dataclass(frozen=True)
class _Drawn:
    """Ids of a source, and the sampled ids.

    Attributes:
        queries: split -> ids of all queries.
        kept_queries: split -> ids of the sampled queries.
        docids: ids of all documents; empty if documents are not sampled.
        kept_docids: ids of the sampled documents.
    """

    queries: dict[str, set[str]]
    kept_queries: dict[str, set[str]]
    docids: Set[str]
    kept_docids: Set[str]

    def keeps(self, row: Judgment) -> bool:
        """Return whether a judgment belongs to the sample; dangling judgments do, so that the writer reports them."""
        if row.qid not in self.queries.get(row.split, ()):
            return True
        known = row.docid in self.docids
        return row.qid in self.kept_queries[row.split] and (row.docid in self.kept_docids or not known)


def draw_sample(source: Source, options: Import) -> Source:
    """Return a random sample of a source, or the source itself if the settings request no sample.

    A draw depends on the seed and the id only, so a larger sample contains the smaller samples of the same queries.

    Args:
        source: collection to sample from.
        options: `sample` documents, `sample_queries` of a split, and `seed`.

    Raises:
        InputError: the relevant documents exceed the sample, or a split is unknown. Raised when a stream is started.
    """
    if options.sample is None and not options.sample_queries:
        return source

    @cache
    def drawn() -> _Drawn:
        queries, kept_queries = _draw_queries(source, options)
        docids, kept_docids = _draw_documents(source, kept_queries, options)
        total = {"queries": {split: len(qids) for split, qids in queries.items()}}
        source.facts["sampled_from"] = total if options.sample is None else {"documents": len(docids), **total}
        return _Drawn(queries, kept_queries, docids, kept_docids)

    def documents() -> Iterator[Document]:
        sample = drawn()
        return (row for row in source.documents() if options.sample is None or row.docid in sample.kept_docids)

    def queries() -> Iterator[Query]:
        return (row for row in source.queries() if row.qid in drawn().kept_queries[row.split])

    def judgments() -> Iterator[Judgment]:
        return (row for row in source.judgments() if drawn().keeps(row))

    return replace(source, documents=documents, queries=queries, judgments=judgments)


def _draw_queries(source: Source, options: Import) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return the query ids of each split, and the sampled ones."""
    by_split: dict[str, set[str]] = {}
    for row in source.queries():
        by_split.setdefault(row.split, set()).add(row.qid)
    if unknown := sorted(set(options.sample_queries) - set(by_split)):
        names = ", ".join(sorted(by_split)) or "none"
        problem = f"--sample-queries: the collection has no queries of split '{unknown[0]}'; splits: {names}"
        raise InputError(problem, code="no-such-split", option="sample_queries", split=unknown[0])
    kept = {
        split: _smallest(qids, options.sample_queries.get(split, len(qids)), options.seed)
        for split, qids in by_split.items()
    }
    return by_split, kept


def _draw_documents(source: Source, queries: dict[str, set[str]], options: Import) -> tuple[set[str], set[str]]:
    """Return all document ids, and the sampled ones; both are empty if documents are not sampled."""
    if options.sample is None:
        return set(), set()
    judged = {row.docid for row in source.judgments() if row.relevance >= 1 and row.qid in queries.get(row.split, ())}
    docids = {row.docid for row in source.documents()}
    relevant = judged & docids
    if len(relevant) > options.sample:
        problem = f"the queries have {len(relevant):,} relevant documents; take more, or --sample-queries SPLIT=N"
        raise option_error("sample", options.sample, problem, minimum=len(relevant))
    for docid in source.preferred():
        if len(relevant) >= options.sample:
            break
        relevant |= {docid} & docids
    return docids, relevant | _smallest(docids - relevant, options.sample - len(relevant), options.seed)


def _smallest(ids: Set[str], count: int, seed: int) -> set[str]:
    """Return the ids with the `count` smallest draws."""
    return set(nsmallest(count, ids, key=lambda name: (draw(seed, name), name)))


# --------------------------------------------------------------------------------------------------------- on a cluster


ROWS = 8192  # documents of a record batch
ReadFile = Callable[[], Iterator[Document]]


class File(NamedTuple):
    """Documents of a file as columns, which take less memory and time to send than rows.

    Attributes:
        path, unit: of the locations of the documents.
        batches: columns number (of the location), docid, title, text, what is left out, other fields, metadata.
    """

    path: Path | str
    unit: str
    batches: list[pa.RecordBatch]


def on_cluster(source: Source, where: cluster.Workers) -> Source:
    """Return a source whose documents are read on a Ray cluster, or the source itself without a cluster.

    A file is one block: as many files as blocks in progress are in memory, in this process and on the cluster.

    Raises (while documents are read):
        InputError: no such cluster, or a file cannot be read.
    """
    if where.ray_address is None or not isinstance(source.documents, DocumentFiles):
        return source
    files = source.documents.files

    def documents() -> Iterator[Document]:
        for file in cluster.map_blocks(where, partial(_reader, input_files.limits()), files):
            yield from documents_of(file)

    return replace(source, documents=documents)


def _reader(limits: input_files.Limits) -> Callable[[ReadFile], File]:
    def read(file: ReadFile) -> File:
        with input_files.change_limits(asdict(limits)):
            return read_file(file)

    return read


def read_file(read: ReadFile) -> File:
    """Return the documents of a file."""
    batches: list[pa.RecordBatch] = []
    rows: list[Document] = []
    location = Location("", 0)
    for row in read():
        rows.append(row)
        if len(rows) == ROWS:
            batches.append(_batch(rows))
            rows.clear()
        location = row.location
    if rows:
        batches.append(_batch(rows))
    return File(location.file, location.unit, batches)


def _batch(rows: list[Document]) -> pa.RecordBatch:
    docids, titles, texts, locations, others, left_out = zip(*rows, strict=True)
    counts = [json.dumps([[*key, count] for key, count in left.items()]) if left else None for left in left_out]
    arrays = [
        pa.array([location.number for location in locations]),
        *(pa.array(column, pa.string()) for column in (docids, titles, texts, counts)),
        *map(pa.array, zip(*others, strict=True)),
    ]
    return pa.RecordBatch.from_arrays(arrays, [str(number) for number in range(len(arrays))])


def documents_of(file: File) -> Iterator[Document]:
    """Yield the documents of a file."""
    for batch in file.batches:
        for number, docid, title, text, counts, *others in zip(*(column.to_pylist() for column in batch), strict=True):
            left_out = {(kind, name): count for kind, name, count in json.loads(counts)} if counts else None
            yield Document(docid, title, text, Location(file.path, number, file.unit), tuple(others), left_out)
