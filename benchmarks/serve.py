"""Queries per second and latency of `hybrid serve` under several clients, next to its kernels; its memory over time.

python benchmarks/serve.py RETRIEVER COLLECTION [--split test] [--clients 1,8,64] [--queries 1000] [--soak SECONDS]

Each client sends its next query when it has the answer to the last one, over a connection that stays open. Every query
is another text. The server has one thread. The limit of a column is the CPU time of its kernels alone, on one thread
and in batches of the mean size that the server had: the encoder, the search in the postings, the product with all
vectors. The share of the limit is the kernels' time divided by the CPU time of the server, so other programs on the
machine change it little. `--soak` then repeats the queries of the hybrid for some time; the table has the resident
memory at each tenth of it.
"""

from __future__ import annotations

import hybrid_cli.cli.startup  # noqa: F401  # NumPy has one thread; queries are encoded without PyTorch, as in the server

# isort: split
import argparse
import asyncio
import itertools
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import numpy as np
import polars as pl

from hybrid_cli import open_retriever
from hybrid_cli.collections import collection as collections
from hybrid_cli.indexes.dense import DenseIndex
from hybrid_cli.lexical import kernels
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.retrieval.retriever import Retriever

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
ROUNDS = 9


class Load(NamedTuple):
    """Milliseconds of each answer, wall seconds of all, and the number of errors."""

    times: np.ndarray
    seconds: float
    errors: int


class Server:
    """A server in a process of its own, with its CPU time, memory and batches."""

    def __init__(self, retriever: Path):
        words = [sys.executable, "-m", "hybrid_cli", "serve", str(retriever), "--port", "0", "--threads", "1"]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        addresses = (re.search(r"http://[^/]+:(\d+)/", line) for line in self.process.stderr)
        self.port = next((int(found[1]) for found in addresses if found), 0)
        if not self.port:
            raise SystemExit("the server did not start")

    @property
    def cpu(self) -> float:
        """CPU seconds of all threads so far."""
        values = Path(f"/proc/{self.process.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def resident(self) -> float:
        """Resident memory in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("utf-8")
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    @property
    def batches(self) -> np.ndarray:
        """Number of queries and of batches so far."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            text = answer.read().decode()
        return np.array(
            [float(text.partition(f"\nhybrid_batch_queries_{of} ")[2].split()[0]) for of in ("sum", "count")]
        )


async def _client(port: int, system: str, texts: Iterator[str], until: float, times: list[float]) -> int:
    """Send queries one after the other; append the milliseconds of each answer, and return the number of errors."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    errors = 0
    while time.monotonic() < until and (text := next(texts, None)) is not None:
        query = urlencode({"query": text, "system": system})
        begin = time.perf_counter()
        writer.write(f"GET /api/search?{query} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        await reader.readexactly(int(length[1]))
        times.append(1e3 * (time.perf_counter() - begin))
        errors += not head.startswith(b"HTTP/1.1 200")
    writer.close()
    return errors


def load(port: int, system: str, texts: Iterator[str], clients: int, until: float = np.inf) -> Load:
    """Let several clients send queries, until there are none or a time has come."""

    async def all_clients() -> list[int]:
        return await asyncio.gather(*(_client(port, system, texts, until, times) for _ in range(clients)))

    times, begin = list[float](), time.perf_counter()
    errors = sum(asyncio.run(all_clients()))
    return Load(np.array(times), time.perf_counter() - begin, errors)


def kernels_of(retriever: Retriever, texts: Sequence[str]) -> dict[str, float]:
    """Return the CPU milliseconds of the kernels of each column for a batch of queries, per query."""
    postings, vectors = retriever.sides.values()
    assert isinstance(postings, LexicalIndex)
    assert isinstance(vectors, DenseIndex)
    queries = pl.DataFrame({"qid": list(texts), "text": list(texts)})
    bags, encoded = postings.prepare(queries), vectors.prepare(queries)
    stored = np.array(next(vectors.blocks(1 << 40)))  # aligned, unlike those of the file
    order, bounds = postings.documents.sorted.numbers, postings.impacts.bounds(bags.terms)
    room = np.zeros(len(texts), np.int32), np.empty((len(texts), min(retriever.depth, len(order))), np.uint64)

    def search() -> None:
        kernels.search(room[1].shape[1], (order, None), *postings.kernel_arguments(bags), bounds, *room)

    parts = {
        "encoder": cpu_ms(lambda: vectors.prepare(queries)) / len(texts),
        "postings": cpu_ms(search) / len(texts),
        "product": cpu_ms(lambda: encoded @ stored.T) / len(texts),
    }
    dense = parts["encoder"] + parts["product"]
    return {"bm25": parts["postings"], "dense": dense, "hybrid": parts["postings"] + dense}


def cpu_ms(work: Callable[[], object]) -> float:
    """Return the median CPU time of some calls."""
    spent = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        work()
        spent.append(1e3 * (time.process_time() - begin))
    return float(np.median(spent[1:]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("retriever", type=Path)
    parser.add_argument("collection", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--clients", default="1,8,64", help="numbers of clients, separated by commas")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--soak", type=float, default=0)
    given = parser.parse_args(arguments)
    texts = collections.read_queries(collections.queries_path(given.collection, given.split))["text"].to_list()
    numbered = (f"{texts[number % len(texts)]} {number}" for number in itertools.count())
    retriever = open_retriever(given.retriever, threads=1)
    assert isinstance(retriever, Retriever)
    server = Server(given.retriever)
    try:
        print(f"{os.cpu_count()} cores, server: {server.resident:.0f} MiB")
        print(
            "| Column | Clients | Queries per second | p50 (ms) | p95 (ms) | p99 (ms) | Queries per batch "
            "| CPU (ms per query) | Limit (ms per query) | Share of the limit | Errors |"
        )
        print("|---|" + "--:|" * 10)
        for system, clients in itertools.product(("bm25", "dense", "hybrid"), map(int, given.clients.split(","))):
            load(server.port, system, itertools.islice(numbered, 5 * clients), clients)
            before, cpu = server.batches, server.cpu
            done = load(server.port, system, itertools.islice(numbered, given.queries), clients)
            cpu = 1e3 * (server.cpu - cpu) / len(done.times)
            queries, batches = server.batches - before
            mean = max(1, round(queries / batches))
            limit = kernels_of(retriever, list(itertools.islice(numbered, mean)))[system]
            values = [f"{value:.1f}" for value in np.percentile(done.times, [50, 95, 99])]
            row = [system, clients, f"{len(done.times) / done.seconds:.0f}", *values, f"{queries / batches:.1f}"]
            row += [f"{cpu:.2f}", f"{limit:.2f}", f"{limit / cpu:.2f}", done.errors]
            print(f"| {' | '.join(map(str, row))} |", flush=True)
        for part in range(11 if given.soak else 0):
            until = time.monotonic() + (given.soak / 10 if part else 0)
            done = load(server.port, "hybrid", numbered, 8, until)
            memory = f"{server.resident:.0f} MiB, {len(done.times):,} answers, {done.errors} errors"
            print(f"{part * given.soak / 10:.0f} s: {memory}", flush=True)
    finally:
        server.process.terminate()
        server.process.wait()


if __name__ == "__main__":
    if not ONE_THREAD.items() <= os.environ.items():  # read when the libraries are imported
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    main()
