"""Weights of fusions trained on the collection itself, on its pseudo-queries, or without labels on other collections.

Each collection FOLDER/NAME has the indexes FOLDER/NAME.bm25 and FOLDER/NAME.minilm and the runs
FOLDER/NAME.SYSTEM.SPLIT.parquet of the splits train, dev and test. Fusers are trained on at most 2,000 queries of train
and of dev; a collection with test alone is used without labels. Results are those of the test queries, in nDCG@10, with
95% intervals of paired differences.

    python benchmarks/fusers.py FOLDER NAME... --output docs/measured/fusers.csv \
        --without-labels docs/measured/fusers-without-labels.csv [--cache FOLDER]

With --pseudo, weights are tuned on the pseudo-queries of FOLDER/NAME.KIND (split dev, with indexes and runs of that
name) and on the dev split of FOLDER/NAME, and compared on the test queries of FOLDER/NAME.

    python benchmarks/fusers.py FOLDER NAME... --pseudo docs/measured/pseudo-weights.csv [--cache FOLDER]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl

from hybrid_cli import draws, runs
from hybrid_cli.collections import collection
from hybrid_cli.evaluation.measures import evaluate_positions
from hybrid_cli.evaluation.significance import paired_t
from hybrid_cli.fusion import features, learned, tuning
from hybrid_cli.fusion.lists import Lists
from hybrid_cli.fusion.prior import read_prior
from hybrid_cli.fusion.selection import Choice, Table, Values, interval
from hybrid_cli.indexes.exact import exact_scorer, exact_sources, texts_of
from hybrid_cli.settings import Fuse
from hybrid_cli.settings.data import PseudoQueries

MEASURE = "nDCG@10"
METHODS = ("minmax", "zscore")
SYSTEMS = ("bm25", "minilm")
PURPOSES = {"judged": ("train", "dev"), "dev": ("dev",), "test": ("test",)}  # purpose -> splits
KINDS = get_args(PseudoQueries)
MOST = 2000  # queries of a split
SHARED = 500  # queries of a collection that train a fuser for others
SEED = 42
FOLDS = 5
UNTUNED = Choice("minmax", (0.5, 0.5))


@dataclass(frozen=True)
class Judged:
    """The judged queries of one split.

    Attributes:
        choices: methods with their weights.
        values: [choices, queries].
        names: names of the features.
        features: [queries, features].
    """

    choices: Sequence[Choice]
    values: Values
    names: Sequence[str]
    features: features.Matrix

    def rows(self, method: str) -> list[int]:
        """Return the rows of a method, in the order of the weights."""
        return [row for row, choice in enumerate(self.choices) if choice.method == method]

    @property
    def untuned(self) -> int:
        """Return the row of min-max with equal weights."""
        return list(self.choices).index(UNTUNED)

    def some(self, most: int) -> Judged:
        """Return at most `most` queries, drawn by seed."""
        kept = draws.sample(self.values.shape[1], most, draws.rng(SEED))
        return replace(self, values=self.values[:, kept], features=self.features[kept])


def measure(folder: Path, name: str, split: str) -> Judged:
    """Return all choices of `METHODS` with their values, and the features with those of the indexes."""
    qrels = collection.read_qrels(collection.qrels_path(folder / name, split))
    qids = qrels["qid"].unique(maintain_order=True)
    qids = qids.gather(draws.sample(len(qids), MOST, draws.rng(SEED)))
    qrels = qrels.filter(pl.col("qid").is_in(qids.implode()))
    named = {system: folder / f"{name}.{system}.{split}.parquet" for system in SYSTEMS}
    aligned = Lists.of(
        [runs.read_run(path).filter(pl.col("qid").is_in(qids.implode())) for path in named.values()], 1000
    )
    blocks = list(aligned.blocks())

    def measured(judged: pl.DataFrame) -> Values:
        return evaluate_positions(judged, [MEASURE])["value"].to_numpy()

    choices: list[Choice] = []
    tables: list[Values] = []
    settings = Fuse(list(SYSTEMS), output=Path("-.json"), tune=True, methods=METHODS)
    for family in tuning.families(settings, len(SYSTEMS)):
        more, values = tuning.tabulate(family, lambda: blocks, aligned.qids, qrels, 1000, measured)
        choices += more
        tables.append(values)
    asked = evaluate_positions(qrels.with_columns(position=pl.lit(None, pl.Int64)), [MEASURE])["qid"]
    sources = exact_sources(named, [folder / f"{name}.{system}" for system in SYSTEMS])
    found = features.Sources([exact_scorer(each, device="cpu") for each in sources], *texts_of(sources))
    every = pl.concat([aligned.qids, asked.filter(~asked.is_in(aligned.qids.implode()))])
    names, values = features.collected(blocks, every, found)
    numbers = pl.DataFrame({"qid": every}).with_row_index("row")
    rows = asked.to_frame("qid").join(numbers, on="qid", how="left", maintain_order="left")["row"]
    return Judged(choices, np.concatenate(tables), names, values[rows.to_numpy()])


def joined(parts: Sequence[Judged]) -> Judged:
    """Return the queries of several splits."""
    values = np.concatenate([each.values for each in parts], axis=1)
    return replace(parts[0], values=values, features=np.concatenate([each.features for each in parts]))


def read(folder: Path, name: str, purpose: str, cache: Path | None) -> Judged | None:
    """Return the measurements for a key of `PURPOSES`, from the cache if they are there; None without such a split."""
    stored = None if cache is None else cache / f"{name}.{purpose}.npz"
    if stored is None or not stored.is_file():
        splits = [each for each in PURPOSES[purpose] if (folder / f"{name}.{SYSTEMS[0]}.{each}.parquet").is_file()]
        if not splits:
            return None
        found = joined([measure(folder, name, split) for split in splits])
        if stored is not None:
            methods, weights = [each.method for each in found.choices], [each.weights for each in found.choices]
            np.savez(
                stored,
                methods=methods,
                weights=weights,
                values=found.values,
                names=found.names,
                features=found.features,
            )
        return found
    with np.load(stored) as file:
        choices = [
            Choice(str(method), tuple(map(float, weights)))
            for method, weights in zip(file["methods"], file["weights"], strict=True)
        ]
        return Judged(choices, file["values"], [str(each) for each in file["names"]], file["features"])


@dataclass(frozen=True)
class Tuned:
    """A fixed weight and weights per query, tuned on the queries of a table and applied to test queries.

    Attributes:
        table: the tuning queries.
        row: row of the fixed weight.
        held_out: gain of weights per query over the fixed weight on held-out tuning queries, [tuning queries].
        scores: test values of untuned, single (the better run), fixed, per_query and best (weight of each query).
    """

    table: Table
    row: int
    held_out: Values
    scores: Mapping[str, Values]

    @property
    def kept(self) -> bool:
        """Return whether the gain is significantly above 0, as `train-fusion` requires of judged queries."""
        return _ends(self.held_out)[0] > 0

    @property
    def choice(self) -> str:
        """Return method and dense weight of the fixed weight."""
        return f"{self.table.choices[self.row].method} {self.table.choices[self.row].weights[1]:g}"


def tuned(name: str, train: Judged, test: Judged) -> Tuned:
    """Tune on `train` as `train-fusion` does, with the prior of all collections but `name`; apply to `test`."""
    prior = read_prior(MEASURE, leave_out=[name])
    table = Table(train.choices, train.values, None if prior is None else prior.values(train.choices, 1), 5.0)
    row = table.plateau().chosen
    fixed, per_query = learned.held_out(table, train.features, FOLDS, SEED)
    every = np.ones(table.queries, dtype=bool)
    rows, fitted = learned.fit_method(table, train.features, row, every, SEED)
    chosen = np.array(rows)[fitted.model.rows(test.features)]
    scores = {
        "untuned": test.values[test.untuned],
        "single": max((test.values[rows[0]], test.values[rows[-1]]), key=lambda values: float(values.mean())),
        "fixed": test.values[row],
        "per_query": test.values[chosen, np.arange(test.values.shape[1])],
        "best": test.values[rows].max(0),
    }
    return Tuned(table, row, per_query - fixed, scores)


def own(name: str, train: Judged, test: Judged) -> dict[str, Any]:
    """Train on the collection itself; compare weights per query with the fixed weight on the test queries."""
    found = tuned(name, train, test)
    scores = found.scores
    return {
        "collection": name,
        "judged": found.table.queries,
        "test": len(scores["fixed"]),
        "fixed_choice": found.choice,
        "better_single": scores["single"].mean(),
        **{each: scores[each].mean() for each in ("untuned", "fixed", "per_query")},
        "best_of_each_query": scores["best"].mean(),
        **_gain("held_out_gain", found.held_out),
        "kept": found.kept,
        **_gain("test_gain", scores["per_query"] - scores["fixed"]),
        **_gain("over_untuned", scores["per_query"] - scores["untuned"]),
    }


def pseudo(name: str, tuning: Mapping[str, Judged], test: Judged) -> list[dict[str, Any]]:
    """Compare weights tuned on pseudo-queries with those tuned on the real queries `dev`, on the real test queries.

    Args:
        name: the collection, left out of the prior.
        tuning: `dev` or kind of the pseudo-queries -> queries of the tuning.
        test: real test queries.

    Returns:
        One row per key of `tuning`.
    """
    found = {source: tuned(name, train, test) for source, train in tuning.items()}
    rows = []
    for source, each in found.items():
        scores = each.scores
        real = found["dev"].scores if "dev" in found and source != "dev" else None
        rows.append(
            {
                "collection": name,
                "tuned_on": source,
                "queries": each.table.queries,
                "test": len(scores["fixed"]),
                "score_of_tuning": each.table.values[each.row].mean(),
                "better_single": scores["single"].mean(),
                "untuned": scores["untuned"].mean(),
                "fixed_choice": each.choice,
                "fixed": scores["fixed"].mean(),
                "per_query": scores["per_query"].mean(),
                "kept": each.kept,
                **_gain("held_out_gain", each.held_out),
                **_tested("fixed_over_untuned", scores["fixed"] - scores["untuned"]),
                **_tested("fixed_over_single", scores["fixed"] - scores["single"]),
                **_tested("fixed_over_dev", None if real is None else scores["fixed"] - real["fixed"]),
                **_tested("per_query_over_untuned", scores["per_query"] - scores["untuned"]),
                **_tested("per_query_over_fixed", scores["per_query"] - scores["fixed"]),
                **_tested("per_query_over_dev", None if real is None else scores["per_query"] - real["per_query"]),
            }
        )
    return rows


def _ends(differences: Values) -> tuple[float, float]:
    ends = interval(differences)
    assert ends is not None
    return ends


def _gain(name: str, differences: Values) -> dict[str, float]:
    low, high = _ends(differences)
    return {name: float(differences.mean()), f"{name}_low": low, f"{name}_high": high}


def _tested(name: str, differences: Values | None) -> dict[str, float | None]:
    """Return mean, 95% interval and uncorrected p of a paired t-test; None of each without differences."""
    if differences is None:
        return dict.fromkeys([name, f"{name}_low", f"{name}_high", f"{name}_p"])
    return {**_gain(name, differences), f"{name}_p": float(paired_t(differences[:, None])[0])}


def left_out(collections: Mapping[str, Judged], name: str) -> learned.Fitted:
    """Train min-max weights on all collections but `name`, shrunk towards equal weights.

    Args:
        collections: name -> judged queries; those of `name` are not read.
        name: the collection that is left out.
    """
    others = [judged for other, judged in collections.items() if other != name]
    rows = others[0].rows(UNTUNED.method)
    values = np.concatenate([each.values[each.rows(UNTUNED.method)] for each in others], axis=1)
    means = np.mean([each.values[each.rows(UNTUNED.method)].mean(1) for each in others], axis=0)
    equal = [others[0].choices[row].weights for row in rows].index(UNTUNED.weights)
    return learned.fit(np.concatenate([each.features for each in others]), values, means, equal, SEED)


def without_labels(name: str, collections: Mapping[str, Judged], test: Judged) -> dict[str, Any]:
    """Apply the fuser of the other collections to the test queries."""
    model = left_out(collections, name).model
    rows = test.rows(UNTUNED.method)
    values, asked = test.values[rows], np.arange(test.values.shape[1])
    chosen = model.rows(test.features)
    untuned, single = test.values[test.untuned], max(values[0], values[-1], key=lambda each: float(each.mean()))
    return {
        "collection": name,
        "test": len(asked),
        "better_single": single.mean(),
        "untuned": untuned.mean(),
        "label_free": values[chosen, asked].mean(),
        "one_weight": values[round(float(chosen.mean()))].mean(),
        "best_fixed": values.mean(1).max(),
        "shrinkage": model.shrinkage,
        **_gain("over_untuned", values[chosen, asked] - untuned),
        **_gain("over_single", values[chosen, asked] - single),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return rounded rows."""
    return pl.DataFrame(
        [
            {name: round(float(value), 4) if isinstance(value, float) else value for name, value in row.items()}
            for row in rows
        ]
    )


