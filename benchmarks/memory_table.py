"""LITE's Table 2 of any runs: memory, recall, accuracy, and where a query's time goes (methods 10.10).

    python benchmarks/memory_table.py COLLECTION NAME=RUN NAME=RUN ... [--split test] [--output TABLE.parquet]

The indexes behind a run are found through its manifest. Memory is what a search of them reads. Accuracy@k is the share
of queries with a relevant document among the first k, recall@k the mean share of a query's relevant documents. Latency
is of one query alone, on one thread and a warm index, for 100 hits, after 50 queries that do not count, over the first
1,000: encoding, search and fusion apart, p50 and p95. A fused run asks both sides at once, so its latency is that of
the slower side, and fusion.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from hybrid_cli import artifacts, console, indexes
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections import collection as collections
from hybrid_cli.evaluation.measures import evaluate_run, mean_of
from hybrid_cli.fusion import lists
from hybrid_cli.fusion.methods import Recipe
from hybrid_cli.indexes.exact import query_encoder
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.reporting.lineage import indexes as indexes_of

WARM_UP, MOST, HITS = 50, 1000, 100
MEASURES = {"recall@20": "R@20", "recall@100": "R@100", "accuracy@20": "Success@20", "accuracy@100": "Success@100"}

Timed = tuple[pl.DataFrame, float, float]  # a run of one query, milliseconds to encode it and to search
Asker = Callable[[pl.DataFrame], Timed]


def clocked(work: Callable[[], Any]) -> tuple[Any, float]:
    """What `work` returns, and its milliseconds."""
    start = time.perf_counter()
    found = work()
    return found, 1e3 * (time.perf_counter() - start)


def asker(index: Path) -> Asker:
    """Encodes and searches for one query (qid, text)."""
    if artifacts.read_manifest(index).kind == Kind.LEXICAL_INDEX:
        lexical = LexicalIndex.open(index)

        def by_words(query: pl.DataFrame) -> Timed:
            run, searched = clocked(lambda: lexical.search(query, HITS, 1, None))
            return run, 0.0, searched

        return by_words
    dense = indexes.DenseIndex.open(index)
    encoder = query_encoder(dense, device="cpu")

    def by_vectors(query: pl.DataFrame) -> Timed:
        asked, encoded = clocked(lambda: encoder.encode_queries(query["text"].to_list()))
        run, searched = clocked(lambda: dense.search(asked, query["qid"].to_list(), HITS))
        return run, encoded, searched

    return by_vectors


def fused(found: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The sum after min-max, as `fuse` makes it."""
    both = lists.Lists.of(list(found))
    return pl.concat(lists.fuse(both.blocks(), both.qids, Recipe("minmax", (1.0,) * len(found), "zero"), HITS))


def latency(askers: Sequence[Asker], queries: pl.DataFrame) -> dict[str, list[float]]:
    """Milliseconds of encode, search, fuse and in all, for each query that counts."""
    spent: dict[str, list[float]] = {"encode": [], "search": [], "fuse": [], "in all": []}
    for number, row in enumerate([*range(min(WARM_UP, len(queries))), *range(min(MOST, len(queries)))]):
        answers = [ask(queries.slice(row, 1)) for ask in askers]
        runs = [run for run, _, _ in answers]
        fusing = clocked(lambda runs=runs: fused(runs))[1] if len(runs) > 1 and all(map(len, runs)) else 0.0
        if number >= WARM_UP:
            encoding, searching = (max(each[place] for each in answers) for place in (1, 2))
            whole = max(encoded + searched for _, encoded, searched in answers) + fusing
            for name, value in zip(spent, (encoding, searching, fusing, whole), strict=True):
                spent[name].append(value)
    return spent


def main() -> None:
    """Print the table, and write it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collection", type=Path)
    parser.add_argument("runs", nargs="+", help="name=RUN")
    parser.add_argument("--split", default="test")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    indexes.set_threads(1)
    queries = collections.read_queries(collections.queries_path(given.collection, given.split)).select("qid", "text")
    qrels = pl.read_parquet(given.collection / f"qrels.{given.split}.parquet")
    ask = cache(asker)
    rows = []
    for name, path in (pair.split("=", 1) for pair in given.runs):
        behind = indexes_of(Path(path))
        values = evaluate_run(pl.read_parquet(path), qrels, list(MEASURES.values()))
        row: dict[str, Any] = {"method": name, "bytes": sum(held.size for held in behind.values())}
        row |= {said: mean_of(values, measure) for said, measure in MEASURES.items()}
        for part, spent in latency([ask(each) for each in behind], queries).items():
            row |= {f"{part} p{share}": float(np.percentile(spent, share)) for share in (50, 95)}
        rows.append(row)
    table = pl.DataFrame(rows)
    if given.output:
        table.write_parquet(given.output)
    parts = ("encode", "search", "fuse", "in all")
    shown = [
        [row["method"], console.size(row["bytes"]), f"{row['bytes'] / 2**30:.4f}"]
        + [f"{100 * row[name]:.1f}" for name in MEASURES]
        + [f"{row[f'{part} p50']:.1f} {row[f'{part} p95']:.1f}" for part in parts]
        for row in rows
    ]
    console.table(["method", "memory", "GiB", *MEASURES, *(f"{part}, ms" for part in parts)], shown)
    console.result("Milliseconds of one query on one thread: p50 p95. A fused run asks both sides at once.")


if __name__ == "__main__":
    main()
