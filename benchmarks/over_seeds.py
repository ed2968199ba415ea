"""Means and deviations over seeds from what `hybrid evaluate --output` wrote, as a Markdown table.

    python benchmarks/over_seeds.py out/ablations/measurements.parquet

Runs are named VARIANT-SEED (or VARIANT alone); the deviation is the sample's, over the seeds' means.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import polars as pl


def main() -> None:
    """Print one row a variant, in the order of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements", type=Path)
    values = pl.read_parquet(parser.parse_args().measurements)
    variant = pl.col("run").str.replace(r"-\d+$", "").alias("variant")
    means = values.group_by("run", "measure", maintain_order=True).agg(pl.col("value").mean())
    seeds = means.group_by(variant, "measure", maintain_order=True).agg(
        mean=pl.col("value").mean(), deviation=pl.col("value").std(), seeds=pl.len()
    )
    measures = seeds["measure"].unique(maintain_order=True).to_list()
    print("| | seeds | " + " | ".join(measures) + " |")
    print("|---|---|" + "---|" * len(measures))
    for (name,), rows in seeds.group_by("variant", maintain_order=True):
        cells = [
            f"{row['mean']:.4f}" + (f" ± {row['deviation']:.4f}" if row["seeds"] > 1 else "")
            for row in rows.iter_rows(named=True)
        ]
        print(f"| {name} | {rows['seeds'][0]} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
