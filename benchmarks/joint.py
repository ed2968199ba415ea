"""Latency of exact hybrid search as the corpus grows (ms per query), compared with dense search and BM25 search.

The postings of a real collection are repeated up to the number of documents. Vectors are random, which does not affect
the time of a matrix product. Queries are real and encoded in advance. One batch of queries is searched in each of the
three ways; the fastest of `--repeat` calls counts. The table has wall time and the CPU time of all threads, which
depends less on other programs.

    python benchmarks/joint.py COLLECTION BM25_INDEX [--sizes 6000,50000,200000,1000000] [--dim 384] [--hits 1000]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import polars as pl
import torch

from hybrid_cli import artifacts
from hybrid_cli.artifacts.opening import open_bm25, open_dense
from hybrid_cli.collections import collection
from hybrid_cli.commands import VectorIndex
from hybrid_cli.indexes.construction import build
from hybrid_cli.indexes.dense import DenseIndex, IndexInfo
from hybrid_cli.indexes.hybrid_search import HybridIndex
from hybrid_cli.indexes.shards import shard_path, write_shard
from hybrid_cli.lexical.impacts import Impacts, Postings
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.storage import Kind

SHARD = 50_000


def repeated(postings: Postings, count: int) -> Postings:
    """Return the postings of the first `count` documents of a corpus repeated as often as needed."""
    once = len(postings.lengths)
    copies = -(-count // once)
    df, own = postings.df, postings.rows
    places = np.repeat(postings.indptr[:-1] * (copies - 1), df) + np.arange(len(postings))
    rows, tfs = (np.empty(copies * len(postings), np.int32) for _ in range(2))
    for copy in range(copies):
        target = places + copy * np.repeat(df, df)
        rows[target], tfs[target] = own + copy * once, postings.tfs
    kept = rows < count
    ends = np.concatenate(([0], np.cumsum(kept)))[postings.indptr * copies]
    return Postings.of(postings.terms, ends, rows[kept], tfs[kept], np.tile(postings.lengths, copies)[:count])


def dense_index(folder: Path, docids: pl.Series, dim: int) -> DenseIndex:
    """Build a flat index of random vectors of length 1."""
    rng = np.random.default_rng(0)
    output = artifacts.open_output(folder, Kind.DENSE_INDEX, "encode", inputs={}, options={}, overwrite=True)
    with output.folder() as (work, counts):
        for number, begin in enumerate(range(0, len(docids), SHARD)):
            ids = docids[begin : begin + SHARD]
            write_shard(shard_path(work, number), ids.to_arrow(), unit(rng, len(ids), dim))
        factory = build(work, VectorIndex())
        counts |= IndexInfo(len(docids), dim, factory=factory).counts()
    return open_dense(folder)


def unit(rng: np.random.Generator, count: int, dim: int) -> np.ndarray:
    """Return random vectors [count, dim] of length 1."""
    drawn = rng.standard_normal((count, dim), np.float32)
    unit_length: np.ndarray = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return unit_length


def best_of(repeat: int, work: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU seconds of the fastest of several calls, after a warm-up call."""
    work()
    found = []
    for _ in range(repeat):
        begin = time.perf_counter(), time.process_time()
        work()
        found.append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
    return min(found)


def measure(args: argparse.Namespace, size: int, queries: pl.DataFrame, lexical: LexicalIndex) -> None:
    """Print one row of the table."""
    docids = pl.Series("docid", [f"d{number}" for number in range(size)])
    found = unit(np.random.default_rng(1), len(queries), args.dim)
    postings = repeated(lexical.impacts.postings, size)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        dense = dense_index(Path(folder) / "dense", docids, args.dim)
        bm25 = LexicalIndex(Impacts.of(postings, lexical.k1, lexical.b), docids)
        bm25.threads = args.threads
        joint, bags = HybridIndex((dense,), (1.0,), bm25, 0.1, threads=args.threads), bm25.prepare(queries)
        ways = {
            "joint": lambda: joint.hits(([found], bags), args.hits),
            "dense": lambda: dense.hits(found, args.hits),
            "BM25": lambda: bm25.search(queries, args.hits),
            "product": lambda: [torch.from_numpy(found) @ torch.from_numpy(block).T for block in dense.blocks(4096)],
        }
        times = {name: best_of(args.repeat, work) for name, work in ways.items()}
    cells = [f"{1e3 * wall / len(queries):.2f} ({1e3 * cpu / len(queries):.2f})" for wall, cpu in times.values()]
    rate = 2 * len(queries) * size * args.dim / times["product"][0] / 1e9
    alone = times["dense"][0] + times["BM25"][0]
    print(f"| {size:,} | {' | '.join(cells)} | {times['joint'][0] / alone:.2f} | {rate:.0f} |", flush=True)


def main() -> None:
    """Read the options, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", type=Path)
    parser.add_argument("bm25", type=Path)
    parser.add_argument("--sizes", default="6000,50000,200000,1000000")
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--hits", type=int, default=1000)
    parser.add_argument("--queries", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="folder for temporary files")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    faiss.omp_set_num_threads(args.threads)
    queries = collection.read_queries(collection.queries_path(args.collection, "train"))
    queries = queries.select("qid", "text").head(args.queries)
    lexical = open_bm25(args.bm25)
    print(f"{len(queries):,} queries, {args.hits} hits, {args.dim} dimensions, {args.threads} threads")
    print("milliseconds per query, wall (CPU)\n")
    print(
        "| Documents | exact hybrid | dense, flat | BM25 | matrix product alone | hybrid / (dense + BM25) | GFLOP/s |"
    )
    print("|---|---|---|---|---|---|---|")
    for size in map(int, args.sizes.split(",")):
        measure(args, size, queries, lexical)


if __name__ == "__main__":
    main()
