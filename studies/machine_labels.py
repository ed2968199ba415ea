"""Coverage and width of prediction-powered intervals with simulated machines.

    python studies/machine_labels.py NAME=QRELS:RUN:RUN ... --output measured/machine-labels.csv
    python studies/machine_labels.py --output measured/machine-labels.csv     # prints the table of the page

The judgments of each collection are those of people. A machine judges the union of the top 10 of both runs and of the
judged documents; a document without a judgment has grade 0. `error` replaces a grade by a random other one of the
collection; `biased` adds a grade to every document in the top 10 of the second run, `half biased` to a random half.
Each draw samples as many queries as the collection has, with replacement, of which the first 30, 50 or 100 are those of
people: the true value is the mean of the collection. `fixed` draws the queries of people alone, without replacement.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from hybrid_cli import runs
from hybrid_cli.collections import collection
from hybrid_cli.evaluation.measures import evaluate_run
from hybrid_cli.evaluation.prediction_powered import CorrectedMean

MEASURES = ["nDCG@10", "MRR@10"]
DRAWS, MACHINES, DEPTH, HIGHEST, SEED = 1000, 20, 10, 3, 42
QUERIES = (30, 50, 100)
ERRORS = {"error 10%": 0.1, "error 20%": 0.2, "error 40%": 0.4}
BIASES = {"biased": 1.0, "half biased": 0.5}


def pooled(qrels: pl.DataFrame, tops: list[pl.DataFrame]) -> pl.DataFrame:
    """Return qid, docid, relevance of all judged documents and top hits, and whether the second run found them."""
    keys = ["qid", "docid"]
    every = pl.concat([qrels.select(keys), *(top.select(keys) for top in tops)]).unique(maintain_order=True)
    every = every.join(qrels, on=keys, how="left", maintain_order="left").fill_null(0)
    of_second = tops[1].select(*keys, second=pl.lit(True))
    return every.join(of_second, on=keys, how="left", maintain_order="left").fill_null(False)


def machine(pool: pl.DataFrame, name: str, random: np.random.Generator) -> pl.DataFrame:
    """Return the judgments of a machine."""
    grades = pool["relevance"].to_numpy()
    if name in ERRORS:
        scale = max(1, int(grades.max())) + 1
        other = (grades + random.integers(1, scale, len(grades))) % scale
        grades = np.where(random.random(len(grades)) < ERRORS[name], other, grades)
    else:
        added = pool["second"].to_numpy() & (random.random(len(grades)) < BIASES[name])
        grades = np.minimum(grades + added, HIGHEST)
    return pool.select("qid", "docid", relevance=pl.Series(grades.astype(np.int32)))


def values(qrels: pl.DataFrame, tops: list[pl.DataFrame], qids: pl.Series) -> dict[tuple[str, str], np.ndarray]:
    """Return (measure, estimate) -> [queries]: of each run, and the difference."""
    found = {}
    for name in MEASURES:
        first, second = (
            qids.to_frame()
            .join(evaluate_run(top, qrels, [name]), on="qid", how="left", maintain_order="left")["value"]
            .to_numpy()
            for top in tops
        )
        found |= {(name, "first"): first, (name, "second"): second, (name, "difference"): second - first}
    return found


def measured(name: str, qrels_path: Path, paths: list[Path]) -> Iterator[dict[str, object]]:
    """Yield one row per machine, measure, estimate, number of queries and way of drawing."""
    qrels = collection.read_qrels(qrels_path)
    qids = qrels["qid"].unique(maintain_order=True)
    tops = [runs.open_run(path).table().filter(pl.col("rank") <= DEPTH) for path in paths]
    tops = [top.filter(pl.col("qid").is_in(qids.implode())) for top in tops]
    pool, people = pooled(qrels, tops), values(qrels, tops, qids)
    for kind in (*ERRORS, *BIASES):
        random = np.random.default_rng(SEED)
        machines = [values(machine(pool, kind, random), tops, qids) for _ in range(MACHINES)]
        for key, count, fixed in (
            (key, count, fixed) for key in people for count in QUERIES for fixed in (False, True)
        ):
            if count > len(qids) - 2:
                continue
            row = {"collection": name, "queries": len(qids), "machine": kind, "measure": key[0], "estimate": key[1]}
            yield row | {"people": count, "fixed": fixed} | covered(people[key], machines, key, count, fixed)


def covered(
    people: np.ndarray, machines: list[dict[tuple[str, str], np.ndarray]], key: tuple[str, str], count: int, fixed: bool
) -> dict[str, float]:
    """Return coverage and mean width of the corrected intervals and of those of people alone."""
    random, truth, size = np.random.default_rng(SEED + 1), people.mean(), len(people)
    inside, alone, widths, weights = [], [], [], []
    for draw in range(DRAWS):
        rows = random.permutation(size) if fixed else random.integers(0, size, size)
        judged, rest = rows[:count], rows[count:]
        of_machine = machines[draw % MACHINES][key]
        made = CorrectedMean.of(people[judged], of_machine[judged], of_machine[rest])
        inside.append(made.low <= truth <= made.high)
        alone.append(made.people_low <= truth <= made.people_high)
        widths.append((made.high - made.low, made.people_high - made.people_low))
        weights.append(made.weight)
    width, width_alone = np.mean(widths, axis=0)
    return {
        "coverage": float(np.mean(inside)), "coverage_people": float(np.mean(alone)), "width": float(width),
        "width_people": float(width_alone), "weight": float(np.mean(weights)),
    }  # fmt: skip


def table(rows: pl.DataFrame) -> str:
    """Return a row per machine and number of queries: least and mean coverage, and the width against people alone."""
    rows = rows.filter(~pl.col("fixed")).with_columns(ratio=pl.col("width") / pl.col("width_people"))
    figures = rows.group_by("machine", "people", maintain_order=True).agg(
        pl.col("coverage").min().alias("least"), pl.col("coverage").mean().alias("mean"),
        pl.col("coverage_people").min().alias("least_people"), pl.col("coverage_people").mean().alias("mean_people"),
        pl.col("ratio").filter(pl.col("estimate") != "difference").mean().alias("ratio"),
        pl.col("ratio").filter(pl.col("estimate") == "difference").mean().alias("ratio_difference"),
    )  # fmt: skip
    lines = ["| Machine | Queries of people | Coverage, least (mean) | People alone, least (mean) | Width of means "
             "| Width of differences |", "|---|--:|--:|--:|--:|--:|"]  # fmt: skip
    kinds = [*ERRORS, *BIASES]
    for kind, count, *cells in sorted(figures.iter_rows(), key=lambda row: (kinds.index(row[0]), row[1])):
        least, mean, least_people, mean_people, ratio, ratio_difference = cells
        lines.append(
            f"| {kind} | {count} | {least:.1%} ({mean:.1%}) | {least_people:.1%} ({mean_people:.1%}) | {ratio:.2f} "
            f"| {ratio_difference:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Simulate the given collections, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="*", metavar="NAME=QRELS:RUN:RUN")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    for text in arguments.collections:
        name, _, paths = text.partition("=")
        qrels, *both = map(Path, paths.split(":"))
        rows += measured(name, qrels, both)
    if rows:
        pl.DataFrame(rows).write_csv(arguments.output, float_precision=4)
    print(table(pl.read_csv(arguments.output)))


if __name__ == "__main__":
    main()
