"""Search time of flat indexes with 32 and with 768 dimensions, on one thread.

    python benchmarks/dimensions.py [--vectors 200000] [--dims 768,384,32] [--hits 100] [--repeat 5]

Random vectors, searched through `DenseIndex`: 256 queries in a batch, and a single query. The fastest of several
repetitions counts. Times are CPU times, which depend less on other programs than wall times.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from joint import dense_index

from hybrid_cli import indexes

QUERIES = 256


def best(work: Callable[[], object], repeat: int) -> float:
    """Return the CPU milliseconds of the fastest call."""
    found = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return 1e3 * min(found)


def main() -> None:
    """Print one line per vector length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vectors", type=int, default=200_000)
    parser.add_argument("--dims", default="768,384,32")
    parser.add_argument("--hits", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    indexes.set_threads(1)
    docids = pl.Series("docid", [f"d{row}" for row in range(given.vectors)])
    names = [f"q{row}" for row in range(QUERIES)]
    print(f"{'dim':>5} {'ms/query':>9} {'ms, single':>14}")
    for dim in map(int, given.dims.split(",")):
        with tempfile.TemporaryDirectory() as scratch:
            index = dense_index(Path(scratch) / "index", docids, dim)
            queries = np.random.default_rng(1).standard_normal((QUERIES, dim)).astype(np.float32)
            together = best(partial(index.search, queries, names, given.hits), given.repeat) / QUERIES
            alone = best(partial(index.search, queries[:1], names[:1], given.hits), given.repeat)
        print(f"{dim:5} {together:9.3f} {alone:14.2f}")


if __name__ == "__main__":
    main()
