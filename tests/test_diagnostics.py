"""Diagnostics of a training: values by hand, the learning curve, the progress line, the warning."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from command import Notices
from gradient_descent import gradient_descent
from test_train_dense import PLAN, write_examples
from trainings import weights

from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.training.loop import recent_means
from hybrid_cli.training.losses import LossInputs, margin, nll, residual_margin, with_distillation, with_prefixes


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_examples(tmp_path_factory.mktemp("examples") / "train.parquet")


def scored(positive: list[float], negative: list[float], lexical: list[tuple[float, float]]) -> LossInputs:
    """Vectors whose inner products are the given scores: the query is 1, the documents are the scores."""
    size = len(positive)
    documents = torch.tensor([[[p], [n]] for p, n in zip(positive, negative, strict=True)])
    return LossInputs(
        torch.ones(size, 1), documents, torch.tensor(lexical), torch.ones(size, 2 * size, dtype=torch.bool)
    )


def recorded(batch: LossInputs) -> dict[str, float]:
    return {name: value.item() for name, value in batch.recorded.items()}


def test_active_triples_of_the_hinge_by_hand() -> None:
    # residual margins 1 - .1 * 3 = .7 and 1 + .1 * 9 = 1.9; gaps of the scores 1 and 1
    batch = scored([3.0, 3.0], [2.0, 2.0], [(12.0, 9.0), (5.0, 14.0)])
    residual_margin(batch)
    assert recorded(batch) == pytest.approx({"active_share": 0.5, "mean_margin": 1.3})
    margin(batch, xi=1.1)
    assert recorded(batch) == pytest.approx({"active_share": 1.0, "mean_margin": 1.1})
    similarities = scored([3.0, 5.0], [2.0, 1.0], [(0.0, 0.0)] * 2).similarities()
    assert {name: value.item() for name, value in similarities.items()} == {
        "positive_similarity": 4.0,
        "negative_similarity": 1.5,
    }


def test_the_progress_line_averages_the_last_ten_steps() -> None:
    curve = [
        (step, name, value) for step in range(1, 21) for name, value in (("nll", 9.0), ("active_share", step / 40))
    ]
    assert recent_means(curve) == "active 39%"
    assert recent_means([]) == ""


def test_the_probability_that_is_not_on_the_positive() -> None:
    batch = scored([2.0], [0.0], [(0.0, 0.0)])
    nll(batch, temperature=2.0)
    assert recorded(batch) == pytest.approx({"active_share": 1 / (1 + math.e)})


@pytest.mark.parametrize("in_batch", [True, False])
def test_the_active_share_is_the_derivative_for_the_positive(in_batch: bool) -> None:
    torch.manual_seed(0)
    batch = LossInputs(
        torch.randn(1, 4), torch.randn(1, 3, 4, requires_grad=True), torch.zeros(1, 3), torch.ones(1, 3) > 0
    )
    nll(batch, in_batch=in_batch)["nll"].backward()
    assert batch.documents.grad is not None
    derivative = -batch.documents.grad[0, 0] / batch.queries[0]
    torch.testing.assert_close(derivative, batch.recorded["active_share"].expand(4))


def test_prefixes_and_heads_record_the_vectors_that_search() -> None:
    torch.manual_seed(0)
    whole = LossInputs(torch.randn(2, 6), torch.randn(2, 3, 6), torch.zeros(2, 3), torch.ones(2, 6) > 0)
    nll(whole)
    with_prefixes(nll, [2], 6, False)(
        prefixed := LossInputs(whole.queries, whole.documents, whole.scorer, whole.allowed)
    )
    assert recorded(prefixed) == recorded(whole)
    small = LossInputs(whole.queries[:, :2], whole.documents[..., :2], whole.scorer, whole.allowed)
    nll(small)
    teacher: dict[str, Any] = {"teacher_queries": torch.zeros(2, 4), "teacher_documents": torch.zeros(2, 3, 4)}
    with_distillation(nll, 2)(
        both := LossInputs(whole.queries, whole.documents, whole.scorer, whole.allowed, **teacher)
    )
    assert both.recorded == {**small.recorded, **small.similarities()}


@pytest.mark.parametrize("options", [{"loss": "nll"}, {"loss": "margin"}, {"loss": "nll", "chunk_size": 3}])
def test_the_curve_holds_the_diagnostics_of_every_step(
    examples: Path, tiny_bert: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    out = train_dense(examples, output=tmp_path / "out", model=str(tiny_bert), **PLAN, max_steps=3, **options)
    curve = pl.read_parquet(out / "curve.parquet")
    names = {"active_share", "positive_similarity", "negative_similarity"}
    if options["loss"] == "margin":
        names |= {"mean_margin"}
    for name in names:
        assert curve.filter(name=name)["step"].to_list() == [1, 2, 3]
    assert curve.filter(name="active_share")["value"].is_between(0, 1).all()


def test_diagnostics_are_not_part_of_the_loss(examples: Path, tiny_bert: Path, tmp_path: Path) -> None:
    """A record would change the weights if it were added to the loss."""
    plan = {**PLAN, "max_steps": 2, "loss": "nll"}
    with gradient_descent():  # the second step has the rounding of the first, which AdamW would amplify
        for name, chunk in (("plain", None), ("cached", 64)):
            train_dense(examples, output=tmp_path / name, model=str(tiny_bert), **plan, chunk_size=chunk)
    plain, cached = (pl.read_parquet(tmp_path / name / "curve.parquet") for name in ("plain", "cached"))
    assert plain["name"].to_list() == cached["name"].to_list()
    assert plain["value"].to_list() == pytest.approx(cached["value"].to_list(), abs=1e-5)


def test_training_without_loss_warns_and_keeps_the_weights(
    examples: Path, tiny_bert: Path, tmp_path: Path, notices: Notices
) -> None:
    options = {**PLAN, "loss": "margin", "xi": -1e6}
    out = train_dense(examples, output=tmp_path / "out", model=str(tiny_bert), **options)
    assert notices.says("hardly-any-loss", active_share=0.0, steps=10)
    (remedy,) = [str(notice.fields["remedy"]) for notice in notices.heard if notice.code == "hardly-any-loss"]
    assert all(option in remedy for option in ("--depth", "--xi", "--temperature"))
    notices.clear()
    assert set(pl.read_parquet(out / "curve.parquet").filter(name="active_share")["value"]) == {0.0}
    start = train_dense(
        examples, output=tmp_path / "start", model=str(tiny_bert), **{**PLAN, "learning_rate": 0.0}, loss="margin"
    )
    assert weights(out) == weights(start)
    assert not notices.says("hardly-any-loss"), "the margin of 1 leaves loss"
