"""Fusions of BM25 and an encoder without judgments: nDCG@10 of every rule and weight on prepared collections.

    python studies/default_fusion.py NAME=COLLECTION:SPLIT ... --work FOLDER --output measured/default-fusion.csv
    python studies/default_fusion.py --output measured/default-fusion.csv     # prints the table of the page

Builds both indexes of each collection below FOLDER (an interrupted call continues), scores the union of the top 200 of
both sides exactly for at most 400 judged queries, and measures each rule at dense weights from .3 to .9. `scales.csv`
next to the output has the deviations by queries and by pieces of sentences, and facts that may predict the weight.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

from hybrid_cli.artifacts.retrievers import open_sides
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.sentences import sampled
from hybrid_cli.evaluation import evaluate
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.retrieval.retriever import Retriever
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25

QUERIES, DEPTH, PAIRS, SEED = 400, 200, 2000, 42
WEIGHTS = [round(0.3 + 0.05 * step, 2) for step in range(13)]  # of the dense side
MEASURE = "nDCG@10"
Side = pl.Expr


def over_query(value: pl.Expr) -> pl.Expr:
    """Return a statistic of the candidates of each query."""
    return value.over("qid")


def min_max(score: pl.Expr) -> pl.Expr:
    """Return the scores of each query between 0 and 1."""
    low, high = over_query(score.min()), over_query(score.max())
    return pl.when(high > low).then((score - low) / (high - low)).otherwise(1.0)


def z_score(score: pl.Expr) -> pl.Expr:
    """Return the scores of each query with mean 0 and deviation 1."""
    spread = over_query(score.std(ddof=0))
    return pl.when(spread > 0).then((score - over_query(score.mean())) / spread).otherwise(0.0)


def geometric(score: pl.Expr) -> pl.Expr:
    """Return scores divided by the geometric mean of the deviations of the query and of the collection."""
    return score / (over_query(score.std(ddof=0)) * score.std(ddof=0)).sqrt()


BM25, DENSE = pl.col("bm25"), pl.col("dense")
RULES: dict[str, tuple[Side, Side]] = {
    "exact, min-max": (min_max(BM25), min_max(DENSE)),
    "exact, theoretical minimum": (BM25 / over_query(BM25.max()), (DENSE + 1) / over_query(DENSE.max() + 1)),
    "exact, z-score": (z_score(BM25), z_score(DENSE)),
    "exact, logit": (min_max(BM25), min_max(((1 + DENSE) / (1 - DENSE.clip(upper_bound=0.999))).log())),
    "exact, deviation of query and collection": (geometric(BM25), geometric(DENSE)),
    "exact, deviation of the collection": (BM25 / BM25.std(ddof=0), DENSE / DENSE.std(ddof=0)),
}


def candidates(folder: Path, queries: pl.DataFrame) -> tuple[pl.DataFrame, Retriever]:
    """Return qid, docid and the exact scores `bm25` and `dense` of the union of both lists."""
    sides = open_sides([folder / "bm25", folder / "dense"])
    retriever = Retriever(sides, FusionRecipe("weighted-sum", (1.0, 1.0), "exact"), DEPTH)
    rows = retriever.search(queries, 2 * DEPTH)
    return rows.select("qid", "docid", bm25="bm25_score", dense="dense_score").cast({"bm25": pl.Float64}), retriever


def random_deviations(retriever: Retriever, queries: pl.DataFrame, docids: pl.Series) -> list[float]:
    """Return the deviation of each side's scores over random pairs of query and document."""
    drawn = {
        name: ids.sample(PAIRS, with_replacement=True, seed=SEED)
        for name, ids in (("qid", queries["qid"]), ("docid", docids))
    }
    pairs = pl.DataFrame(drawn)
    return [float(np.std(side.score(pairs, queries).to_numpy())) for side in retriever.sides.values()]


def measured(rows: pl.DataFrame, qrels: pl.DataFrame) -> Callable[[pl.Expr], float]:
    """Return a function from a score of candidates to its mean nDCG@10."""

    def value(score: pl.Expr) -> float:
        run = rows.select("qid", "docid", score=score.fill_null(-1e9))
        return evaluate(run, qrels, [MEASURE])[MEASURE]

    return value


