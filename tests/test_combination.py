"""Two encoders as one: SPAR's equations pair by pair, one index for every weight, tuning, refusals."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from tiny_collection import TINY_DOCUMENTS

from hybrid_cli import artifacts, runs
from hybrid_cli.config import Combining, Encoding, VectorIndex
from hybrid_cli.encoders.combination import Combination, Recipe
from hybrid_cli.encoders.encoder import Encoder, open_encoder
from hybrid_cli.errors import InputError
from hybrid_cli.stages.combine import Judged, combine
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.search import search
from hybrid_cli.stages.train_dense import train_dense

TITLES, TEXTS = [title for _, title, _ in TINY_DOCUMENTS], [text for _, _, text in TINY_DOCUMENTS]
EXACT = Encoding(dtype="fp32")


class Fixed:
    """The vectors of methods 12.2."""

    truncated, device = 0, torch.device("cpu")

    def __init__(self, query: list[float], document: list[float]):
        self.query, self.document, self.dim = query, document, len(query)
        self.fingerprint = str(query)

    def describe(self) -> dict[str, Any]:
        return {}

    def encode_queries(self, texts: Sequence[str], batch_tokens: int = 0) -> np.ndarray:
        return np.array([self.query] * len(texts), np.float32)

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str], batch_tokens: int = 0) -> np.ndarray:
        return np.array([self.document] * len(texts), np.float32)


@pytest.mark.parametrize(("how", "score", "dim"), [("concat", 4.3, 4), ("sum", 10.65, 2)])
def test_golden_scores(how: Any, score: float, dim: int):
    parts: list[Encoder] = [Fixed([1, 2], [3, 1]), Fixed([0.5, -1], [2, 2])]
    both = Combination(Recipe(how, 0.7), parts)
    query, document = both.encode_queries(["q"])[0], both.encode_documents([""], ["d"])[0]
    assert len(query) == both.dim == dim
    assert float(query @ document) == pytest.approx(score)


@pytest.fixture(scope="module")
def indexed(tiny: Path, tiny_bert: Path, tiny_lambda: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the combination of both models and its index, and with an index of each."""
    folder = tmp_path_factory.mktemp("combined")
    combine([str(tiny_bert), str(tiny_lambda)], folder / "model", how=Combining("concat", 0.7))
    encode(tiny, model=str(folder / "model"), encoding=EXACT, output=folder / "both")
    encode(tiny, model=str(tiny_bert), encoding=EXACT, output=folder / "dense")
    encode(tiny, model=str(tiny_lambda), encoding=EXACT, output=folder / "lambda")
    return folder


def found(tiny: Path, index: Path, output: Path, weight: float | None = None, model: str | None = None) -> pl.DataFrame:
    found = search(tiny, split="test", index=index, output=output, weight=weight, model=model)
    return runs.read_run(found)


@pytest.mark.parametrize("weight", [None, 0.0, 2.5, -1.0])
def test_a_flat_index_gives_the_sum_of_both_scores(indexed: Path, tiny: Path, tmp_path: Path, weight: float | None):
    both = found(tiny, indexed / "both", tmp_path / "both.parquet", weight)
    dense = found(tiny, indexed / "dense", tmp_path / "dense.parquet")
    lexical = found(tiny, indexed / "lambda", tmp_path / "lambda.parquet")
    table = both.join(dense, on=["qid", "docid"], suffix="_dense").join(lexical, on=["qid", "docid"], suffix="_lambda")
    assert len(table) == len(both) == len(dense)
    wanted = table["score_dense"] + (0.7 if weight is None else weight) * table["score_lambda"]
    np.testing.assert_allclose(table["score"], wanted, atol=1e-4)


def test_the_weight_leads_from_one_ranking_to_the_other(indexed: Path, tiny: Path, tmp_path: Path):
    for weight, name in ((0.0, "dense"), (1e6, "lambda")):
        alone = found(tiny, indexed / name, tmp_path / f"{name}.parquet")
        both = found(tiny, indexed / "both", tmp_path / f"both-{name}.parquet", weight)
        shared = alone.filter(pl.col("score").abs() > 1e-3)  # a query without terms has equal scores everywhere
        order = both.join(shared.select("qid", "docid"), on=["qid", "docid"])["docid"]
        assert order.to_list() == shared["docid"].to_list()


def test_two_models_of_encode_are_the_combination_and_lie_in_the_index(
    indexed: Path, tiny: Path, tiny_bert: Path, tiny_lambda: Path, tmp_path: Path
):
    dense, lexical = tmp_path / "dense", tmp_path / "lambda"
    shutil.copytree(tiny_bert, dense)
    shutil.copytree(tiny_lambda, lexical)
    index = encode(
        tiny, model=str(dense), second=str(lexical), combine=Recipe("concat", 0.7), encoding=EXACT,
        output=tmp_path / "index",
    )  # fmt: skip
    shutil.rmtree(dense)
    shutil.rmtree(lexical)
    one = found(tiny, index, tmp_path / "one.parquet")
    other = found(tiny, indexed / "both", tmp_path / "other.parquet")
    assert one.equals(other)
    again = encode(index, index=VectorIndex("sq8"), output=tmp_path / "sq8")
    shutil.rmtree(index)
    assert len(found(tiny, again, tmp_path / "sq8.parquet")) == len(one)


