"""Combinations of encoders, and ensembles of learners."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
import torch
from command import Notices, hybrid, raises
from tiny_collection import TINY_DOCUMENTS

from hybrid_cli import artifacts, runs
from hybrid_cli.encoders import composite
from hybrid_cli.encoders.composite import Combination, CombinationRecipe
from hybrid_cli.encoders.contract import Encoder
from hybrid_cli.encoders.models import open_encoder
from hybrid_cli.evaluation.measures import evaluate_run
from hybrid_cli.reporting.tables import figure
from hybrid_cli.stages.combine import combine
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.search import search
from hybrid_cli.stages.train_dense import train_dense

TITLES, TEXTS = [title for _, title, _ in TINY_DOCUMENTS], [text for _, _, text in TINY_DOCUMENTS]


class Fixed:
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


@pytest.mark.parametrize(("mode", "score", "dim"), [("concat", 4.3, 4), ("sum", 10.65, 2)])
def test_golden_scores(mode: Any, score: float, dim: int) -> None:
    parts: list[Encoder] = [Fixed([1, 2], [3, 1]), Fixed([0.5, -1], [2, 2])]
    both = Combination(CombinationRecipe(mode, 0.7), parts)
    query, document = both.encode_queries(["q"])[0], both.encode_documents([""], ["d"])[0]
    assert len(query) == both.dim == dim
    assert float(query @ document) == pytest.approx(score)


@pytest.fixture(scope="module")
def indexed(tiny: Path, tiny_bert: Path, tiny_lambda: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("combined")
    combine([tiny_bert, tiny_lambda], output=folder / "model", weight=0.7)
    encode(tiny, model=str(folder / "model"), dtype="fp32", output=folder / "both")
    encode(tiny, model=str(tiny_bert), dtype="fp32", output=folder / "dense")
    encode(tiny, model=str(tiny_lambda), output=folder / "lambda")
    return folder


@pytest.fixture(scope="module")
def other_bert(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other") / "bert"
    shutil.copytree(tiny_bert, folder)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"gelu"', '"relu"'))
    return folder


def found(tiny: Path, index: Path, output: Path, weight: float | None = None, model: str | None = None) -> pl.DataFrame:
    return runs.read_run(search(tiny, split="test", index=index, output=output, weight=weight, model=model))


@pytest.mark.parametrize("weight", [None, 0.0, 2.5, -1.0])
def test_flat_scores_are_the_sum_of_both_scores(
    indexed: Path, tiny: Path, tmp_path: Path, weight: float | None
) -> None:
    both = found(tiny, indexed / "both", tmp_path / "both.parquet", weight)
    dense = found(tiny, indexed / "dense", tmp_path / "dense.parquet")
    lexical = found(tiny, indexed / "lambda", tmp_path / "lambda.parquet")
    table = both.join(dense, on=["qid", "docid"], suffix="_dense").join(lexical, on=["qid", "docid"], suffix="_lambda")
    assert len(table) == len(both) == len(dense)
    expected = table["score_dense"] + (0.7 if weight is None else weight) * table["score_lambda"]
    np.testing.assert_allclose(table["score"], expected, atol=1e-4)


def test_extreme_weights_give_the_rankings_of_the_single_encoders(indexed: Path, tiny: Path, tmp_path: Path) -> None:
    for weight, name in ((0.0, "dense"), (1e6, "lambda")):
        alone = found(tiny, indexed / name, tmp_path / f"{name}.parquet")
        both = found(tiny, indexed / "both", tmp_path / f"both-{name}.parquet", weight)
        shared = alone.filter(pl.col("score").abs() > 1e-3)  # a query without terms has equal scores everywhere
        order = both.join(shared.select("qid", "docid"), on=["qid", "docid"])["docid"]
        assert order.to_list() == shared["docid"].to_list()


def test_encoding_with_two_models_stores_the_combination_in_the_index(
    indexed: Path, tiny: Path, tiny_bert: Path, tiny_lambda: Path, tmp_path: Path
) -> None:
    dense, lexical = tmp_path / "dense", tmp_path / "lambda"
    shutil.copytree(tiny_bert, dense)
    shutil.copytree(tiny_lambda, lexical)
    index = encode(
        tiny, model=[str(dense), str(lexical)], combine="concat", weight=0.7, dtype="fp32", output=tmp_path / "index"
    )
    shutil.rmtree(dense)
    shutil.rmtree(lexical)
    one = found(tiny, index, tmp_path / "one.parquet")
    other = found(tiny, indexed / "both", tmp_path / "other.parquet")
    assert one.equals(other)
    again = encode(index, index_type="sq8", output=tmp_path / "sq8")
    shutil.rmtree(index)
    assert len(found(tiny, again, tmp_path / "sq8.parquet")) == len(one)


@pytest.mark.parametrize("mode", ["concat", "sum"])
def test_indexes_are_combined(
    indexed: Path, tiny: Path, tiny_bert: Path, other_bert: Path, tmp_path: Path, mode: Any
) -> None:
    if mode == "concat":
        second, model = indexed / "lambda", str(indexed / "model" / "part-2")
    else:
        second, model = encode(tiny, model=str(other_bert), dtype="fp32", output=tmp_path / "other"), str(other_bert)
    index = encode(
        indexed / "dense", concat_with=second, combine=mode, weight=0.7, shard_size=5, output=tmp_path / "joined"
    )
    encoded = encode(
        tiny, model=[str(tiny_bert), model], combine=mode, weight=0.7, dtype="fp32", output=tmp_path / "encoded"
    )
    assert artifacts.read_manifest(index).input_path("corpus") == tiny / "corpus.parquet"
    one, other = (found(tiny, path, tmp_path / f"{path.name}.parquet") for path in (index, encoded))
    assert one.drop("score").equals(other.drop("score"))
    np.testing.assert_allclose(one["score"], other["score"], atol=1e-5)


def test_a_sum_has_its_cross_terms(tiny_bert: Path, other_bert: Path, tmp_path: Path) -> None:
    model = combine([tiny_bert, other_bert], output=tmp_path / "model", combine="sum", weight=3.0)
    encoder, parts = open_encoder(model), [open_encoder(each) for each in (tiny_bert, other_bert)]
    scores = encoder.encode_queries(["salt"]) @ encoder.encode_documents(TITLES, TEXTS).T
    first, second = (part.encode_queries(["salt"]) for part in parts)
    documents = np.sum([part.encode_documents(TITLES, TEXTS) for part in parts], axis=0)
    np.testing.assert_allclose(scores, (first + 3 * second) @ documents.T, rtol=1e-4)


def test_an_encoder_is_not_combined_with_itself(tiny_bert: Path, workdir: Path) -> None:
    shutil.copytree(tiny_bert, workdir / "copy")
    both = [str(tiny_bert), "copy"]
    with raises("repeated-input"):
        combine(both, output=Path("no"))
    assert not Path("no").exists()


@pytest.mark.parametrize("grid", ["scaled", "reciprocal", "log"])
def test_tuning_selects_the_best_weight_or_one_that_queries_cannot_tell_from_it(
    indexed: Path, tiny: Path, tmp_path: Path, grid: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [indexed / "model" / "part-1", indexed / "model" / "part-2"]
    output = combine(
        models, output=tmp_path / "tuned", tune=tiny, split="train", index=indexed / "both", measure="MRR@10", grid=grid
    )
    counts = artifacts.read_manifest(output).counts
    assert f"{counts['weight']:g}" in capsys.readouterr().out
    assert open_encoder(output).describe()["weight"] == counts["weight"]

    def values(weight: float) -> np.ndarray:
        path = tmp_path / f"{weight}.parquet"
        run = runs.read_run(search(tiny, split="train", index=indexed / "both", output=path, weight=weight))
        qrels = pl.read_parquet(tiny / "qrels.train.parquet").filter(pl.col("relevance") > 0)
        first = run.join(qrels, on=["qid", "docid"]).group_by("qid").agg(pl.col("rank").min())
        every = qrels.select("qid").unique().join(first, on="qid", how="left").sort("qid")
        return np.where(every["rank"].fill_null(11) <= 10, 1 / every["rank"].fill_null(11), 0.0)

    mine = values(counts["weight"])
    assert mine.mean() == pytest.approx(counts["tuned"]["score"])
    for gap in (values(weight) - mine for weight in (0.1, 0.5, 1.0, 2.0, 10.0)):
        assert gap.mean() <= (gap.std(ddof=1) / len(gap) ** 0.5 if grid == "scaled" else 0) + 1e-9
    run = found(tiny, indexed / "both", tmp_path / "run.parquet", model=str(output))
    same = found(tiny, indexed / "both", tmp_path / "same.parquet", weight=counts["weight"])
    assert run.equals(same)


@pytest.mark.heavy
def test_one_judged_query_selects_equal_shares(indexed: Path, tiny: Path, tmp_path: Path) -> None:
    """One query tells no weight from the best. Neither encoder alone is a choice, since neither has a finite weight."""
    data, best = tmp_path / "data", set()
    shutil.copytree(tiny, data)
    models = [indexed / "model" / "part-1", indexed / "model" / "part-2"]
    for qrel in pl.read_parquet(tiny / "qrels.train.parquet").iter_slices(1):
        qrel.write_parquet(data / "qrels.train.parquet")
        options: dict[str, Any] = {"tune": data, "split": "train", "index": indexed / "both", "measure": "MRR"}
        scaled, log = (
            artifacts.read_manifest(
                combine(models, output=tmp_path / grid, grid=grid, overwrite=True, **options)
            ).counts["tuned"]
            for grid in ("scaled", "log")
        )
        assert scaled["trials"] == 19
        assert scaled["share"] == pytest.approx(0.5)
        best.add(log["score"] > scaled["score"])
    assert True in best  # of some queries, the middle is not the best


def tuned_counts(model: Path) -> dict[str, Any]:
    return cast(dict[str, Any], artifacts.read_manifest(model).counts["tuned"])


def test_tuning_shows_each_encoder_alone_and_no_held_out_score_of_one_query(
    indexed: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [indexed / "model" / "part-1", indexed / "model" / "part-2"]
    options: dict[str, Any] = {"index": indexed / "both", "measure": "MRR@10", "overwrite": True}
    tuned = tuned_counts(combine(models, output=tmp_path / "t", tune=tiny, split="train", **options))
    for index, model in zip(("dense", "lambda"), models, strict=True):
        score = tuned["alone"][str(model)]
        run = runs.read_run(search(tiny, split="train", index=indexed / index, output=tmp_path / f"{index}.parquet"))
        alone = evaluate_run(run, pl.read_parquet(tiny / "qrels.train.parquet"), ["MRR@10"])["value"]
        assert score == pytest.approx(alone.to_numpy().mean())
    assert figure(tuned["held_out"]) in capsys.readouterr().out
    one = tmp_path / "one"
    shutil.copytree(tiny, one)
    for role in ("queries", "qrels"):
        (one / f"{role}.test.parquet").unlink()  # one split is left, which needs no --split
    pl.read_parquet(tiny / "qrels.train.parquet").head(1).write_parquet(one / "qrels.train.parquet")
    tuned = tuned_counts(combine(models, output=tmp_path / "t", tune=one, **options))
    assert tuned["queries"] == 1
    assert tuned["held_out"] is None
    assert "1 judged query" in " ".join(capsys.readouterr().out.split())
    none = pl.read_parquet(one / "qrels.train.parquet").with_columns(docid=pl.lit("absent"))
    none.write_parquet(one / "qrels.train.parquet")
    with raises("measure-always-zero", path="qrels.train.parquet", option="measure", value="MRR@10"):
        combine(models, output=tmp_path / "t", tune=one, **options)


def test_another_combination_fails(
    indexed: Path, tiny: Path, tiny_bert: Path, other_bert: Path, tmp_path: Path
) -> None:
    other = combine([tiny_bert, other_bert], output=tmp_path / "other")
    with raises("other-encoder"):
        found(tiny, indexed / "both", tmp_path / "no.parquet", model=str(other))
    with raises("other-encoder"):
        combine([tiny_bert, other_bert], output=tmp_path / "t", tune=tiny, split="train", index=indexed / "both")
    with raises("other-kind", kind="combination", expected="transformer"):
        train_dense(tmp_path / "mined.parquet", output=tmp_path / "no", model=str(other))


PLAN: dict[str, Any] = {"batch_size": 4, "epochs": 10, "max_steps": 10, "learning_rate": 1e-3, "dtype": "fp32"}
NLL = {**PLAN, "loss": "nll"}
SALTY = ["salt water", "a river and its bank"]


def test_the_score_of_an_ensemble_is_the_sum_of_its_learners_scores(ensembles: Path) -> None:
    whole = open_encoder(ensembles / "3")
    assert whole.dim == 12
    two, third = composite.parts(ensembles / "3")
    learners = [open_encoder(folder) for folder in (*composite.parts(two), third)]
    scores = [each.encode_queries(SALTY) @ each.encode_documents(["", ""], SALTY).T for each in learners]
    np.testing.assert_allclose(
        whole.encode_queries(SALTY) @ whole.encode_documents(["", ""], SALTY).T, sum(scores), atol=1e-5
    )
    np.testing.assert_array_equal(
        learners[0].encode_queries(SALTY), open_encoder(ensembles / "1").encode_queries(SALTY)
    )
    assert not np.allclose(scores[1], scores[2])


def test_a_learner_has_the_contract_of_the_previous_learners(ensembles: Path) -> None:
    learner = composite.parts(ensembles / "3")[1]
    assert open_encoder(learner).describe() == open_encoder(ensembles / "1").describe()


def test_an_ensemble_grows_index_by_index(ensembles: Path, tiny: Path, tmp_path: Path) -> None:
    """The concatenated indexes of the previous learners and of the new one are the index of the ensemble."""
    model = str(ensembles / "3")
    whole = encode(tiny, model=model, output=tmp_path / "whole")
    earlier, learner = composite.parts(ensembles / "3")
    halves = [encode(tiny, model=str(part), output=tmp_path / part.name) for part in (earlier, learner)]
    grown = encode(halves[0], concat_with=halves[1], output=tmp_path / "grown")
    runs = [
        pl.read_parquet(search(tiny, split="test", index=index, model=model, output=tmp_path / f"{i}.parquet"))
        for i, index in enumerate((whole, grown))
    ]
    assert runs[0]["docid"].equals(runs[1]["docid"])
    np.testing.assert_allclose(runs[0]["score"], runs[1]["score"], atol=1e-5)


def test_the_residual_learner_starts_at_the_loss_of_the_ensemble(
    mined: Path, ensembles: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    """With the scores of the ensemble, the loss of the first step is lower than that of an untrained learner."""
    residual: dict[str, Any] = {"loss": "residual-nll", "scorer": str(ensembles / "1")}
    losses = {}
    for name, options in {"nll": {"loss": "nll"}, "residual_nll": residual}.items():
        output = tmp_path / name
        train_dense(mined, output=output, model=str(tiny_bert), **PLAN, boost=str(ensembles / "1"), **options)
        losses[name] = pl.read_parquet(output / "curve.parquet").filter(name=name)["value"].to_list()
        assert open_encoder(output).dim == 8
    assert losses["residual_nll"][0] < losses["nll"][0]
    one, other = (open_encoder(composite.parts(tmp_path / name)[1]).encode_queries(SALTY) for name in losses)
    assert not np.allclose(one, other, atol=1e-4)


def test_examples_without_a_run(
    mined: Path, ensembles: Path, tiny: Path, tiny_bert: Path, tmp_path: Path, notices: Notices
) -> None:
    index = encode(tiny, model=str(ensembles / "1"), output=tmp_path / "index")
    run = search(tiny, split="train", index=index, output=tmp_path / "run.parquet")
    by_run = mine_negatives(tiny, split="train", sources=[f"run:{run}:2"], output=tmp_path / "by_run.parquet")
    for number, (used, warned) in enumerate(((mined, True), (by_run, False))):
        notices.clear()
        train_dense(used, output=tmp_path / str(number), model=str(tiny_bert), **NLL, boost=str(ensembles / "1"))
        assert notices.says("boost-not-mined", path=used) is warned


def test_a_static_encoder_is_no_ensemble(mined: Path, tiny_lambda: Path, tiny_bert: Path, tmp_path: Path) -> None:
    done = hybrid("train-dense", mined, "--boost", tiny_lambda, "--model", tiny_bert, "--output", tmp_path / "no")
    assert done.code == 2
    assert (done.problem, done.fields["kind"], done.fields["expected"]) == ("other-kind", "static", "transformer")