def study(name: str, path: Path, split: str, work: Path) -> tuple[list[dict[str, object]], dict[str, object]]:
    """Return the values of all rules on one collection, and its facts."""
    folder = work / name
    index_bm25(path, output=folder / "bm25")
    encode(path, model="minilm", output=folder / "dense")
    qrels = collections.read_qrels(collections.qrels_path(path, split))
    asked = collections.read_queries(collections.queries_path(path, split)).select("qid", "text")
    asked = asked.join(qrels, on="qid", how="semi", maintain_order="left").head(QUERIES)
    qrels = qrels.join(asked, on="qid", how="semi")
    rows, retriever = candidates(folder, asked)
    value = measured(rows, qrels)
    single = {side: value(pl.col(side)) for side in ("bm25", "dense")}
    pieces = sampled([path], 200, SEED)
    by_pieces, by_queries = retriever.scales(pieces), retriever.scales(asked)
    by_pairs = random_deviations(retriever, asked, collections.docids(path))
    rules = RULES | {
        "exact, deviation by pieces of sentences": (BM25 / by_pieces[0], DENSE / by_pieces[1]),
        "exact, deviation of random pairs": (BM25 / by_pairs[0], DENSE / by_pairs[1]),
    }
    values: list[dict[str, object]] = []
    for rule, (lexical, dense) in rules.items():
        table = rows.with_columns(one=lexical, other=dense)
        fused = measured(table, qrels)
        for weight in WEIGHTS:
            score = (1 - weight) * pl.col("one") + weight * pl.col("other")
            values.append({"collection": name, "rule": rule, "weight": weight, "value": fused(score)})
    whole = Retriever(retriever.sides, FusionRecipe("minmax", (0.5, 0.5), "zero"), 1000)
    for method, k in (("minmax", 60.0), ("zscore", 60.0), ("rrf", 60.0)):
        for weight in WEIGHTS:
            missing = "min" if method == "zscore" else "zero"
            recipe = FusionRecipe(method, (1 - weight, weight), missing, rrf_k=k)  # type: ignore[arg-type]
            run = pl.concat(list(Retriever(whole.sides, recipe, 1000).runs(asked, 10)))
            mean = evaluate(run, qrels, [MEASURE])[MEASURE]
            values.append({"collection": name, "rule": f"lists, {method}", "weight": weight, "value": mean})
    top = rows.group_by("qid").agg(pl.col("dense").max())["dense"].mean()
    facts: dict[str, object] = {"collection": name, "queries": len(asked), **single, "top_cosine": top}
    for origin, scales in (("queries", by_queries), ("pieces", by_pieces), ("pairs", by_pairs)):
        facts |= {f"bm25_by_{origin}": scales[0], f"dense_by_{origin}": scales[1]}
    return values, facts


def table(file: Path) -> Iterator[str]:
    """Yield the table of the page: mean over the collections, worst loss, and number of losses at some weights.

    The last column takes, for each collection, the weight that is best on the others.
    """
    values, facts = pl.read_csv(file), pl.read_csv(file.with_name("default-fusion-scales.csv"))
    single = dict(facts.select("collection", pl.max_horizontal("bm25", "dense")).iter_rows())
    shown = (0.5, 0.6, 0.65, 0.7, 0.8)
    yield f"| Rule | {' | '.join(f'{weight:g}' for weight in shown)} | Leave one out |"
    yield f"|---|{'---|' * (len(shown) + 1)}"
    for (rule,), rows in values.group_by("rule", maintain_order=True):
        wide = rows.pivot(on="weight", index="collection", values="value", maintain_order=True)
        names, matrix = wide["collection"].to_list(), wide.drop("collection").to_numpy()
        weights = [round(float(name), 2) for name in wide.columns[1:]]
        better = np.array([single[name] for name in names])

        def cell(column: np.ndarray, better: np.ndarray = better) -> str:
            gains = column - better
            return f"{column.mean():.4f} ({gains.min():+.3f}, {int((gains < 0).sum())})".replace("0.", ".")

        others = [np.delete(matrix, row, 0).mean(0).argmax() for row in range(len(names))]
        left_out = matrix[np.arange(len(names)), others]
        cells = [cell(matrix[:, weights.index(weight)]) for weight in shown]
        yield f"| {rule} | {' | '.join([*cells, cell(left_out)])} |"
    yield f"\nBetter single run: {np.mean(list(single.values())):.4f}, over {len(single)} collections."


def main() -> None:
    """Measure the given collections."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("collections", nargs="*", metavar="NAME=COLLECTION:SPLIT")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    values: list[dict[str, object]] = []
    facts: list[dict[str, object]] = []
    for given in options.collections:
        name, _, rest = given.partition("=")
        path, _, split = rest.rpartition(":")
        more, fact = study(name, Path(path), split, options.work or options.output.parent)
        values += more
        facts.append(fact)
        pl.DataFrame(values).write_csv(options.output, float_precision=4)
        pl.DataFrame(facts).write_csv(options.output.with_name("default-fusion-scales.csv"), float_precision=4)
        print(name, fact, flush=True)
    print("\n".join(table(options.output)))


if __name__ == "__main__":
    main()
