"""Latency of single queries on one thread, separately for encoding, search and fusion.

The indexes are warm. A fused run searches its indexes in parallel, so its latency is that of the slowest, plus fusion
(SPAR, section 6).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli.indexes.faiss import load_faiss, set_threads
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.runs.index import Index

WARM_UP, QUERIES, HITS = 50, 1000, 100
PARTS = ("encode", "search", "fuse", "total")
PERCENTILES = (50, 95)

Timed = tuple[pl.DataFrame, float, float]  # run of one query, milliseconds of encoding and of search
Fuse = Callable[[Sequence[pl.DataFrame]], pl.DataFrame]


@contextmanager
def single_threaded() -> Iterator[None]:
    """Set one thread for PyTorch and FAISS, where they are installed; restore the thread counts at the end."""
    faiss_threads = load_faiss().omp_get_max_threads() if find_spec("faiss") else None
    set_threads(1)
    with ExitStack() as restored:
        restored.callback(set_threads, faiss_threads)
        if find_spec("torch"):
            import torch

            restored.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
        yield


def percentiles(indexes: Sequence[Index], queries: pl.DataFrame, fuse: Fuse) -> dict[str, float]:
    """Measure the latency of the first queries, after a warm-up.

    Args:
        indexes: open indexes; the analysis of a query is a part of its search.
        queries: qid, text.
        fuse: fuses the runs of one query.

    Returns:
        Milliseconds of each part at each percentile: `encode p50`, ..., `total p95`.
    """
    spent: dict[str, list[float]] = {part: [] for part in PARTS}
    warm_up = min(WARM_UP, len(queries))
    for number, row in enumerate([*range(warm_up), *range(min(QUERIES, len(queries)))]):
        times = _times(indexes, queries.slice(row, 1), fuse)
        if number >= warm_up:
            for part, value in zip(PARTS, times, strict=True):
                spent[part].append(value)
    return {f"{part} p{p}": float(np.percentile(times, p)) for part, times in spent.items() for p in PERCENTILES}


def _times(indexes: Sequence[Index], query: pl.DataFrame, fuse: Fuse) -> tuple[float, float, float, float]:
    """Return the milliseconds of each part for one query."""
    answers = [_timed(index, query) for index in indexes]
    parts = [run for run, _, _ in answers]
    fused = _clocked(lambda: fuse(parts))[1] if len(parts) > 1 and all(map(len, parts)) else 0.0
    encoded, searched = max(answer[1] for answer in answers), max(answer[2] for answer in answers)
    return encoded, searched, fused, max(answer[1] + answer[2] for answer in answers) + fused


def _timed(index: Index, query: pl.DataFrame) -> Timed:
    prepared, encoded = _clocked(lambda: index.prepare(query))
    run, searched = _clocked(lambda: index.table(index.hits(prepared, HITS), query["qid"]))
    analyzed = isinstance(index, LexicalIndex) and index.has_analyzer
    return (run, 0.0, encoded + searched) if analyzed else (run, encoded, searched)


def _clocked(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of `work` and its milliseconds."""
    start = time.perf_counter()
    result = work()
    return result, 1e3 * (time.perf_counter() - start)
