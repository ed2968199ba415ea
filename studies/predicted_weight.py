"""The weight of a collection without judgments: facts that may predict it, and what a prediction gains.

    python studies/predicted_weight.py FOLDER NAME... [--dense SYSTEM]    facts of collections, with their indexes
    python studies/predicted_weight.py                                    prints the tables of studies/default-fusion.md

FOLDER/NAME has the indexes FOLDER/NAME.bm25 and FOLDER/NAME.SYSTEM (benchmarks/prior.mk). The values of all weights are
those of `benchmarks/prior.py measure`, in measured/few-labels.parquet; the facts are written next to them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli import draws
from hybrid_cli.artifacts.indexes import manifests_of
from hybrid_cli.artifacts.retrievers import default_fusion, open_sides
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.sentences import QUESTION_WORDS, sampled, split, word_count
from hybrid_cli.evaluation.measures import evaluate_positions
from hybrid_cli.fusion.lists import Lists, complete
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.fusion.tuning import WEIGHTS, MethodGrid, tabulate
from hybrid_cli.runs.index import Index

MEASURED = Path(__file__).with_name("measured")
FACTS, CURVES = MEASURED / "predicted-weight.csv", MEASURED / "few-labels.parquet"
Values = npt.NDArray[Any]
QUERIES, DEPTH, SEED = 400, 1000, 7
DEFAULT = WEIGHTS.index(0.7)
NEAR = 0.003  # weights whose nDCG@10 is so close to the best are equally good
REASONS = {
    "cosine": "mean cosine of the first dense hit",
    "margin": "first dense hit less the mean of the first 100, in deviations",
    "bm25_margin": "the same of BM25",
    "overlap": "common hits among the first 10",
    "dense_in_bm25": "log rank of the first dense hit in BM25's list",
    "bm25_in_dense": "log rank of BM25's first hit in the dense list",
    "pieces": "pieces of sentences: log ratio of MRR@10 of the source, dense to BM25",
    "pieces_best": "pieces of sentences: weight of highest MRR@10 of the source",
    "bags_best": "words of a document: weight of highest MRR@10 of the source",
}


def facts(folder: Path, name: str, dense: str) -> dict[str, object]:
    """Return the facts of a collection, over at most `QUERIES` queries and as many documents."""
    indexes = [folder / f"{name}.{system}" for system in ("bm25", dense)]
    sides = open_sides(indexes)
    scales = default_fusion(sides, manifests_of(indexes)).scales
    asked = collections.read_queries(collections.queries_path(folder / name, "test")).select("qid", "text")
    found = _of_queries(asked.sample(min(QUERIES, len(asked)), seed=SEED), list(sides.values()), scales)
    pieces = _known(sampled([folder / name], QUERIES, SEED), list(sides.values()), scales)
    bags = _known(_bags(folder / name), list(sides.values()), scales)
    found |= {"pieces": float(np.log(pieces[-1] / pieces[0])), "pieces_best": WEIGHTS[int(pieces.argmax())]}
    return {"collection": name, "dense": dense, **found, "bags_best": WEIGHTS[int(bags.argmax())]}


def _of_queries(queries: pl.DataFrame, sides: Sequence[Index], scales: Sequence[float]) -> dict[str, object]:
    bm25, dense = (pl.concat(side.runs(queries, DEPTH)) for side in sides)
    key = ["qid", "docid"]

    def margin(run: pl.DataFrame, scale: float) -> float:
        top = run.filter(pl.col("rank") <= 100).group_by("qid").agg(pl.col("score").max() - pl.col("score").mean())
        return float(top["score"].mean()) / scale  # type: ignore[arg-type]

    def log_rank(first: pl.DataFrame, other: pl.DataFrame) -> float:
        at = first.filter(rank=1).select(key).join(other.select(*key, "rank"), on=key, how="left")["rank"]
        return float(at.fill_null(DEPTH + 1).log().mean())  # type: ignore[arg-type]

    heads = [run.filter(pl.col("rank") <= 10).select(key) for run in (bm25, dense)]
    return {
        "cosine": float(dense.filter(rank=1)["score"].mean()),  # type: ignore[arg-type]
        "margin": margin(dense, scales[1]),
        "bm25_margin": margin(bm25, scales[0]),
        "overlap": len(heads[0].join(heads[1], on=key)) / len(heads[1]),
        "dense_in_bm25": log_rank(dense, bm25),
        "bm25_in_dense": log_rank(bm25, dense),
    }


def _bags(path: Path) -> pl.DataFrame:
    """Return words drawn from documents, without their order, as queries: qid (the docid), text."""
    documents = collections.scan(path).select("docid", "text").collect().sample(QUERIES, seed=SEED)
    rows = []
    for docid, text in documents.iter_rows():
        words = [word for piece in split(text) if word_count(piece) > 2 for word in piece.split() if word.isalpha()]
        draw = draws.generator(SEED, docid)
        if len(words) > min(QUESTION_WORDS):
            rows.append((docid, " ".join(draw.sample(words, min(len(words), draw.choice(QUESTION_WORDS))))))
    return pl.DataFrame(rows, schema=["qid", "text"], orient="row")


def _known(queries: pl.DataFrame, sides: Sequence[Index], scales: Sequence[float]) -> Values:
    """Return MRR@10 of the documents that the queries are of, at every weight of the dense side."""
    qrels = queries.select("qid", docid="qid", relevance=pl.lit(1, pl.Int32))
    joined = Lists.of([pl.concat(side.runs(queries, DEPTH)) for side in sides])
    blocks = list(complete(joined.blocks(), joined.qids, [side.scorer(queries) for side in sides]))
    grid = MethodGrid(FusionRecipe("weighted-sum", (1.0, 1.0), "exact"), "scaled", scales=scales)
    choices, (values,) = tabulate(
        grid,
        blocks,
        joined.qids,
        [qrels],
        DEPTH,
        lambda judged: evaluate_positions(judged, ["MRR@10"])["value"].to_numpy(),
    )
    return np.asarray(values.mean(1)[np.argsort([choice.shares[1] for choice in choices])])


def predictions(known: pl.DataFrame, target: Values, names: Sequence[str]) -> Values:
    """Return the weight of each collection by a ridge regression on the others, of standardized facts."""
    table, found = known.select(names).to_numpy(), []
    for row in range(len(table)):
        others = np.arange(len(table)) != row
        mean, spread = table[others].mean(0), table[others].std(0) + 1e-9
        units, centered = (table[others] - mean) / spread, target[others] - target[others].mean()
        slopes = np.linalg.solve(units.T @ units + np.eye(len(names)), units.T @ centered)
        found.append(target[others].mean() + (table[row] - mean) / spread @ slopes)
    return np.array(found)


def tables(dense: str) -> Iterator[str]:
    """Yield the lines of the page: facts, and gains of the predictions over the default."""
    known = pl.read_csv(FACTS).filter(dense=dense)
    curves = np.array([_curve(name, dense) for name in known["collection"]])
    near = [np.flatnonzero(curve >= curve.max() - NEAR) for curve in curves]
    target = np.array([np.mean([WEIGHTS[at] for at in of_curve]) for of_curve in near])

    def gains(weights: Values) -> Values:
        rows = zip(weights.clip(0, 1), curves, strict=True)
        return np.array([np.interp(weight, WEIGHTS, curve) - curve[DEFAULT] for weight, curve in rows])

    yield f"| Collection | default | best weight | its gain | {' | '.join(REASONS)} |"
    yield f"|---|{'---|' * (3 + len(REASONS))}"
    for row, (name, curve, rows) in enumerate(zip(known["collection"], curves, near, strict=True)):
        ends = f"{WEIGHTS[rows[0]]:.2f} to {WEIGHTS[rows[-1]]:.2f}"
        cells = [f"{curve[DEFAULT]:.4f}", ends, f"{curve.max() - curve[DEFAULT]:+.4f}"]
        yield f"| {name} | {' | '.join([*cells, *(f'{known[fact][row]:.2f}' for fact in REASONS)])} |"
    yield "\n| Prediction, half of the way from .7 | Mean gain | Least gain |\n|---|---|---|"
    formula = 2.41 * known["cosine"].to_numpy() + 0.08 * known["margin"].to_numpy() - 0.945
    yield _line("2.41 cosine + .08 margin - .945", gains(0.7 + (formula - 0.7) / 2))
    single, pairs = [[fact] for fact in REASONS], [list(pair) for pair in combinations(REASONS, 2)]

    def left_out(names: Sequence[str], rows: Values) -> Values:
        weights = np.full(len(target), 0.7)
        weights[rows] += (predictions(known.filter(pl.Series(rows)), target[rows], names) - 0.7) / 2
        return gains(weights)[rows]

    every = np.ones(len(target), dtype=bool)
    for (fact,) in single:
        yield _line(REASONS[fact], left_out([fact], every))
    found = sorted(pairs, key=lambda pair: float(left_out(pair, every).mean()))
    yield _line("median pair of facts", left_out(found[len(pairs) // 2], every))
    yield _line(f"best pair: {' and '.join(found[-1])}", left_out(found[-1], every))
    chosen = []
    for row in range(len(target)):
        others = np.arange(len(target)) != row
        best = max([*single, *pairs], key=lambda names: float(left_out(names, others).mean()))
        chosen.append(left_out(best, every)[row])
    yield _line("the best of all, chosen without the collection", np.array(chosen))


def _curve(name: str, dense: str) -> Values:
    key = {"collection": name, "split": "test", "dense": dense, "family": "weighted-sum", "measure": "nDCG@10"}
    return np.array(pl.read_parquet(CURVES).filter(**key)["values"].to_list()).mean(0)


def _line(label: str, gains: Values) -> str:
    return f"| {label} | {gains.mean():+.4f} | {gains.min():+.4f} |"


def main() -> None:
    """Measure the given collections, or print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--dense", default="minilm")
    given = parser.parse_args()
    for name in given.names:
        row = pl.DataFrame([facts(given.folder, name, given.dense)])
        before = pl.read_csv(FACTS) if FACTS.is_file() else row.clear()
        kept = before.join(row, on=["collection", "dense"], how="anti")
        pl.concat([kept, row]).write_csv(FACTS, float_precision=4)
    if not given.names:
        print("\n".join(tables(given.dense)))


if __name__ == "__main__":
    main()
