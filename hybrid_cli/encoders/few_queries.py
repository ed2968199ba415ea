"""Queries of a BERT encoder in NumPy, for a process that has not imported PyTorch.

The import takes longer than a search, and 390 MiB. On one thread, NumPy takes 1.2 times the time of PyTorch for one
query, the same for eight, and .7 times for 27, whose texts PyTorch pads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file

from hybrid_cli import storage
from hybrid_cli.encoders import contract as contracts
from hybrid_cli.inputs.json_values import read_object
from hybrid_cli.storage.layout import WEIGHTS

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

FEW = 32  # texts of one call
_TOKENS = 1024  # about the most of one pass, which bounds its memory
_ROWS = 16  # tokens whose activations fit in the cache
_CONFIG = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
_NEUTRAL = (  # fields of a contract that need their defaults here
    *("dim", "modules", "segments", "special_tokens", "skip_tokens", "fill_queries", "more_pooling"),
    *("include_prompt", "append_eos", "lower_case"),
)
_RULES = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
_SIZES = ("num_hidden_layers", "num_attention_heads", "layer_norm_eps", "hidden_size", "max_position_embeddings")
_EMBEDDINGS = ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm")
_PARTS = (
    *(f"attention.self.{name}" for name in ("query", "key", "value")),
    *("attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"),
)
_UNUSED = ("pooler.", "embeddings.position_ids")
Array = np.ndarray
Weights = Mapping[str, Array]


class FewQueries:
    """An encoder that computes up to `FEW` queries in NumPy, and everything else with the transformer.

    Vectors differ from those of the transformer by less than 1e-5.

    Args:
        bert: the encoder of queries.
        contract: contract of the encoder.
        fingerprint: fingerprint of the encoder.
        whole: opens the transformer.
    """

    def __init__(
        self, bert: Bert, contract: contracts.Contract, fingerprint: str, whole: Callable[[], contracts.Encoder]
    ):
        self.contract, self.fingerprint = contract, fingerprint
        self._bert, self._open, self._cut, self.dim = bert, whole, 0, contract.truncate_dim or bert.dim

    @cached_property
    def _whole(self) -> contracts.Encoder:
        return self._open()

    @property
    def truncated(self) -> int:
        """Number of texts cut to the maximum length so far."""
        return self._cut + (self._whole.truncated if "_whole" in vars(self) else 0)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self._whole.device

    def describe(self) -> dict[str, Any]:
        """Return the contract as JSON values, as manifests store it."""
        return self.contract.to_dict()

    def encode_queries(self, texts: Sequence[str], *batch_tokens: int) -> Array:
        """Return vectors [n, dim], float32, in the order of `texts`."""
        contracts.refuse_single_text(texts)
        if not 0 < len(texts) <= FEW or "_whole" in vars(self):
            return self._whole.encode_queries(texts, *batch_tokens)
        vectors, cut = self._bert.vectors(list(map(self.contract.query, texts)))
        self._cut += cut
        return vectors

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str], *batch_tokens: int) -> Array:
        """Return vectors [n, dim], float32, in the order of `texts`."""
        return self._whole.encode_documents(titles, texts, *batch_tokens)


class Bert:
    """The forward pass of BERT over some texts, with pooling and normalization of a contract.

    Args:
        weights: weights of the transformer by name.
        config: its configuration.
        tokenizer: its tokenizer.
        contract: contract of the encoder.
    """

    def __init__(self, weights: Weights, config: Mapping[str, Any], tokenizer: Tokenizer, contract: contracts.Contract):
        self._weights, self._contract, self._tokenizer = weights, contract, tokenizer
        self._layers, self._heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
        self._epsilon, self.dim = float(config["layer_norm_eps"]), int(config["hidden_size"])
        tokenizer.no_padding()
        tokenizer.enable_truncation(min(contract.query_max_len, int(config["max_position_embeddings"])))

    def vectors(self, texts: Sequence[str]) -> tuple[Array, int]:
        """Return the vectors [n, dim] of texts, and how many texts were cut."""
        encodings = self._tokenizer.encode_batch(list(texts))
        ends = np.cumsum([len(encoding.ids) for encoding in encodings])
        passes = np.split(np.arange(len(ends)), np.flatnonzero(np.diff(ends // _TOKENS)) + 1)
        pooled = [self._pooled([encodings[number].ids for number in some]) for some in passes]
        vectors = np.concatenate(pooled)[:, : self._contract.truncate_dim]
        if self._contract.normalize:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        return vectors, sum(bool(encoding.overflowing) for encoding in encodings)

    def _pooled(self, ids: Sequence[Sequence[int]]) -> Array:
        """Return one vector [n, dim] per list of token ids."""
        sizes = list(map(len, ids))
        parts = np.split(self._states(np.concatenate(ids), sizes), np.cumsum(sizes)[:-1])
        return np.stack([part[0] if self._contract.pooling == "cls" else part.mean(0) for part in parts])

    def _states(self, ids: Array, sizes: Sequence[int]) -> Array:
        """Return the last states [L, dim] of the token ids [L] of texts, one after another, of `sizes` tokens."""
        table = "embeddings.{}_embeddings.weight".format
        w, positions = self._weights, np.concatenate([np.arange(size) for size in sizes])
        summed = w[table("word")][ids] + w[table("position")][positions] + w[table("token_type")][0]
        states = self._normed(summed, "embeddings.LayerNorm")
        for number in range(self._layers):
            states = self._layer(states, sizes, f"encoder.layer.{number}.")
        return states

    def _layer(self, states: Array, sizes: Sequence[int], at: str) -> Array:
        parts = [self._linear(states, f"{at}attention.self.{name}") for name in ("query", "key", "value")]
        mixed, begin = np.empty_like(states), 0
        for size in sizes:
            own = (part[begin : begin + size].reshape(size, self._heads, -1).swapaxes(0, 1) for part in parts)
            queries, keys, values = own
            scores = queries @ keys.swapaxes(1, 2) / math.sqrt(queries.shape[-1])
            shares = np.exp(scores - scores.max(2, keepdims=True))
            shares /= shares.sum(2, keepdims=True)
            mixed[begin : begin + size] = (shares @ values).swapaxes(0, 1).reshape(size, -1)
            begin += size
        attended = self._linear(mixed, f"{at}attention.output.dense")
        states = self._normed(attended + states, f"{at}attention.output.LayerNorm")
        wide = self._linear(states, f"{at}intermediate.dense")
        for row in range(0, len(wide), _ROWS):
            wide[row : row + _ROWS] = _gelu(wide[row : row + _ROWS])
        return self._normed(self._linear(wide, f"{at}output.dense") + states, f"{at}output.LayerNorm")

    def _linear(self, states: Array, at: str) -> Array:
        mapped: Array = states @ self._weights[f"{at}.weight"].T + self._weights[f"{at}.bias"]
        return mapped

    def _normed(self, states: Array, at: str) -> Array:
        centered = states - states.mean(1, keepdims=True)
        scaled = centered / np.sqrt(np.square(centered).mean(1, keepdims=True) + np.float32(self._epsilon))
        normed: Array = scaled * self._weights[f"{at}.weight"] + self._weights[f"{at}.bias"]
        return normed


def _gelu(values: Array) -> Array:
    """Return `values` times the normal distribution function, within 4e-7 (Abramowitz and Stegun, 7.1.26).

    scipy has the error function, but its import takes longer than the search.
    """
    t = np.abs(values) * np.float32(0.3275911 / math.sqrt(2))
    t += 1
    np.reciprocal(t, out=t)
    tail = t * np.float32(1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail += np.float32(coefficient)
        tail *= t
    density = values * values
    density *= np.float32(-0.5)
    np.exp(density, out=density)
    tail *= density
    tail *= values
    tail *= np.float32(0.5)
    activated: Array = np.maximum(values, 0, out=density)
    activated -= np.abs(tail, out=tail)
    return activated


def open_few(
    folder: Path, overrides: Mapping[str, Any], known: Mapping[str, Any] | None, whole: Callable[[], contracts.Encoder]
) -> FewQueries | None:
    """Open an encoder for few queries; None for one that `Bert` does not compute.

    Args:
        folder: folder of the encoder.
        overrides: changes of the contract.
        known: see `stored_encoder`.
        whole: opens the transformer.
    """
    stored = contracts.stored_encoder(folder, known)
    own = stored.contract() if stored.kind == contracts.TRANSFORMER else None
    if not isinstance(own, contracts.Contract):
        return None
    files, contract = stored.tower("query"), own.changed(**overrides)
    plain = not files.read
    plain = plain and all(getattr(contract, name) == getattr(contracts.Contract, name) for name in _NEUTRAL)
    if not plain or contract.pooling not in ("mean", "cls") or contract.tied != own.tied:
        return None
    if (bert := _open_bert(files.folder, contract)) is None:
        return None
    return FewQueries(bert, contract, contracts.contract_fingerprint(storage.fingerprint(folder), contract), whole)


def _names(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the weights."""
    yield from (f"embeddings.{part}.weight" for part in _EMBEDDINGS)
    yield "embeddings.LayerNorm.bias"
    for number in range(int(config["num_hidden_layers"])):
        yield from (f"encoder.layer.{number}.{part}.{kind}" for part in _PARTS for kind in ("weight", "bias"))


def _open_bert(folder: Path, contract: contracts.Contract) -> Bert | None:
    """Open a BERT with all of its weights in one file, and a tokenizer that needs no other file than tokenizer.json."""
    from tokenizers import Tokenizer

    if [file.name for file in contracts.weight_files(folder)] != [WEIGHTS] or not (folder / "tokenizer.json").is_file():
        return None
    config, declared = read_object(folder / "config.json"), read_object(folder / "tokenizer_config.json")
    known = all(config.get(name, value) == value for name, value in _CONFIG.items()) and config.keys() >= {*_SIZES}
    if not known or {name for name in contracts.shapes(folder) if not name.startswith(_UNUSED)} != {*_names(config)}:
        return None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rules = tokenizer.normalizer
    if any(name in declared and declared[name] != getattr(rules, rule, None) for name, rule in _RULES.items()):
        return None
    weights = {name: value.astype(np.float32, copy=False) for name, value in load_file(folder / WEIGHTS).items()}
    return Bert(weights, config, tokenizer, contract)
