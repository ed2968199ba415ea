"""Speed of `hybrid label` on the sentences of a corpus, compared with Pyserini's batch_search.

Times of `hybrid label` include opening the index, splitting the corpus into sentences, sampling, analysis, search and
writing, in a process with a running JVM. Pyserini receives the texts of a part of the same queries, and keeps its hits
in memory. Both run in turn; medians over rounds. Memory is the peak of a separate process, for a quarter of the queries
and for all.

    python benchmarks/label.py [--collection FOLDER] [--queries N] [--depth 50] [--repeat 3] [--threads N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OPENAI_API_KEY", "none")  # pyserini.search.lucene does not import without one

import polars as pl
from bm25 import K1, B, processor
from ratios import in_turns

from hybrid_cli import console
from hybrid_cli.artifacts.examples import open_labels
from hybrid_cli.collections.sentences import Sentences
from hybrid_cli.commands import PreparePythonDocs
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.label import label
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.storage import layout

THEIR_QUERIES = 2000
PROGRAM = """
import re
from pathlib import Path
from hybrid_cli.cli import main
try:
    main()
except SystemExit as done:
    assert not done.code
print(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
"""  # ru_maxrss of a child process starts at the memory of its parent, so the child reads its own VmHWM


def compare(collection: Path, index: Path, scratch: Path, options: argparse.Namespace) -> None:
    from pyserini.search.lucene import LuceneSearcher

    output = scratch / "labels"
    chosen = {"queries_from": "all", "max_queries": options.queries, "depth": options.depth}

    def ours() -> pl.DataFrame:
        label(collection, output=output, index=index, threads=options.threads, overwrite=True, **chosen)
        return pl.concat(open_labels(output).tables())

    mine = ours()
    part = mine.sample(min(THEIR_QUERIES, len(mine)), seed=0)
    texts, qids = part["text"].to_list(), part["qid"].to_list()
    searcher = LuceneSearcher(str(index / layout.LUCENE))
    searcher.set_bm25(K1, B)

    def theirs() -> list[list[str]]:
        found = searcher.batch_search(texts, qids, options.depth, options.threads)
        return [[hit.docid for hit in found[qid]] for qid in qids]

    times, results = in_turns({"hybrid label": ours, "Pyserini batch_search": theirs}, options.repeat)
    counts = {"hybrid label": len(mine), "Pyserini batch_search": len(part)}
    rates = {name: count / statistics.median(times[name]) for name, count in counts.items()}
    print(f"\n{len(mine):,} sentences, depth {options.depth}, {options.threads} threads")
    for name, rate in rates.items():
        print(f"  {name:24} {rate:9,.0f} queries/s   hybrid is {rates['hybrid label'] / rate:5.1f} times as fast")
    same = sum(a == b for a, b in zip(part["docids"].to_list(), results["Pyserini batch_search"], strict=True))
    print(f"  Pyserini's lists are the same for {same:,} of {len(part):,} queries")


def compare_memory(collection: Path, index: Path, scratch: Path, options: argparse.Namespace) -> None:
    """Print the peak memory of the command for a quarter of the queries and for all."""
    whole = options.queries or Sentences(collection, "all", seed=0).count()["queries"]
    print("\npeak memory")
    for number in (whole // 4, whole):
        words = ["label", collection, "--index", index, "--queries-from", "all", "--max-queries", number, "-q"]
        words += ["--depth", options.depth, "--output", scratch / f"labels-{number}"]
        done = subprocess.run([sys.executable, "-c", PROGRAM, *map(str, words)], capture_output=True, check=True)
        print(f"  {number:9,} queries {console.size(int(done.stdout) * 1024):>10}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collection", type=Path, help="default: the docstrings of installed packages")
    parser.add_argument("--queries", type=int, help="default: every sentence")
    parser.add_argument("--depth", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    console.set_quiet(True)
    print(processor())
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        collection = options.collection or prepare(PreparePythonDocs(output=scratch / "collection"))
        index = index_bm25(collection, output=scratch / "bm25")
        compare(collection, index, scratch, options)
        compare_memory(collection, index, scratch, options)


if __name__ == "__main__":
    main()
