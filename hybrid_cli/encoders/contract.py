"""The interface of encoders, and the contract: all parameters except the weights that determine the vector of a text.

The contract is stored with the encoder (`encoder.json`) and with every index of its vectors; an index refuses queries
that were encoded under another contract. For a sentence-transformers model without `encoder.json`, the contract is read
from the files of that library; for a published checkpoint with a projection or two towers, from the names and shapes of
its weights (`layouts`); a plain checkpoint has the default contract.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from hybrid_cli import plugins
from hybrid_cli.encoders.checkpoints import layouts
from hybrid_cli.encoders.checkpoints.library_files import (
    LONGEST,
    SPARSE_KINDS,
    is_asymmetric,
    max_length,
    modules_of,
    parts_of,
    poolings_of,
    prompts_of,
    table_length,
)
from hybrid_cli.encoders.options import Markers, Pooling
from hybrid_cli.errors import InputError, option_error, path_error
from hybrid_cli.json_files import make_typed, read_object, value_in_words
from hybrid_cli.storage.layout import COMBINATION_PARTS, CONTRACT, MODULES, RERANKER

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

    @property
    def dim(self) -> int:
        """Length of the vectors."""

    @property
    def device(self) -> torch.device:
        """Device of the weights."""

    def describe(self) -> dict[str, Any]:
        """Return the contract as JSON values, as manifests store it."""

    def encode_queries(self, texts: Sequence[str], batch_tokens: int = ...) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`.

        Raises:
            InputError: a single text in place of a list, here and for documents.
        """

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str], batch_tokens: int = ...) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`."""


def refuse_single_text(*lists: Sequence[str]) -> None:
    """Refuse a text in place of a list of texts, which would be read as a list of characters; and unequal lists."""
    if any(isinstance(texts, str) for texts in lists):
        raise InputError("an encoder takes lists of texts; pass [text]", code="other-type")
    if len({len(texts) for texts in lists}) > 1:
        raise InputError(
            f"{len(lists[0]):,} titles for {len(lists[1]):,} texts; pass one title per text", code="number-of-values"
        )


def refuse_truncation(length: int | None, dim: int, folder: Path) -> None:
    """Refuse more leading values than the vectors of a model or of an index have."""
    if length is not None and not 0 < length <= dim:
        raise option_error("truncate_dim", length, f"the vectors of {folder} have {dim} values", limit=dim, path=folder)


C = TypeVar("C")
KINDS = ("transformer", "static", "combination", "pair", "sparse")
TRANSFORMER, STATIC, COMBINATION, PAIR, SPARSE = KINDS
QUERY_MARKER, DOCUMENT_MARKER = "[unused1]", "[unused2]"
_LATER: dict[str, Any] = {  # fields that were added after the first version, with their defaults
    "truncate_dim": None,
    "binary": False,
    "modules": (),
    "segments": False,
    "special_tokens": True,
    "skip_tokens": 0,
    "fill_queries": False,
    "more_pooling": (),
    "include_prompt": True,
}


@dataclass(frozen=True)
class TextForm:
    """The input of the tokenizer for a text.

    Attributes:
        query_prefix: text put before every query.
        doc_prefix: text put before every document.
        title_separator: text between title and body; DPR uses `" [SEP] "`.
        query_max_len: maximum word pieces of a query, special tokens included; longer queries are cut.
        doc_max_len: maximum word pieces of a document.
    """

    query_prefix: str = ""
    doc_prefix: str = ""
    title_separator: str = " "
    query_max_len: int = 64
    doc_max_len: int = 180

    @property
    def query_head(self) -> str:
        """Text before a query."""
        return self.query_prefix

    @property
    def document_head(self) -> str:
        """Text before a document."""
        return self.doc_prefix

    def query(self, text: str) -> str:
        """Return the input of the tokenizer for a query."""
        return self.query_head + text

    def document(self, title: str, text: str) -> str:
        """Return the input of the tokenizer for a document."""
        return self.document_head + (f"{title}{self.title_separator}{text}" if title else text)

    def changed(self, **overrides: Any) -> Self:
        """Return this contract with the values of `overrides` that are not None.

        Raises:
            InputError: a maximum length that leaves no room for a word.
        """
        new = replace(self, **{name: value for name, value in overrides.items() if value is not None})
        for name in ("query_max_len", "doc_max_len"):
            if getattr(new, name) < 4:
                raise option_error(name, getattr(new, name), "needs at least 4 word pieces")
        return new

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values for `encoder.json` and manifests."""
        return asdict(self)


@dataclass(frozen=True)
class Contract(TextForm):
    """Parameters of a transformer encoder, besides the weights.

    Attributes:
        pooling: `mean` or `max` over all tokens except padding, `cls`, the state of the first token, or `last`;
            `mean-sqrt` divides the sum by the square root of the number of tokens; `weighted-mean` weights the token at
            position i, from 1, by i (SGPT).
        normalize: scale vectors to length 1.
        tied: one tower for queries and documents instead of two.
        markers: query and document markers in place of [CLS] (DualRM, section 3.2), after it (CLEAR, section 3.2), or
            none. Our choice: BERT's reserved word pieces `[unused1]` and `[unused2]` are the markers, so that the
            checkpoint remains a plain BERT.
        dim: length of the projection; None for no projection.
        projection_norm: a LayerNorm follows the projection. Our choice: LITE, eq. 5, is a plain matrix, the code of
            its authors has a LayerNorm.
        truncate_dim: number of leading values kept of each vector; None for all. For models trained with
            `--matryoshka-dims` (Matryoshka).
        binary: the encoder was trained for search with sign codes (BPR). Vectors are not affected; `encode`
            builds a binary index by default.
        modules: modules of a sentence-transformers model that follow the pooling, in order: `Dense`, `LayerNorm`,
            `Normalize`; their parameters are in the folder of the model. A last `Normalize` is `normalize` instead.
        segments: title and body are two segments, with token types 0 and 1, also without a title (RocketQA).
        special_tokens: the tokenizer adds its special tokens; else they are part of the prefixes (TCT-ColBERT).
        skip_tokens: number of leading tokens that the mean leaves out (TCT-ColBERT: [CLS] and its marker).
        fill_queries: queries are filled with [MASK] to their maximum length (TCT-ColBERT).
        include_prompt: poolings include the tokens of the prefix, and special tokens before it (INSTRUCTOR: false).
        more_pooling: poolings whose vectors follow that of `pooling`, in the models of sentence-transformers that join
            several.
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    tied: bool = True
    markers: Markers = "none"
    dim: int | None = None
    projection_norm: bool = True
    truncate_dim: int | None = None
    binary: bool = False
    modules: tuple[str, ...] = ()
    segments: bool = False
    special_tokens: bool = True
    skip_tokens: int = 0
    fill_queries: bool = False
    more_pooling: tuple[Pooling, ...] = ()
    include_prompt: bool = True

    @property
    def poolings(self) -> tuple[Pooling, ...]:
        """All poolings, in the order of their vectors."""
        return (self.pooling, *self.more_pooling)

    @property
    def query_head(self) -> str:
        """Text before a query: marker and prefix."""
        return self.query_prefix if self.markers == "none" else f"{QUERY_MARKER} {self.query_prefix}"

    @property
    def document_head(self) -> str:
        """Text before a document: marker and prefix."""
        return self.doc_prefix if self.markers == "none" else f"{DOCUMENT_MARKER} {self.doc_prefix}"

    def document(self, title: str, text: str) -> str:
        """Return the input of the tokenizer for a document."""
        return self.document_head + (f"{title}{self.title_separator}{text}" if title or self.segments else text)

    def changed(self, **overrides: Any) -> Self:
        """Return a changed contract, see `TextForm.changed`; a new pooling replaces all poolings."""
        return super().changed(**{**({"more_pooling": ()} if overrides.get("pooling") else {}), **overrides})

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values for `encoder.json` and manifests.

        Fields that were added after the first version are omitted at their defaults, so that hashes do not change.
        """
        values = {name: value for name, value in super().to_dict().items() if (name, value) not in _LATER.items()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def is_static(contract: Mapping[str, Any]) -> bool:
    """Return whether a described encoder, or both parts of a combination, are static."""
    if contract.get("kind") == COMBINATION:
        return all(is_static(contract[name]) for name in COMBINATION_PARTS)
    return contract.get("kind") == STATIC


def kind_of(folder: Path) -> str:
    """Return the kind of encoder in `folder`: `transformer`, `static`, `combination`, `pair`, `sparse`, or a plugin's.

    A model of sentence-transformers with other modules for queries than for documents is a pair.

    Raises:
        InputError: `encoder.json` cannot be read or names another kind, or the folder contains a reranker.
    """
    if (folder / RERANKER).exists():
        raise path_error(folder, "is a reranker; an encoder is needed here", code="other-kind", kind="reranker")
    if not (folder / CONTRACT).exists():
        return _kind_of_modules(folder) if (folder / MODULES).is_file() else TRANSFORMER
    kind = read_object(folder / CONTRACT).get("kind", TRANSFORMER)
    if kind not in KINDS and kind not in (known := plugins.registry("encoders")):
        reason = f"unknown kind {value_in_words(kind)} in encoder.json; known: {', '.join(known)}"
        raise path_error(folder, reason, code="unknown-encoder", group="encoders", name=kind)
    return str(kind)


def _kind_of_modules(folder: Path) -> str:
    """Return the kind of a model of sentence-transformers."""
    if {module.kind for side in layouts.SIDES for module in modules_of(folder, side)} & {*SPARSE_KINDS}:
        return SPARSE
    return PAIR if is_asymmetric(folder) else TRANSFORMER


def stored_contract(kind: type[C], folder: Path) -> C:
    """Return the contract of a class in `encoder.json`.

    Raises:
        InputError: unknown fields, values of other types, or impossible lengths.
    """
    file = folder / CONTRACT
    values = read_object(file)
    values.pop("kind", None)
    contract = make_typed(kind, values, file)
    for name, least in (("query_max_len", 4), ("doc_max_len", 4), ("dim", 1), ("truncate_dim", 1)):
        if not least <= (value := getattr(contract, name, None) or least) <= LONGEST:
            raise path_error(file, f"{name} {value} is not between {least} and {LONGEST}", code="out-of-range")
    return contract


def read_contract(folder: Path, route: str | None = None) -> Contract:
    """Return the contract of a transformer: stored, else that of the files of sentence-transformers, else the defaults.

    Fields that follow from a published layout of weights, such as two towers, differ from the defaults.

    Args:
        folder: folder of the encoder.
        route: `query` or `document`, one encoder of a model of sentence-transformers with two.

    Raises:
        InputError: the contract has unknown fields, or belongs to another kind of encoder.
    """
    if route is not None:
        return _from_sentence_transformers(folder, route)
    if (kind := kind_of(folder)) != TRANSFORMER:
        raise path_error(
            folder, f"is a {kind} encoder; needs a transformer", code="other-kind", kind=kind, expected=TRANSFORMER
        )
    if (folder / CONTRACT).exists():
        return stored_contract(Contract, folder)
    if (folder / MODULES).is_file():
        return _from_sentence_transformers(folder)
    return _of_towers(folder) or Contract(**layouts.structure(folder))


def _of_towers(folder: Path) -> Contract | None:
    """Return the contract of two joined towers that have contracts of their own; None if neither has one.

    Raises:
        InputError: the contracts differ in other fields than prefixes, lengths and the title separator.
    """
    sides = [folder / side for side in layouts.SIDES] if layouts.is_two_folders(folder) else []
    own = [read_contract(side) for side in sides if (side / CONTRACT).is_file() or (side / MODULES).is_file()]
    if not own:
        return None
    query, document = own[0], own[-1]
    joined = replace(document, tied=False, query_prefix=query.query_prefix, query_max_len=query.query_max_len)
    of_document = {name: getattr(document, name) for name in ("doc_prefix", "doc_max_len", "title_separator")}
    if differing := differences(replace(query, tied=False, **of_document).to_dict(), joined.to_dict()):
        raise path_error(folder, f"the query tower has {differing[0]} as the document tower", code="towers-differ")
    return joined


def _from_sentence_transformers(folder: Path, side: str = "document") -> Contract:
    first, pooling, others = parts_of(folder, side)
    kinds = tuple(module.kind for module in others)
    prompts = prompts_of(folder)
    # That library truncates after the last module, this package before its own normalization.
    normalize = kinds[-1:] == ("Normalize",) and prompts.truncate_dim is None
    shared: dict[str, Any] = {
        "normalize": normalize,
        "query_prefix": prompts.query,
        "doc_prefix": prompts.document,
        "modules": kinds[:-1] if normalize else kinds,
        "truncate_dim": prompts.truncate_dim,
    }
    if pooling is None:
        length = table_length(first.folder)
        return Contract(special_tokens=False, query_max_len=length, doc_max_len=length, **shared)
    (mode, *more), included = poolings_of(folder, pooling.folder)
    query_length, length = (
        max_length(first.folder, name, Contract.doc_max_len) for name in ("query_length", "document_length")
    )
    return Contract(
        pooling=mode,
        query_max_len=query_length,
        doc_max_len=length,
        more_pooling=tuple(more),
        include_prompt=included,
        **shared,
    )


def notes_on(folder: Path, contract: Contract) -> list[str]:
    """Return what a user of a sentence-transformers model should know: values that no vector of this package has."""
    prompts = prompts_of(folder)
    notes = []
    if prompts.others:
        listed = ", ".join(f"{name} ({text!r})" for name, text in prompts.others.items())
        notes.append(f"prompts that are not used: {listed}; pass one with --query-prefix or --doc-prefix")
    if prompts.default:
        notes.append(
            f"default prompt {prompts.default!r} is not used, as in encode_query and encode_document of "
            "sentence-transformers; pass it with --query-prefix or --doc-prefix"
        )
    unit = contract.normalize or (contract.modules[-1:] == ("Normalize",) and contract.truncate_dim is None)
    if prompts.similarity == "cosine" and not unit:
        notes.append("scores are inner products, its similarity is the cosine; pass --normalize for the cosine")
    return notes


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences of two contracts, as manifests store them, in words; combination weights are ignored."""
    sentences = []
    for name in [*now, *(name for name in stored if name not in now)]:
        mine, theirs = stored.get(name), now.get(name)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            sentences += [f"{name} {difference}" for difference in differences(mine, theirs)]
        elif name != "weight" and mine != theirs:
            sentences.append(f"{name}={mine!r}, not {theirs!r}")
    return sentences
