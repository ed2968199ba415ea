"""Opening of model folders: config.json, weights and tokenizer, behind one policy.

Every folder of a transformer is opened here: encoders, learned sparse encoders, rerankers, start models, teachers and
translation models. Whoever wrote the folder decides its architecture and nothing else: its files name no code that is
run, no model that is downloaded, and no sizes beyond those of its weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants
from safetensors import SafetensorError
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_MAPPING,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights
from transformers.utils import logging

from hybrid_cli import memory
from hybrid_cli.encoders.layouts import shapes, weight_files
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.input_files import refuse_special
from hybrid_cli.json_files import mismatch, mismatch_of_fields, named, read_object

# Keys of config.json that name an implementation, wherever they are; the installed transformers chooses it instead.
_IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")
# Keys without effect on the vectors: records of the author's environment, and forms of the output that is not used.
_DROPPED = {
    *("auto_map", "name_or_path", "custom_pipelines", "fusion_config", "kernel_config", "distributed_config"),
    *("use_kernels", "device_map", "tp_plan", "use_cache", "return_dict", "use_return_dict", "torchscript"),
    *("output_attentions", "output_hidden_states", "chunk_size_feed_forward"),
}
# Keys that need more than this folder, with the reason.
_REFUSED = {
    "quantization_config": "quantized weights are not opened; save the model in fp32 or bf16",
    "compression_config": "compressed weights are not opened; save the model in fp32 or bf16",
    "backbone": "a model inside this model would be downloaded; save a complete checkpoint",
    "use_timm_backbone": "a model inside this model would be downloaded; save a complete checkpoint",
    "use_pretrained_backbone": "a model inside this model would be downloaded; save a complete checkpoint",
    "gguf_file": "GGUF files are not opened; save the model as safetensors",
}
_DTYPES = ("float32", "float16", "bfloat16", "float64", "auto")
_LABELS = ("id2label", "label2id")  # whose keys are of their own
# Keys that number the parts of a model: each part has weights of its own, or shares those of another.
_PARTS = re.compile(r"(layers|blocks|experts|depths?|stages?|stacks|groups|towers)$|^n_(layer|block|expert|group)$")
_NUMBERS = re.compile(r"^num_")
_FEWEST_PARTS, _FEWEST_NUMBERS = 64, 4096  # always allowed: the layers of ALBERT share their weights
_PADDED_POSITIONS = ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "roberta-prelayernorm", "mpnet")
_NEW = 1 << 24  # values of new heads
_KINDS = {  # of models: their architectures, and a word for messages
    AutoModel: (MODEL_MAPPING, "encoder"),
    AutoModelForMaskedLM: (MODEL_FOR_MASKED_LM_MAPPING, "masked language model"),
    AutoModelForSequenceClassification: (MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, "classification head"),
    AutoModelForSeq2SeqLM: (MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, "translation model"),
}


def read_config(folder: Path) -> PretrainedConfig:
    """Return the configuration of a model folder, of the keys that may act.

    Raises:
        InputError: no config.json, a key that needs more than this folder, an unknown architecture, or more parts than
            the weights have.
    """
    file = folder / "config.json"
    if (folder / "adapter_config.json").is_file():
        raise InputError(
            f"{folder}: is a LoRA adapter; merge it into its base model (`merge_and_unload` of peft), and save that "
            "model",
            code="model-adapter",
            path=folder,
        )
    if not file.is_file():
        raise InputError(f"{folder}: {_without_config(folder)}", code="model-without-config", path=folder)
    read_object(file)  # an error in one line
    with opening(folder):
        stored, _ = PretrainedConfig.get_config_dict(folder, local_files_only=True)
    _refuse_keys(stored, file)
    _refuse_counts(stored, file, len(shapes(folder)))
    kept = _kept(stored)
    kind = kept.get("model_type")
    if kind == "mistral" and "layer_types" in kept:  # as AutoConfig reads it
        kind = "ministral"
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        own = "; code of its own (auto_map) is never run" if "auto_map" in stored else ""
        raise InputError(
            f"{file}: model_type {named(kind)} is no architecture of the installed transformers{own}",
            code="model-type-unknown",
            path=file,
            value=kind,
        )
    with opening(folder):
        config: PretrainedConfig = CONFIG_MAPPING[kind].from_dict(kept)
    _refuse_form(config, file)
    config.name_or_path = str(folder)
    return config


def open_model(
    auto: Any, folder: Path, config: PretrainedConfig, weights: Mapping[str, Tensor] | None = None, **options: Any
) -> tuple[Any, Mapping[str, Any]]:
    """Open the model of a folder.

    Args:
        auto: class of transformers, or one of its Auto classes.
        folder: folder of the model.
        config: its configuration; see `read_config`.
        weights: weights under the names of the class; None for those in the folder.
        options: arguments of the class.

    Returns:
        The model, and transformers' report of missing, unexpected and mismatched weights.

    Raises:
        InputError: no weights in safetensors format, weights of another size than config.json describes, or an
            architecture that the class does not have.
    """
    silence_transformers()
    refuse_pickles(folder)
    known, word = _KINDS.get(auto, (None, ""))
    if known is not None and type(config) not in known:
        raise InputError(
            f"{folder}: the architecture {config.model_type} has no {word}; use another model",
            code="architecture-unsupported",
            path=folder,
            value=config.model_type,
        )
    if auto is not AutoModelForSeq2SeqLM and hasattr(config, "use_cache"):
        config.use_cache = False  # keys and values of earlier tokens, which only writing a text needs
    with opening(folder):
        _refuse_size(auto, folder, config, options)
        source: dict[str, Any] = {"use_safetensors": True} if weights is None else {"state_dict": dict(weights)}
        opened, report = auto.from_pretrained(
            folder if weights is None else None,
            config=config,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # the caller refuses them with a clear message
            local_files_only=True,
            trust_remote_code=False,
            **source,
            **options,
        )
    return opened, report


def new_model(kind: Any, folder: Path, config: PretrainedConfig) -> PreTrainedModel:
    """Return a model without its weights, whose size is that of the weights in the folder; see `open_model`."""
    silence_transformers()
    refuse_pickles(folder)
    with opening(folder):
        _refuse_size(kind, folder, config, {})
        built: PreTrainedModel = kind(config)
    return built


def open_tokenizer(folder: Path, **options: Any) -> Any:
    """Return the tokenizer of a folder.

    Args:
        folder: folder of the tokenizer.
        options: arguments of the tokenizer.

    Raises:
        InputError: the tokenizer is not readable, or has no vocabulary.
    """
    config = read_config(folder) if (folder / "config.json").is_file() else None
    with opening(folder):
        tokenizer = AutoTokenizer.from_pretrained(
            folder, config=config, local_files_only=True, trust_remote_code=False, **options
        )
        set(tokenizer.all_special_ids)  # fails for damaged ones
    length: Any = tokenizer.model_max_length
    if not isinstance(length, int | float) or not length >= 1:
        raise InputError(
            f"{folder}: model_max_length {named(length)} of the tokenizer is no length",
            code="length-out-of-range",
            path=folder,
            key="model_max_length",
            value=length,
        )
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # else transformers creates one
        raise InputError(
            f"{folder}: has no vocabulary (tokenizer.json or vocab.txt); save the tokenizer in this folder",
            code="tokenizer-without-vocabulary",
            path=folder,
        )
    return tokenizer


def silence_transformers() -> None:
    """Suppress reports and progress bars of transformers."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def opening(folder: Path) -> Iterator[None]:
    """Open the files of a model without the network; turn an error of transformers about them into one line."""
    online, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True  # for requests that no argument switches off
    try:
        yield
    except HybridError:
        raise
    except Exception as error:  # transformers and tokenizers raise every class for files that are damaged
        if memory.exhausted(error):
            raise
        raise InputError(
            f"{folder}: no readable model ({_first_line(error)})", code="model-unreadable", path=folder
        ) from None
    finally:
        constants.HF_HUB_OFFLINE = online


