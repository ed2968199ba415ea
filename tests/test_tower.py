"""What of a checkpoint becomes a tower: Condenser's heads are left out, missing weights and pickles refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, BertLayer

from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError

TEXTS = ["Return the inverse of a square matrix.", "", "naïve café"]
WEIGHTS = "model.safetensors"


@pytest.fixture
def condenser(tiny_bert: Path, tmp_path: Path) -> Path:
    """A BERT with the head of masked-language-model training and Condenser's two layers, as they are published."""
    folder = tmp_path / "condenser"
    shutil.copytree(tiny_bert, folder)
    torch.manual_seed(1)
    model = AutoModelForMaskedLM.from_pretrained(tiny_bert)
    model.save_pretrained(folder)
    head = torch.nn.ModuleDict({"c_head": torch.nn.ModuleList([BertLayer(model.config) for _ in range(2)])})
    change_weights(folder, lambda weights: weights | head.state_dict())
    return folder


def change_weights(folder: Path, change) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, metadata={"format": "pt"})


def change_config(folder: Path, **values) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_a_condenser_loads_as_its_backbone_and_says_in_one_line_what_is_left_out(condenser, tiny_bert, capsys):
    vectors = TransformerEncoder.load(condenser).encode_queries(TEXTS)
    np.testing.assert_array_equal(vectors, TransformerEncoder.load(tiny_bert).encode_queries(TEXTS))
    assert capsys.readouterr().err == (
        f"{condenser}: c_head, cls left out: heads of pretraining, no part of an encoder\n"
    )


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_condenser_becomes_any_encoder(condenser, tmp_path, pooling, tied):
    encoder = TransformerEncoder.load(condenser, pooling=pooling, tied=tied)
    both = [encoder.encode_queries(TEXTS), encoder.encode_documents([""] * len(TEXTS), TEXTS)]
    np.testing.assert_array_equal(*both)
    assert (encoder.query_tower is encoder.document_tower) == tied
    encoder.save(tmp_path / "saved")
    assert TransformerEncoder.load(tmp_path / "saved").contract == encoder.contract
    np.testing.assert_array_equal(TransformerEncoder.load(tmp_path / "saved").encode_queries(TEXTS), both[0])


def test_two_towers_copied_from_one_checkpoint_have_weights_of_their_own(condenser):
    encoder = TransformerEncoder.load(condenser, tied=False)
    encoder.query_tower.backbone.embeddings.word_embeddings.weight.data.neg_()
    assert not np.allclose(encoder.encode_queries(TEXTS), encoder.encode_documents([""] * len(TEXTS), TEXTS))


def test_a_saved_encoder_has_nothing_left_to_leave_out(condenser, tmp_path, capsys):
    TransformerEncoder.load(condenser).save(tmp_path / "saved")
    capsys.readouterr()
    TransformerEncoder.load(tmp_path / "saved")
    assert capsys.readouterr().err == ""


def test_a_checkpoint_without_a_layer_is_refused(condenser):
    change_weights(condenser, lambda weights: {k: v for k, v in weights.items() if ".layer.1.output" not in k})
    with pytest.raises(InputError, match=r"lacks weights .*\(encoder\.layer\.1\.output.*, and 1 more\); save it whole"):
        TransformerEncoder.load(condenser)


def test_a_checkpoint_of_another_shape_is_refused(condenser):
    change_config(condenser, intermediate_size=64)
    with pytest.raises(InputError, match=r"lacks weights that its config\.json asks for \(encoder\.layer\.0\.interm"):
        TransformerEncoder.load(condenser)


def test_a_checkpoint_of_something_else_is_refused(condenser):
    change_weights(condenser, lambda weights: {f"vision.{k}": v for k, v in weights.items()})
    with pytest.raises(InputError, match="lacks weights"):
        TransformerEncoder.load(condenser)


def test_a_pickle_is_refused_with_the_way_to_convert_it(condenser):
    torch.save(load_file(condenser / WEIGHTS), condenser / "pytorch_model.bin")
    (condenser / WEIGHTS).unlink()
    with pytest.raises(InputError, match=r"opens no pickles \(pytorch_model\.bin\); .*convert it: python -c"):
        TransformerEncoder.load(condenser)


def test_a_projected_encoder_computes_in_bf16(tiny_bert: Path):
    whole, half = (TransformerEncoder.load(tiny_bert, dim=4, dtype=dtype) for dtype in ("fp32", "bf16"))
    half.load_state_dict(whole.state_dict())
    np.testing.assert_allclose(half.encode_queries(TEXTS), whole.encode_queries(TEXTS), atol=0.1)
