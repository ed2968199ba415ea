"""Runs of other tools: TREC's six fields, MS MARCO's three, or fields with names in texts, CSV, JSON and Parquet.

Texts may be compressed.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import polars as pl

from hybrid_cli import console
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.inputs.files import DOCIDS, QIDS, Location, csv_rows, fold_name, is_compressed, limits, open_binary
from hybrid_cli.inputs.json_values import describe_value
from hybrid_cli.inputs.rows import InputFile

TEXT_BYTES = 1 << 22  # parsed at once
_RANKS, _SCORES = ("rank", "position"), ("score", "similarity")
_BEIR_JUDGMENTS = {"query_id", "corpus_id", "score"}
_COMPRESSED = 8  # bytes of a run per byte of its compressed file, about
_ROWS = 1 << 16  # of CSV and JSON, parsed at once
_KINDS = {"qid": pl.String, "docid": pl.String, "rank": pl.String, "score": pl.String}


def text_bytes(file: InputFile) -> int:
    """Return the bytes of a run in a text; for a compressed file, about."""
    return file.path.stat().st_size * (_COMPRESSED if is_compressed(file.path) else 1)


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


def text_parts(run: InputFile) -> Iterator[pl.DataFrame]:
    """Yield qid, docid (strings), rank and score of the hits, in blocks; rank is null if the file has none.

    JSON has objects with the names of the fields, or one object of scores by query and document.

    Without scores, as in runs of MS MARCO, the score is the rank times -1, and a note says so: methods that use scores,
    such as weighted-sum and minmax, then know the ranks only.

    Raises:
        InputError: a line with other fields, or bytes that are not UTF-8.
    """
    path = run.path
    if run.form == "json":
        yield from _named_parts(path, _json_hits(run))
        return
    if run.suffix == ".csv":
        yield from _named_parts(path, _csv_hits(path))
        return
    above, form = 0, None
    with open_binary(path) as file:
        while data := _next_lines(file, path):
            data = data.removeprefix(codecs.BOM_UTF8) if not above else data
            rows = _decoded(data, path, above)
            if form is None and not data.isspace():
                first = next(number for number, row in enumerate(rows) if row and not row.isspace())
                form = _form_of(rows[first], Location(path, above + first + 1))
                if form.header:
                    rows[first] = ""
                if form.score is None:
                    note_ranks(path)
            if form is not None:
                yield _parsed(rows, path, above, form)
            above += data.count(b"\n")
    if form is None:
        raise path_error(path, "not a TREC run: the file is empty", code="empty-run")


def _form_of(line: str, location: Location) -> _Form:
    """Return the form of a run by its first line."""
    tabs = "\t" in line
    fields = line.split("\t") if tabs else line.split()
    positions = named_columns(fields, location)
    if positions is not None:  # a hit has numbers in place of these names
        qid, docid, rank, score = (positions.get(name) for name in _KINDS)
        assert qid is not None
        assert docid is not None
        needs = f"the header names {len(fields)}"
        return _Form(needs, len(fields), tabs, qid, docid, rank, score, header=True)
    if len(fields) == _MSMARCO.width:
        return _MSMARCO._replace(tabs=tabs)
    if (count := len(line.split())) != _TREC.width:
        problem = f"{count} fields; {_TREC.needs}; {_MSMARCO.needs}; others need a header (qid, docid, rank, score)"
        raise location.error(problem, code="other-width", found=count, expected=_TREC.width)
    return _TREC


def named_columns(names: Sequence[str], location: object) -> dict[str, int] | None:
    """Return the positions of qid, docid, rank and score in the names of columns; rank or score may lack.

    Returns:
        None without usual names of the ids.

    Raises:
        InputError: the columns of BEIR's judgments, or neither ranks nor scores.
    """
    positions = {fold_name(name): at for at, name in reversed(list(enumerate(names)))}
    if set(positions) == _BEIR_JUDGMENTS:
        problem = f"{location}: has the columns of BEIR's judgments; name those of a run qid, docid and score"
        raise InputError(problem, code="is-judgments")
    known = dict(zip(_KINDS, (QIDS, DOCIDS, _RANKS, _SCORES), strict=True))
    usual = {field: next((positions[name] for name in known[field] if name in positions), None) for field in known}
    if usual["qid"] is None or usual["docid"] is None:
        return None
    if usual["rank"] is None and usual["score"] is None:
        problem = f"{location}: has no column of ranks and none of scores (columns: {', '.join(islice(names, 50))})"
        raise InputError(problem, code="no-scores")
    return {field: at for field, at in usual.items() if at is not None}


def _json_hits(file: InputFile) -> Iterator[tuple[Location, Mapping[str, Any]]]:
    """Yield the fields of each hit of a JSON file."""
    if file.is_nested:
        for location, qid, scores in file.named_objects():
            for docid, score in scores.items():
                yield location, {"qid": qid, "docid": docid, "score": score}
        return
    for location, record in file.records():
        names = list(record)
        positions = named_columns(names, location)
        if positions is None:
            problem = f"has no qid or docid (fields: {', '.join(names[:50])}); name them qid, docid, rank, score"
            raise location.error(problem, code="no-such-field")
        yield location, {field: record[names[at]] for field, at in positions.items()}


def _csv_hits(path: Path) -> Iterator[tuple[Location, Mapping[str, Any]]]:
    """Yield the fields of each hit of a CSV file, whose first line names them; ids may be in double quotes."""
    rows = csv_rows(path, ",")
    location, header = next(rows, (Location(path, 1), []))
    positions = named_columns(header, location)
    if positions is None:
        problem = "a run in a CSV file needs a first line with the names qid, docid, rank and score"
        raise location.error(problem, code="no-header")
    for location, fields in rows:
        if len(fields) != len(header):
            problem = f"{console.counted(column=len(fields))}, the first line has {len(header)}"
            raise location.error(problem, code="other-width")
        yield location, {field: fields[at] for field, at in positions.items()}


def _named_parts(path: Path, hits: Iterator[tuple[Location, Mapping[str, Any]]]) -> Iterator[pl.DataFrame]:
    """Yield hits with named fields in blocks; see `text_parts`."""
    first = True
    while block := list(islice(hits, _ROWS)):
        for location, hit in block:
            for field, value in hit.items():
                if not isinstance(value, str):
                    problem = f"the {field} is {describe_value(value)}; a text or a number is needed"
                    raise location.error(problem, code="not-a-text", column=field)
        columns = {field: [hit.get(field) for _, hit in block] for field in _KINDS}
        table = pl.DataFrame(columns, schema=_KINDS)
        scored = table["score"].is_not_null().any()
        if first and not scored:
            note_ranks(path)
        first = False
        yield table.select("qid", "docid", *_numbers(pl.col("rank"), pl.col("score") if scored else None))
    if first:
        raise path_error(path, "no hits; the file is empty", code="empty-run")


def _numbers(rank: pl.Expr, score: pl.Expr | None) -> tuple[pl.Expr, pl.Expr]:
    """Return the expressions of rank and score of texts; without scores, the score is the rank times -1."""
    given = rank.cast(pl.Float64, strict=False)  # some tools write `1.0`
    whole = pl.when(given == given.floor()).then(given).cast(pl.Int32, strict=False)
    number = -whole.cast(pl.Float32) if score is None else score.cast(pl.Float32, strict=False)
    return whole.alias("rank"), number.alias("score")


@cache
def note_ranks(path: Path) -> None:
    """Say once that a run has no scores; commands read a run several times."""
    text = f"{path}: has ranks without scores; the scores are the ranks times -1, whatever method uses them"
    console.note(text, code="no-scores", path=path)


def _next_lines(file: IO[bytes], path: Path) -> bytes:
    """Read about `TEXT_BYTES`, up to the end of a line."""
    bound = limits()
    end = file.read(TEXT_BYTES)
    rest = b"" if end.endswith(b"\n") else file.readline(bound.line + 1)
    bound.refuse_line(path, path, len(rest))
    return end + rest


def _decoded(data: bytes, path: Path, above: int) -> list[str]:
    """Return lines, the first of which is line `above` + 1 of the file."""
    try:
        return data.decode().split("\n")
    except UnicodeDecodeError as error:
        number = above + data.count(b"\n", 0, error.start) + 1
        raise Location(path, number).error("not a TREC run: the line is not valid UTF-8", code="not-utf-8") from None


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
        number, value = bad.row(0)
        problem = f"{len(value)} fields; {form.needs}"
        raise Location(path, number).error(problem, code="other-width", found=len(value), expected=form.width)

    def field(at: int | None, kind: type[pl.DataType]) -> pl.Expr:
        return pl.lit(None, kind) if at is None else pl.col("f").list.get(at).cast(kind, strict=False)

    rank = field(form.rank, pl.String)
    score = None if form.score is None else field(form.score, pl.String)
    hits = fields.select(
        field(form.qid, pl.String).alias("qid"), field(form.docid, pl.String).alias("docid"), *_numbers(rank, score)
    )
    unusable = hits["rank"].is_null() | ((hits["rank"] < 1) & (not form.header))
    if form.score is None and unusable.any():
        number, value = fields.filter(unusable).row(0)
        problem = f"'{value[form.rank]}' is no rank from 1; {form.needs}"
        raise Location(path, number).error(problem, code="not-a-rank", value=value[form.rank])
    return hits
