"""The contract of an encoder: everything besides the weights that decides what vector a text gets.

It is stored with the encoder (`encoder.json`) and with every index made by it; an index refuses queries that were
encoded under another one. A folder without `encoder.json` may be a sentence-transformers model, whose own files tell
the same things, or a plain checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hybrid_cli.config import Markers, Pooling
from hybrid_cli.errors import InputError

FILE = "encoder.json"
TRANSFORMER = "transformer"
QUERY_MARKER, DOCUMENT_MARKER = "[unused1]", "[unused2]"


@dataclass(frozen=True)
class Contract:
    """How texts become vectors.

    Attributes:
        pooling: masked mean over all tokens, or the first token's state.
        normalize: whether vectors have length 1.
        tied: one tower for queries and documents, or two.
        markers: CLEAR's [QRY] and [DOC] (methods 2.1): in place of [CLS], after it, or none. BERT's reserved pieces
            `[unused1]` and `[unused2]` carry them, so that the checkpoint stays a plain BERT.
        query_prefix, doc_prefix: words put before every text.
        title_separator: what stands between title and text; `" [SEP] "` gives DPR's input.
        query_max_len, doc_max_len: in word pieces, special tokens included; what is longer is cut.
        dim: size of the projection, or None for the encoder's own.
        projection_norm: whether a LayerNorm follows the projection (DrBoost, methods 5.1).
        prefix: how many values of a vector are kept, from its beginning; all if None. For models whose prefixes were
            trained too (Matryoshka).
        binary: whether documents were trained to be searched by the signs of their vectors (BPR, methods 8.1). The
            vectors stay what they are; `encode` makes a binary index of them unless told otherwise.
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
    prefix: int | None = None
    binary: bool = False

    @property
    def query_head(self) -> str:
        """What is put before a query: marker and prefix."""
        return self.query_prefix if self.markers == "none" else f"{QUERY_MARKER} {self.query_prefix}"

    @property
    def document_head(self) -> str:
        """What is put before a document: marker and prefix."""
        return self.doc_prefix if self.markers == "none" else f"{DOCUMENT_MARKER} {self.doc_prefix}"

    def query(self, text: str) -> str:
        """The text that a query's tokens are made of."""
        return self.query_head + text

    def document(self, title: str, text: str) -> str:
        """The text that a document's tokens are made of."""
        return self.document_head + (f"{title}{self.title_separator}{text}" if title else text)

    def changed(self, **overrides: Any) -> Contract:
        """The same contract with those of `overrides` that are not None.

        Raises:
            InputError: a length that leaves no room for a word.
        """
        new = replace(self, **{name: value for name, value in overrides.items() if value is not None})
        for name in ("query_max_len", "doc_max_len"):
            if getattr(new, name) < 4:
                raise InputError(f"--{name.replace('_', '-')} {getattr(new, name)}: at least 4 word pieces are needed")
        return new

    def to_dict(self) -> dict[str, Any]:
        """As manifests and `encoder.json` hold it; what came later is there if it is used, so that hashes stay."""
        later = (("prefix", None), ("binary", False))
        return {name: value for name, value in asdict(self).items() if (name, value) not in later}


def kind_of(folder: Path) -> str:
    """`transformer`, or what `encoder.json` says: `static`, `combination`, `pair`.

    Raises:
        InputError: the file cannot be read.
    """
    if not (folder / FILE).is_file():
        return TRANSFORMER
    try:
        return str(json.loads((folder / FILE).read_text("utf-8")).get("kind", TRANSFORMER))
    except json.JSONDecodeError as error:
        raise InputError(f"{folder / FILE}: is not a contract that this hybrid knows ({error})") from None


def read_contract(folder: Path) -> Contract:
    """The contract that a transformer's folder states: ours, sentence-transformers', or a plain checkpoint's defaults.

    Raises:
        InputError: the contract names something that this version does not know, or is another kind of encoder's.
    """
    if (kind := kind_of(folder)) != TRANSFORMER:
        raise InputError(f"{folder}: is a {kind} encoder; a transformer is needed here")
    if (folder / FILE).is_file():
        try:
            return Contract(**json.loads((folder / FILE).read_text("utf-8")))
        except (TypeError, json.JSONDecodeError) as error:
            raise InputError(f"{folder / FILE}: is not a contract that this hybrid knows ({error})") from None
    if (folder / "modules.json").is_file():
        return _from_sentence_transformers(folder)
    return Contract()


def _from_sentence_transformers(folder: Path) -> Contract:
    modules = _json(folder / "modules.json")
    types = [module["type"].rsplit(".", 1)[-1] for module in modules]
    if unknown := set(types) - {"Transformer", "Pooling", "Normalize"}:
        raise InputError(f"{folder}: has the modules {', '.join(sorted(unknown))}, which hybrid does not read")
    pooling: dict[str, Any] = next(
        (_json(folder / m["path"] / "config.json") for m in modules if m["type"].endswith("Pooling")), {}
    )
    modes = {name for name, on in pooling.items() if name.startswith("pooling_mode_") and on is True}
    modes |= {f"pooling_mode_{pooling['pooling_mode']}_token"} if "pooling_mode" in pooling else set()
    mode = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_mean_token": "mean"}
    if len(modes) != 1 or next(iter(modes)) not in mode:
        raise InputError(f"{folder}: pools by {', '.join(sorted(modes)) or 'nothing'}; hybrid knows mean and cls")
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
    """In words, what two contracts, as manifests hold them, do differently to a document."""
    found = []
    for name in [*now, *(name for name in stored if name not in now)]:
        mine, theirs = stored.get(name), now.get(name)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            found += [f"{name} {difference}" for difference in differences(mine, theirs)]
        elif name != "weight" and mine != theirs:
            found.append(f"{name}={mine!r}, not {theirs!r}")
    return found
