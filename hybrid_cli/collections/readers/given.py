"""Negatives that training files name: DPR's JSON, Tevatron's JSON lines, or MS MARCO's triples of ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from hybrid_cli.collections.readers.tevatron import NEGATIVES, passages
from hybrid_cli.collections.readers.text_files import (
    DOCID_FIELDS,
    JSON_LINES,
    QID_FIELDS,
    array_records,
    columns,
    id_of,
    records,
)
from hybrid_cli.input_files import plain_suffix

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
    suffix = plain_suffix(path)
    pairs = _dpr(path) if suffix == ".json" else _tevatron(path) if suffix in JSON_LINES else _triples(path)
    schema = {"qid": pl.String, "docid": pl.String}
    return (
        pl.DataFrame(pairs, schema=schema, orient="row")
        .unique(maintain_order=True)
        .with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32).over("qid"), score=pl.lit(None, pl.Float32))
    )


def _dpr(path: Path) -> Iterator[tuple[str, str]]:
    for number, (place, record) in enumerate(array_records(path)):
        own = passages(record, _HARD, place)
        if not own and _OTHER in record:
            own = passages(record, _OTHER, place)
        for each in own:
            yield str(number), id_of(each, _PASSAGE_ID, place)


def _tevatron(path: Path) -> Iterator[tuple[str, str]]:
    for place, record in records(path):
        qid = id_of(record, ("query_id", *QID_FIELDS), place)
        for each in passages(record, NEGATIVES, place):
            yield qid, id_of(each, DOCID_FIELDS, place)


def _triples(path: Path) -> Iterator[tuple[str, str]]:
    for _, fields in columns(path, 3, "query id, relevant id and other id"):
        yield fields[0], fields[2]
