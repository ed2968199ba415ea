"""The transformer encoder: one or two towers, a contract, and encoding in length-sorted batches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import disk
from hybrid_cli.artifacts.layout import CONTRACT, MODULES
from hybrid_cli.encoders.contract import Contract, TextForm, notes_on, read_contract, refuse_single_text
from hybrid_cli.encoders.devices import pick_device, pick_dtype
from hybrid_cli.encoders.head import refuse_missing_projection
from hybrid_cli.encoders.layouts import is_two_folders, structure
from hybrid_cli.encoders.models import resolve
from hybrid_cli.encoders.options import DEVICE, Precision
from hybrid_cli.encoders.tower import Tower
from hybrid_cli.errors import InputError

BATCH_TOKENS = 4096


class TransformerEncoder(nn.Module):
    """Encoder of queries and documents with one or two transformers; the inner product is the score.

    Attributes:
        contract: parameters of the encoder.
        query_tower: encodes queries.
        document_tower: encodes documents; the same object as `query_tower` if the contract is tied.
        fingerprint: hash of the stored weights and of the contract; empty for an encoder built in memory.
        truncated: number of texts cut to the maximum length so far.
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
        device: str = DEVICE,
        dtype: Precision = "fp32",
        route: str | None = None,
        **overrides: Any,
    ) -> TransformerEncoder:
        """Open an encoder.

        Args:
            name: `minilm`, a folder, or a Hugging Face id.
            device: `auto` uses a GPU if there is one.
            dtype: precision of the weights; `auto` is bf16 where the processor supports it natively, else fp32.
            route: `query` or `document`, one encoder of a model of sentence-transformers with two.
            overrides: contract fields to change; `tied=False` copies the tower of a tied checkpoint.

        Raises:
            InputError: no such model, or the model does not fit the contract.
        """
        folder = resolve(name)
        stored = read_contract(folder, route)
        contract = stored.changed(**overrides)
        weights = artifacts.fingerprint(folder)
        two_folders, published = is_two_folders(folder), structure(folder)
        if not (stored.tied or two_folders or published):
            raise InputError(f"{folder}: incomplete encoder of two towers; query/ or document/ is missing")
        if two_folders and contract.tied:
            raise InputError(f"{folder}: has two towers and cannot be loaded as a tied encoder; use --untied")
        if contract.dim == stored.dim and "dim" not in published:
            refuse_missing_projection(folder / "query" if two_folders else folder, stored)
        query = Tower.load(folder / "query" if two_folders else folder, contract, route or "query")
        document = query
        if not contract.tied:
            document = Tower.load(folder / "document" if two_folders else folder, contract, "document")
        for name, tower in (("query_max_len", query), ("doc_max_len", document)):
            if (overrides.get(name) or 0) > tower.longest:
                raise InputError(
                    f"--{name.replace('_', '-')} {overrides[name]}: {folder} reads at most {tower.longest} word pieces"
                )
        if query.left_out:
            console.note(f"{folder}: skipped pretraining heads: {', '.join(query.left_out)}")
        if (folder / MODULES).is_file() and not (folder / CONTRACT).is_file():
            for note in notes_on(folder, contract):
                console.note(f"{folder}: {note}")
        encoder = cls(contract, query, document, contract_fingerprint(weights, contract))
        return encoder.to(device=pick_device(device), dtype=pick_dtype(dtype, pick_device(device))).eval()

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self.document_tower.dim

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.parameters()).device

    def describe(self) -> dict[str, Any]:
        """Return the contract as JSON values, as manifests store it."""
        return self.contract.to_dict()

    def save(self, folder: Path) -> None:
        """Write checkpoint, tokenizer and contract; a tied encoder is also a sentence-transformers model."""
        if self.contract.tied:
            self.document_tower.save(folder, self.contract)
        else:
            self.query_tower.save(folder / "query", self.contract)
            self.document_tower.save(folder / "document", self.contract)
        disk.write_text(folder / CONTRACT, json.dumps(self.contract.to_dict(), indent=2) + "\n")

    def add_distillation_heads(self, dim: int) -> None:
        """Add a linear map from pooled states to `dim` values to each tower, for training only (LITE, eq. 8-9).

        In training mode a tower returns these values after the vector; they are never saved.
        """
        for tower in dict.fromkeys((self.query_tower, self.document_tower)):
            tower.add_distillation_head(dim)

    def start_at_zero(self) -> None:
        """Set the weights of the projections to zero, so that every vector is zero before the training."""
        for tower in dict.fromkeys((self.query_tower, self.document_tower)):
            assert tower.projection is not None
            for weights in tower.projection.parameters():
                torch.nn.init.zeros_(weights)

    def encode_queries(self, texts: Sequence[str], batch_tokens: int = BATCH_TOKENS) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`."""
        refuse_single_text(texts)
        texts = [self.contract.query(text) for text in texts]
        return self._encode(self.query_tower, texts, "query", batch_tokens)

    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], batch_tokens: int = BATCH_TOKENS
    ) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`."""
        refuse_single_text(titles, texts)
        whole = [self.contract.document(title, text) for title, text in zip(titles, texts, strict=True)]
        return self._encode(self.document_tower, whole, "document", batch_tokens)

    def _encode(self, tower: Tower, texts: list[str], side: str, batch_tokens: int) -> np.ndarray:
        if not texts:
            return np.zeros((0, tower.dim), np.float32)
        ids, truncated = tower.tokenize(texts, side)
        self.truncated += truncated
        vectors = np.empty((len(texts), tower.dim), np.float32)
        device = next(tower.parameters()).device
        with torch.inference_mode():
            for rows in batches_by_length([len(x) for x in ids], batch_tokens):
                batch = [part.to(device) for part in tower.batch([ids[row] for row in rows], side)]
                vectors[rows] = tower(*batch).float().cpu().numpy()
        return vectors


def batches_by_length(lengths: Sequence[int], batch_tokens: int, most: int | None = None) -> Iterator[np.ndarray]:
    """Yield row numbers in batches of similar length, longest first.

    Args:
        lengths: tokens of each row.
        batch_tokens: maximum tokens of a batch, padding included; a longer row is a batch of its own.
        most: maximum rows of a batch.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    begin = 0
    while begin < len(order):
        size = min(most or len(order), max(1, batch_tokens // max(1, lengths[order[begin]])))
        yield order[begin : begin + size]
        begin += size


def contract_fingerprint(weights: str, contract: TextForm) -> str:
    """Return the fingerprint of an encoder: a hash of its weights and contract."""
    text = weights + json.dumps(contract.to_dict(), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
