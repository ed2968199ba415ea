"""Latency of single queries on one thread, separately for encoding, search and fusion.

The indexes are warm. A fused run searches its indexes in parallel, so its latency is that of the slowest, plus fusion
(SPAR, section 6).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from hybrid_cli import artifacts
from hybrid_cli.indexes.faiss import load_faiss, set_threads
from hybrid_cli.opening.dense import open_dense
from hybrid_cli.opening.exact import query_encoder
from hybrid_cli.opening.lexical import open_lexical, quantization
from hybrid_cli.storage import Kind

WARM_UP, QUERIES, HITS = 50, 1000, 100
PARTS = ("encode", "search", "fuse", "total")
PERCENTILES = (50, 95)

Timed = tuple[pl.DataFrame, float, float]  # run of one query, milliseconds of encoding and of search
Searcher = Callable[[pl.DataFrame], Timed]
Fuse = Callable[[Sequence[pl.DataFrame]], pl.DataFrame]


@contextmanager
def single_threaded() -> Iterator[Callable[[Path], Searcher]]:
    """Yield a function that opens the searcher of an index, once per index; restore the thread counts at the end."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    faiss_threads = load_faiss().omp_get_max_threads()
    set_threads(1)
    try:
        yield cache(open_searcher)
    finally:
        torch.set_num_threads(threads)
        set_threads(faiss_threads)


def open_searcher(index: Path) -> Searcher:
    """Return a function that encodes and searches for one query (qid, text)."""
    if artifacts.read_manifest(index).kind == Kind.LEXICAL_INDEX:
        lexical = open_lexical(index, device="cpu")
        learned = quantization(artifacts.read_manifest(index)) is not None

        def by_terms(query: pl.DataFrame) -> Timed:
            bags, read = _clocked(lambda: lexical.bags(query["text"].to_list()))
            run, searched = _clocked(lambda: lexical.search_bags(query["qid"], bags, HITS, 1))
            return (run, read, searched) if learned else (run, 0.0, read + searched)

        return by_terms
    dense = open_dense(index)
    encoder = query_encoder(dense, device="cpu")

    def by_vectors(query: pl.DataFrame) -> Timed:
        vectors, encoded = _clocked(lambda: encoder.encode_queries(query["text"].to_list()))
        run, searched = _clocked(lambda: dense.search(vectors, query["qid"].to_list(), HITS))
        return run, encoded, searched

    return by_vectors


def percentiles(searchers: Sequence[Searcher], queries: pl.DataFrame, fuse: Fuse) -> dict[str, float]:
    """Measure the latency of the first queries, after a warm-up.

    Args:
        searchers: one per index; see `open_searcher`.
        queries: qid, text.
        fuse: fuses the runs of one query.

    Returns:
        Milliseconds of each part at each percentile: `encode p50`, ..., `total p95`.
    """
    spent: dict[str, list[float]] = {part: [] for part in PARTS}
    warm_up = min(WARM_UP, len(queries))
    for number, row in enumerate([*range(warm_up), *range(min(QUERIES, len(queries)))]):
        times = _times(searchers, queries.slice(row, 1), fuse)
        if number >= warm_up:
            for part, value in zip(PARTS, times, strict=True):
                spent[part].append(value)
    return {f"{part} p{p}": float(np.percentile(times, p)) for part, times in spent.items() for p in PERCENTILES}


def _times(searchers: Sequence[Searcher], query: pl.DataFrame, fuse: Fuse) -> tuple[float, float, float, float]:
    """Return the milliseconds of each part for one query."""
    answers = [search(query) for search in searchers]
    parts = [run for run, _, _ in answers]
    fused = _clocked(lambda: fuse(parts))[1] if len(parts) > 1 and all(map(len, parts)) else 0.0
    encoded, searched = max(answer[1] for answer in answers), max(answer[2] for answer in answers)
    return encoded, searched, fused, max(answer[1] + answer[2] for answer in answers) + fused


def _clocked(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of `work` and its milliseconds."""
    start = time.perf_counter()
    result = work()
    return result, 1e3 * (time.perf_counter() - start)
