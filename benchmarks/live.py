"""Latency of one query at a time through a retriever of BM25 and a dense index, everything loaded, and of its parts.

python benchmarks/live.py [--queries 1000] [--threads 1,2] [--cpu] [--folder FOLDER --bm25 INDEX --dense INDEX]

Without indexes, those of the docstrings of the installed libraries are built in a folder of temporary files. The table
has the median and the 95th percentile, in wall time, or with `--cpu` in CPU time of all threads. The parts are
encoding, the searches of BM25 and of the vectors at the depth of the retriever, and fusion with the exact scores of the
documents that only one search returns. Each query runs through all tasks in turn: the encoder leaves no vectors in the
processor's caches, where a search alone finds them.
"""

from __future__ import annotations

import hybrid_cli.cli.startup  # noqa: F401  # as for a command, idle threads of PyTorch sleep

# isort: split
import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from ratios import Row

from hybrid_cli import open_index, open_retriever
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import PreparePythonDocs
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.retrieval.retriever import Retriever
from hybrid_cli.runs.given import queries_table
from hybrid_cli.runs.index import Allowed, Documents, Hits, Index, Rows, Scores
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare

ROUNDS, HITS, WARM_UP = 5, 10, 20
PARTS = ("encode", "BM25", "dense", "fusion")
WHOLE, WITH_TEXTS, LIMIT = "retriever, ids only", "retriever, title and text", 1.1


@dataclass(frozen=True)
class StoredHits(Index):
    """An index with stored hits of one query at a time, for the time of the fusion alone."""

    index: Index
    answers: dict[str, tuple[Any, Hits]]

    def store(self, text: str, k: int) -> None:
        """Store the hits of a query."""
        prepared = self.index.prepare(pl.DataFrame({"qid": ["0"], "text": [text]}))
        self.answers[text] = prepared, self.index.hits(prepared, k)

    @property
    def documents(self) -> Documents:
        """See `Index`."""
        return self.index.documents

    def prepare(self, queries: pl.DataFrame) -> tuple[Any, Hits]:
        """Return the stored hits of the query."""
        return self.answers[queries["text"][0]]

    def hits(self, prepared: tuple[Any, Hits], k: int) -> Hits:
        """Return the stored hits."""
        return prepared[1]

    def scores(self, prepared: tuple[Any, Hits], queries: Rows, rows: Rows) -> Scores:
        """See `Index`."""
        return self.index.scores(prepared[0], queries, rows)

    def within(self, allowed: Allowed) -> StoredHits:
        """Refuse, since the benchmark has no filter."""
        raise NotImplementedError


def tasks_of(index: Index) -> tuple[dict[str, Callable[[str], Any]], Callable[[str], None]]:
    """Return the tasks by name, each a function of the text of a query, and a function that prepares a query."""
    retriever = index
    assert isinstance(retriever, Retriever)
    postings, vectors = retriever.sides.values()
    assert isinstance(postings, LexicalIndex)
    stored = {name: StoredHits(side, {}) for name, side in retriever.sides.items()}
    fusion = Retriever(stored, retriever.recipe, retriever.depth)
    encoded: dict[str, np.ndarray] = {}

    def encode(text: str) -> np.ndarray:
        return vectors.prepare(pl.DataFrame({"qid": ["0"], "text": [text]}))  # type: ignore[no-any-return]

    def prepared(text: str) -> None:
        encoded[text] = encode(text)
        for side in stored.values():
            side.store(text, retriever.depth)

    return {
        "encode": encode,
        "BM25": lambda text: postings.hits(postings.bags([text]), retriever.depth),
        "dense": lambda text: vectors.hits(encoded[text], retriever.depth),
        "fusion": lambda text: fusion.search(text, HITS),
        WHOLE: lambda text: pl.concat(retriever.runs(queries_table(text), HITS)),
        WITH_TEXTS: lambda text: index.search(text, HITS),
    }, prepared


def measure(indexes: dict[str, Index], texts: Sequence[str], threads: int, clock: Callable[[], float]) -> list[Row]:
    """Print the latencies, and return the ratio of the parts to the retriever.

    Args:
        indexes: open retriever, and single indexes, by name.
        texts: queries.
        threads: number of threads.
        clock: returns seconds.
    """
    torch.set_num_threads(threads)
    tasks, prepared = tasks_of(indexes.pop("retriever"))
    tasks |= {f"{name}, title and text": index.search for name, index in indexes.items()}
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for number, text in enumerate([*texts[:WARM_UP], *texts]):
        prepared(text)
        for name, task in tasks.items():
            begin = clock()
            task(text)
            if number >= WARM_UP:
                times[name].append(1e3 * (clock() - begin))
    for name, spent in times.items():
        p50, p95 = np.quantile(spent, [0.5, 0.95])
        print(f"{threads} threads, {name}: p50 {p50:.2f} ms, p95 {p95:.2f} ms")
    rounds = {name: [np.median(part) for part in np.array_split(spent, ROUNDS)] for name, spent in times.items()}
    parts = np.sum([rounds[name] for name in PARTS], axis=0)
    print(f"{threads} threads, retriever / sum of its parts: {np.median(rounds[WHOLE] / parts):.3f}; goal {LIMIT}")
    return [
        Row(
            f"one query of a {name}, {threads} threads",
            "sum of its parts",
            (parts / rounds[name]).tolist(),
            goal,
            "live.py",
        )
        for name, goal in ((WHOLE, f"{1 / LIMIT:.2f}"), (WITH_TEXTS, "0.8"))
    ]


def main(words: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="collection")
    parser.add_argument("--bm25", type=Path)
    parser.add_argument("--dense", type=Path)
    parser.add_argument("--threads", default="1", help="numbers of threads, separated by commas")
    parser.add_argument("--cpu", action="store_true", help="CPU time of all threads")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        folder = options.folder or prepare(PreparePythonDocs(output=work / "pydocs"))
        bm25 = options.bm25 or index_bm25(folder, output=work / "bm25")
        dense = options.dense or encode(folder, model="minilm", doc_max_len=64, output=work / "dense")
        retriever = compose([bm25, dense], output=work / "retriever")
        texts = collections.read_queries(collections.queries_path(folder, "test"))["text"].to_list()[: options.queries]
        rows = []
        for threads in map(int, options.threads.split(",")):
            opened = {
                "retriever": open_retriever(retriever, threads=threads),
                "BM25": open_index(bm25, threads=threads),
                "dense": open_index(dense, threads=threads),
            }
            rows += measure(opened, texts, threads, time.process_time if options.cpu else time.perf_counter)
        return rows


if __name__ == "__main__":
    for row in main():
        print(row)
