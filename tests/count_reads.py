"""Prints how many values a search reads in small and large corpora, as JSON; needs NUMBA_DISABLE_JIT=1.

Counted are postings, lengths, places in the tie order, and sums. The corpora have the same postings of the query,
spread over 1, 8 and 64 blocks of documents: few, and so many that a sample gives a first estimate of the worst hit and
sums of whole blocks are read.
"""

import json
import math
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli.lexical import kernels
from hybrid_cli.lexical.impacts import Impacts, Postings
from hybrid_cli.lexical.keys import Queries

BLOCKS, POSTINGS, HITS = (1, 8, 64), (300, 20_000), 20
reads = 0


class Counted(np.ndarray):
    """An array that counts the reads of its values."""

    def __getitem__(self, at: Any) -> Any:
        global reads
        found = super().__getitem__(at)
        reads += 0 if isinstance(found, np.ndarray) else 1
        return found


def search(documents: int, postings: int) -> int:
    global reads
    rng = np.random.default_rng(1)
    parts = [np.sort(rng.choice(documents, postings // 2, replace=False)).astype(np.int32) for _ in range(2)]
    rows, tfs = np.concatenate(parts), np.ones(postings, np.uint8)
    scale, order = rng.random(documents).astype(np.float32).view(Counted), np.arange(documents).view(Counted)
    lists = Postings.of(
        pl.Series(["a", "b"]), np.array([0, postings // 2, postings]), rows, tfs, np.ones(documents, np.int32)
    )
    counted = {name: getattr(lists, name).view(Counted) for name in ("lows", "starts", "highs", "tfs")}
    lists = replace(lists, **counted)
    impacts = Impacts(lists, math.nan, math.nan, np.ones(2, np.float32), scale)
    queries = Queries(np.array([0, 2]), np.array([0, 1], np.int32), np.array([2, 1], np.float32))
    counts, best = np.zeros(1, np.int32), np.zeros((1, HITS), np.uint64)
    bounds = impacts.bounds(queries.terms)
    reads = 0
    kernels.search(HITS, (order, None), queries, impacts.matrix, bounds, counts, best)
    assert counts[0] == HITS
    return reads


if __name__ == "__main__":
    own = {name: getattr(np, name) for name in dir(np)}
    counting = SimpleNamespace(**own | {"zeros": lambda *shape: np.zeros(*shape).view(Counted)})
    vars(kernels)["np"] = counting
    sys.stdout.write(json.dumps([[search(blocks * kernels.BLOCK, few) for blocks in BLOCKS] for few in POSTINGS]))
