"""Means and deviations over seeds from what `hybrid evaluate --output` wrote, as a Markdown table.

    python benchmarks/over_seeds.py out/ablations/measurements.parquet
    python benchmarks/over_seeds.py out/roc/roc/measurements.parquet --sparse bm25 --baseline bm25+dense,bm25+clear

Runs are named VARIANT-SEED (or VARIANT alone), sums with BM25 `bm25+VARIANT-SEED`; the deviation is the sample's, over
the seeds' means. `--sparse` adds the RoC at the cutoff of `Success@k`, of the dense side also in the row of its sum.
`--baseline` marks what differs from those variants: paired t-tests on each query's mean over the seeds, Bonferroni
over the comparisons of a measure (RoC 4.1).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import polars as pl

from hybrid_cli.evaluation.significance import compare

VARIANT = pl.col("run").str.replace(r"-\d+$", "")
ALPHA = 0.05


def complementarity(values: pl.DataFrame, sparse: str) -> pl.DataFrame:
    """run, measure, value: the share of the queries that a run's dense side finds and `sparse` does not."""
    success = values.filter(pl.col("measure").str.starts_with("Success@"))
    cutoff = success["measure"][0].removeprefix("Success@")
    found = success.select("run", "qid", found=pl.col("value") > 0)
    theirs = found.filter(run=sparse).select("qid", known="found")
    dense = found.filter(~pl.col("run").str.starts_with(f"{sparse}+") & (pl.col("run") != sparse)).join(
        theirs, on="qid"
    )
    ratio = dense.group_by("run").agg(value=(pl.col("found") & ~pl.col("known")).sum() / pl.col("found").sum())
    sums = ratio.with_columns(run=f"{sparse}+" + pl.col("run"))
    return pl.concat([ratio, sums]).select("run", measure=pl.lit(f"RoC@{cutoff}"), value="value")


def marks(values: pl.DataFrame, baselines: list[str]) -> dict[tuple[str, str], str]:
    """(variant, measure) -> the letters of the baselines it is above, with a minus those it is below."""
    each = values.group_by(VARIANT.alias("run"), "measure", "qid", maintain_order=True).agg(pl.col("value").mean())
    found = compare(each, baselines, correction="bonferroni").filter(pl.col("p_t_corrected") < ALPHA)
    letters: dict[tuple[str, str], str] = {}
    for run, measure, baseline, difference in found.select("run", "measure", "baseline", "difference").iter_rows():
        letter = ("" if difference > 0 else "-") + "abcdefgh"[baselines.index(baseline)]
        letters[run, measure] = letters.get((run, measure), "") + letter
    return letters


def main() -> None:
    """Print one row a variant, in the order of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements", type=Path)
    parser.add_argument("--sparse", help="the run whose complement is measured")
    parser.add_argument("--baseline", default="", help="variants to test against")
    arguments = parser.parse_args()
    values = pl.read_parquet(arguments.measurements)
    baselines = [name for name in arguments.baseline.split(",") if name]
    means = values.group_by("run", "measure", maintain_order=True).agg(pl.col("value").mean())
    if arguments.sparse:
        means = pl.concat([complementarity(values, arguments.sparse), means], how="vertical_relaxed")
    seeds = means.group_by(VARIANT.alias("variant"), "measure", maintain_order=True).agg(
        mean=pl.col("value").mean(), deviation=pl.col("value").std(), seeds=pl.len()
    )
    cells = {
        (row["variant"], row["measure"]): f"{row['mean']:.4f}"
        + (f" ± {row['deviation']:.4f}" if row["seeds"] > 1 else "")
        for row in seeds.iter_rows(named=True)
    }
    letters = marks(values, baselines) if baselines else {}
    measures = means["measure"].unique(maintain_order=True).to_list()
    print("| | seeds | " + " | ".join(measures) + " |")
    print("|---|---|" + "---|" * len(measures))
    for variant, count in (
        values.group_by(VARIANT.alias("variant"), maintain_order=True).agg(pl.col("run").n_unique()).iter_rows()
    ):
        row = [f"{cells.get((variant, name), '')} {letters.get((variant, name), '')}".strip() for name in measures]
        print(f"| {variant} | {count} | " + " | ".join(row) + " |")
    for letter, name in zip("abcdefgh", baselines, strict=False):
        print(f"\n{letter}: better than {name} (-{letter}: worse), p < {ALPHA}, paired t-test on means over the seeds")


if __name__ == "__main__":
    main()
