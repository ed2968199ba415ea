"""Measure weights of fusions on judged collections: the prior of tuning, and tuning with few judged queries.

Each collection FOLDER/NAME has the indexes FOLDER/NAME.bm25 and FOLDER/NAME.SYSTEM. `make prior` and `make few-labels`
(benchmarks/prior.mk) build those of MiniLM, and call:

    python benchmarks/prior.py measure FOLDER NAME...    at most 400 queries of the first and of the last split
    python benchmarks/prior.py prior INDEX               writes hybrid_cli/fusion/prior.json; INDEX has its encoder
    python benchmarks/prior.py few-labels                prints the tables of studies/few-labels.md

--values FILE has the measurements; `measure` replaces those of the same names. --dense SYSTEM... measures other
dense systems than minilm, on the last split.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import draws
from hybrid_cli.artifacts import read_manifest
from hybrid_cli.artifacts.indexes import manifests_of
from hybrid_cli.artifacts.retrievers import default_fusion, open_sides
from hybrid_cli.collections import collection
from hybrid_cli.evaluation.measures import evaluate_positions
from hybrid_cli.fusion import tuning
from hybrid_cli.fusion.lists import Lists, complete
from hybrid_cli.fusion.methods import METHODS, FusionRecipe
from hybrid_cli.fusion.prior import FILE, MEASURES, prior_of, triangle
from hybrid_cli.fusion.selection import Choice, Trials, Values, row_of
from hybrid_cli.version import __version__

MOST = 400  # queries of a collection
LEXICAL, DENSE = "bm25", "minilm"
FAMILIES = {"weighted-sum": 0.7, "minmax": 0.5}  # share of the dense run in the untuned choice
SHARES = tuning.WEIGHTS  # of the dense run
SPLITS = ("train", "dev", "test")
SEED, DRAWS, JUDGED, DEPTH = 42, 200, (5, 10, 20, 50), 1000
KEYS = ("collection", "split", "dense", "family", "measure")


def measured(folder: Path, name: str, split: str, dense: str) -> pl.DataFrame:
    """Return a row per family, measure and query, with the value of every weight in `SHARES`."""
    indexes = [folder / f"{name}.{system}" for system in (LEXICAL, dense)]
    sides = open_sides(indexes)
    scales = default_fusion(sides, manifests_of(indexes)).scales
    qrels = collection.read_qrels(collection.qrels_path(folder / name, split))
    qids = qrels["qid"].unique(maintain_order=True)
    kept = qids.gather(draws.sample(len(qids), MOST, draws.rng(SEED))).implode()
    queries = collection.read_queries(collection.queries_path(folder / name, split)).select("qid", "text")
    queries, qrels = queries.filter(pl.col("qid").is_in(kept)), qrels.filter(pl.col("qid").is_in(kept))
    joined = Lists.of([pl.concat(side.runs(queries, DEPTH)) for side in sides.values()])
    listed = list(joined.blocks())
    exact = list(complete(listed, joined.qids, [side.scorer(queries) for side in sides.values()]))
    rows = []
    for family in FAMILIES:
        recipe = FusionRecipe(family, (1.0, 1.0), METHODS[family].missing)
        grid = tuning.MethodGrid(recipe, tuning.default_grid(recipe), scales=scales)
        found: list[pl.DataFrame] = []

        def values(judged: pl.DataFrame, found: list[pl.DataFrame] = found) -> Values:
            found.append(evaluate_positions(judged, list(MEASURES)))
            return found[-1].filter(measure=MEASURES[0])["value"].to_numpy()

        choices, _ = tuning.tabulate(
            grid, exact if recipe.missing == "exact" else listed, joined.qids, [qrels], DEPTH, values
        )
        order = [tuning.linear_grid(2, grid.step).index(choice.shares or choice.weights) for choice in choices]
        for measure in MEASURES:
            table = [found[at].filter(measure=measure)["value"].round(4).to_numpy() for at in order]
            key = dict(zip(KEYS, (name, split, dense, family, measure), strict=True))
            of_queries = pl.Series("values", np.stack(table, axis=1), dtype=pl.List(pl.Float32))
            rows.append(
                pl.DataFrame({"values": of_queries}).select(*(pl.lit(v).alias(k) for k, v in key.items()), "values")
            )
    return pl.concat(rows)


def splits_of(folder: Path, name: str) -> list[str]:
    """Return the judged splits of a collection."""
    return [split for split in SPLITS if (folder / name / f"qrels.{split}.parquet").is_file()]


def table_of(values: pl.DataFrame, **key: str) -> Values | None:
    """Return the values [weights, queries] of one key; None without a row."""
    found = values.filter(**key)["values"]
    return None if found.is_empty() else np.array(found.to_list()).T


def prior(values: pl.DataFrame, encoder: str) -> dict[str, Any]:
    """Return the content of prior.json: of each collection, its first split."""
    entries = []
    own = values.filter(dense=DENSE)
    for name in own["collection"].unique(maintain_order=True):
        split = next(split for split in SPLITS if split in own.filter(collection=name)["split"])
        of_split = own.filter(collection=name, split=split)
        curves: dict[str, dict[str, list[float]]] = {measure: {} for measure in MEASURES}
        noise: dict[str, dict[str, list[float]]] = {measure: {} for measure in MEASURES}
        queries = 0
        for measure, (family, share) in product(MEASURES, FAMILIES.items()):
            table = table_of(of_split, family=family, measure=measure)
            assert table is not None
            queries = table.shape[1]
            curves[measure][family] = table.mean(1).round(5).tolist()
            noise[measure][family] = triangle(np.cov(table - table[SHARES.index(share)]))
        entries.append({"name": name, "split": split, "queries": queries, "curves": curves, "noise": noise})
    return {
        "made_by": "benchmarks/prior.py",
        "version": __version__,
        "systems": "BM25 (k1 0.9, b 0.4) and all-MiniLM-L6-v2 without training (256 word pieces), 1,000 hits",
        "encoder": encoder,
        "families": list(FAMILIES),
        "shares": list(SHARES),
        "collections": entries,
    }


def choices_of(family: str) -> list[Choice]:
    """Return the choices of a family at `SHARES`."""
    return [Choice(family, (1 - share, share), shares=(1 - share, share)) for share in SHARES]


def simulated(values: Values, name: str, family: str, judged: int) -> dict[str, float]:
    """Return the mean nDCG@10 of the queries that were not judged, over `DRAWS` draws, by rule.

    Args:
        values: [weights, queries].
        name: collection, which the prior leaves out.
        family: family of the choices.
        judged: number of judged queries of a draw.
    """
    choices, share = choices_of(family), FAMILIES[family]
    known = prior_of(family, SHARES, share, MEASURES[0], leave_out=[name.split("-")[0]])
    untuned, rng = row_of(choices, (1 - share, share)), np.random.default_rng([SEED, judged])
    scores: dict[str, list[float]] = {rule: [] for rule in RULES}
    for _ in range(DRAWS):
        order = rng.permutation(values.shape[1])
        seen, rest = values[:, order[:judged]], values[:, order[judged:]].mean(1)
        plain = Trials(choices, seen).plateau()
        shrunk = Trials(choices, seen, untuned, known).plateau()
        rows = {"untuned": untuned, "best": plain.best, "plateau": plain.chosen, "tuned": shrunk.chosen}
        rows |= {"single": max(0, len(SHARES) - 1, key=lambda row: rest[row]), "fixed": int(values.mean(1).argmax())}
        for rule, row in rows.items():
            scores[rule].append(float(rest[row]))
    return {rule: float(np.mean(of_rule)) for rule, of_rule in scores.items()}


RULES = {
    "single": "better single run",
    "untuned": "untuned",
    "best": "best weight of the judged queries",
    "plateau": "middle of the plateau",
    "tuned": "**with the prior**",
    "fixed": "best fixed weight",
}


def few_labels(values: pl.DataFrame, dense: str, family: str) -> Iterator[str]:
    """Yield the lines of a table: the rules, the mean over the collections, and the least gain over the untuned one."""
    found: dict[int, dict[str, dict[str, float]]] = {judged: {} for judged in JUDGED}
    for name in values.filter(dense=dense)["collection"].unique(maintain_order=True):
        table = table_of(values, collection=name, split="test", dense=dense, family=family, measure=MEASURES[0])
        assert table is not None
        for judged in JUDGED:
            if 2 * judged <= table.shape[1]:
                found[judged][name] = simulated(table, name, family, judged)
    yield f"| {dense}, {family} | {' | '.join(f'{judged} judged' for judged in JUDGED)} |"
    yield f"|---|{'---|' * len(JUDGED)}"
    for rule, label in RULES.items():
        cells = []
        for judged in JUDGED:
            gains = {name: each[rule] - each["untuned"] for name, each in found[judged].items()}
            least = min(gains, key=lambda name: gains[name])
            mean = np.mean([each[rule] for each in found[judged].values()])
            cells.append(f"{mean:.4f} ({np.mean(list(gains.values())):+.4f}; {least} {gains[least]:+.4f})")
        yield f"| {label} | {' | '.join(cells).replace('0.', '.')} |"


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["measure", "prior", "few-labels"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--values", type=Path, default=Path("studies/measured/few-labels.parquet"))
    parser.add_argument("--dense", nargs="+", default=[DENSE])
    given = parser.parse_args()
    values = pl.read_parquet(given.values) if given.values.is_file() else pl.DataFrame()
    if given.command == "measure":
        for dense, name in product(given.dense, given.names):
            splits = splits_of(given.folder, name)
            for split in dict.fromkeys([splits[0], splits[-1]] if dense == DENSE else splits[-1:]):
                made = measured(given.folder, name, split, dense)
                kept = values.join(made, on=KEYS, how="anti") if len(values) else values
                values = pl.concat([kept, made], how="diagonal")
                values.write_parquet(given.values, compression="zstd", compression_level=19)
    elif given.command == "prior":
        encoder = read_manifest(given.folder).inputs["model"]["fingerprint"]
        FILE.write_text(json.dumps(prior(values, encoder)) + "\n", "utf-8")
    else:
        for dense, family in product(given.dense, FAMILIES):
            print("\n".join(few_labels(values, dense, family)), end="\n\n")


if __name__ == "__main__":
    main()
