"""Runs: one row per hit, ordered by query and rank.

`ranked` holds the only tie-breaking rule: score descending, then docid ascending as a string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli import artifacts
from hybrid_cli.artifacts import SCHEMAS, Kind
from hybrid_cli.errors import InputError

SCHEMA = pl.DataFrame(SCHEMAS[Kind.RUN].empty_table()).schema  # qid, docid, rank, score


def empty() -> pl.DataFrame:
    """Return a run without hits."""
    return pl.DataFrame(schema=SCHEMA)


def ranked(hits: pl.LazyFrame | pl.DataFrame, depth: int | None = None) -> pl.DataFrame:
    """Rank the hits of each query by score, with ties broken by docid.

    Args:
        hits: qid, docid, score.
        depth: hits kept per query; None for all.

    Returns:
        A run; queries keep the order of their first appearance.
    """
    best = pl.col("docid", "score").sort_by(["score", "docid"], descending=[True, False])
    rank = pl.int_range(1, pl.len() + 1, dtype=pl.Int32).alias("rank")
    if depth is not None:
        best, rank = best.head(depth), rank.head(depth)
    ordered = hits.lazy().group_by("qid", maintain_order=True).agg(best, rank).explode("docid", "rank", "score")
    return ordered.select("qid", "docid", "rank", pl.col("score").cast(pl.Float32)).collect()


def positions(ids: pl.Series, known: pl.Series, complaint: str) -> npt.NDArray[np.int64]:
    """Return the position of each id in `known`, the first one where ids repeat.

    Args:
        ids: ids to find.
        known: ids to search.
        complaint: start of the error message, before the first unknown id: "no text for query".

    Raises:
        InputError: some ids are unknown.
    """
    places = pl.LazyFrame({"id": known.cast(pl.String)}).with_row_index("at").unique("id", keep="first")
    wanted = pl.LazyFrame({"id": ids.cast(pl.String)})
    found = wanted.join(places, on="id", how="left", maintain_order="left").collect()
    unknown = found.filter(pl.col("at").is_null())["id"].unique(maintain_order=True)
    if len(unknown):
        raise InputError(f"{complaint} {unknown[0]}" + (f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""))
    return found["at"].to_numpy().astype(np.int64)


def read_run(path: Path) -> pl.DataFrame:
    """Read a run: Parquet with a run's columns, or a TREC file with six columns.

    Returns:
        qid, docid (strings), rank (int32, from 1), score (float32), sorted by query and rank.

    Raises:
        InputError: the file is not a run, a score is not finite, or a query lists a document twice.
    """
    if path.is_file() and path.suffix != ".parquet":
        return _checked(_read_trec(path), path)
    artifacts.check_table(path, Kind.RUN)
    frame = pl.read_parquet(path, columns=SCHEMA.names())
    if artifacts.find_manifest(path) is None:
        frame = _checked(frame, path).with_columns(pl.col("rank").cast(pl.Int32), pl.col("score").cast(pl.Float32))
    return frame


def named(paths: Sequence[str | Path]) -> dict[str, Path]:
    """Name runs: by the name of `name=path`, or by the file's stem, with parent folders where stems are equal.

    Raises:
        InputError: two runs have the same name.
    """
    given = [_name_and_path(str(path)) for path in paths]
    plain = [path.with_suffix("") for name, path in given if name is None]
    taken: dict[str, Path] = {}
    for name, path in given:
        chosen = name if name is not None else _short(path.with_suffix(""), plain)
        if chosen in taken:
            raise InputError(f"two runs are named '{chosen}' ({taken[chosen]} and {path}); write name={path}")
        taken[chosen] = path
    return taken


def pick(given: str, known: Mapping[str, Path], option: str) -> Path:
    """Find a run by its name in `known`, or by a path or `name=path`.

    Raises:
        InputError: no such run or file; the message names `option`.
    """
    path = known[given] if given in known else next(iter(named([given]).values()))
    if not path.exists():
        raise InputError(f"{option} {given}: no such run or file; the runs are {', '.join(known) or 'none'}")
    return path


def _name_and_path(text: str) -> tuple[str | None, Path]:
    name, mark, path = text.partition("=")
    if not (name and mark and path) or Path(text).exists():
        return None, Path(text)
    return name, Path(path)


def _short(path: Path, others: Sequence[Path]) -> str:
    """Return the shortest end of `path` that distinguishes it from the other paths."""
    for length in range(1, len(path.parts) + 1):
        end = path.parts[-length:]
        if sum(other.parts[-length:] == end for other in others) == 1:
            return "/".join(end)
    return path.name


def _read_trec(path: Path) -> pl.DataFrame:
    """Read lines of `qid Q0 docid rank score tag`, separated by white space; ids are strings."""
    try:
        lines = pl.read_csv(
            path, has_header=False, new_columns=["line"], separator="\x01", quote_char=None, schema={"line": pl.String}
        )
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{path}: not a TREC run ({error})") from None
    fields = lines.with_row_index("number", offset=1).select(
        "number", pl.col("line").str.extract_all(r"\S+").alias("f")
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


def _checked(run: pl.DataFrame, path: Path) -> pl.DataFrame:
    """Check a run of another tool; order it by rank, or by score where ranks are missing or repeated."""
    rows = run.with_row_index("row", offset=1)
    lacking = rows.filter(pl.any_horizontal(pl.col("qid", "docid").is_null()))
    if len(lacking):
        raise InputError(f"{path}, row {lacking['row'][0]}: {_first_null(lacking)} is missing; fix the run")
    bad = rows.filter(pl.col("score").cast(pl.Float32).is_finite().fill_null(False).not_())
    if len(bad):
        row = bad.row(0, named=True)
        raise InputError(
            f"{path}: {len(bad)} scores are not finite numbers, the first in row {row['row']} "
            f"(query {row['qid']}, document {row['docid']}); fix the run"
        )
    twice = rows.filter(pl.struct("qid", "docid").is_duplicated())
    if len(twice):
        row = twice.row(0, named=True)
        raise InputError(
            f"{path}: query {row['qid']} lists document {row['docid']} more than once (row {row['row']}); "
            "remove the duplicates"
        )
    usable = run["rank"].null_count() == 0 and not run.select(pl.struct("qid", "rank").is_duplicated().any()).item()
    if not usable:
        return ranked(run.drop("rank"))
    ordered = run.sort("qid", "rank", maintain_order=True)  # ranks may start at 0 or have gaps
    return ordered.with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32).over("qid")).select(SCHEMA.names())


def _first_null(rows: pl.DataFrame) -> str:
    return "qid" if rows["qid"][0] is None else "docid"
