"""Build the prior of `fuse --tune`, and the curve of studies/few-labels.md, from runs of judged collections.

Each collection FOLDER/NAME has the indexes FOLDER/NAME.bm25 and FOLDER/NAME.minilm, for exact scores, and their runs
FOLDER/NAME.bm25.SPLIT.parquet and FOLDER/NAME.minilm.SPLIT.parquet. The prior uses the first split of train, dev and
test that exists, and at most 400 of its queries, drawn by seed.

`make prior` and `make few-labels` (benchmarks/prior.mk) make the runs and call:

    python benchmarks/prior.py FOLDER NAME... --output hybrid_cli/fusion/prior.json
    python benchmarks/prior.py FOLDER NAME... --few-labels FOLDER/few-labels.csv

--dense SYSTEM ... measures other dense systems than minilm, with the same prior, as the mean of several. NAME-PART is a
part of the collection NAME, which is left out of the prior.
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
from hybrid_cli.artifacts.exact import exact_sources
from hybrid_cli.collections import collection
from hybrid_cli.commands import Fuse
from hybrid_cli.evaluation.measures import evaluate_positions
from hybrid_cli.fusion import tuning
from hybrid_cli.fusion.lists import Lists, complete
from hybrid_cli.fusion.prior import MEASURES, Prior
from hybrid_cli.fusion.selection import Choice, Trials, Values
from hybrid_cli.stages.fuse import families_to_try
from hybrid_cli.version import __version__

MOST = 400  # queries of a collection
LEXICAL, DENSE = "bm25", "minilm"
EXACT = "weighted-sum"  # of exact scores
SEED = 42
DRAWS = 200
JUDGED = (5, 10, 20, 30, 50)
PRIOR_QUERIES = 5.0
Curves = dict[str, dict[str, list[float]]]


def tables(
    folder: Path, name: str, split: str, measures: Sequence[str], dense: str = DENSE
) -> tuple[list[Choice], dict[str, Values]]:
    """Return the choices of `fuse --tune --index`, and for each measure their values [choices, queries]."""
    qrels = collection.read_qrels(collection.qrels_path(folder / name, split))
    qids = qrels["qid"].unique(maintain_order=True)
    kept = qids.gather(draws.sample(len(qids), MOST, draws.rng(SEED)))
    qrels = qrels.filter(pl.col("qid").is_in(kept.implode()))
    named = {system: folder / f"{name}.{system}.{split}.parquet" for system in (LEXICAL, dense)}
    indexes = [folder / f"{name}.{system}" for system in named]
    joined = Lists.of([runs.open_run(path).of_queries(kept) for path in named.values()], 1000)
    scorers = [source.scorer(joined.qids, "cpu") for source in exact_sources(named, indexes)]
    listed = list(joined.blocks())
    blocks = {"exact": list(complete(listed, joined.qids, scorers))}
    choices: list[Choice] = []
    values: dict[str, list[Values]] = {measure: [] for measure in measures}
    for family in families_to_try(Fuse([LEXICAL, dense], output=Path("-.json"), tune=True, index=indexes), 2):
        rows: dict[str, list[Values]] = {measure: [] for measure in measures}

        def measured(judged: pl.DataFrame, rows: dict[str, list[Values]] = rows) -> Values:
            found = evaluate_positions(judged, list(measures))
            for measure in measures:
                rows[measure].append(found.filter(measure=measure)["value"].to_numpy())
            return rows[measures[0]][-1]

        of_family = blocks.get(family.recipe.missing, listed)
        more, _ = tuning.tabulate(family, list(of_family), joined.qids, [qrels], 1000, measured)
        order = grid_order(more, family)
        choices += more
        for measure in measures:
            values[measure].append(np.stack([rows[measure][at] for at in order]))
    return choices, {measure: np.concatenate(each) for measure, each in values.items()}


def grid_order(choices: Sequence[Choice], family: tuning.MethodGrid) -> list[int]:
    """Return the place of each choice in the order in which its grid was measured."""
    grid = tuning.linear_grid(2, family.step)
    return [grid.index(choice.shares or choice.weights) for choice in choices]


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


def split_of(folder: Path, name: str, order: Sequence[str], dense: str = DENSE) -> str:
    """Return the first split with both runs."""
    for split in order:
        if all((folder / f"{name}.{system}.{split}.parquet").is_file() for system in (LEXICAL, dense)):
            return split
    raise SystemExit(f"{folder}/{name}: no runs NAME.{LEXICAL}.SPLIT.parquet and NAME.{dense}.SPLIT.parquet")


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


def few_labels(folder: Path, names: Sequence[str], prior: Path, systems: Sequence[str]) -> pl.DataFrame:
    """Return one row per collection, number of judged queries and arm, with the mean score of the other queries."""
    stored = json.loads(prior.read_text("utf-8"))
    rows = []
    for name in names:
        others = [each["curves"][MEASURES[0]] for each in stored["collections"] if each["name"] != name.split("-")[0]]
        mean = {family: np.mean([each[family] for each in others], axis=0) for family in others[0]}
        for dense in systems:
            choices, values = tables(folder, name, split_of(folder, name, ("test",), dense), MEASURES[:1], dense)
            known = Prior(np.array(stored["shares"]), mean, MEASURES[0], []).values(choices, 1)
            rows += simulate(name, choices, values[MEASURES[0]], known)
    scores = [pl.col(column).mean().round(4) for column in ("mean", "low_5_percent")]
    return pl.DataFrame(rows).group_by("collection", "queries", "judged", "arm", maintain_order=True).agg(scores)


def simulate(name: str, choices: Sequence[Choice], values: Values, known: Values | None) -> list[dict[str, Any]]:
    """Return the scores of all arms, each the mean over the draws, on the queries that were not judged.

    Arms: "argmax" and "plateau" choose among the methods of `fuse --tune`; with "minmax" or "exact" among the weights
    of one method, with "indexed" among the methods of `fuse --tune --index`.
    """
    untuned = next(row for row, each in enumerate(choices) if each.family == "minmax" and each.weights == (0.5, 0.5))
    singles = [row for row, choice in enumerate(choices) if choice.single is not None]
    groups = {
        "": [row for row, each in enumerate(choices) if each.method != EXACT],
        "minmax ": [row for row, each in enumerate(choices) if each.method == "minmax"],
        "exact ": [row for row, each in enumerate(choices) if each.method == EXACT],
        "indexed ": list(range(len(choices))),
    }
    fixed = {
        f"{group}best fixed": max(groups[group], key=lambda row: float(values[row].mean()))
        for group in ("minmax ", "exact ")
    }
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
            arms = {"untuned": untuned, "better single": max(singles, key=lambda row: score[row])} | fixed
            for label, prior in (("", None), (" + prior", known)):
                for group, members in groups.items():
                    table = Trials(
                        [choices[row] for row in members],
                        values[members][:, seen],
                        None if prior is None else prior[members],
                        PRIOR_QUERIES if prior is not None else 0.0,
                    )
                    plateau = table.plateau()
                    arms |= {
                        f"{group}argmax{label}": members[plateau.best],
                        f"{group}plateau{label}": members[plateau.chosen],
                    }
            for arm, row in arms.items():
                found.setdefault(arm, []).append(float(score[row]))
        rows += [
            {"collection": name, "queries": values.shape[1], "judged": judged, "arm": arm,
             "mean": float(np.mean(each)), "low_5_percent": float(np.quantile(each, 0.05))}
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
    parser.add_argument("--dense", nargs="+", default=[DENSE])
    given = parser.parse_args()
    if given.output:
        given.output.write_text(json.dumps(build(given.folder, given.names)) + "\n", "utf-8")
    if given.few_labels:
        given.few_labels.parent.mkdir(parents=True, exist_ok=True)
        few_labels(given.folder, given.names, given.prior, given.dense).write_csv(given.few_labels)
