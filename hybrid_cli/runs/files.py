"""Runs in files: Parquet with the columns of a run, or text; checked whoever wrote them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import polars as pl

from hybrid_cli import console, memory, storage
from hybrid_cli.errors import HybridError, InputError, path_error
from hybrid_cli.inputs.files import is_parquet
from hybrid_cli.inputs.rows import InputFile
from hybrid_cli.runs.run import BLOCK_ROWS, ROW_BYTES, Run, Survey, of_table
from hybrid_cli.runs.tables import SCHEMA, ranked
from hybrid_cli.runs.text import named_columns, note_ranks, text_bytes, text_parts
from hybrid_cli.storage import PROBABILITY, Kind, Record

_HELD = 1.5  # bytes in memory per byte of a text whose rows are in order
_SORTED = 8  # the same for rows that must be sorted
_SORTED_ROW = 240  # bytes in memory per row of a Parquet file that must be sorted


def read_run(path: Path) -> pl.DataFrame:
    """Read a run whole; see `open_run`.

    Returns:
        qid, docid (strings), rank (int32, from 1), score (float32), sorted by query and rank.
    """
    return open_run(path).table()


def open_run(path: Path, by_qid: bool = True) -> Run:
    """Open a run and check all of it: Parquet with a run's columns, or a text; see `text_parts`.

    Hits of a Parquet file that are in order stay in the file. A text, and a run of another tool in another order,
    is held in memory, ordered by rank. The hits of a query with missing or repeated ranks are ordered by score, and a
    note counts these queries.

    Args:
        path: the file.
        by_qid: order the queries of a run of another tool by their ids, which holds its hits in memory if they are not.

    Raises:
        HybridError: not enough memory.
        InputError: the file is not a run, a score is not finite, a query lists a document twice, or the ranks of a run
            with a manifest are not 1, 2, 3, ... in the order of the rows.
    """
    text = _text_file(path)
    columns = {} if text else _columns(path)
    memory.require(ROW_BYTES * BLOCK_ROWS + int(_HELD * text_bytes(text) if text else 0), str(path))
    made = None if text else storage.find_record(path)
    survey, kept = Survey(), []
    for block in _whole_queries(text_parts(text) if text else _parquet_parts(path, columns)):
        if not survey.fits(block, from_1=made is not None):
            return Run.of(_sorted(path, made, text)).by_qid()
        survey.add(block)
        if text:
            kept.append(block.select("docid", "score"))
    if survey.repeats:
        return Run.of(_sorted(path, made, text)).by_qid()
    if text is None:
        run = survey.run(_ParquetReader(path, columns), in_memory=False)
        return run if made is not None or not by_qid else run.by_qid()
    table = pl.concat([pl.DataFrame(schema={n: SCHEMA[n] for n in ("docid", "score")}), *kept], rechunk=True)
    return survey.run(of_table(table)).by_qid()


def with_probability(path: Path, hits: pl.DataFrame) -> pl.DataFrame:
    """Return some hits (qid, docid, ...) of a run with their `probability`, if the run has this column."""
    needed = ["qid", "docid", PROBABILITY.name]
    if not is_parquet(path) or not set(needed) <= set(storage.column_names(path)):
        return hits
    with storage.reading(path):
        known = pl.scan_parquet(path, glob=False).select(pl.col("qid", "docid").cast(pl.String), PROBABILITY.name)
        return hits.lazy().join(known, on=["qid", "docid"], how="left", maintain_order="left").collect()


def _text_file(path: Path) -> InputFile | None:
    """Return a text; None for Parquet, and for a path that is no file."""
    file = InputFile.of(path) if path.is_file() else None
    return None if file is None or file.form == "parquet" else file


def _sorted(path: Path, made: Record | None, text: InputFile | None) -> pl.DataFrame:
    """Read a whole run that is not in order; refuse it if hybrid wrote it."""
    rows = _SORTED * text_bytes(text) if text else _SORTED_ROW * storage.row_count(path)
    memory.require(ROW_BYTES * BLOCK_ROWS + rows, f"{path}, which must be sorted,")
    table = check_run(pl.concat(text_parts(text) if text else _parquet_parts(path, _columns(path))), path)
    if made is not None:
        problem = f"was changed after `{made.stage}` wrote it: its rows are not in order; make it again"
        raise path_error(path, problem, code="damaged")
    return sort_hits(table, path)


def _whole_queries(parts: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Yield the same rows, cut where the query changes."""
    waiting: list[pl.DataFrame] = []
    for part in parts:
        if not len(part):
            continue
        ends = part["qid"].ne_missing(part["qid"].shift(-1))
        ends[-1] = False  # the next part may continue the last query
        last = ends.reverse().arg_max() if ends.any() else None
        if last is None:
            waiting.append(part)
            continue
        cut = len(part) - int(last)
        yield pl.concat([*waiting, part.head(cut)])
        waiting = [part.slice(cut)]
    if waiting:
        yield pl.concat(waiting)


