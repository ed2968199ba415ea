"""Judged queries until the evidence decides between a hybrid and its sides, by the order of judging.

    python studies/judging_evidence.py NAME=COLLECTION:SPLIT=RETRIEVER ... --output measured/judging-evidence.csv
    python studies/judging_evidence.py --output measured/judging-evidence.csv     # prints the table of the page

Each of 300 draws takes 100 judged queries of a collection (all, if it has fewer) and judges them in the given order
until `Evidence` decides. All judgments of the collection count, not only those of a pool. `false` is the share of wrong
decisions after each difference got a random sign.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl

from hybrid_cli.artifacts.retrievers import RetrieverFiles, open_retriever
from hybrid_cli.collections import collection as collections
from hybrid_cli.evaluation.measures import evaluate_run
from hybrid_cli.evaluation.retrieved import pools
from hybrid_cli.evaluation.sequential import log_capital
from hybrid_cli.runs import Run

QUERIES, DRAWN, DRAWS, SEED, MEASURE = 400, 100, 300, 42, "nDCG@10"
DECIDES = np.log(40)


def decision(differences: np.ndarray) -> int | None:
    """Return the first look at which either sign is decided."""
    for look in range(2, len(differences) + 1):
        some = differences[:look]
        if max(log_capital(some), log_capital(-some)) >= DECIDES:
            return look
    return None


def measured(name: str, collection: Path, split: str, folder: Path) -> list[dict[str, object]]:
    """Return the rows of one collection."""
    qrels = collections.read_qrels(collections.qrels_path(collection, split))
    judged = qrels.filter(pl.col("relevance") > 0)["qid"].unique(maintain_order=True)
    queries = collections.read_queries(collections.queries_path(collection, split)).select("qid", "text")
    queries = queries.filter(pl.col("qid").is_in(judged.implode()))
    queries = queries.sample(min(QUERIES, len(queries)), seed=SEED)
    retriever = open_retriever(RetrieverFiles.read(folder))
    runs = {"hybrid": pl.concat(list(retriever.runs(queries, 100)))}
    runs |= {side: index.search(queries, 100) for side, index in retriever.sides.items()}
    qrels = qrels.filter(pl.col("qid").is_in(queries["qid"].implode()))
    tables = {run: evaluate_run(hits, qrels, [MEASURE]).select("qid", "value") for run, hits in runs.items()}
    sides = [Run.of(hits) for run, hits in runs.items() if run != "hybrid"]
    spread = {pool.qid: pool.disagreement for pool in pools(sides, 5, SEED)}
    qids = tables["hybrid"]["qid"].to_list()
    disagreement = np.array([spread.get(qid, 0.0) for qid in qids])
    rows: list[dict[str, object]] = []
    for side in (run for run in runs if run != "hybrid"):
        joined = tables["hybrid"].join(tables[side], on="qid", suffix="_side", maintain_order="left")
        differences = (joined["value"] - joined["value_side"]).to_numpy()
        rows += simulated(name, side, differences, disagreement)
    return rows


def simulated(name: str, side: str, differences: np.ndarray, disagreement: np.ndarray) -> list[dict[str, object]]:
    """Return a row for each order of judging."""
    random = np.random.default_rng(SEED)
    looks: dict[str, list[int | None]] = {"random": [], "disagreement": []}
    wrong: dict[str, int] = dict.fromkeys(looks, 0)
    for _ in range(DRAWS):
        drawn = random.permutation(len(differences))[:DRAWN]
        signs = random.choice([-1, 1], len(drawn))
        orders = {"random": drawn, "disagreement": drawn[np.argsort(-disagreement[drawn], kind="stable")]}
        for order, rows in orders.items():
            looks[order].append(decision(differences[rows]))
            wrong[order] += decision(differences[rows] * signs) is not None
    return [
        {
            "collection": name, "baseline": side, "order": order, "queries": len(differences),
            "difference": round(float(differences.mean()), 4), "deviation": round(float(differences.std(ddof=1)), 4),
            "decided": round(float(np.mean([look is not None for look in found])), 3),
            "median": float(np.median([look or DRAWN + 1 for look in found])), "false": round(wrong[order] / DRAWS, 3),
        }
        for order, found in looks.items()
    ]  # fmt: skip


def main() -> None:
    """Measure collections, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collections", nargs="*", metavar="NAME=COLLECTION:SPLIT=RETRIEVER")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    rows: list[dict[str, object]] = []
    for text in given.collections:
        name, where, folder = text.split("=")
        collection, _, split = where.rpartition(":")
        rows += measured(name, Path(collection), split, Path(folder))
        pl.DataFrame(rows).write_csv(given.output)
    print("| Collection | Baseline | Difference (deviation) | Order | Decided within 100 | Median | False |")
    print("|---|---|--:|---|--:|--:|--:|")
    for row in pl.read_csv(given.output).iter_rows(named=True):
        median = f"{row['median']:.0f}" if row["median"] <= DRAWN else "over 100"
        print(
            f"| {row['collection']} | {row['baseline']} | {row['difference']:+.3f} ({row['deviation']:.3f}) | "
            f"{row['order']} | {row['decided']:.0%} | {median} | {row['false']:.1%} |"
        )


if __name__ == "__main__":
    main()
