"""Models that run in sentence-transformers, and the contract of those with the usual modules.

A model whose modules are a Transformer, a Pooling and then Dense, LayerNorm or Normalize is computed here, faster, if
its vectors of some texts are those of the library. Every other one runs in the library, with its vectors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import torch
from torch import nn

from hybrid_cli import storage
from hybrid_cli.encoders import contract as contracts
from hybrid_cli.encoders.cross_encoder import PairInput, other_labels
from hybrid_cli.encoders.loading import (
    NO_WEIGHTS,
    check_settings,
    opening,
    read_config,
    refuse_pickles,
    silence_transformers,
)
from hybrid_cli.encoders.models import Known, placed, refuse_changes
from hybrid_cli.encoders.options import Precision
from hybrid_cli.encoders.sparse import SparseContract, TermWeights
from hybrid_cli.encoders.transformer import Tower, TransformerEncoder
from hybrid_cli.errors import path_error
from hybrid_cli.inputs.json_values import read_object
from hybrid_cli.storage.layout import LIBRARY_CONFIG, MODULES

_DIFFERENCE = 0.01  # of two computations of a vector, relative to its length
_WORDS = "The Inverse of a naïve Matrix exists; salt lowers its freezing point. "
_PROBED = 512  # tokens of a text that is cut; longer limits take too long to reach
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # names in the order in which the library looks for them


def open_in_library(kind: str, folder: Path) -> Any:
    """Return a model as an object of sentence-transformers, in fp32 on the CPU.

    Nothing is downloaded, no code of the folder runs, and weights are safetensors.

    Args:
        kind: `SentenceTransformer`, `SparseEncoder` or `CrossEncoder`.
        folder: folder of the model.

    Raises:
        InputError: the library cannot open it, or its files name code or models outside of it.
    """
    for file in folder.rglob("*config.json"):
        if (folder / MODULES).is_file():
            settings = read_object(file)
            check_settings(settings, file)
            if file.name == "config.json" and "model_type" in settings:
                refuse_pickles(file.parent)
                read_config(file.parent)
    contracts.listed_modules(folder)
    for file in folder.rglob("pytorch_model*.bin"):
        if not any(file.parent.glob("*.safetensors")):
            raise path_error(file.parent, NO_WEIGHTS, code="no-weights")
    silence_transformers()
    with opening(folder):
        import sentence_transformers

        if not (folder / MODULES).is_file():
            return _of_model2vec(folder)
        model = getattr(sentence_transformers, kind)(
            str(folder), device="cpu", local_files_only=True, trust_remote_code=False
        )
        return model.float().eval()


def _of_model2vec(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    normalizes = read_object(folder / "config.json").get("normalize") is True
    modules: list[nn.Module] = [
        StaticEmbedding.load(str(folder), local_files_only=True),
        *([Normalize()] if normalizes else []),
    ]
    return SentenceTransformer(modules=modules, device="cpu").float().eval()


@lru_cache(maxsize=16)
def usual_contract(folder: Path, fingerprint: str) -> contracts.Contract | None:
    """Return the contract of a model with the usual modules; None for one that runs in the library."""
    cosine = _is_cosine(folder)
    model = open_in_library("SentenceTransformer", folder)
    contract = _contract_of(model, cosine)
    if contract is None:
        return None
    tower = Tower.load(contracts.stored_encoder(folder, contract.to_dict()).tower(contracts.SIDES[0]), contract)
    return contract if _agree(model, TransformerEncoder(contract, tower, tower).eval()) else None


def _is_cosine(folder: Path) -> bool:
    """Return whether a model declares the cosine as its similarity.

    Raises:
        InputError: a similarity that no inner product computes.
    """
    file = folder / LIBRARY_CONFIG
    declared = (read_object(file) if file.is_file() else {}).get("similarity_fn_name")
    if declared not in (None, "cosine", "dot"):
        problem = f"similarity_fn_name {declared!r} is not supported; scores are inner products, or cosines"
        raise path_error(file, problem, code="similarity-unsupported", value=declared)
    return declared == "cosine"


def _contract_of(model: Any, cosine: bool) -> contracts.Contract | None:
    """Return the contract of an opened model; None for other modules than the usual ones."""
    modules = [module for module in model if type(module).__name__ != "Dropout"]
    kinds = [type(module).__name__ for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or not {*kinds[2:]} <= {*contracts.MODULE_KINDS}:
        return None
    transformer, pooling = modules[:2]
    modes = [pooling.pooling_mode] if isinstance(pooling.pooling_mode, str) else [*pooling.pooling_mode]
    query, document = _prompts(model)
    longest = transformer.max_seq_length or contracts.LONGEST
    unit = kinds[-1] == "Normalize"  # a last module, unless values are cut after it
    lengths = [
        min(length or longest, contracts.LONGEST) for length in (transformer.query_length, transformer.document_length)
    ]
    first, *more = [contracts.POOLING[mode] for mode in modes]
    if min(lengths) < 4:
        return None
    return contracts.Contract(
        query_prefix=query,
        doc_prefix=document,
        query_max_len=lengths[0],
        doc_max_len=lengths[1],
        pooling=first,
        more_pooling=tuple(more),
        include_prompt=pooling.include_prompt,
        normalize=cosine or (unit and model.truncate_dim is None),
        modules=tuple(kinds[2:-1] if unit and (cosine or model.truncate_dim is None) else kinds[2:]),
        truncate_dim=model.truncate_dim,
        lower_case=bool(transformer.do_lower_case),
    )


def _prompts(model: Any) -> tuple[str, str]:
    """Return the prompts of queries and of documents."""
    named = (model.prompts.get(name) for name in _DOCUMENT_PROMPTS if name in model.prompts)
    return model.prompts.get("query") or "", next(named, None) or ""


def _agree(model: Any, encoder: TransformerEncoder) -> bool:
    """Return whether both compute equal vectors, of short texts and of one that is cut."""
    contract = encoder.contract
    longest = max(contract.query_max_len, contract.doc_max_len)
    texts = [_WORDS, _WORDS.upper() * (2 + longest // 8 if longest <= _PROBED else 4), "salt"]
    for theirs, ours in (
        (model.encode_query(texts), encoder.encode_queries(texts)),
        (model.encode_document(texts), encoder.encode_documents([""] * len(texts), texts)),
    ):
        if contract.normalize:
            theirs = theirs / np.linalg.norm(theirs, axis=1, keepdims=True)
        if theirs.shape != ours.shape or (_norms(theirs - ours) > _DIFFERENCE * _norms(theirs)).any():
            return False
    return True


def _norms(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(vectors, axis=1))


@dataclass(frozen=True)
class LibraryContract:
    """Parameters that a model in the library leaves to its user.

    Attributes:
        query_prefix, doc_prefix: text put before every query, and every document.
        title_separator: text between title and body of a document.
        normalize: scale vectors to length 1.
        truncate_dim: number of leading values kept of each vector; None for all.
    """

    query_prefix: str = ""
    doc_prefix: str = ""
    title_separator: str = " "
    normalize: bool = False
    truncate_dim: int | None = None


class LibraryEncoder:
    """An encoder that runs in sentence-transformers.

    Attributes:
        fingerprint: hash of the files of the model and of its contract.
        truncated: always 0; the library does not count the texts that it cuts.
    """

    truncated = 0

    def __init__(self, folder: Path, model: Any, contract: LibraryContract):
        self.contract, self._folder, self._model = contract, folder, model
        whole = storage.fingerprint(folder) + json.dumps(self.describe(), sort_keys=True)
        self.fingerprint = hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()
        self.dim: int = self.encode_queries(["a"]).shape[1]
        self.device: torch.device = model.device
        contracts.refuse_truncation(contract.truncate_dim, self.dim, folder)

    def describe(self) -> dict[str, Any]:
        """Return the contract as JSON values, as manifests store it."""
        return {"kind": contracts.LIBRARY, **asdict(self.contract)}

    def encode_queries(self, texts: Sequence[str], batch_tokens: int = 0) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`."""
        contracts.refuse_single_text(texts)
        return self._vectors(self._model.encode_query, texts, self.contract.query_prefix)

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str], batch_tokens: int = 0) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`."""
        contracts.refuse_single_text(titles, texts)
        whole = _joined(titles, texts, self.contract.title_separator)
        return self._vectors(self._model.encode_document, whole, self.contract.doc_prefix)

    def _vectors(self, encode: Callable[..., Any], texts: Sequence[str], prompt: str) -> np.ndarray:
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        form = {"normalize_embeddings": self.contract.normalize, "truncate_dim": self.contract.truncate_dim}
        with opening(self._folder):
            return np.asarray(encode(list(texts), prompt=prompt, show_progress_bar=False, **form), np.float32)


def _joined(titles: Sequence[str], texts: Sequence[str], separator: str) -> list[str]:
    return [f"{title}{separator}{text}" if title else text for title, text in zip(titles, texts, strict=True)]


def open_library(folder: Path, device: str, dtype: Precision, known: Known = None, **changes: Any) -> contracts.Encoder:
    """Open an encoder of other modules than the usual ones; `changes` are fields of its contract."""
    model = _opened("SentenceTransformer", folder, device, dtype, changes, LibraryContract.__dataclass_fields__)
    query, document = _prompts(model)
    own = LibraryContract(query, document, normalize=_is_cosine(folder), truncate_dim=model.truncate_dim)
    return LibraryEncoder(folder, model, replace(own, **changes))


def _opened(
    kind: str, folder: Path, device: str, dtype: Precision, changes: Mapping[str, Any], allowed: Collection[str]
) -> Any:
    refuse_changes(folder, {name: value for name, value in changes.items() if name not in allowed}, contracts.LIBRARY)
    return placed(open_in_library(kind, folder), device, dtype)


@lru_cache(maxsize=16)
def sparse_contract(folder: Path, fingerprint: str) -> SparseContract:
    """Return the contract of a SparseEncoder."""
    model = open_in_library("SparseEncoder", folder)
    query, document = _prompts(model)
    length = min(model.max_seq_length or contracts.LONGEST, contracts.LONGEST)
    return SparseContract(query_prefix=query, doc_prefix=document, query_max_len=length, doc_max_len=length)


class LibrarySparse(TermWeights):
    """A SparseEncoder, which runs in sentence-transformers."""

    def __init__(self, folder: Path, model: Any, contract: SparseContract):
        self.contract, self.truncated, self._folder, self._model = contract, 0, folder, model
        self.fingerprint = contracts.contract_fingerprint(storage.fingerprint(folder), contract)

    @classmethod
    def load(cls, folder: Path, device: str, dtype: Precision, **changes: Any) -> LibrarySparse:
        """Open a SparseEncoder; prefixes and the title separator may change.

        Raises:
            InputError: another change.
        """
        allowed = ("query_prefix", "doc_prefix", "title_separator")
        model = _opened("SparseEncoder", folder, device, dtype, changes, allowed)
        return cls(folder, model, sparse_contract(folder, storage.fingerprint(folder)).changed(**changes))

    @cached_property
    def dim(self) -> int:
        """Size of the vocabulary."""
        return int(self._weights(self._model.encode_query, ["a"], "").shape[1])

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        device: torch.device = self._model.device
        return device

    @cached_property
    def terms(self) -> pa.StringArray:
        """Word pieces by id, [V]."""
        return self.named_terms(self._model.tokenizer)

    def _matrix(self, texts: Sequence[str], of_queries: bool, batch_tokens: int) -> Any:
        """Return positive weights as a scipy CSR matrix [n, V], float32; the prefix of documents is in `texts`."""
        from scipy.sparse import csr_matrix

        if not texts:
            return csr_matrix(np.zeros((0, self.dim), np.float32))
        if of_queries:
            return self._weights(self._model.encode_query, texts, self.contract.query_prefix)
        return self._weights(self._model.encode_document, texts, "")

    def _weights(self, encode: Callable[..., Any], texts: Sequence[str], prompt: str) -> Any:
        from scipy.sparse import csr_matrix

        with opening(self._folder):
            found = encode(list(texts), prompt=prompt, show_progress_bar=False, save_to_cpu=True).coalesce()
        rows, columns = found.indices().numpy()
        return csr_matrix((found.values().float().numpy(), (rows, columns)), shape=tuple(found.shape))


class LibraryReranker:
    """A CrossEncoder, which runs in sentence-transformers; a score is the logit before the activation.

    Attributes:
        input: maximum length of the model, and the form of documents.
        truncated: always 0; the library does not count the pairs that it cuts.
    """

    truncated = 0

    def __init__(self, folder: Path, model: Any, input: PairInput):
        self.input, self._folder, self._model = input, folder, model
        model.max_seq_length = input.max_length
        self.device: torch.device = model.device

    @classmethod
    def load(cls, folder: Path, device: str, dtype: Precision, **changes: Any) -> LibraryReranker:
        """Open a CrossEncoder of one or two labels; its length and the title separator may change.

        Raises:
            InputError: another change, or another number of labels.
        """
        model = _opened("CrossEncoder", folder, device, dtype, changes, ("max_length", "title_separator"))
        if model.num_labels > 2:
            raise other_labels(folder, model.num_labels)
        length = min(model.max_seq_length or PairInput.max_length, contracts.LONGEST)
        return cls(folder, model, replace(PairInput(length, length), **changes))

    def scores(
        self, pairs: pl.DataFrame, batch_tokens: int = 0, most: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Score pairs; see `CrossEncoder.scores`."""
        queries = pairs["query"].to_list()
        documents = _joined(pairs["title"].to_list(), pairs["text"].to_list(), self.input.title_separator)
        if not queries:
            return np.zeros(0, np.float32), np.zeros(0, np.int32)
        with opening(self._folder):
            whole = [*zip(queries, documents, strict=True)]
            scores = self._model.predict(whole, activation_fn=nn.Identity(), show_progress_bar=False)
            cut = {"truncation": True, "max_length": self.input.max_length}
            lengths = [len(ids) for ids in self._model.tokenizer(queries, documents, **cut)["input_ids"]]
        scores = np.asarray(scores, np.float32)
        return (scores[:, 1] - scores[:, 0] if scores.ndim == 2 else scores), np.array(lengths, np.int32)
