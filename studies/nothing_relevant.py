"""Calibrated probabilities of hits: calibration error, and queries without an answer that still return hits.

    python studies/nothing_relevant.py NAME=COLLECTION:SPLIT ... --work FOLDER --prior calibration.json
    python studies/nothing_relevant.py NAME=COLLECTION:SPLIT ... --work FOLDER --output measured/nothing-relevant.csv
    python studies/nothing_relevant.py --output measured/nothing-relevant.csv     # prints the tables of the page

FOLDER/NAME has the indexes `bm25` and `dense` that studies/default_fusion.py builds; the hits of at most 500 judged
queries are stored next to them. `--prior` writes hybrid_cli/retrieval/calibration.json; the
measurements leave the collection out of it. A query without an answer loses its relevant documents from its list;
statistics of BM25 keep them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hybrid_cli.artifacts.retrievers import RetrieverFiles, open_retriever
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.folds import random_folds
from hybrid_cli.reporting.studies import false_hits
from hybrid_cli.retrieval.calibration import (
    FIRST,
    FOLDS,
    SEARCHED,
    WITHOUT_ANSWER,
    Calibration,
    Fold,
    Prior,
    calibrate,
    calibration_error,
    feature_names,
    prior_of,
    reliability,
)
from hybrid_cli.stages.compose import compose

QUERIES, SEED, SEEDS, DEPTH = 500, 42, 5, 1000
FEW, DRAWS = 20, 10
KEPT = 0.95  # of the queries with an answer
SIDES, KINDS = ["bm25", "dense"], ["lexical", "dense"]
WEAK = Prior(np.zeros(len(feature_names(KINDS))), np.array([1.0] * (len(feature_names(KINDS)) - 1) + [10.0]))
Values = NDArray[np.float64]


def judged_hits(folder: Path, collection: Path, split: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the first hits of at most 500 judged queries by the default retriever, and the judgments."""
    qrels = collections.read_qrels(collections.qrels_path(collection, split))
    queries = collections.read_queries(collections.queries_path(collection, split)).select("qid", "text")
    queries = queries.join(qrels, on="qid", how="semi", maintain_order="left")
    queries = queries.sample(min(QUERIES, len(queries)), seed=SEED)
    qrels = qrels.join(queries, on="qid", how="semi", maintain_order="left")
    file = folder / "hits.parquet"
    if not file.exists():
        retriever = compose([folder / "bm25", folder / "dense"], output=folder / "retriever")
        pl.concat(open_retriever(RetrieverFiles.read(retriever)).runs(queries, SEARCHED)).write_parquet(file)
    return pl.read_parquet(file), qrels


def emptied(hits: pl.DataFrame, qrels: pl.DataFrame, qids: list[str]) -> pl.DataFrame:
    """Return hits of which some queries have lost their relevant documents."""
    positive = qrels.filter((pl.col("relevance") > 0) & pl.col("qid").is_in(qids))
    left = hits.join(positive, on=["qid", "docid"], how="anti", maintain_order="left")
    return left.with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32).over("qid"))


def of_queries(table: pl.DataFrame, qids: list[str]) -> pl.DataFrame:
    """Return the rows of some queries."""
    return table.filter(pl.col("qid").is_in(qids))


def fitted(hits: pl.DataFrame, qrels: pl.DataFrame, prior: Prior, seed: int) -> Calibration:
    """Return the calibration of judged queries, of hits whose fusion was not tuned on any of them."""
    qids = set(hits["qid"])
    folds = [Fold(fold, hits) for fold in random_folds(qids, min(FOLDS, len(qids)), seed)]
    return calibrate(hits, qrels, folds, SIDES, DEPTH, prior, seed)


def tested(calibration: Calibration, hits: pl.DataFrame, qrels: pl.DataFrame) -> pl.DataFrame:
    """Return the first ten hits of each query with `probability` and `relevant`."""
    positive = qrels.filter(pl.col("relevance") > 0).select("qid", "docid", relevant=pl.lit(1.0))
    likely = hits.with_columns(probability=calibration.probabilities(hits, SIDES)).filter(pl.col("rank") <= FIRST)
    return likely.join(positive, on=["qid", "docid"], how="left", maintain_order="left").with_columns(
        pl.col("relevant").fill_null(0.0)
    )


