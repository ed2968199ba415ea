"""Time and loss of a search with impacts of 8 bits (`search --engine matrix-8bit`) relative to exact ones, one thread.

python benchmarks/impacts.py data/scifact=out/scifact-bm25 data/pydocs=out/pydocs-bm25

The loss is measured on the test queries of the collections. The time is the CPU time of 512 random queries of four
terms and 1,000 hits, in a million documents of random postings.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from ratios import Row, in_turns, ratios

from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.collections import collection as collections
from hybrid_cli.evaluation.measures import evaluate_run
from hybrid_cli.lexical.impacts import Impacts, Postings
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.lexical.keys import Bags

DOCUMENTS, TERMS, QUERIES, LENGTH = 1_000_000, 20_000, 512, 4
MEASURES = ["nDCG@10", "Recall@1000"]


def rounded(index: LexicalIndex) -> LexicalIndex:
    return LexicalIndex(index.impacts.rounded(), index.docids, index.language)


def loss(collection: Path, folder: Path) -> None:
    queries = collections.read_queries(collections.queries_path(collection, "test")).select("qid", "text")
    qrels = collections.read_qrels(collections.qrels_path(collection, "test"))
    index = open_bm25(folder)
    found = [each.search(queries, 1000) for each in (index, rounded(index))]
    first, second = (run.filter(pl.col("rank") <= 10).select("qid", "docid") for run in found)
    means = [
        dict(evaluate_run(run, qrels, MEASURES).group_by("measure").agg(pl.col("value").mean()).iter_rows())
        for run in found
    ]
    for measure in MEASURES:
        print(f"{collection.name}: {measure} {means[0][measure]:.4f} exact, {means[1][measure]:.4f} with 8 bits")
    print(f"{collection.name}: {len(first.join(second, on=['qid', 'docid'])) / len(first):.1%} of the top 10 are equal")


def random_index(draws: np.random.Generator) -> LexicalIndex:
    df = np.minimum(DOCUMENTS // 3, 2 * DOCUMENTS // (np.arange(TERMS) + 3)) + 5
    lists = [np.unique(draws.integers(0, DOCUMENTS, count)).astype(np.int32) for count in df]
    rows, indptr = np.concatenate(lists), np.concatenate(([0], np.cumsum([len(each) for each in lists])))
    tfs = draws.geometric(0.7, len(rows)).astype(np.int32)
    lengths = np.bincount(rows, tfs, DOCUMENTS).astype(np.int32)
    terms = pl.Series([f"{term:05d}" for term in range(TERMS)])
    docids = pl.Series("docid", [f"{row:07d}" for row in range(DOCUMENTS)])
    return LexicalIndex(Impacts.of(Postings.of(terms, indptr, rows, tfs, lengths), 0.9, 0.4), docids)


def main(words: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="*", metavar="COLLECTION=INDEX")
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args(words)
    for pair in given.collections:
        collection, _, index = pair.partition("=")
        loss(Path(collection), Path(index))
    draws = np.random.default_rng(0)
    exact = random_index(draws)
    terms = np.sort(draws.integers(20, 2000, (QUERIES, LENGTH)), 1).ravel().astype(np.int32)
    bags = Bags(np.arange(0, len(terms) + 1, LENGTH), terms, np.ones(len(terms), np.float32))
    indexes = {"exact": exact, "8 bits": rounded(exact)}
    tasks: dict[str, Callable[[], Any]] = {name: partial(index.keys, bags, 1000, 1) for name, index in indexes.items()}
    times, _ = in_turns({**tasks, "rounding": exact.impacts.rounded}, given.repeat, time.process_time)
    postings = len(exact.impacts.postings)
    print(f"{postings:,} postings: rounded in {1e3 * statistics.median(times['rounding']):,.0f} ms of CPU time")
    for name in tasks:
        print(f"{name:8} {1e3 * statistics.median(times[name]) / QUERIES:.3f} ms of CPU time per query")
    row = Row(
        f"search --engine matrix-8bit, {postings:,} random postings, CPU time",
        "exact impacts",
        ratios(times["exact"], times["8 bits"]),
        "",
        "impacts.py",
    )
    print(row)
    return [row]


if __name__ == "__main__":
    main()