class _ParquetReader:
    """Reads rows of a Parquet file; the last window stays in memory, for the next rows.

    Raises:
        HybridError: the file was replaced after it was opened.
    """

    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        self._path, self._stamp = path, _stamp(path)
        self._columns = columns
        self._begin, self._window = 0, pl.DataFrame(schema={"docid": pl.String, "score": pl.Float32})

    def __call__(self, begin: int, end: int) -> pl.DataFrame:
        if not self._begin <= begin <= end <= self._begin + len(self._window):
            self._window = _parquet_rows(
                self._path, self._columns, ("docid", "score"), begin, max(end - begin, BLOCK_ROWS)
            )
            self._begin = begin
            if _stamp(self._path) != self._stamp:
                problem = f"{self._path}: was replaced while it was read; run the same command again"
                raise HybridError(problem, code="input-replaced", path=self._path)
        return self._window.slice(begin - self._begin, end - begin)


def _stamp(path: Path) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size


def _columns(path: Path) -> dict[str, str]:
    """Return field -> column of a Parquet file; another tool may have other names, and no ranks or no scores.

    Raises:
        InputError: not a run.
    """
    columns = {name: name for name in SCHEMA.names()}
    if path.is_file() and storage.find_record(path) is None:
        names = storage.column_names(path)
        if not columns.keys() <= set(names) and (positions := named_columns(names, path)) is not None:
            columns = {field: names[at] for field, at in positions.items()}
            if "score" not in columns:
                note_ranks(path)
    storage.check_table(path, Kind.RUN, columns)
    return columns


def _parquet_parts(path: Path, columns: Mapping[str, str]) -> Iterator[pl.DataFrame]:
    size = BLOCK_ROWS
    for begin in range(0, max(storage.row_count(path), 1), size):
        yield _parquet_rows(path, columns, SCHEMA.names(), begin, size)


def _parquet_rows(
    path: Path, columns: Mapping[str, str], fields: Sequence[str], begin: int, count: int
) -> pl.DataFrame:
    expressions = {name: pl.col(column).cast(SCHEMA[name], strict=False) for name, column in columns.items()}
    expressions.setdefault("rank", pl.lit(None, SCHEMA["rank"]))
    expressions.setdefault("score", -expressions["rank"].cast(SCHEMA["score"]))
    with storage.reading(path):
        rows = pl.scan_parquet(path, glob=False).slice(begin, count)
        return rows.select(expressions[name].alias(name) for name in fields).collect()


def check_run(run: pl.DataFrame, path: object) -> pl.DataFrame:
    """Check the ids and scores of a run, and return the run."""
    rows = run.with_row_index("row", offset=1)
    lacking = rows.filter(pl.any_horizontal(pl.col("qid", "docid").fill_null("") == ""))
    if len(lacking):
        problem = f"{path}, row {lacking['row'][0]}: {_first_null(lacking)} is missing; fix the run"
        raise InputError(problem, code="missing-value", path=path, row=lacking["row"][0], column=_first_null(lacking))
    bad = rows.filter(pl.col("score").cast(pl.Float32).is_finite().fill_null(False).not_())
    if len(bad):
        row = bad.row(0, named=True)
        place = f"row {row['row']} (query {row['qid']}, document {row['docid']})"
        problem = f"{console.counted(score=len(bad))} not finite, the first in {place}; fix the run"
        fields = {"row": row["row"], "query": row["qid"], "document": row["docid"]}
        raise path_error(path, problem, code="score-not-finite", **fields)
    twice = rows.filter(pl.struct("qid", "docid").is_duplicated())
    if len(twice):
        row = twice.row(0, named=True)
        problem = f"query {row['qid']} lists document {row['docid']} again in row {row['row']}; remove the duplicates"
        raise path_error(path, problem, code="duplicate-id", row=row["row"], query=row["qid"], document=row["docid"])
    return run