def _refuse_keys(fields: Mapping[str, Any], file: Path) -> None:
    """Refuse keys that name code or models outside the folder, also in the configurations of parts."""
    for key, value in _items(fields):
        name = key.lstrip("_").removesuffix("_internal")
        reason = _REFUSED.get(name) if value is True or (value and isinstance(value, str | dict)) else None
        if name in _IMPLEMENTATIONS and any("/" in each for each in _texts(value)):
            reason = "code of the hub is never run; remove the key"
        if name in ("dtype", "torch_dtype") and any(
            each.removeprefix("torch.") not in _DTYPES for each in _texts(value)
        ):
            reason = f"weights are floating point numbers ({', '.join(_DTYPES[:-1])}); save the model in one of them"
        if reason is not None:
            raise InputError(
                f"{file}: {key} {named(value)} is not allowed: {reason}",
                code="model-config-key",
                path=file,
                key=key,
                value=value,
            )


def _refuse_form(config: PretrainedConfig, file: Path) -> None:
    """Refuse values that transformers reads without a check, and that end a command later."""
    problem = ""
    if not isinstance(config.get_text_config(), PretrainedConfig):
        problem = "text_config needs an object"
    elif wrong := mismatch(config.architectures, list[str] | None):
        problem = f"architectures: {wrong}"
    elif config.model_type in _PADDED_POSITIONS and not isinstance(getattr(config, "pad_token_id", None), int):
        problem = f"pad_token_id of a {config.model_type} model, after which its positions start, needs a number"
    if problem:
        raise InputError(f"{file}: {problem}", code="model-config-form", path=file)


