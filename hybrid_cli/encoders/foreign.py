"""Folders of sentence-transformers and of model2vec, which that library opens (`encoders.library`).

Its import takes seconds: the contract of a folder is stored with what is built from it, and passed on as `known`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hybrid_cli.encoders.contract import (
    LIBRARY,
    MODULE_KINDS,
    SPARSE,
    TRANSFORMER,
    Contract,
    Module,
    TextForm,
    TowerFiles,
    minilm_folder,
    shapes,
)
from hybrid_cli.errors import path_error
from hybrid_cli.inputs.json_values import make_typed, mismatch, mismatch_of_fields, read_json, read_object
from hybrid_cli.plugins import Lazy, Registry
from hybrid_cli.storage.layout import CONTRACT, LIBRARY_CONFIG, MODULES

PARTS: Registry[Any] = Registry(
    "library",
    {
        name: Lazy(f"hybrid_cli.encoders.library:{attribute}", name)
        for name, attribute in (
            ("usual contract", "usual_contract"),
            ("sparse contract", "sparse_contract"),
            ("sparse encoder", "LibrarySparse"),
            ("reranker", "LibraryReranker"),
        )
    },
)
_MINILM = Contract(normalize=True, query_max_len=256, doc_max_len=256)  # of the built-in model
_DECIDING = (MODULES, LIBRARY_CONFIG, "sentence_bert_config.json", "1_Pooling/config.json")  # files of a contract


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
        return LIBRARY if PARTS["usual contract"](self.folder) is None else TRANSFORMER

    def contract(self) -> TextForm:
        """Return the contract of usual modules, or of a sparse encoder."""
        if self.known is not None:
            return make_typed(Contract, dict(self.known), self.folder)
        if self.is_minilm:
            return _MINILM
        contract: TextForm = PARTS["sparse contract" if self.kind == SPARSE else "usual contract"](self.folder)
        return contract

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
    if wrong := wrong or next(
        filter(None, (mismatch_of_fields(one, {"type": str, "path": str}) for one in listed)), None
    ):
        problem = f"{wrong}; needs a list of objects with type and path"
        raise path_error(file, problem, code="modules-form", **wrong.fields)
    for path in (one["path"] for one in listed):
        parts = PurePosixPath(path.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts or ":" in path:
            raise path_error(file, f"path {path!r} leaves the folder", code="module-outside", value=path)
    return [Module(one["type"].rsplit(".", 1)[-1], folder / one["path"]) for one in listed]


def _model_type(folder: Path) -> str:
    """Return the class of the library that a folder declares."""
    file = folder / LIBRARY_CONFIG
    return str((read_object(file) if file.is_file() else {}).get("model_type", "SentenceTransformer"))


def is_reranker(folder: Path) -> bool:
    """Test whether a folder is a `CrossEncoder` with a list of modules."""
    return (folder / MODULES).is_file() and _model_type(folder) == "CrossEncoder"


def contract_to_store(folder: Path) -> dict[str, Any]:
    """Return the contract of a folder of the library, for what is built from it; empty if nothing reads it there."""
    model = None if (folder / CONTRACT).is_file() else library_model(folder)
    return {} if model is None or model.is_minilm or model.kind != TRANSFORMER else model.contract().to_dict()


def library_model(folder: Path, known: Mapping[str, Any] | None = None) -> LibraryModel | None:
    """Return the encoder in a folder with `modules.json`, or of model2vec; None for another folder."""
    return LibraryModel(folder, known) if (folder / MODULES).is_file() or "embeddings" in shapes(folder) else None
