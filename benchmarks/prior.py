"""Build the prior of `fuse --tune`, and the curve of docs/few-labels.md, from runs of judged collections.

Each collection FOLDER/NAME has the runs FOLDER/NAME.bm25.SPLIT.parquet and FOLDER/NAME.minilm.SPLIT.parquet. The prior
uses the first split of train, dev and test that exists, and at most 400 of its queries, drawn by seed.

`make prior` and `make few-labels` (benchmarks/prior.mk) make the runs and call:

    python benchmarks/prior.py FOLDER NAME... --output hybrid_cli/fusion/prior.json
    python benchmarks/prior.py FOLDER NAME... --few-labels docs/measured/few-labels.csv
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import draws, runs
from hybrid_cli.collections import collection
from hybrid_cli.evaluation.measures import evaluate_positions
from hybrid_cli.fusion import tuning
from hybrid_cli.fusion.lists import Lists
from hybrid_cli.fusion.prior import MEASURES, Prior
from hybrid_cli.fusion.selection import Choice, Table, Values
from hybrid_cli.settings import Fuse
from hybrid_cli.version import __version__

MOST = 400  # queries of a collection
SEED = 42
DRAWS = 200
JUDGED = (5, 10, 20, 30, 50)
PRIOR_QUERIES = 5.0
Curves = dict[str, dict[str, list[float]]]


def tables(folder: Path, name: str, split: str, measures: Sequence[str]) -> tuple[list[Choice], dict[str, Values]]:
    """Return the choices, and for each measure their values [choices, queries]."""
    qrels = collection.read_qrels(collection.qrels_path(folder / name, split))
    qids = qrels["qid"].unique(maintain_order=True)
    kept = qids.gather(draws.sample(len(qids), MOST, draws.rng(SEED)))
    qrels = qrels.filter(pl.col("qid").is_in(kept.implode()))
    frames = [
        runs.read_run(folder / f"{name}.{system}.{split}.parquet").filter(pl.col("qid").is_in(kept.implode()))
        for system in ("bm25", "minilm")
    ]
    joined = Lists.of(frames, 1000)
    blocks = list(joined.blocks())
    choices: list[Choice] = []
    values: dict[str, list[Values]] = {measure: [] for measure in measures}
    for family in tuning.families(Fuse(["bm25", "minilm"], output=Path("-.json"), tune=True), 2):
        rows: dict[str, list[Values]] = {measure: [] for measure in measures}

        def measured(judged: pl.DataFrame, rows: dict[str, list[Values]] = rows) -> Values:
            found = evaluate_positions(judged, list(measures))
            for measure in measures:
                rows[measure].append(found.filter(measure=measure)["value"].to_numpy())
            return rows[measures[0]][-1]

        more, _ = tuning.tabulate(family, lambda: blocks, joined.qids, qrels, 1000, measured)
        order = grid_order(more, family)
        choices += more
        for measure in measures:
            values[measure].append(np.stack([rows[measure][at] for at in order]))
    return choices, {measure: np.concatenate(each) for measure, each in values.items()}


def grid_order(choices: Sequence[Choice], family: tuning.Family) -> list[int]:
    """Return the place of each choice in the order in which its grid was measured."""
    grid = tuning.linear_grid(2, family.step)
    return [grid.index(choice.weights) for choice in choices]


def curves(choices: Sequence[Choice], values: Values) -> dict[str, list[float]]:
    """Return family -> mean value at each weight of the dense run, ascending."""
    found: dict[str, list[float]] = {}
    for choice, mean in zip(choices, values.mean(1), strict=True):
        found.setdefault(choice.family, []).append(round(float(mean), 5))
    return found


def shares(choices: Sequence[Choice]) -> list[float]:
    """Return the weights of the dense run."""
    first = choices[0].family
    return [choice.weights[1] for choice in choices if choice.family == first]


def split_of(folder: Path, name: str, order: Sequence[str]) -> str:
    """Return the first split with both runs."""
    for split in order:
        if all((folder / f"{name}.{system}.{split}.parquet").is_file() for system in ("bm25", "minilm")):
            return split
    raise SystemExit(f"{folder}/{name}: no runs NAME.bm25.SPLIT.parquet and NAME.minilm.SPLIT.parquet")


def build(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return the content of prior.json."""
    entries, weights = [], []
    for name in names:
        split = split_of(folder, name, ("train", "dev", "test"))
        choices, values = tables(folder, name, split, MEASURES)
        weights = shares(choices)
        found: Curves = {measure: curves(choices, each) for measure, each in values.items()}
        entries.append({"name": name, "split": split, "queries": values[MEASURES[0]].shape[1], "curves": found})
    return {
        "made_by": "benchmarks/prior.py",
        "version": __version__,
        "systems": "BM25 (k1 0.9, b 0.4) and all-MiniLM-L6-v2 without training (64 and 128 word pieces), 1,000 hits",
        "shares": weights,
        "collections": entries,
    }


