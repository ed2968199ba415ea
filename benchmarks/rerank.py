"""Pairs per second: `CrossEncoder.scores` of hybrid and `CrossEncoder.predict` of sentence-transformers.

Model (minilm with a new head), pairs (docstrings of the standard library, with the first words of another one as the
query), maximum length and batches are the same: 32 pairs of similar length, of at most 128 word pieces. The tools
alternate, so that a busy period of the machine affects both; the ratio is the median over rounds, of CPU time.

    python benchmarks/rerank.py --pairs 640 --rounds 5
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import sentence_transformers
import torch
from encode import BATCH, MAX_LENGTH, docstrings

from hybrid_cli.encoders.cross_encoder import CrossEncoder

QUERY_WORDS = 6


def pairs_of(count: int) -> pl.DataFrame:
    """Return pairs: query, title, text."""
    every = list(docstrings())
    texts = every[:: max(1, len(every) // count)][:count]
    queries = [" ".join(text.split()[:QUERY_WORDS]) for text in [*texts[7:], *texts[:7]]]
    return pl.DataFrame({"query": queries, "title": [""] * len(texts), "text": texts})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=640)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    pairs = pairs_of(arguments.pairs)
    rows = [(query, text) for query, _, text in pairs.iter_rows()]
    with tempfile.TemporaryDirectory() as name:
        CrossEncoder.load("minilm", device="cpu", train=True, max_length=MAX_LENGTH).save(Path(name))
        ours = CrossEncoder.load(name, device="cpu")
        theirs = sentence_transformers.CrossEncoder(name, device="cpu")
    ways: dict[str, Callable[[], np.ndarray]] = {
        "sentence-transformers": lambda: theirs.predict(rows, batch_size=BATCH),
        "hybrid": lambda: ours.scores(pairs, BATCH * MAX_LENGTH, BATCH)[0],
    }
    found = {name: score() for name, score in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, score in ways.items():
            begin = time.process_time()
            score()
            times[name].append(time.process_time() - begin)
    print(f"{len(pairs)} pairs, {torch.get_num_threads()} threads, {arguments.rounds} rounds, CPU time")
    for name in ways:
        ratios = [a / b for a, b in zip(times["sentence-transformers"], times[name], strict=True)]
        print(
            f"{name:24}{len(pairs) / statistics.median(times[name]):8.1f} pairs/s of CPU time"
            f"{statistics.median(ratios):7.2f} x ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    print(f"largest difference of two scores: {np.abs(found['hybrid'] - found['sentence-transformers']).max():.1e}")


if __name__ == "__main__":
    main()
