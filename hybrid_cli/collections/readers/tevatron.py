"""Training files of Tevatron, FlagEmbedding and sentence-transformers: queries with positive and negative passages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from hybrid_cli.collections.options import Tevatron
from hybrid_cli.collections.readers.tables import warned_about_quotes
from hybrid_cli.collections.readers.text_files import (
    DOCID_FIELDS,
    QID_FIELDS,
    QUERY_FIELDS,
    answers_of,
    checked_id,
    id_of,
    id_triples,
    json_documents,
    text_of,
)
from hybrid_cli.collections.source import Document, Judgment, Location, Query, Source, roles
from hybrid_cli.inputs.rows import InputFile, Table, check_field

_QID, _QUERY = ("query_id", *QID_FIELDS), ("query", "query_text", "anchor", *QUERY_FIELDS)
_READ = re.compile(r"(?:positive|pos|neg|negative|answer)(?:s|_passages|_document_ids|_[0-9]+)?|label|labels")
_TEXTS = list[str | int] | str | int | None  # one text or id, or several
_NEGATIVE = re.compile(r"negatives?|negative_[0-9]+")
_FORMS = "query and positive_passages, query_text and positive_document_ids, query and pos, anchor and positive"


class Passage(NamedTuple):
    """A passage of a training file; `text` is None if the file names the id only."""

    docid: str
    title: str
    text: str | None


class Example(NamedTuple):
    """A query with its passages.

    Attributes:
        own_id: the file has an id of the query, otherwise the id is a hash of its text.
        negatives: None if the file has no field of negatives.
    """

    location: Location
    qid: str
    own_id: bool
    text: str
    answers: list[str] | None
    positives: list[Passage]
    negatives: list[Passage] | None


def source(options: Tevatron) -> Source:
    """Return the collection of training files; without a corpus file, its documents are their passages.

    Positive passages become judgments of relevance 1. `mine-negatives --sources given:FILE` draws from the negatives.
    Queries and passages without ids have a hash of their text as id, so that equal texts are one.
    """

    def rows() -> Iterator[tuple[str, Example]]:
        for split, path in options.training.items():
            for example in examples(InputFile.of(path)):
                if options.corpus is not None and _texts_only(example):
                    problem = "the passages have no ids to find in --corpus; omit it"
                    raise example.location.error(problem, code="passages-without-ids")
                yield split, example

    def documents() -> Iterator[Document]:
        if options.corpus is not None:
            yield from json_documents(InputFile.of(options.corpus))
            return
        seen: dict[str, int] = {}  # hashes of titles and texts
        for _, example in rows():
            for docid, title, text in _passages_of(example):
                if docid not in seen:
                    seen[docid] = hash((title, text))
                    yield Document(docid, title, text, example.location)
                elif seen[docid] != hash((title, text)):
                    problem = f"passage {docid} has another text than before; pass --corpus"
                    raise example.location.error(problem, code="passage-changed", id=docid)

    def queries() -> Iterator[Query]:
        known: set[tuple[str, str]] = set()
        for split, example in rows():
            if example.own_id or (split, example.qid) not in known:
                known |= set() if example.own_id else {(split, example.qid)}
                yield Query(split, example.qid, example.text, example.answers, example.location)

    def judgments() -> Iterator[Judgment]:
        known: set[tuple[str, str, str]] = set()
        for split, example in rows():
            for docid, _, _ in example.positives:
                if example.own_id or (split, example.qid, docid) not in known:
                    known |= set() if example.own_id else {(split, example.qid, docid)}
                    yield Judgment(split, example.qid, docid, 1, example.location)

    files = {**roles("training", options.training), **({"corpus": options.corpus} if options.corpus else {})}
    return Source("tevatron", documents, queries, judgments, files)


def _passages_of(example: Example) -> Iterator[tuple[str, str, str]]:
    """Yield id, title and text of all passages; refuse an example that lacks some."""
    if example.negatives is None:
        problem = "no negatives; without them, the documents are not known: pass them as --corpus FILE"
        raise example.location.error(problem, code="no-negatives")
    for docid, title, text in [*example.positives, *example.negatives]:
        if text is None:
            problem = "has ids of passages without texts; pass the documents as --corpus FILE"
            raise example.location.error(problem, code="passages-without-texts")
        yield docid, title, text


def _texts_only(example: Example) -> bool:
    """Return whether the ids of the positive passages are hashes of their texts."""
    return any(passage.text is not None and passage.docid == text_id(passage.text) for passage in example.positives)


def text_id(text: str) -> str:
    """Return the id of a query or passage without an id."""
    return blake2b(text.encode(), digest_size=8).hexdigest()


# ---------------------------------------------------------------------------------------------------------- examples


def examples(file: InputFile) -> Iterator[Example]:
    """Yield the examples of a training file: JSON, Parquet, or CSV and TSV with a header.

    Raises:
        InputError: another form.
    """
    if file.form == "json":
        rows: Iterator[tuple[Location, Any]] = file.records()
    else:
        table = warned_about_quotes(Table.of(file, lambda _: True))
        rows = table.rows([name for name in table.names if name in (*_QID, *_QUERY) or _READ.fullmatch(name)])
    for location, record in rows:
        text = text_of(record, _QUERY, location)
        qid = text_of(record, _QID, location, default="")
        positives, negatives = _form(record, location)(record, location)
        own = checked_id(qid, location) if qid else text_id(text)
        yield Example(location, own, bool(qid), text, answers_of(record, location) or None, positives, negatives)


_Passages = tuple[list[Passage], list[Passage] | None]


def _form(record: dict[str, Any], location: Location) -> Callable[[dict[str, Any], Location], _Passages]:
    """Return the reader of the passages of a record, by its fields."""
    if "label" in record or "labels" in record:
        problem = "has a field of labels; keep the rows of positive passages, and remove the field"
        raise location.error(problem, code="labelled-pairs")
    for name, form in (("positive_passages", _objects), ("positive_document_ids", _ids), ("pos", _flag)):
        if name in record:
            return form
    if "positive" in record:
        return _triplet
    names = ", ".join(list(record)[:20])
    problem = f"no field of positive passages (fields: {names}); a training file has {_FORMS}, and negatives alike"
    raise location.error(problem, code="unknown-training-file")


def _objects(record: dict[str, Any], location: Location) -> _Passages:
    """Tevatron: objects of docid, title and text, or of docid alone."""

    def of(field: str) -> list[Passage]:
        return [
            Passage(
                id_of(passage, DOCID_FIELDS, location),
                text_of(passage, ("title",), location, default=""),
                None if passage.get("text") is None else text_of(passage, ("text",), location),
            )
            for passage in passages(record, field, location)
        ]

    negatives = of("negative_passages") if record.get("negative_passages") is not None else None
    return of("positive_passages"), negatives


def _ids(record: dict[str, Any], location: Location) -> _Passages:
    """Tevatron 2: ids of documents."""
    positives, negatives = (
        [Passage(checked_id(docid, location), "", None) for docid in _texts(record, field, location)]
        for field in ("positive_document_ids", "negative_document_ids")
    )
    return positives, negatives


def _flag(record: dict[str, Any], location: Location) -> _Passages:
    """FlagEmbedding: lists of texts."""
    negatives = _of_texts(_texts(record, "neg", location)) if record.get("neg") is not None else None
    return _of_texts(_texts(record, "pos", location)), negatives


def _triplet(record: dict[str, Any], location: Location) -> _Passages:
    """sentence-transformers: a positive text, and a negative one or several, `negative_1`, `negative_2`, ..."""
    fields = [name for name in record if _NEGATIVE.fullmatch(name)]
    positives = _texts(record, "positive", location)
    if all(text.isdecimal() for text in (*positives, text_of(record, _QUERY, location))):
        problem = "has ids in place of texts; pass triples of ids to `prepare msmarco --training`"
        raise location.error(problem, code="triples-of-ids")
    negatives = [text for name in fields for text in _texts(record, name, location)]
    return _of_texts(positives), _of_texts(negatives) if fields else None


def _of_texts(texts: Sequence[str]) -> list[Passage]:
    return [Passage(text_id(text), "", text) for text in texts]


def _texts(record: dict[str, Any], field: str, location: Location) -> list[str]:
    """Return the texts or ids of a field, a list or one value; empty without a value."""
    value = record.get(field)
    items = value if isinstance(value, list) else [] if value is None else [value]
    check_field({field: value}, field, _TEXTS, location, "not-a-text")
    return [text_of({field: item}, (field,), location) for item in items]


def passages(record: dict[str, Any], field: str, location: Location) -> list[dict[str, Any]]:
    """Return the passages in a field of a training record.

    Raises:
        InputError: the field is missing, or no list of objects.
    """
    if field not in record:
        raise location.error(f"no list '{field}' of passages, which a training file contains", code="no-passages")
    check_field(record, field, list[dict[str, Any]], location, "no-passages")
    return list(record[field])


# ------------------------------------------------------------------------------------------------------------ negatives


_HARD, _OTHER = "hard_negative_ctxs", "negative_ctxs"
_PASSAGE_ID = ("passage_id", "psg_id", *DOCID_FIELDS)


def given_negatives(path: Path) -> pl.DataFrame:
    """Return the negatives of a training file, in its order.

    DPR's questions have no ids: they are numbered from 0, as `prepare dpr --training` numbers them. A question without
    hard negatives has its other negatives (`hard_neg_fallback` of DPR's code, dpr/models/biencoder.py).

    Returns:
        qid, docid, rank (from 1), score (null).

    Raises:
        InputError: the file has another form.
    """
    file = InputFile.of(path)
    if file.form == "text" and file.suffix != ".csv":
        pairs: Iterator[tuple[str, str]] = ((qid, other) for _, qid, _, other in id_triples(path))
    else:
        _, first = next(file.records(), (None, {})) if file.form == "json" else (None, {})
        pairs = _dpr(file) if {_HARD, _OTHER} & set(first) else _examples(file)
    schema = {"qid": pl.String, "docid": pl.String}
    return (
        pl.DataFrame(pairs, schema=schema, orient="row")
        .unique(maintain_order=True)
        .with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32).over("qid"), score=pl.lit(None, pl.Float32))
    )


def _dpr(file: InputFile) -> Iterator[tuple[str, str]]:
    for number, (location, record) in enumerate(file.records()):
        own = passages(record, _HARD, location)
        if not own and _OTHER in record:
            own = passages(record, _OTHER, location)
        for passage in own:
            yield str(number), id_of(passage, _PASSAGE_ID, location)


def _examples(file: InputFile) -> Iterator[tuple[str, str]]:
    for example in examples(file):
        if example.negatives is None:
            raise example.location.error("no field of negatives, which a training file contains", code="no-negatives")
        yield from ((example.qid, passage.docid) for passage in example.negatives)