def few_labels(folder: Path, names: Sequence[str], prior: Path) -> pl.DataFrame:
    """Return one row per collection, number of judged queries and arm, with the mean score of the other queries."""
    stored = json.loads(prior.read_text("utf-8"))
    rows = []
    for name in names:
        choices, values = tables(folder, name, split_of(folder, name, ("test",)), MEASURES[:1])
        others = [each["curves"][MEASURES[0]] for each in stored["collections"] if each["name"] != name]
        mean = {family: np.mean([each[family] for each in others], axis=0) for family in others[0]}
        known = Prior(np.array(stored["shares"]), mean, MEASURES[0], []).values(choices, 1)
        rows += simulate(name, choices, values[MEASURES[0]], known)
    return pl.DataFrame(rows)


def simulate(name: str, choices: Sequence[Choice], values: Values, known: Values | None) -> list[dict[str, Any]]:
    """Return the scores of all arms, each the mean over the draws, on the queries that were not judged."""
    untuned = next(row for row, each in enumerate(choices) if each.family == "minmax" and each.weights == (0.5, 0.5))
    singles = [row for row, choice in enumerate(choices) if choice.single is not None]
    minmax = [row for row, each in enumerate(choices) if each.family == "minmax"]
    fixed = max(minmax, key=lambda row: float(values[row].mean()))
    rows = []
    for judged in JUDGED:
        if judged > values.shape[1] // 2:
            continue
        rng = np.random.default_rng([SEED, judged])
        found: dict[str, list[float]] = {}
        for _ in range(DRAWS):
            order = rng.permutation(values.shape[1])
            seen, rest = order[:judged], order[judged:]
            score = values[:, rest].mean(1)
            arms = {"untuned": untuned, "best fixed": fixed, "better single": max(singles, key=lambda row: score[row])}
            for label, prior in (("", None), (" + prior", known)):
                table = Table(choices, values[:, seen], prior, PRIOR_QUERIES if prior is not None else 0.0)
                plateau = table.plateau()
                arms |= {f"argmax{label}": plateau.best, f"plateau{label}": plateau.chosen}
                one = Table(
                    [choices[row] for row in minmax],
                    values[minmax][:, seen],
                    None if prior is None else prior[minmax],
                    PRIOR_QUERIES,
                )
                arms |= {
                    f"minmax argmax{label}": minmax[one.plateau().best],
                    f"minmax plateau{label}": minmax[one.plateau().chosen],
                }
            for arm, row in arms.items():
                found.setdefault(arm, []).append(float(score[row]))
        rows += [
            {"collection": name, "queries": values.shape[1], "judged": judged, "arm": arm,
             "mean": round(float(np.mean(each)), 4), "low_5_percent": round(float(np.quantile(each, 0.05)), 4)}
            for arm, each in found.items()
        ]  # fmt: skip
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--few-labels", type=Path)
    parser.add_argument("--prior", type=Path, default=Path("hybrid_cli/fusion/prior.json"))
    given = parser.parse_args()
    if given.output:
        given.output.write_text(json.dumps(build(given.folder, given.names)) + "\n", "utf-8")
    if given.few_labels:
        given.few_labels.parent.mkdir(parents=True, exist_ok=True)
        few_labels(given.folder, given.names, given.prior).write_csv(given.few_labels)
