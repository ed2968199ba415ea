"""Loading checkpoints: pretraining heads are skipped, missing weights and pickles refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from command import Notices, raises
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, BertLayer

from hybrid_cli.encoders.transformer import TransformerEncoder

TEXTS = ["Return the inverse of a square matrix.", "", "naïve café"]
WEIGHTS = "model.safetensors"


@pytest.fixture
def condenser(tiny_bert: Path, tmp_path: Path) -> Path:
    """Make a BERT with a masked-language-model head and Condenser's two layers, like the published checkpoints."""
    folder = tmp_path / "condenser"
    shutil.copytree(tiny_bert, folder)
    torch.manual_seed(1)
    model = AutoModelForMaskedLM.from_pretrained(tiny_bert)
    model.save_pretrained(folder)
    head = torch.nn.ModuleDict({"c_head": torch.nn.ModuleList([BertLayer(model.config) for _ in range(2)])})
    change_weights(folder, lambda weights: weights | head.state_dict())
    return folder


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, metadata={"format": "pt"})


def test_a_condenser_loads_as_its_backbone_with_a_note_about_skipped_heads(
    condenser: Path, tiny_bert: Path, notices: Notices
) -> None:
    vectors = TransformerEncoder.load(condenser).encode_queries(TEXTS)
    np.testing.assert_array_equal(vectors, TransformerEncoder.load(tiny_bert).encode_queries(TEXTS))
    assert notices.says("heads-skipped", path=condenser, heads=("c_head", "cls"))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_condenser_becomes_any_encoder(condenser: Path, tmp_path: Path, pooling: str, tied: bool) -> None:
    encoder = TransformerEncoder.load(condenser, pooling=pooling, tied=tied)
    queries, documents = encoder.encode_queries(TEXTS), encoder.encode_documents([""] * len(TEXTS), TEXTS)
    np.testing.assert_array_equal(queries, documents)
    assert (encoder.query_tower is encoder.document_tower) == tied
    encoder.save(tmp_path / "saved")
    assert TransformerEncoder.load(tmp_path / "saved").contract == encoder.contract
    np.testing.assert_array_equal(TransformerEncoder.load(tmp_path / "saved").encode_queries(TEXTS), queries)


def test_two_towers_of_one_checkpoint_have_separate_weights(condenser: Path) -> None:
    encoder = TransformerEncoder.load(condenser, tied=False)
    encoder.query_tower.backbone.get_parameter("embeddings.word_embeddings.weight").data.neg_()
    assert not np.allclose(encoder.encode_queries(TEXTS), encoder.encode_documents([""] * len(TEXTS), TEXTS))


def test_a_saved_encoder_has_no_pretraining_heads(
    condenser: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    TransformerEncoder.load(condenser).save(tmp_path / "saved")
    capsys.readouterr()
    TransformerEncoder.load(tmp_path / "saved")
    assert capsys.readouterr().err == ""


def test_a_checkpoint_without_a_layer_is_refused(condenser: Path) -> None:
    change_weights(condenser, lambda weights: {k: v for k, v in weights.items() if ".layer.1.output" not in k})
    with raises("missing-weights"):
        TransformerEncoder.load(condenser)


def test_a_stored_tokenizer_does_not_depend_on_the_texts_that_it_has_read(tiny_bert: Path, tmp_path: Path) -> None:
    encoder = TransformerEncoder.load(tiny_bert, query_max_len=5)
    encoder.save(tmp_path / "unused")
    encoder.encode_queries(TEXTS)
    encoder.save(tmp_path / "used")
    assert (tmp_path / "used/tokenizer.json").read_bytes() == (tmp_path / "unused/tokenizer.json").read_bytes()


def test_an_encoder_with_projection_runs_in_bf16(tiny_bert: Path) -> None:
    whole, half = (TransformerEncoder.load(tiny_bert, dim=4, dtype=dtype) for dtype in ("fp32", "bf16"))
    half.load_state_dict(whole.state_dict())
    np.testing.assert_allclose(half.encode_queries(TEXTS), whole.encode_queries(TEXTS), atol=0.1)
