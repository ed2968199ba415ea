"""Negatives that training files name: DPR's JSON, those of `prepare tevatron`, or MS MARCO's triples of ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from hybrid_cli.collections.readers.tevatron import examples, passages
from hybrid_cli.collections.readers.text_files import DOCID_FIELDS, id_of, id_triples
from hybrid_cli.errors import InputError
from hybrid_cli.inputs.files import is_parquet, plain_suffix
from hybrid_cli.inputs.json_rows import is_json, records

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
    if is_json(path):
        _, first = next(records(path), (None, {}))
        pairs = _dpr(path) if {_HARD, _OTHER} & set(first) else _examples(path)
    else:
        pairs = _examples(path) if is_parquet(path) or plain_suffix(path) == ".csv" else _triples(path)
    schema = {"qid": pl.String, "docid": pl.String}
    return (
        pl.DataFrame(pairs, schema=schema, orient="row")
        .unique(maintain_order=True)
        .with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32).over("qid"), score=pl.lit(None, pl.Float32))
    )


def _dpr(path: Path) -> Iterator[tuple[str, str]]:
    for number, (location, record) in enumerate(records(path)):
        own = passages(record, _HARD, location)
        if not own and _OTHER in record:
            own = passages(record, _OTHER, location)
        for passage in own:
            yield str(number), id_of(passage, _PASSAGE_ID, location)


def _examples(path: Path) -> Iterator[tuple[str, str]]:
    for example in examples(path):
        if example.negatives is None:
            problem = f"{example.location}: no field of negatives, which a training file contains"
            raise InputError(problem, code="no-negatives", path=path)
        yield from ((example.qid, passage.docid) for passage in example.negatives)


def _triples(path: Path) -> Iterator[tuple[str, str]]:
    for _, qid, _, other in id_triples(path):
        yield qid, other
