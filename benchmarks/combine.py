"""Cost of a combination: encoding with two models at once or in turn, and search with vectors of twice the length.

    python benchmarks/combine.py [--documents 400] [--vectors 200000] [--repeat 3]

Both encoders are MiniLM, the texts are docstrings of scipy, and the searched vectors are random. The alternatives run
in turn; the result is the median of the ratios.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import scipy
import torch

from hybrid_cli.collections.readers import python_docs
from hybrid_cli.encoders.composite import Combination, CombinationRecipe
from hybrid_cli.encoders.models import open_encoder
from hybrid_cli.indexes.faiss import load_faiss

QUERIES, HITS = 256, 1000


def ratio(ours: Callable[[], object], theirs: Sequence[Callable[[], object]], repeat: int) -> float:
    """Return the median over the repetitions of our seconds divided by the sum of theirs."""
    found = []
    for _ in range(repeat):
        seconds = []
        for work in (ours, *theirs):
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
        found.append(seconds[0] / sum(seconds[1:]))
    return statistics.median(found)


def main() -> None:
    """Print both ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--vectors", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads")
    found = list(python_docs.read_package("scipy", Path(scipy.__file__).parent))[: given.documents]
    titles, texts = [document.name for document in found], [f"{d.summary} {d.rest}" for d in found]
    parts = [open_encoder("minilm", device="cpu", dtype="auto", overrides={"doc_max_len": 128}) for _ in range(2)]
    both = Combination(CombinationRecipe(), parts)
    parts[0].encode_documents(titles[:32], texts[:32])  # warm-up
    times = ratio(
        lambda: both.encode_documents(titles, texts),
        [partial(part.encode_documents, titles, texts) for part in parts],
        given.repeat,
    )
    print(f"encoding {len(texts)} documents with both / with each in turn: {times:.3f} (goal 1.05)")
    rng = np.random.default_rng(0)
    long = rng.standard_normal((given.vectors, both.dim), dtype=np.float32)
    short = np.ascontiguousarray(long[:, : parts[0].dim])
    faiss = load_faiss()  # hybrid always uses BLAS
    flat, base = faiss.IndexFlatIP(both.dim), faiss.IndexFlatIP(parts[0].dim)
    flat.add(long)
    base.add(short)
    times = ratio(lambda: flat.search(long[:QUERIES], HITS), [lambda: base.search(short[:QUERIES], HITS)], given.repeat)
    print(f"searching {given.vectors:,} vectors of {both.dim} / of {parts[0].dim} values: {times:.3f} (goal 2.1)")


if __name__ == "__main__":
    main()
