"""Time, memory and page size of `hybrid report` with two runs of 6,980 queries x 1,000 hits.

The data are those of benchmarks/evaluate.py: random runs, queries of 6 words, and as many passages of 56 words as
MS MARCO (`--passages 0`: without texts). The time covers the start of Python and all work; the best of several
repetitions counts.

    python benchmarks/report.py [--queries 6980] [--hits 1000] [--passages 8841823] [--folder DIR]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from evaluate import HYBRID, MEASURES, data_folder
from ratios import measured

GOAL_SECONDS, GOAL_BYTES = 20, 5_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=6980)
    parser.add_argument("--hits", type=int, default=1000)
    parser.add_argument("--passages", type=int, default=8_841_823)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with data_folder(options) as folder:
        report(folder, bool(options.passages), options.repeat)


def report(folder: Path, texts: bool, repeat: int) -> None:
    page = folder / "report.html"
    command = [sys.executable, "-c", HYBRID, "report", "--qrels", str(folder / "qrels.parquet")]
    command += [str(folder / "run.parquet"), str(folder / "other.parquet"), "-m", ",".join(MEASURES)]
    command += ["--complement", "run", "other", "--output", str(page), "--overwrite"]
    if texts:
        command += ["--queries", str(folder / "queries.parquet"), "--corpus", str(folder / "corpus")]
    seconds, cpu, gigabytes, _ = min(measured(command) for _ in range(repeat))
    size = page.stat().st_size
    print(f"report {seconds:6.1f} s (goal {GOAL_SECONDS})  {cpu:6.1f} s CPU  {gigabytes:5.2f} GB")
    print(f"page   {size / 1e6:6.2f} MB (goal {GOAL_BYTES / 1e6:.0f})")


if __name__ == "__main__":
    main()