def error(rows: pl.DataFrame, relevant: Values | None = None) -> float:
    """Return the expected calibration error."""
    known = rows["relevant"].to_numpy() if relevant is None else relevant
    return calibration_error(reliability(rows["probability"].to_numpy(), known))


def still_returned(rows: pl.DataFrame, score: str, lost: list[str]) -> float:
    """Return the share of queries without an answer with a hit at the threshold that keeps 95% of the others."""
    best = rows.group_by("qid", maintain_order=True).agg(pl.col(score).max())
    share = false_hits(best[score].to_numpy(), ~best["qid"].is_in(lost).to_numpy(), KEPT)
    assert share is not None
    return share


def crossed(name: str, hits: pl.DataFrame, qrels: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the measurements of every seed on left-out queries, of which a fifth has no answer."""
    qids = hits["qid"].unique().sort().to_list()
    for seed in range(SEEDS):
        drawn = np.random.default_rng(seed)
        lost = sorted(drawn.choice(qids, round(WITHOUT_ANSWER * len(qids)), replace=False).tolist())
        changed = emptied(hits, qrels, lost)
        parts = []
        for fold in random_folds(set(qids), FOLDS, seed):
            known = [qid for qid in qids if qid not in set(fold) | set(lost)]
            calibration = fitted(of_queries(hits, known), of_queries(qrels, known), prior_of(KINDS, [name]), seed)
            parts.append(tested(calibration, of_queries(changed, fold), of_queries(qrels, fold)))
        rows = pl.concat(parts)
        likely = rows["probability"].to_numpy()
        chance = np.mean([error(rows, (drawn.random(len(rows)) < likely).astype(float)) for _ in range(20)])
        yield {
            "collection": name, "queries": len(qids), "seed": seed, "ece": error(rows), "chance": float(chance),
            "ece_answerable": error(rows.filter(~pl.col("qid").is_in(lost))),
            "ece_first": error(rows.filter(rank=1)), "by_probability": still_returned(rows, "probability", lost),
            "by_score": still_returned(rows, "score", lost),
        }  # fmt: skip


def few(name: str, hits: pl.DataFrame, qrels: pl.DataFrame) -> dict[str, Any]:
    """Return the mean calibration error after twenty judged queries, with the prior and without."""
    qids = hits["qid"].unique().sort().to_list()
    errors: dict[str, list[float]] = {"prior": [], "no prior": []}
    for seed in range(DRAWS):
        known = np.random.default_rng(seed).choice(qids, FEW, replace=False).tolist()
        others = [qid for qid in qids if qid not in set(known)]
        for label, prior in (("prior", prior_of(KINDS, [name])), ("no prior", WEAK)):
            calibration = fitted(of_queries(hits, known), of_queries(qrels, known), prior, seed)
            errors[label].append(error(tested(calibration, of_queries(hits, others), qrels)))
    return {f"few, {label}": float(np.mean(values)) for label, values in errors.items()}


def main() -> None:
    """Write the prior, or measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="*", help="NAME=COLLECTION:SPLIT")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--prior", type=Path)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    rows, stored = [], []
    for text in given.collections:
        name, _, source = text.partition("=")
        collection, _, split = source.rpartition(":")
        hits, qrels = judged_hits(given.work / name, Path(collection), split)
        if given.prior:
            coefficients = map(float, fitted(hits, qrels, WEAK, SEED).coefficients)
            rounded = [round(value, 3) for value in coefficients]
            stored.append({"name": name, "split": split, "queries": hits["qid"].n_unique(),
                           "coefficients": dict(zip(feature_names(KINDS), rounded, strict=True))})  # fmt: skip
            continue
        one = few(name, hits, qrels)
        rows += [row | one for row in crossed(name, hits, qrels)]
        print(pl.DataFrame(rows[-SEEDS:]).mean(), flush=True)
    if given.prior:
        content = {"made_by": "studies/nothing_relevant.py", "collections": stored}
        given.prior.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return
    if rows:
        pl.DataFrame(rows).write_csv(given.output, float_precision=4)
    table = pl.read_csv(given.output)
    figures = pl.all().exclude("collection", "seed", "queries")
    with pl.Config(tbl_cols=-1, tbl_rows=-1, tbl_width_chars=200, float_precision=3):
        print(table.group_by("collection", maintain_order=True).agg(pl.col("queries").first(), figures.mean()))
        print(table.group_by("collection", maintain_order=True).agg(figures.std()))


if __name__ == "__main__":
    main()
