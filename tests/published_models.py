"""Tiny random models in published forms, for tests."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from hybrid_cli.encoders.contract import preset_fields
from hybrid_cli.encoders.transformer import TransformerEncoder

QUERIES = ["inverse of a square matrix", "naïve café"]
TITLES = ["linear algebra", ""]
TEXTS = ["The inverse of a matrix exists if its determinant is not zero.", "A naïve estimate."]
SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
WIDE = {**SHAPE, "initializer_range": 0.3, "pad_token_id": 0, "max_position_embeddings": 8194}
WEIGHTS = "model.safetensors"


def saved(model: nn.Module, config: Any, tokenizer: Any, folder: Path, prefix: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    state = {prefix + name: value.clone() for name, value in model.state_dict().items()}
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def opened(folder: Path, preset: str | None) -> TransformerEncoder:
    return TransformerEncoder.load(folder, **preset_fields(preset, folder))


def batch(tokenizer: Any, texts: list[str], **options: Any) -> dict[str, Tensor]:
    encoded = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False, **options)
    return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}


def close(ours: np.ndarray, reference: Tensor) -> None:
    assert ours.shape == tuple(reference.shape)
    assert float(np.abs(ours).max()) > 0.01
    np.testing.assert_allclose(ours, reference.detach().numpy(), atol=2e-5)


def bert(tokenizer: Any, seed: int = 0, kind: Any = BertModel, config: Any = BertConfig, **more: Any) -> Any:
    torch.manual_seed(seed)
    model: Any = kind(config(vocab_size=len(tokenizer), **{**WIDE, **more}))
    return model.eval()


def chain(folder: Path, source: Path, pooling: Any, *modules: nn.Module) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    whole: Any = [Transformer(str(source)), Pooling(16, pooling), *modules]
    model = SentenceTransformer(modules=whole, device="cpu", similarity_fn_name="dot")
    model.save(str(folder))
    return model
