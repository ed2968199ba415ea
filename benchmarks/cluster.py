"""Speed of `encode` on a Ray cluster of this machine relative to one process on the same cores, start-up aside.

python benchmarks/cluster.py [--collection FOLDER] [--documents 2048] [--workers 1] [--doc-max-len 64] [--repeats 3]

One process with N threads and N workers with one thread each encode the same documents in turn, in shards of 256. The
time from the first shard to the last leaves out the start of Ray and the loading of the model; of several workers, it
also leaves out the other shards that were computed with the first, so the default is one. CPU time is that of the
command and all its processes, Ray's included: other programs affect it less than the wall-clock time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
from ratios import Row

from hybrid_cli import console
from hybrid_cli.collections.collection import corpus_path
from hybrid_cli.commands import PrepareFiles, PreparePythonDocs
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.prepare import prepare

SHARD = 256


def seconds(corpus: Path, output: Path, **options: Any) -> tuple[float, float]:
    """Encode a corpus; return wall-clock and CPU seconds of all its processes, from the first shard to the last."""
    module = import_module("hybrid_cli.indexes.shards")
    write, noted = module.write_shard, []

    def note(*values: Any, **facts: int) -> None:
        write(*values, **facts)
        process = psutil.Process()
        used = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        noted.append((time.monotonic(), sum(each.user + each.system for each in used)))

    with patch.object(module, "write_shard", note):
        encode(corpus, output=output, shard_size=SHARD, dtype="fp32", overwrite=True, **options)
    return noted[-1][0] - noted[0][0], noted[-1][1] - noted[0][1]


def main(words: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collection", type=Path, help="default: the docstrings of installed packages")
    parser.add_argument("--documents", type=int, default=2048)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--doc-max-len", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args(words)
    console.set_quiet(True)
    ratios: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        sample = Path(folder) / "sample"
        collection = given.collection or prepare(PreparePythonDocs(output=Path(folder) / "docs"))
        prepare(PrepareFiles([corpus_path(collection)], sample=given.documents, output=sample))
        shared = {"corpus": sample, "output": Path(folder) / "index", "doc_max_len": given.doc_max_len}
        for number in range(given.repeats):
            local = seconds(**shared, threads=given.workers)
            ray = seconds(**shared, threads=1, ray_address="local", ray_workers=given.workers)
            ratios.append((ray[0] / local[0], ray[1] / local[1]))
            shown = [f"{wall:.1f} s ({cpu:.1f} s of CPU)" for wall, cpu in (local, ray)]
            print(f"{number + 1}: one process {shown[0]}, Ray {shown[1]}", flush=True)
    wall, cpu = (statistics.median(each) for each in zip(*ratios, strict=True))
    print(
        f"{given.documents:,} documents, {given.workers} cores: Ray takes {wall:.2f} of the time, {cpu:.2f} of the CPU"
    )
    plural = "s" * (given.workers > 1)
    task = f"encode on Ray, {given.workers} worker{plural}, {given.documents:,} documents"
    peer = f"one process of {given.workers} thread{plural}"
    return [
        Row(task, peer, [1 / each[0] for each in ratios], "0.87", "cluster.py"),
        Row(f"{task}, CPU time", peer, [1 / each[1] for each in ratios], "", "cluster.py"),
    ]


if __name__ == "__main__":
    main()
