"""Files of a sentence-transformers model: modules, prompts, poolings and maximum length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybrid_cli.artifacts.layout import MODULES
from hybrid_cli.errors import InputError
from hybrid_cli.json_files import fits, named, read_json, read_object
from hybrid_cli.settings.common import Pooling

LONGEST = 1 << 20  # of lengths in word pieces and of vectors: beyond every model
MODULE_KINDS = ("Dense", "LayerNorm", "Normalize")  # modules of sentence-transformers between pooling and vector
_MODULE = ("type", "path")
POOLING: dict[str, Pooling] = {  # names of sentence-transformers, in the order in which it joins several
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean-sqrt",
    "weightedmean": "weighted-mean",
    "lasttoken": "last",
}


def modules_of(folder: Path) -> list[tuple[str, Path]]:
    """Return kind and folder of each module of a sentence-transformers model.

    Raises:
        InputError: `modules.json` has another form, or a module that this package does not know.
    """
    modules = read_json(folder / MODULES)
    if not fits(modules, list[dict[str, Any]]) or not all(fits(m.get(key), str) for m in modules for key in _MODULE):
        raise InputError(f"{folder / MODULES}: needs a list of modules, each with {' and '.join(_MODULE)}")
    kinds = [module["type"].rsplit(".", 1)[-1] for module in modules]
    if unknown := set(kinds) - {"Transformer", "Pooling", "Dropout", *MODULE_KINDS}:
        raise InputError(f"{folder}: unsupported sentence-transformers modules: {', '.join(sorted(unknown))}")
    found = [(kind, folder / each["path"]) for kind, each in zip(kinds, modules, strict=True) if kind != "Dropout"]
    if [kind for kind, _ in found[:2]] != ["Transformer", "Pooling"]:
        raise InputError(f"{folder / MODULES}: needs the modules Transformer and Pooling first")
    return found


def prompts_of(folder: Path) -> tuple[str, str]:
    """Return the prompts of a sentence-transformers model for queries and for documents; empty if it has none.

    Raises:
        InputError: prompts of another form, a default prompt that is not among them, or a similarity that is not the
            inner product or the cosine.
    """
    file = folder / "config_sentence_transformers.json"
    stored = _object(file)
    texts: dict[str, str] = stored.get("prompts") or {}
    if not fits(texts, dict[str, str]):
        raise InputError(f"{file}: prompts need an object of texts")
    default, similarity = stored.get("default_prompt_name"), stored.get("similarity_fn_name")
    if default is not None and default not in (*texts, "query", "document"):
        known = ", ".join(texts) or "none"
        raise InputError(f"{file}: default_prompt_name {named(default)} is not among the prompts ({known}); correct it")
    if similarity not in (None, "cosine", "dot"):
        raise InputError(
            f"{file}: similarity_fn_name {named(similarity)} is not supported; scores are inner products (dot, cosine)"
        )
    names = ("document", "passage", "corpus")
    return texts.get("query", ""), next((texts[name] for name in names if name in texts), "")


def poolings_of(folder: Path, pooling: Path) -> list[Pooling]:
    """Return the poolings of a sentence-transformers model.

    Args:
        folder: folder of the model.
        pooling: folder of its module Pooling.

    Raises:
        InputError: another pooling, or a prompt that the pooling leaves out.
    """
    config = _object(pooling / "config.json")
    stored = config.get("pooling_mode")
    on = {name.removeprefix("pooling_mode_") for name, value in config.items() if value is True and "_mode_" in name}
    modes = stored if isinstance(stored, list) else [stored] if stored else [m for m in POOLING if on & _legacy(m)]
    if not modes or any(mode not in POOLING for mode in modes) or len(on) > len(modes):
        shown = ", ".join(sorted({*map(str, modes), *on})) or "none"
        raise InputError(f"{folder}: unsupported pooling ({shown}); needs {', '.join(POOLING)}")
    if any(prompts_of(folder)) and config.get("include_prompt") is False:
        raise InputError(f"{folder}: unsupported pooling without the prompt (include_prompt is false)")
    return [POOLING[mode] for mode in modes]


def _legacy(mode: str) -> set[str]:
    """Return the names of a pooling in older files, after `pooling_mode_`."""
    return {mode, f"{mode}_token", f"{mode}_tokens"}


def max_length(transformer: Path, name: str, default: int) -> int:
    """Return the maximum length of texts: as stored, else the smaller of those of transformer and tokenizer.

    Args:
        transformer: folder of the module Transformer.
        name: `query_length` or `document_length`.
        default: length of a model that stores none.

    Raises:
        InputError: no possible length.
    """
    file = transformer / "sentence_bert_config.json"
    stored = _object(file)
    length: Any = stored.get("max_seq_length") if stored.get(name) is None else stored[name]
    if length is None:
        names = (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length"))
        known: list[Any] = [_object(transformer / name).get(field) for name, field in names]
        length = min((each for each in known if fits(each, int) and each <= LONGEST), default=default)
    if not fits(length, int) or not 4 <= length <= LONGEST:
        label = "max_seq_length" if stored.get(name) is None else name
        raise InputError(f"{file}: {label} {named(length)} is not between 4 and {LONGEST}")
    return int(length)


def _object(file: Path) -> dict[str, Any]:
    return read_object(file) if file.exists() else {}
