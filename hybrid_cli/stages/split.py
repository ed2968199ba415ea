"""`split`: the judged queries of a collection in folds, as a collection over the same documents."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path

import polars as pl

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Kind, Output
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections import folds as crossing
from hybrid_cli.collections.writer import clear
from hybrid_cli.config import Folds
from hybrid_cli.errors import InputError


def split(
    collection: Path,
    *,
    output: Path,
    splits: Sequence[str] = (),
    folds: int | None = None,
    given: Path | None = None,
    seed: int = Folds.seed,
    overwrite: bool = False,
) -> Path:
    """Write a collection with the splits of each fold: `test-1`, `dev-1`, `train-1`, ..., and `all` of them together.

    The corpus is the same file under a second name, so that one index serves every fold.

    Args:
        collection: its judged queries are parted; those without judgements are left out.
        splits: whose queries; `all` for every split; the only split if none is named.
        folds: how many; with `given`, how many that file must have.
        given: a file with the parts that somebody else chose, in a form of `folds.read`.
        seed: of the parts, where none are given.

    Raises:
        InputError: no such split, a query in two of them, or folds that do not fit, as `folds` has them.
    """
    corpus, names = collections.corpus_path(collection), _names(collection, splits)
    files = {f"queries {name}": collections.queries_path(collection, name) for name in names}
    files |= {f"qrels {name}": collections.qrels_path(collection, name) for name in names}
    queries, qrels = _read(files, names)
    parts = _parts(queries, qrels, folds, given, seed)
    claim = artifacts.open_output(
        output,
        Kind.COLLECTION,
        "split",
        inputs={"corpus": corpus, **files, **({"folds": given} if given else {})},
        options={} if given else {"folds": len(parts), "seed": seed},
        overwrite=overwrite,
    )
    if claim.up_to_date:
        return output
    with claim.folder() as (work, counts):
        clear(work)
        artifacts.hard_link(corpus, work / corpus.name)
        counts |= {"documents": collections.document_count(work), "queries": {}, "judgements": {}}
        for name, qids in crossing.splits(parts).items():
            counts["queries"][name] = _write(claim, work / f"queries.{name}.parquet", Kind.QUERIES, queries, qids)
            counts["judgements"][name] = _write(claim, work / f"qrels.{name}.parquet", Kind.QRELS, qrels, qids)
    sizes, left = ", ".join(str(len(part)) for part in parts), len(queries) - sum(map(len, parts))
    console.note(
        f"split: {output}: {len(queries) - left:,} judged queries in {len(parts)} folds ({sizes})"
        + (f"; {left:,} without judgements left out" if left else "")
    )
    return output


def _names(collection: Path, splits: Sequence[str]) -> list[str]:
    """The splits whose queries are parted."""
    present = collections.splits(collection)
    if not present:
        raise InputError(f"{collection}: has no split with queries and judgements; make one with `hybrid prepare`")
    if list(splits) == [crossing.WHOLE] and crossing.WHOLE not in present:
        return present
    if not splits and len(present) > 1:
        raise InputError(f"{collection}: has several splits ({', '.join(present)}); name some with --split, or all")
    return list(dict.fromkeys(splits)) or present


def _read(files: dict[str, Path], names: Sequence[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Queries and qrels of all the splits; judgements about other queries are left out."""
    queries = pl.concat(
        collections.read_queries(files[f"queries {name}"]).with_columns(split=pl.lit(name)) for name in names
    )
    qrels = pl.concat(collections.read_qrels(files[f"qrels {name}"]) for name in names)
    twice = queries.filter(pl.col("qid").is_duplicated())
    if len(twice):
        qid = twice["qid"][0]
        homes = " and ".join(twice.filter(pl.col("qid") == qid)["split"])
        raise InputError(f"query {qid} stands in the splits {homes}; name those to part with --split")
    return queries, qrels.join(queries, on="qid", how="semi", maintain_order="left")


def _parts(
    queries: pl.DataFrame, qrels: pl.DataFrame, folds: int | None, given: Path | None, seed: int
) -> crossing.Parts:
    judged = set(qrels["qid"])
    if given is None:
        return crossing.seeded(judged, Folds.folds if folds is None else folds, seed)
    parts = crossing.given(given, judged, set(queries["qid"]) - judged)
    if folds is not None and folds != len(parts):
        raise InputError(f"{given}: has {len(parts)} folds; --folds says {folds}")
    return parts


def _write(claim: Output, path: Path, kind: Kind, table: pl.DataFrame, qids: Set[str]) -> int:
    """Write the rows about `qids` in their order and return how many they are."""
    schema = artifacts.SCHEMAS[kind]
    rows = table.filter(pl.col("qid").is_in(list(qids))).select(schema.names)
    return int(
        artifacts.write_parquet(path, [rows.to_arrow()], schema, replace(claim.manifest, kind=kind)).counts["rows"]
    )
