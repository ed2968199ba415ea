"""The masked language model against the loss of transformers, and the Condenser head against its definition."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from command import Notices
from torch import nn
from torch.nn import functional
from transformers import AutoModelForMaskedLM, RobertaConfig, RobertaForMaskedLM

from hybrid_cli.storage import layout
from hybrid_cli.training.pretraining import IGNORED, MaskedLanguageModel

IDS = torch.tensor([[101, 7592, 103, 2088, 102, 0], [101, 103, 3899, 3216, 103, 102]])
MASK = (IDS != 0).long()
LABELS = torch.where(IDS == 103, torch.tensor([[9, 9, 2023, 9, 9, 9], [9, 1996, 9, 9, 2182, 9]]), IGNORED)


def load(folder: Path, condenser: bool = False, skip_layer: int | None = None) -> MaskedLanguageModel:
    torch.manual_seed(0)
    return MaskedLanguageModel.load(folder, condenser=condenser, skip_layer=skip_layer).eval()


class Through(nn.Module):
    """A head that returns its input."""

    def forward(self, states: torch.Tensor, src_key_padding_mask: torch.Tensor) -> torch.Tensor:
        return states


@pytest.fixture(params=["bert", "roberta"])
def checkpoint(request: pytest.FixtureRequest, tiny_bert: Path, tmp_path: Path) -> Path:
    if request.param == "bert":
        return tiny_bert
    torch.manual_seed(0)
    sizes: Any = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    RobertaForMaskedLM(RobertaConfig(vocab_size=8000, pad_token_id=0, **sizes)).save_pretrained(tmp_path)
    return tmp_path


def test_the_loss_is_that_of_transformers(checkpoint: Path) -> None:
    model = load(checkpoint)
    losses = model(IDS, MASK, LABELS)[1]
    theirs = model.whole(IDS, attention_mask=MASK, labels=LABELS).loss
    torch.testing.assert_close(losses.sum() / 3, theirs)
    assert losses.shape == (2, 1)


def test_the_condenser_head_reads_the_late_cls_and_early_tokens(tiny_bert: Path) -> None:
    model: Any = load(tiny_bert, condenser=True, skip_layer=1)
    model.condenser = Through()
    vectors, losses = model(IDS, MASK, LABELS)
    states = model.backbone(IDS, attention_mask=MASK, output_hidden_states=True).hidden_states
    mixed = [torch.cat([states[2][row][:1], states[1][row][1:]]) for row in range(2)]
    expected: list[Any] = [
        sum(functional.cross_entropy(model.whole.cls(mixed[row])[place], LABELS[row, place]) for place in places)
        for row, places in enumerate([[2], [1, 4]])
    ]
    torch.testing.assert_close(losses[:, 1], torch.stack(expected))
    torch.testing.assert_close(vectors, states[2][:, 0])


def test_early_tokens_come_from_the_middle_layer_by_default(tiny_bert: Path) -> None:
    assert load(tiny_bert, condenser=True).skip == 1
    assert load(tiny_bert, condenser=True, skip_layer=0).skip == 0


def test_padding_does_not_change_the_loss(checkpoint: Path) -> None:
    model = load(checkpoint, condenser=True)
    longer = [functional.pad(t, (0, 4), value=v) for t, v in ((IDS, 0), (MASK, 0), (LABELS, IGNORED))]
    for plain, padded in zip(model(IDS, MASK, LABELS), model(*longer), strict=True):
        torch.testing.assert_close(plain, padded)


def test_a_text_without_labels_has_no_loss(tiny_bert: Path) -> None:
    labels = LABELS.clone()
    labels[0] = IGNORED
    losses = load(tiny_bert)(IDS, MASK, labels)[1]
    assert losses[0] == 0
    assert losses[1] > 0


def test_a_new_head_is_noted_tied_and_reproducible(tiny_bert: Path, notices: Notices) -> None:
    model = load(tiny_bert)
    assert notices.says("new-head", path=tiny_bert)
    assert model.whole.get_output_embeddings().weight is model.backbone.get_input_embeddings().weight
    torch.testing.assert_close(load(tiny_bert)(IDS, MASK, LABELS)[1], model(IDS, MASK, LABELS)[1])


@pytest.mark.parametrize("condenser", [False, True])
def test_a_saved_model_continues_with_its_heads(
    tiny_bert: Path, tmp_path: Path, notices: Notices, condenser: bool
) -> None:
    model = load(tiny_bert, condenser=condenser)
    shutil.copytree(tiny_bert, tmp_path, dirs_exist_ok=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save(tmp_path)
    notices.clear()
    again = load(tmp_path, condenser=condenser)
    assert [(notice.code, notice.fields) for notice in notices.heard] == [
        ("condenser-head", {"path": tmp_path})
    ] * condenser
    for mine, theirs in zip(model(IDS, MASK, LABELS), again(IDS, MASK, LABELS), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert (tmp_path / layout.CONDENSER_HEAD).is_file() == condenser
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path)(IDS, attention_mask=MASK, labels=LABELS).loss
    torch.testing.assert_close(theirs, model(IDS, MASK, LABELS)[1][:, 0].sum() / 3)
