"""Latency of one query at a time, with titles and texts: BM25, the encoder, a dense index, and a retriever of both.

python benchmarks/live.py [--queries 1000] [--folder out/pydocs --bm25 out/bm25 --dense out/dense]

Without indexes, those of the docstrings of the installed libraries are built in a folder of temporary files. The table
has the median and the 95th percentile; the ratio compares the retriever with its parts, one after another for each
query, in each of five rounds: the encoder leaves no vectors in the processor's caches, where a search alone finds them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from ratios import Row

from hybrid_cli import open_index, open_retriever
from hybrid_cli.collections import collection as collections
from hybrid_cli.opening.dense import open_dense
from hybrid_cli.opening.exact import query_encoder
from hybrid_cli.opening.searcher import open_searcher
from hybrid_cli.settings import PreparePythonDocs, SearchOptions
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare

ROUNDS = 5


def milliseconds(task: Callable[[str], Any], queries: Sequence[str]) -> np.ndarray:
    """Return the time of each query."""
    times = []
    for query in queries:
        begin = time.perf_counter()
        task(query)
        times.append(time.perf_counter() - begin)
    return 1e3 * np.array(times)


def measure(collection: Path, bm25: Path, dense: Path, retriever: Path, queries: int, threads: int) -> list[Row]:
    """Print the latencies, and return the ratio of the retriever to the sum of its parts."""
    torch.set_num_threads(threads)
    texts = collections.read_queries(collections.queries_path(collection, "test"))["text"].to_list()[:queries]
    options = SearchOptions(threads=threads)
    encoder, vectors = query_encoder(open_dense(dense)), open_dense(dense)
    kernels = open_searcher(bm25, options)
    lexical, alone = open_index(bm25, threads=threads), open_index(dense, threads=threads)
    both = open_retriever(retriever, threads=threads)
    stored = dict(zip(texts, encoder.encode_queries(texts), strict=True))
    tasks: dict[str, Callable[[str], Any]] = {
        "encoder alone": lambda text: encoder.encode_queries([text]),
        "search of BM25, ids only": lambda text: list(kernels.search(pl.DataFrame({"qid": ["0"], "text": [text]}), 10)),
        "search of vectors, ids only": lambda text: vectors.search(stored[text][None], ["0"], 10),
        "encoder and both searches": lambda text: (
            list(kernels.search(pl.DataFrame({"qid": ["0"], "text": [text]}), 10)),
            vectors.search(encoder.encode_queries([text]), ["0"], 10),
        ),
        "BM25, title and text": lambda text: lexical.search(text, 10),
        "dense, title and text": lambda text: alone.search(text, 10),
        "retriever, title and text": lambda text: both.search(text, 10),
    }
    times: dict[str, list[np.ndarray]] = {name: [] for name in tasks}
    for task in tasks.values():
        milliseconds(task, texts[:20])
    for part in np.array_split(np.arange(len(texts)), ROUNDS):
        for name, task in tasks.items():
            times[name].append(milliseconds(task, [texts[row] for row in part]))
    for name, parts in times.items():
        whole = np.concatenate(parts)
        print(f"{threads} threads, {name}: p50 {np.median(whole):.2f} ms, p95 {np.quantile(whole, 0.95):.2f} ms")
    medians = {name: np.array([np.median(part) for part in parts]) for name, parts in times.items()}
    ratio = (medians["encoder and both searches"] / medians["retriever, title and text"]).tolist()
    return [Row(f"one query of a retriever, {threads} threads", "encoder and both searches", ratio, "0.8", "live.py")]


def main(words: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="collection")
    parser.add_argument("--bm25", type=Path)
    parser.add_argument("--dense", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        folder = given.folder or prepare(PreparePythonDocs(output=work / "pydocs"))
        bm25 = given.bm25 or index_bm25(folder, output=work / "bm25")
        dense = given.dense or encode(folder, model="minilm", output=work / "dense")
        retriever = compose([bm25, dense], output=work / "retriever")
        return measure(folder, bm25, dense, retriever, given.queries, given.threads)


if __name__ == "__main__":
    for row in main():
        print(row)
