"""`split`: split the judged queries of a collection into folds, in a new collection of the same documents."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from pathlib import Path

import polars as pl

from hybrid_cli import artifacts, storage
from hybrid_cli.artifacts import Output, lineage
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections import folds
from hybrid_cli.collections.writer import clear
from hybrid_cli.commands import Split
from hybrid_cli.errors import InputError
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind


@stage(Split)
def split(settings: Split) -> Path:
    """Write a collection with the splits of each fold: `test-1`, `dev-1`, `train-1`, ..., and `all`.

    The corpus is a hard link, so that one index serves every fold. Queries without judgments are left out.

    Returns:
        Path of the new collection.

    Raises:
        InputError: an unknown split, a query in two splits, or folds that do not fit the queries.
    """
    corpus, names = collections.corpus_path(settings.collection), _names(settings)
    files = {f"queries {name}": collections.queries_path(settings.collection, name) for name in names}
    files |= {f"qrels {name}": collections.qrels_path(settings.collection, name) for name in names}
    queries, qrels = _read(files, names)
    parts = _folds(queries, qrels, settings)
    inputs = {"corpus": corpus, **files, **({"folds": settings.folds_file} if settings.folds_file else {})}
    options = ({} if settings.dev else {"dev": False}) if settings.folds_file else settings.recorded()
    pseudo = sorted({kind for file in files.values() if (kind := lineage.pseudo_queries(file))})
    options |= {"pseudo_queries": ",".join(pseudo)} if pseudo else {}
    words = lineage.passage_length(corpus)
    options |= {"split_passages": words} if words else {}
    output = artifacts.output_of(settings, Kind.COLLECTION, inputs, options)
    if output.up_to_date:
        return output.path
    stored = collections.counts_of(settings.collection)
    own = _documents_among(queries, files, corpus)
    with output.folder() as (work, counts):
        clear(work)
        artifacts.hard_link(corpus, work / corpus.name)
        counts |= {"documents": collections.document_count(work), "queries": {}, "judgments": {}}
        counts |= {name: value for name, value in stored.items() if name in ("languages", "compound_names", "sampled")}
        counts |= {"queries_in_corpus": {}} if own else {}
        for name, qids in folds.splits(parts, settings.dev).items():
            counts["queries"][name] = _write(output, work / f"queries.{name}.parquet", Kind.QUERIES, queries, qids)
            counts["judgments"][name] = _write(output, work / f"qrels.{name}.parquet", Kind.QRELS, qrels, qids)
            if own:
                counts["queries_in_corpus"][name] = len(own & qids)
    sizes, unjudged = ", ".join(str(len(part)) for part in parts), len(queries) - sum(map(len, parts))
    text = f"{len(queries) - unjudged:,} judged queries in {len(parts)} folds ({sizes})"
    text += f"; {unjudged:,} without judgments left out" if unjudged else ""
    trains = not settings.dev or len(parts) > 2
    text += "" if trains else "; no split for training, since dev takes the other fold (--no-dev)"
    output.note(text, folds=[len(part) for part in parts], unjudged=unjudged, trains=trains)
    return output.path


def _documents_among(queries: pl.DataFrame, files: dict[str, Path], corpus: Path) -> set[str]:
    """Return the queries that are documents of the corpus, of the splits that `prepare` marked."""
    marked = [name for name in queries["split"].unique() if collections.queries_in_corpus(files[f"queries {name}"])]
    if not marked:
        return set()
    asked = queries.filter(pl.col("split").is_in(marked))["qid"]
    return set(asked.filter(asked.is_in(collections.docids(corpus).implode())))


def _names(settings: Split) -> list[str]:
    """Return the splits whose queries are divided."""
    present = collections.splits(settings.collection)
    if not present:
        problem = f"{settings.collection}: no split with judgments; create one with `hybrid prepare`"
        raise InputError(problem, code="no-judgments", path=settings.collection)
    if settings.split == (folds.WHOLE,) and folds.WHOLE not in present:
        return present
    if not settings.split and len(present) > 1:
        problem = f"{settings.collection}: several splits ({', '.join(present)}); pass --split NAME, or all"
        raise InputError(problem, code="missing-option", option="split", path=settings.collection)
    return list(dict.fromkeys(settings.split)) or present


def _read(files: dict[str, Path], names: list[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return queries and qrels of all splits; judgments of other queries are left out."""
    queries = pl.concat(
        collections.read_queries(files[f"queries {name}"]).with_columns(split=pl.lit(name)) for name in names
    )
    qrels = pl.concat(collections.read_qrels(files[f"qrels {name}"]) for name in names)
    repeated = queries.filter(pl.col("qid").is_duplicated())
    if len(repeated):
        qid = repeated["qid"][0]
        homes = " and ".join(repeated.filter(pl.col("qid") == qid)["split"])
        problem = f"query {qid} is in the splits {homes}; select the splits to divide with --split"
        raise InputError(problem, code="duplicate-query", id=qid, option="split")
    return queries, qrels.join(queries, on="qid", how="semi", maintain_order="left")


def _folds(queries: pl.DataFrame, qrels: pl.DataFrame, settings: Split) -> folds.Folds:
    judged = set(qrels["qid"])
    if settings.folds_file is None:
        return folds.random_folds(judged, settings.folds, settings.seed)
    members = folds.predefined_folds(settings.folds_file, judged, set(queries["qid"]) - judged)
    if "folds" in settings.given and settings.folds != len(members):
        problem = f"{settings.folds_file}: has {len(members)} folds; --folds is {settings.folds}"
        raise InputError(problem, code="conflicting-options", path=settings.folds_file, option="folds")
    return members


def _write(output: Output, path: Path, kind: Kind, table: pl.DataFrame, qids: Set[str]) -> int:
    """Write the rows of `qids` in their order and return their number."""
    schema, manifest = storage.SCHEMAS[kind], replace(output.manifest, kind=kind)
    rows = table.filter(pl.col("qid").is_in(list(qids))).select(schema.names)
    return int(storage.write_parquet(path, [rows.to_arrow()], schema, manifest).counts["rows"])
