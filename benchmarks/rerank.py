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
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import sentence_transformers
import torch
from encode import BATCH, MAX_LENGTH, docstrings
from ratios import Row, in_turns, ratios

from hybrid_cli.encoders.cross_encoder import CrossEncoder

QUERY_WORDS = 6


def pairs_of(count: int) -> pl.DataFrame:
    """Return pairs: query, title, text."""
    every = list(docstrings())
    texts = every[:: max(1, len(every) // count)][:count]
    queries = [" ".join(text.split()[:QUERY_WORDS]) for text in [*texts[7:], *texts[:7]]]
    return pl.DataFrame({"query": queries, "title": [""] * len(texts), "text": texts})


def main(words: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=640)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args(words)
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
    times, found = in_turns(ways, arguments.rounds, time.process_time)
    print(f"{len(pairs)} pairs, {torch.get_num_threads()} threads, {arguments.rounds} rounds, CPU time")
    for name in ways:
        print(f"{name:24}{len(pairs) / statistics.median(times[name]):8.1f} pairs/s of CPU time")
    print(f"largest difference of two scores: {np.abs(found['hybrid'] - found['sentence-transformers']).max():.1e}")
    compared = ratios(times["sentence-transformers"], times["hybrid"])
    row = Row(f"rerank, MiniLM, {len(pairs)} pairs, CPU time", "CrossEncoder.predict", compared, "1.0", "rerank.py")
    print(row)
    return [row]


if __name__ == "__main__":
    main()
