"""A transformer that fills in masked words, with Condenser's head where asked for (methods 3.5)."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForMaskedLM, PreTrainedModel
from transformers.activations import ACT2FN

from hybrid_cli import console
from hybrid_cli.encoders.tower import silence_transformers
from hybrid_cli.errors import InputError
from hybrid_cli.training.whole_words import IGNORED

HEAD_FILE = "condenser_head.safetensors"
_HEAD_LAYERS = 2


class MaskedLanguageModel(nn.Module):
    """Backbone, head that names words, and the Condenser head or None.

    Attributes:
        terms: names of the losses that `forward` gives.
    """

    def __init__(self, whole: PreTrainedModel, head: nn.Module, condenser: nn.TransformerEncoder | None, skip: int = 0):
        super().__init__()
        self.whole = whole
        self.condenser = condenser
        self.skip = skip
        self.terms = ("mlm",) if condenser is None else ("mlm", "condenser_mlm")
        self._head = [head]  # in a list, since it is a part of `whole` already

    @classmethod
    def load(cls, folder: Path, *, condenser: bool, skip_from: int | None) -> MaskedLanguageModel:
        """Read a checkpoint that is known to be whole; heads that it lacks are new, seeded by torch, and said so.

        Args:
            skip_from: layer whose states enter the Condenser head, 0 being the embeddings; None is the middle one.

        Raises:
            InputError: an architecture whose head is not one module, or without such a layer.
        """
        silence_transformers()
        try:
            whole, report = AutoModelForMaskedLM.from_pretrained(folder, use_safetensors=True, output_loading_info=True)
        except ValueError as error:
            raise InputError(f"{folder}: no model that fills in words ({str(error).splitlines()[0]})") from None
        heads = [module for name, module in whole.named_children() if name != whole.base_model_prefix]
        if len(heads) != 1:
            raise InputError(
                f"{folder}: pretrain knows the heads of BERT, RoBERTa and their kin, not {type(whole).__name__}"
            )
        if any(not key.startswith(f"{whole.base_model_prefix}.") for key in report["missing_keys"]):
            console.note(f"{folder}: has no head that names words; a new one, tied to the embeddings, begins at random")
        return cls(whole.float(), heads[0], *_condenser(folder, whole, skip_from) if condenser else (None,))

    @property
    def backbone(self) -> PreTrainedModel:
        """What becomes the encoder."""
        backbone: PreTrainedModel = self.whole.base_model  # type: ignore[assignment]
        return backbone

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Ids, mask and labels [n, L] to [CLS] [n, h], and the losses [n, terms] summed over each text's labels."""
        states = self.backbone(ids, attention_mask=mask, output_hidden_states=True).hidden_states
        losses = [self._losses(states[-1], labels)]
        if self.condenser is not None:
            mixed = torch.cat([states[-1][:, :1], states[self.skip][:, 1:]], dim=1)
            losses.append(self._losses(self.condenser(mixed, src_key_padding_mask=mask == 0), labels))
        return states[-1][:, 0].float(), torch.stack(losses, dim=1)

    def _losses(self, states: Tensor, labels: Tensor) -> Tensor:
        """[n]; the vocabulary is scored only where something was masked."""
        rows, places = torch.nonzero(labels != IGNORED, as_tuple=True)
        scores = self._head[0](states[rows, places]).float()
        each = functional.cross_entropy(scores, labels[rows, places], reduction="none")
        return each.new_zeros(len(labels)).index_add(0, rows, each)

    def save(self, folder: Path) -> None:
        """Write the checkpoint as `AutoModelForMaskedLM` opens it, and the Condenser head beside it."""
        self.whole.save_pretrained(folder, safe_serialization=True)
        if self.condenser is not None:
            save_file(self.condenser.state_dict(), folder / HEAD_FILE, metadata={"format": "pt"})


def _condenser(folder: Path, whole: PreTrainedModel, skip_from: int | None) -> tuple[nn.TransformerEncoder, int]:
    """The Condenser head: layers like the backbone's own, and where the states come from that enter it."""
    config = whole.config
    skip = config.num_hidden_layers // 2 if skip_from is None else skip_from
    if not 0 <= skip < config.num_hidden_layers:
        raise InputError(f"--skip-from {skip}: the model has {config.num_hidden_layers} layers; name an earlier one")
    layer = nn.TransformerEncoderLayer(
        d_model=config.hidden_size,
        nhead=config.num_attention_heads,
        dim_feedforward=config.intermediate_size,
        dropout=config.hidden_dropout_prob,
        activation=ACT2FN[config.hidden_act],
        layer_norm_eps=config.layer_norm_eps,
        batch_first=True,
    )
    head = nn.TransformerEncoder(layer, _HEAD_LAYERS, enable_nested_tensor=False)
    for name, parameter in head.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=config.initializer_range)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    if (folder / HEAD_FILE).is_file():
        head.load_state_dict(load_file(folder / HEAD_FILE))
        console.note(f"{folder}: goes on with its Condenser head")
    return head, skip
