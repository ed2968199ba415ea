"""False alarms and power of `hybrid gate` on real pairs of runs; it measures no speed.

python benchmarks/gate.py [NAME=QRELS:FIRST:SECOND ...] [--queries 50,100,500] [--repeats 1000] [--seed 42]

Each NAME is a pair of runs of one collection; without any, three BM25 runs of the docstrings of rich and polars are
made. Queries are drawn with replacement. False alarms: the differences get random signs, so there is no true change;
the gate tests MRR@10, nDCG@10 and R@100 (Holm). Power: signs of the differences of nDCG@10 are drawn such that the
expected loss has the given size, with `--max-drop 0`; the last column has the loss that the gate calls detectable.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from ratios import Row

from hybrid_cli import console
from hybrid_cli.evaluation import evaluate_queries
from hybrid_cli.evaluation.gate import smallest_drop
from hybrid_cli.evaluation.significance import ALPHA, holm, sign_flip

MEASURES = ("MRR@10", "nDCG@10", "R@100")
MAIN = MEASURES.index("nDCG@10")
LOSSES = (0.005, 0.01, 0.02, 0.03, 0.05)
TOLERANCE = 0.01  # the default of --max-drop
PACKAGES = ("rich", "polars")


def read(qrels: Path, run: Path) -> np.ndarray:
    """Return the values of a run, [queries, measures]."""
    values = evaluate_queries(run, qrels, MEASURES).pivot(on="measure", index="qid", values="value").sort("qid")
    return values.select(MEASURES).to_numpy()


def own_pairs(folder: Path) -> Iterator[str]:
    """Make runs of a small collection, and yield the pairs."""
    from hybrid_cli.commands import PreparePythonDocs
    from hybrid_cli.stages.index_bm25 import index_bm25
    from hybrid_cli.stages.prepare import prepare
    from hybrid_cli.stages.search import search

    data = prepare(PreparePythonDocs(package=PACKAGES, output=folder / "data"))
    index = index_bm25(data, output=folder / "bm25")
    runs = {}
    for name, k1, b in (("default", 0.9, 0.4), ("lucene", 1.2, 0.75), ("extreme", 5.0, 1.0)):
        runs[name] = folder / f"{name}.parquet"
        search(data, split="train", index=index, k1=k1, b=b, hits=100, output=runs[name])
    for first, second in (("default", "lucene"), ("default", "extreme"), ("lucene", "extreme")):
        yield f"{first}-{second}={data / 'qrels.train.parquet'}:{runs[first]}:{runs[second]}"


def false_alarms(losses: np.ndarray, queries: int, repeats: int, rng: np.random.Generator) -> tuple[float, float]:
    """Return the shares of alarms without a true change, with tolerance 0 and the default.

    Args:
        losses: [queries, measures] of a real pair.
        queries: queries drawn for each repeat.
        repeats: number of repeats.
        rng: random generator.
    """
    rows = rng.integers(0, len(losses), (queries, repeats))
    signs = rng.choice([-1.0, 1.0], (queries, repeats))
    shares = []
    for tolerance in (0.0, TOLERANCE):
        p = np.array([sign_flip(column[rows] * signs - tolerance, greater=True) for column in losses.T])
        shares.append(float(np.mean([holm(each).min() < ALPHA for each in p.T])))
    return shares[0], shares[1]


def power(losses: np.ndarray, size: float, queries: int, repeats: int, rng: np.random.Generator) -> float | None:
    """Return the share of detected losses of a size; None if the differences are smaller than that.

    Args:
        losses: [queries] of a real pair, by one measure.
        size: expected loss.
        queries: queries drawn for each repeat.
        repeats: number of repeats.
        rng: random generator.
    """
    amount = np.abs(losses)
    if size > amount.mean():
        return None
    drawn = amount[rng.integers(0, len(amount), (queries, repeats))]
    signs = np.where(rng.random((queries, repeats)) < (1 + size / amount.mean()) / 2, 1.0, -1.0)
    return float((sign_flip(drawn * signs, greater=True) < ALPHA).mean())


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def table(titles: Sequence[str], rows: Sequence[str]) -> str:
    """Return a table in Markdown."""
    return "\n".join([f"| {' | '.join(titles)} |", f"|---|{'--:|' * (len(titles) - 1)}", *rows])


def main(words: Sequence[str] | None = None) -> list[Row]:
    """Print two tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="*")
    parser.add_argument("--queries", default="50,100,500")
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=42)
    given = parser.parse_args(words)
    console.set_quiet(True)
    rng = np.random.default_rng(given.seed)
    numbers = [int(number) for number in given.queries.split(",")]
    alarms, detected = [], []
    with tempfile.TemporaryDirectory() as folder:
        for pair in given.pairs or own_pairs(Path(folder)):
            name, _, paths = pair.partition("=")
            qrels, *runs = map(Path, paths.split(":"))
            first, second = (read(qrels, run) for run in runs)
            losses = first - second
            deviation = float(np.sqrt((losses[:, MAIN] ** 2).mean()))  # of differences with random signs
            start = f"| {name} | {deviation:.3f} | {deviation / second[:, MAIN].std():.2f} |"
            for queries in numbers:
                without, tolerant = false_alarms(losses, queries, given.repeats, rng)
                alarms.append(f"{start} {queries} | {without:.1%} | {tolerant:.1%} |")
                drop = smallest_drop(deviation, queries)
                assert drop is not None
                sizes = [power(losses[:, MAIN], size, queries, given.repeats, rng) for size in (*LOSSES, drop)]
                detected.append(
                    f"| {name} | {deviation:.3f} | {queries} | {' | '.join(map(share, sizes))} ({drop:.3f}) |"
                )
                print(".", end="", flush=True)
    titles = ["Pair", "Deviation", "of the values", "Queries", "False alarms", "with --max-drop .01"]
    print("\n\n" + table(titles, alarms))
    print("\n" + table(["Pair", "Deviation", "Queries", *map(str, LOSSES), "Detectable"], detected))
    return []


if __name__ == "__main__":
    main()