def sort_hits(run: pl.DataFrame, path: object) -> pl.DataFrame:
    """Order a run by rank, and the hits of a query with missing or repeated ranks by score.

    Raises:
        InputError: such a query has no scores of its own; the file probably holds judgments.
    """
    unusable = pl.struct("qid", "rank").is_duplicated() | pl.col("rank").is_null()
    run = run.with_columns(unusable=unusable.any().over("qid"))
    by_rank, by_score = (run.filter(pl.col("unusable") == flag).drop("unusable") for flag in (False, True))
    if len(by_score):
        if (by_score["score"] == -by_score["rank"]).fill_null(False).all():
            qid, rank = by_score.row(0, named=True)["qid"], by_score["rank"][0]
            problem = f"is no run: query {qid} has rank {rank} more than once, and there are no scores"
            raise path_error(path, problem, code="duplicate-rank", query=qid, rank=rank)
        count = by_score["qid"].n_unique()
        _note_repaired(path, count)
    ordered = by_rank.sort("qid", "rank", maintain_order=True)  # ranks may start at 0 or have gaps
    numbered = ordered.with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32).over("qid"))
    return pl.concat([numbered.select(SCHEMA.names()).cast(dict(SCHEMA)), ranked(by_score.drop("rank"))])  # type: ignore[arg-type]


@cache
def _note_repaired(path: Path, count: int) -> None:
    """Say once that scores order the hits of some queries; commands read a run several times."""
    text = f"{path}: ranks of {console.counted(query=count)} are missing or repeated; score orders their hits"
    console.note(text, code="ranks-repaired", path=path, count=count)


def _first_null(rows: pl.DataFrame) -> str:
    return "docid" if rows["qid"][0] else "qid"


# ---------------------------------------------------------------------------------------------------------------- names


def name_runs(paths: Sequence[str | Path]) -> dict[str, Path]:
    """Name runs: by the name of `name=path`, or by the file's stem, with parent folders where stems are equal.

    Raises:
        InputError: two runs have the same name, or a path names no file.
    """
    given = [name_and_path(str(path)) for path in paths]
    plain = [path.with_suffix("") for name, path in given if name is None]
    taken: dict[str, Path] = {}
    for name, path in given:
        chosen = name if name is not None else _short(path.with_suffix(""), plain)
        if taken.get(chosen) == path:
            raise path_error(path, "is listed twice; list each file once", code="repeated-input")
        if chosen in taken:
            problem = f"two runs are named '{chosen}' ({taken[chosen]} and {path}); write name={path}"
            raise InputError(problem, code="duplicate-name", path=path, name=chosen)
        taken[chosen] = path
    return taken


def named_once(paths: Sequence[str | Path]) -> dict[str, Path]:
    """Name runs that are combined; see `name_runs`.

    Raises:
        InputError: two runs have the same name, or one file has two names.
    """
    by_name = name_runs(paths)
    for path in by_name.values():
        if list(by_name.values()).count(path) > 1:
            raise path_error(path, "is listed twice; list each file once", code="repeated-input")
    return by_name


def pick(given: str, known: Mapping[str, Path], option: str) -> Path:
    """Find a run by its name in `known`, or by a path or `name=path`.

    Raises:
        InputError: no such run or file; the message names `option`.
    """
    path = known[given] if given in known else next(iter(name_runs([given]).values()))
    if not path.exists():
        problem = f"{option} {given}: no such run or file; the runs are {', '.join(known) or 'none'}"
        raise InputError(problem, code="no-such-file", path=path, option=option, value=given)
    return path


def name_and_path(text: str) -> tuple[str | None, Path]:
    """Return name and path of a run: `name=path`, or a path."""
    name, mark, path = text.partition("=")
    if not (name and mark and path) or Path(text).exists():
        name, path = "", text
    if not Path(path).name:  # an empty text, such as an unset variable of a shell, or `.`
        raise InputError(f"run '{text}': needs the path of a file", code="invalid-name")
    return name or None, Path(path)


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return the last name of each path, with parent folders where these are equal."""
    return [_short(path, paths) for path in paths]


def _short(path: Path, paths: Sequence[Path]) -> str:
    """Return the shortest end of `path` that distinguishes it from the other paths."""
    for length in range(1, len(path.parts) + 1):
        end = path.parts[-length:]
        if sum(other.parts[-length:] == end for other in paths) == 1:
            return "/".join(end)
    return path.name
