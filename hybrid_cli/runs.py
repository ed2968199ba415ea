"""A run as a table: one row a hit, the rank column is the truth.

The tie rule lives here and nowhere else: score descending, then docid ascending as a string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind
from hybrid_cli.errors import InputError

COLUMNS = ("qid", "docid", "rank", "score")


def ranked(hits: pl.LazyFrame | pl.DataFrame, depth: int | None = None) -> pl.DataFrame:
    """Order hits (qid, docid, score) by the tie rule, number them from 1 within each query, keep `depth` a query.

    Queries stay in the order of their first appearance.
    """
    best = pl.col("docid", "score").sort_by(["score", "docid"], descending=[True, False])
    rank = pl.int_range(1, pl.len() + 1, dtype=pl.Int32).alias("rank")
    if depth is not None:
        best, rank = best.head(depth), rank.head(depth)
    ordered = hits.lazy().group_by("qid", maintain_order=True).agg(best, rank).explode("docid", "rank", "score")
    return ordered.select("qid", "docid", "rank", pl.col("score").cast(pl.Float32)).collect()


def read_run(path: Path) -> pl.DataFrame:
    """Read a run: ours, anybody's Parquet with the same columns, or a TREC file of six columns.

    Returns:
        qid, docid (strings), rank (int32, from 1), score (float32), sorted by query and rank.

    Raises:
        InputError: not a run, NaN scores, or a document twice for a query; with row and ids.
    """
    if path.is_file() and path.suffix != ".parquet":
        return _checked(_read_trec(path), path)
    artifacts.check_table(path, Kind.RUN)
    frame = pl.read_parquet(path, columns=list(COLUMNS))
    if artifacts.find_manifest(path) is None:
        frame = _checked(frame, path).with_columns(pl.col("rank").cast(pl.Int32), pl.col("score").cast(pl.Float32))
    return frame


def named(paths: Sequence[str | Path]) -> dict[str, Path]:
    """Names of runs: `name=path` as it says, else the file's stem, with as many folders before it as tell all apart.

    Raises:
        InputError: two runs have one name.
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
    """The path of a run given by the name that it has among `known`, or as a path or `name=path`.

    Raises:
        InputError: there is no such run or file.
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
    """The shortest end of `path`, in whole parts, that no other path ends with."""
    for length in range(1, len(path.parts) + 1):
        end = path.parts[-length:]
        if sum(other.parts[-length:] == end for other in others) == 1:
            return "/".join(end)
    return path.name


def _read_trec(path: Path) -> pl.DataFrame:
    """qid Q0 docid rank score tag, split by any white space; ids stay strings whatever they look like."""
    try:
        lines = pl.read_csv(
            path, has_header=False, new_columns=["line"], separator="\x01", quote_char=None, schema={"line": pl.String}
        )
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{path}: is not a text file of a TREC run ({error})") from None
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
    """A foreign run, its order settled: by rank where ranks are usable."""
    rows = run.with_row_index("row", offset=1)
    lacking = rows.filter(pl.any_horizontal(pl.col("qid", "docid").is_null()))
    if len(lacking):
        raise InputError(f"{path}, row {lacking['row'][0]}: has no {_first_null(lacking)}; mend the run")
    bad = rows.filter(pl.col("score").cast(pl.Float32).is_finite().fill_null(False).not_())
    if len(bad):
        row = bad.row(0, named=True)
        raise InputError(
            f"{path}: {len(bad)} scores are not finite numbers, first in row {row['row']} "
            f"(query {row['qid']}, document {row['docid']}); mend the run"
        )
    twice = rows.filter(pl.struct("qid", "docid").is_duplicated())
    if len(twice):
        row = twice.row(0, named=True)
        raise InputError(
            f"{path}: document {row['docid']} stands more than once for query {row['qid']} (row {row['row']}); "
            "keep one of them"
        )
    usable = run["rank"].null_count() == 0 and not run.select(pl.struct("qid", "rank").is_duplicated().any()).item()
    if not usable:
        return ranked(run.drop("rank"))
    ordered = run.sort("qid", "rank", maintain_order=True)  # others count from 0, or leave gaps
    return ordered.with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32).over("qid")).select(COLUMNS)


def _first_null(rows: pl.DataFrame) -> str:
    return "qid" if rows["qid"][0] is None else "docid"
