"""Models of sentence-transformers: modules, routes, prompts, poolings and lengths, in the terms of this package.

Every key that changes the vectors of that library is read here, or refused by name; keys of the modules between pooling
and vector are read with these modules (`encoders.transformer`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hybrid_cli.encoders.contract import (
    LONGEST,
    OF_VECTORS,
    PAIR,
    POOLING,
    SIDES,
    SPARSE,
    STATIC_EMBEDDING,
    TRANSFORMER,
    Contract,
    Module,
    RerankerFiles,
    TextForm,
    TowerFiles,
    check_keys,
    unsupported_key,
)
from hybrid_cli.encoders.options import Pooling
from hybrid_cli.errors import path_error
from hybrid_cli.json_files import has_type, mismatch, mismatch_of_fields, read_json, read_object, value_in_words
from hybrid_cli.storage.layout import MODULES, TOKENIZER

MODULE_KINDS = ("Dense", "LayerNorm", "Normalize")  # modules of sentence-transformers between pooling and vector
SPARSE_KINDS = ("MLMTransformer", "SpladePooling", "SparseStaticEmbedding")
_ROUTES = ("router_config.json", "config.json")
_MODULE_KINDS = {"Transformer", "Pooling", "Dropout", "Router", "Asym", STATIC_EMBEDDING, *MODULE_KINDS, *SPARSE_KINDS}
_SETTINGS = (  # names of the settings of a Transformer in older models
    "sentence_bert_config.json",
    *(
        f"sentence_{name}_config.json"
        for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    ),
)
_ARGUMENTS = {  # of a Transformer, and their keys that change no vector, or its precision alone
    "model": {"add_pooling_layer", "attn_implementation", "torch_dtype", "dtype", "use_safetensors"},
    "processor": {"model_max_length", "padding_side", "use_fast"},
    "config": {"use_cache"},
}
_FORMER = {"model_args": "model_kwargs", "tokenizer_args": "processor_kwargs", "config_args": "config_kwargs"}
_HUB = {"cache_dir", "revision", "token", "local_files_only", "trust_remote_code"}  # of every download
TASKS = {  # of a Transformer: name of its output, and the output of transformers
    "feature-extraction": ("token_embeddings", "last_hidden_state"),
    "fill-mask": ("token_embeddings", "logits"),
    "sequence-classification": ("scores", "logits"),
}


def modules_of(folder: Path, side: str = "document") -> list[Module]:
    """Return the modules of a sentence-transformers model that compute the vectors of one side, in order.

    Args:
        folder: folder of the model.
        side: `query` or `document`; a Router has modules for each.

    Raises:
        InputError: `modules.json` has another form, or a module that this package does not know.
    """
    file = folder / MODULES
    listed = read_json(file)
    kinds = {"type": str, "path": str}
    wrong = mismatch(listed, list[dict[str, Any]])
    if wrong := wrong or next(filter(None, (mismatch_of_fields(module, kinds) for module in listed)), None):
        raise path_error(
            file, f"{wrong}; needs a list of objects with type and path", code="modules-form", **wrong.fields
        )
    modules = [module for entry in listed for module in _resolved(folder, file, entry["type"], entry["path"], side)]
    return [module for module in modules if module.kind != "Dropout"]


def _resolved(folder: Path, file: Path, type_: str, path: str, side: str) -> Iterator[Module]:
    kind = type_.rsplit(".", 1)[-1]
    if kind not in _MODULE_KINDS or not type_.startswith("sentence_transformers."):
        raise path_error(
            file, f"{type_} is no supported module; see docs/training.md", code="module-unsupported", value=type_
        )
    parts = PurePosixPath(path.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or ":" in path:
        raise path_error(file, f"path {path!r} leaves the folder", code="module-outside", value=path)
    if kind in ("Router", "Asym"):
        yield from _of_route(folder / path, side)
    else:
        yield Module(kind, folder / path)


def _of_route(folder: Path, side: str) -> Iterator[Module]:
    """Yield the modules of the route of one side, for texts."""
    file = next((file for name in _ROUTES if (file := folder / name).is_file()), folder / _ROUTES[0])
    stored = read_object(file)
    kinds = {"types": dict[str, str], "structure": dict[str, list[str]], "parameters": dict[str, Any]}
    if wrong := mismatch_of_fields(stored, kinds):
        raise path_error(file, f"{wrong}", code="modules-form", **wrong.fields)
    types, structure, options = (stored[key] for key in kinds)
    route = _route(file, structure, options, side)
    for name in structure[route]:
        yield from _resolved(folder, file, types.get(name, ""), name, side)


def _route(file: Path, structure: Mapping[str, list[str]], options: Mapping[str, Any], side: str) -> str:
    """Return the route for texts of one side: the first that applies, as sentence-transformers selects it."""
    check_keys(file, options, dict.fromkeys(("default_route", "allow_empty_key", "route_mappings")))
    mappings: dict[Any, str] = {}
    for key, value in (options.get("route_mappings") or {}).items():
        try:
            mappings[ast.literal_eval(key)] = value
        except (ValueError, SyntaxError):
            raise unsupported_key(file, "route_mappings", key, "needs pairs of a task and a modality") from None
    asked: list[Any] = [mappings.get(pair) for pair in ((side, "text"), (side, None), (None, "text"), (None, None))]
    asked += [name for name in (side, "text") if name in structure]
    chosen = next((route for route in asked if route is not None), None)
    if chosen not in structure:
        raise unsupported_key(file, "structure", chosen, f"needs a route for a {side} ({', '.join(structure)})")
    return str(chosen)


def parts_of(folder: Path, side: str = "document") -> tuple[Module, Module | None, list[Module]]:
    """Return the modules of a dense model: the first one, the pooling of a transformer, and those that follow.

    Raises:
        InputError: see `modules_of`; or the modules are not a Transformer with a Pooling, or a StaticEmbedding.
    """
    first, *others = modules_of(folder, side) or [Module("no module", folder)]
    pooling = others.pop(0) if first.kind == "Transformer" and others and others[0].kind == "Pooling" else None
    if not (pooling or first.kind == STATIC_EMBEDDING) or any(module.kind not in MODULE_KINDS for module in others):
        problem = f"needs the modules Transformer and Pooling first, or StaticEmbedding; then {', '.join(MODULE_KINDS)}"
        raise path_error(folder / MODULES, problem, code="modules-order")
    for file in (module.folder / "config.json" for module in others if module.kind == "Normalize"):
        check_keys(file, _object(file), OF_VECTORS)
    return first, pooling, others


def is_asymmetric(folder: Path) -> bool:
    """Test whether queries and documents have other modules."""
    return modules_of(folder, "query") != modules_of(folder, "document")


@dataclass(frozen=True)
class Prompts:
    """Prompts and other values of a whole model (config_sentence_transformers.json).

    Attributes:
        query: prompt of queries, or empty.
        document: prompt of documents, or empty.
        others: other prompts by name.
        default: name of the default prompt of `encode`, if `encode_query` and `encode_document` do not use it.
        similarity: `cosine`, `dot`, or None.
        truncate_dim: number of leading values kept of each vector.
    """

    query: str
    document: str
    others: Mapping[str, str]
    default: str | None
    similarity: str | None
    truncate_dim: int | None


def prompts_of(folder: Path) -> Prompts:
    """Return the prompts of a sentence-transformers model, and other values of the whole model.

    Raises:
        InputError: prompts of another form, a default prompt that is not among them, a similarity that is not the
            inner product or the cosine, or another value that is not supported.
    """
    file = folder / "config_sentence_transformers.json"
    stored = _object(file)
    texts = stored.get("prompts") or {}
    if wrong := mismatch(texts, dict[str, str | None]):
        raise path_error(file, f"prompts: {wrong}", code="prompts-form", **wrong.fields)
    texts = {name: text or "" for name, text in texts.items()}
    allowed = {
        "default_prompt_name": (*texts, "query", "document"),
        "similarity_fn_name": ("cosine", "dot"),
        "model_type": ("SentenceTransformer", "SparseEncoder"),
        "max_active_dims": (),  # all weights of a text are kept
    }
    check_keys(file, stored, {**dict.fromkeys(("__version__", "prompts", "truncate_dim", "requirements")), **allowed})
    default, length = stored.get("default_prompt_name"), stored.get("truncate_dim")
    if length is not None and (not has_type(length, int) or not 1 <= length <= LONGEST):
        raise unsupported_key(file, "truncate_dim", length, f"needs a number between 1 and {LONGEST}")
    query = "query" if "query" in texts else None
    document = next((name for name in ("document", "passage", "corpus") if name in texts), None)
    used = {query, document}
    return Prompts(
        query=texts.get("query", ""),
        document=texts.get(str(document), ""),
        others={name: text for name, text in texts.items() if name not in used and text},
        default=default if default not in used and texts.get(str(default)) else None,
        similarity=stored.get("similarity_fn_name"),
        truncate_dim=length,
    )


def poolings_of(folder: Path, pooling: Path) -> tuple[list[Pooling], bool]:
    """Return the poolings of a sentence-transformers model, and whether they include the tokens of the prompt.

    Args:
        folder: folder of the model.
        pooling: folder of its module Pooling.

    Raises:
        InputError: another pooling.
    """
    file = pooling / "config.json"
    config = _object(file)
    stored = config.get("pooling_mode")
    on = {name.removeprefix("pooling_mode_") for name, value in config.items() if value is True and "_mode_" in name}
    modes = stored if isinstance(stored, list) else [stored] if stored else [m for m in POOLING if on & _legacy(m)]
    if not modes or any(not isinstance(mode, str) or mode not in POOLING for mode in modes) or len(on) > len(modes):
        shown = ", ".join(sorted({*map(str, modes), *on})) or "none"
        raise unsupported_key(file, "pooling_mode", shown, f"needs {', '.join(POOLING)}")
    flags = [f"pooling_mode_{name}" for mode in POOLING for name in _legacy(mode)]
    sizes = ("embedding_dimension", "word_embedding_dimension", "pooling_mode")
    check_keys(file, config, {**dict.fromkeys(sizes), **dict.fromkeys((*flags, "include_prompt"), (False, True))})
    return [POOLING[mode] for mode in modes], config.get("include_prompt") is not False


def _legacy(mode: str) -> set[str]:
    """Return the names of a pooling in older files, after `pooling_mode_`."""
    return {mode, f"{mode}_token", f"{mode}_tokens"}


def transformer_settings(transformer: Path, task: str = "feature-extraction") -> tuple[Path, dict[str, Any]]:
    """Return the file of the settings of a module Transformer, and its values with the present names of keys.

    Args:
        transformer: folder of the module.
        task: what the transformer is for; one of `TASKS`.

    Raises:
        InputError: a value that changes vectors and is not supported.
    """
    file = _settings_file(transformer)
    stored = {_FORMER.get(key, key): value for key, value in _object(file).items()}
    output, method = TASKS[task]
    modalities = stored.get("modality_config") or {}
    plain = {"method": "forward", "method_output_name": method}
    if modalities and (modalities.get("text") != plain or "message" in modalities):
        raise unsupported_key(file, "modality_config", modalities, "needs texts, without a chat template")
    for name, free in _ARGUMENTS.items():
        for key, value in (stored.get(f"{name}_kwargs") or {}).items():
            if key not in free | _HUB:
                raise unsupported_key(file, f"{name}_kwargs.{key}", value, "save the model with this value")
    texts = dict(stored.get("processing_kwargs") or {})
    limits = dict(texts.pop("text", None) or {})
    if limits.get("max_length") is not None:  # overrides all other lengths
        stored |= dict.fromkeys(("query_length", "document_length", "max_seq_length"), limits["max_length"])
    for key, value in [*texts.items(), *((key, value) for key, value in limits.items() if key != "max_length")]:
        if value and not (key in ("padding", "truncation") and value is True):
            raise unsupported_key(file, f"processing_kwargs.{key}", value, "texts are tokenized with their defaults")
    allowed = {"transformer_task": (task,), "module_output_name": (output,), "do_lower_case": (False, True)}
    others = (
        "max_seq_length",
        "query_length",
        "document_length",
        "unpad_inputs",
        "modality_config",
        "processing_kwargs",
    )
    check_keys(file, stored, {**dict.fromkeys((*others, *_FORMER.values())), **allowed})
    return file, stored


def _lowers_case(transformer: Path) -> bool:
    """Return whether the settings of a Transformer lower the case of texts (do_lower_case)."""
    return bool(_object(_settings_file(transformer)).get("do_lower_case"))


def _settings_file(transformer: Path) -> Path:
    names = (transformer / name for name in _SETTINGS)
    return next((file for file in names if file.is_file()), transformer / _SETTINGS[0])


def max_length(transformer: Path, name: str, default: int, task: str = "feature-extraction") -> int:
    """Return the maximum length of texts: as stored, else the smaller of those of transformer and tokenizer.

    Args:
        transformer: folder of the module Transformer.
        name: `query_length` or `document_length`.
        default: length of a model that stores none.
        task: see `transformer_settings`.

    Raises:
        InputError: no possible length.
    """
    file, stored = transformer_settings(transformer, task)
    length: Any = stored.get("max_seq_length") if stored.get(name) is None else stored[name]
    if length is None:
        length = (stored.get("processor_kwargs") or {}).get("model_max_length")
    if length is None:
        names = (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length"))
        known: list[Any] = [_object(transformer / name).get(field) for name, field in names]
        length = min(
            (length_known for length_known in known if has_type(length_known, int) and length_known <= LONGEST),
            default=default,
        )
    if not has_type(length, int) or not 4 <= length <= LONGEST:
        label = "max_seq_length" if stored.get(name) is None else name
        raise path_error(
            file,
            f"{label} {value_in_words(length)} is not between 4 and {LONGEST}",
            code="length-out-of-range",
            value=length,
        )
    return int(length)


def _table_length(folder: Path) -> int:
    """Return the maximum number of tokens of a text: that of `tokenizer.json`, or `LONGEST`."""
    cut = read_object(folder / TOKENIZER).get("truncation") if (folder / TOKENIZER).is_file() else None
    length: Any = cut.get("max_length") if isinstance(cut, dict) else None
    return length if has_type(length, int) and 4 <= length <= LONGEST else LONGEST


def _object(file: Path) -> dict[str, Any]:
    return read_object(file) if file.exists() else {}


_SATURATION = {"relu": 1, "log1p_relu": 2}  # activations of SpladePooling
_SPLADE: dict[str, Any] = {  # keys of SpladePooling, and their values
    **dict.fromkeys(("embedding_dimension", "word_embedding_dimension", "chunk_size")),
    "pooling_strategy": ("max", "sum"),
    "activation_function": tuple(_SATURATION),
}
_SPECIAL = 2  # special tokens of a text: [CLS] and [SEP]
_POOLED = {"Transformer", "Pooling", "Normalize", "Dense", "LayerNorm"}  # modules of an encoder that starts a training


@dataclass(frozen=True)
class DenseModel:
    """A SentenceTransformer: an encoder, or a pair, whose sides have other modules."""

    folder: Path

    @property
    def kind(self) -> str:
        """`transformer`, or `pair`."""
        return PAIR if is_asymmetric(self.folder) else TRANSFORMER

    def contract(self, side: str | None = None) -> Contract:
        """Return the contract; of one side of a pair."""
        first, pooling, others = parts_of(self.folder, side or "document")
        kinds = tuple(module.kind for module in others)
        prompts = prompts_of(self.folder)
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
            length = _table_length(first.folder)
            return Contract(special_tokens=False, query_max_len=length, doc_max_len=length, **shared)
        (mode, *more), included = poolings_of(self.folder, pooling.folder)
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

    def tower(self, side: str) -> TowerFiles:
        """Return the files of the encoder of one side."""
        first, _, others = parts_of(self.folder, side)
        table = first.kind == STATIC_EMBEDDING
        modules = tuple(others[: len(self.contract(side).modules)])
        return TowerFiles(first.folder, modules, is_table=table, lower_case=not table and _lowers_case(first.folder))

    def notes(self, contract: TextForm) -> list[str]:
        """Return what a user should know: values that no vector of this package has."""
        prompts = prompts_of(self.folder)
        notes = []
        if prompts.others:
            listed = ", ".join(f"{name} ({text!r})" for name, text in prompts.others.items())
            notes.append(f"prompts that are not used: {listed}; pass one with --query-prefix or --doc-prefix")
        if prompts.default:
            notes.append(
                f"default prompt {prompts.default!r} is not used, as in encode_query and encode_document of "
                "sentence-transformers; pass it with --query-prefix or --doc-prefix"
            )
        assert isinstance(contract, Contract)
        unit = contract.normalize or (contract.modules[-1:] == ("Normalize",) and contract.truncate_dim is None)
        if prompts.similarity == "cosine" and not unit:
            notes.append("scores are inner products, its similarity is the cosine; pass --normalize for the cosine")
        return notes


@dataclass(frozen=True)
class SparseModel:
    """A SparseEncoder: SPLADE, with the same modules for queries, or a table of their weights."""

    folder: Path

    @property
    def kind(self) -> str:
        """`sparse`."""
        return SPARSE

    def contract(self, side: str | None = None) -> TextForm:
        """Return the contract."""
        from hybrid_cli.encoders.sparse import SparseContract

        body, pooling = self._document_modules()
        file = pooling.folder / "config.json"
        stored = read_object(file)
        check_keys(file, stored, _SPLADE)
        how: Any = stored.get("pooling_strategy") or "max"
        prompts = prompts_of(self.folder)
        for key, value in (("similarity_fn_name", prompts.similarity), ("truncate_dim", prompts.truncate_dim)):
            if value not in (None, "dot"):
                whole = self.folder / "config_sentence_transformers.json"
                raise unsupported_key(whole, key, value, "scores are inner products of the weights of all terms")
        names = ("query_length", "document_length")
        queries, documents = (max_length(body.folder, name, 256, "fill-mask") for name in names)
        table = self._query_table(body)
        if table is not None:  # whose queries have no special tokens, and another limit
            queries = min(LONGEST, _SPECIAL + _query_length(table))
        return SparseContract(
            query_prefix=prompts.query,
            doc_prefix=prompts.document,
            query_max_len=queries,
            doc_max_len=documents,
            pooling=how,
            saturation=_SATURATION[stored.get("activation_function") or "relu"],
            query_table=table is not None,
        )

    def tower(self, side: str) -> TowerFiles:
        """Return the files of the transformer; of queries, those of their table if there is one."""
        body = self._document_modules()[0]
        table = self._query_table(body) if side == SIDES[0] else None
        return TowerFiles((table or body).folder, lower_case=_lowers_case(body.folder))

    def notes(self, contract: TextForm) -> list[str]:
        """Return the prompts that are not used."""
        others = prompts_of(self.folder).others.items()
        return [f"prompt {name} ({text!r}) is not used; pass --query-prefix or --doc-prefix" for name, text in others]

    def _document_modules(self) -> tuple[Module, Module]:
        """Return the modules of documents: a masked language model, and its pooling."""
        modules = modules_of(self.folder, "document")
        kinds = [module.kind for module in modules]
        if kinds not in (["Transformer", "SpladePooling"], ["MLMTransformer", "SpladePooling"]):
            problem = f"documents have {', '.join(kinds) or 'no modules'}; needs Transformer, SpladePooling"
            raise path_error(self.folder / MODULES, problem, code="modules-order")
        return modules[0], modules[1]

    def _query_table(self, body: Module) -> Module | None:
        """Return the table of weights of queries; None if queries have the modules of documents.

        Raises:
            InputError: other modules, a table of another origin than its folder, or of other word pieces.
        """
        modules = modules_of(self.folder, "query")
        if modules == modules_of(self.folder, "document"):
            return None
        if [module.kind for module in modules] != ["SparseStaticEmbedding"]:
            problem = f"queries have {', '.join(module.kind for module in modules)}; needs SparseStaticEmbedding"
            raise path_error(self.folder / MODULES, problem, code="modules-order")
        file = modules[0].folder / "config.json"
        check_keys(file, _object(file), {"frozen": None})
        tokenizers = [_rules_of(module.folder / TOKENIZER) for module in (modules[0], body)]
        if tokenizers[0] != tokenizers[1]:
            raise path_error(modules[0].folder / TOKENIZER, "differs from that of documents", code="tokenizers-differ")
        return modules[0]


def _query_length(table: Module) -> int:
    """Return the maximum number of tokens of a query of a SparseStaticEmbedding."""
    length = _object(table.folder / "tokenizer_config.json").get("model_max_length")
    return length if has_type(length, int) and length is not None and 4 <= length <= LONGEST else LONGEST


def _rules_of(file: Path) -> dict[str, Any]:
    """Return the parts of a tokenizer that decide the tokens of a text."""
    stored = _object(file)
    return {name: stored.get(name) for name in ("normalizer", "pre_tokenizer", "model", "added_tokens")}


class SentenceTransformers:
    """Models of sentence-transformers: SentenceTransformer, SparseEncoder and CrossEncoder."""

    def encoder(self, folder: Path) -> DenseModel | SparseModel | None:
        """Return the encoder in a folder with `modules.json`; None for another folder."""
        if not (folder / MODULES).is_file():
            return None
        kinds = {module.kind for side in SIDES for module in modules_of(folder, side)}
        return SparseModel(folder) if kinds & {*SPARSE_KINDS} else DenseModel(folder)

    def reranker(self, folder: Path, train: bool) -> RerankerFiles | None:
        """Return the length of a CrossEncoder; of the start model of a training, whether it lowers the case.

        Raises:
            InputError: modules of no CrossEncoder, a prompt, or another value that changes scores.
        """
        if (folder / MODULES).is_file():
            modules = read_json(folder / MODULES)
            if wrong := mismatch(modules, list[dict[str, Any]]):
                problem = f"{wrong}; needs a list of objects"
                raise path_error(folder / MODULES, problem, code="modules-form", **wrong.fields)
            named = [str(module.get("type")) for module in modules]
            types = {name.rsplit(".", 1)[-1] if name.startswith("sentence_transformers.") else name for name in named}
            if unknown := sorted(types - (_POOLED if train else {"Transformer"})):
                problem = f"has the modules {', '.join(unknown)}, so it is no cross-encoder; use another model"
                raise path_error(folder, problem, code="module-unsupported")
        if train:
            return RerankerFiles(lower_case=_lowers_case(folder))
        if _object(folder / "config_sentence_transformers.json").get("default_prompt_name"):
            raise path_error(folder, "has a default prompt, which is not supported", code="default-prompt")
        limit = transformer_settings(folder, "sequence-classification")[1].get("max_seq_length")
        return RerankerFiles(limit if has_type(limit, int) else None, _lowers_case(folder))


READER = SentenceTransformers()
