"""The start model of a training."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hybrid_cli.encoders.adapters import BaseModel, adapter_of, add_adapter
from hybrid_cli.encoders.contract import read_contract
from hybrid_cli.encoders.models import resolve
from hybrid_cli.encoders.options import DEVICE, LoraOptions
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import option_error
from hybrid_cli.training.options import WHOLE, Start


def load_start(
    model: str, device: str = DEVICE, start: Start = WHOLE, *, any_dim: bool = False, **changes: Any
) -> TransformerEncoder:
    """Load the start model with a changed contract; see `prepare_start`.

    Args:
        model: `minilm`, a folder, or a Hugging Face id.
        device: device of the weights.
        start: layers to keep, and how they are trained.
        any_dim: allow a new projection to more values than the model has.
        changes: fields of the contract to change.

    Raises:
        InputError: the model cannot be loaded, has fewer layers, or has fewer dimensions.
    """
    own = read_contract(resolve(model))
    encoder = TransformerEncoder.load(model, device=device, **changes)
    dim, limit = encoder.contract.dim, encoder.query_tower.unprojected_dim
    if dim not in (None, own.dim) and dim > limit and not any_dim:
        raise option_error("dim", dim, f"{model} has {limit} dimensions", limit=limit)
    if _lora(start) and encoder.contract.markers != own.markers:
        problem = "a frozen transformer has no vectors for new markers; omit one of both"
        raise option_error("markers", encoder.contract.markers, problem, code="conflicting-options")
    towers = {"document": encoder.document_tower, "query": encoder.query_tower}
    for side, tower in towers.items() if encoder.document_tower is not encoder.query_tower else [*towers.items()][:1]:
        prepare_start(tower.backbone, start, model, side)
    return encoder


def prepare_start(backbone: PreTrainedModel, start: Start, model: str = "", side: str = "document") -> None:
    """Keep the first layers of a transformer, and prepare it for training; add an adapter if `start` asks for one.

    Args:
        backbone: transformer of the start model.
        start: layers to keep, and how they are trained.
        model: name of the start model.
        side: its tower; empty for a reranker.

    Raises:
        InputError: it has fewer layers, an adapter, no modules to adapt, or cannot compute states again.
    """
    if (lora := _lora(start)) is not None:
        add_adapter(backbone, BaseModel.of(model, side), lora)
    elif adapter_of(backbone):
        problem = "has an adapter; merge it first: hybrid convert-checkpoint MODEL OUT --merge"
        raise option_error("model", model, problem, code="model-adapter")
    keep_first_layers(backbone, start.layers)
    if start.gradient_checkpointing:
        if not getattr(backbone, "supports_gradient_checkpointing", False):
            problem = f"{type(backbone).__name__} does not support it; pass --chunk-size for less memory"
            raise option_error("gradient_checkpointing", None, problem, code="architecture-unsupported")
        with warnings.catch_warnings(action="ignore"):  # of the new name in transformers 6
            backbone.gradient_checkpointing_enable({"use_reentrant": False})


def _lora(start: Start) -> LoraOptions | None:
    return start if isinstance(start, LoraOptions) and start.lora_r is not None else None


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
        raise option_error("layers", None, "the model has no single stack of layers", code="architecture-unsupported")
    parent, name, stack = stacks[0]
    setattr(parent, name, stack[:layers])
    backbone.config.num_hidden_layers = layers
