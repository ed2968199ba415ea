"""Forecast of storage, encoding time and search latency for large collections, from measured constants.

python benchmarks/forecast.py [--passages 1e9] [--machines 16] [--cores 32] [--gpus 8] [--gpu-tflops 50]

Everything is linear in the number of passages: a machine holds an equal part of the collection as one shard, and a
query is searched on all of them at once. Constants with a source in studies/performance-history.md were measured on
two cores of an AMD EPYC; the others are assumptions. Approximate indexes (IVF, HNSW) are faster than the exact search.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

# Measured (studies/performance-history.md): seconds of a core per query and million passages, with 1,000 hits.
BM25_SECONDS = 1.81e-3  # 277 queries/s on two million documents of 55 words, one thread
FLAT_SECONDS = 7.04e-3  # 384 dimensions, in blocks of 1,024 queries
POSTING_BYTES = 8  # two integers
# Assumptions.
POSTINGS = 40  # different words of a passage of 60 words
TEXT_BYTES = 360
ID_BYTES = 12
TOKENS = 80  # word pieces of a passage
LUCENE_SHARE = 0.6  # bytes of Lucene's index (positions, no stored text) relative to the matrix
OVERHEAD_SECONDS = 0.01  # per query: encoding of the query, network, merging of the shards
BYTES = {"flat": 4.0, "fp16": 2.0, "sq8": 1.0, "pq, 8 values per byte": 1 / 8}
MODELS = {"MiniLM, 6 layers, 384 values": (10.6e6, 384), "BERT base, 768 values": (85e6, 768)}


@dataclass(frozen=True)
class Cluster:
    """Machines that share a collection equally.

    Attributes:
        machines: number of machines.
        cores: cores per machine.
        gpus: GPUs per machine.
        tflops: sustained bf16 rate of a GPU in encoding, in TFLOP/s.
    """

    machines: int
    cores: int
    gpus: int
    tflops: float


def storage(passages: float) -> dict[str, float]:
    """Return bytes by part."""
    matrix = passages * POSTINGS * POSTING_BYTES
    parts = {"texts": passages * TEXT_BYTES, "ids": passages * ID_BYTES, "BM25 matrix": matrix}
    parts["Lucene index"] = LUCENE_SHARE * matrix
    for model, (_, dim) in MODELS.items():
        for kind, size in BYTES.items():
            parts[f"vectors, {model}, {kind}"] = passages * dim * size
    return parts


def encoding_hours(passages: float, cluster: Cluster) -> dict[str, float]:
    """Return hours of encoding by model: two operations per weight and token."""
    rate = cluster.machines * cluster.gpus * cluster.tflops * 1e12
    return {model: passages * TOKENS * 2 * weights / rate / 3600 for model, (weights, _) in MODELS.items()}


def latency(passages: float, cluster: Cluster) -> dict[str, float]:
    """Return seconds per query of a block, on all cores of all machines."""
    millions = passages / 1e6 / (cluster.machines * cluster.cores)
    found = {"BM25, matrix": OVERHEAD_SECONDS + millions * BM25_SECONDS}
    for model, (_, dim) in MODELS.items():
        found[f"exact, {model}"] = OVERHEAD_SECONDS + millions * FLAT_SECONDS * dim / 384
    return found


def assumptions(cluster: Cluster) -> list[str]:
    """Return what the forecast assumes without a measurement."""
    return [
        f"{POSTINGS} different words, {TOKENS} word pieces, {TEXT_BYTES} bytes of text and {ID_BYTES} of id a passage",
        f"Lucene's index: {LUCENE_SHARE:.0%} of the bytes of the matrix",
        f"encoding: {cluster.tflops:g} TFLOP/s per GPU, two operations per weight and word piece, no waiting for data",
        f"search: {cluster.machines * cluster.cores:,} cores at once, each as fast as one alone",
        f"{1000 * OVERHEAD_SECONDS:g} ms per query for its encoding, the network and the merging of lists",
    ]


def main() -> None:
    """Print the assumptions and three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=float, default=1e9)
    parser.add_argument("--machines", type=int, default=16)
    parser.add_argument("--cores", type=int, default=32)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--gpu-tflops", type=float, default=50.0)
    given = parser.parse_args()
    cluster = Cluster(given.machines, given.cores, given.gpus, given.gpu_tflops)
    print(
        f"{given.passages:,.0f} passages on {cluster.machines} machines with {cluster.cores} cores, {cluster.gpus} GPUs"
    )
    print("\nAssumptions, not measured:\n" + "\n".join(f"- {each}" for each in assumptions(cluster)))
    print("\n| Storage | in all (GB) | per machine (GB) |\n|---|--:|--:|")
    for name, size in storage(given.passages).items():
        print(f"| {name} | {size / 1e9:,.0f} | {size / 1e9 / cluster.machines:,.1f} |")
    print(f"\n| Encoding, {cluster.tflops:g} TFLOP/s per GPU | hours |\n|---|--:|")
    for name, hours in encoding_hours(given.passages, cluster).items():
        print(f"| {name} | {hours:.2f} |")
    print("\n| Search, 1,000 hits, in blocks of queries | ms per query |\n|---|--:|")
    for name, seconds in latency(given.passages, cluster).items():
        print(f"| {name} | {1000 * seconds:,.0f} |")


if __name__ == "__main__":
    main()