@pytest.mark.parametrize("how", ["concat", "sum"])
def test_two_indexes_are_combined_without_encoding(indexed: Path, tiny: Path, tiny_bert: Path, tmp_path: Path, how):
    second = indexed / ("lambda" if how == "concat" else "dense")
    model = str(second.parent / "model" / "part-2") if how == "concat" else str(tiny_bert)
    index = encode(
        indexed / "dense", beside=second, combine=Recipe(how, 0.7), encoding=Encoding(shard_size=5),
        output=tmp_path / "joined",
    )  # fmt: skip
    encoded = encode(
        tiny, model=str(tiny_bert), second=model, combine=Recipe(how, 0.7), encoding=EXACT, output=tmp_path / "encoded"
    )
    assert artifacts.read_manifest(index).input_path("corpus") == tiny / "corpus.parquet"
    one, other = (found(tiny, path, tmp_path / f"{path.name}.parquet") for path in (index, encoded))
    assert one.drop("score").equals(other.drop("score"))
    np.testing.assert_allclose(one["score"], other["score"], atol=1e-5)
    with pytest.raises(InputError, match="a dense index is needed here"):
        encode(tiny, beside=second, output=tmp_path / "no")


def test_a_sum_has_its_cross_terms(tiny: Path, tiny_bert: Path, tmp_path: Path):
    model = combine([str(tiny_bert), str(tiny_bert)], tmp_path / "model", how=Combining("sum", 3.0))
    encoder, alone = open_encoder(model), open_encoder(tiny_bert)
    scores = encoder.encode_queries(["salt"]) @ encoder.encode_documents(TITLES, TEXTS).T
    once = alone.encode_queries(["salt"]) @ alone.encode_documents(TITLES, TEXTS).T
    np.testing.assert_allclose(scores, 8 * once, rtol=1e-4)  # (1 + 3) of the query, 2 of the passages


@pytest.mark.parametrize("grid", ["reciprocal", "log"])
def test_tuning_writes_the_best_weight(indexed: Path, tiny: Path, tmp_path: Path, grid: Any, capsys):
    models = [str(part) for part in (indexed / "model" / "part-1", indexed / "model" / "part-2")]
    how = Combining(measure="MRR@10", grid=grid)
    output = combine(models, tmp_path / "tuned", how=how, tune=Judged(tiny, "train", indexed / "both"))
    counts = artifacts.read_manifest(output).counts
    assert f"{counts['weight']:g}" in capsys.readouterr().out
    assert open_encoder(output).describe()["weight"] == counts["weight"]

    def score(weight: float) -> float:
        path = tmp_path / f"{weight}.parquet"
        run = runs.read_run(search(tiny, split="train", index=indexed / "both", output=path, weight=weight))
        qrels = pl.read_parquet(tiny / "qrels.train.parquet").filter(pl.col("relevance") > 0)
        first = run.join(qrels, on=["qid", "docid"]).group_by("qid").agg(pl.col("rank").min())
        return (1 / first.filter(pl.col("rank") <= 10)["rank"]).sum() / qrels["qid"].n_unique()

    assert score(counts["weight"]) == pytest.approx(counts["tuned"]["score"])
    assert score(counts["weight"]) >= max(score(weight) for weight in (0.1, 0.5, 1.0, 2.0, 10.0))
    run = found(tiny, indexed / "both", tmp_path / "run.parquet", model=str(output))
    same = found(tiny, indexed / "both", tmp_path / "same.parquet", weight=counts["weight"])
    assert run.equals(same)


def test_the_reciprocal_grid_is_that_of_the_paper():
    from hybrid_cli.fusion.tuning import reciprocal_grid

    weights = [weight for weight, _ in reciprocal_grid(2)]
    assert len(weights) == 19
    assert weights[0] == 0.1
    assert weights[-1] == 10
    assert [round(weight, 2) for weight in weights[10:]] == [1.11, 1.25, 1.43, 1.67, 2, 2.5, 3.33, 5, 10]


def test_what_cannot_be_combined_is_refused(indexed: Path, tiny: Path, tiny_bert: Path, tiny_lambda: Path, tmp_path):
    models = [str(tiny_bert), str(tiny_lambda)]
    with pytest.raises(InputError, match="adds vectors of one length, these have 16 and 6; use concat"):
        combine(models, tmp_path / "no", how=Combining("sum"))
    with pytest.raises(InputError, match="--weight nan: must be a finite number"):
        combine(models, tmp_path / "no", how=Combining(weight=float("nan")))
    with pytest.raises(InputError, match="only a combination has a --weight"):
        found(tiny, indexed / "dense", tmp_path / "no.parquet", weight=0.5)
    with pytest.raises(InputError, match="--doc-max-len: means nothing to two models"):
        encode(tiny, model=models[0], second=models[1], output=tmp_path / "no", contract={"doc_max_len": 9})
    assert not (tmp_path / "no").exists()


def test_an_index_refuses_another_pair(indexed: Path, tiny: Path, tiny_bert: Path, tmp_path: Path):
    other = combine([str(tiny_bert), str(tiny_bert)], tmp_path / "other")
    with pytest.raises(InputError, match=r"was encoded with part-2 .* encode again"):
        found(tiny, indexed / "both", tmp_path / "no.parquet", model=str(other))
    with pytest.raises(InputError, match="was not made by these models combined in this way"):
        combine([str(tiny_bert), str(tiny_bert)], tmp_path / "t", tune=Judged(tiny, "train", indexed / "both"))
    with pytest.raises(InputError, match="is a combination encoder; a transformer is needed here"):
        train_dense(tmp_path / "examples.parquet", output=tmp_path / "no", model=str(other))
