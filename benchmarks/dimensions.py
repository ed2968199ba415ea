"""Search time of flat indexes with 32 and with 768 dimensions, on one thread.

    python benchmarks/dimensions.py [--vectors 200000] [--dims 768,384,32] [--hits 100] [--repeat 5]

Random vectors, searched through `DenseIndex`: 256 queries in a batch, and a single query, all lengths in turn; medians
over rounds. Times are CPU times, which depend less on other programs than wall times.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from joint import dense_index
from ratios import Row, in_turns, ratios

from hybrid_cli.indexes.faiss import set_threads

QUERIES = 256


def main(words: Sequence[str] | None = None) -> list[Row]:
    """Print one line per vector length; compare the shortest with the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vectors", type=int, default=200_000)
    parser.add_argument("--dims", default="768,384,32")
    parser.add_argument("--hits", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args(words)
    set_threads(1)
    docids = pl.Series("docid", [f"d{row}" for row in range(given.vectors)])
    with tempfile.TemporaryDirectory() as scratch:
        found: dict[str, Callable[[], object]] = {}
        for dim in map(int, given.dims.split(",")):
            index = dense_index(Path(scratch) / str(dim), docids, dim)
            queries = np.random.default_rng(1).standard_normal((QUERIES, dim)).astype(np.float32)
            found[f"{QUERIES} queries, {dim} values"] = partial(index.hits, queries, given.hits)
            found[f"1 query, {dim} values"] = partial(index.hits, queries[:1], given.hits)
        times, _ = in_turns(found, given.repeat, time.process_time)
    for name, seconds in times.items():
        print(f"{name:24} {1e3 * statistics.median(seconds) / int(name.split()[0]):9.3f} ms of CPU time per query")
    first, last = given.dims.split(",")[0], given.dims.split(",")[-1]
    return [
        Row(
            f"search of {given.vectors:,} flat vectors of {last} values, {asked} at a time, CPU time",
            f"{first} values",
            ratios(times[f"{asked}, {first} values"], times[f"{asked}, {last} values"]),
            "8",
            "dimensions.py",
        )
        for asked in (f"{QUERIES} queries", "1 query")
    ]


if __name__ == "__main__":
    main()
