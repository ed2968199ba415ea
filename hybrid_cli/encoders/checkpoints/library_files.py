"""Files of a sentence-transformers model: modules, routes, prompts, poolings and lengths.

Every key that changes the vectors of that library is read here, or refused by name. Keys of the modules between pooling
and vector are in `head`.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hybrid_cli.encoders.options import Pooling
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.json_files import has_type, mismatch, mismatch_of_fields, read_json, read_object, value_in_words
from hybrid_cli.storage.layout import MODULES

LONGEST = 1 << 20  # of lengths in word pieces and of vectors: beyond every model
MODULE_KINDS = ("Dense", "LayerNorm", "Normalize")  # modules of sentence-transformers between pooling and vector
SPARSE_KINDS = ("MLMTransformer", "SpladePooling", "SparseStaticEmbedding")
_ROUTES = ("router_config.json", "config.json")
OF_VECTORS = dict.fromkeys(("module_input_name", "module_output_name"), ("sentence_embedding",))  # not of tokens
STATIC_EMBEDDING = "StaticEmbedding"
TOKENIZER = "tokenizer.json"
_MODULE_KINDS = {"Transformer", "Pooling", "Dropout", "Router", "Asym", STATIC_EMBEDDING, *MODULE_KINDS, *SPARSE_KINDS}
POOLING: dict[str, Pooling] = {  # names of sentence-transformers, in the order in which it joins several
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean-sqrt",
    "weightedmean": "weighted-mean",
    "lasttoken": "last",
}
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


@dataclass(frozen=True)
class Module:
    """A module of a sentence-transformers model.

    Attributes:
        kind: name of its class.
        folder: folder of its files.
    """

    kind: str
    folder: Path


def unsupported_key(file: Path, key: str, value: Any, reason: str) -> InputError:
    """Return the error about a key of a file that is not supported."""
    return path_error(
        file,
        f"{key} {value_in_words(value)} is not supported; {reason}",
        code="sentence-transformers-key",
        key=key,
        value=value,
    )


def check_keys(file: Path, stored: Mapping[str, Any], allowed: Mapping[str, Collection[Any] | None]) -> None:
    """Refuse keys that may change the vectors: unknown ones, and those with other values than the allowed ones.

    Args:
        file: file of the keys.
        stored: key -> value; null counts as absent.
        allowed: key -> allowed values; None for any value.
    """
    for key, value in stored.items():
        values = allowed.get(key, ())
        if value is not None and values is not None and value not in values:
            needed = f"needs {' or '.join(map(str, values))}" if values else "it may change the vectors"
            raise unsupported_key(file, key, value, needed)


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


def lowers_case(transformer: Path) -> bool:
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


def table_length(folder: Path) -> int:
    """Return the maximum number of tokens of a text: that of `tokenizer.json`, or `LONGEST`."""
    cut = read_object(folder / TOKENIZER).get("truncation") if (folder / TOKENIZER).is_file() else None
    length: Any = cut.get("max_length") if isinstance(cut, dict) else None
    return length if has_type(length, int) and 4 <= length <= LONGEST else LONGEST


def _object(file: Path) -> dict[str, Any]:
    return read_object(file) if file.exists() else {}
