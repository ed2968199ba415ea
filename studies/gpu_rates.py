"""Rates and memory of encoding, training and flat search on one device, next to its limits.

    python studies/gpu_rates.py COLLECTION [--model minilm] --output gpu-rates.csv [--small]

The limits are measured on the same device: the rate of a product of bf16 matrices, and the rate at which memory is
read. The products of a transformer are 2 x weights x tokens (three times as many in training, four times with gradient
caching, which encodes twice), and those of attention, 4 x layers x width x length for a token. Flat search reads all
vectors once for a batch of queries. A training is timed by the difference of two lengths, without its start.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import polars as pl
import torch

from hybrid_cli.api import open_encoder
from hybrid_cli.collections.collection import corpus_path
from hybrid_cli.encoders.models import pick_device
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.lab import train

COLUMNS = ("task", "seconds", "amount", "unit", "rate", "limit", "share of the limit", "peak memory (MB)")


class Rates:
    """Measures tasks on a device, and keeps a row of each."""

    def __init__(self, device: str):
        self.on_gpu, self.rows = device.startswith("cuda"), list[dict[str, object]]()

    def seconds(self, task: Callable[[], object]) -> float:
        """Return the seconds of a task."""
        start = time.perf_counter()
        task()
        if self.on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def add(
        self,
        task: str,
        work: Callable[[], float],
        amount: float,
        unit: str,
        limit: float = float("nan"),
        rounds: int = 3,
    ) -> float:
        """Measure the least seconds of some calls of `work`, which returns its seconds; return the rate."""
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        seconds = min(work() for _ in range(rounds))
        memory = torch.cuda.max_memory_allocated() / 1e6 if self.on_gpu else float("nan")
        rate = amount / seconds
        self.rows.append(
            dict(zip(COLUMNS, (task, seconds, amount, unit, rate, limit, rate / limit, memory), strict=True))
        )
        print(f"{task}: {rate:.4g} {unit}/s, {rate / limit:.3f} of the limit, {memory:,.0f} MB", flush=True)
        return rate


def main() -> None:
    """Measure, and write one row per task."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("collection", type=Path)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    device = pick_device("auto")
    rates = Rates(device)

    side, count = (512, 2_000) if given.small else (8192, 2_000_000)
    matrix, vectors = (
        torch.randn(side, side, dtype=torch.bfloat16, device=device),
        torch.randn(count, 384, device=device),
    )
    size = 4.0 * vectors.numel()
    products = rates.add(
        "product of bf16 matrices", lambda: rates.seconds(lambda: matrix @ matrix), 2.0 * side**3, "operations"
    )
    reading = rates.add("reading memory", lambda: rates.seconds(vectors.sum), size, "bytes")
    queries = torch.randn(64, 384, device=device)
    search = partial(rates.seconds, lambda: torch.topk(queries @ vectors.T, 100))
    rates.add("flat search, 64 queries", search, size, "bytes", reading)

    encoder = open_encoder(given.model, dtype="bf16")
    assert isinstance(encoder, TransformerEncoder)
    texts = (
        pl.read_parquet(corpus_path(given.collection), columns=["text"])["text"]
        .head(64 if given.small else 5000)
        .to_list()
    )
    tower, longest = encoder.document_tower, encoder.contract.doc_max_len
    lengths = [len(ids) for ids in tower.tokenizer(texts, truncation=True, max_length=longest)["input_ids"]]
    weights = sum(each.numel() for name, each in tower.backbone.named_parameters() if "embeddings" not in name)
    attention = 4 * tower.backbone.config.num_hidden_layers * tower.backbone.config.hidden_size

    def operations(length: float) -> float:
        return 2 * weights * length + attention * length**2

    encode = partial(rates.seconds, lambda: encoder.encode_documents([""] * len(texts), texts))
    rates.add("encode, bf16", encode, sum(map(operations, lengths)), "operations", products)

    steps, batch, length = (2, 4, 16) if given.small else (20, 128, 96)
    some = zip(texts, [*texts[1:], texts[0]], strict=True)
    triples = [{"query": text[:2000], "positive": text[-2000:], "negatives": [other]} for text, other in some][
        : 2 * batch
    ]
    options = {"batch_size": batch, "query_max_len": length, "doc_max_len": length, "dtype": "bf16", "seed": 1}
    for name, more, passes in (("", {}, 3), (", gradient caching", {"chunk_size": max(2, batch // 4)}, 4)):

        def trained(steps: int, more: Mapping[str, object] = more) -> float:
            run = partial(train, given.model, triples, max_steps=steps, **options, **more)
            return min(rates.seconds(run) for _ in range(3))

        amount = passes * 3 * operations(length) * batch * steps
        seconds = lambda: trained(2 * steps) - trained(steps)  # noqa: E731
        rates.add(f"train-dense, bf16{name}", seconds, amount, "operations", products, rounds=1)

    with given.output.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        table.writerows(rates.rows)


if __name__ == "__main__":
    main()
