"""Speed of `hybrid fuse` compared with ranx: load two runs of 6,980 queries x 1,000 hits, fuse by min-max, write.

Each tool runs in its own process, reads and writes Parquet; the time covers the start of Python and all work. The
output compares wall time, CPU time, peak memory and the fused runs: medians over `--repeat` rounds after a first one.

    python benchmarks/fuse.py [--queries 6980] [--hits 1000] [--repeat 2] [--folder DIR] [--no-ranx] [--learned]

With `--learned`, fusion with one weight per query is compared with min-max: 100 trees, trained on random values.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ratios import Row, Used, measured, ratios

HYBRID = "from hybrid_cli.cli import main; main()"
RANX = """
import sys
import pandas as pd
from ranx import Run, fuse
runs = []
for path in sys.argv[1:3]:
    frame = pd.read_parquet(path, columns=["qid", "docid", "score"])
    frame = frame.astype({"qid": object, "docid": object, "score": float})
    runs.append(Run.from_df(frame, q_id_col="qid", doc_id_col="docid", score_col="score"))
fused = fuse(runs, norm="min-max", method="wsum", params={"weights": [0.5, 0.5]})
fused.save(sys.argv[3])
"""
SHARED = 0.3  # fraction of the documents of a list that are also in the other list
PASSAGES = 8_841_823


def make_runs(folder: Path, queries: int, hits: int) -> None:
    """Write two runs with 30% common documents; scores are distributed like BM25 (gamma) and like cosines (normal)."""
    import numpy as np
    import polars as pl

    from hybrid_cli import storage
    from hybrid_cli.artifacts import Manifest
    from hybrid_cli.storage import SCHEMAS, Kind

    rng = np.random.default_rng(42)
    qids = np.sort(rng.choice(1_200_000, queries, replace=False)).astype(str)
    pool = np.stack([rng.choice(PASSAGES, 2 * hits, replace=False) for _ in range(queries)])
    common = round(hits * SHARED)
    first = pool[:, :hits]
    second = rng.permuted(
        np.concatenate([rng.permuted(first, axis=1)[:, :common], pool[:, hits:]], 1)[:, :hits], axis=1
    )
    scores = {"lexical": rng.gamma(20.0, 1.0, (queries, hits)), "dense": rng.normal(0.5, 0.1, (queries, hits))}
    for (name, values), docids in zip(scores.items(), (first, second), strict=True):
        run = pl.DataFrame(
            {
                "qid": np.repeat(qids, hits),
                "docid": docids.ravel().astype(str),
                "rank": np.tile(np.arange(1, hits + 1, dtype=np.int32), queries),
                "score": -np.sort(-values.astype(np.float32), axis=1).ravel(),
            }
        )
        manifest = Manifest(Kind.RUN, "benchmark", {}, {})
        storage.write_parquet(folder / f"{name}.parquet", [run.to_arrow()], SCHEMAS[Kind.RUN], manifest)


def agreement(ours: Path, theirs: Path) -> float:
    """Return the share of the top 10 documents of ranx that are also in the top 10 of hybrid."""
    import polars as pl

    mine = pl.read_parquet(ours).filter(pl.col("rank") <= 10).select("qid", "docid")
    other = pl.read_parquet(theirs).select(
        pl.col("q_id").cast(pl.String).alias("qid"), pl.col("doc_id").cast(pl.String).alias("docid"), "score"
    )
    best = other.filter(pl.col("score").rank("ordinal", descending=True).over("qid") <= 10)
    return len(best.join(mine, on=["qid", "docid"], how="semi")) / len(best)


def main(words: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=6980)
    parser.add_argument("--hits", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--no-ranx", action="store_true")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "dense.parquet").exists():
            make_runs(folder, options.queries, options.hits)
        rows = compare(folder, options.repeat, not options.no_ranx)
        return [replace(row, task=f"{row.task}, {options.queries:,} x {options.hits:,}") for row in rows]


def compare(folder: Path, repeat: int, with_ranx: bool) -> list[Row]:
    runs = [str(folder / "lexical.parquet"), str(folder / "dense.parquet")]
    ours, theirs = folder / "hybrid.parquet", folder / "ranx.parquet"
    python = [sys.executable, "-c"]
    arguments = ["fuse", *runs, "--method", "minmax", "--overwrite", "--output", str(ours)]
    commands = {"hybrid": [*python, HYBRID, *arguments], "ranx": [*python, RANX, *runs, str(theirs)]}
    found: dict[str, list[Used]] = {name: [] for name in commands if with_ranx or name != "ranx"}
    for _ in range(repeat + 1):
        for name, times in found.items():
            times.append(measured(commands[name]))
    for name, times in found.items():
        del times[0]  # ranx compiles code at its first call on a machine
        wall, processor, memory = (statistics.median(each) for each in zip(*(used[:3] for used in times), strict=True))
        print(f"{name:6} {wall:7.1f} s  {processor:7.1f} s processor  {memory:5.2f} GB", flush=True)
    if not with_ranx:
        return []
    print(f"of ranx's ten best documents of each query {agreement(ours, theirs):.4%} are hybrid's too")
    wall_ratios = ratios(*([times[0] for times in found[name]] for name in ("ranx", "hybrid")))
    return [Row("fuse, two runs, Parquet to Parquet", "ranx", wall_ratios, "10", "fuse.py")]


if __name__ == "__main__":
    main()