def tuning_and_test(folder: Path, name: str, cache: Path | None) -> tuple[dict[str, Judged], Judged]:
    """Return the tuning queries of each source that exists, `dev` first, and the test queries."""
    named = {"dev": name, **{kind: f"{name}.{kind}" for kind in KINDS}}
    found = {source: read(folder, each, "dev", cache) for source, each in named.items()}
    test = read(folder, name, "test", cache)
    assert test is not None, f"{name}: no runs of the split test"
    return {source: judged for source, judged in found.items() if judged is not None}, test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--without-labels", type=Path)
    parser.add_argument("--pseudo", type=Path)
    parser.add_argument("--cache", type=Path)
    given = parser.parse_args()
    if given.pseudo:
        rows = [row for name in given.names for row in pseudo(name, *tuning_and_test(given.folder, name, given.cache))]
        table(rows).write_csv(given.pseudo)
        return
    splits = {
        name: {purpose: read(given.folder, name, purpose, given.cache) for purpose in ("judged", "test")}
        for name in given.names
    }
    fused = [
        own(name, each["judged"], each["test"]) for name, each in splits.items() if each["judged"] and each["test"]
    ]
    table(fused).write_csv(given.output)
    shared = {name: each["judged"] or each["test"] for name, each in splits.items()}
    trained = {name: judged.some(SHARED) for name, judged in shared.items() if judged is not None}
    free = [without_labels(name, trained, each["test"]) for name, each in splits.items() if each["test"]]
    table(free).write_csv(given.without_labels)


if __name__ == "__main__":
    main()
