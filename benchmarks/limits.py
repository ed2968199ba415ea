"""The time of stages next to the least time that this machine needs for their bytes or products, on one thread.

    python benchmarks/limits.py [--vectors 50000] [--queries 256] [--rounds 5]

The limits are measured in the same turns: the rate at which the memory is read (the sum of a large array), and the rate
of a product of fp32 matrices. A ratio of .5 means that the stage takes twice the time of its limit. All times are CPU
times, which depend less on other programs than wall times.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from encode import MAX_LENGTH, docstrings
from impacts import LENGTH, random_index
from joint import dense_index
from ratios import Row, in_turns

from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.indexes.faiss import set_threads
from hybrid_cli.indexes.hybrid_search import HybridIndex
from hybrid_cli.indexes.shards import CPU_BATCH_TOKENS
from hybrid_cli.lexical.keys import Bags

READ_BYTES, SIDE, DIM, HITS = 1 << 28, 1536, 384, 1000
MEMORY, PRODUCT = "reading the memory", "matrix product in fp32"


def main(words: Sequence[str] | None = None) -> list[Row]:
    """Print one line per stage, and return its distance to the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=256)
    parser.add_argument("--passages", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    set_threads(1)
    array, square = np.ones(READ_BYTES // 8), torch.randn(SIDE, SIDE)
    tasks: dict[str, Callable[[], Any]] = {MEMORY: array.sum, PRODUCT: lambda: square @ square}
    work: dict[str, tuple[str, float]] = {MEMORY: (MEMORY, READ_BYTES), PRODUCT: (PRODUCT, 2 * SIDE**3)}

    def measured(name: str, limit: str, amount: float, task: Callable[[], Any]) -> None:
        tasks[name], work[name] = task, (limit, amount)

    with tempfile.TemporaryDirectory() as scratch:
        docids = pl.Series("docid", [f"d{row:07}" for row in range(options.vectors)])
        index = dense_index(Path(scratch) / "dense", docids, DIM)
        vectors = np.random.default_rng(1).standard_normal((options.queries, DIM)).astype(np.float32)
        size = f"{options.vectors:,} vectors of {DIM}"
        products, stored = 2.0 * options.queries * options.vectors * DIM, 4.0 * options.vectors * DIM
        measured(f"flat search, {size}, {options.queries} queries, {HITS:,} hits", PRODUCT, products,
                 partial(index.hits, vectors, HITS))  # fmt: skip
        measured(f"flat search, {size}, 1 query", MEMORY, stored, partial(index.hits, vectors[:1], HITS))
        joint = HybridIndex((index,), (1.0,), threads=1)
        measured(f"search --exact, {size}, {options.queries} queries, {HITS:,} hits", PRODUCT, products,
                 lambda: joint.hits(([vectors], None), HITS))  # fmt: skip
        for hits in (10, HITS):
            name, read, task = _bm25(options.queries, hits)
            measured(name, MEMORY, read, task)
        encoder, passages = (
            TransformerEncoder.load("minilm", device="cpu", dtype="fp32", doc_max_len=MAX_LENGTH),
            list(docstrings()),
        )
        passages = passages[:: max(1, len(passages) // options.passages)][: options.passages]
        measured(f"encode, MiniLM fp32, {len(passages)} passages", PRODUCT, _products(encoder, passages),
                 lambda: encoder.encode_documents([""] * len(passages), passages, CPU_BATCH_TOKENS))  # fmt: skip
        times, _ = in_turns(tasks, options.rounds, time.process_time)
    rows = []
    for name, seconds in times.items():
        limit, amount = work[name]
        if name == limit:
            print(f"{name}: {amount / statistics.median(seconds) / 1e9:.1f} G{'B' if limit == MEMORY else 'FLOP'}/s")
            continue
        least = [amount * rate / work[limit][1] for rate in times[limit]]
        shares = [a / b for a, b in zip(least, seconds, strict=True)]
        rows.append(Row(name, limit, shares, "", "limits.py"))
        print(rows[-1])
    return rows


def _bm25(queries: int, hits: int) -> tuple[str, float, Callable[[], object]]:
    """Return name, bytes of the postings of all terms, and search of random queries over random postings."""
    draws = np.random.default_rng(0)
    index = random_index(draws)
    terms = np.sort(draws.integers(20, 2000, (queries, LENGTH)), 1).ravel().astype(np.int32)
    bags = Bags(np.arange(0, len(terms) + 1, LENGTH), terms, np.ones(len(terms), np.float32))
    postings = index.impacts.postings
    read = postings.lows.itemsize + postings.tfs.itemsize
    name = f"BM25 search, {len(postings):,} postings, {queries} queries, {hits:,} hits"
    return name, float(read * postings.df[terms].sum()), partial(index.keys, bags, hits, 1)


def _products(encoder: TransformerEncoder, passages: Sequence[str]) -> float:
    """Return the operations of the matrix products for the tokens of texts, without padding."""
    tower = encoder.document_tower
    layers = [weight for name, weight in tower.backbone.named_parameters() if ".layer." in name and weight.ndim == 2]
    per_token = 2 * sum(weight.numel() for weight in layers)
    config: Any = tower.backbone.config
    width = config.hidden_size * config.num_hidden_layers
    lengths = map(len, tower.tokenize(list(passages), "document")[0])
    return float(sum(length * (per_token + 4 * length * width) for length in lengths))


if __name__ == "__main__":
    main()
