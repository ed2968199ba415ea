"""Coverage and width of prediction-powered intervals with simulated machines.

    python studies/machine_labels.py NAME=QRELS:RUN:RUN ... --output measured/machine-labels.csv
    python studies/machine_labels.py NAME=QRELS:RUN:RUN ... --weights --output measured/machine-weights.csv
    python studies/machine_labels.py --output measured/machine-labels.csv     # prints the table of the page

The judgments of each collection are those of people. A machine judges the union of the top 10 of both runs and of the
judged documents; a document without a judgment has grade 0. `error` replaces a grade by a random other one of the
collection; `biased` adds a grade to every document in the top 10 of the second run, `half biased` to a random half.
Each draw samples as many queries as the collection has, with replacement, of which the first 30, 50 or 100 are those of
people: the true value is the mean of the collection. `fixed` draws the queries of people alone, without replacement.

`--weights` measures the regret of the fusion that `fuse --tune` chooses, with a machine and without: nDCG@10 of the
best fusion on the queries that people did not judge, minus that of the chosen one. `random` is a machine that guesses.
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
from hybrid_cli.evaluation.prediction_powered import CorrectedMean, rectified
from hybrid_cli.fusion import tuning
from hybrid_cli.fusion.lists import Lists
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.fusion.prior import prior_of
from hybrid_cli.fusion.selection import Choice, Trials, row_of

MEASURES = ["nDCG@10", "MRR@10"]
DRAWS, MACHINES, DEPTH, HIGHEST, SEED = 1000, 20, 10, 3, 42
QUERIES = (30, 50, 100)
ERRORS = {"error 10%": 0.1, "error 20%": 0.2, "error 40%": 0.4}
BIASES = {"biased": 1.0, "half biased": 0.5}
JUDGED_BY_PEOPLE, WEIGHT_DRAWS = (20, 30, 50), 200
WEIGHT_MACHINES = {**ERRORS, "random": 1.0}


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


# ------------------------------------------------------------------------------------------------------ weights


def tabulated(
    qrels: pl.DataFrame, paths: list[Path], random: np.random.Generator
) -> tuple[list[Choice], dict[str, list[np.ndarray]]]:
    """Return the choices of `fuse --tune`, and the values [choices, queries] by people and by each machine."""
    qids = qrels["qid"].unique(maintain_order=True)
    opened = [runs.open_run(path).of_queries(qids) for path in paths]
    tops = [run.top(DEPTH).table() for run in opened]
    pool = pooled(qrels, tops).sort(pl.col("qid").replace_strict(qids, range(len(qids))), maintain_order=True)
    graded = {"people": [pool["relevance"].to_numpy()]}
    for name, share in WEIGHT_MACHINES.items():
        draws = [machine(pool, name, random)["relevance"] for _ in range(MACHINES)] if share < 1 else [
            pool["relevance"].sample(fraction=1, shuffle=True, seed=seed) for seed in range(MACHINES)
        ]  # fmt: skip
        graded[name] = [draw.to_numpy() for draw in draws]
    grades = np.stack([draw for draws in graded.values() for draw in draws]).astype(float)
    query = pool["qid"].replace_strict(qids, range(len(qids))).to_numpy()
    ideal = _summed(grades / np.log2(_ideal_ranks(grades, query) + 1), query)

    def ndcg(judged: pl.DataFrame) -> np.ndarray:
        ranks = judged["position"].fill_null(DEPTH + 1).to_numpy()
        gains = _summed(grades * np.where(ranks <= DEPTH, 1 / np.log2(ranks + 1), 0), query)
        return np.divide(gains, ideal, out=np.zeros_like(gains), where=ideal > 0).ravel()

    joined = Lists.of(opened, 1000)
    grid = tuning.MethodGrid(FusionRecipe("minmax", (1.0, 1.0), "zero"), "linear")
    choices, (table,) = tuning.tabulate(grid, list(joined.blocks()), joined.qids, [pool], 1000, ndcg)
    whole = iter(table.reshape(len(choices), len(grades), len(qids)).transpose(1, 0, 2))
    return choices, {name: [next(whole) for _ in draws] for name, draws in graded.items()}


def _ideal_ranks(grades: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Return the rank of each document in the best order of its query, above DEPTH as infinite."""
    first = np.searchsorted(query, query)
    ranks = np.empty(grades.shape)
    for row, values in enumerate(grades):
        order = np.lexsort((-values, query))
        ranks[row, order] = np.arange(len(query)) - first + 1
    return np.where(ranks <= DEPTH, ranks, np.inf)


def _summed(values: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Return sums over the documents of each query, [rows, queries]; the documents are in the order of the queries."""
    return np.add.reduceat(values, np.unique(query, return_index=True)[1], axis=1)


def regrets(name: str, qrels_path: Path, paths: list[Path]) -> Iterator[dict[str, object]]:
    """Yield one row per machine and number of queries of people."""
    choices, by_rater = tabulated(collection.read_qrels(qrels_path), paths, np.random.default_rng(SEED))
    (people,) = by_rater.pop("people")
    prior, size = prior_of("minmax", [choice.weights[1] for choice in choices], 0.5, "nDCG@10", [name]), people.shape[1]
    assert prior is not None
    untuned = row_of(choices, (0.5, 0.5))
    for count in JUDGED_BY_PEOPLE:
        random = np.random.default_rng(SEED)
        drawn = [random.permutation(size) for _ in range(WEIGHT_DRAWS)]
        for kind in ("people alone", *by_rater):
            lost, weights = [], []
            for number, rows in enumerate(drawn):
                judged, rest = rows[:count], rows[count:]
                values, weight = people[:, judged], 0.0
                if kind in by_rater:
                    of_machine = by_rater[kind][number % MACHINES]
                    values, weight = rectified(values, of_machine[:, judged], of_machine[:, rest])
                known = prior.of_values(people[:, judged], values)
                true = people[:, rest].mean(axis=1)
                lost.append(true.max() - true[Trials(choices, values, untuned, known).plateau().chosen])
                weights.append(weight)
            yield {
                "collection": name, "machine": kind, "people": count, "regret": float(np.mean(lost)),
                "error": float(np.std(lost, ddof=1) / np.sqrt(WEIGHT_DRAWS)), "weight": float(np.mean(weights)),
            }  # fmt: skip


def table_of_regrets(rows: pl.DataFrame) -> str:
    """Return a row per machine: the mean regret over the collections for each number of queries of people."""
    means = rows.group_by("machine", "people", maintain_order=True).agg(pl.col("regret", "weight").mean())
    head = " | ".join(f"{count} queries (weight)" for count in JUDGED_BY_PEOPLE)
    lines = [f"| Machine | {head} |", "|---" + "|--:" * len(JUDGED_BY_PEOPLE) + "|"]
    for (kind,), part in means.group_by("machine", maintain_order=True):
        cells = (f"{regret:.4f} ({weight:.2f})" for regret, weight in part.select("regret", "weight").iter_rows())
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------------ command


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
    parser.add_argument("--weights", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    for text in arguments.collections:
        name, _, paths = text.partition("=")
        qrels, *both = map(Path, paths.split(":"))
        rows += (regrets if arguments.weights else measured)(name, qrels, both)
    if rows:
        pl.DataFrame(rows).write_csv(arguments.output, float_precision=4)
    print((table_of_regrets if arguments.weights else table)(pl.read_csv(arguments.output)))


if __name__ == "__main__":
    main()
