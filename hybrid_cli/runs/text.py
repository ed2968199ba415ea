"""Runs in texts, plain or gzipped: TREC's lines of six fields."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import polars as pl

from hybrid_cli.errors import InputError
from hybrid_cli.input_files import BROKEN_GZIP, open_binary

TEXT_BYTES = 1 << 22  # parsed at once
_GZIPPED = 8  # bytes of a run per byte of its gzip file, about


def text_bytes(path: Path) -> int:
    """Return the bytes of a run in a text; for a gzip file, about."""
    return path.stat().st_size * (_GZIPPED if path.suffix == ".gz" else 1)


def text_parts(path: Path) -> Iterator[pl.DataFrame]:
    """Yield the lines of `qid Q0 docid rank score tag`, separated by white space; ids are strings."""
    above, blank = 0, True
    with open_binary(path) as file:
        while data := _next_lines(file, path):
            data = data.removeprefix(codecs.BOM_UTF8) if not above else data
            if not data.isspace():
                blank = False
                yield _parsed(data, path, above)
            above += data.count(b"\n")
    if blank:
        raise InputError(f"{path}: not a TREC run: the file is empty")


def _next_lines(file: IO[bytes], path: Path) -> bytes:
    """Read about `TEXT_BYTES`, up to the end of a line."""
    try:
        return file.read(TEXT_BYTES) + file.readline()
    except BROKEN_GZIP as error:
        raise InputError(f"{path}: damaged gzip file ({error}); download it again") from None


def _parsed(data: bytes, path: Path, above: int) -> pl.DataFrame:
    """Parse lines, the first of which is line `above` + 1 of the file."""
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        number = above + data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {number}: not a TREC run: the line is not valid UTF-8") from None
    fields = (
        pl.DataFrame({"line": lines})
        .with_row_index("number", offset=above + 1)
        .select("number", pl.col("line").str.extract_all(r"\S+").alias("f"))
    )
    fields = fields.filter(pl.col("f").list.len() > 0)
    bad = fields.filter(pl.col("f").list.len() != 6)
    if len(bad):
        number, found = bad.row(0)
        raise InputError(f"{path}, line {number}: {len(found)} fields; a TREC run has six: qid Q0 docid rank score tag")
    return fields.select(
        pl.col("f").list.get(0).alias("qid"),
        pl.col("f").list.get(2).alias("docid"),
        pl.col("f").list.get(3).cast(pl.Int32, strict=False).alias("rank"),
        pl.col("f").list.get(4).cast(pl.Float32, strict=False).alias("score"),
    )
