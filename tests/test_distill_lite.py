"""LITE's student: the small head is kept, the large one is taught; and one query encoder for an ensemble."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from command import hybrid
from torch import nn

from hybrid_cli import artifacts
from hybrid_cli.config import Distillation, Objective, Optimization
from hybrid_cli.encoders.encoder import open_encoder
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError
from hybrid_cli.stages.distill_lite import distill_lite
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.search import search
from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.training import losses
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.dense import DenseLearner
from hybrid_cli.training.teachers import FrozenEncoder

PLAN = Optimization(batch_size=4, epochs=10, max_steps=10, learning_rate=1e-3, precision="fp32", checkpoint_steps=4)
TEXTS = ["salt water", "a river and its bank"]


@pytest.fixture(scope="module")
def examples(tiny: Path, tiny_lambda: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("distill") / "examples.parquet"
    return mine_negatives(tiny, split="train", index=tiny_lambda.parent / "bm25", output=output)


@pytest.fixture(scope="module")
def teacher(examples: Path, tiny_bert: Path) -> Path:
    """An ensemble of two learners with 4 dimensions each."""
    first, both = (examples.parent / name for name in ("first", "both"))
    nll = Objective("nll")
    train_dense(examples, first, model=str(tiny_bert), objective=nll, plan=PLAN, contract={"dim": 4})
    return train_dense(
        examples, both, model=str(tiny_bert), objective=nll, plan=replace(PLAN, seed=2), boost=str(first)
    )


@pytest.fixture(scope="module")
def student(examples: Path, teacher: Path, tiny_bert: Path) -> Path:
    return distill_lite(
        examples,
        examples.parent / "lite",
        teacher=str(teacher),
        model=str(tiny_bert),
        how=Distillation(dim=4),
        plan=PLAN,
        dev=examples,
    )


def test_the_student_is_a_small_encoder_without_its_large_head(student: Path, teacher: Path):
    encoder = open_encoder(student)
    assert isinstance(encoder, TransformerEncoder)
    assert encoder.encode_queries(TEXTS).shape == (2, 4)
    assert encoder.query_tower.large is None
    weights = [name for file in student.rglob("*.safetensors") for name in names(file)]
    assert not [name for name in weights if "large" in name]
    assert not list(student.rglob(".frozen"))
    manifest = artifacts.read_manifest(student)
    assert manifest.inputs["teacher"]["fingerprint"] == artifacts.fingerprint(teacher)
    curve = pl.read_parquet(student / "curve.parquet")
    taught = curve.filter(name="distillation")["value"].to_list()
    assert {"nll", "distillation", "dev_MRR@10"} <= set(curve["name"])
    assert taught[-1] < taught[0]


def names(file: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(file, "pt") as weights:
        return list(weights.keys())


def test_the_teacher_moves_the_encoder_but_not_the_small_head(examples: Path, teacher: Path, tiny_bert: Path, tmp_path):
    encoder = TransformerEncoder.load(tiny_bert, dim=4).train()
    encoder.query_tower.large = nn.Linear(16, 8, bias=False)
    known = Examples(examples)
    frozen = FrozenEncoder(open_encoder(teacher), known, tmp_path)
    nothing = lambda vectors: {}  # noqa: E731
    objective = losses.distilled(nothing, 4)
    learner = DenseLearner(encoder, objective, torch.float32, teacher=frozen)
    learner.backward(next(known.batches(PLAN)), lambda loss: loss)
    projection, large = encoder.query_tower.projection, encoder.query_tower.large
    assert projection is not None
    assert all(weight.grad is None or not weight.grad.any() for weight in projection.parameters())
    assert large.weight.grad is not None
    assert large.weight.grad.any()
    assert encoder.query_tower.backbone.embeddings.word_embeddings.weight.grad.any()


def test_a_killed_distillation_ends_with_the_same_weights(examples: Path, teacher: Path, tiny_bert: Path, tmp_path):
    """The large heads are in the checkpoint, the teacher's vectors beside it."""
    from hybrid_cli.training import checkpoint

    once = partial(distill_lite, examples, teacher=str(teacher), model=str(tiny_bert), how=Distillation(dim=4))
    whole = once(tmp_path / "whole", plan=PLAN)
    seen = 0

    def killed(*arguments):
        nonlocal seen
        save(*arguments)
        seen += 1
        raise KeyboardInterrupt

    save = checkpoint.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hybrid_cli.training.checkpoint.save", killed)
        with pytest.raises(KeyboardInterrupt):
            once(tmp_path / "killed", plan=PLAN)
    assert seen == 1
    again = once(tmp_path / "killed", plan=PLAN)
    vectors = [open_encoder(folder).encode_queries(TEXTS) for folder in (whole, again)]
    np.testing.assert_array_equal(*vectors)


def test_a_query_encoder_searches_the_teachers_index(examples, teacher: Path, tiny: Path, tiny_bert: Path, tmp_path):
    light = distill_lite(
        examples, tmp_path / "light", teacher=str(teacher), queries_only=True, model=str(tiny_bert), plan=PLAN
    )
    pair, whole = open_encoder(light), open_encoder(teacher)
    assert pair.dim == 8
    np.testing.assert_array_equal(pair.encode_documents(["", ""], TEXTS), whole.encode_documents(["", ""], TEXTS))
    assert not np.allclose(pair.encode_queries(TEXTS), whole.encode_queries(TEXTS))
    taught = pl.read_parquet(light / "curve.parquet")["value"].to_list()
    assert taught[-1] < taught[0]
    index = encode(tiny, model=str(teacher), output=tmp_path / "index")
    found = search(tiny, split="test", index=index, model=str(light), output=tmp_path / "run.parquet")
    assert len(pl.read_parquet(found))
    other = encode(tiny, model=str(tiny_bert), output=tmp_path / "other")
    with pytest.raises(InputError):
        search(tiny, split="test", index=other, model=str(light), output=tmp_path / "no.parquet")


def test_more_dimensions_than_the_model_has_are_refused(examples: Path, teacher: Path, tiny_bert: Path, tmp_path: Path):
    done = hybrid(
        "distill-lite", examples, "--teacher", teacher, "--model", tiny_bert, "--dim", 17, "--output", tmp_path / "no"
    )
    assert done.code == 2
    assert "--dim 17" in done.err
    assert "has 16 dimensions; a projection does not add any" in done.err