def _refuse_counts(fields: Mapping[str, Any], file: Path, weights: int) -> None:
    """Refuse more parts than a checkpoint of so many weights can have, before anything is built from their number."""
    for key, value in _items(fields):
        for pattern, fewest in ((_PARTS, _FEWEST_PARTS), (_NUMBERS, _FEWEST_NUMBERS)):
            most = max(weights, fewest)
            numbers = [len(value), *value] if isinstance(value, list) else [value]
            large = [each for each in numbers if isinstance(each, int | float) and each > most]
            if large and pattern.search(key):
                raise InputError(
                    f"{file}: {key} {large[0]} is more than the checkpoint of {weights} weights can have; correct it, "
                    "or save the complete checkpoint",
                    code="model-config-size",
                    path=file,
                    key=key,
                    value=large[0],
                    limit=most,
                )


def _refuse_size(auto: Any, folder: Path, config: PretrainedConfig, options: Mapping[str, Any]) -> None:
    """Refuse a configuration of a model far larger than the weights; it is built without memory for them."""
    build = getattr(auto, "from_config", auto)
    with no_init_weights(), torch.device("meta"):
        model = build(config, **options)
    described = sum(each.numel() for each in (*model.parameters(), *model.buffers()))
    stored = sum(math.prod(shape) for shape in shapes(folder).values())
    if stored and described > 2 * stored + _NEW:
        file = folder / "config.json"
        raise InputError(
            f"{file}: describes a model of {described:,} values, and the checkpoint has {stored:,}; save the complete "
            "checkpoint with its config.json",
            code="model-config-size",
            path=file,
            value=described,
            limit=2 * stored + _NEW,
        )


def _kept(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that may act: no private ones, none that replace a method, and none of `_DROPPED`."""
    return {
        key: _kept(value) if isinstance(value, dict) and key not in _LABELS else value
        for key, value in fields.items()
        if key not in (*_DROPPED, *_IMPLEMENTATIONS)
        and not key.startswith("_")
        and (key == "model_type" or not _is_of_class(key))
    }


def _is_of_class(key: str) -> bool:
    """Return whether a key would replace a method or another attribute of the class of configurations."""
    declared = {each.name for each in dataclass_fields(PretrainedConfig)}  # type: ignore[arg-type]
    return key not in declared and not isinstance(getattr(PretrainedConfig, key, property()), property)


def _items(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield keys and values of an object and of all objects in it."""
    for key, value in fields.items():
        yield key, value
        if key not in _LABELS:
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, dict):
                    yield from _items(each)


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _without_config(folder: Path) -> str:
    """Return what a folder without config.json is, and what to do."""
    inner = sorted(
        (file.parent for file in folder.glob("*/config.json")), key=lambda each: "q" not in each.name.lower()
    )
    if len(inner) == 2:
        return (
            f"has no config.json; to join its towers: hybrid convert-checkpoint {inner[0]} OUT --documents {inner[1]}"
        )
    return "has no config.json; save the complete checkpoint"


def refuse_pickles(folder: Path) -> None:
    """Refuse weights that are not in safetensors files of this folder, and pipes in place of files."""
    for path in sorted(folder.iterdir()):
        refuse_special(path)
    if (folder / "config.json").is_file() and not weight_files(folder):
        raise InputError(
            f"{folder}: has no model.safetensors; "
            + (
                f"pickles (pytorch_model.bin) are not opened. Convert them: hybrid convert-checkpoint {folder} OUT"
                if any(folder.glob("*.bin"))
                else "save the complete checkpoint"
            )
        )
    for name in _named_files(folder):
        if not name.endswith(".safetensors") or Path(name).name != name:
            raise InputError(f"{folder}: weights in {name!r} are not opened; needs .safetensors files in this folder")


def _named_files(folder: Path) -> set[str]:
    """Return the files that the index of a sharded checkpoint and config.json name as its weights."""
    found: set[str] = set()
    if (index := folder / "model.safetensors.index.json").exists():
        stored = read_object(index)
        if wrong := mismatch_of_fields(stored, {"weight_map": dict[str, str]}):
            raise InputError(f"{index}: {wrong}, the file of a weight", code="json-type", path=index, **wrong.fields)
        found |= set(stored["weight_map"].values())
    if (config := folder / "config.json").exists() and (named := read_object(config).get("transformers_weights")):
        found.add(str(named))
    return found


def _first_line(error: Exception) -> str:
    """Return the first line of a message, or the class of an error without one."""
    if isinstance(error, RecursionError):
        return "JSON nested too deeply"
    text = next(iter(str(error).splitlines()), "")
    return text if isinstance(error, OSError | ValueError | SafetensorError) else f"{type(error).__name__}: {text}"
