"""The interface of encoders, and the contract: all parameters except the weights that determine the vector of a text.

The contract is stored with the encoder (`encoder.json`) and with every index of its vectors; an index refuses queries
that were encoded under another contract. For a sentence-transformers model without `encoder.json`, the contract is read
from the files of that library; a plain checkpoint has the default contract.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hybrid_cli.artifacts.layout import CONTRACT, MODULES
from hybrid_cli.errors import InputError
from hybrid_cli.settings.common import Markers, Pooling

if TYPE_CHECKING:
    import numpy as np
    import torch


class Encoder(Protocol):
    """Encoder of texts as vectors whose inner product is the score.

    Attributes:
        fingerprint: hash of the stored weights and of all other parameters that affect document vectors.
    """

    fingerprint: str

    @property
    def truncated(self) -> int:
        """Number of texts cut to the maximum length so far."""
        ...

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        ...

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return the contract as JSON values, as manifests store it."""
        ...

    def encode_queries(self, texts: Sequence[str], batch_tokens: int = ...) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`."""
        ...

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str], batch_tokens: int = ...) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`."""
        ...


TRANSFORMER = "transformer"
QUERY_MARKER, DOCUMENT_MARKER = "[unused1]", "[unused2]"


@dataclass(frozen=True)
class Contract:
    """Parameters of a transformer encoder, besides the weights.

    Attributes:
        pooling: `mean` over all tokens except padding, or `cls`, the state of the first token.
        normalize: scale vectors to length 1.
        tied: one tower for queries and documents instead of two.
        markers: query and document markers in place of [CLS] (DualRM, section 3.2), after it (CLEAR, section 3.2), or
            none. Our choice: BERT's reserved word pieces `[unused1]` and `[unused2]` are the markers, so that the
            checkpoint remains a plain BERT.
        query_prefix: text put before every query.
        doc_prefix: text put before every document.
        title_separator: text between title and body; DPR uses `" [SEP] "`.
        query_max_len: maximum word pieces of a query, special tokens included; longer queries are cut.
        doc_max_len: maximum word pieces of a document.
        dim: length of the projection; None for no projection.
        projection_norm: a LayerNorm follows the projection. Our choice: LITE, eq. 5, is a plain matrix, the code of
            its authors has a LayerNorm.
        truncate_dim: number of leading values kept of each vector; None for all. For models trained with
            `--matryoshka-dims` (Matryoshka).
        binary: the encoder was trained for search with sign codes (BPR). Vectors are not affected; `encode`
            builds a binary index by default.
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    tied: bool = True
    markers: Markers = "none"
    query_prefix: str = ""
    doc_prefix: str = ""
    title_separator: str = " "
    query_max_len: int = 64
    doc_max_len: int = 180
    dim: int | None = None
    projection_norm: bool = True
    truncate_dim: int | None = None
    binary: bool = False

    @property
    def query_head(self) -> str:
        """Text before a query: marker and prefix."""
        return self.query_prefix if self.markers == "none" else f"{QUERY_MARKER} {self.query_prefix}"

    @property
    def document_head(self) -> str:
        """Text before a document: marker and prefix."""
        return self.doc_prefix if self.markers == "none" else f"{DOCUMENT_MARKER} {self.doc_prefix}"

    def query(self, text: str) -> str:
        """Return the input of the tokenizer for a query."""
        return self.query_head + text

    def document(self, title: str, text: str) -> str:
        """Return the input of the tokenizer for a document."""
        return self.document_head + (f"{title}{self.title_separator}{text}" if title else text)

    def changed(self, **overrides: Any) -> Contract:
        """Return this contract with the values of `overrides` that are not None.

        Raises:
            InputError: a maximum length that leaves no room for a word.
        """
        new = replace(self, **{name: value for name, value in overrides.items() if value is not None})
        for name in ("query_max_len", "doc_max_len"):
            if getattr(new, name) < 4:
                raise InputError(f"--{name.replace('_', '-')} {getattr(new, name)}: needs at least 4 word pieces")
        return new

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values for `encoder.json` and manifests.

        Fields that were added after the first version are omitted at their defaults, so that hashes do not change.
        """
        later = (("truncate_dim", None), ("binary", False))
        return {name: value for name, value in asdict(self).items() if (name, value) not in later}


def kind_of(folder: Path) -> str:
    """Return the kind of encoder in `folder`: `transformer`, `static`, `combination` or `pair`.

    Raises:
        InputError: `encoder.json` cannot be read.
    """
    if not (folder / CONTRACT).is_file():
        return TRANSFORMER
    try:
        return str(json.loads((folder / CONTRACT).read_text("utf-8")).get("kind", TRANSFORMER))
    except json.JSONDecodeError as error:
        raise InputError(f"{folder / CONTRACT}: not readable JSON ({error})") from None


def read_contract(folder: Path) -> Contract:
    """Return the contract of a transformer: from `encoder.json`, from sentence-transformers' files, or the defaults.

    Raises:
        InputError: the contract has unknown fields, or belongs to another kind of encoder.
    """
    if (kind := kind_of(folder)) != TRANSFORMER:
        raise InputError(f"{folder}: is a {kind} encoder; needs a transformer")
    if (folder / CONTRACT).is_file():
        stored = json.loads((folder / CONTRACT).read_text("utf-8"))
        if unknown := sorted(set(stored) - {field.name for field in fields(Contract)}):
            hint = "; rename it to truncate_dim" if unknown == ["prefix"] else "; update hybrid"
            raise InputError(f"{folder / CONTRACT}: unknown field {', '.join(unknown)}{hint}")
        return Contract(**stored)
    if (folder / MODULES).is_file():
        return _from_sentence_transformers(folder)
    return Contract()


def _from_sentence_transformers(folder: Path) -> Contract:
    modules = _json(folder / MODULES)
    types = [module["type"].rsplit(".", 1)[-1] for module in modules]
    if unknown := set(types) - {"Transformer", "Pooling", "Normalize"}:
        raise InputError(f"{folder}: unsupported sentence-transformers modules: {', '.join(sorted(unknown))}")
    pooling: dict[str, Any] = next(
        (_json(folder / m["path"] / "config.json") for m in modules if m["type"].endswith("Pooling")), {}
    )
    modes = {name for name, on in pooling.items() if name.startswith("pooling_mode_") and on is True}
    modes |= {f"pooling_mode_{pooling['pooling_mode']}_token"} if "pooling_mode" in pooling else set()
    mode = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_mean_token": "mean"}
    if len(modes) != 1 or next(iter(modes)) not in mode:
        raise InputError(f"{folder}: unsupported pooling ({', '.join(sorted(modes)) or 'none'}); needs mean or cls")
    length = _json(folder / "sentence_bert_config.json").get("max_seq_length") or Contract.doc_max_len
    prompts = _json(folder / "config_sentence_transformers.json").get("prompts") or {}
    return Contract(
        pooling="cls" if mode[next(iter(modes))] == "cls" else "mean",
        normalize="Normalize" in types,
        query_prefix=prompts.get("query", ""),
        doc_prefix=prompts.get("document", ""),
        query_max_len=length,
        doc_max_len=length,
    )


def _json(file: Path) -> Any:
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences of two contracts, as manifests store them, in words; combination weights are ignored."""
    found = []
    for name in [*now, *(name for name in stored if name not in now)]:
        mine, theirs = stored.get(name), now.get(name)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            found += [f"{name} {difference}" for difference in differences(mine, theirs)]
        elif name != "weight" and mine != theirs:
            found.append(f"{name}={mine!r}, not {theirs!r}")
    return found
