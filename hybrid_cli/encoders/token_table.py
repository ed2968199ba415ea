"""A table of token vectors in place of a transformer: the module StaticEmbedding of sentence-transformers.

The vector of a text is the mean of the vectors of its tokens, without special tokens. The table and its tokenizer stand
where a transformer has its states and its pooling, so that prompts, further modules and training are the same.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerFast

from hybrid_cli.encoders.checkpoints.library_files import LONGEST, TOKENIZER
from hybrid_cli.encoders.loading import opening
from hybrid_cli.errors import InputError
from hybrid_cli.storage import layout


class TokenTable(nn.Module):
    """Vectors of tokens.

    Args:
        weight: [tokens, dim]

    Attributes:
        config: `hidden_size`, the length of the vectors, and `model_type`.
    """

    def __init__(self, weight: Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.config = SimpleNamespace(hidden_size=weight.shape[1], model_type="static-embedding")

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the vectors."""
        return self.weight.dtype

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the mean vectors [n, dim] of token ids [n, L] under a mask [n, L]; zero for a text without tokens."""
        mask = mask.to(self.dtype)
        total = functional.embedding_bag(ids, self.weight, mode="sum", per_sample_weights=mask)
        return total / mask.sum(1, keepdim=True).clamp(min=1)


def save_table(folder: Path, table: TokenTable, tokenizer: Any, length: int) -> None:
    """Write a table as sentence-transformers does, with `length`, the maximum number of tokens of a text."""
    save_file({"embedding.weight": table.weight.detach().contiguous()}, folder / layout.WEIGHTS)
    rules = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    rules.no_padding()
    rules.no_truncation()
    if length < LONGEST:
        rules.enable_truncation(length, direction=tokenizer.truncation_side)
    rules.save(str(folder / TOKENIZER))


def load_table(folder: Path) -> tuple[TokenTable, Any]:
    """Return the table of a folder, and its tokenizer.

    Raises:
        InputError: no table in safetensors format, or one that does not fit the tokenizer.
    """
    file = folder / layout.WEIGHTS
    if not file.is_file():
        raise InputError(
            f"{folder}: has no {layout.WEIGHTS}; pickles (pytorch_model.bin) are not opened. Convert them: hybrid "
            "convert-checkpoint",
            code="model-without-weights",
            path=folder,
        )
    with opening(folder):
        stored = load_file(file)
        rules = Tokenizer.from_file(str(folder / TOKENIZER))
        weight = _weight(stored)
    tokens = max(rules.get_vocab().values(), default=-1) + 1
    if weight is None or weight.dim() != 2 or not weight.is_floating_point() or len(weight) < tokens:
        raise InputError(
            f"{file}: needs the vectors of {tokens:,} tokens in floating point (embedding.weight)",
            code="table-form",
            path=file,
        )
    side = (rules.truncation or {}).get("direction", "right")
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=rules, truncation_side=side.lower(), padding_side="right"
    )
    return TokenTable(weight.contiguous()), tokenizer


def _weight(stored: dict[str, Tensor]) -> Tensor | None:
    """Return the vectors of all tokens; model2vec shares vectors among tokens, with a weight for each token."""
    if "embedding.weight" in stored or "embeddings" not in stored:
        return stored.get("embedding.weight")
    weight = stored["embeddings"]
    if (rows := stored.get("mapping")) is not None:
        weight = weight[rows.long()]
    if (each := stored.get("weights")) is not None:
        weight = weight.float() * each[:, None].float()
    return weight
