"""Tiny random checkpoints of learned sparse encoders, in the layouts of the published ones."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_tokenizer import tiny_tokenizer
from transformers import BertConfig, BertForMaskedLM, BertForTokenClassification, BertModel

from hybrid_cli.encoders.sparse import SparseEncoder

ARCHITECTURES = ("splade", "unicoil", "deepct")
TEXTS = ["The heart pumps blood, and blood carries oxygen.", "Tides", "salt-free U.S. sea water isn't salt"]


def shape(tokenizer: Any, **more: Any) -> BertConfig:
    more |= {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return BertConfig(vocab_size=len(tokenizer), initializer_range=0.3, **more)


def write_checkpoint(folder: Path, architecture: str, seed: int = 3) -> Path:
    """Write a checkpoint with transformers' own class, or with UniCOIL's names of the weights."""
    tokenizer = tiny_tokenizer()
    torch.manual_seed(seed)
    if architecture == "splade":
        whole = BertForMaskedLM(shape(tokenizer))
        torch.nn.init.constant_(whole.cls.predictions.bias, -3.8)  # most terms have no weight, as after training
        whole.save_pretrained(folder)
    elif architecture == "deepct":
        model = BertForTokenClassification(shape(tokenizer, num_labels=1))
        torch.nn.init.constant_(model.classifier.bias, 1.0)
        model.save_pretrained(folder)
    else:
        body, head = BertModel(shape(tokenizer)), torch.nn.Linear(16, 1)
        body.config.save_pretrained(folder)
        state = {f"coil_encoder.{name}": value for name, value in body.state_dict().items()}
        state |= {f"tok_proj.{name}": value for name, value in head.state_dict().items()}
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)
    return folder


def write_checkpoints(folder: Path) -> dict[Any, Path]:
    return {each: write_checkpoint(folder / each, each) for each in ARCHITECTURES}


def open_model(models: dict[Any, Path], architecture: Any) -> SparseEncoder:
    return SparseEncoder.load(models[architecture], architecture=architecture, device="cpu")
