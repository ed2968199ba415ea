"""Training with a frozen encoder: its weight is learned, its own weights do not change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from hybrid_cli import artifacts
from hybrid_cli.encoders.contract import Encoder
from hybrid_cli.encoders.open_encoder import open_encoder
from hybrid_cli.errors import InputError
from hybrid_cli.settings.common import Sampling
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.teachers import FrozenEncoder, FrozenWeight

PLAN: dict[str, Any] = {
    "batch_size": 4, "epochs": 20, "max_steps": 20, "learning_rate": 1e-3, "precision": "fp32", "checkpoint_steps": 6,
}  # fmt: skip


@pytest.fixture(scope="module")
def examples(tiny: Path, tiny_lambda: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("frozen") / "examples.parquet"
    return mine_negatives(tiny, split="train", index=tiny_lambda.parent / "bm25", output=output)


@pytest.mark.parametrize("loss", ["nll", "roc", "residual-margin"])
def test_a_model_learns_with_a_frozen_one(
    examples: Path, tiny_bert: Path, tiny_lambda: Path, tmp_path: Path, loss: str
) -> None:
    before = artifacts.fingerprint(tiny_lambda)
    plan = {**PLAN, "loss": loss, "ortho_weight": 0, "model": str(tiny_bert)}
    joint = train_dense(examples, output=tmp_path / "joint", **plan, with_frozen=str(tiny_lambda))
    alone = train_dense(examples, output=tmp_path / "alone", **plan)
    assert artifacts.fingerprint(tiny_lambda) == before
    vectors = [open_encoder(folder).encode_queries(["salt water"]) for folder in (joint, alone)]
    assert not np.allclose(vectors[0], vectors[1], atol=1e-3)
    manifest = artifacts.read_manifest(joint)
    assert manifest.inputs["frozen"]["fingerprint"] == before
    weight = manifest.counts.get("frozen_weight")
    assert (weight is None) == (loss == "residual-margin")
    assert weight is None or (weight > 0 and weight != 1)
    curve = pl.read_parquet(joint / "curve.parquet")["value"].to_list()
    assert np.mean(curve[-4:]) < np.mean(curve[:4])


def test_a_frozen_model_scores_all_pairs_of_a_batch(examples: Path, tiny_lambda: Path, tmp_path: Path) -> None:
    groups = next(Examples(examples).batches(Sampling(batch_size=3)))
    encoder = open_encoder(tiny_lambda)
    scores = FrozenEncoder(encoder, Examples(examples), tmp_path)(groups)
    assert scores.shape == (3, 6)
    last = groups[2]
    document = encoder.encode_documents(last.titles[1:], last.texts[1:])[0]
    query = encoder.encode_queries([groups[0].query])[0]
    assert scores[0, 5] == pytest.approx(float(query @ document), abs=1e-5)


class Counting:
    """An encoder that counts the texts that it encodes."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.dim, self.texts = encoder, encoder.dim, 0

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        self.texts += len(texts)
        return self.encoder.encode_queries(texts)

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str]) -> np.ndarray:
        self.texts += len(texts)
        return self.encoder.encode_documents(titles, texts)


def test_every_text_is_encoded_once_and_read_again_after_an_interruption(
    examples: Path, tiny_lambda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybrid_cli.training.teachers.BLOCK_TEXTS", 2)
    known = Examples(examples)
    queries = {group.query for group in known.epoch(0, 0, 1)}
    encoder: Any = Counting(open_encoder(tiny_lambda))
    first = FrozenEncoder(encoder, known, tmp_path)
    assert encoder.texts == len(queries) + len(known.docids())
    killed = sorted((tmp_path / ".frozen").glob("documents-*.npy"))[-1]
    lost = len(np.load(killed))
    killed.unlink()
    again: Any = Counting(open_encoder(tiny_lambda))
    second = FrozenEncoder(again, known, tmp_path)
    assert again.texts == lost > 0
    groups = next(known.batches(Sampling(batch_size=4)))
    np.testing.assert_array_equal(first(groups), second(groups))


def test_the_weight_starts_at_the_temperature() -> None:
    weight = FrozenWeight(0.05)
    assert weight().item() == pytest.approx(0.05)
    weight().backward()
    assert weight.logarithm.grad is not None
    assert weight.logarithm.grad.item() == pytest.approx(50)


@pytest.mark.parametrize("loss", ["margin", "bpr"])
def test_losses_without_scores_of_another_model_are_refused(loss: str) -> None:
    with pytest.raises(InputError, match="--with-frozen: only with --loss nll or roc or residual-margin"):
        train_dense(Path("train.parquet"), output=Path("no"), loss=loss, with_frozen="out/lambda")
