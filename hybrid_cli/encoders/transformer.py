"""The transformer encoder: one tower or two, a contract, and texts to vectors in length-sorted batches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hybrid_cli import artifacts, console
from hybrid_cli.config import Precision
from hybrid_cli.encoders.contract import FILE, Contract, read_contract
from hybrid_cli.encoders.models import pick_device, pick_dtype, resolve
from hybrid_cli.encoders.tower import Tower
from hybrid_cli.errors import InputError

BATCH_TOKENS = 4096


class TransformerEncoder(nn.Module):
    """Queries and documents to vectors whose inner product is the score.

    Attributes:
        contract: how texts become vectors.
        query_tower, document_tower: one and the same object where the contract is tied.
        fingerprint: hash of the weights on disk and of the contract; empty once training has begun.
        truncated: how many texts were cut to the contract's length so far.
    """

    def __init__(self, contract: Contract, query_tower: Tower, document_tower: Tower, fingerprint: str = ""):
        super().__init__()
        self.contract = contract
        self.query_tower = query_tower
        self.document_tower = document_tower
        self.fingerprint = fingerprint
        self.truncated = 0

    @classmethod
    def load(
        cls,
        name: str | Path,
        *,
        device: str = "auto",
        dtype: Precision = "fp32",
        trust_remote_code: bool = False,
        **overrides: Any,
    ) -> TransformerEncoder:
        """Open an encoder.

        Args:
            name: `minilm`, a folder, or a Hugging Face id.
            device: `auto` takes a GPU where there is one.
            dtype: of the weights; `auto` is bf16 where the processor computes in it, else fp32.
            overrides: fields of the contract to change; a tied checkpoint loaded as `tied=False` is copied.

        Raises:
            InputError: there is no such model here.
        """
        folder = resolve(str(name))
        contract = read_contract(folder).changed(**overrides)
        weights = artifacts.fingerprint(folder)
        two_folders = (folder / "query").is_dir() and (folder / "document").is_dir()
        if two_folders and contract.tied:
            raise InputError(f"{folder}: has two towers; it cannot be loaded as a tied encoder")
        query = Tower.load(folder / "query" if two_folders else folder, contract, trust_remote_code)
        document = query
        if not contract.tied:
            document = Tower.load(folder / "document" if two_folders else folder, contract, trust_remote_code)
        if query.left_out:
            console.note(f"{folder}: {', '.join(query.left_out)} left out: heads of pretraining, no part of an encoder")
        encoder = cls(contract, query, document, contract_fingerprint(weights, contract))
        return encoder.to(device=pick_device(device), dtype=pick_dtype(dtype, pick_device(device))).eval()

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self.document_tower.dim

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def describe(self) -> dict[str, Any]:
        """The contract, as manifests hold it."""
        return self.contract.to_dict()

    def save(self, folder: Path) -> None:
        """Write checkpoint, tokenizer and contract; a tied encoder is a sentence-transformers model as it stands."""
        if self.contract.tied:
            self.document_tower.save(folder, self.contract)
        else:
            self.query_tower.save(folder / "query", self.contract)
            self.document_tower.save(folder / "document", self.contract)
        (folder / FILE).write_text(json.dumps(self.contract.to_dict(), indent=2) + "\n", "utf-8")

    def encode_queries(self, texts: Sequence[str], batch_tokens: int = BATCH_TOKENS) -> np.ndarray:
        """Vectors [n, dim], float32, in the order of `texts`."""
        texts = [self.contract.query(text) for text in texts]
        return self._encode(self.query_tower, texts, self.contract.query_max_len, batch_tokens)

    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], batch_tokens: int = BATCH_TOKENS
    ) -> np.ndarray:
        """Vectors [n, dim], float32, in the order of `texts`."""
        whole = [self.contract.document(title, text) for title, text in zip(titles, texts, strict=True)]
        return self._encode(self.document_tower, whole, self.contract.doc_max_len, batch_tokens)

    def _encode(self, tower: Tower, texts: list[str], max_length: int, batch_tokens: int) -> np.ndarray:
        if not texts:
            return np.zeros((0, tower.dim), np.float32)
        encodings = tower.tokenizer(texts, truncation=True, max_length=max_length, return_token_type_ids=False)
        self.truncated += sum(bool(encoding.overflowing) for encoding in encodings.encodings)
        ids: list[list[int]] = encodings["input_ids"]
        vectors = np.empty((len(texts), tower.dim), np.float32)
        device = next(tower.parameters()).device
        with torch.inference_mode():
            for rows in batches_by_length([len(x) for x in ids], batch_tokens):
                batch = tower.tokenizer.pad({"input_ids": [ids[row] for row in rows]}, return_tensors="pt").to(device)
                vectors[rows] = tower(batch["input_ids"], batch["attention_mask"]).float().cpu().numpy()
        return vectors


def batches_by_length(lengths: Sequence[int], batch_tokens: int, most: int | None = None) -> Iterator[np.ndarray]:
    """Rows in batches of similar length, longest first: `batch_tokens` at most with the padding, and `most` rows."""
    order = np.argsort(-np.asarray(lengths), kind="stable")
    begin = 0
    while begin < len(order):
        size = min(most or len(order), max(1, batch_tokens // max(1, lengths[order[begin]])))
        yield order[begin : begin + size]
        begin += size


def contract_fingerprint(weights: str, contract: Contract) -> str:
    """What an index remembers of the encoder that made it."""
    import hashlib

    text = weights + json.dumps(contract.to_dict(), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
