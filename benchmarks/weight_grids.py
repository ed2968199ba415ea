"""Compare grids and rules for the weight of an exact sum of two systems, with few and with many judged queries.

    benchmarks/weight_grids.py FOLDER NAME... --dense nll-1 nll-2 nll-3 --output studies/measured/weight-grids.csv

FOLDER/NAME is a collection. For each SYSTEM, that of --lexical and those of --dense, FOLDER/NAME.SYSTEM is an index and
FOLDER/NAME.SYSTEM.test.parquet a run. The judged queries are drawn from test; the score is that of the other queries,
the mean over the draws and the dense systems.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from hybrid_cli import runs
from hybrid_cli.artifacts.exact import exact_sources
from hybrid_cli.collections import collection
from hybrid_cli.evaluation.measures import evaluate_positions
from hybrid_cli.fusion import tuning
from hybrid_cli.fusion.lists import Lists, complete
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.fusion.options import Grid
from hybrid_cli.fusion.selection import Trials, Values

JUDGED = (10, 20, 50, 100, 200)
DRAWS = 100
SEED = 42


def tables(
    folder: Path, name: str, systems: tuple[str, str], grids: Sequence[Grid], measures: Sequence[str]
) -> Iterator[tuple[Grid, str, Trials]]:
    """Yield the values of all weights of every grid, for each measure."""
    qrels = collection.read_qrels(collection.qrels_path(folder / name, "test"))
    named = {system: folder / f"{name}.{system}.test.parquet" for system in systems}
    joined = Lists.of([runs.open_run(path) for path in named.values()], 1000)
    sources = exact_sources(named, [folder / f"{name}.{system}" for system in named])
    scorers = [each.scorer(joined.qids, "cpu") for each in sources]
    blocks = list(complete(joined.blocks(), joined.qids, scorers))
    recipe = FusionRecipe("weighted-sum", (1.0, 1.0), "exact")
    for grid in grids:
        for measure in measures:

            def measured(judged: pl.DataFrame, measure: str = measure) -> Values:
                return np.asarray(evaluate_positions(judged, [measure])["value"].to_numpy())

            family = tuning.MethodGrid(recipe, grid)
            choices, (values,) = tuning.tabulate(family, blocks, joined.qids, [qrels], 1000, measured)
            yield grid, measure, Trials(choices, values)


def scores(table: Trials) -> Iterator[tuple[int, str, float]]:
    """Yield judged queries, rule, and the score of its choice on the other queries, for every draw."""
    queries = table.queries
    for judged in (each for each in JUDGED if each <= queries // 2):
        rng = np.random.default_rng([SEED, judged])
        for _ in range(DRAWS):
            order = rng.permutation(queries)
            rest = table.values[:, order[judged:]].mean(1)
            plateau = Trials(table.choices, table.values[:, order[:judged]]).plateau()
            yield judged, "best", float(rest[plateau.best])
            yield judged, "middle of the plateau", float(rest[plateau.chosen])
            yield judged, "best of all weights", float(rest.max())


def main() -> None:
    """Measure, and write one row per collection, measure, grid, rule and number of judged queries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--lexical", default="bm25")
    parser.add_argument("--dense", nargs="+", default=["minilm"])
    parser.add_argument("--grids", nargs="+", default=["log", "scaled"])
    parser.add_argument("--measure", nargs="+", default=["MRR@10", "nDCG@10"])
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    rows = [
        (name, measure, grid, rule, judged, dense, score)
        for name in given.names
        for dense in given.dense
        for grid, measure, table in tables(given.folder, name, (given.lexical, dense), given.grids, given.measures)
        for judged, rule, score in scores(table)
    ]
    columns = ["collection", "measure", "grid", "rule", "judged", "dense", "score"]
    found = pl.DataFrame(rows, columns, orient="row").group_by(columns[:5], maintain_order=True)
    found.agg(pl.col("dense").n_unique(), pl.col("score").mean().round(4)).write_csv(given.output)


if __name__ == "__main__":
    main()
