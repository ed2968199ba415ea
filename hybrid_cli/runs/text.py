"""Runs in texts, plain or gzipped: TREC's six fields, MS MARCO's three, or fields that the first line names."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple

import polars as pl

from hybrid_cli import console
from hybrid_cli.errors import InputError
from hybrid_cli.input_files import BROKEN_GZIP, DOCIDS, QIDS, folded, open_binary

TEXT_BYTES = 1 << 22  # parsed at once
_RANKS, _SCORES = ("rank", "position"), ("score", "similarity")
_BEIR_JUDGMENTS = {"query_id", "corpus_id", "score"}
_GZIPPED = 8  # bytes of a run per byte of its gzip file, about


def text_bytes(path: Path) -> int:
    """Return the bytes of a run in a text; for a gzip file, about."""
    return path.stat().st_size * (_GZIPPED if path.suffix == ".gz" else 1)


class _Form(NamedTuple):
    """Where the fields of a line are.

    Attributes:
        needs: phrase for a line with another number of fields.
        width: number of fields.
        tabs: fields are separated by tabs, otherwise by white space.
        qid, docid, rank, score: position of each; None for a field that the file lacks.
        header: the first line names the fields.
    """

    needs: str
    width: int
    tabs: bool
    qid: int
    docid: int
    rank: int | None
    score: int | None
    header: bool = False


_TREC = _Form("a TREC run has six: qid Q0 docid rank score tag", 6, False, 0, 2, 3, 4)
_MSMARCO = _Form("a run of MS MARCO has three: qid docid rank", 3, False, 0, 1, 2, None)


def text_parts(path: Path) -> Iterator[pl.DataFrame]:
    """Yield qid, docid (strings), rank and score of the lines, in blocks; rank is null if the file has none.

    Without scores, as in runs of MS MARCO, the score is the rank times -1, and a note says so: methods that use scores,
    such as weighted-sum and minmax, then know the ranks only.

    Raises:
        InputError: a line with other fields, or bytes that are not UTF-8.
    """
    above, form = 0, None
    with open_binary(path) as file:
        while data := _next_lines(file, path):
            data = data.removeprefix(codecs.BOM_UTF8) if not above else data
            rows = _decoded(data, path, above)
            if form is None and not data.isspace():
                first = next(number for number, row in enumerate(rows) if row and not row.isspace())
                form = _form_of(rows[first], f"{path}, line {above + first + 1}")
                if form.header:
                    rows[first] = ""
                if form.score is None:
                    _note_ranks(path)
            if form is not None:
                yield _parsed(rows, path, above, form)
            above += data.count(b"\n")
    if form is None:
        raise InputError(f"{path}: not a TREC run: the file is empty")


def _form_of(line: str, place: str) -> _Form:
    """Return the form of a run by its first line."""
    tabs = "\t" in line
    fields = line.split("\t") if tabs else line.split()
    names = {folded(name): at for at, name in reversed(list(enumerate(fields)))}
    qid, docid, rank, score = (
        next((names[name] for name in known if name in names), None) for known in (QIDS, DOCIDS, _RANKS, _SCORES)
    )
    if set(names) == _BEIR_JUDGMENTS:
        raise InputError(f"{place}: has the columns of BEIR's judgments; name those of a run qid, docid and score")
    if qid is not None and docid is not None:  # a hit has numbers in place of these names
        if rank is None and score is None:
            raise InputError(f"{place}: the header names no rank and no score (columns: {', '.join(fields)})")
        needs = f"the header names {len(fields)}"
        return _Form(needs, len(fields), tabs, qid, docid, rank, score, header=True)
    if len(fields) == _MSMARCO.width:
        return _MSMARCO._replace(tabs=tabs)
    if (count := len(line.split())) != _TREC.width:
        raise InputError(
            f"{place}: {count} fields; {_TREC.needs}; {_MSMARCO.needs}; other runs need a first line with the names "
            "qid, docid, rank and score"
        )
    return _TREC


@cache
def _note_ranks(path: Path) -> None:
    """Say once that a run has no scores; commands read a run several times."""
    console.note(f"{path}: has ranks without scores; the scores are the ranks times -1, whatever method uses them")


def _next_lines(file: IO[bytes], path: Path) -> bytes:
    """Read about `TEXT_BYTES`, up to the end of a line."""
    try:
        return file.read(TEXT_BYTES) + file.readline()
    except BROKEN_GZIP as error:
        raise InputError(f"{path}: damaged gzip file ({error}); download it again") from None


def _decoded(data: bytes, path: Path, above: int) -> list[str]:
    """Return lines, the first of which is line `above` + 1 of the file."""
    try:
        return data.decode().split("\n")
    except UnicodeDecodeError as error:
        number = above + data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {number}: not a TREC run: the line is not valid UTF-8") from None


def _parsed(rows: list[str], path: Path, above: int, form: _Form) -> pl.DataFrame:
    """Parse lines, the first of which is line `above` + 1 of the file."""
    line = pl.col("line")
    split = line.str.strip_chars_end("\r").str.split("\t") if form.tabs else line.str.extract_all(r"\S+")
    fields = (
        pl.DataFrame({"line": rows}, schema={"line": pl.String})
        .with_row_index("number", offset=above + 1)
        .filter(line.str.strip_chars() != "")
        .select("number", split.alias("f"))
    )
    bad = fields.filter(pl.col("f").list.len() != form.width)
    if len(bad):
        number, found = bad.row(0)
        raise InputError(f"{path}, line {number}: {len(found)} fields; {form.needs}")

    def field(at: int | None, kind: type[pl.DataType]) -> pl.Expr:
        return pl.lit(None, kind) if at is None else pl.col("f").list.get(at).cast(kind, strict=False)

    given = field(form.rank, pl.Float64)  # some tools write `1.0`
    rank = pl.when(given == given.floor()).then(given).cast(pl.Int32, strict=False)
    score = -rank.cast(pl.Float32) if form.score is None else field(form.score, pl.Float32)
    hits = fields.select(
        field(form.qid, pl.String).alias("qid"),
        field(form.docid, pl.String).alias("docid"),
        rank.alias("rank"),
        score.alias("score"),
    )
    unusable = hits["rank"].is_null() | ((hits["rank"] < 1) & (not form.header))
    if form.score is None and unusable.any():
        number, found = fields.filter(unusable).row(0)
        raise InputError(f"{path}, line {number}: '{found[form.rank]}' is no rank from 1; {form.needs}")
    return hits
