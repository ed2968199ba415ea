"""Verdicts on the claims of the papers, from the values of every query in docs/measured.

python docs/methods/verdicts.py [FOLDER]

Each file NAME.parquet holds run, measure, qid, value, written by `evaluate --output` with runs named ROW-SEED. Files
NAME-seed-SEED.parquet, measured at another time or on another machine with the same settings, add their seeds. A claim
compares two rows in one measure: the mean of each query over the seeds, the difference with its 95% t-interval over the
queries, and the standard deviation of the difference over the seeds. A claim holds if the interval and two deviations
over the seeds are both above the claimed gain; it does not hold if both are below; else it is undecided, as with one
seed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from scipy import stats

MEASURED = Path(__file__).parent.parent / "measured"
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Claim:
    """A claimed difference between two rows.

    Attributes:
        file: name of the measurements, without suffix.
        better, worse: rows.
        measure: measure of the comparison.
        gain: claimed difference, 0 for any.
        share: the claim is about `better` and this share of `worse`.
    """

    file: str
    better: str
    worse: str
    measure: str = "MRR@10"
    gain: float = 0.0
    share: float = 1.0


ROC = "RoC@10"
CLAIMS = (
    Claim("clear", "bm25+residual", "bm25+constant"),
    Claim("clear", "bm25+residual", "bm25+constant-mean"),
    Claim("clear", "bm25+constant", "bm25+random"),
    Claim("clear", "bm25+residual", "bm25+random"),
    Claim("clear", "bm25+residual", "bm25+start"),
    Claim("clear", "bm25+residual", "bm25+nll-one"),
    Claim("clear", "bm25+residual", "bm25+nll"),
    Claim("clear", "bm25+residual-batch", "bm25+nll"),
    Claim("clear", "bm25+residual-nll", "bm25+nll"),
    Claim("clear", "bm25+residual-nll-anneal", "bm25+nll"),
    Claim("roc", "E100", "control", ROC, 0.005),
    Claim("roc", "E1", "E0", ROC),
    Claim("roc", "I15", "I0", ROC),
    Claim("roc", "I50", "I0", ROC),
    *(Claim("lite", f"lite-{weight}", "lite-0", gain=0.02) for weight in ("0.3", "1", "3")),
    *(Claim("lite", f"lite-{weight}", "drboost", share=0.98) for weight in ("0.3", "1", "3")),
    *(Claim("lite", f"bm25+lite-{weight}", "bm25+dpr", share=0.98) for weight in ("0.3", "1", "3")),
    Claim("lite", "lite-1", "dpr32"),
    Claim("lite", "l-drboost", "drboost"),
    Claim("lite", "drboost", "r-drboost"),
    Claim("bpr", "bpr", "signs"),
    Claim("bpr", "bpr", "dpr"),
    Claim("lambda", "positives-2", "positives-1"),
    Claim("lambda", "positives-10", "positives-1"),
    *(
        Claim(f"recommended-{name}", f"bm25+{better}", f"bm25+{worse}", "nDCG@10")
        for name in ("scifact", "pydocs", "insuranceqa-5k", "openwiki")
        for better, worse in (("nll", "before"), ("nll", "clear"), ("residual-nll", "nll"), ("roc", "nll"))
    ),
)


@dataclass(frozen=True)
class Verdict:
    """A measured difference: means of both rows, interval over queries, deviation over seeds, number of seeds."""

    better: float
    worse: float
    low: float
    high: float
    deviation: float
    seeds: int
    word: str


def verdict(values: pl.DataFrame, claim: Claim) -> Verdict | None:
    """Decide a claim.

    Args:
        values: run, measure, qid, value; a row without seeds has one run of its name.
        claim: the claim.

    Returns:
        None if a row was not measured.
    """
    rows = pl.col("run").str.replace(r"-\d+$", "")
    chosen = values.filter(measure=claim.measure).with_columns(row=rows, seed=pl.col("run").str.extract(r"-(\d+)$"))
    sides = [chosen.filter(row=name) for name in (claim.better, claim.worse)]
    if not all(map(len, sides)):
        return None
    seeds = [set(side["seed"].drop_nulls()) for side in sides]
    common = seeds[0] & seeds[1] if all(seeds) else seeds[0] | seeds[1]
    sides = [side.filter(pl.col("seed").is_null() | pl.col("seed").is_in(common)) for side in sides]
    sides[1] = sides[1].with_columns(pl.col("value") * claim.share)
    means = [side.group_by("qid").agg(pl.col("value").mean()).sort("qid") for side in sides]
    differences = (means[0]["value"] - means[1]["value"]).to_numpy()
    low, high = _interval(differences)
    by_seed = _by_seed(sides[0], sides[1], sorted(common))
    deviation = float(np.std(by_seed, ddof=1)) if len(by_seed) > 1 else float("nan")
    distance = differences.mean() - claim.gain  # not a number is no deviation: one seed decides nothing
    word = "undecided"
    if high < claim.gain and -distance > 2 * deviation:
        word = "does not hold"
    elif low > claim.gain and distance > 2 * deviation:
        word = "holds"
    first, second = (float(side["value"].mean()) for side in means)  # type: ignore[arg-type]
    return Verdict(first, second, low, high, deviation, len(common), word)


def measurements(folder: Path, name: str) -> pl.DataFrame | None:
    """Return the values of NAME.parquet and of all files NAME-seed-*.parquet; None without such a file.

    Raises:
        ValueError: two files have the same run.
    """
    files = [*folder.glob(f"{name}.parquet"), *sorted(folder.glob(f"{name}-seed-*.parquet"))]
    tables = [pl.read_parquet(file) for file in files]
    if not tables:
        return None
    values = pl.concat(tables)
    seeded = values.filter(pl.col("run").str.contains(r"-\d+$"))
    if twice := seeded.filter(seeded.select("run", "measure", "qid").is_duplicated())["run"].unique().sort().to_list():
        raise ValueError(f"{folder}: several files {name}*.parquet have the runs {', '.join(twice)}")
    return values.unique(["run", "measure", "qid"], keep="first", maintain_order=True)  # runs without seeds


def with_roc(values: pl.DataFrame) -> pl.DataFrame:
    """Add RoC(D;S) = |D - S| / |D| at rank 10 (RoC, section 3.1) of every run D against the run `bm25`.

    The value of a query is r + (x - r d) / mean(d), where d and x are 1 if the query is in D and in D - S, and r is the
    ratio of all queries. The mean is r, and the interval is that of a ratio estimator.
    """
    found = values.filter(measure="Success@10").with_columns(pl.col("value") > 0)
    known = found.filter(run="bm25").select("qid", known="value")
    if not len(known):
        return values
    d, x = pl.col("value").cast(pl.Float64), (pl.col("value") & ~pl.col("known")).cast(pl.Float64)
    ratio = x.sum() / d.sum()
    runs = found.filter(pl.col("run") != "bm25").join(known, on="qid")
    roc = runs.with_columns(value=(ratio + (x - ratio * d) / d.mean()).over("run"), measure=pl.lit(ROC))
    return pl.concat([values, roc.select(values.columns)])


def _interval(differences: np.ndarray) -> tuple[float, float]:
    found = stats.ttest_1samp(differences, 0.0).confidence_interval(CONFIDENCE)
    return float(found.low), float(found.high)


def _by_seed(better: pl.DataFrame, worse: pl.DataFrame, seeds: list[str]) -> list[float]:
    """Return the difference of the means of each seed."""

    def mean(side: pl.DataFrame, seed: str) -> float:
        return float(side.filter(pl.col("seed").is_null() | (pl.col("seed") == seed))["value"].mean())  # type: ignore[arg-type]

    return [mean(better, seed) - mean(worse, seed) for seed in seeds]


def main() -> int:
    """Print one line per claim that was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, default=MEASURED)
    folder = parser.parse_args().folder
    print("| Values | Claim | Measure | Means | Difference | 95% interval | SD over seeds | Seeds | Verdict |")
    print("|---|---|---|---|---|---|---|---|---|")
    for claim in CLAIMS:
        values = measurements(folder, claim.file)
        found = verdict(with_roc(values), claim) if values is not None else None
        if found is not None:
            other = f"{claim.share:.0%} of {claim.worse}" if claim.share != 1 else claim.worse
            other += f" + {claim.gain:g}" if claim.gain else ""
            print(
                f"| {claim.file} | {claim.better} > {other} | {claim.measure} "
                f"| {found.better:.4f}, {found.worse:.4f} | {found.better - found.worse:+.4f} "
                f"| {found.low:+.4f} to {found.high:+.4f} | {found.deviation:.4f} | {found.seeds} | {found.word} |"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
