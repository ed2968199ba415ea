"""DrBoost: `--boost` adds a learner to an ensemble, whose score is the sum of its learners' scores."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import Notices, hybrid

from hybrid_cli.encoders import composite
from hybrid_cli.encoders.models import open_encoder
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.search import search
from hybrid_cli.stages.train_dense import train_dense

PLAN: dict[str, Any] = {"batch_size": 4, "epochs": 10, "max_steps": 10, "learning_rate": 1e-3, "dtype": "fp32"}
NLL = {**PLAN, "loss": "nll"}
TEXTS = ["salt water", "a river and its bank"]


@pytest.fixture(scope="module")
def examples(tiny: Path, tiny_lambda: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("boost") / "examples.parquet"
    return mine_negatives(tiny, split="train", index=tiny_lambda.parent / "bm25", output=output)


@pytest.fixture(scope="module")
def first(examples: Path, tiny_bert: Path) -> Path:
    folder = examples.parent / "first"
    return train_dense(examples, output=folder, model=str(tiny_bert), **NLL, dim=4, doc_max_len=24)


@pytest.fixture(scope="module")
def ensemble(examples: Path, first: Path, tiny_bert: Path) -> Path:
    two, three = (examples.parent / name for name in ("two", "three"))
    train_dense(examples, output=two, model=str(tiny_bert), **NLL, seed=2, boost=str(first))
    return train_dense(examples, output=three, model=str(tiny_bert), **NLL, seed=3, boost=str(two))


def test_the_score_of_an_ensemble_is_the_sum_of_its_learners_scores(ensemble: Path, first: Path) -> None:
    whole = open_encoder(ensemble)
    assert whole.dim == 12
    two, third = composite.parts(ensemble)
    learners = [open_encoder(folder) for folder in (*composite.parts(two), third)]
    scores = [each.encode_queries(TEXTS) @ each.encode_documents(["", ""], TEXTS).T for each in learners]
    np.testing.assert_allclose(
        whole.encode_queries(TEXTS) @ whole.encode_documents(["", ""], TEXTS).T, sum(scores), atol=1e-5
    )
    np.testing.assert_array_equal(learners[0].encode_queries(TEXTS), open_encoder(first).encode_queries(TEXTS))
    assert not np.allclose(scores[1], scores[2])


def test_a_learner_has_the_contract_of_the_previous_learners(ensemble: Path, first: Path) -> None:
    assert open_encoder(composite.parts(ensemble)[1]).describe() == open_encoder(first).describe()


def test_an_ensemble_grows_index_by_index(ensemble: Path, tiny: Path, tmp_path: Path) -> None:
    """The concatenated indexes of the previous learners and of the new one are the index of the ensemble."""
    whole = encode(tiny, model=str(ensemble), output=tmp_path / "whole")
    earlier, learner = composite.parts(ensemble)
    halves = [encode(tiny, model=str(part), output=tmp_path / part.name) for part in (earlier, learner)]
    grown = encode(halves[0], concat_with=halves[1], output=tmp_path / "grown")
    model = str(ensemble)
    runs = [
        pl.read_parquet(search(tiny, split="test", index=index, model=model, output=tmp_path / f"{i}.parquet"))
        for i, index in enumerate((whole, grown))
    ]
    assert runs[0]["docid"].equals(runs[1]["docid"])
    np.testing.assert_allclose(runs[0]["score"], runs[1]["score"], atol=1e-5)


def test_the_residual_learner_starts_at_the_loss_of_the_ensemble(examples: Path, first: Path, tiny_bert: Path) -> None:
    """With the scores of the ensemble, the loss of the first step is lower than that of an untrained learner."""
    residual: dict[str, Any] = {"loss": "residual-nll", "scorer": str(first)}
    losses = {}
    for name, options in {"nll": {"loss": "nll"}, "residual_nll": residual}.items():
        output = examples.parent / name
        train_dense(examples, output=output, model=str(tiny_bert), **PLAN, boost=str(first), **options)
        losses[name] = pl.read_parquet(output / "curve.parquet").filter(name=name)["value"].to_list()
        assert open_encoder(output).dim == 8
    assert losses["residual_nll"][0] < losses["nll"][0]
    one, other = (open_encoder(composite.parts(examples.parent / name)[1]).encode_queries(TEXTS) for name in losses)
    assert not np.allclose(one, other, atol=1e-4)


def test_examples_without_a_run_of_the_ensemble_are_named(
    examples: Path, first: Path, tiny: Path, tiny_bert: Path, tmp_path: Path, notices: Notices
) -> None:
    index = encode(tiny, model=str(first), output=tmp_path / "index")
    run = search(tiny, split="train", index=index, output=tmp_path / "run.parquet")
    mined = mine_negatives(tiny, split="train", sources=[f"run:{run}:2"], output=tmp_path / "mined.parquet")
    for number, (used, warned) in enumerate(((examples, True), (mined, False))):
        notices.clear()
        train_dense(used, output=tmp_path / str(number), model=str(tiny_bert), **NLL, boost=str(first))
        assert notices.says("boost-not-mined", path=used) is warned


def test_a_static_encoder_is_no_ensemble(examples: Path, tiny_lambda: Path, tiny_bert: Path, tmp_path: Path) -> None:
    done = hybrid("train-dense", examples, "--boost", tiny_lambda, "--model", tiny_bert, "--output", tmp_path / "no")
    assert done.code == 2
    assert (done.problem, done.fields["kind"], done.fields["expected"]) == ("other-kind", "static", "transformer")
