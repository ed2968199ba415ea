"""`distill-lite`: a student with a small and a large head (LITE), and a query encoder for an ensemble (DrBoost)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from hybrid_cli import artifacts, storage
from hybrid_cli.encoders.models import open_encoder
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError
from hybrid_cli.stages.distill_lite import distill_lite
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.search import search
from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.training import losses
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.dense import BatchSources, DenseLearner
from hybrid_cli.training.options import Sampling
from hybrid_cli.training.teachers import FrozenEncoder

PLAN: dict[str, Any] = {
    "batch_size": 4, "epochs": 10, "max_steps": 10, "learning_rate": 1e-3, "precision": "fp32", "checkpoint_steps": 4,
}  # fmt: skip
TEXTS = ["salt water", "a river and its bank"]


@pytest.fixture(scope="module")
def examples(tiny: Path, tiny_lambda: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("distill") / "examples.parquet"
    return mine_negatives(tiny, split="train", index=tiny_lambda.parent / "bm25", output=output)


@pytest.fixture(scope="module")
def teacher(examples: Path, tiny_bert: Path) -> Path:
    """An ensemble of two learners with 4 dimensions each."""
    first, both = (examples.parent / name for name in ("first", "both"))
    train_dense(examples, output=first, model=str(tiny_bert), loss="nll", **PLAN, dim=4)
    return train_dense(examples, output=both, model=str(tiny_bert), loss="nll", **PLAN, seed=2, boost=str(first))


@pytest.fixture(scope="module")
def student(examples: Path, teacher: Path, tiny_bert: Path) -> Path:
    settings = {**PLAN, "teacher": str(teacher), "model": str(tiny_bert), "dim": 4, "dev": examples}
    return distill_lite(examples, output=examples.parent / "lite", **settings)


def test_a_student_with_weight_0_is_trained_as_without_a_teacher(
    examples: Path, teacher: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {**PLAN, "model": str(tiny_bert), "dim": 4}
    student = distill_lite(examples, teacher=str(teacher), kd_weight=0, output=tmp_path / "student", **settings)
    plain = train_dense(examples, loss="nll", output=tmp_path / "plain", **settings)
    ours, theirs = (open_encoder(folder).encode_documents(["", ""], TEXTS) for folder in (student, plain))
    np.testing.assert_array_equal(ours, theirs)


def test_the_student_is_a_small_encoder_without_its_large_head(student: Path, teacher: Path) -> None:
    encoder = open_encoder(student)
    assert isinstance(encoder, TransformerEncoder)
    assert encoder.encode_queries(TEXTS).shape == (2, 4)
    assert encoder.query_tower.distillation_head is None
    weights = [name for file in student.rglob("*.safetensors") for name in names(file)]
    assert not [name for name in weights if "distillation" in name]
    assert not list(student.rglob(".frozen"))
    manifest = artifacts.read_manifest(student)
    assert manifest.inputs["teacher"]["fingerprint"] == storage.fingerprint(teacher)
    curve = pl.read_parquet(student / "curve.parquet")
    losses_seen = curve.filter(name="distillation")["value"].to_list()
    assert {"nll", "distillation", "dev_MRR@10"} <= set(curve["name"])
    assert losses_seen[-1] < losses_seen[0]


def names(file: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(file, "pt") as weights:
        return list(weights.keys())


def test_the_distillation_trains_the_encoder_but_not_the_small_head(
    examples: Path, teacher: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    encoder = TransformerEncoder.load(tiny_bert, dim=4).train()
    encoder.add_distillation_heads(8)
    known = Examples(examples)
    frozen = FrozenEncoder(open_encoder(teacher), known, tmp_path)
    objective = losses.with_distillation(lambda _: {}, 4)
    learner = DenseLearner(encoder, objective, torch.float32, sources=BatchSources(teacher=frozen))
    learner.backward(learner.prepare(next(known.batches(Sampling(batch_size=4)))), lambda loss: loss)
    projection, head = encoder.query_tower.projection, encoder.query_tower.distillation_head
    assert head is not None
    assert projection is not None
    assert all(weight.grad is None or not weight.grad.any() for weight in projection.parameters())
    assert head.weight.grad is not None
    assert head.weight.grad.any()
    words = encoder.query_tower.backbone.get_parameter("embeddings.word_embeddings.weight")
    assert words.grad is not None
    assert words.grad.any()


def test_a_query_encoder_searches_the_teachers_index(
    examples: Path, teacher: Path, tiny: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    query_encoder = distill_lite(
        examples,
        output=tmp_path / "query_encoder",
        teacher=str(teacher),
        queries_only=True,
        model=str(tiny_bert),
        **PLAN,
    )
    pair, whole = open_encoder(query_encoder), open_encoder(teacher)
    assert pair.dim == 8
    assert "negatives" not in artifacts.read_manifest(query_encoder).options
    np.testing.assert_array_equal(pair.encode_documents(["", ""], TEXTS), whole.encode_documents(["", ""], TEXTS))
    assert not np.allclose(pair.encode_queries(TEXTS), whole.encode_queries(TEXTS))
    losses_seen = pl.read_parquet(query_encoder / "curve.parquet")["value"].to_list()
    assert losses_seen[-1] < losses_seen[0]
    index = encode(tiny, model=str(teacher), output=tmp_path / "index")
    found = search(tiny, split="test", index=index, model=str(query_encoder), output=tmp_path / "run.parquet")
    assert len(pl.read_parquet(found))
    other = encode(tiny, model=str(tiny_bert), output=tmp_path / "other")
    with pytest.raises(InputError):
        search(tiny, split="test", index=other, model=str(query_encoder), output=tmp_path / "no.parquet")
