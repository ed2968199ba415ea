"""The start model of a training."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hybrid_cli.encoders.options import DEVICE
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import option_error


def load_start(model: str, layers: int | None = None, device: str = DEVICE, **changes: Any) -> TransformerEncoder:
    """Load the start model with a changed contract and, with `layers`, its first layers only.

    Args:
        model: `minilm`, a folder, or a Hugging Face id.
        layers: number of transformer layers to keep; None keeps all.
        device: device of the weights.
        changes: fields of the contract to change.

    Raises:
        InputError: the model cannot be loaded, or has fewer layers.
    """
    encoder = TransformerEncoder.load(model, device=device, **changes)
    for tower in dict.fromkeys((encoder.query_tower, encoder.document_tower)):
        keep_first_layers(tower.backbone, layers)
    return encoder


def check_layers(layers: int, count: int) -> None:
    """Refuse more layers than the `count` of the start model."""
    if layers > count:
        raise option_error("layers", layers, f"the model has {count} layers", limit=count)


def keep_first_layers(backbone: PreTrainedModel, layers: int | None) -> None:
    """Remove all transformer layers after the first `layers`; None keeps all.

    Raises:
        InputError: the model has fewer layers, or no list of layers.
    """
    if layers is None:
        return
    count = getattr(backbone.config, "num_hidden_layers", 0)
    check_layers(layers, count)
    stacks = [
        (parent, name, child)
        for parent in backbone.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == count
    ]
    if len(stacks) != 1:
        raise option_error(
            "layers", None, f"{type(backbone).__name__} has no single stack of layers", code="architecture-unsupported"
        )
    parent, name, stack = stacks[0]
    setattr(parent, name, stack[:layers])
    backbone.config.num_hidden_layers = layers
