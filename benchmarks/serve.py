"""Latency of `hybrid serve` under several clients, and its memory over time.

python benchmarks/serve.py RETRIEVER COLLECTION [--split test] [--clients 8] [--queries 1000] [--soak SECONDS]

Each client sends its next query when it has the answer to the last one. Every query is another text. `--soak` then
repeats the queries of the hybrid for some time; the table has the resident memory at each tenth of it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

import numpy as np

from hybrid_cli.collections import collection as collections


def started(retriever: Path) -> tuple[subprocess.Popen[str], int]:
    """Return a server and its port."""
    words = [sys.executable, "-m", "hybrid_cli", "serve", str(retriever), "--port", "0"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"http://[^/]+:(\d+)/", line):
            return process, int(found[1])
    raise SystemExit("the server did not start")


def load(port: int, system: str, texts: Iterator[str], clients: int, until: float) -> tuple[np.ndarray, int]:
    """Return the milliseconds of all answers, and the number of errors."""
    times, errors, lock = list[float](), list[int](), threading.Lock()

    def client() -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        while time.monotonic() < until:
            with lock:
                text = next(texts, None)
            if text is None:
                return
            begin = time.perf_counter()
            connection.request("GET", "/api/search?" + urlencode({"query": text, "system": system}))
            answer = connection.getresponse()
            answer.read()
            times.append(1e3 * (time.perf_counter() - begin))
            errors.extend([answer.status] if answer.status != 200 else [])

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return np.array(times), len(errors)


def resident(process: int) -> float:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{process}/status").read_text("utf-8")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("retriever", type=Path)
    parser.add_argument("collection", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--soak", type=float, default=0)
    given = parser.parse_args(arguments)
    texts = collections.read_queries(collections.queries_path(given.collection, given.split))["text"].to_list()
    process, port = started(given.retriever)
    try:
        print(f"{os.cpu_count()} cores, {given.clients} clients")
        print("| Column | Queries | p50 (ms) | p95 (ms) | Queries per second | Errors |\n|---|--:|--:|--:|--:|--:|")
        for system in ("bm25", "hybrid"):
            numbered = (f"{texts[number % len(texts)]} {number}" for number in itertools.count())
            load(port, system, itertools.islice(numbered, 5 * given.clients), given.clients, np.inf)
            begin = time.perf_counter()
            times, errors = load(port, system, itertools.islice(numbered, given.queries), given.clients, np.inf)
            rate = len(times) / (time.perf_counter() - begin)
            middle, high = np.percentile(times, [50, 95])
            print(f"| {system} | {len(times):,} | {middle:.1f} | {high:.1f} | {rate:.0f} | {errors} |", flush=True)
        for part in range(11 if given.soak else 0):
            answered, errors = 0, 0
            if part:
                endless = (f"{texts[number % len(texts)]} {part} {number}" for number in itertools.count())
                until = time.monotonic() + given.soak / 10
                times, errors = load(port, "hybrid", endless, given.clients, until)
                answered = len(times)
            memory = f"{resident(process.pid):.0f} MiB"
            print(f"{part * given.soak / 10:.0f} s: {memory}, {answered:,} answers, {errors} errors", flush=True)
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
